// SPDX-License-Identifier: Apache-2.0
//! Waits in time slices: a thread that waits with a timeout, looks, and waits on is in one wait.

use wallprof_model::{Reason, StackId, StallReason, ThreadKey, WaitRow};

/// The longest time between two slices of one wait, ns. Between them a thread takes a timer's interrupt,
/// perhaps waits for a CPU, and tries the lock once more.
const GAP_NS: u64 = 200_000;

/// A single wait that ended, in little memory. Times in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Single {
    pub id: u64,
    pub start: u64,
    pub end: u64,
    /// The part up to the wakeup.
    pub blocked_ns: u64,
    pub thread: ThreadKey,
    pub waker: Option<ThreadKey>,
    /// The stacks' ids; 0 for none.
    user: u32,
    kernel: u32,
    pub reason: StallReason,
    /// It ended with its timeout.
    pub timed_out: bool,
}

const _: () = assert!(size_of::<Single>() <= 64);

impl Single {
    /// `None` for a wait that goes on.
    pub fn new(wait: &WaitRow) -> Option<Self> {
        let stack = |id: Option<StackId>| id.and_then(|id| u32::try_from(id.0).ok()).unwrap_or(0);
        (!wait.open).then(|| Single {
            id: wait.id,
            start: wait.start.0,
            end: wait.end.0,
            blocked_ns: wait.blocked_ns.min(wait.end.0.saturating_sub(wait.start.0)),
            thread: wait.thread,
            waker: wait.waker,
            user: stack(wait.user),
            kernel: stack(wait.kernel),
            reason: wait.reason,
            timed_out: wait.asked_ns.is_some_and(|asked_ns| wait.blocked_ns >= asked_ns),
        })
    }

    pub fn user(&self) -> Option<StackId> {
        (self.user != 0).then_some(StackId(u64::from(self.user)))
    }

    pub fn kernel(&self) -> Option<StackId> {
        (self.kernel != 0).then_some(StackId(u64::from(self.kernel)))
    }

    /// When the thread was woken.
    pub fn woken(&self) -> u64 {
        self.start.saturating_add(self.blocked_ns)
    }
}

/// Whether `wait` goes on where `slice` ended without another recorded thread: by a timer or a signal. A packet
/// ends waits in this way, too, so that this says one wait only of a place that waits for one thing.
pub(super) fn goes_on(slice: &Single, wait: &Single) -> bool {
    slice.waker.is_none() && is_at_once(slice, wait)
}

/// Whether a thread that slept asks again, and sleeps again: for the same thing, by another call perhaps. It was without
/// a CPU in between for `without_cpu_ns`.
pub(super) fn asks_again(slice: &Single, wait: &Single, without_cpu_ns: u64) -> bool {
    let is_sleep = |wait: &Single| wait.reason == StallReason::Blocked(Reason::Sleep);
    slice.thread == wait.thread
        && is_sleep(slice)
        && is_sleep(wait)
        && slice.waker.is_none()
        && is_continued(slice.timed_out, slice.end.saturating_add(without_cpu_ns), wait.start)
}

fn is_at_once(slice: &Single, wait: &Single) -> bool {
    slice.thread == wait.thread
        && slice.user == wait.user
        && slice.reason == wait.reason
        && is_continued(true, slice.end, wait.start)
}

/// Whether a wait that ended goes on in one at the same place that starts at `next_start`, ns.
pub fn is_continued(timed_out: bool, end: u64, next_start: u64) -> bool {
    timed_out && next_start.saturating_sub(end) <= GAP_NS
}

/// The index of the first slice, for each of one thread's waits, which come by start. Slices may be two calls
/// in one function: `has_same_functions` compares two user stacks.
///
/// # Errors
/// Those of `has_same_functions`.
pub(super) fn first_slices<E>(
    waits: &[Single],
    mut has_same_functions: impl FnMut(StackId, StackId) -> Result<bool, E>,
) -> Result<Vec<usize>, E> {
    let mut firsts: Vec<usize> = Vec::with_capacity(waits.len());
    for (at, wait) in waits.iter().enumerate() {
        let first = match at.checked_sub(1) {
            Some(before) if may_continue(&waits[firsts[before]], &waits[before], wait) => {
                let is_one_place = match (waits[before].user(), wait.user()) {
                    (Some(one), Some(other)) => one == other || has_same_functions(one, other)?,
                    (one, other) => one == other,
                };
                if is_one_place { firsts[before] } else { at }
            }
            _ => at,
        };
        firsts.push(first);
    }
    Ok(firsts)
}

/// Whether a wait can be the slice after `before`, by time and reason. A slice that was blocked for less time
/// than it then waited for a CPU has the reason `runnable`. A wait does not start with one: its reason is that
/// of its first slice.
fn may_continue(first: &Single, before: &Single, wait: &Single) -> bool {
    is_continued(before.timed_out, before.end, wait.start)
        && first.reason != StallReason::Runnable
        && (wait.reason == first.reason || wait.reason == StallReason::Runnable)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;
    use wallprof_model::MonoNs;

    const MS: u64 = 1_000_000;

    /// Stacks 7 and 9 are two calls in one function.
    fn firsts(waits: &[WaitRow]) -> Vec<usize> {
        let singles: Vec<Single> = waits.iter().filter_map(Single::new).collect();
        let has_same = |one: StackId, other: StackId| Ok::<_, Infallible>(one.0 % 2 == other.0 % 2);
        let Ok(firsts) = first_slices(&singles, has_same);
        firsts
    }

    fn wait(start: u64, ns: u64, asked_ns: Option<u64>) -> WaitRow {
        WaitRow {
            id: start + 1,
            thread: ThreadKey(1),
            reason: StallReason::Blocked(Reason::Wait),
            start: MonoNs(start),
            end: MonoNs(start + ns),
            blocked_ns: ns,
            asked_ns,
            open: false,
            user: Some(StackId(7)),
            kernel: None,
            waker: None,
        }
    }

    #[test]
    fn slices_are_timed_out_and_follow_each_other_at_one_place() {
        let five = Some(5 * MS);
        let waits = [
            wait(0, 5 * MS, five),
            wait(5 * MS + 50_000, 5 * MS, five),
            wait(10 * MS + 90_000, 2 * MS, five),
            wait(13 * MS, 5 * MS, five),
            wait(30 * MS, 5 * MS, five),
            WaitRow { user: Some(StackId(8)), ..wait(35 * MS, MS, five) },
        ];
        assert_eq!(firsts(&waits), [0, 0, 0, 3, 4, 5]);
        let untimed = [wait(0, MS, None), wait(MS, MS, None)];
        assert_eq!(firsts(&untimed), [0, 1]);
    }

    #[test]
    fn thread_that_sleeps_and_asks_again_is_in_one_wait() {
        let sleep = |start, asked_ns| WaitRow {
            reason: StallReason::Blocked(Reason::Sleep),
            ..wait(start, 5 * MS, asked_ns)
        };
        let single = |row: &WaitRow| Single::new(row).expect("it ended");
        let first = single(&sleep(0, Some(5 * MS)));
        let next = |start| single(&WaitRow { user: Some(StackId(8)), ..sleep(start, Some(5 * MS)) });
        assert!(asks_again(&first, &next(5 * MS + 50_000), 0), "by another call");
        assert!(!asks_again(&first, &next(9 * MS), 0));
        assert!(asks_again(&first, &next(9 * MS), 4 * MS - 50_000), "it had no CPU");
        let woken = single(&WaitRow { waker: Some(ThreadKey(2)), ..sleep(0, Some(5 * MS)) });
        assert!(!asks_again(&woken, &next(5 * MS), 0));
        assert!(!asks_again(&single(&sleep(0, None)), &next(5 * MS), 0));
        assert!(!asks_again(&single(&wait(0, 5 * MS, Some(5 * MS))), &next(5 * MS), 0), "no sleep");
    }

    #[test]
    fn two_calls_in_one_function_are_slices_of_one_wait() {
        let five = Some(5 * MS);
        let with = |user, start| WaitRow { user: Some(StackId(user)), ..wait(start, 5 * MS, five) };
        let waits = [with(7, 0), with(9, 5 * MS), with(8, 10 * MS), with(8, 15 * MS)];
        assert_eq!(firsts(&waits), [0, 0, 2, 2]);
        let without = [WaitRow { user: None, ..with(7, 0) }, with(7, 5 * MS)];
        assert_eq!(firsts(&without), [0, 1]);
    }

    #[test]
    fn slice_that_waited_longer_for_a_cpu_than_for_the_lock_does_not_break_the_wait() {
        let five = Some(5 * MS);
        let late = |start, ns| WaitRow {
            reason: StallReason::Runnable,
            blocked_ns: 5 * MS,
            ..wait(start, ns, five)
        };
        let waits = [wait(0, 5 * MS, five), late(5 * MS, 12 * MS), wait(17 * MS, 5 * MS, five)];
        assert_eq!(firsts(&waits), [0, 0, 0]);
        let first_is_late = [late(0, 12 * MS), wait(12 * MS, 5 * MS, five), wait(17 * MS, MS, five)];
        assert_eq!(firsts(&first_is_late), [0, 1, 1], "the reason is that of the first");
        let other = WaitRow { reason: StallReason::Blocked(Reason::Poll), ..wait(17 * MS, MS, five) };
        assert_eq!(firsts(&[wait(0, 5 * MS, five), late(5 * MS, 12 * MS), other]), [0, 0, 2]);
    }
}
