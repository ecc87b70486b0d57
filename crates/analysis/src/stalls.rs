// SPDX-License-Identifier: Apache-2.0
//! Groups of stalls by thread, reason and place, with the threads that ended them; and the longest stalls
//! one by one.
//!
//! A digest takes stalls one by one in any order, only the time slices of one wait in theirs, and keeps a bounded
//! amount of each, so that a recording with a million stalls needs no more memory than one with a thousand.

use std::collections::HashMap;
use std::sync::Arc;

use wallprof_meaning::by_stack::ByStack;
use wallprof_meaning::interner::Interner;
use wallprof_meaning::site::{Site, Sites, base_name};
use wallprof_model::profile::{ResolvedFrame, ResolvedStack, StallRecord, WakerRecord};
use wallprof_model::{FastMap, FrameKind, Meaning, MonoNs, StallKind, StallReason, ThreadKey, ThreadRef};

use crate::interest::Class;
use crate::tally::Tally;

/// Distinct groups kept; the stalls of further ones are only counted.
const MOST_GROUPS: usize = 4_096;

/// Stalls with the same key are one group.
///
/// The place where a thread lost its CPU is chance: `preempted` and `runnable` stalls group by thread
/// alone, every other reason by the waiting functions too.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupKey {
    pub comm: Arc<str>,
    pub kind: StallKind,
    pub reason: StallReason,
    pub meaning: Option<Arc<Meaning>>,
    pub site: Option<Arc<Site>>,
}

/// Voluntary waits with the same key are one group: waits with a meaning go by it, whatever the system call.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdleKey {
    pub comm: Arc<str>,
    pub what: IdleWait,
    pub site: Option<Arc<Site>>,
}

/// What a thread waits for voluntarily.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IdleWait {
    Meaning(Arc<Meaning>),
    /// No meaning is known.
    Reason(StallReason),
}

/// The waker of a wait, and the place in its code: the function that released the lock, filled the queue …
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Release {
    /// The waking thread's name; `None` for an interrupt.
    pub comm: Option<Arc<str>>,
    pub site: Option<Arc<Site>>,
}

/// One stall by its main facts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Example {
    pub id: u64,
    pub start: MonoNs,
    /// As [`StallRecord::late_ns`] says.
    pub late_ns: u64,
    pub open: bool,
}

/// Stalls with the same key.
#[derive(Clone, Debug)]
pub struct StallGroup {
    pub key: GroupKey,
    pub count: u64,
    /// How many of them have not ended.
    pub open: u64,
    /// How many of them overslept the timeout that the thread had asked for.
    pub overslept: u64,
    /// The sum of how late they made threads.
    pub total_ns: u64,
    /// The part of the stalls that was spent waiting for a CPU.
    pub runnable_ns: u64,
    pub longest: Example,
    /// Distinct threads by tid, weighted by stalls.
    pub tids: Tally<u32>,
    pub syscalls: Tally<Arc<str>>,
    /// Weighted by stalls; only those whose waker is known.
    pub releases: Tally<Release>,
    /// Names of lock owners, weighted by stalls; only those whose owner is known.
    pub owners: Tally<String>,
    pub lock_addresses: Tally<u64>,
    /// Names of the threads that had the CPU, weighted by ns.
    pub ran_instead: Tally<String>,
    /// Files behind faults, weighted by stalls.
    pub files: Tally<String>,
}

/// Voluntary waits with the same key.
#[derive(Clone, Debug)]
pub struct IdleGroup {
    pub key: IdleKey,
    pub count: u64,
    pub total_ns: u64,
    /// Distinct threads by tid, weighted by their waiting.
    pub tids: Tally<u32>,
}

/// All stalls of a recording in a bounded form. The voluntary ones have groups of their own.
#[derive(Debug)]
pub struct StallDigest {
    groups: HashMap<GroupKey, StallGroup>,
    idle: HashMap<IdleKey, IdleGroup>,
    /// The last wait of each thread that was in time slices.
    slices: FastMap<ThreadKey, Slices>,
    sites: Sites,
    wakers: Interner<str>,
    longest: Vec<StallRecord>,
    keep_longest: usize,
    pub count: u64,
    pub open: u64,
    pub total_ns: u64,
    pub voluntary: u64,
    /// Stalls of groups beyond the bound: in `count`, in no group.
    pub ungrouped: u64,
    /// A thread waited as those of Go's scheduler do.
    pub has_go: bool,
    interpreted: ByStack<Option<(Interpreted, bool)>>,
    /// By [`Interpreted`]: it waited in functions of its own without names, and with names.
    unnamed: [bool; 2],
    named: [bool; 2],
}

/// Programs whose functions have names only where they were asked for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interpreted {
    Java,
    Python,
}

impl Interpreted {
    /// The program of a stack, and whether its functions have names there.
    fn of(user: &ResolvedStack) -> Option<(Self, bool)> {
        let frames = || user.frames.iter();
        let symbols = || frames().flat_map(|frame| &frame.lines).filter_map(|line| line.symbol.as_deref());
        let module = |frame: &Arc<ResolvedFrame>| {
            frame.module.as_deref().map(base_name) == Some(wallprof_meaning::java::LIBRARY)
        };
        if symbols().any(|name| name.starts_with("_PyEval_EvalFrame")) {
            return Some((Interpreted::Python, symbols().any(|name| name.starts_with("py::"))));
        }
        let mut own = frames().filter(|frame| frame.kind == FrameKind::Jit).peekable();
        (own.peek().is_some() && frames().any(module)).then(|| {
            let has_name = |frame: &Arc<ResolvedFrame>| frame.lines.iter().any(|line| line.symbol.is_some());
            (Interpreted::Java, own.any(has_name))
        })
    }
}

impl StallDigest {
    /// A digest that keeps the `keep_longest` longest stalls whole.
    pub fn new(keep_longest: usize) -> Self {
        StallDigest {
            groups: HashMap::new(),
            idle: HashMap::new(),
            slices: FastMap::default(),
            sites: Sites::default(),
            wakers: Interner::default(),
            longest: Vec::new(),
            keep_longest,
            count: 0,
            open: 0,
            total_ns: 0,
            voluntary: 0,
            ungrouped: 0,
            has_go: false,
            interpreted: ByStack::default(),
            unnamed: [false; 2],
            named: [false; 2],
        }
    }

    pub fn add(&mut self, stall: &StallRecord) {
        let software = stall.meaning.as_ref().and_then(|meaning| meaning.software.as_deref());
        self.has_go |= software == Some("go");
        let of_stack = |user| self.interpreted.get(user, Interpreted::of);
        if let Some((program, has_names)) = stall.user.as_ref().and_then(of_stack) {
            let seen = if has_names { &mut self.named } else { &mut self.unnamed };
            seen[program as usize] = true;
        }
        if stall.voluntary {
            self.voluntary += 1;
            self.add_idle(stall);
            return;
        }
        self.total_ns = self.total_ns.saturating_add(stall.late_ns());
        self.keep_if_long(stall);
        if self.continues_a_wait(stall) {
            return;
        }
        self.count += 1;
        self.open += u64::from(stall.open);
        let release = stall.waker.as_ref().map(|waker| self.release(waker));
        let key = self.key(stall);
        if let Some(wait) = stall.wait_id {
            let slices = Slices { wait, group: key.clone(), ns: stall.late_ns(), open: stall.open };
            self.slices.insert(stall.thread, slices);
        }
        if let Some(group) = self.groups.get_mut(&key) {
            group.add(stall, release);
        } else if self.groups.len() < MOST_GROUPS {
            let mut group = StallGroup::new(key.clone(), stall);
            group.add(stall, release);
            self.groups.insert(key, group);
        } else {
            self.ungrouped += 1;
        }
    }

    /// Adds a time slice to the group of its wait, if that is known.
    fn continues_a_wait(&mut self, stall: &StallRecord) -> bool {
        let release = stall.waker.as_ref().map(|waker| self.release(waker));
        let slices = self.slices.get_mut(&stall.thread).filter(|slices| stall.wait_id == Some(slices.wait));
        let Some(slices) = slices else { return false };
        slices.ns = slices.ns.saturating_add(stall.late_ns());
        let was_open = std::mem::replace(&mut slices.open, stall.open);
        self.open = self.open - u64::from(was_open) + u64::from(stall.open);
        if let Some(group) = self.groups.get_mut(&slices.group) {
            group.open = group.open - u64::from(was_open) + u64::from(stall.open);
            group.total_ns = group.total_ns.saturating_add(stall.late_ns());
            group.add_facts(stall, release);
            group.keep_if_longest(Example { late_ns: slices.ns, ..Example::of(stall) });
        }
        true
    }

    /// Whether functions of such programs are missing: none has a name.
    pub fn lacks_names_of(&self, program: Interpreted) -> bool {
        self.unnamed[program as usize] && !self.named[program as usize]
    }

    fn key(&mut self, stall: &StallRecord) -> GroupKey {
        let by_thread = matches!(stall.reason, StallReason::Preempted | StallReason::Runnable);
        GroupKey {
            comm: Arc::clone(&stall.comm),
            kind: stall.kind,
            reason: stall.reason,
            meaning: stall.meaning.clone(),
            site: if by_thread { None } else { self.sites.of(stall.user.as_ref(), stall.kernel.as_ref()) },
        }
    }

    fn release(&mut self, waker: &WakerRecord) -> Release {
        Release {
            comm: waker.thread.as_ref().map(|thread| self.wakers.get(thread.comm.as_str())),
            site: self.sites.of(waker.user.as_ref(), waker.kernel.as_ref()),
        }
    }

    /// Groups in the order of a report: those that made threads late before waits for others, and within
    /// both the most expensive first.
    pub fn groups(&self) -> Vec<&StallGroup> {
        let mut groups: Vec<&StallGroup> = self.groups.values().collect();
        groups.sort_by(|a, b| a.rank().cmp(&b.rank()).then_with(|| a.key.cmp(&b.key)));
        groups
    }

    /// Groups of voluntary waits, those with most time first.
    pub fn idle_groups(&self) -> Vec<&IdleGroup> {
        let mut groups: Vec<&IdleGroup> = self.idle.values().collect();
        groups.sort_by(|a, b| b.total_ns.cmp(&a.total_ns).then_with(|| a.key.cmp(&b.key)));
        groups
    }

    /// Beyond the limit on groups the waits are only counted.
    fn add_idle(&mut self, stall: &StallRecord) {
        let what = match &stall.meaning {
            Some(meaning) => IdleWait::Meaning(Arc::clone(meaning)),
            None => IdleWait::Reason(stall.reason),
        };
        let site = self.sites.of(stall.user.as_ref(), stall.kernel.as_ref());
        let key = IdleKey { comm: Arc::clone(&stall.comm), what, site };
        if !self.idle.contains_key(&key) && self.idle.len() >= MOST_GROUPS {
            return;
        }
        let group = self.idle.entry(key.clone()).or_insert_with(|| IdleGroup {
            key,
            count: 0,
            total_ns: 0,
            tids: Tally::default(),
        });
        let ns = stall.duration_ns();
        group.count += 1;
        group.total_ns = group.total_ns.saturating_add(ns);
        group.tids.add(stall.tid, ns);
    }

    /// The longest stalls, ordered as the groups are: late ones before waits for others, longest first, of
    /// equal ones the older.
    pub fn longest(&self) -> &[StallRecord] {
        &self.longest
    }

    fn keep_if_long(&mut self, stall: &StallRecord) {
        let rank = |stall: &StallRecord| {
            (
                Class::of_stall(stall.reason, stall.voluntary, stall.meaning.as_deref()),
                Example::of(stall).rank(),
            )
        };
        let at = self.longest.partition_point(|kept| rank(kept) < rank(stall));
        if at < self.keep_longest {
            self.longest.insert(at, stall.clone());
            self.longest.truncate(self.keep_longest);
        }
    }
}

/// The slices so far of one wait.
#[derive(Debug)]
struct Slices {
    wait: u64,
    group: GroupKey,
    ns: u64,
    open: bool,
}

impl StallGroup {
    fn new(key: GroupKey, first: &StallRecord) -> Self {
        StallGroup {
            key,
            count: 0,
            open: 0,
            overslept: 0,
            total_ns: 0,
            runnable_ns: 0,
            longest: Example::of(first),
            tids: Tally::default(),
            syscalls: Tally::default(),
            releases: Tally::default(),
            owners: Tally::default(),
            lock_addresses: Tally::default(),
            ran_instead: Tally::default(),
            files: Tally::default(),
        }
    }

    fn add(&mut self, stall: &StallRecord, release: Option<Release>) {
        self.count += 1;
        self.open += u64::from(stall.open);
        self.overslept += u64::from(stall.overslept_ns().is_some());
        self.total_ns = self.total_ns.saturating_add(stall.late_ns());
        self.tids.add(stall.tid, 1);
        if let Some(syscall) = &stall.syscall {
            self.syscalls.add(Arc::clone(syscall), 1);
        }
        self.add_facts(stall, release);
        self.keep_if_longest(Example::of(stall));
    }

    fn keep_if_longest(&mut self, example: Example) {
        if example.rank() < self.longest.rank() {
            self.longest = example;
        }
    }

    /// The facts that each time slice of a wait has its own of.
    fn add_facts(&mut self, stall: &StallRecord, release: Option<Release>) {
        self.runnable_ns = self.runnable_ns.saturating_add(stall.runnable_ns);
        // The timer that ended a slice did not release anything.
        let is_timer = |release: &Release| stall.wait_id.is_some() && release.comm.is_none();
        if let Some(release) = release.filter(|release| !is_timer(release)) {
            self.releases.add(release, 1);
        }
        if let Some(lock) = &stall.lock {
            self.lock_addresses.add(lock.address, 1);
            if let Some(owner) = &lock.owner {
                self.owners.add_ref(&owner.comm, 1);
            }
        }
        for (ThreadRef { comm, .. }, ns) in &stall.ran_instead {
            self.ran_instead.add_ref(comm, *ns);
        }
        if let Some(file) = stall.fault.as_ref().and_then(|fault| fault.file.as_ref()) {
            self.files.add_ref(file, 1);
        }
    }

    fn rank(&self) -> impl Ord + use<> {
        (
            Class::of_stall(self.key.reason, false, self.key.meaning.as_deref()),
            std::cmp::Reverse(self.total_ns),
        )
    }
}

impl Example {
    fn of(stall: &StallRecord) -> Self {
        Example { id: stall.id, start: stall.start, late_ns: stall.late_ns(), open: stall.open }
    }

    fn rank(&self) -> impl Ord + use<> {
        (std::cmp::Reverse(self.late_ns), self.start, self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_model::Reason;
    use wallprof_model::profile::LockRecord;
    use wallprof_model::{StackEnd, SymbolLine};
    use wallprof_testkit::stacks::{self, stack};

    const LOCK: StallReason = StallReason::Blocked(Reason::Lock);

    fn thread(comm: &str) -> ThreadRef {
        ThreadRef { comm: comm.into(), ..ThreadRef::default() }
    }

    fn stall(id: u64, comm: &str, reason: StallReason, function: &str, duration: u64) -> StallRecord {
        let wait = stacks::stall(id, 1, reason, MonoNs(id * 1_000), duration);
        StallRecord { comm: comm.into(), voluntary: false, user: Some(stack(&[function])), ..wait }
    }

    fn digest(stalls: &[StallRecord]) -> StallDigest {
        let mut digest = StallDigest::new(3);
        stalls.iter().for_each(|stall| digest.add(stall));
        digest
    }

    #[test]
    fn equal_waits_form_a_group() {
        let digest = digest(&[
            stall(1, "engine", LOCK, "release", 50),
            stall(2, "engine", LOCK, "release", 70),
            stall(3, "engine", LOCK, "parse", 10),
            stall(4, "logger", LOCK, "release", 10),
        ]);
        let groups = digest.groups();
        assert_eq!(groups.iter().map(|group| group.count).collect::<Vec<_>>(), [2, 1, 1]);
        assert_eq!((groups[0].total_ns, groups[0].longest.id), (120, 2));
        assert_eq!((digest.count, digest.total_ns), (4, 140));
    }

    #[test]
    fn preemption_groups_by_thread_wherever_it_hit() {
        let digest = digest(&[
            stall(1, "engine", StallReason::Preempted, "parse", 50),
            stall(2, "engine", StallReason::Preempted, "release", 70),
        ]);
        assert_eq!(digest.groups().len(), 1);
        assert_eq!(digest.groups()[0].key.site, None);
    }

    #[test]
    fn lateness_comes_before_waits_for_others() {
        let network = StallReason::Blocked(Reason::Network);
        let digest = digest(&[
            stall(1, "acceptor", network, "accept_loop", 9_000),
            stall(2, "engine", LOCK, "release", 70),
        ]);
        assert_eq!(&*digest.groups()[0].key.comm, "engine");
        assert_eq!(digest.longest().iter().map(|stall| stall.id).collect::<Vec<_>>(), [2, 1]);
    }

    #[test]
    fn the_longest_are_kept_in_order_and_voluntary_ones_left_out() {
        let mut stalls: Vec<StallRecord> = (1..=9).map(|id| stall(id, "e", LOCK, "f", id % 5)).collect();
        stalls.push(StallRecord { voluntary: true, ..stall(10, "e", LOCK, "f", 1_000) });
        let digest = digest(&stalls);
        assert_eq!(digest.longest().iter().map(|stall| stall.id).collect::<Vec<_>>(), [4, 9, 3]);
        assert_eq!((digest.count, digest.voluntary), (9, 1));
    }

    #[test]
    fn voluntary_waits_are_grouped_by_place_and_ordered_by_time() {
        let poll = StallReason::Blocked(Reason::Poll);
        let idle = |id, tid, function, ns| StallRecord {
            voluntary: true,
            tid,
            ..stall(id, "nginx", poll, function, ns)
        };
        let digest = digest(&[
            idle(1, 7, "process_events", 900),
            idle(2, 8, "process_events", 400),
            idle(3, 7, "wait_for_children", 1_200),
            stall(4, "nginx", LOCK, "process_events", 5_000),
        ]);
        let groups = digest.idle_groups();
        let facts: Vec<_> = groups.iter().map(|g| (g.total_ns, g.count, g.tids.len())).collect();
        assert_eq!(facts, [(1_300, 2, 2), (1_200, 1, 1)]);
        assert_eq!(&*groups[0].key.site.as_ref().unwrap().functions[0], "process_events");
        assert_eq!((digest.count, digest.voluntary, digest.groups().len()), (1, 3, 1));
    }

    #[test]
    fn time_slices_of_a_wait_count_once_with_the_thread_that_ended_the_last_one() {
        let woken = |comm: Option<&str>| {
            Some(WakerRecord { thread: comm.map(thread), user: Some(stack(&["wake"])), kernel: None })
        };
        let slice = |id, reason, comm, ns| StallRecord {
            wait_id: Some(1),
            waker: woken(comm),
            ..stall(id, "clerk", reason, "take", ns)
        };
        let digest = digest(&[
            slice(1, LOCK, None, 500),
            slice(2, StallReason::Runnable, None, 700),
            slice(3, LOCK, Some("holder"), 90),
            stall(4, "clerk", LOCK, "take", 600),
        ]);
        let groups = digest.groups();
        assert_eq!((groups.len(), groups[0].count, groups[0].total_ns), (1, 2, 1_890));
        assert_eq!((groups[0].longest.id, groups[0].longest.late_ns), (3, 1_290));
        assert_eq!(
            groups[0].releases.top().map(|(release, _)| release.comm.as_deref()),
            Some(Some("holder"))
        );
        assert_eq!((digest.count, digest.total_ns), (2, 1_890));
    }

    #[test]
    fn voluntary_waits_with_a_meaning_are_grouped_by_it_and_not_by_the_system_call() {
        let meaning = |name: &str| {
            let source = wallprof_model::MeaningSource::Stack;
            Some(Arc::new(Meaning { name: name.into(), software: None, idle: true, holder: false, source }))
        };
        let idle = |id, reason, meaning| StallRecord {
            voluntary: true,
            meaning,
            ..stall(id, "backend", StallReason::Blocked(reason), "WaitEventSetWait", 100)
        };
        let digest = digest(&[
            idle(1, Reason::Poll, meaning("client idle")),
            idle(2, Reason::Network, meaning("client idle")),
            idle(3, Reason::Poll, meaning("background sleep")),
            idle(4, Reason::Poll, None),
        ]);
        let groups: Vec<_> = digest.idle_groups().iter().map(|g| (g.key.what.clone(), g.count)).collect();
        assert_eq!(groups[0], (IdleWait::Meaning(meaning("client idle").unwrap()), 2));
        assert_eq!(groups.len(), 3);
        assert!(groups.contains(&(IdleWait::Reason(StallReason::Blocked(Reason::Poll)), 1)));
    }

    #[test]
    fn wakers_and_lock_owners_are_counted() {
        let waker = WakerRecord {
            thread: Some(thread("housekeeper")),
            user: Some(stack(&["compact"])),
            kernel: None,
        };
        let lock = LockRecord { address: 0x10, owner: Some(thread("housekeeper")) };
        let stalls = [1, 2, 3].map(|id| StallRecord {
            waker: (id < 3).then(|| waker.clone()),
            lock: Some(lock.clone()),
            ran_instead: vec![(thread("neighbour"), 5)],
            asked_ns: (id == 1).then_some(49), // A timeout bounds a wait for a lock: it cannot be overslept.
            ..stall(id, "engine", LOCK, "release", 50)
        });
        let digest = digest(&stalls);
        let group = digest.groups()[0];
        let (release, count) = group.releases.top().unwrap();
        assert_eq!((release.comm.as_deref(), count), (Some("housekeeper"), 2));
        assert_eq!(&*release.site.as_ref().unwrap().functions[0], "compact");
        assert_eq!(group.owners.top(), Some((&"housekeeper".to_string(), 3)));
        assert_eq!(group.ran_instead.total(), 15);
        assert_eq!(group.overslept, 0);
    }

    #[test]
    fn voluntary_wait_is_late_by_the_time_after_its_timeout() {
        let poll = StallReason::Blocked(wallprof_model::Reason::Poll);
        let overslept = StallRecord { asked_ns: Some(200), ..stall(1, "idle", poll, "wait", 206) };
        let timed_lock = StallRecord { asked_ns: Some(200), ..stall(2, "worker", LOCK, "take", 206) };
        let preempted = stall(3, "worker", StallReason::Preempted, "run", 50);
        let without_cpu = StallRecord {
            asked_ns: Some(200),
            blocked_ns: 201,
            runnable_ns: 204,
            ..stall(4, "tick", StallReason::Runnable, "wait", 405)
        };
        let mut digest = StallDigest::new(2);
        let stalls = [&overslept, &timed_lock, &preempted, &without_cpu];
        stalls.into_iter().for_each(|stall| digest.add(stall));
        assert_eq!(digest.total_ns, 6 + 206 + 50 + 205);
        assert_eq!(digest.longest().iter().map(|stall| stall.id).collect::<Vec<_>>(), [2, 4]);
        let totals: Vec<u64> = digest.groups().iter().map(|group| group.total_ns).collect();
        assert_eq!(totals, [206, 205, 50, 6]);
        let overslept: u64 = digest.groups().iter().map(|group| group.overslept).sum();
        assert_eq!(overslept, 2);
    }

    #[test]
    fn groups_are_bounded() {
        let mut digest = StallDigest::new(1);
        for id in 0..(MOST_GROUPS as u64 + 10) {
            digest.add(&stall(id, &format!("thread-{id}"), LOCK, "f", 1));
        }
        assert_eq!((digest.groups().len(), digest.ungrouped), (MOST_GROUPS, 10));
        assert_eq!(digest.count, MOST_GROUPS as u64 + 10);
    }

    #[test]
    fn functions_of_interpreters_without_names_are_noticed() {
        let of = |symbols: &[&str]| {
            let digest = digest(&[
                stall(1, "p", LOCK, "x", 10),
                StallRecord { user: Some(stack(symbols)), ..stall(2, "p", LOCK, "x", 10) },
            ]);
            [Interpreted::Java, Interpreted::Python].map(|program| digest.lacks_names_of(program))
        };
        assert_eq!(of(&["sem_wait", "_PyEval_EvalFrameDefault", "main"]), [false, true]);
        assert_eq!(of(&["sem_wait", "_PyEval_EvalFrameDefault", "py::settle:/shop.py"]), [false, false]);
        assert_eq!(of(&["sem_wait", "main"]), [false, false]);
        let java = |names: [Option<&str>; 2]| {
            let frame = |kind, module: Option<&str>, symbol: Option<&str>| {
                Arc::new(ResolvedFrame {
                    kind,
                    module: module.map(Into::into),
                    build_id: None,
                    address: 7,
                    lines: [SymbolLine { symbol: symbol.map(Into::into), ..SymbolLine::default() }].into(),
                })
            };
            let stalls = names.map(|name| StallRecord {
                user: Some(ResolvedStack {
                    frames: [
                        frame(FrameKind::Native, Some("/jvm/lib/server/libjvm.so"), Some("Unsafe_Park")),
                        frame(FrameKind::Jit, None, name),
                    ]
                    .into(),
                    end: StackEnd::Complete,
                }),
                ..stall(1, "java", LOCK, "x", 10)
            });
            digest(&stalls).lacks_names_of(Interpreted::Java)
        };
        assert_eq!([java([None, None]), java([None, Some("Shop.settle")])], [true, false]);
    }

    #[test]
    fn threads_of_gos_scheduler_are_noticed_whatever_they_waited_for() {
        let of = |software: &str, voluntary| {
            let (name, source) = ("goroutines".into(), wallprof_model::MeaningSource::Stack);
            let meaning = wallprof_model::Meaning {
                name,
                software: Some(software.into()),
                idle: true,
                holder: false,
                source,
            };
            StallRecord { voluntary, meaning: Some(Arc::new(meaning)), ..stall(1, "m", LOCK, "stopm", 10) }
        };
        assert!(digest(&[of("go", true)]).has_go);
        assert!(digest(&[of("go", false)]).has_go);
        assert!(!digest(&[of("gopher", true), stall(2, "m", LOCK, "stopm", 10)]).has_go);
    }
}
