// SPDX-License-Identifier: Apache-2.0
//! Running time, divided between user mode and the kernel by samples.

use serde::Deserialize;
use wallprof_testkit::recorder::Recorder;
use wallprof_testkit::scenario::Scenario;
use wallprof_testkit::stored;

use crate::ledger::{assert_adds_up, thread};

const HZ: f64 = 199.0;

#[derive(Debug, Deserialize)]
struct Split {
    tid: u32,
    name: String,
    user_ns: u64,
    kernel_ns: u64,
}

/// The distance of a count of independent samples from its mean: five standard deviations, and one sample for
/// a rounding at either end.
fn tolerance(mean: f64) -> f64 {
    5.0 * mean.sqrt() + 2.0
}

#[test]
fn user_and_kernel_time() {
    let Some(_run) = stored::run("user_and_kernel_time") else { return };
    let mut scenario = Scenario::ready("spin", &["-d", "5"]);
    let pid = scenario.pid();
    let recorder = Recorder::armed(&["-p", &pid, "-F", &HZ.to_string()], &[]);
    let truth = scenario.run();
    let report = recorder.stop().report();
    for split in truth.all::<Split>("split") {
        let thread = thread(&report, split.tid, &split.name);
        assert_adds_up(thread);
        let running_ns = (split.user_ns + split.kernel_ns) as f64;
        let expected_samples = running_ns / 1e9 * HZ;
        let samples = thread.samples as f64;
        let tolerance = tolerance(expected_samples);
        assert!((samples - expected_samples).abs() <= tolerance, "{samples} samples: {split:?}");
        let share = thread.states.user as f64 / (thread.states.user + thread.states.kernel) as f64;
        let expected = split.user_ns as f64 / running_ns;
        assert!(
            (share - expected).abs() <= tolerance / expected_samples,
            "{share} of {} is user time: {split:?}",
            split.name
        );
    }
}

#[test]
fn running_time_without_sampling_is_one_state() {
    let Some(_run) = stored::run("running_time_without_sampling_is_one_state") else { return };
    let mut scenario = Scenario::ready("spin", &["-d", "1"]);
    let recorder = Recorder::armed(&["-p", &scenario.pid(), "-F", "0"], &[]);
    let truth = scenario.run();
    let report = recorder.stop().read("report", &["--json"]);
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    for split in truth.all::<Split>("split") {
        let threads = report["threads"].as_array().expect("threads");
        let thread = threads.iter().find(|thread| thread["tid"] == split.tid).expect("the thread");
        let states = &thread["states"];
        assert!(states["user"].is_null() && states["kernel"].is_null(), "{states}");
        assert_eq!(thread["samples"], 0);
        let parts = ["cpu", "irq", "fault_minor", "fault_major"].map(|state| states[state].as_u64());
        let running: u64 = parts.into_iter().map(|ns| ns.expect("nanoseconds")).sum();
        let on_cpu = thread["on_cpu_ns"].as_u64().expect("nanoseconds");
        // Faults may have waited: then they are more than running time.
        assert!(
            running >= on_cpu && states["cpu"].as_u64() <= Some(on_cpu),
            "{running} of {on_cpu}: {states}"
        );
        assert!(on_cpu >= split.user_ns + split.kernel_ns, "{on_cpu} ns of {split:?}");
    }
}
