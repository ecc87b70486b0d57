// SPDX-License-Identifier: Apache-2.0
//! The numbers of a call path or a function.

use wallprof_model::Histogram;
use wallprof_model::histogram::{Cell, bucket_from_ns};

/// Times are in ticks if sums must be exact, in ns if they are latencies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// Time in the path itself, without its callees.
    pub self_ticks: u64,
    /// Calls with a recorded start and end.
    pub calls: u64,
    /// Calls whose end was not recorded: open at a gap, or at the end of the trace.
    pub incomplete: u64,
    /// Entered before the trace, or during a gap. Their time counts, their call does not.
    pub entered_before: u64,
    /// Of `calls`, those that ended by an exception, a `longjmp` or a return that skipped them.
    pub unwound: u64,
    /// The time of the complete calls.
    pub call_ticks: u64,
    /// The recorded time of the others.
    pub partial_ticks: u64,
    /// The shortest complete call; `u64::MAX` without one.
    pub min_ticks: u64,
    /// The longest complete call; 0 without one.
    pub max_ticks: u64,
    latency: Latency,
}

impl Default for Numbers {
    fn default() -> Numbers {
        Numbers {
            self_ticks: 0,
            calls: 0,
            incomplete: 0,
            entered_before: 0,
            unwound: 0,
            call_ticks: 0,
            partial_ticks: 0,
            min_ticks: u64::MAX,
            max_ticks: 0,
            latency: Latency::default(),
        }
    }
}

impl Numbers {
    /// Adds a complete call. `may_grow`: whether one more distinct latency is allowed.
    #[inline]
    pub(super) fn complete(&mut self, ticks: u64, ns: u64, may_grow: impl FnMut() -> bool) {
        self.calls += 1;
        self.call_ticks = self.call_ticks.saturating_add(ticks);
        self.min_ticks = self.min_ticks.min(ticks);
        self.max_ticks = self.max_ticks.max(ticks);
        self.latency.add(bucket_from_ns(ns), Cell { count: 1, total_ns: ns, max_ns: ns }, may_grow);
    }

    #[inline]
    pub(super) fn spend(&mut self, ticks: u64) {
        self.self_ticks = self.self_ticks.saturating_add(ticks);
    }

    /// Adds the numbers of `other`.
    pub fn merge(&mut self, other: &Numbers) {
        self.merge_within(other, || true);
    }

    /// As [`Numbers::merge`]. `may_grow`: whether one more distinct latency is allowed.
    pub(super) fn merge_within(&mut self, other: &Numbers, may_grow: impl FnMut() -> bool) {
        self.self_ticks = self.self_ticks.saturating_add(other.self_ticks);
        self.calls += other.calls;
        self.incomplete += other.incomplete;
        self.entered_before += other.entered_before;
        self.unwound += other.unwound;
        self.call_ticks = self.call_ticks.saturating_add(other.call_ticks);
        self.partial_ticks = self.partial_ticks.saturating_add(other.partial_ticks);
        self.min_ticks = self.min_ticks.min(other.min_ticks);
        self.max_ticks = self.max_ticks.max(other.max_ticks);
        self.latency.merge(&other.latency, may_grow);
    }

    /// The time of all calls, complete or not.
    pub fn total_ticks(&self) -> u64 {
        self.call_ticks.saturating_add(self.partial_ticks)
    }

    /// Latencies of the complete calls.
    pub fn histogram(&self) -> Histogram {
        let mut histogram = Histogram::default();
        self.latency.cells().for_each(|(bucket, cell)| histogram.add_cell(bucket, cell));
        histogram
    }
}

/// Buckets of a histogram whose edges are within a factor of two.
const BUCKETS_AN_OCTAVE: u16 = 16;

/// Latencies by bucket. Beyond the limit, those of an octave share one. Most paths have few calls in one
/// bucket, which needs no memory of its own.
#[derive(Clone, Debug, Default)]
enum Latency {
    #[default]
    None,
    One(u16, Cell),
    Many(Box<Cells>),
}

/// Buckets in order. The next call is mostly in the last one's.
#[derive(Clone, Debug)]
struct Cells {
    cells: Vec<(u16, Cell)>,
    last: usize,
}

impl PartialEq for Latency {
    fn eq(&self, other: &Latency) -> bool {
        self.cells().eq(other.cells())
    }
}

impl Eq for Latency {}

impl Latency {
    #[inline]
    fn add(&mut self, bucket: u16, cell: Cell, may_grow: impl FnMut() -> bool) {
        match self {
            Latency::Many(cells) => cells.add(bucket, cell, may_grow),
            Latency::One(only, known) if *only == bucket => known.add(cell),
            _ => self.grow(bucket, cell, may_grow),
        }
    }

    fn grow(&mut self, bucket: u16, cell: Cell, may_grow: impl FnMut() -> bool) {
        *self = match std::mem::take(self) {
            Latency::One(only, known) => {
                let mut cells = Box::new(Cells { cells: vec![(only, known)], last: 0 });
                cells.add(bucket, cell, may_grow);
                match &cells.cells[..] {
                    &[(only, known)] => Latency::One(only, known),
                    _ => Latency::Many(cells),
                }
            }
            _ => Latency::One(bucket, cell),
        };
    }

    fn merge(&mut self, other: &Latency, mut may_grow: impl FnMut() -> bool) {
        other.cells().for_each(|(bucket, cell)| self.add(bucket, cell, &mut may_grow));
    }

    fn cells(&self) -> impl Iterator<Item = (u16, Cell)> + '_ {
        let (one, many) = match self {
            Latency::None => (None, &[][..]),
            Latency::One(bucket, cell) => (Some((*bucket, *cell)), &[][..]),
            Latency::Many(cells) => (None, &cells.cells[..]),
        };
        one.into_iter().chain(many.iter().copied())
    }
}

impl Cells {
    #[inline]
    fn add(&mut self, bucket: u16, cell: Cell, may_grow: impl FnMut() -> bool) {
        match self.near(bucket) {
            Some(near) => {
                self.last = near;
                self.cells[near].1.add(cell);
            }
            None => self.add_far(bucket, cell, may_grow),
        }
    }

    /// The index of `bucket`, if it is the last one's or next to it.
    #[inline]
    fn near(&self, bucket: u16) -> Option<usize> {
        let is = |index: usize| self.cells.get(index).is_some_and(|cell| cell.0 == bucket);
        [self.last, self.last + 1, self.last.wrapping_sub(1)].into_iter().find(|&index| is(index))
    }

    fn add_far(&mut self, bucket: u16, cell: Cell, mut may_grow: impl FnMut() -> bool) {
        let found = self.cells.binary_search_by_key(&bucket, |cell| cell.0);
        let known = match found {
            Ok(index) => Some(index),
            Err(index) => (!may_grow()).then(|| self.of_octave(bucket, index)).flatten(),
        };
        self.last = known.or(found.err()).unwrap_or(0);
        match known {
            Some(index) => self.cells[index].1.add(cell),
            None => self.insert(self.last, bucket, cell),
        }
    }

    /// The neighbour of the place `index`, where `bucket` would be inserted, if it is in the same octave.
    fn of_octave(&self, bucket: u16, index: usize) -> Option<usize> {
        let is_near = |&near: &usize| {
            self.cells.get(near).is_some_and(|cell| cell.0 / BUCKETS_AN_OCTAVE == bucket / BUCKETS_AN_OCTAVE)
        };
        [index, index.wrapping_sub(1)].into_iter().find(is_near)
    }

    /// Most paths have few latencies, so memory grows in small steps.
    fn insert(&mut self, index: usize, bucket: u16, cell: Cell) {
        if self.cells.len() == self.cells.capacity() {
            self.cells.reserve_exact(2 + self.cells.len() / 4);
        }
        self.cells.insert(index, (bucket, cell));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_numbers_are_those_of_all_calls() {
        let mut all = Numbers::default();
        let mut halves = [Numbers::default(), Numbers::default()];
        for call in 0..1_000u64 {
            let ticks = call * call % 977;
            all.complete(ticks, ticks * 2, || true);
            halves[(call % 3 == 0) as usize].complete(ticks, ticks * 2, || true);
        }
        let [mut first, second] = halves;
        first.merge(&second);
        assert_eq!(first, all);
        assert_eq!((all.min_ticks, all.calls), (0, 1_000));
        assert_eq!(all.histogram().count(), 1_000);
        assert_eq!(all.histogram().total_ns(), 2 * all.call_ticks);
    }

    #[test]
    fn beyond_the_limit_latencies_of_an_octave_share_a_bucket() {
        let mut left = [true, true].into_iter();
        let mut may_grow = || left.next().unwrap_or(false);
        let mut numbers = Numbers::default();
        for ns in [1_000, 1_020, 1_500, 1_900, 2_100, 1_030, 1_950, 70] {
            numbers.complete(ns, ns, &mut may_grow);
        }
        let histogram = numbers.histogram();
        assert_eq!((histogram.count(), histogram.total_ns()), (8, numbers.call_ticks));
        let cells: Vec<_> = numbers.latency.cells().map(|(_, cell)| (cell.count, cell.max_ns)).collect();
        assert_eq!(cells, [(1, 70), (2, 1_020), (2, 1_500), (2, 1_950), (1, 2_100)]);
    }

    #[test]
    fn merging_with_nothing_changes_nothing() {
        let mut some = Numbers::default();
        some.complete(5, 2, || true);
        let mut merged = Numbers::default();
        merged.merge(&some);
        merged.merge(&Numbers::default());
        assert_eq!(merged, some);
    }
}
