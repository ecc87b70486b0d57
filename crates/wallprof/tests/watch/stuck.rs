// SPDX-License-Identifier: Apache-2.0
//! A stall that never ends shows all the same, and a thread that ends in the middle of a stall does no harm.

use wallprof_testkit::machine;
use wallprof_testkit::scenario::Scenario;

use crate::watcher::{Watcher, value};

#[test]
fn a_deadlock_grows_in_the_longest_stall() {
    let Some(_guard) = machine::reserve("a_deadlock_grows_in_the_longest_stall") else { return };
    let mut scenario = Scenario::ready("deadlock", &["-d", "30"]);
    let watcher = Watcher::start(&["-p", &scenario.pid()]);
    scenario.open_gate();
    let longest = |text: &str| value(text, "wallprof_longest_stall_seconds", &[r#"process="deadlock""#]);
    let first = longest(&watcher.metrics_until(|text| longest(text) > 1.0));
    watcher.metrics_until(|text| longest(text) > first + 1.0);
    // Killed in the middle of its wait.
    drop(scenario);
    watcher.metrics_until(|text| longest(text) == 0.0);
}
