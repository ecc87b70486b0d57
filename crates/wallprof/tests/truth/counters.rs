// SPDX-License-Identifier: Apache-2.0
//! Counters beside the stalls: what else changed while a thread was late.

use serde::Deserialize;

use wallprof_testkit::contract::{Report, Stall};
use wallprof_testkit::recorder::Recorder;
use wallprof_testkit::scenario::Truth;
use wallprof_testkit::scenario::program;
use wallprof_testkit::stored;

#[derive(Debug, Deserialize)]
struct Backlog {
    start_ns: u64,
    end_ns: u64,
    port: u16,
    queued: u64,
    drops: u64,
}

/// The receiver's wait for the lock, and the scenario's own figures of it.
fn record() -> (Stall, Backlog, Report) {
    let scenario = program("backlog");
    let (status, recording) = Recorder::armed(&[], &[scenario.to_str().expect("a UTF-8 path")]).wait();
    assert!(status.success());
    let truth = Truth::from_output(&recording.command_output());
    let backlog: Backlog = truth.one("backlog");
    let (start, end) = (truth.epoch_from_mono(backlog.start_ns), truth.epoch_from_mono(backlog.end_ns));
    let stalls = recording.stalls(&["--thread", "receiver", "--reason", "lock", "--longer-than", "300ms"]);
    let mut stalls = stalls.into_iter().filter(|stall| stall.overlaps(start, end));
    let stall = stalls.next().expect("the wait for the lock");
    let text = recording.read("stalls", &["--thread", "receiver", "--each"]);
    assert!(text.contains(&format!("udp.queue 127.0.0.1:{} ", backlog.port)), "{text}");
    (stall, backlog, recording.report())
}

#[test]
fn the_queue_that_filled_while_its_reader_waited() {
    let Some(_run) = stored::run("the_queue_that_filled_while_its_reader_waited") else { return };
    let (stall, backlog, report) = record();
    let counters = stall.counters.as_ref().expect("a live recording has counters");
    let of_socket = |what: &str| {
        let name = format!("udp.{what} 127.0.0.1:{}", backlog.port);
        counters.get(&name).unwrap_or_else(|| panic!("{name} moved: {counters:#?}"))
    };
    let queue = of_socket("queue");
    assert_eq!(queue.at as u64, backlog.queued, "{queue:?} {backlog:?}");
    assert!(queue.before * 10.0 < queue.at, "{queue:?}");
    assert!(queue.after.is_some_and(|after| after < queue.at), "{queue:?}");
    assert!(backlog.drops > 0 && of_socket("drops").at > 0.0, "{counters:#?}");
    assert_eq!(report.losses.get("counters_processes_left_out"), None);
}
