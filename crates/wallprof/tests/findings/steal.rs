// SPDX-License-Identifier: Apache-2.0
//! `steal` on a machine whose host never steals: the recorder reads an injected `/proc/stat`, whose steal time of one CPU
//! grows while a scenario's thread waits for that CPU.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use wallprof_testkit::recorder::Recorder;
use wallprof_testkit::scenario::Scenario;
use wallprof_testkit::{machine, skip};

use crate::found::Found;

/// The steal time of CPU 0 is written this often; the recorder reads it ten times a second.
const STEP: Duration = Duration::from_millis(20);
/// USER_HZ.
const TICKS_PER_SECOND: u128 = 100;

/// A copy of `/proc/stat` in which CPU 0 has lost `ticks` to the host, and the other CPUs nothing. The text
/// has the same length for all values.
fn stat_with_steal(real: &str, ticks: u128) -> String {
    let line = |line: &str| match line.strip_prefix("cpu") {
        Some(rest) if rest.starts_with('0') => format!("cpu0 100 0 100 1000 0 0 0 {ticks:010} 0 0\n"),
        Some(_) => String::new(),
        None => format!("{line}\n"),
    };
    real.lines().map(line).collect()
}

/// Writes steal time that grows as fast as time goes, until the run is over.
fn steal_all_time(stat: &File, real: &str, is_over: &AtomicBool) {
    let start = Instant::now();
    while !is_over.load(Ordering::Relaxed) {
        let ticks = start.elapsed().as_millis() * TICKS_PER_SECOND / 1_000;
        stat.write_all_at(stat_with_steal(real, ticks).as_bytes(), 0).expect("the injected file is written");
        std::thread::sleep(STEP);
    }
}

/// The rules of the findings about a worker that loses CPU 0 to a neighbour, with an injected `/proc/stat`.
fn rules_with(stat: &Path, steals: bool) -> Vec<String> {
    let real = fs::read_to_string("/proc/stat").expect("/proc/stat is readable");
    fs::write(stat, stat_with_steal(&real, 0)).expect("the injected file is written");
    let mut scenario = Scenario::ready("preempted", &["-d", "2", "-c", "0"]);
    let inject = r#"mount --bind "$0" /proc/stat && exec "$@""#;
    let path = stat.to_str().expect("UTF-8");
    let through = ["unshare", "--mount", "sh", "-c", inject, path];
    let recorder = Recorder::armed_through(&through, &["-p", &scenario.pid()], &[]);
    let file = File::options().write(true).open(stat).expect("the injected file");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        if steals {
            scope.spawn(|| steal_all_time(&file, &real, &is_over));
        }
        scenario.run();
        is_over.store(true, Ordering::Relaxed);
    });
    let found = Found::in_recording(&recorder.stop());
    found.findings.into_iter().map(|finding| finding.rule).collect()
}

#[test]
fn waiting_while_the_host_had_the_cpu_is_steal() {
    let test = "waiting_while_the_host_had_the_cpu_is_steal";
    let Some(_guard) = machine::reserve(test) else { return };
    if !rustix::process::geteuid().is_root() {
        return skip(test, "a mount namespace needs root");
    }
    let folder = tempfile::tempdir().expect("a temporary directory");
    let stat = folder.path().join("stat");
    let stolen = rules_with(&stat, true);
    assert!(stolen.iter().any(|rule| rule == "steal"), "{stolen:?}");
    let twin = rules_with(&stat, false);
    assert!(twin.iter().any(|rule| rule == "preempted"), "{twin:?}");
    assert!(!twin.iter().any(|rule| rule == "steal"), "{twin:?}");
}
