//! A recorder at work is recorded by another one: how wallprof is profiled (docs/benchmarks.md).

use crate::contract::Report;
use crate::recorder::Recorder;
use crate::scenario::Scenario;
use crate::stage;

fn assert_adds_up(report: &Report) {
    for thread in &report.threads {
        assert_eq!(thread.states.sum() + thread.unaccounted_ns, thread.wall_ns, "{thread:#?}");
    }
}

#[test]
fn a_recorder_at_work_is_recorded_by_another() {
    let Some(_stage) = stage::enter("a_recorder_at_work_is_recorded_by_another") else { return };
    let mut scenario = Scenario::ready("pingpong", &["-d", "2"]);
    let recorder = Recorder::armed(&["-p", &scenario.pid()], &[]);
    let pid = recorder.pid();
    let observer = Recorder::armed(&["-p", &pid.to_string(), "-F", "999"], &[]);
    scenario.perform();
    // The observer ends first: what ends a recording is no part of the work.
    let report = observer.stop().report();
    let recorded = recorder.stop().report();

    assert!(
        !report.threads.is_empty() && report.threads.iter().all(|thread| thread.pid == pid),
        "{report:#?}"
    );
    assert_adds_up(&report);
    let on_cpu_ns: u64 = report.threads.iter().map(|thread| thread.on_cpu_ns).sum();
    assert!(on_cpu_ns > 0, "a recorder that told two seconds has run: {report:#?}");
    // Nor does being watched change what it says of others.
    assert_adds_up(&recorded);
}
