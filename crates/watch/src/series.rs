//! Series: what is counted, by labels, in bounded numbers.
//!
//! A process that names a thread per request could make series without end. One budget holds for all families; what
//! finds no place is counted under [`OTHERS`], so that totals stay whole, and the miss is counted.

use std::collections::BTreeMap;
use std::sync::Arc;

/// The process and the thread of everything that found no place.
pub const OTHERS: &str = "_others";

/// Seconds without news after which a series gives its place away.
const STALE_AFTER: u64 = 600;

/// Whose series it is, by names as labels carry them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Who {
    pub process: String,
    pub thread: String,
}

impl Who {
    pub fn others() -> Self {
        Who { process: OTHERS.into(), thread: OTHERS.into() }
    }
}

/// The labels of one series.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Labels {
    pub who: Arc<Who>,
    pub reason: Option<&'static str>,
    pub severity: Option<Arc<str>>,
}

impl Labels {
    pub fn of(who: &Arc<Who>) -> Self {
        Labels { who: Arc::clone(who), reason: None, severity: None }
    }

    pub fn reason(self, reason: &'static str) -> Self {
        Labels { reason: Some(reason), ..self }
    }

    pub fn severity(self, severity: Arc<str>) -> Self {
        Labels { severity: Some(severity), ..self }
    }
}

struct Entry<V> {
    value: V,
    /// The second of the last news.
    touched: u64,
}

/// All series of one metric.
pub struct Family<V> {
    entries: BTreeMap<Labels, Entry<V>>,
}

impl<V> Default for Family<V> {
    fn default() -> Self {
        Family { entries: BTreeMap::new() }
    }
}

impl<V: Default> Family<V> {
    /// The series with these labels; that of [`OTHERS`] when there is no place for a new one.
    pub fn at(&mut self, labels: Labels, room: &mut Room) -> &mut V {
        let labels = match self.entries.contains_key(&labels) || room.take() {
            true => labels,
            false => Labels { who: room.others(), ..labels },
        };
        let entry =
            self.entries.entry(labels).or_insert_with(|| Entry { value: V::default(), touched: room.now });
        entry.touched = room.now;
        &mut entry.value
    }

    /// The series with these labels, if it is there.
    pub fn get_mut(&mut self, labels: &Labels) -> Option<&mut V> {
        self.entries.get_mut(labels).map(|entry| &mut entry.value)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Labels, &V)> {
        self.entries.iter().map(|(labels, entry)| (labels, &entry.value))
    }

    pub fn clear(&mut self, room: &mut Room) {
        room.used -= self.entries.keys().filter(|labels| !room.is_others(labels)).count();
        self.entries.clear();
    }

    /// Takes out what had no news for long: only when places are scarce.
    pub fn retire(&mut self, room: &mut Room) {
        let (now, before) = (room.now, self.entries.len());
        self.entries.retain(|labels, entry| {
            room.is_others(labels) || now.saturating_sub(entry.touched) < STALE_AFTER
        });
        room.used -= before - self.entries.len();
    }
}

/// The places for series of all families together.
pub struct Room {
    others: Arc<Who>,
    limit: usize,
    used: usize,
    hits: u64,
    /// Seconds since the start.
    now: u64,
}

impl Room {
    pub fn new(limit: usize) -> Self {
        Room { others: Arc::new(Who::others()), limit, used: 0, hits: 0, now: 0 }
    }

    /// Moves on by some seconds; true when stale series should be retired.
    pub fn pass(&mut self, seconds: u64) -> bool {
        self.now += seconds;
        self.used * 10 >= self.limit * 9
    }

    /// How often news found no place of its own.
    pub fn hits(&self) -> u64 {
        self.hits
    }

    pub fn others(&self) -> Arc<Who> {
        Arc::clone(&self.others)
    }

    fn is_others(&self, labels: &Labels) -> bool {
        Arc::ptr_eq(&labels.who, &self.others)
    }

    fn take(&mut self) -> bool {
        let free = self.used < self.limit;
        match free {
            true => self.used += 1,
            false => self.hits += 1,
        }
        free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(thread: &str) -> Labels {
        Labels::of(&Arc::new(Who { process: "p".into(), thread: thread.into() }))
    }

    #[test]
    fn what_finds_no_place_is_counted_with_the_others() {
        let (mut family, mut room) = (Family::<u64>::default(), Room::new(2));
        for thread in ["a", "b", "c", "d", "a"] {
            *family.at(labels(thread), &mut room) += 1;
        }
        let all: Vec<_> = family.iter().map(|(labels, count)| (labels.who.thread.as_str(), *count)).collect();
        assert_eq!(all, [("_others", 2), ("a", 2), ("b", 1)]);
        assert_eq!(room.hits(), 2);
    }

    #[test]
    fn stale_series_give_their_places_away() {
        let (mut family, mut room) = (Family::<u64>::default(), Room::new(1));
        *family.at(labels("a"), &mut room) += 1;
        assert!(room.pass(1) && room.pass(STALE_AFTER));
        family.retire(&mut room);
        *family.at(labels("b"), &mut room) += 1;
        let names: Vec<_> = family.iter().map(|(labels, _)| labels.who.thread.as_str()).collect();
        assert_eq!((names, room.hits()), (vec!["b"], 0));
    }

    #[test]
    fn ten_thousand_names_stay_within_the_limit() {
        let (mut family, mut room) = (Family::<u64>::default(), Room::new(100));
        for number in 0..10_000 {
            *family.at(labels(&format!("worker-{number}")), &mut room) += 1;
        }
        assert_eq!((family.iter().count(), room.hits()), (101, 9_900));
        assert_eq!(family.iter().map(|(_, count)| count).sum::<u64>(), 10_000);
        family.clear(&mut room);
        assert_eq!((family.iter().count(), room.used), (0, 0));
    }
}
