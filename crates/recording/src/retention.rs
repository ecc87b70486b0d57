// SPDX-License-Identifier: Apache-2.0
//! Retention of a bounded recording: its newest commits, as many as its limits of time and size allow.
//!
//! This module is pure. Each commit ends a generation of rows. Whole generations are deleted, the oldest
//! first, a few with a commit. The sums of a second are deleted with the last generation that wrote to them,
//! and a stall with the generation that wrote it last.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use wallprof_model::MonoNs;

/// The limits of a bounded recording. Both apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Older data are deleted.
    pub keep_ns: u64,
    /// The size limit of the file, bytes.
    pub keep_bytes: u64,
}

/// A bounded recording deletes after this many commits, each time in a transaction of its own.
pub(crate) const RETAIN_EVERY: u32 = 2;

/// Generations that are deleted at once, so that no commit takes long. They are more than the commits since
/// the last deletion. Commits are usually about a second apart. Where they are further apart, more old
/// generations are deleted at once, up to `MOST_TIMES` as many.
const AT_ONCE: usize = 3;
const MOST_TIMES: u64 = 10;
const USUALLY_APART_NS: u64 = 1_000_000_000;

/// The last commits are kept, whatever their size.
const ALWAYS_KEPT: usize = 3;

/// Counters are ordered by name, so that finding old ones reads all of them. It is therefore done after this
/// many commits, or after this much time.
const COUNTERS_EVERY: u32 = 16;
const COUNTERS_EVERY_NS: u64 = 16_000_000_000;

/// A stall that has not ended.
const OPEN: u32 = u32::MAX;

struct Ended {
    number: u32,
    end: MonoNs,
    /// Stalls of later generations have this id or a higher one, except the `moved` ones.
    next_stall: u64,
}

/// The generations in the file, and the last rows of each.
pub(crate) struct Generations {
    retention: Retention,
    ended: VecDeque<Ended>,
    current: u32,
    /// The newest deleted generation. 0: none yet.
    expired: u32,
    /// The same for counters.
    counters_expired: u32,
    /// All counters before this are deleted.
    counters_from: MonoNs,
    seconds: BTreeMap<u32, u32>,
    /// Stalls with a lower id are deleted, except those in `moved`.
    first_stall: u64,
    /// Stalls that were written later than their id implies, by their generation.
    moved: BTreeMap<u64, u32>,
}

/// Rows to delete.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Outdated {
    generation: u32,
    next_stall: u64,
    /// The start of the recording without them.
    pub start: MonoNs,
    pub seconds: Vec<u32>,
    pub stalls: Vec<Range<u64>>,
    /// Whether counters before `start` are deleted, too.
    pub counters: bool,
}

impl Generations {
    pub fn new(retention: Retention) -> Self {
        Generations {
            retention,
            ended: VecDeque::new(),
            current: 1,
            expired: 0,
            counters_expired: 0,
            counters_from: MonoNs(0),
            seconds: BTreeMap::new(),
            first_stall: 1,
            moved: BTreeMap::new(),
        }
    }

    /// Called after sums of this second were written.
    pub fn wrote_second(&mut self, second: u32) {
        self.seconds.insert(second, self.current);
    }

    /// Called after a stall was written that may be older than this generation. An open stall stays until it
    /// is closed.
    pub fn wrote_stall(&mut self, id: u64, open: bool) {
        self.moved.insert(id, if open { OPEN } else { self.current });
    }

    /// Called for an open stall of which no further event will come.
    pub fn close_stall(&mut self, id: u64) {
        if let Some(generation) = self.moved.get_mut(&id) {
            *generation = self.current;
        }
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.ended.len() + self.seconds.len() + self.moved.len()
    }

    /// Called when everything up to `end` is committed. Returns the number of the generation that starts.
    pub fn next(&mut self, end: MonoNs, next_stall: u64) -> u32 {
        self.ended.push_back(Ended { number: self.current, end, next_stall });
        self.current += 1;
        self.current
    }

    /// The rows that are too old at `now`, or too many for a file with `used_bytes` in use.
    pub fn outdated(&self, now: MonoNs, used_bytes: u64) -> Option<Outdated> {
        let cutoff = now.0.saturating_sub(self.retention.keep_ns);
        let too_large = used_bytes > self.retention.keep_bytes;
        let removable = self.ended.len().saturating_sub(ALWAYS_KEPT).min(self.at_once());
        let goes = |ended: &&Ended| too_large || ended.end.0 <= cutoff;
        let last = self.ended.iter().take(removable).take_while(goes).last()?;
        let is_gone = |generation: u32| generation <= last.number;
        Some(Outdated {
            generation: last.number,
            next_stall: last.next_stall,
            start: last.end,
            seconds: self.seconds.iter().filter(|(_, of)| is_gone(**of)).map(|(second, _)| *second).collect(),
            stalls: self.stalls_until(last.number, last.next_stall),
            counters: last.number >= self.counters_expired + COUNTERS_EVERY
                || last.end.0.saturating_sub(self.counters_from.0) >= COUNTERS_EVERY_NS,
        })
    }

    /// The number of generations that may be deleted at once, by the time since the last deletion.
    fn at_once(&self) -> usize {
        let commits = RETAIN_EVERY as usize;
        let before = self.ended.len().checked_sub(1 + commits).and_then(|at| self.ended.get(at));
        let (Some(before), Some(last)) = (before, self.ended.back()) else { return AT_ONCE };
        let usual_ns = u64::from(RETAIN_EVERY) * USUALLY_APART_NS;
        AT_ONCE * (last.end.0.saturating_sub(before.end.0) / usual_ns).clamp(1, MOST_TIMES) as usize
    }

    /// Called after the deletion.
    pub fn remove(&mut self, outdated: &Outdated) {
        let gone = outdated.generation;
        self.expired = gone;
        if outdated.counters {
            self.counters_expired = gone;
            self.counters_from = outdated.start;
        }
        self.first_stall = self.first_stall.max(outdated.next_stall);
        while self.ended.front().is_some_and(|ended| ended.number <= gone) {
            self.ended.pop_front();
        }
        self.seconds.retain(|_, generation| *generation > gone);
        self.moved.retain(|_, generation| *generation > gone);
    }

    /// Rows that this generation or an earlier one used last are in no row any more.
    pub fn unused_since(&self) -> u32 {
        self.expired.min(self.counters_expired)
    }

    /// Stalls before `next` that were last written by generation `gone` or an earlier one, as ranges of ids.
    fn stalls_until(&self, gone: u32, next: u64) -> Vec<Range<u64>> {
        let mut ranges = Vec::new();
        let mut from = self.first_stall;
        for (&id, &generation) in self.moved.range(..next.max(self.first_stall)) {
            if id < self.first_stall {
                if generation <= gone {
                    ranges.push(id..id + 1);
                }
            } else if generation > gone {
                ranges.push(from..id);
                from = id + 1;
            }
        }
        ranges.push(from..next);
        ranges.retain(|range| !range.is_empty());
        ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generations(keep_ns: u64) -> Generations {
        Generations::new(Retention { keep_ns, keep_bytes: 1_000 })
    }

    /// Ten generations that end at 1, 2 … 10, each with one second and two stalls.
    fn ten(keep_ns: u64) -> Generations {
        let mut generations = generations(keep_ns);
        for number in 1..=10 {
            generations.wrote_second(100 + number);
            generations.next(MonoNs(u64::from(number)), 1 + 2 * u64::from(number));
        }
        generations
    }

    #[test]
    fn old_generations_are_deleted_a_few_at_a_time() {
        let mut generations = ten(5);
        assert_eq!(generations.outdated(MonoNs(5), 0), None);
        let first = generations.outdated(MonoNs(10), 0).unwrap();
        assert_eq!((first.start, first.seconds.as_slice()), (MonoNs(3), &[101, 102, 103][..]));
        assert_eq!(first.stalls, vec![1..7; 1]);
        generations.remove(&first);
        let second = generations.outdated(MonoNs(10), 0).unwrap();
        assert_eq!((second.start, second.stalls), (MonoNs(5), vec![7..11; 1]));
        let second = generations.outdated(MonoNs(10), 0).unwrap();
        generations.remove(&second);
        assert_eq!(generations.outdated(MonoNs(10), 0), None);
    }

    #[test]
    fn old_seconds_are_deleted_in_time_when_commits_are_rare() {
        const SECOND: u64 = 1_000_000_000;
        let keep = 60 * SECOND;
        let mut generations = generations(keep);
        let busy = (1..=60).map(|second| second * SECOND);
        let rare = (1..=30).map(|turn| (60 + 10 * turn) * SECOND);
        for (number, end) in busy.chain(rare).enumerate() {
            generations.next(MonoNs(end), 1);
            if (number as u32).is_multiple_of(RETAIN_EVERY)
                && let Some(outdated) = generations.outdated(MonoNs(end), 0)
            {
                assert!(outdated.generation - generations.expired <= (AT_ONCE as u32) * MOST_TIMES as u32);
                generations.remove(&outdated);
            }
            let oldest = generations.ended.front().expect("the last are kept").end.0;
            assert!(end.saturating_sub(oldest) <= keep + 30 * SECOND, "{oldest} is still there at {end}");
        }
    }

    #[test]
    fn too_large_file_loses_its_oldest_but_never_its_newest() {
        let mut generations = ten(1_000);
        assert_eq!(generations.outdated(MonoNs(10), 1_000), None);
        let mut starts = Vec::new();
        while let Some(outdated) = generations.outdated(MonoNs(10), 1_001) {
            starts.push(outdated.start.0);
            generations.remove(&outdated);
        }
        assert_eq!(starts, [3, 6, 7]);
    }

    #[test]
    fn second_is_deleted_with_the_last_generation_that_wrote_it() {
        let mut generations = ten(0);
        generations.wrote_second(101);
        generations.next(MonoNs(11), 23);
        assert_eq!(generations.outdated(MonoNs(20), 0).unwrap().seconds, [102, 103]);
    }

    #[test]
    fn open_stalls_are_deleted_after_their_neighbours() {
        let mut generations = ten(0);
        generations.wrote_stall(2, true);
        generations.wrote_stall(5, false);
        let first = generations.outdated(MonoNs(20), 0).unwrap();
        assert_eq!(first.stalls, [1..2, 3..5, 6..7]);
        generations.remove(&first);
        generations.close_stall(2);
        generations.next(MonoNs(11), 23);
        while let Some(outdated) = generations.outdated(MonoNs(20), 0) {
            assert!(!outdated.stalls.contains(&(2..3)));
            generations.remove(&outdated);
        }
        for end in 12..15 {
            generations.next(MonoNs(end), 23);
        }
        let last = generations.outdated(MonoNs(20), 0).unwrap();
        assert!(last.stalls.contains(&(2..3)) && last.stalls.contains(&(5..6)), "{:?}", last.stalls);
        generations.remove(&last);
        assert!(generations.moved.is_empty());
    }

    #[test]
    fn counters_do_not_wait_for_slow_commits() {
        let mut generations = generations(0);
        for number in 1..10 {
            generations.next(MonoNs(number * COUNTERS_EVERY_NS), 1);
            if let Some(outdated) = generations.outdated(MonoNs(u64::MAX), 0) {
                assert!(outdated.counters);
                generations.remove(&outdated);
            }
        }
        assert_eq!((generations.expired, generations.unused_since()), (6, 6));
    }

    #[test]
    fn names_outlive_the_counters_that_use_them() {
        let mut generations = generations(0);
        for end in 0..100 {
            generations.next(MonoNs(end), 1);
            if let Some(outdated) = generations.outdated(MonoNs(1_000), 0) {
                generations.remove(&outdated);
            }
            assert!(generations.unused_since() <= generations.expired);
            assert!(generations.expired - generations.unused_since() < COUNTERS_EVERY);
        }
        assert_eq!(generations.expired, 97);
    }
}
