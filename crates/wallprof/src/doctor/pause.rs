//! How long something on this machine keeps a running thread from running: what attaching costs others.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a machine is looked at by itself.
const BEFORE: Duration = Duration::from_millis(200);

/// What became of a thread that ran all the time while something was done.
pub struct Pauses {
    /// The longest time it did not run, before anything was done.
    pub before: Duration,
    /// And meanwhile.
    pub meanwhile: Duration,
    /// How long it took to do it.
    pub took: Duration,
}

/// Does something beside a thread that runs all the time. `None` for its pauses on a machine with one CPU, where each would
/// wait for the other.
pub fn beside<T>(work: impl FnOnce() -> T) -> (T, Option<Pauses>) {
    if std::thread::available_parallelism().map_or(1, usize::from) == 1 {
        return (work(), None);
    }
    let before = longest_gap(instants().take_while(until(Instant::now() + BEFORE)));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let running = scope.spawn(|| longest_gap(instants().take_while(|_| !done.load(Ordering::Relaxed))));
        let begun = Instant::now();
        let outcome = work();
        let took = begun.elapsed();
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
    fn the_longest_gap_counts() {
        let start = Instant::now();
        let at = |us| start + Duration::from_micros(us);
        assert_eq!(longest_gap([at(5), at(6), at(46), at(50)].into_iter()), Duration::from_micros(40));
        assert_eq!(longest_gap([at(5)].into_iter()), Duration::ZERO);
    }

    #[test]
    fn the_work_is_done_once_and_its_time_is_told() {
        let mut done = 0;
        let begun = Instant::now();
        let (own, pauses) = beside(|| {
            done += 1;
            std::thread::current().id()
        });
        assert_eq!((done, own), (1, std::thread::current().id()));
        let spent = begun.elapsed();
        assert!(
            pauses.is_none_or(|told| told.took <= spent && told.before <= spent && told.meanwhile <= spent)
        );
    }
}
