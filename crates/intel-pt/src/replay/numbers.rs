//! What is counted for a call path or a function.

use wallprof_model::Histogram;
use wallprof_model::histogram::{Cell, bucket_from_ns};

/// Times are in ticks where sums must be exact, in ns where they are latencies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// Time in the path itself, not in what it called.
    pub self_ticks: u64,
    /// Calls seen from begin to end.
    pub calls: u64,
    /// Calls whose end was not seen: open at a gap, or when the trace ended.
    pub incomplete: u64,
    /// Entered before the trace, or during a gap: their time counts, their call does not.
    pub entered_before: u64,
    /// Of `calls`, those that ended by an exception, a `longjmp` or a return that skipped them.
    pub unwound: u64,
    /// From begin to end of the complete calls.
    pub call_ticks: u64,
    /// What was seen of the others.
    pub partial_ticks: u64,
    /// The shortest and the longest complete call; `u64::MAX` and 0 without one.
    pub min_ticks: u64,
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
    /// A call seen from begin to end.
    #[inline]
    pub(super) fn complete(&mut self, ticks: u64, ns: u64) {
        self.calls += 1;
        self.call_ticks = self.call_ticks.saturating_add(ticks);
        self.min_ticks = self.min_ticks.min(ticks);
        self.max_ticks = self.max_ticks.max(ticks);
        self.latency.record(ns);
    }

    #[inline]
    pub(super) fn spend(&mut self, ticks: u64) {
        self.self_ticks = self.self_ticks.saturating_add(ticks);
    }

    pub fn merge(&mut self, other: &Numbers) {
        self.self_ticks = self.self_ticks.saturating_add(other.self_ticks);
        self.calls += other.calls;
        self.incomplete += other.incomplete;
        self.entered_before += other.entered_before;
        self.unwound += other.unwound;
        self.call_ticks = self.call_ticks.saturating_add(other.call_ticks);
        self.partial_ticks = self.partial_ticks.saturating_add(other.partial_ticks);
        self.min_ticks = self.min_ticks.min(other.min_ticks);
        self.max_ticks = self.max_ticks.max(other.max_ticks);
        self.latency.merge(&other.latency);
    }

    /// All time from begin to end, whether the begin and the end were seen or not.
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

/// Latencies by bucket. Most paths have few calls, which fall into one: that needs no memory of its own.
#[derive(Clone, Debug, Default)]
enum Latency {
    #[default]
    None,
    One(u16, Cell),
    Many(Box<Cells>),
}

/// Buckets in order; the next call mostly falls into the last one's.
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
    fn record(&mut self, ns: u64) {
        self.add(bucket_from_ns(ns), Cell { count: 1, total_ns: ns, max_ns: ns });
    }

    #[inline]
    fn add(&mut self, bucket: u16, cell: Cell) {
        match self {
            Latency::Many(cells) => cells.add(bucket, cell),
            Latency::One(only, known) if *only == bucket => known.add(cell),
            _ => self.grow(bucket, cell),
        }
    }

    fn grow(&mut self, bucket: u16, cell: Cell) {
        *self = match std::mem::take(self) {
            Latency::One(only, known) => {
                let mut cells = Box::new(Cells { cells: vec![(only, known)], last: 0 });
                cells.add(bucket, cell);
                Latency::Many(cells)
            }
            _ => Latency::One(bucket, cell),
        };
    }

    fn merge(&mut self, other: &Latency) {
        match (&*self, other) {
            (Latency::None, _) => self.clone_from(other),
            _ => other.cells().for_each(|(bucket, cell)| self.add(bucket, cell)),
        }
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
    fn add(&mut self, bucket: u16, cell: Cell) {
        match self.near(bucket) {
            Some(near) => {
                self.last = near;
                self.cells[near].1.add(cell);
            }
            None => self.add_far(bucket, cell),
        }
    }

    /// The index of `bucket`, if it is the last one's or next to it.
    #[inline]
    fn near(&self, bucket: u16) -> Option<usize> {
        let is = |index: usize| self.cells.get(index).is_some_and(|cell| cell.0 == bucket);
        [self.last, self.last + 1, self.last.wrapping_sub(1)].into_iter().find(|&index| is(index))
    }

    fn add_far(&mut self, bucket: u16, cell: Cell) {
        self.last = match self.cells.binary_search_by_key(&bucket, |cell| cell.0) {
            Ok(index) => {
                self.cells[index].1.add(cell);
                index
            }
            Err(index) => {
                self.cells.insert(index, (bucket, cell));
                index
            }
        };
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
            all.complete(ticks, ticks * 2);
            halves[(call % 3 == 0) as usize].complete(ticks, ticks * 2);
        }
        let [mut first, second] = halves;
        first.merge(&second);
        assert_eq!(first, all);
        assert_eq!((all.min_ticks, all.calls), (0, 1_000));
        assert_eq!(all.histogram().count(), 1_000);
        assert_eq!(all.histogram().total_ns(), 2 * all.call_ticks);
    }

    #[test]
    fn merging_with_nothing_changes_nothing() {
        let mut some = Numbers::default();
        some.complete(5, 2);
        let mut merged = Numbers::default();
        merged.merge(&some);
        merged.merge(&Numbers::default());
        assert_eq!(merged, some);
    }
}
