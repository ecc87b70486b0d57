//! Which numbered things are still in use: in a bounded recording, what nothing refers to any more is
//! deleted.
//!
//! Two kinds of reference keep a thing. Rows of seconds and stalls come and go with the window, so it is
//! enough to know the last generation that wrote one: when that is outside the window, so are they all.
//! Things that others are made of (the frames of a stack, the name of a thread) are held for as long as those
//! are there.

use std::collections::BTreeMap;
use std::ops::Bound;

/// Uses of things numbered `I`; `T` is what must be known to forget one.
pub(crate) struct Uses<I, T> {
    /// `None`: nothing is ever forgotten, and nothing is counted.
    known: Option<BTreeMap<I, Use<T>>>,
    /// The generation being taken.
    now: u32,
    /// Where the search for what is idle goes on.
    hand: Option<I>,
    /// What lost its last holder since the last search.
    loose: Vec<I>,
}

struct Use<T> {
    what: T,
    last: u32,
    holders: u32,
}

impl<I: Ord + Copy, T> Uses<I, T> {
    pub fn new(counted: bool) -> Self {
        Uses { known: counted.then(BTreeMap::new), now: 1, hand: None, loose: Vec::new() }
    }

    /// From now on uses are of this generation.
    pub fn set_generation(&mut self, now: u32) {
        self.now = now;
    }

    /// A new thing, which is in use now.
    pub fn define(&mut self, id: I, what: T) {
        let last = self.now;
        if let Some(known) = &mut self.known {
            known.insert(id, Use { what, last, holders: 0 });
        }
    }

    /// A row that refers to it is written in this generation.
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

    /// What must be known to forget it, to be changed.
    pub fn what_mut(&mut self, id: I) -> Option<&mut T> {
        self.get_mut(id).map(|found| &mut found.what)
    }

    /// Ids that nobody holds and that no generation after `expired` has used. Looks at about `limit` things:
    /// first at those that lost their last holder, then where the last search ended.
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
        // At the end it starts over, also where the end moves on meanwhile.
        self.hand = last.filter(|_| looked_at == limit);
        idle.sort_unstable();
        idle.dedup();
        idle
    }

    pub fn remove(&mut self, id: I) -> Option<T> {
        self.known.as_mut()?.remove(&id).map(|found| found.what)
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
    fn idle_is_what_no_later_generation_used() {
        let mut uses = uses(&[1, 2, 3]);
        uses.set_generation(2);
        uses.touch(2);
        assert_eq!(uses.idle(0, 10), []);
        assert_eq!(uses.idle(1, 10), [1, 3]);
        assert_eq!(uses.idle(2, 10), [1, 2, 3]);
    }

    #[test]
    fn what_is_held_stays_and_is_found_at_once_when_it_is_let_go() {
        let mut uses = uses(&[1, 2]);
        uses.hold(2);
        uses.hold(2);
        assert_eq!(uses.idle(1, 10), [1]);
        uses.release(2);
        assert_eq!(uses.idle(1, 0), []);
        uses.release(2);
        assert_eq!(uses.idle(1, 1), [1, 2], "what was let go, and one from the beginning");
    }

    #[test]
    fn a_search_goes_on_where_it_ended_and_starts_over() {
        let mut uses = uses(&[1, 2, 3]);
        assert_eq!(uses.idle(1, 2), [1, 2]);
        assert_eq!(uses.idle(1, 2), [3]);
        assert_eq!(uses.idle(1, 2), [1, 2]);
    }

    #[test]
    fn what_keeps_coming_does_not_keep_a_search_at_the_end() {
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
    fn without_a_bound_nothing_is_counted() {
        let mut uses: Uses<u32, ()> = Uses::default();
        uses.define(1, ());
        uses.release(1);
        assert_eq!(uses.idle(u32::MAX, 10), []);
        assert!(uses.remove(1).is_none());
    }
}
