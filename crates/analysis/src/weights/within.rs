//! Threads as they were during a part of a recording.

use std::collections::HashMap;

use wallprof_model::ThreadKey;
use wallprof_model::event::LedgerDelta;
use wallprof_model::profile::{LedgerRow, Thread};

/// `threads` with their ledgers replaced by the sums of `rows`; a thread without rows has an empty one. Rows
/// of threads that are not listed go to [`ThreadKey::OTHERS`], where it is.
///
/// # Errors
/// The first error among `rows`.
pub fn threads_within<E>(
    mut threads: Vec<Thread>,
    rows: impl Iterator<Item = Result<LedgerRow, E>>,
) -> Result<Vec<Thread>, E> {
    let mut ledgers: HashMap<ThreadKey, &mut LedgerDelta> = HashMap::with_capacity(threads.len());
    for thread in &mut threads {
        thread.ledger = LedgerDelta::new(thread.info.key, thread.ledger.second);
        ledgers.insert(thread.info.key, &mut thread.ledger);
    }
    for row in rows {
        let row = row?;
        let known = ledgers.contains_key(&row.thread);
        let key = if known { row.thread } else { ThreadKey::OTHERS };
        if let Some(sum) = ledgers.get_mut(&key) {
            add(sum, &row);
        }
    }
    Ok(threads)
}

fn add(sum: &mut LedgerDelta, row: &LedgerRow) {
    let pairs = [
        (&mut sum.wall_ns, row.wall_ns),
        (&mut sum.on_cpu_ns, row.on_cpu_ns),
        (&mut sum.irq_ns, row.irq_ns),
        (&mut sum.fault_minor_ns, row.fault_minor_ns),
        (&mut sum.fault_major_ns, row.fault_major_ns),
        (&mut sum.fault_on_cpu_ns, row.fault_on_cpu_ns),
        (&mut sum.runnable_ns, row.runnable_ns),
        (&mut sum.preempted_ns, row.preempted_ns),
        (&mut sum.minor_faults, row.minor_faults),
        (&mut sum.major_faults, row.major_faults),
        (&mut sum.failed_faults, row.failed_faults),
        (&mut sum.voluntary_switches, row.voluntary_switches),
        (&mut sum.involuntary_switches, row.involuntary_switches),
        (&mut sum.user_samples, row.user_samples),
        (&mut sum.kernel_samples, row.kernel_samples),
        (&mut sum.traced_user_ns, row.traced_user_ns),
        (&mut sum.traced_kernel_ns, row.traced_kernel_ns),
        (&mut sum.undivided_ns, row.undivided_ns),
    ];
    for (to, number) in pairs.into_iter().chain(sum.blocked_ns.iter_mut().zip(row.blocked_ns)) {
        *to = to.saturating_add(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::fixture::thread;
    use wallprof_model::EpochSecond;

    #[test]
    fn rows_of_threads_that_are_not_listed_are_the_others() {
        let row = |key, wall_ns| LedgerRow { wall_ns, ..LedgerDelta::new(ThreadKey(key), EpochSecond(4)) };
        let rows = || [row(1, 10), row(8, 5), row(9, 7)].map(Ok::<_, ()>).into_iter();
        let wall = |threads: Vec<Thread>| -> Vec<u64> {
            let within = threads_within(threads, rows()).unwrap();
            within.iter().map(|thread| thread.ledger.wall_ns).collect()
        };
        assert_eq!(wall(vec![thread(1, "engine"), thread(u32::MAX, "[2 more threads]")]), [10, 12]);
        assert_eq!(wall(vec![thread(1, "engine")]), [10]);
    }

    #[test]
    fn only_the_rows_of_the_range_count() {
        let row =
            |second, wall_ns| LedgerRow { wall_ns, ..LedgerDelta::new(ThreadKey(1), EpochSecond(second)) };
        let untracked = LedgerDelta::new(ThreadKey(9), EpochSecond(4));
        let mut before = thread(1, "engine");
        before.ledger.wall_ns = 99;
        let rows = [row(4, 10), row(5, u64::MAX), untracked].map(Ok::<_, ()>);
        let threads = threads_within(vec![before, thread(2, "idle")], rows.into_iter()).unwrap();
        assert_eq!(threads.iter().map(|thread| thread.ledger.wall_ns).collect::<Vec<_>>(), [u64::MAX, 0]);
        assert_eq!(threads_within(vec![], [Err("damaged")].into_iter()), Err("damaged"));
    }
}
