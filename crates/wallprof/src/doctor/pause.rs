// SPDX-License-Identifier: Apache-2.0
//! The longest pause of a running thread during an action: the cost of attaching for others.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The time of the measurement before the action.
const BEFORE: Duration = Duration::from_millis(200);

/// The pauses of a thread that ran in a loop during the action.
pub struct Pauses {
    /// The longest pause before the action.
    pub before: Duration,
    /// The longest pause during the action.
    pub meanwhile: Duration,
    /// The duration of the action.
    pub took: Duration,
}

/// Runs `action` beside a thread that runs in a loop. No pauses are measured on a machine with one CPU, where
/// each would wait for the other.
pub fn beside<T>(action: impl FnOnce() -> T) -> (T, Option<Pauses>) {
    if std::thread::available_parallelism().map_or(1, usize::from) == 1 {
        return (action(), None);
    }
    let before = longest_gap(instants().take_while(until(Instant::now() + BEFORE)));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let running = scope.spawn(|| longest_gap(instants().take_while(|_| !done.load(Ordering::Relaxed))));
        let started = Instant::now();
        let outcome = action();
        let took = started.elapsed();
        done.store(true, Ordering::Relaxed);
        let pauses = running.join().ok().map(|meanwhile| Pauses { before, meanwhile, took });
        (outcome, pauses)
    })
}

fn instants() -> impl Iterator<Item = Instant> {
    std::iter::repeat_with(Instant::now)
}

fn until(end: Instant) -> impl Fn(&Instant) -> bool {
    move |now| *now < end
}

/// The longest time between two readings of the clock that follow each other.
fn longest_gap(readings: impl Iterator<Item = Instant>) -> Duration {
    let mut last = None;
    let gaps = readings.map(|now| now - last.replace(now).unwrap_or(now));
    gaps.max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_gap_is_found() {
        let start = Instant::now();
        let at = |us| start + Duration::from_micros(us);
        assert_eq!(longest_gap([at(5), at(6), at(46), at(50)].into_iter()), Duration::from_micros(40));
        assert_eq!(longest_gap([at(5)].into_iter()), Duration::ZERO);
    }

    #[test]
    fn action_runs_once_and_is_timed() {
        let mut done = 0;
        let started = Instant::now();
        let (own, pauses) = beside(|| {
            done += 1;
            std::thread::current().id()
        });
        assert_eq!((done, own), (1, std::thread::current().id()));
        let spent = started.elapsed();
        assert!(pauses.is_none_or(|pauses| pauses.took <= spent
            && pauses.before <= spent
            && pauses.meanwhile <= spent));
    }
}
