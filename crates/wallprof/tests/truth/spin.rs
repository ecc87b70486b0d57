//! Running time, divided between user mode and the kernel by samples.

use serde::Deserialize;

use crate::ledger::{assert_adds_up, thread};
use crate::recorder::Recorder;
use crate::scenario::Scenario;
use crate::stage;

const HZ: f64 = 199.0;

#[derive(Debug, Deserialize)]
struct Split {
    tid: u32,
    name: String,
    user_ns: u64,
    kernel_ns: u64,
}

/// How far a share seen in `samples` independent samples strays from the true one: five standard
/// deviations, at the worst share of one half, and one sample for a rounding at either end.
fn tolerance(samples: f64) -> f64 {
    5.0 * (0.25 / samples).sqrt() + 2.0 / samples
}

#[test]
fn user_and_kernel_time() {
    let Some(_stage) = stage::enter("user_and_kernel_time") else { return };
    let mut scenario = Scenario::ready("spin", &["-d", "5"]);
    let pid = scenario.pid();
    let recorder = Recorder::armed(&["-p", &pid, "-F", &HZ.to_string()], &[]);
    let truth = scenario.perform();
    let report = recorder.stop().report();
    for split in truth.all::<Split>("split") {
        let thread = thread(&report, split.tid, &split.name);
        assert_adds_up(thread);
        let running_ns = (split.user_ns + split.kernel_ns) as f64;
        let expected_samples = running_ns / 1e9 * HZ;
        let tolerance = tolerance(expected_samples);
        // A periodic timer takes its samples within one period; interrupts' share of them is theirs.
        let samples = thread.samples as f64;
        assert!((samples / expected_samples - 1.0).abs() <= 0.1, "{samples} samples: {split:?}");
        let share = thread.states.user as f64 / (thread.states.user + thread.states.kernel) as f64;
        let expected = split.user_ns as f64 / running_ns;
        assert!((share - expected).abs() <= tolerance, "{share} of {} is user time: {split:?}", split.name);
    }
}
