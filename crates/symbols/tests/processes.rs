// SPDX-License-Identifier: Apache-2.0
//! Processes that delete, replace, hide and change what they run, and processes that are gone too soon.

mod support;

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;

use rustix::fs::MemfdFlags;
use support::{Program, Running, compile, compile_c, frame, is_root, key, lines, run, symbol};
use wallprof_model::{Frame, FrameKind, SymbolLine};
use wallprof_symbols::{MmapEvent, ProcessKey, Processes, build_id_of_path};

const OTHER_PROGRAM: &str = "int other(int value) { return value; } int main(void) { return other(1); }";

/// Start, end, file offset and path of the executable mapping that holds `address`.
fn mapping_at(pid: u32, address: u64) -> (u64, u64, u64, String) {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("readable");
    let fields = maps.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let hex = |text: &str| u64::from_str_radix(text, 16).expect("a number");
    let ranges = fields.filter(|fields| fields[1].contains('x')).map(|fields| {
        let (start, end) = fields[0].split_once('-').expect("a range");
        (hex(start), hex(end), hex(fields[2]), fields.get(5).copied().unwrap_or_default().to_owned())
    });
    ranges.into_iter().find(|range| (range.0..range.1).contains(&address)).expect("a mapping")
}

fn add_mapping(
    processes: &mut Processes,
    pid: u32,
    mapping: &(u64, u64, u64, String),
    build_id: Option<&[u8]>,
) {
    let (start, end, file_offset, path) = mapping;
    processes.mmap(&MmapEvent {
        pid,
        start: *start,
        len: end - start,
        file_offset: *file_offset,
        path: OsStr::new(path),
        build_id,
        inode: None,
        executable: true,
    });
}

fn replace_by_other(program: &Program) {
    let other = compile("c", OTHER_PROGRAM, &[]);
    std::fs::remove_file(&program.path).expect("removed");
    std::fs::copy(&other.path, &program.path).expect("copied");
}

#[test]
fn a_deleted_program_keeps_its_names() {
    let program = compile_c(&[]);
    let running = Running::start(&program.path);
    std::fs::remove_file(&program.path).expect("removed");
    let mut processes = Processes::default();
    processes.scan(running.key()).expect("readable");
    let at = frame(&mut processes, running.key(), running.addresses[0]);
    let module = processes.module_file(at.module.expect("a module")).expect("known").module;
    assert_eq!(module.path, format!("{} (deleted)", program.path.display()));
    assert_eq!(symbol(&mut processes, running.key(), running.addresses[0]).as_deref(), Some("wanted"));
}

#[test]
fn replaced_program_never_gets_names_of_the_new_file() {
    let program = compile_c(&[]);
    let build_id = build_id_of_path(&program.path).expect("a build id");
    let mut running = Running::start(&program.path);
    let mapping = mapping_at(running.child.id(), running.addresses[0]);
    replace_by_other(&program);

    let mut live = Processes::default();
    add_mapping(&mut live, running.child.id(), &mapping, Some(&build_id));
    assert_eq!(symbol(&mut live, running.key(), running.addresses[0]).as_deref(), Some("wanted"));

    // Too late: only the new file is left, under the old name.
    running.end();
    let mut late = Processes::default();
    add_mapping(&mut late, running.child.id(), &mapping, Some(&build_id));
    let at = frame(&mut late, running.key(), running.addresses[0]);
    let module = late.module_file(at.module.expect("a module")).expect("known");
    assert!(module.file.is_none());
    assert_eq!(module.module.path, program.path.to_string_lossy());
    assert_eq!(lines(&mut late, at, &[]), [SymbolLine::default()]);
}

#[test]
fn a_program_in_another_mount_namespace_is_found() {
    if !is_root() {
        let test = "a_program_in_another_mount_namespace_is_found";
        return wallprof_testkit::skip(test, "a mount namespace takes root to make");
    }
    let program = compile_c(&[]);
    let hidden = tempfile::tempdir().expect("a scratch folder");
    let place = hidden.path().join("program");
    let script = format!(
        "mount --bind {} {} && exec {}",
        program.folder.path().display(),
        hidden.path().display(),
        place.display()
    );
    let running = Running::of(Command::new("unshare").args(["--mount", "sh", "-c", &script]));
    assert!(!place.exists(), "the bind mount must not be visible here");
    let mut processes = Processes::default();
    assert_eq!(symbol(&mut processes, running.key(), running.addresses[0]).as_deref(), Some("wanted"));
    let modules = processes.modules();
    assert!(modules.iter().any(|(_, module)| Path::new(&module.path) == place));
}

#[test]
fn ended_process_keeps_mappings_that_were_reported() {
    let program = compile_c(&[]);
    let mut running = Running::start(&program.path);
    let pid = running.child.id();
    let mut processes = Processes::default();
    add_mapping(&mut processes, pid, &mapping_at(pid, running.addresses[0]), None);
    // A child that never had a mapping event of its own, and had ended before it could be scanned.
    let child = ProcessKey { pid: u32::MAX, generation: 0 };
    processes.fork(pid, child);
    processes.exit(child.pid);
    running.end();
    processes.exit(pid);
    for process in [running.key(), child] {
        assert_eq!(symbol(&mut processes, process, running.addresses[0]).as_deref(), Some("wanted"));
    }
    processes.retire(pid);
    processes.retire(child.pid);
    assert!(processes.is_empty());
}

#[test]
fn a_fork_and_its_parent_map_on_their_own() {
    let program = compile_c(&[]);
    let running = Running::start(&program.path);
    let pid = running.child.id();
    let mapping = mapping_at(pid, running.addresses[0]);
    let child = ProcessKey { pid: u32::MAX, generation: 3 };
    let mut processes = Processes::default();
    add_mapping(&mut processes, pid, &mapping, None);
    processes.fork(pid, child);
    processes.mmap(&MmapEvent {
        pid: child.pid,
        start: mapping.0,
        len: mapping.1 - mapping.0,
        file_offset: 0,
        path: OsStr::new(""),
        build_id: None,
        inode: None,
        executable: true,
    });
    assert_eq!(frame(&mut processes, child, running.addresses[0]).kind, FrameKind::Jit);
    assert_eq!(frame(&mut processes, running.key(), running.addresses[0]).kind, FrameKind::Native);
}

#[test]
fn exec_clears_the_map_and_keeps_the_image_before_it() {
    let program = compile_c(&[]);
    let mut running = Running::start(&program.path);
    let pid = running.child.id();
    let address = running.addresses[0];
    let mut processes = Processes::default();
    add_mapping(&mut processes, pid, &mapping_at(pid, address), None);
    running.end();
    let after = ProcessKey { pid, generation: 1 };
    processes.exec(after);
    assert_eq!(
        frame(&mut processes, after, address),
        Frame { kind: FrameKind::Native, module: None, address }
    );
    assert_eq!(symbol(&mut processes, key(pid), address).as_deref(), Some("wanted"));
    for generation in 2..8 {
        processes.exec(ProcessKey { pid, generation });
    }
    assert_eq!(frame(&mut processes, key(pid), address).module, None, "old images are forgotten");
}

#[test]
fn code_written_at_run_time_is_found_without_an_event() {
    let source = r#"
        #include <stdio.h>
        #include <sys/mman.h>
        int main(void) {
            void *page = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            printf("%p\n", page); fflush(stdout);
            getchar();
            mprotect(page, 4096, PROT_READ | PROT_EXEC);
            printf("ready\n"); fflush(stdout);
            return getchar();
        }
    "#;
    let mut running = Running::start(&compile("c", source, &["-O1"]).path);
    let mut processes = Processes::default();
    processes.scan(running.key()).expect("readable");
    let address = running.addresses[0] + 0x10;
    running.child.stdin.as_mut().expect("a pipe").write_all(b"\n").expect("written");
    let mut ready = String::new();
    BufReader::new(running.child.stdout.as_mut().expect("a pipe")).read_line(&mut ready).expect("an answer");
    assert_eq!(
        frame(&mut processes, running.key(), address),
        Frame { kind: FrameKind::Jit, module: None, address }
    );
}

#[test]
fn return_addresses_become_call_sites() {
    let program = compile_c(&[]);
    let running = Running::start(&program.path);
    let mut frames = Vec::new();
    let start = running.addresses[0];
    Processes::default().normalise_user(running.key(), &[start, start + 1, 8], &mut frames);
    assert_eq!(frames[0], frames[1]);
    assert_eq!(frames[2], Frame { kind: FrameKind::Native, module: None, address: 7 });
}

#[test]
fn program_without_a_build_id_is_identified_by_its_file() {
    let program = compile_c(&["-Wl,--build-id=none"]);
    let (one, other) = (Running::start(&program.path), Running::start(&program.path));
    let mut processes = Processes::default();
    let at_one = frame(&mut processes, one.key(), one.addresses[0]);
    let at_other = frame(&mut processes, other.key(), other.addresses[0]);
    assert_eq!(at_one, at_other);
    assert_eq!(lines(&mut processes, at_one, &[])[0].symbol.as_deref(), Some("wanted"));
}

#[test]
fn the_same_build_id_at_two_places_is_one_module() {
    let program = compile_c(&[]);
    let copy = program.folder.path().join("copy");
    std::fs::copy(&program.path, &copy).expect("copied");
    let (one, other) = (Running::start(&program.path), Running::start(&copy));
    let mut processes = Processes::default();
    let at_one = frame(&mut processes, one.key(), one.addresses[0]);
    assert_eq!(at_one, frame(&mut processes, other.key(), other.addresses[0]));
}

#[test]
fn missing_process_is_an_error() {
    let error = Processes::default().scan(key(u32::MAX)).expect_err("no such process");
    assert!(error.is_gone());
    assert!(error.to_string().contains("4294967295"));
    run(&mut Command::new("true"));
}

#[test]
fn many_modules_need_few_descriptors() {
    let program = compile_c(&[]);
    let image = std::fs::read(&program.path).expect("readable");
    let build_id = build_id_of_path(&program.path).expect("a build id");
    let at = image.windows(build_id.len()).position(|window| window == build_id).expect("in the file");
    let mut processes = Processes::default();
    let paths: Vec<_> = (0..400u32)
        .map(|index| {
            let mut other = image.clone();
            other[at..at + 4].copy_from_slice(&index.to_le_bytes());
            let path = program.folder.path().join(format!("copy-{index}"));
            std::fs::write(&path, other).expect("written");
            path
        })
        .collect();
    for (index, path) in paths.iter().enumerate() {
        let start = 0x1000_0000 + index as u64 * 0x10_0000;
        let mapping = (start, start + 0x1000, 0x1000, path.to_string_lossy().into_owned());
        add_mapping(&mut processes, u32::MAX, &mapping, None);
    }
    let modules = processes.modules();
    assert_eq!(modules.len(), 400);
    let open = std::fs::read_dir("/proc/self/fd").expect("readable").flatten();
    let held = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    assert_eq!(held.filter(|path| path.starts_with(program.folder.path())).count(), 256);
    // The first one was closed, and is opened again because it is still the same file.
    assert!(processes.module_file(modules[0].0).expect("known").file.is_some());
    std::fs::write(&paths[1], "replaced").expect("written");
    assert!(processes.module_file(modules[1].0).expect("known").file.is_none());
    // An open one that is written to is another file, too.
    assert!(processes.module_file(modules[399].0).expect("known").file.is_some());
    std::fs::write(&paths[399], "replaced").expect("written");
    assert!(processes.module_file(modules[399].0).expect("known").file.is_none());
}

#[test]
fn a_program_run_from_memory_has_the_kernels_label_and_its_names() {
    let image = std::fs::read(compile_c(&[]).path).expect("readable");
    let memory = rustix::fs::memfd_create("in memory", MemfdFlags::empty()).expect("a file in memory");
    let mut memory = File::from(memory);
    memory.write_all(&image).expect("written");
    let running = Running::start(format!("/proc/self/fd/{}", memory.as_raw_fd()));
    drop(memory);
    let mut processes = Processes::default();
    assert_eq!(symbol(&mut processes, running.key(), running.addresses[0]).as_deref(), Some("wanted"));
    let modules = processes.modules();
    assert!(modules.iter().any(|(_, module)| module.path == "/memfd:in memory (deleted)"));
}

#[test]
fn run_time_code_in_shared_memory_is_jit() {
    let source = r#"
        #define _GNU_SOURCE
        #include <stdio.h>
        #include <sys/mman.h>
        #include <unistd.h>
        int main(void) {
            int memory = memfd_create("jit", 0);
            if (ftruncate(memory, 4096)) return 1;
            printf("%p\n", mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_SHARED, memory, 0)); fflush(stdout);
            return getchar();
        }
    "#;
    let running = Running::start(&compile("c", source, &["-O1"]).path);
    let address = running.addresses[0] + 8;
    let expected = Frame { kind: FrameKind::Jit, module: None, address };
    assert_eq!(frame(&mut Processes::default(), running.key(), address), expected);
}
