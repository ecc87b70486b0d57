// SPDX-License-Identifier: Apache-2.0
//! Orders by `wallprof ctl`, by HTTP and by signals.

use std::fs;
use std::path::Path;

use rusqlite::{Connection, OpenFlags};
use rustix::process::Signal;
use wallprof_testkit::machine;
use wallprof_testkit::recorder::report_from;
use wallprof_testkit::scenario::Scenario;

use crate::http;
use crate::watcher::{Watcher, value};

fn text(output: &std::process::Output) -> String {
    let both = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    String::from_utf8(both).expect("UTF-8")
}

#[test]
fn disarmed_it_measures_nothing_and_armed_again_it_does() {
    let Some(_guard) = machine::reserve("disarmed_it_measures_nothing_and_armed_again_it_does") else {
        return;
    };
    let mut watcher = Watcher::start(&["-a"]);
    let on_cpu = |text: &str| value(text, "wallprof_oncpu_seconds_total", &[]);
    watcher.metrics_until(|text| on_cpu(text) > 0.0);
    let disarmed = watcher.ctl("disarm");
    assert!(disarmed.status.success(), "{}", text(&disarmed));
    watcher.said("disarmed");
    let disarmed = watcher.metrics();
    assert_eq!(value(&disarmed, "wallprof_armed", &[]), 0.0);
    assert!(text(&watcher.ctl("status")).starts_with("disarmed"));
    assert!(watcher.ctl("arm").status.success());
    watcher.said("armed");
    watcher
        .metrics_until(|text| on_cpu(text) > on_cpu(&disarmed) && value(text, "wallprof_armed", &[]) == 1.0);
    let (_, folder) = watcher.stop();
    let report = report_from(&folder.path().join("flight.db"));
    for thread in &report.threads {
        assert!(thread.wall_ns <= report.recording.duration_ns, "{thread:?}");
    }
}

#[test]
fn a_name_is_watched_in_each_of_its_lives() {
    let Some(_guard) = machine::reserve("a_name_is_watched_in_each_of_its_lives") else { return };
    let watcher = Watcher::start(&["--name", "lock"]);
    let mut counted = 0.0;
    for _life in 0..2 {
        Scenario::ready("lock", &["-d", "0.8", "-n", "20"]).run();
        let labels = ["process=\"lock\"", "thread=\"engine\""];
        let stalls = |text: &str| value(text, "wallprof_stalls_total", &labels);
        counted = stalls(&watcher.metrics_until(|text| stalls(text) > counted));
    }
    let (_, folder) = watcher.stop();
    let threads = report_from(&folder.path().join("flight.db")).threads;
    assert_eq!(threads.iter().filter(|thread| thread.comm == "engine").count(), 2, "{threads:?}");
    assert!(threads.iter().all(|thread| thread.process == "lock"), "{threads:?}");
}

#[test]
fn snapshots_by_every_way_are_recordings() {
    let Some(_guard) = machine::reserve("snapshots_by_every_way_are_recordings") else { return };
    let mut watcher = Watcher::start(&["-a"]);
    watcher.metrics_until(|text| value(text, "wallprof_oncpu_seconds_total", &[]) > 0.0);
    let by_ctl = watcher.ctl("snapshot");
    assert!(by_ctl.status.success(), "{}", text(&by_ctl));
    assert!(!report_from(Path::new(text(&by_ctl).trim())).threads.is_empty());
    watcher.metrics_until(|text| value(text, "wallprof_snapshots_total", &[]) == 1.0);
    let by_http = http::request(watcher.address, "POST", "/snapshot");
    assert_eq!(by_http.status, 200, "{}", by_http.body);
    assert!(!report_from(Path::new(by_http.body.trim())).threads.is_empty());
    watcher.metrics_until(|text| value(text, "wallprof_snapshots_total", &[]) == 2.0);
    watcher.signal(Signal::USR1);
    let said = watcher.said("snapshot: ");
    let path = said.split("snapshot: ").nth(1).expect("a path");
    assert!(!report_from(Path::new(path)).threads.is_empty());
}

#[test]
fn unwritable_snapshot_folder_is_reported() {
    let Some(_guard) = machine::reserve("unwritable_snapshot_folder_is_reported") else { return };
    let watcher = Watcher::start(&["-a", "--snapshot", "/proc/nowhere"]);
    watcher.metrics_until(|text| value(text, "wallprof_oncpu_seconds_total", &[]) > 0.0);
    let refused = watcher.ctl("snapshot");
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused).contains("/proc/nowhere"), "{}", text(&refused));
    watcher.metrics_until(|text| value(text, "wallprof_lost_total", &["snapshots_failed"]) == 1.0);
}

#[test]
fn a_critical_stall_keeps_its_own_snapshot() {
    let Some(_guard) = machine::reserve("a_critical_stall_keeps_its_own_snapshot") else { return };
    let mut scenario =
        wallprof_testkit::scenario::Scenario::ready("lock", &["-d", "3", "-n", "20", "-k", "10"]);
    let args = ["-p", &scenario.pid(), "--severity", "critical=3ms", "--on", "critical"];
    let mut watcher = Watcher::start(&args);
    scenario.run();
    let said = watcher.said("snapshot: ");
    let report = report_from(Path::new(said.split("snapshot: ").nth(1).expect("a path")));
    let stalls: u64 = report.threads.iter().map(|thread| thread.stalls).sum();
    assert!(stalls > 0 && report.recording.duration_ns <= 14_000_000_000, "{report:?}");
}

#[test]
fn reload_applies_the_settings_that_can_change() {
    let Some(_guard) = machine::reserve("reload_applies_the_settings_that_can_change") else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let config = folder.path().join("watch.toml");
    fs::write(&config, "threshold = \"1ms\"\n").expect("a configuration");
    let path = config.to_str().expect("UTF-8").to_string();
    let mut watcher = Watcher::start_in(folder, &["-a", "--config", &path]);
    let threshold = "wallprof_stack_threshold_seconds";
    assert_eq!(watcher.value(threshold, &[]), 0.001);
    fs::write(&config, "threshold = \"2ms\"\nkeep = \"1h\"\n").expect("a configuration");
    watcher.signal(Signal::HUP);
    watcher.said("keep stays as it was until a restart");
    watcher.said("in force");
    watcher.metrics_until(|text| value(text, threshold, &[]) == 0.002);
    let recording = Connection::open_with_flags(watcher.recording(), OpenFlags::SQLITE_OPEN_READ_ONLY);
    let threshold_ns = recording.and_then(|file| {
        file.query_row("SELECT min_stall_ns FROM recording", [], |row| row.get::<_, i64>(0))
    });
    assert_eq!(threshold_ns.expect("the recording"), 2_000_000);
    fs::write(&config, "\nthreshold = \"fast\"\n").expect("a configuration");
    watcher.signal(Signal::HUP);
    let said = watcher.said("everything stays as it was");
    assert!(said.contains("line 2: threshold"), "{said}");
    assert_eq!(watcher.value(threshold, &[]), 0.002);
}
