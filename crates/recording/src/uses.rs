// SPDX-License-Identifier: Apache-2.0
//! Reference counts of numbered rows. In a bounded recording, rows that no other row refers to are deleted.
//!
//! Two kinds of reference keep a row. Sums of seconds and stalls are deleted with the window, so that the
//! last generation that wrote a reference is enough: when it is outside the window, all references are. Rows
//! that are parts of others (the frames of a stack, the name of a thread) are held as long as those exist.

use std::collections::BTreeMap;
use std::ops::Bound;

/// Uses of rows numbered `I`. `T` is the data that removing a row needs.
pub(crate) struct Uses<I, T> {
    /// `None`: no row is ever removed, and uses are not counted.
    known: Option<BTreeMap<I, Use<T>>>,
    /// The current generation.
    now: u32,
    /// The last row of the last search for idle rows.
    hand: Option<I>,
    /// Rows that lost their last holder since the last search.
    loose: Vec<I>,
}

struct Use<T> {
    data: T,
    last: u32,
    holders: u32,
}

impl<I: Ord + Copy, T> Uses<I, T> {
    pub fn new(counted: bool) -> Self {
        Uses { known: counted.then(BTreeMap::new), now: 1, hand: None, loose: Vec::new() }
    }

    /// Later uses count for this generation.
    pub fn set_generation(&mut self, now: u32) {
        self.now = now;
    }

    /// Adds a row, which is in use now.
    pub fn define(&mut self, id: I, data: T) {
        let last = self.now;
        if let Some(known) = &mut self.known {
            known.insert(id, Use { data, last, holders: 0 });
        }
    }

    /// Called when a row that refers to `id` is written in this generation.
    pub fn touch(&mut self, id: I) {
        let now = self.now;
        if let Some(found) = self.get_mut(id) {
            found.last = now;
        }
    }

    pub fn hold(&mut self, id: I) {
        if let Some(found) = self.get_mut(id) {
            found.holders += 1;
        }
    }

    pub fn release(&mut self, id: I) {
        let Some(found) = self.get_mut(id) else { return };
        found.holders = found.holders.saturating_sub(1);
        if found.holders == 0 {
            self.loose.push(id);
        }
    }

    /// The data that removing a row needs, to change them.
    pub fn data_mut(&mut self, id: I) -> Option<&mut T> {
        self.get_mut(id).map(|found| &mut found.data)
    }

    /// Rows without holders that no generation after `expired` has used. It examines about `limit` rows:
    /// first those that lost their last holder, then on from the end of the last search.
    pub fn idle(&mut self, expired: u32, limit: usize) -> Vec<I> {
        let Some(known) = &self.known else { return Vec::new() };
        let is_idle = |found: &Use<T>| found.holders == 0 && found.last <= expired;
        let keep_from = self.loose.len().saturating_sub(limit);
        let mut idle: Vec<I> = self.loose.split_off(keep_from);
        idle.retain(|id| known.get(id).is_some_and(is_idle));
        let from = self.hand.map_or(Bound::Unbounded, Bound::Excluded);
        let (mut last, mut looked_at) = (None, 0);
        for (&id, found) in known.range((from, Bound::Unbounded)).take(limit) {
            (last, looked_at) = (Some(id), looked_at + 1);
            if is_idle(found) {
                idle.push(id);
            }
        }
        // After the last row, the search starts over, even if rows were added meanwhile.
        self.hand = last.filter(|_| looked_at == limit);
        idle.sort_unstable();
        idle.dedup();
        idle
    }

    /// The number of rows, and of those to be examined soon.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.known.as_ref().map_or(0, BTreeMap::len) + self.loose.len()
    }

    pub fn remove(&mut self, id: I) -> Option<T> {
        self.known.as_mut()?.remove(&id).map(|found| found.data)
    }

    fn get_mut(&mut self, id: I) -> Option<&mut Use<T>> {
        self.known.as_mut()?.get_mut(&id)
    }
}

impl<I: Ord + Copy, T> Default for Uses<I, T> {
    fn default() -> Self {
        Self::new(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uses(ids: &[u32]) -> Uses<u32, ()> {
        let mut uses = Uses::new(true);
        for &id in ids {
            uses.define(id, ());
        }
        uses
    }

    #[test]
    fn idle_rows_are_those_without_later_uses() {
        let mut uses = uses(&[1, 2, 3]);
        uses.set_generation(2);
        uses.touch(2);
        assert!(uses.idle(0, 10).is_empty());
        assert_eq!(uses.idle(1, 10), [1, 3]);
        assert_eq!(uses.idle(2, 10), [1, 2, 3]);
    }

    #[test]
    fn held_rows_stay_and_released_rows_are_found_at_once() {
        let mut uses = uses(&[1, 2]);
        uses.hold(2);
        uses.hold(2);
        assert_eq!(uses.idle(1, 10), [1]);
        uses.release(2);
        assert!(uses.idle(1, 0).is_empty());
        uses.release(2);
        assert_eq!(uses.idle(1, 1), [1, 2], "the released one, and one from the start");
    }

    #[test]
    fn search_continues_and_starts_over() {
        let mut uses = uses(&[1, 2, 3]);
        assert_eq!(uses.idle(1, 2), [1, 2]);
        assert_eq!(uses.idle(1, 2), [3]);
        assert_eq!(uses.idle(1, 2), [1, 2]);
    }

    #[test]
    fn new_rows_do_not_keep_a_search_at_the_end() {
        let mut uses = uses(&[1]);
        let mut found = 0;
        for id in 2..40 {
            uses.set_generation(id);
            uses.define(id, ());
            found += usize::from(uses.idle(1, 4).contains(&1));
        }
        assert!(found >= 5, "{found} times in 38 searches of 4 among up to 39");
    }

    #[test]
    fn uncounted_uses_find_nothing() {
        let mut uses: Uses<u32, ()> = Uses::default();
        uses.define(1, ());
        uses.release(1);
        assert!(uses.idle(u32::MAX, 10).is_empty());
        assert!(uses.remove(1).is_none());
    }
}
