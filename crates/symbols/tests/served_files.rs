//! Files that another program serves: only a reader touches them, and one that never gets an answer is given
//! up.

#[path = "support/fuse.rs"]
mod fuse;
mod support;

use std::fs::File;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use fuse::FuseMount;
use support::{Program, compile_c, is_root};
use wallprof_model::{Module, SymbolLine};
use wallprof_symbols::{
    LazyCalls, ModuleFile, ReadLimits, ReaderCommand, Resolver, ResolverOptions, exports_function,
    lacks_debug_info, may_be_dynamic_linker,
};

fn resolver(per_file: Duration) -> Resolver {
    let reader = ReaderCommand::new(env!("CARGO_BIN_EXE_wallprof-symbol-reader"), &[]);
    let limits = ReadLimits { per_file, in_all: per_file * 3, bytes: u64::MAX };
    Resolver::new(ResolverOptions {
        debug_dirs: vec![],
        read_limits: Some(limits),
        reader: Some(reader),
        ..ResolverOptions::default()
    })
}

/// The first 16 addresses of `wanted`.
fn addresses(program: &Program) -> Vec<u64> {
    let output = Command::new("nm").arg(&program.path).output().expect("nm");
    let text = String::from_utf8(output.stdout).expect("text");
    let line = text.lines().find(|line| line.ends_with(" wanted")).expect("a symbol");
    let start = u64::from_str_radix(line.split(' ').next().expect("an address"), 16).expect("hex");
    (start..start + 16).collect()
}

fn mounted(program: &Program, answers_reads: bool) -> Option<(FuseMount, ModuleFile)> {
    let contents = std::fs::read(&program.path).expect("readable");
    let mount = if is_root() { FuseMount::new(contents, answers_reads) } else { None };
    if mount.is_none() {
        eprintln!("skipped: needs root and /dev/fuse");
    }
    let mount = mount?;
    let file = File::open(mount.file()).expect("opens");
    let module = Module { path: "/mnt/program".into(), build_id: Some(vec![1; 20]) };
    Some((mount, ModuleFile { module, file: Some(Arc::new(file)) }))
}

fn names(lines: &[Vec<SymbolLine>]) -> Vec<&str> {
    lines.iter().flatten().filter_map(|line| line.symbol.as_deref()).collect()
}

#[test]
fn served_file_has_names_files_and_lines() {
    for arguments in [&["-g"][..], &["-g", "-gz=zlib"], &[]] {
        let program = compile_c(arguments);
        let Some((mount, module)) = mounted(&program, true) else { return };
        let mut resolver = resolver(Duration::from_secs(100));
        let lines = resolver.resolve(&module, &addresses(&program));
        let names = names(&lines);
        assert!(names.contains(&"wanted") && mount.was_read(), "{lines:?}");
        assert_eq!(names.contains(&"inlined_part"), !arguments.is_empty(), "{arguments:?}");
        let has_lines = lines.iter().flatten().any(|line| line.file.is_some() && line.line.is_some());
        assert_eq!(has_lines, !arguments.is_empty(), "{arguments:?}");
        assert_eq!(resolver.unreadable(), 0);
        let again = resolver.resolve(&module, &addresses(&program)[..1]);
        assert_eq!(again[0], lines[0], "the reader goes on");
    }
}

#[test]
fn file_whose_reads_never_return_is_given_up() {
    let program = compile_c(&["-g"]);
    let Some((mount, module)) = mounted(&program, false) else { return };
    let mut resolver = resolver(Duration::from_secs(2));
    let lines = resolver.resolve(&module, &addresses(&program));
    assert!(names(&lines).is_empty(), "{lines:?}");
    assert!(mount.was_read(), "the reader asked for it");
    assert_eq!(resolver.unreadable(), 1);
    assert!(!mount.was_asked_for_its_state(), "that would not return, either");
}

#[test]
fn nothing_else_reads_a_served_file() {
    let program = compile_c(&["-g"]);
    let Some((mount, module)) = mounted(&program, false) else { return };
    assert!(lacks_debug_info(&module, &ResolverOptions { debug_dirs: vec![], ..Default::default() }));
    assert!(LazyCalls::read(&module).is_none());
    assert!(!exports_function(&module, "wanted"));
    assert!(!may_be_dynamic_linker(module.file.as_ref().expect("a file")));
    assert!(!mount.was_read() && !mount.was_asked_for_its_state());
}
