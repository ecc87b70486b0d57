// SPDX-License-Identifier: Apache-2.0
//! Files that another program serves: only a reader touches them, and one that never gets an answer is given
//! up.

#[path = "support/fuse.rs"]
mod fuse;
mod support;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use fuse::FuseMount;
use support::{Program, compile_c, is_root};
use wallprof_model::{Module, SymbolLine};
use wallprof_symbols::{
    CodeRange, LazyCalls, ModuleFile, ProcessKey, Processes, ReadLimits, ReaderCommand, Resolver,
    ResolverOptions, build_id_of_path, exports_function, lacks_debug_info, may_be_dynamic_linker,
};

fn reader() -> ReaderCommand {
    ReaderCommand::new(env!("CARGO_BIN_EXE_wallprof-symbol-reader"), &[])
}

fn resolver(per_file: Duration) -> Resolver {
    let reader = reader();
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

/// The program in a file system of this process. `None`, and `test` is skipped, where none can be mounted.
fn mounted(test: &str, program: &Program, answers_reads: bool) -> Option<(FuseMount, ModuleFile)> {
    let contents = std::fs::read(&program.path).expect("readable");
    let mount = if is_root() { FuseMount::new(contents, answers_reads) } else { None };
    if mount.is_none() {
        wallprof_testkit::skip(test, "mounting a file system takes root and /dev/fuse");
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
    const TEST: &str = "served_file_has_names_files_and_lines";
    for arguments in [&["-g"][..], &["-g", "-gz=zlib"], &[]] {
        let program = compile_c(arguments);
        let Some((mount, module)) = mounted(TEST, &program, true) else { return };
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
    const TEST: &str = "file_whose_reads_never_return_is_given_up";
    let program = compile_c(&["-g"]);
    let Some((mount, module)) = mounted(TEST, &program, false) else { return };
    let mut resolver = resolver(Duration::from_secs(2));
    let lines = resolver.resolve(&module, &addresses(&program));
    assert!(names(&lines).is_empty(), "{lines:?}");
    assert!(mount.was_read(), "the reader asked for it");
    assert_eq!(resolver.unreadable(), 1);
    assert!(!mount.was_asked_for_its_state(), "that would not return, either");
}

#[test]
fn nothing_else_reads_a_served_file() {
    const TEST: &str = "nothing_else_reads_a_served_file";
    let program = compile_c(&["-g"]);
    let Some((mount, module)) = mounted(TEST, &program, false) else { return };
    assert!(lacks_debug_info(&module, &ResolverOptions { debug_dirs: vec![], ..Default::default() }));
    assert!(LazyCalls::read(&module).is_none());
    assert!(!exports_function(&module, module.payer(), "wanted"));
    assert!(!may_be_dynamic_linker(module.file.as_ref().expect("a file")));
    assert!(!mount.was_read() && !mount.was_asked_for_its_state());
}

/// A process that has mapped a file as code.
struct Mapper(Child);

impl Mapper {
    fn start(file: &Path) -> Self {
        let script = "import mmap, sys\n\
            f = open(sys.argv[1], 'rb')\n\
            m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_EXEC, flags=mmap.MAP_PRIVATE)\n\
            print('mapped', flush=True)\n\
            sys.stdin.read()";
        let mut command = Command::new("python3");
        let command = command.args(["-c", script]).arg(file).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("python3");
        let mut line = String::new();
        let output = child.stdout.as_mut().expect("a pipe");
        BufReader::new(output).read_line(&mut line).expect("a line");
        assert_eq!(line, "mapped\n");
        Mapper(child)
    }

    fn key(&self) -> ProcessKey {
        ProcessKey { pid: self.0.id(), generation: 0 }
    }
}

impl Drop for Mapper {
    fn drop(&mut self) {
        self.0.kill().expect("killed");
        self.0.wait().expect("ended");
    }
}

/// Runs `work` on a thread, which is left behind if it does not end.
fn within<T: Send + 'static>(limit: Duration, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (done, result) = channel();
    std::thread::spawn(move || _ = done.send(work()));
    result.recv_timeout(limit).ok()
}

fn mapping_of(processes: &Processes, process: ProcessKey, path: &Path) -> (CodeRange, Module) {
    let code = processes.code(process.pid).into_iter();
    let mut found = code.filter_map(|range| Some((range, processes.module(range.module?)?.clone())));
    found.find(|(_, module)| Path::new(&module.path) == path).expect("its mapping")
}

#[test]
fn process_with_a_file_whose_daemon_is_silent_is_read_without_asking_it() {
    const TEST: &str = "process_with_a_file_whose_daemon_is_silent_is_read_without_asking_it";
    let program = compile_c(&[]);
    let Some((mount, _)) = mounted(TEST, &program, true) else { return };
    let mapper = Mapper::start(&mount.file());
    let (process, path) = (mapper.key(), mount.file());
    mount.fall_silent();
    let read = within(Duration::from_secs(300), move || {
        let mut processes = Processes::default();
        processes.set_reader(reader());
        processes.scan(process).expect("a process");
        processes
    });
    let mut processes = read.expect("it waits for no daemon");
    let (_, module) = mapping_of(&processes, process, &path);
    assert_eq!(module.build_id, None, "its headers are not known");
    while processes.awaits_served_files() {
        assert!(processes.take_served_files().is_empty());
        std::thread::yield_now();
    }
    assert_eq!(processes.losses().served_files, 1);
    assert!(mount.asked_by_this_process().is_empty(), "only the reader opens the file");
    processes.scan(process).expect("a process");
    assert!(!processes.awaits_served_files(), "it is not tried again");
}

#[test]
fn mapping_of_a_served_file_is_assigned_when_its_headers_are_read() {
    const TEST: &str = "mapping_of_a_served_file_is_assigned_when_its_headers_are_read";
    let program = compile_c(&[]);
    let Some((mount, _)) = mounted(TEST, &program, true) else { return };
    let mapper = Mapper::start(&mount.file());
    let (process, path) = (mapper.key(), mount.file());
    let mut processes = Processes::default();
    processes.set_reader(reader());
    processes.scan(process).expect("a process");
    let mut changed = Vec::new();
    while processes.awaits_served_files() {
        changed.extend(processes.take_served_files());
        std::thread::yield_now();
    }
    assert_eq!(changed, [process.pid]);
    let (range, module) = mapping_of(&processes, process, &path);
    assert_eq!(module.build_id, build_id_of_path(&program.path), "the headers were read");
    let file = processes.module_file(range.module.expect("a module")).expect("a module");
    let lines = resolver(Duration::from_secs(100)).resolve(&file, &addresses(&program));
    assert!(names(&lines).contains(&"wanted"), "{lines:?}");
    assert_eq!(processes.losses().served_files, 0);
}
