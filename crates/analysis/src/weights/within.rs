// SPDX-License-Identifier: Apache-2.0
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
            sum.add(&row);
        }
    }
    Ok(threads)
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
