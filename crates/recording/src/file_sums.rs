// SPDX-License-Identifier: Apache-2.0
//! The sums of living threads as the file has them: histogram cells that grow with each commit.
//!
//! To add to a row, SQLite searches for it, reads it, computes the sums and writes it. Where the sum is known,
//! the row is replaced: one search and one write. The sums of a thread are known from its definition to its
//! end, within a limit. The rows of all other threads are added to in the file.

use std::collections::HashMap;

use wallprof_model::SpanSource;
use wallprof_model::histogram::Cell;

use crate::pending::{Pending, SpanKey, SpanSum};
use crate::write::cell_numbers;

/// Sums that are kept, at some 40 bytes each for latencies and 250 for spans.
const MOST_LATENCIES: usize = 65_536;
const MOST_SPANS: usize = 8_192;

/// By the row of the thread.
pub(crate) struct FileSums {
    /// Count, total and maximum.
    latencies: Sums<(u8, u16), [i64; 3]>,
    spans: Sums<(SpanSource, u32, u16), SpanSum>,
}

/// All sums of some threads.
struct Sums<K, V> {
    threads: HashMap<u32, HashMap<K, V>>,
    count: usize,
    most: usize,
}

impl FileSums {
    pub fn new() -> Self {
        FileSums { latencies: Sums::new(MOST_LATENCIES), spans: Sums::new(MOST_SPANS) }
    }

    /// A thread was defined that has no sums in the file.
    pub fn start(&mut self, thread: u32) {
        self.latencies.start(thread);
        self.spans.start(thread);
    }

    /// A thread has ended. Few of its sums still come.
    pub fn end(&mut self, thread: u32) {
        self.latencies.forget(thread);
        self.spans.forget(thread);
    }

    /// The sum in the file with `more`. `None`: the file may have a sum that is not known.
    pub fn latency_with(&self, (thread, metric, bucket): (u32, u8, u16), more: &Cell) -> Option<[i64; 3]> {
        let mut sum = self.latencies.get(thread, &(metric, bucket))?;
        add_numbers(&mut sum, more);
        Some(sum)
    }

    pub fn span_with(&self, (thread, source, kind, bucket): SpanKey, more: &SpanSum) -> Option<SpanSum> {
        let mut sum = self.spans.get(thread, &(source, kind, bucket))?;
        sum.add(more);
        Some(sum)
    }

    /// These were written.
    pub fn add(&mut self, written: &Pending) {
        for (&(thread, metric, bucket), more) in &written.latency {
            self.latencies.add(thread, (metric, bucket), |sum| add_numbers(sum, more));
        }
        for (&(thread, source, kind, bucket), more) in &written.span_cells {
            self.spans.add(thread, (source, kind, bucket), |sum| sum.add(more));
        }
    }
}

fn add_numbers(sum: &mut [i64; 3], more: &Cell) {
    let [count, total, max] = cell_numbers(more);
    *sum = [sum[0].saturating_add(count), sum[1].saturating_add(total), sum[2].max(max)];
}

impl<K: Eq + std::hash::Hash, V: Copy + Default> Sums<K, V> {
    fn new(most: usize) -> Self {
        Sums { threads: HashMap::new(), count: 0, most }
    }

    fn start(&mut self, thread: u32) {
        if self.count < self.most {
            self.threads.entry(thread).or_default();
        }
    }

    /// `None`: not known.
    fn get(&self, thread: u32, key: &K) -> Option<V> {
        Some(self.threads.get(&thread)?.get(key).copied().unwrap_or_default())
    }

    fn add(&mut self, thread: u32, key: K, add: impl FnOnce(&mut V)) {
        let Some(sums) = self.threads.get_mut(&thread) else { return };
        let before = sums.len();
        add(sums.entry(key).or_default());
        self.count += sums.len() - before;
        if self.count > self.most {
            self.forget(thread);
        }
    }

    fn forget(&mut self, thread: u32) {
        self.count -= self.threads.remove(&thread).map_or(0, |sums| sums.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(most: usize) -> Sums<u8, u64> {
        let mut sums = Sums::new(most);
        sums.start(1);
        sums.start(2);
        sums
    }

    #[test]
    fn sum_of_a_thread_is_known_from_its_start_to_its_end() {
        let mut sums = sums(9);
        assert_eq!((sums.get(1, &7), sums.get(3, &7)), (Some(0), None));
        sums.add(1, 7, |sum| *sum += 5);
        sums.add(1, 7, |sum| *sum += 1);
        sums.add(3, 7, |sum| *sum += 1);
        assert_eq!((sums.get(1, &7), sums.get(1, &8), sums.get(3, &7)), (Some(6), Some(0), None));
        sums.forget(1);
        assert_eq!((sums.get(1, &7), sums.get(2, &7)), (None, Some(0)));
    }

    #[test]
    fn thread_whose_sums_do_not_fit_is_not_known() {
        let mut sums = sums(2);
        (0..3).for_each(|key| sums.add(1, key, |sum| *sum += 1));
        assert_eq!((sums.get(1, &0), sums.get(2, &0), sums.count), (None, Some(0), 0));
        (0..2).for_each(|key| sums.add(2, key, |sum| *sum += 1));
        sums.start(3);
        assert_eq!((sums.get(2, &0), sums.get(3, &0)), (Some(1), None), "there is no memory for more");
    }
}
