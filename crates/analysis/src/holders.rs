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

/// Where a stack of a holder is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HolderFrom {
    /// It was off the CPU while it held the lock.
    Wait,
    /// It released the lock there.
    Release,
}

impl HolderFrom {
    pub fn name(self) -> &'static str {
        match self {
            HolderFrom::Wait => "wait",
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
}

#[derive(Debug)]
struct Away {
    start: MonoNs,
    woken: MonoNs,
    end: MonoNs,
    reason: StallReason,
    user: Option<ResolvedStack>,
}

/// The recorded holder of the lock that `stall` waits for.
pub fn holder_of(stall: &StallRecord) -> Option<ThreadKey> {
    stall.lock.as_ref()?.owner.as_ref()?.key
}

impl Holders {
    /// Of these threads.
    pub fn new(threads: HashSet<ThreadKey>) -> Self {
        let by_thread = threads.into_iter().map(|thread| (thread, Vec::new())).collect();
        Holders { by_thread, count: 0 }
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
            });
        }
    }

    /// All stalls are added.
    pub fn sorted(mut self) -> Self {
        self.by_thread.values_mut().for_each(|stalls| stalls.sort_by_key(|away| (away.start, away.end)));
        self
    }

    /// What the holder of the lock did while `wait` was blocked; `None` where the holder is not known.
    pub fn during(&self, wait: &StallRecord) -> Option<Holder> {
        let thread = holder_of(wait)?;
        let away = self.by_thread.get(&thread).filter(|_| self.count <= MOST_INTERVALS)?;
        let (start, woken) = (wait.start.0, wait.end.0.saturating_sub(wait.runnable_ns));
        if wait.kind != StallKind::OffCpu || woken <= start {
            return None;
        }
        let overlap = |from: u64, to: u64| to.min(woken).saturating_sub(from.max(start));
        let first = away.partition_point(|interval| interval.end.0 <= start);
        let during = away[first..].iter().take_while(|interval| interval.start.0 < woken);
        // A thread that ended the wait was on a CPU then: what it has not returned from by now came after the release.
        let has_released = is_woken_by(wait, thread);
        let during = during.filter(|interval| !has_released || interval.end.0 <= woken);
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
            if let Some(stack) = &interval.user
                && longest.is_none_or(|(most, _)| ns > most)
            {
                longest = Some((ns, stack));
            }
        }
        *states.entry("running".into()).or_default() += (woken - start).saturating_sub(away_ns);
        let (state, _) = states.into_iter().max_by_key(|(_, ns)| *ns)?;
        let away = longest.map(|(_, stack)| (HolderFrom::Wait, stack.clone()));
        Some(Holder { state, user: away.or_else(|| released(wait, thread)) })
    }
}

/// The stack in which the holder itself ended the wait.
fn released(wait: &StallRecord, holder: ThreadKey) -> Option<(HolderFrom, ResolvedStack)> {
    let waker = wait.waker.as_ref().filter(|_| is_woken_by(wait, holder))?;
    Some((HolderFrom::Release, waker.user.clone()?))
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

    fn during(stalls: &[StallRecord], wait: &StallRecord) -> Option<Holder> {
        let mut holders = Holders::new(holder_of(wait).into_iter().collect());
        stalls.iter().for_each(|stall| holders.add(stall));
        holders.sorted().during(wait)
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
