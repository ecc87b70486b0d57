// SPDX-License-Identifier: Apache-2.0
//! Wrong command lines, and requests for missing things: refused before anything is created.

use std::os::unix::ffi::OsStrExt;

use wallprof_testkit::program::{refused, run, wallprof};

/// Above the largest pid of all kernels (`PID_MAX_LIMIT` is 2^22).
const NO_SUCH_PID: &str = "4194305";

#[test]
fn wrong_usage_is_two() {
    for (arguments, says) in [
        (&[][..], "demo, record, report, stalls, flame or diff"),
        (&["recrod"], "'record'"),
        (&["record"], "-p PID"),
        (&["record", "--name", "[x"], "--name [x"),
        (&["record", "-a", "--call-graph", "frames"], "--call-graph"),
        (&["record", "1234"], "-p 1234"),
        (&["record", "-p", "x"], "`x`"),
        (&["record", "-p", "0"], "`0`"),
        (&["record", "-p", "1,"], "-p takes pids"),
        (&["record", "-t", "-5"], "'-5'"),
        (&["record", "-a", "-p", "1"], "-p and -a"),
        (&["record", "-a", "--name", "x", "--cgroup", "/y"], "--name and -a"),
        (&["record", "--children"], "--children needs -p"),
        (&["record", "--children", "--", "true"], "--children needs -p"),
        (&["record", "-t", "1", "--children"], "--children needs -p"),
        (&["record", "--name", "x", "--children"], "--children needs -p"),
        (&["watch", "--cgroup", "/y", "--children"], "--children needs -p"),
        (&["record", "--intel-pt", "-p", "1", "-t", "1"], "-p and -t do not go together"),
        (&["record", "-a", "-C", "3-1"], "`3-1`"),
        (&["record", "-a", "-d", "5 parsecs"], "-d: "),
        (&["record", "-a", "-d", "0"], "-d 0"),
        (&["record", "-a", "-F", "99Hz"], "-F"),
        (&["record", "-a", "--min-stall", "100"], "100us"),
        (&["record", "-a", "-e", ""], "-e"),
        (&["record", "-a", "-d", "1", "-d", "2"], "-d"),
        (&["record", "-a", "--intel-pt=half"], "full or snapshot"),
        (&["record", "-a", "--trace-buffer", "1MiB"], "--intel-pt"),
        (&["record", "-a", "--intel-pt", "--trace-buffer", "1"], "4KiB"),
        (&["record", "-a", "--intel-pt", "-e", "cs"], "-e does not go"),
        (&["report", "a", "b"], "'b'"),
        (&["stalls", "--kind", "on-cpu"], "off-cpu or fault"),
        (&["stalls", "--reason", "sloth"], "preempted, runnable"),
        (&["stalls", "--each", "--json"], "--json"),
        (&["stalls", "--each", "--top", "3"], "--top"),
        (&["stalls", "--longer-than", "fast"], "--longer-than: "),
        (&["stalls", "--thread", "[a"], "--thread: "),
        (&["stalls", "--from", "noon"], "--from: "),
    ] {
        let sentence = refused(arguments, 2);
        assert!(sentence.contains(says), "{arguments:?}: {sentence}");
    }
}

#[test]
fn missing_target_is_exit_code_one_and_creates_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("new.db");
    for (target, says) in [
        (&["-p", NO_SUCH_PID][..], NO_SUCH_PID),
        (&["-t", NO_SUCH_PID], NO_SUCH_PID),
        (&["-p", "1", "-C", "65000"], "CPU 65000"),
        (&["--cgroup", "/proc"], "/proc"),
    ] {
        let arguments = [&["record", "-o", file.to_str().unwrap()], target].concat();
        // A machine without cgroups fails with 3, since it has none to name.
        if target[0] == "--cgroup" && !std::fs::read_to_string("/proc/mounts").unwrap().contains(" cgroup") {
            continue;
        }
        let sentence = refused(&arguments, 1);
        assert!(sentence.contains(says), "{sentence}");
        assert!(!file.exists());
    }
}

#[test]
fn tid_of_another_thread_is_not_called_missing() {
    let (send, receive) = std::sync::mpsc::channel();
    let (done, wait) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        send.send(rustix::thread::gettid()).unwrap();
        wait.recv().unwrap_err();
    });
    let tid = receive.recv().unwrap().as_raw_nonzero().to_string();
    let sentence = refused(&["record", "-p", &tid], 1);
    assert!(sentence.contains(&format!("-t {tid}")), "{sentence}");
    drop(done);
    thread.join().unwrap();
}

#[test]
fn hostile_arguments_come_out_escaped() {
    for hostile in ["\x1b[31mred", "two\nlines", "\u{202e}txet"] {
        for arguments in
            [["record", "-p", hostile], ["stalls", "--kind", hostile], ["report", "--json", hostile]]
        {
            let code = if arguments[0] == "report" { 1 } else { 2 };
            let sentence = refused(&arguments, code);
            assert!(!sentence.contains(hostile), "{sentence:?}");
        }
    }
    let not_utf8 = std::ffi::OsStr::from_bytes(b"\xff\xfe");
    let output = wallprof(&["record", "-p"]).arg(not_utf8).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().starts_with("wallprof: "));
}

#[test]
fn an_endless_argument_is_refused_and_not_a_crash() {
    let long = "9".repeat(100_000);
    for arguments in [["record", "-p", &long], ["record", "-C", &long], ["stalls", "--longer-than", &long]] {
        assert_eq!(run(&arguments).status.code(), Some(2));
    }
}

#[test]
fn help_and_version_are_on_stdout() {
    for arguments in [&["--help"][..], &["--version"], &["record", "--help"], &["help", "stalls"]] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert!(output.stdout.starts_with(b"w") || output.stdout.len() > 100, "{arguments:?}");
        assert!(output.stderr.is_empty());
        assert!(!String::from_utf8(output.stdout).unwrap().contains("__"), "hidden commands stay hidden");
    }
}

/// Where the caller may record, these are refused for their targets; elsewhere for the missing permission.
#[test]
fn missing_feature_is_exit_code_three_and_wrong_event_two() {
    let may_record = run(&["doctor"]).status.success();
    let (unknown, says) = if may_record { (2, "page-faults") } else { (3, "cap_bpf") };
    let sentence = refused(&["record", "-a", "-e", "page-fautls"], unknown);
    assert!(sentence.contains(says), "{sentence}");
    let has_pmu = ["cpu", "cpu_core"]
        .iter()
        .any(|pmu| std::path::Path::new("/sys/bus/event_source/devices").join(pmu).exists());
    if !has_pmu {
        let sentence = refused(&["record", "-a", "-e", "cycles"], 3);
        assert!(!may_record || sentence.contains("cpu-clock"), "{sentence}");
    }
}

#[test]
fn a_trace_without_the_hardware_is_three_and_creates_nothing() {
    if std::path::Path::new("/sys/bus/event_source/devices/intel_pt").exists() {
        let test = "a_trace_without_the_hardware_is_three_and_creates_nothing";
        return wallprof_testkit::skip(test, "this machine has Intel PT");
    }
    let folder = tempfile::tempdir().unwrap();
    for (mode, name) in [("--intel-pt", "new.db"), ("--intel-pt=snapshot", "new.data")] {
        let file = folder.path().join(name);
        let sentence = refused(&["record", mode, "-o", file.to_str().unwrap(), "--", "true"], 3);
        assert!(sentence.contains("no Intel PT") && sentence.contains("leave --intel-pt out"), "{sentence}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
