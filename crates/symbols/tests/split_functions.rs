// SPDX-License-Identifier: Apache-2.0
//! Functions in several parts (`DW_AT_ranges`): each part has the function's name, lines and inlined
//! functions, as a function in one part has them.

mod support;

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use support::{Program, run};
use wallprof_model::{Module, SymbolLine};
use wallprof_symbols::{ModuleFile, ReaderCommand, Resolver, ResolverOptions};

/// `outer` calls `work` by the inlined `twice`, and has a branch that is never taken.
const SOURCE: &str = "
volatile int sink;
__attribute__((noinline)) void work(int n) { sink += n; }
__attribute__((noinline, cold)) void rare(int n) { sink -= n; }
__attribute__((always_inline)) static inline void twice(int n) {
    work(n);
    work(n + 1); // in twice
}
__attribute__((noinline)) int outer(int n) {
    if (__builtin_expect(sink < 0, 0)) {
        rare(n); // in the cold part
        return 1;
    }
    twice(n); // in outer
    return sink;
}
int main(void) { return outer(3) & 1; }
";

/// What `objdump -d` calls the two parts of `outer`.
const PARTS: [&str; 2] = ["outer", "outer.cold"];

fn compiled(compiler: &str, arguments: &[&str]) -> Program {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let (source, path) = (folder.path().join("program.c"), folder.path().join("program"));
    std::fs::write(&source, SOURCE).expect("written");
    run(Command::new(compiler).args(["-O2", "-g"]).args(arguments).arg(&source).arg("-o").arg(&path));
    Program { folder, path }
}

/// The last byte of the last call of `callee` in `part`, as a return address is looked up, and its distance
/// from the start of the part.
fn call(path: &Path, part: &str, callee: &str) -> Option<(u64, u64)> {
    let output = Command::new("objdump").arg("-d").arg(path).output().expect("objdump");
    let text = String::from_utf8(output.stdout).expect("text");
    let hex = |text: &str| u64::from_str_radix(text, 16).expect("an address");
    let head = format!(" <{part}>:");
    let listing = text.split_once(&head)?;
    let start = hex(listing.0.rsplit('\n').next()?);
    let code = listing.1.split("\n\n").next()?;
    let target = format!("<{callee}>");
    let is_call = |line: &&str| line.contains("call") && line.ends_with(&target);
    let line = code.lines().rfind(is_call)?;
    let at = hex(line.trim_start().split(':').next()?) + 4;
    Some((at, at - start))
}

fn resolved(path: &Path, address: u64) -> Vec<SymbolLine> {
    let file = Some(Arc::new(File::open(path).expect("readable")));
    let module = Module { path: "/program".into(), build_id: None };
    let reader = ReaderCommand::new(env!("CARGO_BIN_EXE_wallprof-symbol-reader"), &[]);
    let options = ResolverOptions { debug_dirs: vec![], reader: Some(reader), ..ResolverOptions::default() };
    Resolver::new(options).resolve(&ModuleFile { module, file }, &[address]).remove(0)
}

/// Names with lines, the innermost first.
fn text(lines: &[SymbolLine]) -> String {
    let one = |line: &SymbolLine| {
        format!("{}:{}", line.symbol.as_deref().unwrap_or("?"), line.line.map_or(0, |number| number))
    };
    lines.iter().map(one).collect::<Vec<_>>().join(" < ")
}

fn line_of(comment: &str) -> usize {
    SOURCE.lines().position(|line| line.ends_with(comment)).expect("a line of the source") + 1
}

/// The functions of the call of `work`, which is the same code in one part and in two.
fn hot_call() -> String {
    format!("twice:{} < outer:{}", line_of("// in twice"), line_of("// in outer"))
}

#[test]
fn both_parts_of_a_split_function_have_lines_and_inlined_functions() {
    for version in ["-gdwarf-4", "-gdwarf-5"] {
        let program = compiled("gcc", &[version]);
        let (address, offset) = call(&program.path, PARTS[0], "work").expect("a call");
        let lines = resolved(&program.path, address);
        assert_eq!((text(&lines), lines[1].offset), (hot_call(), Some(offset)), "{version}");
        let (address, offset) = call(&program.path, PARTS[1], "rare").expect("gcc splits outer");
        let lines = resolved(&program.path, address);
        let cold = format!("outer:{}", line_of("// in the cold part"));
        assert_eq!((text(&lines), lines[0].offset), (cold, Some(offset)), "{version}");
    }
}

#[test]
fn function_in_one_part_has_the_same() {
    let program = compiled("gcc", &["-fno-reorder-blocks-and-partition"]);
    assert_eq!(call(&program.path, PARTS[1], "rare"), None);
    let (address, offset) = call(&program.path, PARTS[0], "work").expect("a call");
    let lines = resolved(&program.path, address);
    assert_eq!((text(&lines), lines[1].offset), (hot_call(), Some(offset)));
}

/// clang gives each basic block a section, so that `outer` and the inlined `twice` have several ranges each.
#[test]
fn functions_and_inlined_functions_that_clang_split_have_lines() {
    for version in ["-gdwarf-4", "-gdwarf-5"] {
        let program = compiled("clang-19", &[version, "-fbasic-block-sections=all"]);
        let output = Command::new("objdump").arg("-d").arg(&program.path).output().expect("objdump");
        let listing = String::from_utf8(output.stdout).expect("text");
        let heads = listing.lines().filter_map(|line| line.strip_suffix(">:")?.split_once(" <"));
        let parts: Vec<&str> = heads.map(|(_, name)| name).filter(|name| name.starts_with("outer")).collect();
        assert!(parts.len() > 1, "{parts:?}");
        let at = |callee| parts.iter().find_map(|part| call(&program.path, part, callee)).expect("a call");
        let (address, offset) = at("work");
        let lines = resolved(&program.path, address);
        let physical = lines.last().expect("a function");
        assert_eq!((physical.symbol.as_deref(), physical.offset), (Some("outer"), Some(offset)), "{version}");
        assert_eq!(text(&lines), hot_call(), "{version}");
        let lines = resolved(&program.path, at("rare").0);
        assert_eq!(text(&lines), format!("outer:{}", line_of("// in the cold part")), "{version}");
    }
}

/// A child process parses a file of another user.
#[test]
fn split_function_of_a_foreign_file_has_lines() {
    let program = compiled("gcc", &[]);
    std::fs::set_permissions(&program.path, Permissions::from_mode(0o777)).expect("changed");
    let (address, offset) = call(&program.path, PARTS[0], "work").expect("a call");
    let lines = resolved(&program.path, address);
    assert_eq!((text(&lines), lines[1].offset), (hot_call(), Some(offset)));
}

/// Without a symbol table the start of a part is not known; its lines are.
#[test]
fn split_function_without_a_symbol_table_has_lines_and_no_offset() {
    let program = compiled("gcc", &[]);
    let (address, _) = call(&program.path, PARTS[0], "work").expect("a call");
    let bare = program.folder.path().join("bare");
    run(Command::new("objcopy")
        .args(["--strip-all", "--keep-section=.debug_*"])
        .args([&program.path, &bare]));
    let lines = resolved(&bare, address);
    assert_eq!((text(&lines), lines[1].offset), (hot_call(), None));
}

/// `_init` of crti.o has no debug information.
#[test]
fn code_without_a_function_keeps_no_name() {
    let program = compiled("gcc", &[]);
    let bare = program.folder.path().join("bare");
    run(Command::new("objcopy")
        .args(["--strip-all", "--keep-section=.debug_*"])
        .args([&program.path, &bare]));
    let sections = Command::new("readelf").args(["-SW"]).arg(&bare).output().expect("readelf").stdout;
    let sections = String::from_utf8(sections).expect("text");
    let init = sections.lines().find(|line| line.contains(" .init ")).expect("a section");
    let address = init.split_whitespace().find(|word| word.len() == 16).expect("an address");
    let address = u64::from_str_radix(address, 16).expect("an address");
    assert_eq!(resolved(&bare, address + 4), [SymbolLine::default()]);
}
