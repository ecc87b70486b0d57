// SPDX-License-Identifier: Apache-2.0
//! Addresses of real programs: the names that each kind of file gives, and those that it must not give.

mod support;

use std::path::Path;
use std::process::Command;

use support::{C_PROGRAM, Running, compile, compile_c, frame, lines, run, symbol};
use wallprof_model::{FrameKind, Module, SymbolLine};
use wallprof_symbols::{
    FunctionTable, ModuleFile, Processes, Resolver, ResolverOptions, build_id_of_path, path_has_build_id,
};

fn strip(path: &Path) {
    run(Command::new("strip").arg(path));
}

#[test]
fn a_function_of_the_symbol_table() {
    let program = compile_c(&[]);
    let running = Running::start(&program.path);
    let mut processes = Processes::default();
    processes.scan(running.key()).expect("readable");
    let frame = frame(&mut processes, running.key(), running.addresses[0] + 4);
    assert_eq!(frame.kind, FrameKind::Native);
    let module =
        processes.modules().into_iter().find(|(id, _)| Some(*id) == frame.module).expect("announced");
    assert_eq!(Path::new(&module.1.path), program.path);
    assert_eq!(module.1.build_id, build_id_of_path(&program.path));
    let line = SymbolLine { symbol: Some("wanted".into()), offset: Some(4), ..SymbolLine::default() };
    assert_eq!(lines(&mut processes, frame, &[]), [line]);
}

#[test]
fn a_function_of_libc_by_its_dynamic_symbol_and_with_whatever_is_installed() {
    let running = Running::start(&compile_c(&[]).path);
    let mut processes = Processes::default();
    let frame = frame(&mut processes, running.key(), running.addresses[1]);
    for debug_dirs in [&[][..], &[Path::new("/usr/lib/debug")]] {
        let line = lines(&mut processes, frame, debug_dirs).pop().expect("a line");
        assert_eq!((line.symbol.as_deref(), line.offset), (Some("getenv"), Some(0)));
    }
}

#[test]
fn a_stripped_program_gives_an_address_and_no_name() {
    let program = compile_c(&[]);
    strip(&program.path);
    let running = Running::start(&program.path);
    let mut processes = Processes::default();
    let frame = frame(&mut processes, running.key(), running.addresses[0]);
    assert_eq!(lines(&mut processes, frame, &[]), [SymbolLine::default()]);
    let module = processes.module_file(frame.module.expect("a module")).expect("known").module;
    assert!(module.build_id.is_some());
}

#[test]
fn separate_debug_information_is_found_by_build_id() {
    let program = compile_c(&["-g", "-Wl,--build-id=sha1"]);
    let build_id = build_id_of_path(&program.path).expect("a build id");
    let hex: String = build_id.iter().map(|byte| format!("{byte:02x}")).collect();
    let by_id = program.folder.path().join("debug/.build-id").join(&hex[..2]);
    std::fs::create_dir_all(&by_id).expect("a folder");
    let debug_file = by_id.join(format!("{}.debug", &hex[2..]));
    run(Command::new("objcopy")
        .args(["--only-keep-debug", "--compress-debug-sections=zlib"])
        .args([&program.path, &debug_file]));
    strip(&program.path);
    assert!(path_has_build_id(&debug_file, &build_id));

    let running = Running::start(&program.path);
    let mut processes = Processes::default();
    let frame = frame(&mut processes, running.key(), running.addresses[0]);
    let debug_dir = program.folder.path().join("debug");
    assert_eq!(
        lines(&mut processes, frame, &[&debug_dir]).pop().expect("a line").symbol.as_deref(),
        Some("wanted")
    );

    // The same file under another id belongs to another program.
    let (first, mut rest) = (hex[..2].to_owned(), hex[2..].to_owned());
    rest.replace_range(..1, if rest.starts_with('0') { "1" } else { "0" });
    std::fs::rename(&debug_file, by_id.join(format!("{rest}.debug"))).expect("renamed");
    let mut resolver =
        Resolver::new(ResolverOptions { debug_dirs: vec![debug_dir], ..ResolverOptions::default() });
    let mut module = processes.module_file(frame.module.expect("a module")).expect("known");
    let id_bytes = |text: &str| u8::from_str_radix(text, 16).expect("hex");
    let other = format!("{first}{rest}");
    module.module.build_id =
        Some((0..other.len()).step_by(2).map(|at| id_bytes(&other[at..at + 2])).collect());
    assert_eq!(resolver.resolve(&module, &[frame.address]), [[SymbolLine::default()]]);
}

#[test]
fn inlined_functions_come_first_with_their_lines() {
    let program = compile_c(&["-g"]);
    let running = Running::start(&program.path);
    let mut processes = Processes::default();
    let mut lines_at = |offset| {
        let frame = frame(&mut processes, running.key(), running.addresses[0] + offset);
        lines(&mut processes, frame, &[])
    };
    let all: Vec<_> = (0..16).map(&mut lines_at).collect();
    let inlined = all.iter().find(|lines| lines.len() == 2).expect("an address in the inlined part");
    let expected =
        |text: &str| C_PROGRAM.lines().position(|line| line.contains(text)).map(|index| index as u32 + 1);
    assert_eq!(inlined[0].symbol.as_deref(), Some("inlined_part"));
    assert!(inlined[0].inlined && !inlined[1].inlined);
    assert!(inlined[0].line == expected("sink = value") || inlined[0].line == expected("return value * 3"));
    assert_eq!(inlined[1].symbol.as_deref(), Some("wanted"));
    assert_eq!(inlined[1].line, expected("inlined_part(value) + 1"));
    assert!(inlined[1].file.as_ref().is_some_and(|file| file.ends_with("program.c")));
}

#[test]
fn mangled_names_become_readable() {
    let cxx = r#"
        #include <cstdio>
        namespace shop { struct Cart { __attribute__((noinline)) static int total(int items) { return items + 1; } }; }
        int main() { std::printf("%p\n", (void *)&shop::Cart::total); std::fflush(stdout); return std::getchar(); }
    "#;
    let rust = r#"
        mod shop { pub struct Cart; impl Cart { #[inline(never)] pub fn total(items: u32) -> u32 { items + 1 } } }
        fn main() {
            println!("{:p}", shop::Cart::total as fn(u32) -> u32 as *const ());
            std::io::stdin().read_line(&mut String::new()).unwrap();
        }
    "#;
    let old_rust = r#"
        #include <stdio.h>
        __attribute__((noinline)) int total(int items) __asm__("_ZN7program4shop4Cart5total17h0123456789abcdefE");
        int total(int items) { return items + 1; }
        int main(void) { printf("%p\n", (void *)total); fflush(stdout); return getchar(); }
    "#;
    let cases = [
        ("cc", cxx, &["-O1"][..], "shop::Cart::total(int)"),
        ("c", old_rust, &["-O1"], "program::shop::Cart::total"),
        ("rs", rust, &["-Csymbol-mangling-version=v0"], "<program::shop::Cart>::total"),
    ];
    for (suffix, source, arguments, expected) in cases {
        let program = compile(suffix, source, arguments);
        let running = Running::start(&program.path);
        let name = symbol(&mut Processes::default(), running.key(), running.addresses[0]);
        assert_eq!(name.as_deref(), Some(expected));
    }
}

#[test]
fn plt_stubs_are_named_after_their_function() {
    let program = compile_c(&["-Wl,-z,lazy", "-fcf-protection=none"]);
    let module = Module {
        path: program.path.to_string_lossy().into_owned(),
        build_id: build_id_of_path(&program.path),
    };
    let stubs =
        Command::new("objdump").args(["-d", "-j", ".plt"]).arg(&program.path).output().expect("objdump");
    let listing = String::from_utf8_lossy(&stubs.stdout).into_owned();
    let stub = listing.lines().find(|line| line.ends_with("<getchar@plt>:") || line.ends_with("<getc@plt>:"));
    let (address, name) = stub.expect("a stub").split_once(' ').expect("an address and a name");
    let address = u64::from_str_radix(address, 16).expect("an address");
    // The first one only leads to the dynamic linker: not the function before it, nor the one after.
    let first_stub = listing.lines().find_map(|line| line.strip_suffix(">:")?.split_once(' '));
    let first_stub =
        first_stub.and_then(|(address, _)| u64::from_str_radix(address, 16).ok()).expect("a stub");
    let file = ModuleFile::locate(&module);
    let mut resolver = Resolver::new(ResolverOptions { debug_dirs: vec![], ..ResolverOptions::default() });
    let lines = resolver.resolve(&file, &[address + 6, first_stub]);
    let line = SymbolLine {
        symbol: Some(name.trim_matches(['<', '>', ':']).into()),
        offset: Some(6),
        ..SymbolLine::default()
    };
    assert_eq!(lines[0], [line]);
    assert_eq!(lines[1], [SymbolLine::default()]);
    let table = FunctionTable::read(&file, &ResolverOptions::default());
    let is_stub = |address| table.at(address).map(|number| table.is_stub(number));
    assert_eq!((is_stub(address + 6), is_stub(first_stub)), (Some(true), None));
    let stubs = (0..table.len()).filter(|&number| table.is_stub(number)).count();
    assert!(stubs > 0 && stubs < table.len(), "{stubs} stubs of {} functions", table.len());
}

#[test]
fn a_static_program_shows_exported_names_too() {
    let program = compile_c(&["-static", "-no-pie"]);
    let running = Running::start(&program.path);
    for (address, expected) in running.addresses.iter().zip(["wanted", "getenv"]) {
        assert_eq!(symbol(&mut Processes::default(), running.key(), *address).as_deref(), Some(expected));
    }
}

#[test]
fn a_32_bit_program_is_read() {
    let source = "int wanted(int value) { return value + 1; } void _start(void) { for (;;) wanted(1); }";
    let program = compile(
        "c",
        source,
        &["-m32", "-g", "-nostdlib", "-static", "-ffreestanding", "-fno-pic", "-no-pie"],
    );
    let listing = Command::new("nm").arg(&program.path).output().expect("nm").stdout;
    let listing = String::from_utf8_lossy(&listing).into_owned();
    let address =
        listing.lines().find(|line| line.ends_with(" wanted")).and_then(|line| line.split_once(' '));
    let address = address.and_then(|(address, _)| u64::from_str_radix(address, 16).ok()).expect("an address");
    let build_id = build_id_of_path(&program.path);
    assert!(build_id.is_some());
    let module = Module { path: program.path.to_string_lossy().into_owned(), build_id };
    let mut resolver = Resolver::new(ResolverOptions::default());
    let line = resolver.resolve(&ModuleFile::locate(&module), &[address + 1])[0].pop().expect("a line");
    assert_eq!((line.symbol.as_deref(), line.offset, line.line), (Some("wanted"), Some(1), Some(1)));
}

/// The test's own binary has debug information enough for many parses.
fn own_module() -> (ModuleFile, Vec<u64>) {
    let file = std::fs::File::open("/proc/self/exe").expect("readable");
    let module = Module { path: "/own".into(), build_id: wallprof_symbols::build_id(&file) };
    let mut processes = Processes::default();
    let own = support::key(std::process::id());
    let here = own_module as fn() -> (ModuleFile, Vec<u64>) as usize as u64;
    let at = frame(&mut processes, own, here).address;
    (ModuleFile { module, file: Some(file.into()) }, (0..400).map(|index| at + index * 3).collect())
}

#[test]
fn batches_and_single_addresses_agree() {
    let (module, mut addresses) = own_module();
    addresses.reverse();
    let batch = Resolver::new(ResolverOptions::default()).resolve(&module, &addresses);
    assert!(batch.iter().flatten().any(|line| line.line.is_some()));
    let mut one_by_one = Resolver::new(ResolverOptions::default());
    for (address, lines) in addresses.iter().zip(&batch).step_by(7) {
        assert_eq!(one_by_one.resolve(&module, &[*address])[0], *lines);
    }
}

#[test]
fn debug_information_over_the_limit_leaves_the_symbol_table() {
    let packed = compile_c(&["-g", "-gz=zlib"]);
    let module = |path: &Path| ModuleFile {
        module: Module { path: String::new(), build_id: None },
        file: Some(std::fs::File::open(path).expect("readable").into()),
    };
    let running = Running::start(&packed.path);
    let mut processes = Processes::default();
    let address = frame(&mut processes, running.key(), running.addresses[0]).address;
    let options = ResolverOptions { debug_dirs: vec![], ..ResolverOptions::default() };
    let cases = [
        (options.clone(), true),
        (ResolverOptions { unpacked_limit: 1, ..options.clone() }, false),
        (ResolverOptions { debug_limit: 1, ..options }, false),
    ];
    for (options, has_line) in cases {
        let line =
            Resolver::new(options).resolve(&module(&packed.path), &[address])[0].pop().expect("a line");
        assert_eq!((line.symbol.as_deref(), line.line.is_some()), (Some("wanted"), has_line));
    }
}

#[test]
fn the_vdso_has_names() {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("readable");
    let line = maps.lines().find(|line| line.ends_with("[vdso]")).expect("a vDSO");
    let (start, end) = line.split_once(' ').and_then(|(range, _)| range.split_once('-')).expect("a range");
    let bound = |text| u64::from_str_radix(text, 16).expect("an address");
    let mut processes = Processes::default();
    let own = support::key(std::process::id());
    let mut frames = Vec::new();
    for address in (bound(start)..bound(end)).step_by(16) {
        processes.normalise_user(own, &[address], &mut frames);
    }
    let file = processes.module_file(frames[0].module.expect("a module")).expect("known");
    assert_eq!(file.module.path, "[vdso]");
    let addresses: Vec<u64> = frames.iter().map(|frame| frame.address).collect();
    let named = Resolver::new(ResolverOptions::default()).resolve(&file, &addresses);
    assert!(named.iter().flatten().any(|line| line.symbol.as_deref() == Some("clock_gettime")));
}

#[test]
fn another_file_at_a_recordings_path_is_not_used() {
    let program = compile_c(&[]);
    let path = program.path.to_string_lossy().into_owned();
    let build_id = build_id_of_path(&program.path);
    assert!(ModuleFile::locate(&Module { path: path.clone(), build_id }).file.is_some());
    for build_id in [None, Some(vec![1, 2, 3])] {
        assert!(ModuleFile::locate(&Module { path: path.clone(), build_id }).file.is_none());
    }
}
