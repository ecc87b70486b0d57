// SPDX-License-Identifier: Apache-2.0
//! A queue by time: the earliest item comes out first; items of the same time come out in the order of
//! insertion.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// A queue by time.
#[derive(Debug)]
pub(crate) struct ByTime<T> {
    waiting: BinaryHeap<Reverse<Waiting<T>>>,
    count: u64,
}

#[derive(Debug)]
struct Waiting<T> {
    /// The time, and the number of items inserted before.
    at: (u64, u64),
    item: T,
}

impl<T> Default for ByTime<T> {
    fn default() -> Self {
        ByTime { waiting: BinaryHeap::new(), count: 0 }
    }
}

impl<T> ByTime<T> {
    pub(crate) fn push(&mut self, time: u64, item: T) {
        self.count += 1;
        self.waiting.push(Reverse(Waiting { at: (time, self.count), item }));
    }

    /// The first item with its time, if `is_due` is true of that time.
    pub(crate) fn pop_if(&mut self, is_due: impl FnOnce(u64) -> bool) -> Option<(u64, T)> {
        let Reverse(first) = self.waiting.peek()?;
        if !is_due(first.at.0) {
            return None;
        }
        self.waiting.pop().map(|Reverse(first)| (first.at.0, first.item))
    }
}

impl<T> PartialEq for Waiting<T> {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl<T> Eq for Waiting<T> {}

impl<T> PartialOrd for Waiting<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Waiting<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at.cmp(&other.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earliest_comes_first_and_equal_times_keep_their_order() {
        let mut queue = ByTime::default();
        for (time, what) in [(7, 'c'), (3, 'a'), (7, 'd'), (5, 'b')] {
            queue.push(time, what);
        }
        let due: Vec<_> = std::iter::from_fn(|| queue.pop_if(|time| time <= 7)).collect();
        assert_eq!(due, [(3, 'a'), (5, 'b'), (7, 'c'), (7, 'd')]);
    }

    #[test]
    fn items_that_are_not_due_stay() {
        let mut queue = ByTime::default();
        queue.push(4, ());
        assert_eq!(queue.pop_if(|time| time < 4), None);
        assert_eq!(queue.pop_if(|time| time <= 4), Some((4, ())));
        assert_eq!(queue.pop_if(|_| true), None);
    }
}
