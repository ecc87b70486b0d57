// SPDX-License-Identifier: Apache-2.0
//! Where the holder of a lock was while another thread waited for it: off the CPU itself, as its own stalls
//! say, or where it let go.
//!
//! A stack that was taken after the release would be wrong: only the time from the start of a wait to its
//! wakeup counts.

use std::collections::{BTreeMap, HashMap, HashSet};

use wallprof_model::profile::{ResolvedStack, StallRecord};
use wallprof_model::{MonoNs, StallKind, StallReason, State, ThreadKey};

/// Intervals kept; some 60 bytes each. With more of them nothing is said: the longest one could be missing.
const MOST_INTERVALS: usize = 2_000_000;

/// The state of a holder on a CPU.
const RUNNING: &str = "running";

/// Where a stack of a holder is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HolderFrom {
    /// It was off the CPU while it held the lock.
    Wait,
    /// It was sampled while it held the lock.
    Sample,
    /// It released the lock there.
    Release,
}

impl HolderFrom {
    pub fn name(self) -> &'static str {
        match self {
            HolderFrom::Wait => "wait",
            HolderFrom::Sample => "sample",
            HolderFrom::Release => "release",
        }
    }
}

/// The holder of a lock during one wait.
#[derive(Clone, Debug, PartialEq)]
pub struct Holder {
    /// What it did for the longest part of the wait: `blocked:disk`, `preempted`, `fault:major`, or `running`,
    /// which includes waits that were too short to be recorded.
    pub state: String,
    /// `None`: no stack is known.
    pub user: Option<(HolderFrom, ResolvedStack)>,
}

/// The stalls of all threads that held locks for which others waited.
#[derive(Debug, Default)]
pub struct Holders {
    /// By start. Those of one thread do not overlap.
    by_thread: HashMap<ThreadKey, Vec<Away>>,
    count: usize,
    /// When a thread woke another one that waited for a lock, and where, or began to wait for it itself; ascending.
    /// It did not hold it then.
    free: HashMap<(ThreadKey, Lock), Vec<Free>>,
}

/// The address of a lock in a process.
type Lock = (u32, u64);

#[derive(Debug)]
struct Free {
    at: MonoNs,
    release: Option<ResolvedStack>,
}

#[derive(Debug)]
struct Away {
    start: MonoNs,
    woken: MonoNs,
    end: MonoNs,
    reason: StallReason,
    user: Option<ResolvedStack>,
    /// The lock that it waited for.
    lock: Option<Lock>,
}

/// The recorded holder of the lock that `stall` waits for.
fn holder_of(stall: &StallRecord) -> Option<ThreadKey> {
    stall.lock.as_ref()?.owner.as_ref()?.key
}

impl Holders {
    /// Takes a wait for a lock: its holder is one of the threads.
    pub fn add_wait(&mut self, wait: &StallRecord) {
        if let Some(holder) = holder_of(wait) {
            self.by_thread.entry(holder).or_default();
        }
        let Some(lock) = lock_of(wait).filter(|_| has_address(wait)) else { return };
        self.free.entry((wait.thread, lock)).or_default().push(Free { at: wait.start, release: None });
        let waker = wait.waker.as_ref();
        if let Some(key) = waker.and_then(|waker| waker.thread.as_ref()?.key) {
            let release = waker.and_then(|waker| waker.user.clone());
            self.free.entry((key, lock)).or_default().push(Free { at: woken(wait), release });
        }
    }

    /// The threads that held locks.
    pub fn threads(&self) -> HashSet<ThreadKey> {
        self.by_thread.keys().copied().collect()
    }

    /// Adds a stall; one of another thread is left out.
    pub fn add(&mut self, stall: &StallRecord) {
        let Some(intervals) = self.by_thread.get_mut(&stall.thread) else { return };
        self.count += 1;
        if self.count <= MOST_INTERVALS {
            intervals.push(Away {
                start: stall.start,
                woken: MonoNs(stall.end.0.saturating_sub(stall.runnable_ns)),
                end: stall.end,
                reason: stall.reason,
                user: stall.user.clone(),
                lock: lock_of(stall),
            });
        }
    }

    /// All stalls are added.
    pub fn sorted(mut self) -> Self {
        self.by_thread.values_mut().for_each(|stalls| stalls.sort_by_key(|away| (away.start, away.end)));
        self.free.values_mut().for_each(|times| times.sort_by_key(|free| free.at));
        self
    }

    /// Until when the owner that a wait found held the lock, and where it let go. Where several threads wait, its
    /// release wakes one of them. The others go on to wait for the next owner, which is not known.
    fn end_of_holding<'w>(
        &'w self,
        wait: &'w StallRecord,
        holder: ThreadKey,
    ) -> Option<(MonoNs, Option<&'w ResolvedStack>)> {
        let own = wait.waker.as_ref().filter(|_| is_woken_by(wait, holder));
        let whole = (woken(wait), own.and_then(|waker| waker.user.as_ref()));
        // A lock of the kernel has no address. Its owner held it all the time if it ended the wait; else it let
        // go earlier, and it is not known when.
        if !has_address(wait) {
            return own.map(|_| whole);
        }
        let times = lock_of(wait).and_then(|lock| self.free.get(&(holder, lock)));
        let times = times.map_or(&[][..], Vec::as_slice);
        let first = times.get(times.partition_point(|free| free.at <= wait.start));
        let earlier = first.filter(|free| free.at < whole.0);
        Some(earlier.map_or(whole, |free| (free.at, free.release.as_ref())))
    }

    /// What the holder of the lock did while `wait` was blocked, as long as it held it; `None` where the
    /// holder is not known.
    pub fn during(&self, wait: &StallRecord) -> Option<Holder> {
        let thread = holder_of(wait)?;
        let away = self.by_thread.get(&thread).filter(|_| self.count <= MOST_INTERVALS)?;
        let (until, release) = self.end_of_holding(wait, thread)?;
        let (start, until) = (wait.start.0, until.0);
        if until <= start {
            return None;
        }
        let overlap = |from: u64, to: u64| to.min(until).saturating_sub(from.max(start));
        let first = away.partition_point(|interval| interval.end.0 <= start);
        let during = away[first..].iter().take_while(|interval| interval.start.0 < until);
        // A thread that released the lock was on a CPU then: its later waits are no part of its holding.
        let has_released = until < woken(wait).0 || is_woken_by(wait, thread);
        let during = during.filter(|interval| !has_released || interval.end.0 <= until);
        let mut states: BTreeMap<String, u64> = BTreeMap::new();
        let mut longest: Option<(u64, &ResolvedStack)> = None;
        let mut away_ns = 0;
        for interval in during {
            let ns = overlap(interval.start.0, interval.end.0);
            away_ns += ns;
            let blocked_ns = match interval.reason {
                StallReason::Blocked(_) => overlap(interval.start.0, interval.woken.0),
                _ => ns,
            };
            *states.entry(label(interval.reason)).or_default() += blocked_ns;
            *states.entry(State::Runnable.label()).or_default() += ns - blocked_ns;
            // On its way out of its own wait for the lock, which had been handed to it, it did nothing yet.
            if let Some(stack) = &interval.user
                && interval.lock.is_none_or(|lock| lock_of(wait) != Some(lock))
                && longest.is_none_or(|(most, _)| ns > most)
            {
                longest = Some((ns, stack));
            }
        }
        *states.entry(RUNNING.into()).or_default() += (until - start).saturating_sub(away_ns);
        let (state, _) = states.into_iter().max_by_key(|(_, ns)| *ns)?;
        let away = longest.map(|(_, stack)| (HolderFrom::Wait, stack.clone()));
        let sample = wait.owner_sample.as_ref().filter(|(at, _)| at.0 >= start && at.0 < until);
        let sample = sample.map(|(_, stack)| (HolderFrom::Sample, stack.clone()));
        let release = release.map(|stack| (HolderFrom::Release, stack.clone()));
        // The stack of the state that is named.
        let user = match state == RUNNING {
            true => sample.or(release).or(away),
            false => away.or(sample).or(release),
        };
        Some(Holder { state, user })
    }
}

/// The end of a wait, behind which the thread waited for a CPU. A page fault also runs, for the most part behind its
/// wait.
fn woken(wait: &StallRecord) -> MonoNs {
    match wait.kind {
        StallKind::OffCpu => MonoNs(wait.end.0.saturating_sub(wait.runnable_ns).max(wait.start.0)),
        StallKind::Fault => MonoNs(wait.start.0.saturating_add(wait.blocked_ns).min(wait.end.0)),
    }
}

fn lock_of(wait: &StallRecord) -> Option<Lock> {
    Some((wait.pid, wait.lock.as_ref()?.address))
}

fn has_address(wait: &StallRecord) -> bool {
    wait.lock.as_ref().is_some_and(|lock| lock.address != 0)
}

fn is_woken_by(wait: &StallRecord, holder: ThreadKey) -> bool {
    let waker = wait.waker.as_ref().and_then(|waker| waker.thread.as_ref());
    waker.is_some_and(|thread| thread.key == Some(holder))
}

fn label(reason: StallReason) -> String {
    match reason {
        StallReason::Preempted => State::Preempted.label(),
        StallReason::Runnable => State::Runnable.label(),
        StallReason::Minor => State::FaultMinor.label(),
        StallReason::Major => State::FaultMajor.label(),
        StallReason::Blocked(reason) => State::Blocked(reason).label(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_model::profile::{LockRecord, WakerRecord};
    use wallprof_model::{Reason, StackEnd, ThreadRef};

    const WAITER: ThreadKey = ThreadKey(1);
    const HOLDER: ThreadKey = ThreadKey(2);

    fn stack() -> ResolvedStack {
        ResolvedStack { frames: Vec::new().into(), end: StackEnd::Complete }
    }

    /// A stack that differs from [`stack`].
    fn other_stack() -> ResolvedStack {
        ResolvedStack { end: StackEnd::Truncated, ..stack() }
    }

    fn holder() -> ThreadRef {
        ThreadRef { key: Some(HOLDER), tid: 20, ..ThreadRef::default() }
    }

    /// From 100 to 200, and then 20 without a CPU.
    fn wait() -> StallRecord {
        let whole = StallRecord::new(9, WAITER, StallReason::Blocked(Reason::Lock), MonoNs(100), 120);
        StallRecord {
            blocked_ns: 100,
            runnable_ns: 20,
            lock: Some(LockRecord { address: 0x7000, owner: Some(holder()) }),
            waker: Some(WakerRecord { thread: Some(holder()), user: Some(other_stack()), kernel: None }),
            ..whole
        }
    }

    fn away(reason: StallReason, start: u64, ns: u64) -> StallRecord {
        StallRecord { user: Some(stack()), ..StallRecord::new(1, HOLDER, reason, MonoNs(start), ns) }
    }

    fn with_waits(stalls: &[StallRecord], waits: &[StallRecord]) -> Holders {
        let mut holders = Holders::default();
        waits.iter().for_each(|wait| holders.add_wait(wait));
        stalls.iter().for_each(|stall| holders.add(stall));
        holders.sorted()
    }

    fn during(stalls: &[StallRecord], wait: &StallRecord) -> Option<Holder> {
        with_waits(stalls, std::slice::from_ref(wait)).during(wait)
    }

    const DISK: StallReason = StallReason::Blocked(Reason::Disk);

    #[test]
    fn holder_that_waited_has_the_stack_of_that_wait() {
        let found = during(&[away(DISK, 90, 80)], &wait()).expect("a holder");
        assert_eq!((found.state.as_str(), found.user), ("blocked:disk", Some((HolderFrom::Wait, stack()))));
    }

    #[test]
    fn wait_after_the_release_does_not_count() {
        let stalls = [away(DISK, 10, 80), away(DISK, 205, 500)];
        let found = during(&stalls, &wait()).expect("a holder");
        assert_eq!(found.state, "running");
        assert_eq!(found.user, Some((HolderFrom::Release, other_stack())));
    }

    #[test]
    fn wait_that_outlasts_the_release_began_after_it() {
        // The waiter's wakeup is a little late: the holder sleeps again by then.
        let found = during(&[away(DISK, 195, 500)], &wait()).expect("a holder");
        assert_eq!(found.state, "running");
        assert_eq!(found.user, Some((HolderFrom::Release, other_stack())));
        let released_by_another = StallRecord { waker: None, ..wait() };
        let found = during(&[away(DISK, 195, 500)], &released_by_another).expect("a holder");
        assert_eq!(found.user, Some((HolderFrom::Wait, stack())));
    }

    fn sampled(at: u64) -> StallRecord {
        let owner_sample = Some((MonoNs(at), ResolvedStack { end: StackEnd::NoTable, ..stack() }));
        StallRecord { owner_sample, ..wait() }
    }

    fn from(stalls: &[StallRecord], wait: &StallRecord) -> Option<HolderFrom> {
        during(stalls, wait).expect("a holder").user.map(|(from, _)| from)
    }

    #[test]
    fn holder_that_ran_has_the_stack_of_its_sample() {
        assert_eq!(from(&[], &sampled(150)), Some(HolderFrom::Sample));
        let briefly_away = away(StallReason::Preempted, 140, 5);
        assert_eq!(from(&[briefly_away], &sampled(150)), Some(HolderFrom::Sample), "it ran for longer");
        assert_eq!(from(&[away(DISK, 110, 60)], &sampled(180)), Some(HolderFrom::Wait));
    }

    #[test]
    fn sample_after_the_release_is_never_used() {
        assert_eq!(from(&[], &sampled(200)), Some(HolderFrom::Release), "woken at 200");
        assert_eq!(from(&[], &sampled(99)), Some(HolderFrom::Release), "before the wait");
        let by_other = Some(ThreadRef { key: Some(ThreadKey(3)), tid: 30, ..ThreadRef::default() });
        let waker = Some(WakerRecord { thread: by_other, user: Some(other_stack()), kernel: None });
        let queued = StallRecord { waker, ..sampled(150) };
        let first = StallRecord { id: 8, thread: ThreadKey(3), end: MonoNs(130), runnable_ns: 0, ..wait() };
        let holders = with_waits(&[], &[first, queued.clone()]);
        let user = holders.during(&queued).expect("a holder").user;
        assert_eq!(user, Some((HolderFrom::Release, other_stack())), "it woke thread 3 at 130");
    }

    #[test]
    fn owner_of_a_kernel_lock_counts_where_it_ended_the_wait() {
        let kernels = |wait: StallRecord| StallRecord {
            lock: wait.lock.map(|lock| LockRecord { address: 0, ..lock }),
            ..wait
        };
        assert_eq!(from(&[], &kernels(sampled(150))), Some(HolderFrom::Sample));
        let other = kernels(StallRecord { thread: ThreadKey(4), ..wait() });
        let found = with_waits(&[], &[other, kernels(sampled(150))]).during(&kernels(sampled(150)));
        assert!(found.is_some(), "locks of the kernel are not one lock");
        let by_other = StallRecord { waker: None, ..kernels(sampled(150)) };
        assert_eq!(during(&[], &by_other), None);
    }

    #[test]
    fn holder_of_the_memory_map_counts_until_the_page_faults_wait_is_over() {
        let fault = |at| StallRecord {
            kind: StallKind::Fault,
            reason: StallReason::Minor,
            blocked_ns: 60,
            lock: wait().lock.map(|lock| LockRecord { address: 0, ..lock }),
            ..sampled(at)
        };
        assert_eq!(from(&[], &fault(159)), Some(HolderFrom::Sample));
        assert_eq!(from(&[], &fault(160)), Some(HolderFrom::Release), "the fault runs on");
    }

    #[test]
    fn release_to_another_waiter_ends_the_holding() {
        // The holder wakes thread 3 at 130, and this wait goes on for another owner's release.
        let by_other = Some(ThreadRef { key: Some(ThreadKey(3)), tid: 30, ..ThreadRef::default() });
        let queued = StallRecord {
            waker: Some(WakerRecord { thread: by_other, user: Some(other_stack()), kernel: None }),
            ..wait()
        };
        let first = StallRecord {
            id: 8,
            thread: ThreadKey(3),
            end: MonoNs(130),
            blocked_ns: 30,
            runnable_ns: 0,
            ..wait()
        };
        let stalls = [away(DISK, 135, 60)];
        let alone = with_waits(&stalls, std::slice::from_ref(&queued)).during(&queued).expect("a holder");
        assert_eq!(alone.state, "blocked:disk", "the other wait is not known");
        let found = with_waits(&stalls, &[first, queued.clone()]).during(&queued).expect("a holder");
        let release = Some((HolderFrom::Release, other_stack()));
        assert_eq!((found.state.as_str(), found.user), ("running", release));
    }

    #[test]
    fn lock_that_was_handed_to_a_waiter_is_not_held_in_its_own_wait() {
        // The holder is woken with the lock at 90, and returns from its wait at 110.
        let own = StallRecord {
            id: 8,
            thread: HOLDER,
            start: MonoNs(50),
            end: MonoNs(110),
            runnable_ns: 20,
            ..wait()
        };
        let holders = with_waits(&[own], &[wait()]);
        let user = holders.during(&wait()).expect("a holder").user;
        assert_eq!(user, Some((HolderFrom::Release, other_stack())));
    }

    #[test]
    fn thread_that_waits_for_a_lock_does_not_hold_it() {
        let queued = StallRecord { waker: None, ..wait() };
        let own = StallRecord { id: 8, thread: HOLDER, start: MonoNs(120), ..wait() };
        let stalls = [away(StallReason::Blocked(Reason::Lock), 120, 100)];
        let found = with_waits(&stalls, &[own, queued.clone()]).during(&queued).expect("a holder");
        assert_eq!((found.state.as_str(), found.user), ("running", None));
    }

    #[test]
    fn state_is_that_of_the_longest_part() {
        let found = during(&[away(StallReason::Preempted, 140, 55), away(DISK, 120, 10)], &wait());
        assert_eq!(found.map(|found| found.state).as_deref(), Some("preempted"));
        let late = StallRecord { blocked_ns: 5, runnable_ns: 75, ..away(DISK, 110, 80) };
        assert_eq!(during(&[late], &wait()).map(|found| found.state).as_deref(), Some("runnable"));
        let fault = during(&[away(StallReason::Major, 110, 80)], &wait());
        assert_eq!(fault.map(|found| found.state).as_deref(), Some("fault:major"));
    }

    #[test]
    fn another_thread_that_ended_the_wait_is_not_the_holder() {
        let mut by_other = wait();
        by_other.waker.as_mut().and_then(|waker| waker.thread.as_mut()).expect("a waker").key =
            Some(ThreadKey(7));
        assert_eq!(during(&[], &by_other).expect("a holder").user, None);
    }

    #[test]
    fn holder_that_is_not_recorded_is_unknown() {
        let mut unknown = wait();
        unknown.lock.as_mut().and_then(|lock| lock.owner.as_mut()).expect("an owner").key = None;
        assert_eq!(during(&[away(DISK, 90, 80)], &unknown), None);
        assert_eq!(during(&[], &StallRecord { lock: None, ..wait() }), None);
    }
}
