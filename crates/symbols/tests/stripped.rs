// SPDX-License-Identifier: Apache-2.0
//! Stripped programs: names from dynamic symbols, from MiniDebugInfo and from separate debug files, and
//! none where those do not cover an address.

mod support;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use support::{Program, compile, run};
use wallprof_model::{Module, SymbolLine};
use wallprof_symbols::{
    FunctionTable, ModuleFile, Resolver, ResolverOptions, build_id_of_path, hex_build_id, lacks_debug_info,
};

/// `exported` is a dynamic symbol with -rdynamic, `hidden` follows it in the same section and is none.
const SOURCE: &str = r#"
static volatile int sink;
__attribute__((noinline)) int exported(int value) { sink = value; return value + 1; }
static __attribute__((noinline)) int hidden(int value) { sink = value * 3; return value + 2; }
int main(int argc, char **argv) { (void)argv; return exported(argc) + hidden(argc); }
"#;

/// The program in the forms that distributions ship.
struct Split {
    program: Program,
    stripped: PathBuf,
    debug: PathBuf,
    /// The first addresses of `exported` and `hidden`.
    exported: u64,
    hidden: u64,
}

impl Split {
    fn new() -> Self {
        let arguments = ["-O1", "-g", "-rdynamic", "-Wl,--build-id=sha1", "-fno-toplevel-reorder"];
        let program = compile("c", SOURCE, &arguments);
        let in_folder = |name: &str| program.folder.path().join(name);
        let (stripped, debug) = (in_folder("stripped"), in_folder("separate.debug"));
        run(Command::new("objcopy").arg("--only-keep-debug").args([&program.path, &debug]));
        run(Command::new("strip").arg("-o").args([&stripped, &program.path]));
        let (exported, hidden) = (address_of(&program.path, "exported"), address_of(&program.path, "hidden"));
        Split { program, stripped, debug, exported, hidden }
    }

    fn folder(&self) -> &Path {
        self.program.folder.path()
    }

    /// The stripped program with this section `.gnu_debugdata`.
    fn with_debug_data(&self, name: &str, data: &[u8]) -> PathBuf {
        let (path, section) = (self.folder().join(name), self.folder().join(format!("{name}.section")));
        std::fs::write(&section, data).expect("written");
        let argument = format!(".gnu_debugdata={}", section.display());
        run(Command::new("objcopy").args(["--add-section", &argument]).args([&self.stripped, &path]));
        path
    }

    /// MiniDebugInfo as gdb's manual makes it: symbols that are not dynamic ones, without debug sections.
    fn mini_debug(&self) -> Vec<u8> {
        let (keep, mini) = (self.folder().join("keep"), self.folder().join("mini"));
        std::fs::write(&keep, "hidden\nmain\n").expect("written");
        let argument = format!("--keep-symbols={}", keep.display());
        run(Command::new("objcopy")
            .args(["-S", "--remove-section=.gdb_index", "--remove-section=.comment"])
            .args([Path::new(&argument), &self.debug, &mini]));
        xz(&std::fs::read(mini).expect("readable"))
    }

    fn build_id(&self) -> Vec<u8> {
        build_id_of_path(&self.stripped).expect("a build id")
    }

    /// The names of `exported` and `hidden` four bytes in, and how many debug files were unreadable.
    fn names(&self, file: Option<&Path>, options: ResolverOptions) -> ([Option<String>; 2], u64) {
        let mut resolver = Resolver::new(options);
        let lines = resolver.resolve(&self.module(file), &[self.exported + 4, self.hidden + 4]);
        let name = |lines: &Vec<SymbolLine>| lines.last().and_then(|line| line.symbol.clone());
        ([name(&lines[0]), name(&lines[1])], resolver.unreadable())
    }

    fn module(&self, file: Option<&Path>) -> ModuleFile {
        let module = Module { path: "/opt/stripped".into(), build_id: Some(self.build_id()) };
        ModuleFile { module, file: file.map(|path| Arc::new(File::open(path).expect("readable"))) }
    }

    fn with_files(&self, files: &[&Path]) -> ResolverOptions {
        let files = files.iter().map(|path| path.to_path_buf()).collect();
        ResolverOptions { files: BTreeMap::from([(self.build_id(), files)]), ..nothing_installed() }
    }
}

fn nothing_installed() -> ResolverOptions {
    ResolverOptions { debug_dirs: Vec::new(), ..ResolverOptions::default() }
}

fn address_of(program: &Path, name: &str) -> u64 {
    let output = Command::new("nm").arg(program).output().expect("nm");
    let text = String::from_utf8(output.stdout).expect("text");
    let line = text.lines().find(|line| line.ends_with(&format!(" {name}"))).expect("a symbol");
    u64::from_str_radix(line.split(' ').next().expect("an address"), 16).expect("hex")
}

fn xz(bytes: &[u8]) -> Vec<u8> {
    let mut child =
        Command::new("xz").arg("-c").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("xz");
    let mut input = child.stdin.take().expect("a pipe");
    std::thread::scope(|scope| {
        scope.spawn(move || input.write_all(bytes).expect("written"));
        let output = child.wait_with_output().expect("xz ends");
        assert!(output.status.success());
        output.stdout
    })
}

fn some(names: [&str; 2]) -> [Option<String>; 2] {
    names.map(|name| (!name.is_empty()).then(|| name.to_owned()))
}

#[test]
fn a_dynamic_symbol_names_its_own_bytes_and_no_more() {
    let split = Split::new();
    assert_eq!(split.names(Some(&split.stripped), nothing_installed()), (some(["exported", ""]), 0));
    assert!(
        split.hidden > split.exported,
        "hidden follows exported: {:x} {:x}",
        split.exported,
        split.hidden
    );
}

#[test]
fn mini_debug_info_names_functions_without_dynamic_symbols() {
    let split = Split::new();
    let mini = split.with_debug_data("with-mini", &split.mini_debug());
    assert_eq!(split.names(Some(&mini), nothing_installed()), (some(["exported", "hidden"]), 0));
    // The table of functions has them, too.
    let functions = |path: &Path| {
        let table = FunctionTable::read(&split.module(Some(path)), &nothing_installed());
        table.at(split.hidden + 4).and_then(|number| table.entry(number))
    };
    assert_eq!((functions(&split.stripped), functions(&mini)), (None, Some(split.hidden)));
}

#[test]
fn damaged_mini_debug_info_is_counted_and_the_dynamic_symbols_stay() {
    let split = Split::new();
    let whole = split.mini_debug();
    let mut flipped = whole.clone();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 0xff;
    // 40 MiB of zeros in six kilobytes.
    let bomb = xz(&vec![0; 40 << 20]);
    assert!(bomb.len() < 16 << 10, "{} bytes", bomb.len());
    let cases = [
        ("cut", &whole[..whole.len() / 2]),
        ("flipped", &flipped),
        ("bomb", &bomb),
        ("text", b"no xz at all"),
    ];
    for (name, data) in cases {
        let path = split.with_debug_data(name, data);
        assert_eq!(split.names(Some(&path), nothing_installed()), (some(["exported", ""]), 1), "{name}");
    }
}

#[test]
fn a_program_with_symbols_needs_no_mini_debug_info() {
    let split = Split::new();
    let (path, section) = (split.folder().join("unstripped"), split.folder().join("section"));
    std::fs::write(&section, b"never read").expect("written");
    let argument = format!(".gnu_debugdata={}", section.display());
    run(Command::new("objcopy").args(["--add-section", &argument]).args([&split.program.path, &path]));
    assert_eq!(split.names(Some(&path), nothing_installed()), (some(["exported", "hidden"]), 0));
    assert!(!lacks_debug_info(&split.module(Some(&path)), &nothing_installed()));
}

#[test]
fn a_debug_file_names_a_program_that_is_gone() {
    let split = Split::new();
    let options = split.with_files(&[&split.debug]);
    assert!(lacks_debug_info(&split.module(None), &nothing_installed()));
    assert!(!lacks_debug_info(&split.module(None), &options));
    assert_eq!(split.names(None, options.clone()), (some(["exported", "hidden"]), 0));
    let lines = Resolver::new(options).resolve(&split.module(None), &[split.hidden + 4]);
    assert!(
        lines[0][0].line.is_some()
            && lines[0][0].file.as_ref().is_some_and(|file| file.ends_with("program.c"))
    );
    assert_eq!(split.names(None, nothing_installed()), (some(["", ""]), 0));
    let unstripped = split.with_files(&[&split.program.path]);
    assert_eq!(split.names(None, unstripped), (some(["exported", "hidden"]), 0));
}

#[test]
fn a_damaged_debug_file_is_counted_and_the_next_one_serves() {
    let split = Split::new();
    let image = std::fs::read(&split.debug).expect("readable");
    let cut = split.folder().join("cut.debug");
    std::fs::write(&cut, &image[..image.len() - image.len() / 4]).expect("written");
    let only_cut = split.with_files(&[&cut]);
    assert_eq!(split.names(Some(&split.stripped), only_cut), (some(["exported", ""]), 1));
    let both = split.with_files(&[&cut, &split.debug]);
    assert_eq!(split.names(Some(&split.stripped), both), (some(["exported", "hidden"]), 1));
}

#[test]
fn damaged_debug_information_is_counted_and_its_symbols_serve() {
    let split = Split::new();
    let (damaged, garbage) = (split.folder().join("damaged.debug"), split.folder().join("garbage"));
    std::fs::write(&garbage, [0xff; 4096]).expect("written");
    let update = |section: &str| format!("{section}={}", garbage.display());
    run(Command::new("objcopy")
        .args(["--update-section", &update(".debug_info"), "--update-section", &update(".debug_abbrev")])
        .args([&split.debug, &damaged]));
    let options = split.with_files(&[&damaged]);
    assert_eq!(split.names(Some(&split.stripped), options), (some(["exported", "hidden"]), 1));
}

#[test]
fn downloads_serve_by_their_own_build_id_only() {
    let split = Split::new();
    let place = |build_id: &[u8]| {
        let folder = split.folder().join("cache").join(hex_build_id(build_id));
        std::fs::create_dir_all(&folder).expect("a folder");
        folder.join("debuginfo")
    };
    let options =
        ResolverOptions { download_dirs: vec![split.folder().join("cache")], ..nothing_installed() };
    std::fs::copy("/proc/self/exe", place(&split.build_id())).expect("copied");
    let names = |options: &ResolverOptions| split.names(Some(&split.stripped), options.clone());
    assert_eq!(names(&options), (some(["exported", ""]), 0), "another program's");
    std::fs::copy(&split.debug, place(&split.build_id())).expect("copied");
    assert_eq!(names(&options), (some(["exported", "hidden"]), 0));
    assert!(!lacks_debug_info(&split.module(Some(&split.stripped)), &options));
}

/// Where a function is in the program's file, and where the file's code begins there, in whole pages.
fn offsets_in(program: &Path, address: u64) -> (u64, u64) {
    let output = Command::new("readelf").arg("-lW").arg(program).output().expect("readelf");
    let text = String::from_utf8(output.stdout).expect("text");
    let code = text.lines().find(|line| line.contains("LOAD") && line.contains("R E")).expect("code");
    let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("hex");
    let words: Vec<&str> = code.split_whitespace().collect();
    let (offset, start) = (hex(words[1]), hex(words[2]));
    (address - start + offset, offset & !0xfff)
}

#[test]
fn a_debug_file_names_offsets_in_a_program_that_was_never_there() {
    for position in ["-pie", "-no-pie"] {
        let program = compile("c", SOURCE, &["-O1", "-g", "-Wl,--build-id=sha1", position]);
        let debug = program.folder.path().join("separate.debug");
        run(Command::new("objcopy").arg("--only-keep-debug").args([&program.path, &debug]));
        let (hidden, code_offset) = offsets_in(&program.path, address_of(&program.path, "hidden"));
        let build_id = build_id_of_path(&program.path).expect("a build id");
        let module = Module { path: "/opt/gone".into(), build_id: Some(build_id.clone()) };
        for known in [&debug, &program.path] {
            let files = BTreeMap::from([(build_id.clone(), vec![known.clone()])]);
            let mut resolver = Resolver::new(ResolverOptions { files, ..nothing_installed() });
            let module = ModuleFile { module: module.clone(), file: None };
            let lines = resolver.resolve_offsets(&module, code_offset, &[hidden + 4, 0x10]);
            let found = lines[0].last().expect("a line");
            assert_eq!((found.symbol.as_deref(), found.offset), (Some("hidden"), Some(4)), "{position}");
            assert!(found.line.is_some());
            assert_eq!(lines[1], [SymbolLine::default()], "no code is there");
        }
        let mut resolver = Resolver::new(nothing_installed());
        let module = ModuleFile { module, file: None };
        assert_eq!(resolver.resolve_offsets(&module, code_offset, &[hidden]), [[SymbolLine::default()]]);
    }
}
