// SPDX-License-Identifier: Apache-2.0
//! Ends of a watcher: by SIGKILL, and by the signal that stops it.

use wallprof_testkit::bpf_objects::BpfObjects;
use wallprof_testkit::machine;
use wallprof_testkit::recorder::report_from;
use wallprof_testkit::scenario::Scenario;

use crate::watcher::Watcher;

#[test]
fn a_killed_watcher_leaves_a_flight_recording_and_nothing_in_the_kernel() {
    let test = "a_killed_watcher_leaves_a_flight_recording_and_nothing_in_the_kernel";
    let Some(_guard) = machine::reserve(test) else { return };
    let mut scenario = Scenario::ready("lock", &["-d", "4", "-n", "20"]);
    let watcher = Watcher::start(&["-p", &scenario.pid()]);
    scenario.run();
    let engine = [r#"thread="engine""#];
    watcher.metrics_until(|text| crate::watcher::value(text, "wallprof_stalls_total", &engine) > 10.0);
    let objects = BpfObjects::of_process(watcher.pid());
    assert!(objects.has_programs_and_maps());
    let (_, folder) = watcher.kill();
    objects.wait_until_gone();
    let report = report_from(&folder.path().join("flight.db"));
    assert!(report.threads.iter().any(|thread| thread.comm == "engine"));
}

#[test]
fn a_stopped_watcher_completes_its_recording() {
    let Some(_guard) = machine::reserve("a_stopped_watcher_completes_its_recording") else { return };
    let watcher = Watcher::start(&["-a"]);
    watcher.metrics_until(|text| crate::watcher::value(text, "wallprof_oncpu_seconds_total", &[]) > 0.0);
    let (status, folder) = watcher.stop();
    assert!(status.success());
    let left: Vec<_> = std::fs::read_dir(folder.path())
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
        .collect();
    assert_eq!(left, ["flight.db"], "one plain file, and no socket");
}
