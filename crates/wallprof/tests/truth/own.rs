//! A recorder that is recorded by another one: this is how wallprof is profiled (docs/benchmarks.md).

use wallprof_testkit::contract::Report;
use wallprof_testkit::machine;
use wallprof_testkit::recorder::Recorder;
use wallprof_testkit::scenario::Scenario;

fn assert_adds_up(report: &Report) {
    for thread in &report.threads {
        assert_eq!(thread.states.sum() + thread.unaccounted_ns, thread.wall_ns, "{thread:#?}");
    }
}

#[test]
fn recorder_is_recorded_by_another_recorder() {
    let Some(_guard) = machine::reserve("recorder_is_recorded_by_another_recorder") else { return };
    let mut scenario = Scenario::ready("pingpong", &["-d", "2"]);
    let recorder = Recorder::armed(&["-p", &scenario.pid()], &[]);
    let pid = recorder.pid();
    let observer = Recorder::armed(&["-p", &pid.to_string(), "-F", "999"], &[]);
    scenario.run();
    // The observer ends first, since the end of a recording is not what is observed.
    let report = observer.stop().report();
    let recorded = recorder.stop().report();

    assert!(
        !report.threads.is_empty() && report.threads.iter().all(|thread| thread.pid == pid),
        "{report:#?}"
    );
    assert_adds_up(&report);
    let on_cpu_ns: u64 = report.threads.iter().map(|thread| thread.on_cpu_ns).sum();
    assert!(on_cpu_ns > 0, "a recorder of two seconds has run: {report:#?}");
    // The observation does not change the results of the observed one.
    assert_adds_up(&recorded);
}
