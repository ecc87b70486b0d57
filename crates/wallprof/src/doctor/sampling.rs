// SPDX-License-Identifier: Apache-2.0
//! What a sample, and a probe of `--span`, cost the thread that they stop.

use std::hint::black_box;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use wallprof_live::Session;
use wallprof_meaning::waits::Rules;
use wallprof_probe::{CodePlace, ProbeOptions, SpanProbes, TargetSet, Targets, UserStacks};
use wallprof_symbols::executable_maps;

use super::check::Check;

/// Often, so that few other interrupts are among the pauses.
const HZ: u32 = 1_000;
const DURATION: Duration = Duration::from_millis(400);
/// Shorter ones are no interrupts, and longer ones are other threads.
const PAUSES: std::ops::Range<Duration> = Duration::from_nanos(700)..Duration::from_micros(200);
/// Half of the samples that were to come.
const LEAST_PAUSES: usize = 200;
/// Calls of a function, with a probe and without.
const CALLS: usize = 2_000;

/// Samples a thread that runs in a loop, and probes a function that it calls. Nothing of what this machine does not
/// permit.
pub fn checks() -> Vec<Check> {
    let session = |spans: Vec<SpanProbes>| {
        let options = ProbeOptions {
            targets: Targets::Given(TargetSet {
                processes: vec![std::process::id()],
                ..TargetSet::default()
            }),
            cpus: None,
            sample_hz: HZ,
            events: Vec::new(),
            min_stall_ns: u64::MAX,
            busy_budget_ns: None,
            user_stacks: UserStacks::Tables,
            guarded: Vec::new(),
            spans,
            loops: false,
        };
        Session::load(&options, Vec::new(), Arc::new(Rules::default())).ok()
    };
    let without_probe = call_ns();
    let probed = own_function().and_then(|span| session(vec![span]));
    let is_probed = probed.is_some();
    let Some(mut session) = probed.or_else(|| session(Vec::new())) else { return Vec::new() };
    session.arm();
    let pauses = pauses(DURATION);
    let with_probe = call_ns();
    drop(session);
    let sample = median(pauses).map(|median| {
        Check::fine(
            "sampling",
            format!(
                "a sample stops the thread that it hits for {:.1} µs: `-F 0` records everything but where running \
                 threads were",
                median.as_secs_f64() * 1e6
            ),
        )
    });
    let span = match is_probed {
        true => Check::fine(
            "span probes",
            format!(
                "a span of `--span` stops its thread twice, for {:.1} µs each time",
                (with_probe - without_probe).max(0.0) / 1e3
            ),
        ),
        false => Check::less(
            "span probes",
            "this kernel sets no probes in programs (CONFIG_UPROBE_EVENTS)",
            "`--span` is refused; marks in the program and busy periods need no probes",
        ),
    };
    sample.into_iter().chain([span]).collect()
}

/// The function that [`checks`] probes. Its body keeps it from being folded with another one.
#[inline(never)]
extern "C" fn probed_function(number: u64) -> u64 {
    black_box(number ^ 0x7761_6c6c_7072_6f66)
}

/// ns of one call: the median of groups, of which other threads interrupt few.
fn call_ns() -> f64 {
    const GROUP: usize = 20;
    let mut groups: Vec<Duration> = (0..CALLS / GROUP)
        .map(|_| {
            let start = Instant::now();
            for number in 0..GROUP as u64 {
                black_box(probed_function(black_box(number)));
            }
            start.elapsed()
        })
        .collect();
    groups.sort();
    groups[groups.len() / 2].as_secs_f64() * 1e9 / GROUP as f64
}

/// The first instruction of [`probed_function`] in the file of this program.
fn own_function() -> Option<SpanProbes> {
    let address = probed_function as extern "C" fn(u64) -> u64 as usize as u64;
    let maps = executable_maps(std::process::id()).ok()?;
    let text = maps.iter().find(|line| (line.start..line.end).contains(&address))?;
    let offset = text.file_offset + (address - text.start);
    Some(SpanProbes {
        option: "uprobe:/proc/self/exe:probed_function".into(),
        path: PathBuf::from("/proc/self/exe"),
        begins: vec![CodePlace { offset, semaphore: None, condition: None }],
        ends: Vec::new(),
        is_call: true,
    })
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

    #[test]
    fn function_is_found_in_this_file() {
        assert_eq!(probed_function(0x7761_6c6c_7072_6f66), 0);
        let span = own_function().expect("this test's own file");
        assert!(span.begins[0].offset > 0);
        assert!(call_ns() > 0.0);
    }
}
