// SPDX-License-Identifier: Apache-2.0
//! Series: values by labels, in a bounded number.
//!
//! A process that names a thread for each request could make any number of series. One limit holds for all
//! families together. Beyond it, updates are counted under [`OTHERS`], so that totals stay right, and so is
//! each such update.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use wallprof_model::{PodContainer, ThreadInfo};

/// The process and the thread of all updates beyond the limit.
pub const OTHERS: &str = "_others";

/// Seconds without an update after which a series may be evicted.
const STALE_AFTER: u64 = 600;

/// The process and the thread that a series belongs to, by name, and their container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    pub process: String,
    pub thread: String,
    /// `None`: outside of containers, or containers are no label.
    pub container: Option<Container>,
}

/// The container of a series.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Container {
    /// As `docker ps` shows it.
    Short(String),
    InPod(Arc<PodContainer>),
}

impl Container {
    /// `None`: the thread is in no container.
    pub fn of(thread: &ThreadInfo) -> Option<Self> {
        match &thread.pod {
            Some(pod) => Some(Container::InPod(Arc::clone(pod))),
            None => thread.container_name().map(Container::Short),
        }
    }
}

impl fmt::Display for Container {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Container::Short(name) => f.write_str(name),
            Container::InPod(container) => container.fmt(f),
        }
    }
}

impl Owner {
    pub fn others() -> Self {
        Owner { process: OTHERS.into(), thread: OTHERS.into(), container: None }
    }
}

/// The labels of one series.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Labels {
    pub owner: Arc<Owner>,
    pub reason: Option<&'static str>,
    pub severity: Option<Arc<str>>,
    /// What the waits mean, where that is known.
    pub meaning: Option<Arc<str>>,
    /// Of spans, which have no thread.
    pub kind: Option<Arc<str>>,
}

impl Labels {
    pub fn of(owner: &Arc<Owner>) -> Self {
        Labels { owner: Arc::clone(owner), reason: None, severity: None, meaning: None, kind: None }
    }

    pub fn reason(self, reason: &'static str) -> Self {
        Labels { reason: Some(reason), ..self }
    }

    pub fn meaning(self, meaning: Option<Arc<str>>) -> Self {
        Labels { meaning, ..self }
    }

    pub fn kind(self, kind: Arc<str>) -> Self {
        Labels { kind: Some(kind), ..self }
    }

    pub fn severity(self, severity: Arc<str>) -> Self {
        Labels { severity: Some(severity), ..self }
    }
}

struct Entry<V> {
    value: V,
    /// The second of the last update.
    updated: u64,
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
    /// The series with these labels; that of [`OTHERS`] if a new one would exceed the limit.
    pub fn at(&mut self, labels: Labels, pool: &mut SeriesPool) -> &mut V {
        let labels = match self.entries.contains_key(&labels) || pool.reserve() {
            true => labels,
            false => {
                let kind = labels.kind.map(|_| OTHERS.into());
                Labels { owner: pool.others(), kind, ..labels }
            }
        };
        let entry =
            self.entries.entry(labels).or_insert_with(|| Entry { value: V::default(), updated: pool.now });
        entry.updated = pool.now;
        &mut entry.value
    }

    /// The series with these labels, if it is there.
    pub fn get_mut(&mut self, labels: &Labels) -> Option<&mut V> {
        self.entries.get_mut(labels).map(|entry| &mut entry.value)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Labels, &V)> {
        self.entries.iter().map(|(labels, entry)| (labels, &entry.value))
    }

    pub fn clear(&mut self, pool: &mut SeriesPool) {
        pool.used -= self.entries.keys().filter(|labels| !pool.is_others(labels)).count();
        self.entries.clear();
    }

    /// Removes series without an update for [`STALE_AFTER`] seconds.
    pub fn evict_stale(&mut self, pool: &mut SeriesPool) {
        let (now, before) = (pool.now, self.entries.len());
        self.entries.retain(|labels, entry| {
            pool.is_others(labels) || now.saturating_sub(entry.updated) < STALE_AFTER
        });
        pool.used -= before - self.entries.len();
    }
}

/// The limit on the series of all families together, and its use.
pub struct SeriesPool {
    others: Arc<Owner>,
    limit: usize,
    used: usize,
    hits: u64,
    /// Seconds since the start.
    now: u64,
}

impl SeriesPool {
    pub fn new(limit: usize) -> Self {
        SeriesPool { others: Arc::new(Owner::others()), limit, used: 0, hits: 0, now: 0 }
    }

    /// Moves on by some seconds; true if stale series should be evicted, because few are left below the
    /// limit.
    pub fn pass(&mut self, seconds: u64) -> bool {
        self.now += seconds;
        self.used * 10 >= self.limit * 9
    }

    /// How many updates were counted under [`OTHERS`].
    pub fn limit_hits(&self) -> u64 {
        self.hits
    }

    pub fn others(&self) -> Arc<Owner> {
        Arc::clone(&self.others)
    }

    fn is_others(&self, labels: &Labels) -> bool {
        Arc::ptr_eq(&labels.owner, &self.others)
    }

    fn reserve(&mut self) -> bool {
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
        Labels::of(&Arc::new(Owner { process: "p".into(), thread: thread.into(), container: None }))
    }

    #[test]
    fn update_beyond_the_limit_is_counted_with_the_others() {
        let (mut family, mut pool) = (Family::<u64>::default(), SeriesPool::new(2));
        for thread in ["a", "b", "c", "d", "a"] {
            *family.at(labels(thread), &mut pool) += 1;
        }
        let all: Vec<_> =
            family.iter().map(|(labels, count)| (labels.owner.thread.as_str(), *count)).collect();
        assert_eq!(all, [("_others", 2), ("a", 2), ("b", 1)]);
        assert_eq!(pool.limit_hits(), 2);
    }

    #[test]
    fn stale_series_is_evicted() {
        let (mut family, mut pool) = (Family::<u64>::default(), SeriesPool::new(1));
        *family.at(labels("a"), &mut pool) += 1;
        assert!(pool.pass(1) && pool.pass(STALE_AFTER));
        family.evict_stale(&mut pool);
        *family.at(labels("b"), &mut pool) += 1;
        let names: Vec<_> = family.iter().map(|(labels, _)| labels.owner.thread.as_str()).collect();
        assert_eq!((names, pool.limit_hits()), (vec!["b"], 0));
    }

    #[test]
    fn ten_thousand_names_stay_within_the_limit() {
        let (mut family, mut pool) = (Family::<u64>::default(), SeriesPool::new(100));
        for number in 0..10_000 {
            *family.at(labels(&format!("worker-{number}")), &mut pool) += 1;
        }
        assert_eq!((family.iter().count(), pool.limit_hits()), (101, 9_900));
        assert_eq!(family.iter().map(|(_, count)| count).sum::<u64>(), 10_000);
        family.clear(&mut pool);
        assert_eq!((family.iter().count(), pool.used), (0, 0));
    }
}
