// SPDX-License-Identifier: Apache-2.0
//! What a sample costs the thread that it interrupts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use wallprof_analysis::waits::Rules;
use wallprof_live::Session;
use wallprof_probe::{ProbeOptions, TargetSet, Targets, UserStacks};

use super::check::Check;

/// Often, so that few other interrupts are among the pauses.
const HZ: u32 = 1_000;
const DURATION: Duration = Duration::from_millis(400);
/// Shorter ones are no interrupts, and longer ones are other threads.
const PAUSES: std::ops::Range<Duration> = Duration::from_nanos(700)..Duration::from_micros(200);
/// Half of the samples that were to come.
const LEAST_PAUSES: usize = 200;

/// Samples a thread that runs in a loop. `None`: it cannot be recorded, or did not run.
pub fn check() -> Option<Check> {
    let options = ProbeOptions {
        targets: Targets::Given(TargetSet { processes: vec![std::process::id()], ..TargetSet::default() }),
        cpus: None,
        sample_hz: HZ,
        events: Vec::new(),
        min_stall_ns: u64::MAX,
        busy_budget_ns: None,
        user_stacks: UserStacks::Tables,
        guarded: Vec::new(),
    };
    let mut session = Session::load(&options, Vec::new(), Arc::new(Rules::default())).ok()?;
    session.arm();
    let pauses = pauses(DURATION);
    drop(session);
    let median = median(pauses)?;
    Some(Check::fine(
        "sampling",
        format!(
            "a sample stops the thread that it hits for {:.1} µs: `-F 0` records everything but where running \
             threads were",
            median.as_secs_f64() * 1e6
        ),
    ))
}

/// The pauses of this thread, as its clock shows them.
fn pauses(duration: Duration) -> Vec<Duration> {
    let mut pauses = Vec::with_capacity(4096);
    let mut last = Instant::now();
    let end = last + duration;
    while last < end {
        let now = Instant::now();
        if PAUSES.contains(&(now - last)) && pauses.len() < pauses.capacity() {
            pauses.push(now - last);
        }
        last = now;
    }
    pauses
}

fn median(mut pauses: Vec<Duration>) -> Option<Duration> {
    pauses.sort();
    (pauses.len() >= LEAST_PAUSES).then(|| pauses[pauses.len() / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_needs_as_many_pauses_as_samples() {
        let few: Vec<Duration> = (0..LEAST_PAUSES as u64 - 1).map(Duration::from_micros).collect();
        assert_eq!(median(few), None);
        let enough = (0..LEAST_PAUSES as u64).rev().map(Duration::from_micros).collect();
        assert_eq!(median(enough), Some(Duration::from_micros(LEAST_PAUSES as u64 / 2)));
    }
}
