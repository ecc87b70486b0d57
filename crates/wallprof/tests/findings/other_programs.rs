// SPDX-License-Identifier: Apache-2.0
//! Calls that the kernel or another process holds up: the finding names that process and has the time by the
//! program's own clock.

use serde::Deserialize;
use wallprof_testkit::recorder::Recorder;
use wallprof_testkit::scenario::Scenario;
use wallprof_testkit::stored;

use crate::found::Found;

#[derive(Debug, Deserialize)]
struct Waits {
    count: u64,
    total_ns: u64,
}

#[derive(Debug, Deserialize)]
struct Keeper {
    pid: u32,
}

/// The time that the scenario waits in one call.
const CALL_NS: u64 = 30_000_000;

fn assert_is_named(test: &str, kind: &str, rule: &str, words: &str) {
    let Some(_run) = stored::run_in_full(test) else { return };
    let mut scenario = Scenario::ready("kernel_waits", &["-d", "1.5", "-k", kind]);
    let recorder = Recorder::armed(&["-p", &scenario.pid()], &[]);
    let truth = scenario.run();
    let recording = recorder.stop();
    let Some(keeper) = truth.all::<Keeper>("keeper").pop() else {
        return wallprof_testkit::skip(test, "the kernel does not permit it here");
    };
    let waits: Waits = truth.one("waits");
    let found = Found::in_recording(&recording).findings;
    let mut about = found.iter().filter(|finding| finding.rule == rule);
    let finding = about.next().unwrap_or_else(|| panic!("{rule} among {found:#?}"));
    assert!(about.next().is_none(), "one cause: {found:#?}");
    assert!(finding.title.contains(words), "{finding:#?}");
    assert!(finding.title.contains(&format!(": keeper {} ended it", keeper.pid)), "{finding:#?}");
    assert!(!finding.advice.contains("faster disk"), "{finding:#?}");
    // A call that lasted as long as asked for is in the finding, and of its time nearly all.
    assert!(waits.total_ns >= CALL_NS && finding.count <= waits.count + 1, "{waits:?}: {finding:#?}");
    assert!(finding.total_ns * 10 >= waits.total_ns * 7, "{waits:?}: {finding:#?}");
    assert!(found.iter().all(|finding| finding.rule != "disk-wait"), "{found:#?}");
}

#[test]
fn scanner_that_decides_about_an_open_is_named() {
    let test = "scanner_that_decides_about_an_open_is_named";
    assert_is_named(
        test,
        "scanner",
        "program-wait",
        "waited for a scanner to permit access to a file (openat)",
    );
}

#[test]
fn supervisor_of_a_seccomp_filter_is_named() {
    let test = "supervisor_of_a_seccomp_filter_is_named";
    assert_is_named(test, "seccomp", "program-wait", "waited for the supervisor of its seccomp filter");
}

#[test]
fn process_that_serves_a_file_system_is_named() {
    let test = "process_that_serves_a_file_system_is_named";
    let words = "waited for a file system in user space (FUSE) (pread64) on file in read_page";
    assert_is_named(test, "fuse", "program-wait", words);
}

/// The kernel waits for the page, as for one of a disk.
#[test]
fn process_that_serves_a_page_that_was_asked_for_ahead_is_named() {
    let test = "process_that_serves_a_page_that_was_asked_for_ahead_is_named";
    let words = "waited for a file system in user space (FUSE) (pread64) on file in read_page";
    assert_is_named(test, "pages", "program-wait", words);
}

/// A device that does not let a page be changed while it is written.
#[test]
fn store_to_a_page_under_writeback_names_the_file_and_the_offset() {
    let test = "store_to_a_page_under_writeback_names_the_file_and_the_offset";
    let words = "waited for pages of file to be written back to disk (write faults, the slowest at 0x3000)";
    assert_is_named(test, "store", "slow-fault", words);
}

#[test]
fn process_that_does_not_read_a_terminal_is_named() {
    let test = "process_that_does_not_read_a_terminal_is_named";
    assert_is_named(test, "terminal", "program-wait", "waited for space in its terminal");
}

#[test]
fn process_that_does_not_read_its_datagrams_is_named() {
    let test = "process_that_does_not_read_its_datagrams_is_named";
    assert_is_named(test, "datagram", "program-wait", "waited for space in the queue of another unix socket");
}

#[test]
fn listener_that_does_not_accept_is_named() {
    let test = "listener_that_does_not_accept_is_named";
    let words = "waited for a unix socket's listener to accept connections (connect)";
    assert_is_named(test, "connection", "program-wait", words);
}

#[test]
fn process_that_does_not_read_its_message_queue_is_named() {
    let test = "process_that_does_not_read_its_message_queue_is_named";
    assert_is_named(test, "message", "program-wait", "waited for space in a message queue (msgsnd)");
}

#[test]
fn process_that_does_not_read_its_mqueue_is_named() {
    let test = "process_that_does_not_read_its_mqueue_is_named";
    assert_is_named(test, "mqueue", "program-wait", "waited for space in a message queue (mq_timedsend)");
}

#[test]
fn process_that_keeps_a_lease_is_named() {
    let test = "process_that_keeps_a_lease_is_named";
    assert_is_named(
        test,
        "lease",
        "program-wait",
        "waited for the lease of a file to be given up (F_SETLEASE)",
    );
}

#[test]
fn daemon_of_an_autofs_is_named() {
    let test = "daemon_of_an_autofs_is_named";
    assert_is_named(test, "automount", "program-wait", "waited for the automounter (autofs)");
}
