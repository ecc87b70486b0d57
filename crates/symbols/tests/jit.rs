// SPDX-License-Identifier: Apache-2.0
//! Run-time code of real processes: names from perf maps and jitdumps, while the process runs and after its
//! end.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use support::{Program, Running, compile, frame, is_root};
use wallprof_model::{Frame, FrameId, FrameKind, MonoNs, SymbolLine};
use wallprof_symbols::{INTERPRETED_METHOD, Processes};

/// Prints the address of memory it may execute; with input, or at its end, it writes a perf map of it. With
/// an argument the map is a jitdump in that folder, mapped as jitdumps are.
const COMPILER: &str = r#"
    #define _GNU_SOURCE
    #include <stdint.h>
    #include <stdio.h>
    #include <string.h>
    #include <sys/mman.h>
    #include <time.h>
    #include <unistd.h>
    static void *code;
    static void write_map(void) {
        char path[64];
        sprintf(path, "/tmp/perf-%d.map", getpid());
        FILE *map = fopen(path, "w");
        fprintf(map, "%lx 40 JS:~first /app.js:1:1\n%lx 40 JS:*second /app.js:2:1\n", (long)code, (long)code + 64);
        fclose(map);
    }
    static void write_dump(const char *folder) {
        char path[4096];
        sprintf(path, "%s/jit-%d.dump", folder, getpid());
        FILE *dump = fopen(path, "w+");
        mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fileno(dump), 0);
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        uint64_t time = now.tv_sec * 1000000000ull + now.tv_nsec, at = (uint64_t)code;
        uint32_t header[] = {0x4a695444, 1, 40, 62, 0, getpid()};
        uint64_t rest[] = {time, 0}, load[] = {at, at, 8, 1};
        uint32_t record[] = {0, 16 + 40 + 7 + 8}, ids[] = {getpid(), getpid()};
        fwrite(header, sizeof header, 1, dump);
        fwrite(rest, sizeof rest, 1, dump);
        fwrite(record, sizeof record, 1, dump);
        fwrite(&time, sizeof time, 1, dump);
        fwrite(ids, sizeof ids, 1, dump);
        fwrite(load, sizeof load, 1, dump);
        fwrite("dumped\0\0\0\0\0\0\0\0", 15, 1, dump);
        fflush(dump);
    }
    int main(int count, char **arguments) {
        code = mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (count > 1) write_dump(arguments[1]);
        printf("%p\n", code); fflush(stdout);
        if (getchar() != EOF) { write_map(); printf("written\n"); fflush(stdout); while (getchar() != EOF); }
        else if (count == 1) write_map();
        return 0;
    }
"#;

fn compiler() -> Program {
    compile("c", COMPILER, &["-O1"])
}

/// The map of a process, removed when the test is done.
struct Map(PathBuf);

impl Map {
    fn of(running: &Running) -> Self {
        Map(format!("/tmp/perf-{}.map", running.child.id()).into())
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // A test that failed early has none.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Adds one frame of the process, numbered by its offset from the first known address.
fn add_frame(processes: &mut Processes, running: &Running, offset: u64) -> Frame {
    let frame = frame(processes, running.key(), running.addresses[0] + offset);
    processes.push_jit(running.key(), FrameId(offset as u32), frame, MonoNs(u64::MAX));
    frame
}

/// The last names of a process that ended.
fn retired(processes: &mut Processes, pid: u32) -> Vec<(u32, String, u64)> {
    processes.exit(pid);
    processes.retire(pid);
    names(processes)
}

fn names(processes: &mut Processes) -> Vec<(u32, String, u64)> {
    let mut names: Vec<_> = processes
        .jit_names()
        .into_iter()
        .map(|(id, lines)| match &lines[..] {
            [line] => (id.0, line.symbol.clone().expect("a name"), line.offset.expect("an offset")),
            _ => panic!("one function at a frame: {lines:?}"),
        })
        .collect();
    names.sort();
    names
}

/// Lets the process write its map, and waits for it.
fn write_map(running: &mut Running) {
    use std::io::{BufRead, BufReader, Write};
    running.child.stdin.as_mut().expect("a pipe").write_all(b"\n").expect("the process reads");
    let mut line = String::new();
    BufReader::new(running.child.stdout.as_mut().expect("a pipe")).read_line(&mut line).expect("a line");
    assert_eq!(line, "written\n");
}

#[test]
fn names_are_returned_once_when_the_map_exists() {
    let program = compiler();
    let mut running = Running::start(&program.path);
    let _map = Map::of(&running);
    let mut processes = Processes::default();
    assert_eq!(add_frame(&mut processes, &running, 4).kind, FrameKind::Jit);
    add_frame(&mut processes, &running, 4000);
    assert_eq!(names(&mut processes), []);
    write_map(&mut running);
    assert_eq!(names(&mut processes), [(4, "JS:~first /app.js:1:1".into(), 4)]);
    assert_eq!(names(&mut processes), []);
    add_frame(&mut processes, &running, 65);
    assert_eq!(names(&mut processes), [(65, "JS:*second /app.js:2:1".into(), 1)]);
}

#[test]
fn who_reads_the_code_of_a_process_is_asked_once_for_each_frame() {
    let program = compiler();
    let running = Running::start(&program.path);
    let mut processes = Processes::default();
    let line = |symbol: &str, inlined| SymbolLine {
        symbol: Some(symbol.into()),
        offset: Some(4),
        inlined,
        ..SymbolLine::default()
    };
    let process = running.key();
    let asked = |processes: &mut Processes, most| {
        let asked = processes.ask_jit(process, most).into_iter();
        asked.map(|(address, _)| address).collect::<Vec<_>>()
    };
    let (first, method) = (running.addresses[0] + 4, running.addresses[0] | INTERPRETED_METHOD);
    add_frame(&mut processes, &running, 4);
    assert!(!processes.awaits_jit(), "nobody reads it");
    assert_eq!(processes.ask_jit(process, 8), [(first, MonoNs(u64::MAX))]);
    assert!(processes.awaits_jit());
    let lines = vec![line("int shop.Orders.total(long)", true), line("void shop.Orders.main()", false)];
    processes.answer_jit(process, &[(first, lines.clone())]);
    assert!(!processes.awaits_jit());
    assert_eq!(processes.jit_names(), [(FrameId(4), lines)]);
    for (id, address) in [(7, method), (8, first + 100), (9, first + 200)] {
        let frame = Frame { kind: FrameKind::Jit, module: None, address };
        processes.push_jit(process, FrameId(id), frame, MonoNs(u64::MAX));
    }
    assert_eq!(processes.ask_jit(process, 2).len(), 2);
    assert_eq!(asked(&mut processes, 8), [first + 100, first + 200, method]);
    processes.answer_jit(
        process,
        &[(first + 100, vec![]), (first + 200, vec![]), (method, vec![line("m", false)])],
    );
    assert_eq!(asked(&mut processes, 8), [0; 0], "who did not know it is not asked again");
    assert!(!processes.awaits_jit());
    assert_eq!(retired(&mut processes, running.child.id()), [(7, "m".into(), 4)]);
    // A reader that is late.
    assert_eq!(asked(&mut processes, 8), [0; 0]);
    processes.answer_jit(process, &[(first, vec![])]);
    assert!(!processes.awaits_jit());
}

#[test]
fn map_written_at_exit_is_found_after_the_exit() {
    let program = compiler();
    let mut running = Running::start(&program.path);
    let _map = Map::of(&running);
    let mut processes = Processes::default();
    add_frame(&mut processes, &running, 4);
    assert_eq!(names(&mut processes), []);
    running.end();
    assert_eq!(retired(&mut processes, running.child.id()), [(4, "JS:~first /app.js:1:1".into(), 4)]);
}

#[test]
fn a_jitdump_is_found_by_its_mapping_though_it_is_deleted() {
    let program = compiler();
    let folder = tempfile::tempdir().expect("a scratch folder");
    let mut running = Running::of(Command::new(&program.path).arg(folder.path()));
    let mut processes = Processes::default();
    processes.scan(running.key()).expect("readable");
    let dump = folder.path().join(format!("jit-{}.dump", running.child.id()));
    std::fs::remove_file(dump).expect("it was there");
    let before = frame(&mut processes, running.key(), running.addresses[0] + 2);
    processes.push_jit(running.key(), FrameId(1), before, MonoNs(0));
    add_frame(&mut processes, &running, 3);
    running.end();
    assert_eq!(
        names(&mut processes),
        [(3, "dumped".into(), 3)],
        "and not the one met before the code was there"
    );
}

#[test]
fn code_of_another_program_gets_no_names_of_this_one() {
    let program = compiler();
    let mut running = Running::start(&program.path);
    let _map = Map::of(&running);
    let mut processes = Processes::default();
    add_frame(&mut processes, &running, 4);
    write_map(&mut running);
    processes.exec(wallprof_symbols::ProcessKey { pid: running.child.id(), generation: 1 });
    assert_eq!(names(&mut processes), []);
}

/// In its own mount and pid namespaces, the map is in a private `/tmp`, under a pid that belongs to another
/// process outside.
#[test]
fn a_container_has_its_own_tmp_and_pids() {
    if !is_root() {
        let test = "a_container_has_its_own_tmp_and_pids";
        return wallprof_testkit::skip(test, "namespaces take root to make");
    }
    let program = compiler();
    // The program is reached by a descriptor: its folder is hidden by the new /tmp.
    let script = r#"exec 9< "$1"; mount -t tmpfs none /tmp; exec /proc/self/fd/9"#;
    let mut running = Running::of(
        Command::new("unshare")
            .args(["-m", "-p", "-f", "--kill-child", "sh", "-c", script, "sh"])
            .arg(&program.path),
    );
    let pid = child_of(running.child.id());
    let mut processes = Processes::default();
    let key = support::key(pid);
    let frame = frame(&mut processes, key, running.addresses[0] + 4);
    processes.push_jit(key, FrameId(4), frame, MonoNs(0));
    running.end();
    assert!(!Path::new("/tmp/perf-1.map").exists());
    assert_eq!(retired(&mut processes, pid), [(4, "JS:~first /app.js:1:1".into(), 4)]);
}

fn child_of(pid: u32) -> u32 {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("readable");
    children.trim().parse().expect("one child")
}

/// A perf map of a real program, node.
#[test]
fn functions_of_node_have_names() {
    let source = r#"
        function inner(n) { let s = 0; for (let i = 0; i < n; i++) s = (s * 31 + i) | 0; return s; }
        function outer(n) { let s = 0; for (let i = 0; i < n; i++) s ^= inner(1000); return s; }
        for (let i = 0; i < 200; i++) outer(100);
        console.log('0x0');
        process.stdin.resume();
    "#;
    // Node also leaves a log in its working folder.
    let folder = tempfile::tempdir().expect("a scratch folder");
    let mut command = Command::new("node");
    command.args(["--perf-basic-prof", "-e", source]).current_dir(folder.path());
    if run_quietly(Command::new("node").arg("--version")).is_none() {
        return wallprof_testkit::skip("functions_of_node_have_names", "node is not installed");
    }
    let mut running = Running::of(&mut command);
    let map = Map::of(&running);
    let text = std::fs::read_to_string(&map.0).expect("node writes a map");
    let line = text.lines().rfind(|line| line.contains("*inner ")).expect("inner was compiled");
    let start = u64::from_str_radix(line.split(' ').next().expect("a number"), 16).expect("hexadecimal");
    running.addresses = vec![start];
    let mut processes = Processes::default();
    assert_eq!(add_frame(&mut processes, &running, 8).kind, FrameKind::Jit);
    let names = names(&mut processes);
    assert!(matches!(&names[..], [(8, name, 8)] if name.contains("*inner ")), "{names:?}");
}

fn run_quietly(command: &mut Command) -> Option<()> {
    command.output().ok().filter(|output| output.status.success()).map(drop)
}
