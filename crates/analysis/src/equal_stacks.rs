// SPDX-License-Identifier: Apache-2.0
//! Groups of stalls with equal stacks: a recording with a million stalls has few of them.
//!
//! A group keeps no stall, only the number of its longest one. The number of groups is bounded, and stalls
//! of further stacks are counted. The time slices of one wait count as one stall.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use wallprof_model::profile::{ResolvedStack, StallRecord};
use wallprof_model::{Meaning, StallReason, ThreadKey};

use crate::tally::Tally;

/// Each takes a few kilobytes, most of them its stacks.
const MOST_GROUPS: usize = 16_384;

/// A thread's name and its number.
pub type NamedThread = (Arc<str>, u32);

/// Stalls with equal user and kernel stacks, the same reason and the same meaning.
#[derive(Clone, Debug)]
pub struct StackGroup {
    pub reason: StallReason,
    pub meaning: Option<Arc<Meaning>>,
    pub count: u64,
    /// How many of them have not ended.
    pub open: u64,
    /// The sum of how late they made threads.
    pub total_ns: u64,
    pub longest_ns: u64,
    /// The stall that took `longest_ns`; of a wait in time slices the last one.
    pub longest: u64,
    /// In how many slices the longest one was.
    pub longest_slices: u64,
    /// Weighted by stalls.
    pub threads: Tally<NamedThread>,
}

/// All groups of a recording, and what no group has.
#[derive(Debug, Default)]
pub struct EqualStacks {
    numbers: HashMap<Key, usize>,
    groups: Vec<StackGroup>,
    /// The last wait of each thread that was in slices.
    slices: HashMap<ThreadKey, Slices>,
    /// Stalls of stacks beyond the bound.
    pub ungrouped: u64,
    pub ungrouped_ns: u64,
}

#[derive(Debug, PartialEq, Eq)]
struct Key {
    reason: StallReason,
    meaning: Option<Arc<Meaning>>,
    user: Option<ResolvedStack>,
    kernel: Option<ResolvedStack>,
}

/// The slices so far of one wait.
#[derive(Clone, Copy, Debug)]
struct Slices {
    wait: u64,
    group: usize,
    count: u64,
    ns: u64,
    open: bool,
}

impl EqualStacks {
    /// Adds a stall. Those of one thread come in the order of time.
    pub fn add(&mut self, stall: StallRecord) {
        let (id, wait, thread, open) = (stall.id, stall.wait_id, stall.thread, stall.open);
        let late_ns = stall.late_ns();
        if let Some(wait) = wait
            && let Some(slices) = self.slices.get_mut(&thread).filter(|slices| slices.wait == wait)
        {
            let group = &mut self.groups[slices.group];
            group.open = group.open - u64::from(slices.open) + u64::from(open);
            group.total_ns = group.total_ns.saturating_add(late_ns);
            let ns = slices.ns.saturating_add(late_ns);
            *slices = Slices { count: slices.count + 1, ns, open, ..*slices };
            group.keep_if_longest(id, ns, slices.count);
            return;
        }
        let named = (stall.comm, stall.tid);
        let key =
            Key { reason: stall.reason, meaning: stall.meaning, user: stall.user, kernel: stall.kernel };
        let Some(number) = self.number(key, id) else {
            self.ungrouped += 1;
            self.ungrouped_ns = self.ungrouped_ns.saturating_add(late_ns);
            return;
        };
        let group = &mut self.groups[number];
        group.count += 1;
        group.open += u64::from(open);
        group.total_ns = group.total_ns.saturating_add(late_ns);
        group.keep_if_longest(id, late_ns, 1);
        group.threads.add(named, 1);
        if let Some(wait) = wait {
            self.slices.insert(thread, Slices { wait, group: number, count: 1, ns: late_ns, open });
        }
    }

    /// The number of a key's group; `None` where there are too many.
    fn number(&mut self, key: Key, first: u64) -> Option<usize> {
        let next = self.groups.len();
        match self.numbers.entry(key) {
            Entry::Occupied(number) => Some(*number.get()),
            Entry::Vacant(_) if next >= MOST_GROUPS => None,
            Entry::Vacant(place) => {
                self.groups.push(StackGroup::new(place.key(), first));
                Some(*place.insert(next))
            }
        }
    }

    /// Most time first, of equal ones the group whose longest stall is the oldest.
    pub fn ranked(&self) -> Vec<&StackGroup> {
        let mut ranked: Vec<&StackGroup> = self.groups.iter().collect();
        ranked.sort_by_key(|group| (Reverse(group.total_ns), group.longest));
        ranked
    }
}

impl StackGroup {
    fn new(key: &Key, first: u64) -> Self {
        StackGroup {
            reason: key.reason,
            meaning: key.meaning.clone(),
            count: 0,
            open: 0,
            total_ns: 0,
            longest_ns: 0,
            longest: first,
            longest_slices: 1,
            threads: Tally::default(),
        }
    }

    fn keep_if_longest(&mut self, id: u64, ns: u64, slices: u64) {
        if ns > self.longest_ns {
            (self.longest, self.longest_ns, self.longest_slices) = (id, ns, slices);
        }
    }
}

impl Hash for Key {
    /// Without the names of files, which take longest and add least.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.reason.hash(state);
        self.meaning.hash(state);
        for stack in [&self.user, &self.kernel] {
            for frame in stack.iter().flat_map(|stack| stack.frames.iter()) {
                frame.address.hash(state);
                frame.lines.first().map(|line| &line.symbol).hash(state);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use wallprof_model::{MonoNs, Reason};

    use super::*;
    use wallprof_testkit::stacks::{self, stack};

    const LOCK: StallReason = StallReason::Blocked(Reason::Lock);

    fn stall(id: u64, thread: u32, functions: &[&str], ns: u64) -> StallRecord {
        let wait = stacks::stall(id, thread, LOCK, MonoNs(id * 1_000), ns);
        StallRecord { user: Some(stack(functions)), ..wait }
    }

    fn grouped(stalls: impl IntoIterator<Item = StallRecord>) -> EqualStacks {
        let mut groups = EqualStacks::default();
        stalls.into_iter().for_each(|stall| groups.add(stall));
        groups
    }

    /// (count, total, longest, the longest one's number) of each group.
    fn numbers(groups: &EqualStacks) -> Vec<(u64, u64, u64, u64)> {
        let of = |group: &&StackGroup| (group.count, group.total_ns, group.longest_ns, group.longest);
        groups.ranked().iter().map(of).collect()
    }

    #[test]
    fn whole_stacks_are_compared() {
        let groups = grouped([
            stall(1, 1, &["wait", "update", "main"], 50),
            stall(2, 2, &["wait", "update", "main"], 70),
            stall(3, 1, &["wait", "update", "retry", "main"], 30),
            StallRecord {
                kernel: Some(stack(&["futex_wait"])),
                ..stall(4, 1, &["wait", "update", "main"], 20)
            },
            StallRecord { reason: StallReason::Preempted, ..stall(5, 1, &["wait", "update", "main"], 10) },
        ]);
        assert_eq!(numbers(&groups), [(2, 120, 70, 2), (1, 30, 30, 3), (1, 20, 20, 4), (1, 10, 10, 5)]);
        let threads = &groups.ranked()[0].threads;
        assert_eq!(threads.ranked(), [(&("thread-1".into(), 101), 1), (&("thread-2".into(), 102), 1)]);
    }

    #[test]
    fn group_with_the_most_time_is_first() {
        let groups = grouped([
            stall(1, 1, &["rare"], 100),
            stall(2, 1, &["frequent"], 60),
            stall(3, 1, &["frequent"], 60),
            StallRecord { open: true, ..stall(4, 1, &["equal"], 100) },
        ]);
        assert_eq!(numbers(&groups), [(2, 120, 60, 2), (1, 100, 100, 1), (1, 100, 100, 4)]);
        assert_eq!(groups.ranked().iter().map(|group| group.open).collect::<Vec<_>>(), [0, 0, 1]);
    }

    #[test]
    fn slices_of_one_wait_are_one_stall() {
        let slice = |id, thread, wait_id| StallRecord { wait_id, ..stall(id, thread, &["wait"], 100) };
        let groups = grouped([
            slice(1, 1, Some(1)),
            slice(2, 2, Some(2)),
            StallRecord { user: Some(stack(&["wait", "again"])), open: true, ..slice(3, 1, Some(1)) },
            slice(4, 1, Some(1)),
            slice(5, 2, None),
            StallRecord { open: true, ..slice(6, 2, Some(6)) },
        ]);
        assert_eq!(numbers(&groups), [(4, 600, 300, 4)]);
        let group = groups.ranked()[0];
        assert_eq!((group.longest_slices, group.open), (3, 1), "the wait of thread 1 has ended");
    }

    #[test]
    fn meanings_divide_a_group() {
        let meaning = |name: &str| {
            let source = wallprof_model::MeaningSource::Wakers;
            Some(Arc::new(Meaning { name: name.into(), software: None, idle: false, holder: true, source }))
        };
        let of = |id, name| StallRecord { meaning: meaning(name), ..stall(id, 1, &["wait"], 10) };
        let groups = grouped([of(1, "lock"), of(2, "lock"), of(3, "queue")]);
        assert_eq!(numbers(&groups), [(2, 20, 10, 1), (1, 10, 10, 3)]);
        assert_eq!(groups.ranked()[0].meaning, meaning("lock"));
    }

    #[test]
    fn stacks_beyond_the_bound_are_counted() {
        let name = |number: usize| format!("function-{number}");
        let distinct = (0..MOST_GROUPS + 3).map(|number| stall(number as u64, 1, &[&name(number)], 5));
        let mut groups = grouped(distinct);
        groups.add(stall(1 << 20, 1, &[&name(0)], 9));
        assert_eq!(numbers(&groups).len(), MOST_GROUPS);
        assert_eq!(numbers(&groups)[0], (2, 14, 9, 1 << 20), "a known stack is still counted");
        assert_eq!((groups.ungrouped, groups.ungrouped_ns), (3, 15));
    }
}
