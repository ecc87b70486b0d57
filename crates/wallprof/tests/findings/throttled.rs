// SPDX-License-Identifier: Apache-2.0
//! The figures of `cpu-throttling` where several threads wait for the same CPUs agree with the ledgers.

use serde::Deserialize;
use wallprof_testkit::busy::{UNSEEN_NS, busy_ns};
use wallprof_testkit::contract::Report;
use wallprof_testkit::recorder::Recorder;
use wallprof_testkit::scenario::Scenario;
use wallprof_testkit::stored;

use crate::found::Found;

const WORKERS: u64 = 4;

#[derive(Debug, Deserialize)]
struct Refused {}

/// Each of the workers waits while their CPUs are throttled. The rest of that time, the threads waited for
/// each other and for other programs.
#[test]
fn the_finding_counts_each_threads_waiting() {
    let Some(_run) = stored::run("the_finding_counts_each_threads_waiting") else { return };
    let mut scenario = Scenario::ready("throttle", &["-n", &WORKERS.to_string(), "-d", "3"]);
    let recorder = Recorder::armed(&["-p", &scenario.pid()], &[]);
    let before_ns = busy_ns();
    let truth = scenario.run();
    let busy_ns = busy_ns() - before_ns;
    if !truth.all::<Refused>("refused").is_empty() {
        return wallprof_testkit::skip(
            "the_finding_counts_each_threads_waiting",
            "no control group can be made here",
        );
    }
    let recording = recorder.stop();
    let report: Report = recording.report();
    let workers = report.threads.iter().filter(|thread| thread.comm == "worker");
    let waited_ns: u64 = workers.map(|thread| thread.states.preempted + thread.states.runnable).sum();
    let own_ns: u64 = truth.lives().iter().map(|life| life.cpu_ns).sum();
    let others_ns = busy_ns.saturating_sub(own_ns) + UNSEEN_NS;
    let found = Found::in_recording(&recording);
    let ours = found.findings.iter().filter(|finding| finding.rule == "cpu-throttling");
    let counted_ns: u64 = ours.map(|finding| finding.total_ns).sum();
    let least_ns = waited_ns.saturating_sub((WORKERS - 1) * own_ns + WORKERS * others_ns);
    assert!(
        (least_ns..=waited_ns).contains(&counted_ns),
        "{counted_ns} of {waited_ns} ns, while others ran for {others_ns} ns: {:#?}",
        found.findings
    );
}
