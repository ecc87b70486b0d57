// SPDX-License-Identifier: Apache-2.0
//! The limits above which something is a finding. Single stalls of the shortest kept length occur on every
//! machine. Limits are multiples of that length, so a user who asks for shorter stalls also gets reports of
//! smaller problems.

use super::evidence::{Evidence, ThreadTotals};
use wallprof_model::ThreadKey;
use wallprof_model::profile::InterruptRow;

/// A callback that keeps its event loop waiting for less than this is not reported. Node's watchers warn from
/// some 20 ms on, asyncio from 100 ms on.
pub(super) const SHORTEST_BLOCK_NS: u64 = 10_000_000;

/// A thread that polled less often than this at one place has no loop there.
pub(super) const LEAST_LOOP_WAITS: u64 = 8;

/// The part of a thread's time that many short waits take,
const FREQUENT_PART: u64 = 20;
/// and their sum, in multiples of the shortest stall.
const FREQUENT_UNITS: u64 = 200;

/// How often threads were delayed, and for how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Delays {
    pub count: u64,
    pub total_ns: u64,
    pub max_ns: u64,
}

impl Delays {
    pub fn of(lengths_ns: impl IntoIterator<Item = u64>) -> Self {
        let mut delays = Delays::default();
        for ns in lengths_ns {
            delays.count += 1;
            delays.total_ns = delays.total_ns.saturating_add(ns);
            delays.max_ns = delays.max_ns.max(ns);
        }
        delays
    }

    pub fn of_interrupts(rows: &[&InterruptRow]) -> Self {
        rows.iter().fold(Delays::default(), |delays, row| Delays {
            count: delays.count.saturating_add(row.count),
            total_ns: delays.total_ns.saturating_add(row.total_ns),
            max_ns: delays.max_ns.max(row.max_ns),
        })
    }

    /// These and others.
    pub fn with(self, others: Delays) -> Self {
        Delays {
            count: self.count.saturating_add(others.count),
            total_ns: self.total_ns.saturating_add(others.total_ns),
            max_ns: self.max_ns.max(others.max_ns),
        }
    }

    /// Of what waits at the same time: no more than all of the threads' time.
    pub fn within(self, threads: &[ThreadKey], evidence: &Evidence) -> Self {
        let most_ns = wall_ns(evidence, threads).max(self.max_ns);
        Delays { total_ns: self.total_ns.min(most_ns), ..self }
    }

    /// The limit for causes that should be very rare: one long wait, or some short ones that add up.
    pub fn is_unusual(&self, evidence: &Evidence) -> bool {
        let unit = evidence.unit_ns();
        self.is_long(evidence) || (self.count >= 5 && self.total_ns >= unit.saturating_mul(20))
    }

    /// The limit for causes that every program meets: a hundredth of the threads' time with one long wait in
    /// it, or one wait that is very long.
    pub fn is_heavy(&self, evidence: &Evidence, threads: &[ThreadKey]) -> bool {
        let unit = evidence.unit_ns();
        (self.is_hundredth(evidence, threads) && self.is_long(evidence))
            || self.max_ns >= unit.saturating_mul(200)
    }

    /// The limit for waits for one thing at one place, however short each is: a twentieth of the threads' time.
    pub fn is_frequent(&self, evidence: &Evidence, threads: &[ThreadKey]) -> bool {
        self.total_ns >= frequent_ns(evidence) && is_frequent_part(self.total_ns, wall_ns(evidence, threads))
    }

    /// Whether there was one long wait.
    pub fn is_long(&self, evidence: &Evidence) -> bool {
        self.max_ns >= evidence.unit_ns().saturating_mul(10)
    }

    /// Whether it is a hundredth of the threads' time or more.
    pub fn is_hundredth(&self, evidence: &Evidence, threads: &[ThreadKey]) -> bool {
        is_share(self.total_ns, 100, wall_ns(evidence, threads))
    }

    /// Whether it is less than a hundredth of what made the threads late: something else is their problem.
    pub fn is_negligible(&self, evidence: &Evidence, threads: &[ThreadKey]) -> bool {
        let late = sum(evidence, threads, |thread| thread.late_ns);
        !is_share(self.total_ns, 100, late)
    }
}

/// Whether waits of `ns` in all are enough of a thread's time, however short each is.
pub(super) fn is_frequent_part(ns: u64, wall_ns: u64) -> bool {
    is_share(ns, FREQUENT_PART, wall_ns)
}

/// The least sum of such waits.
pub(super) fn frequent_ns(evidence: &Evidence) -> u64 {
    evidence.unit_ns().saturating_mul(FREQUENT_UNITS)
}

/// Whether `part` is at least one `nth` of `whole`.
pub(super) fn is_share(part_ns: u64, nth: u64, whole_ns: u64) -> bool {
    u128::from(part_ns) * u128::from(nth) >= u128::from(whole_ns)
}

/// Whether `part` is nearly all of `whole`.
pub(super) fn is_four_fifths(part_ns: u64, whole_ns: u64) -> bool {
    whole_ns > 0 && u128::from(part_ns) * 5 >= u128::from(whole_ns) * 4
}

/// How many of the first `most`, the heaviest first, have at least one `nth` of the whole. The first one counts however
/// little it has.
pub(super) fn worth_naming<K>(ranked: &[(K, u64)], most: usize, nth: u64, whole_ns: u64) -> usize {
    let others = ranked.iter().take(most).skip(1);
    ranked.len().min(1) + others.take_while(|(_, ns)| is_share(*ns, nth, whole_ns)).count()
}

pub(super) fn wall_ns(evidence: &Evidence, threads: &[ThreadKey]) -> u64 {
    sum(evidence, threads, |thread| thread.wall_ns)
}

fn sum(evidence: &Evidence, threads: &[ThreadKey], of: impl Fn(&ThreadTotals) -> u64) -> u64 {
    let known = threads.iter().filter_map(|&key| evidence.thread(key));
    known.fold(0, |sum, thread| sum.saturating_add(of(thread)))
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Fixture, WALL_NS};
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn one_long_wait_is_unusual_and_so_are_some_short_ones() {
        let evidence = Fixture::new().evidence();
        let unusual = |lengths: &[u64]| Delays::of(lengths.iter().copied()).is_unusual(&evidence);
        assert!(unusual(&[MS]) && unusual(&[400_000; 5]));
        assert!(!unusual(&[MS - 1]) && !unusual(&[399_999; 5]) && !unusual(&[900_000; 4]));
    }

    #[test]
    fn heavy_is_relative_to_the_threads_time_or_very_long() {
        let evidence = Fixture::new().evidence();
        let one = [ThreadKey(1)];
        let heavy = |total_ns, max_ns| Delays { count: 9, total_ns, max_ns }.is_heavy(&evidence, &one);
        assert!(heavy(WALL_NS / 100, MS) && heavy(20 * MS, 20 * MS));
        assert!(!heavy(WALL_NS / 100 - 1, MS) && !heavy(WALL_NS / 100, MS - 1));
        let two = [ThreadKey(1), ThreadKey(2)];
        assert!(!Delays { count: 9, total_ns: WALL_NS / 100, max_ns: MS }.is_heavy(&evidence, &two));
    }

    #[test]
    fn many_waits_below_a_millisecond_are_frequent_from_a_twentieth_of_the_time_on() {
        let evidence = Fixture::new().evidence();
        let frequent = |total_ns| {
            let delays = Delays { count: 9, total_ns, max_ns: MS / 2 };
            assert!(!delays.is_heavy(&evidence, &[ThreadKey(1)]));
            delays.is_frequent(&evidence, &[ThreadKey(1)])
        };
        assert!(frequent(WALL_NS / 20) && !frequent(WALL_NS / 20 - 1));
    }

    #[test]
    fn shorter_stalls_do_not_change_the_least_unit() {
        let with = |min_stall_ns| {
            let mut fixture = Fixture::new();
            fixture.info.min_stall_ns = min_stall_ns;
            fixture.evidence()
        };
        assert_eq!(with(10_000).unit_ns(), 100_000);
        assert!(!Delays::of([9 * MS]).is_unusual(&with(1_000_000)));
    }
}
