//! Groups of stalls with equal stacks: a recording with a million stalls has few of them.
//!
//! A group keeps no stall, only the number of its longest one. The number of groups is bounded, and stalls
//! of further stacks are counted.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{Hash, Hasher};

use wallprof_model::StallReason;
use wallprof_model::profile::{ResolvedStack, StallRecord};

use crate::tally::Tally;

/// Each takes a few kilobytes, most of them its stacks.
const MOST_GROUPS: usize = 16_384;

/// A thread's name and its number.
pub type NamedThread = (String, u32);

/// Stalls with equal user and kernel stacks and the same reason.
#[derive(Clone, Debug)]
pub struct StackGroup {
    pub reason: StallReason,
    pub count: u64,
    /// How many of them have not ended.
    pub open: u64,
    /// The sum of how late they made threads.
    pub total_ns: u64,
    pub longest_ns: u64,
    /// The stall that took `longest_ns`.
    pub longest: u64,
    /// Weighted by stalls.
    pub threads: Tally<NamedThread>,
}

/// All groups of a recording, and what no group has.
#[derive(Debug, Default)]
pub struct EqualStacks {
    groups: HashMap<Key, StackGroup>,
    /// Stalls of stacks beyond the bound.
    pub ungrouped: u64,
    pub ungrouped_ns: u64,
}

#[derive(Debug, PartialEq, Eq)]
struct Key {
    reason: StallReason,
    user: Option<ResolvedStack>,
    kernel: Option<ResolvedStack>,
}

impl EqualStacks {
    pub fn add(&mut self, stall: StallRecord) {
        let (id, open, late_ns) = (stall.id, stall.open, stall.late_ns());
        let thread = (stall.comm, stall.tid);
        let key = Key { reason: stall.reason, user: stall.user, kernel: stall.kernel };
        let is_full = self.groups.len() >= MOST_GROUPS;
        let group = match self.groups.entry(key) {
            Entry::Occupied(group) => group.into_mut(),
            Entry::Vacant(_) if is_full => {
                self.ungrouped += 1;
                self.ungrouped_ns = self.ungrouped_ns.saturating_add(late_ns);
                return;
            }
            Entry::Vacant(place) => place.insert(StackGroup::new(stall.reason, id)),
        };
        group.count += 1;
        group.open += u64::from(open);
        group.total_ns = group.total_ns.saturating_add(late_ns);
        if late_ns > group.longest_ns {
            (group.longest_ns, group.longest) = (late_ns, id);
        }
        group.threads.add(thread, 1);
    }

    /// Most time first, of equal ones the group whose longest stall is the oldest.
    pub fn ranked(&self) -> Vec<&StackGroup> {
        let mut ranked: Vec<&StackGroup> = self.groups.values().collect();
        ranked.sort_by_key(|group| (Reverse(group.total_ns), group.longest));
        ranked
    }
}

impl StackGroup {
    fn new(reason: StallReason, first: u64) -> Self {
        let threads = Tally::default();
        StackGroup { reason, count: 0, open: 0, total_ns: 0, longest_ns: 0, longest: first, threads }
    }
}

impl Hash for Key {
    /// Without the names of files, which take longest and add least.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.reason.hash(state);
        for stack in [&self.user, &self.kernel] {
            for frame in stack.iter().flat_map(|stack| &stack.frames) {
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
    use crate::fixture::{self, stack};

    const LOCK: StallReason = StallReason::Blocked(Reason::Lock);

    fn stall(id: u64, thread: u32, functions: &[&str], ns: u64) -> StallRecord {
        let wait = fixture::stall(id, thread, LOCK, MonoNs(id * 1_000), ns);
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
