// SPDX-License-Identifier: Apache-2.0
//! Machines on which nothing can be recorded, or nothing written, as far as this one can be made so: each says in one
//! sentence what to do.

use std::path::Path;
use std::process::{Command, Output};

use wallprof_testkit::machine::may_record;
use wallprof_testkit::program::{sentence_of, without_settings};
use wallprof_testkit::recorder::binary;
use wallprof_testkit::skip;

/// Answers system call number `argv[2]` with error number `argv[1]`, and executes the rest, as a container's runtime
/// does (seccomp(2); offset 0 of the data is the number, 0x7fff0000 allows).
const WITHOUT_SYSTEM_CALL: &str = "
import ctypes, os, struct, sys
error, number = int(sys.argv[1]), int(sys.argv[2])
code = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x50000 | error), (0x06, 0, 0, 0x7fff0000)]
program = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *line) for line in code))
pointer = ctypes.create_string_buffer(struct.pack('HxxxxxxP', len(code), ctypes.addressof(program)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, pointer, 0, 0) == 0, os.strerror(ctypes.get_errno())
os.execv(sys.argv[3], sys.argv[3:])
";
const EPERM: i32 = 1;
const EACCES: i32 = 13;
const BPF: i32 = 321;
const PERF_EVENT_OPEN: i32 = 298;

fn output(program: &str, arguments: &[&str], of_wallprof: &[&str], folder: &Path) -> Output {
    let mut command = Command::new(program);
    command.args(arguments).arg(binary()).args(of_wallprof);
    without_settings(&mut command).current_dir(folder).output().expect("the program runs")
}

/// What says how to start each recorder, without anything that it would need of this machine.
const RECORDERS: [&[&str]; 3] = [
    &["record", "-a", "-d", "100ms"],
    &["watch", "-a", "--listen", "127.0.0.1:0", "--socket", "ctl.sock"],
    &["doctor"],
];

fn refusals(program: &str, arguments: &[&str], expected: &[&str]) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for recorder in RECORDERS {
        let output = output(program, arguments, recorder, folder.path());
        let said = match recorder {
            ["doctor"] => {
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                assert_eq!(output.status.code(), Some(3), "{text}");
                text
            }
            _ => sentence_of(&output, 3, recorder),
        };
        for part in expected {
            assert!(said.contains(part), "{recorder:?} {arguments:?}: `{part}` is not in: {said}");
        }
    }
}

#[test]
fn security_policy_that_forbids_a_system_call_is_named() {
    if !may_record("security_policy_that_forbids_a_system_call_is_named") {
        return;
    }
    for number in [BPF, PERF_EVENT_OPEN] {
        for error in [EPERM, EACCES] {
            let [error, number] = [error, number].map(|number| number.to_string());
            refusals(
                "python3",
                &["-c", WITHOUT_SYSTEM_CALL, &error, &number],
                &["security policy", "seccomp"],
            );
        }
    }
}

/// A shell command in which `$1`… are the program and its arguments, in a mount namespace of its own.
fn in_other_mounts(script: &str) -> [&str; 5] {
    ["--mount", "sh", "-c", script, "sh"]
}

fn may_mount(test: &str) -> bool {
    let output = Command::new("unshare").args(in_other_mounts("mount -t tmpfs none /mnt")).output();
    let works = output.is_ok_and(|output| output.status.success());
    if !works {
        skip(test, "no mount namespace can be made here");
    }
    works
}

#[test]
fn kernel_without_type_information_is_named() {
    let test = "kernel_without_type_information_is_named";
    if !may_record(test) || !may_mount(test) {
        return;
    }
    let script = "mount -t tmpfs none /sys/kernel/btf && exec \"$@\"";
    refusals(
        "unshare",
        &in_other_mounts(script),
        &["/sys/kernel/btf/vmlinux is missing", "CONFIG_DEBUG_INFO_BTF"],
    );
}

#[test]
fn tracepoint_without_tracefs_is_refused_with_the_command_that_mounts_it() {
    let test = "tracepoint_without_tracefs_is_refused_with_the_command_that_mounts_it";
    if !may_record(test) || !may_mount(test) {
        return;
    }
    let script = "umount /sys/kernel/tracing /sys/kernel/debug/tracing 2> /dev/null
        exec setpriv --bounding-set -sys_admin --inh-caps -sys_admin \"$@\"";
    let record = ["record", "-d", "100ms", "-e", "sched:sched_switch", "--", "true"];
    let folder = tempfile::tempdir().expect("a temporary folder");
    let said = sentence_of(&output("unshare", &in_other_mounts(script), &record, folder.path()), 3, &record);
    assert!(said.contains("mount -t tracefs tracefs /sys/kernel/tracing"), "{said}");
}

#[test]
fn folder_that_is_read_only_is_named_with_another_choice() {
    let test = "folder_that_is_read_only_is_named_with_another_choice";
    if !may_record(test) || !may_mount(test) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = folder.path().to_str().expect("UTF-8");
    let script = format!("mount --bind {at} {at} && mount -o remount,ro,bind {at} && cd {at} && exec \"$@\"");
    for (command, advice) in [
        (&["record", "-d", "100ms", "--", "true"][..], "-o"),
        (&["watch", "-a", "--listen", "127.0.0.1:0", "--socket", "ctl.sock", "-o", "flight.db"], "-o"),
        (&["watch", "-a", "--listen", "127.0.0.1:0", "--socket", "ctl.sock"], "--socket"),
    ] {
        let output = output("unshare", &in_other_mounts(&script), command, folder.path());
        let said = sentence_of(&output, 1, command);
        assert!(said.contains(advice), "{command:?}: {said}");
    }
}
