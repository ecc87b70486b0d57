// SPDX-License-Identifier: Apache-2.0
//! Waits that are known by what ended them. Polls that a disk ended: the completions of io_uring and of
//! asynchronous I/O through an eventfd, and those of io_uring's workers that waited for a disk themselves. Pages
//! of a file system in user space that were read ahead: their process ended the waits.
//!
//! The kernel stack of the wakeup says what ended a wait.

use std::collections::HashMap;

use wallprof_model::meaning::Place;
use wallprof_model::profile::ResolvedStack;
use wallprof_model::{StackId, ThreadKey};

/// Functions with which the block layer ends a request, whatever the driver.
pub(super) const DISK_ENDS: [&str; 4] =
    ["blk_mq_end_request", "blk_mq_end_request_batch", "blk_update_request", "bio_endio"];

/// Functions of the workers with which io_uring runs what cannot be done at once: `fsync`, among others
/// (io_uring/io-wq.c).
const WORKERS: [&str; 3] = ["io_wq_worker", "io_worker_handle_work", "io_wq_submit_work"];

/// The kernel's functions that copy the memory map of a process; one or more of them are inlined.
const FORK_ENDS: [&str; 3] = ["dup_mmap", "dup_mm", "copy_process"];

/// Functions with which an answer of a process ends a request to its file system.
const FUSE_ENDS: [&str; 2] = ["fuse_request_end", "fuse_dev_do_write"];

/// The least share of a place's waited time that they end. A server's loop waits for a disk and for clients.
const LEAST_SHARE: u128 = 50;

/// Sums that are kept. Of further ones the waker's stack is not known.
const MOST_SUMS: usize = 1 << 18;

/// What ended a wait: the kernel stack of the wakeup, and the thread that it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct End {
    kernel: StackId,
    thread: Option<ThreadKey>,
}

#[derive(Clone, Copy)]
enum By {
    /// One of the functions that are asked for.
    Functions,
    /// A worker of io_uring.
    Worker,
    Others,
}

/// The time of waits by their place and what ended them, ns.
#[derive(Debug, Default)]
pub(super) struct Ends(HashMap<Place, HashMap<Option<End>, u64>>, usize);

impl Ends {
    pub fn add(&mut self, place: Place, waker_kernel: Option<StackId>, waker: Option<ThreadKey>, ns: u64) {
        let Ends(places, count) = self;
        let sums = places.entry(place).or_default();
        let end = waker_kernel.map(|kernel| End { kernel, thread: waker });
        let is_new = !sums.contains_key(&end);
        let end = end.filter(|_| !is_new || *count < MOST_SUMS);
        *count += usize::from(is_new && end.is_some());
        let sum = sums.entry(end).or_default();
        *sum = sum.saturating_add(ns);
    }

    /// The places whose waits a process that serves a file system ends, for half of the time or more.
    pub fn by_file_servers<E>(
        &self,
        resolve: impl FnMut(StackId) -> Result<ResolvedStack, E>,
    ) -> Result<Vec<Place>, E> {
        self.ended(&FUSE_ENDS, |_| 0, resolve)
    }

    /// The places whose waits a disk ends, for half of the time or more. `disk_ns`: how long a thread waited for a
    /// disk. A worker of io_uring did so for half of the time in which others waited for the worker.
    pub fn by_disks<E>(
        &self,
        disk_ns: impl Fn(ThreadKey) -> u64,
        resolve: impl FnMut(StackId) -> Result<ResolvedStack, E>,
    ) -> Result<Vec<Place>, E> {
        self.ended(&DISK_ENDS, disk_ns, resolve)
    }

    fn ended<E>(
        &self,
        functions: &[&str],
        disk_ns: impl Fn(ThreadKey) -> u64,
        mut resolve: impl FnMut(StackId) -> Result<ResolvedStack, E>,
    ) -> Result<Vec<Place>, E> {
        let mut known: HashMap<StackId, By> = HashMap::new();
        let mut found = Vec::new();
        for (place, sums) in &self.0 {
            let (mut all_ns, mut ended_ns) = (0u128, 0u128);
            let mut by_worker: HashMap<ThreadKey, u64> = HashMap::new();
            for (end, ns) in sums {
                all_ns += u128::from(*ns);
                let Some(End { kernel, thread }) = end else { continue };
                let by = match known.get(kernel) {
                    Some(by) => *by,
                    None => *known.entry(*kernel).or_insert(By::of(functions, &resolve(*kernel)?)),
                };
                match (by, thread) {
                    (By::Functions, _) => ended_ns += u128::from(*ns),
                    (By::Worker, Some(thread)) => *by_worker.entry(*thread).or_default() += ns,
                    (By::Worker, None) | (By::Others, _) => {}
                }
            }
            let waits_for_disk = |(thread, ns): &(ThreadKey, u64)| disk_ns(*thread) * 2 >= *ns;
            ended_ns +=
                by_worker.into_iter().filter(waits_for_disk).map(|(_, ns)| u128::from(ns)).sum::<u128>();
            if ended_ns > 0 && ended_ns * 100 >= all_ns * LEAST_SHARE {
                found.push(*place);
            }
        }
        Ok(found)
    }
}

impl By {
    fn of(functions: &[&str], stack: &ResolvedStack) -> Self {
        if has_one_of(functions, stack) {
            By::Functions
        } else if has_one_of(&WORKERS, stack) {
            By::Worker
        } else {
            By::Others
        }
    }
}

/// Whether an answer of a process that serves a file system (FUSE) ended a wait: the kernel stack of the wakeup.
pub fn is_answer_of_file_server(waker_kernel: &ResolvedStack) -> bool {
    has_one_of(&FUSE_ENDS, waker_kernel)
}

/// Whether the kernel had copied a memory map for a fork when it let go of what ended a wait: the kernel stack of the wakeup.
pub fn is_end_of_fork(waker_kernel: &ResolvedStack) -> bool {
    has_one_of(&FORK_ENDS, waker_kernel)
}

fn has_one_of(functions: &[&str], stack: &ResolvedStack) -> bool {
    let mut symbols =
        stack.frames.iter().flat_map(|frame| &frame.lines).filter_map(|line| line.symbol.as_deref());
    symbols.any(|symbol| functions.contains(&symbol))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;
    use wallprof_testkit::stacks::stack;

    /// It waited for a disk for 45 ns.
    const WORKER: ThreadKey = ThreadKey(3);
    const PLACE: Place = Place { program: 0, user: Some(StackId(1)), kernel: None };

    fn resolve(id: StackId) -> Result<ResolvedStack, Infallible> {
        Ok(stack(match id.0 {
            7 => &["io_complete_rw", "blk_mq_end_request", "virtblk_done", "vring_interrupt"],
            8 => &["sock_def_readable", "tcp_rcv_established", "net_rx_action"],
            10 => &["io_req_task_work_add", "io_wq_submit_work", "io_worker_handle_work", "io_wq_worker"],
            _ => &["hrtimer_wakeup", "hrtimer_interrupt"],
        }))
    }

    fn is_found(sums: &[(Option<u64>, u64)]) -> bool {
        let mut ends = Ends::default();
        for (stack, ns) in sums {
            ends.add(PLACE, stack.map(StackId), Some(WORKER), *ns);
        }
        let Ok(found) = ends.by_disks(|thread| if thread == WORKER { 45 } else { 0 }, resolve);
        found == [PLACE]
    }

    #[test]
    fn polls_that_disks_end_are_found() {
        assert!(is_found(&[(Some(7), 60), (Some(8), 40)]));
        assert!(is_found(&[(Some(7), 20), (Some(7), 30), (None, 50)]));
    }

    #[test]
    fn workers_that_wait_for_a_disk_are_its_ends() {
        assert!(is_found(&[(Some(10), 90), (Some(8), 60)]));
        assert!(!is_found(&[(Some(10), 100)]), "the worker computed, or waited for something else");
        let mut ends = Ends::default();
        ends.add(PLACE, Some(StackId(10)), Some(WORKER), 90);
        assert!(matches!(ends.by_file_servers(resolve).as_deref(), Ok([])));
        assert!(matches!(ends.by_disks(|_| 0, resolve).as_deref(), Ok([])));
    }

    #[test]
    fn loops_that_clients_and_timers_wake_are_not() {
        assert!(!is_found(&[(Some(7), 40), (Some(8), 60)]));
        assert!(!is_found(&[(Some(8), 60), (Some(9), 60)]));
        assert!(!is_found(&[(None, 90)]), "the waker is not known");
        assert!(!is_found(&[(Some(7), 0)]));
    }
}
