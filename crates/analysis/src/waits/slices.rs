//! Waits in time slices: a thread that waits with a timeout, looks, and waits on is in one wait.

use wallprof_model::{StackId, StallReason, ThreadKey, WaitRow};

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

/// The index of the first slice, for each of one thread's waits, which come by start.
pub(super) fn first_slices(waits: &[Single]) -> Vec<usize> {
    let mut firsts: Vec<usize> = Vec::with_capacity(waits.len());
    for (at, wait) in waits.iter().enumerate() {
        let continued = at.checked_sub(1).filter(|&before| {
            let slice = waits[before];
            slice.timed_out && is_at_once(&slice, wait)
        });
        firsts.push(continued.map_or(at, |before| firsts[before]));
    }
    firsts
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_model::{MonoNs, Reason};

    const MS: u64 = 1_000_000;

    fn singles(waits: &[WaitRow]) -> Vec<Single> {
        waits.iter().filter_map(Single::new).collect()
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
        assert_eq!(first_slices(&singles(&waits)), [0, 0, 0, 3, 4, 5]);
        let untimed = [wait(0, MS, None), wait(MS, MS, None)];
        assert_eq!(first_slices(&singles(&untimed)), [0, 1]);
    }
}
