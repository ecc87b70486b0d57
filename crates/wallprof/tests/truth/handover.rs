// SPDX-License-Identifier: Apache-2.0
//! More voluntary waits than a recorder can emit one by one: those of a lock are all there, those of a queue
//! are folded.

use serde::Deserialize;

use wallprof_testkit::assert_always;
use wallprof_testkit::contract::Stall;
use wallprof_testkit::recorder::Recorder;
use wallprof_testkit::scenario::Scenario;
use wallprof_testkit::{excuse, machine};

const NAME: &str = "waits_of_a_lock_are_kept_beside_a_queue_that_is_folded";
/// A recording keeps a burst of 20,000 stalls. With so many waits, a part of them is folded.
const TOO_MANY: u64 = 60_000;

#[derive(Debug, Deserialize)]
struct Waits {
    tid: u32,
    name: String,
    count: u64,
    long: u64,
}

#[test]
fn waits_of_a_lock_are_kept_beside_a_queue_that_is_folded() {
    let Some(_guard) = machine::reserve(NAME) else { return };
    let mut scenario = Scenario::ready("handover", &["-d", "6", "-k", "both"]);
    let recorder = Recorder::armed(&["-p", &scenario.pid()], &[]);
    let truth = scenario.run();
    let recording = recorder.stop();
    let waits: Vec<Waits> = truth.all("waits");
    let stalls = recording.stalls(&["--all"]);
    let lost = recording.report().losses.get("stalls_ring_full").copied().unwrap_or(0);
    let rows = |waits: &Waits, function| {
        let is_own = |stall: &&Stall| stall.tid == waits.tid && stall.user_stack_has(function);
        stalls.iter().filter(is_own).count() as u64
    };
    for waits in waits.iter().filter(|waits| waits.name.starts_with("locker")) {
        let rows = rows(waits, "take_lock");
        // A long wait by the thread's own clock has at least one interval that is a stall.
        assert!(waits.long > 0, "{waits:?}");
        assert_always!(rows + lost >= waits.long, "{rows} of {waits:?}, and {lost} lost");
    }
    let workers = || waits.iter().filter(|waits| waits.name == "worker");
    let count: u64 = workers().map(|waits| waits.count).sum();
    if count < TOO_MANY {
        let reason = format!("{count} waits for jobs are not too many to be kept");
        return excuse(NAME, "the queue is folded", &reason);
    }
    let kept: u64 = workers().map(|waits| rows(waits, "take_job")).sum();
    assert!(kept < count / 2, "{kept} of {count} waits for jobs are kept");
}
