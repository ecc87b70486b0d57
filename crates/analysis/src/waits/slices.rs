//! Waits in time slices: a thread that waits with a timeout, looks, and waits on is in one wait.

use wallprof_model::WaitRow;

/// The longest time between two slices of one wait, ns. Between them a thread takes a timer's interrupt,
/// perhaps waits for a CPU, and tries the lock once more.
const GAP_NS: u64 = 200_000;

/// Whether a wait ended by its timeout.
pub(super) fn timed_out(wait: &WaitRow) -> bool {
    wait.asked_ns.is_some_and(|asked_ns| wait.blocked_ns >= asked_ns) && !wait.open
}

/// The index of the first slice, for each of one thread's waits, which come by start.
pub(super) fn first_slices(waits: &[&WaitRow]) -> Vec<usize> {
    let mut firsts: Vec<usize> = Vec::with_capacity(waits.len());
    for (at, wait) in waits.iter().enumerate() {
        let continued = at.checked_sub(1).filter(|&before| {
            let slice = waits[before];
            timed_out(slice)
                && slice.user == wait.user
                && slice.reason == wait.reason
                && wait.start.0.saturating_sub(slice.end.0) <= GAP_NS
        });
        firsts.push(continued.map_or(at, |before| firsts[before]));
    }
    firsts
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_model::{MonoNs, Reason, StackId, StallReason, ThreadKey};

    const MS: u64 = 1_000_000;

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
        assert_eq!(first_slices(&waits.iter().collect::<Vec<_>>()), [0, 0, 0, 3, 4, 5]);
        let untimed = [wait(0, MS, None), wait(MS, MS, None)];
        assert_eq!(first_slices(&untimed.iter().collect::<Vec<_>>()), [0, 1]);
    }
}
