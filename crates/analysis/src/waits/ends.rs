//! Waits that are known by what ended them. Polls that a disk ended: the completions of io_uring and of
//! asynchronous I/O through an eventfd. Pages of a file system in user space that were read ahead: their process
//! ended the waits.
//!
//! The kernel stack of the wakeup says what ended a wait.

use std::collections::HashMap;

use wallprof_model::StackId;
use wallprof_model::meaning::Place;
use wallprof_model::profile::ResolvedStack;

/// Functions with which the block layer ends a request, whatever the driver.
pub(super) const DISK_ENDS: [&str; 4] =
    ["blk_mq_end_request", "blk_mq_end_request_batch", "blk_update_request", "bio_endio"];

/// Functions with which an answer of a process ends a request to its file system.
pub(super) const FUSE_ENDS: [&str; 2] = ["fuse_request_end", "fuse_dev_do_write"];

/// The least share of a place's waited time that they end. A server's loop waits for a disk and for clients.
const LEAST_SHARE: u128 = 50;

/// Sums that are kept. Of further ones the waker's stack is not known.
const MOST_SUMS: usize = 1 << 18;

/// The time of waits by their place and the kernel stack of the wakeup, ns.
#[derive(Debug, Default)]
pub(super) struct Ends(HashMap<Place, HashMap<Option<StackId>, u64>>, usize);

impl Ends {
    pub fn add(&mut self, place: Place, waker_kernel: Option<StackId>, ns: u64) {
        let Ends(places, count) = self;
        let sums = places.entry(place).or_default();
        let is_new = !sums.contains_key(&waker_kernel);
        let stack = waker_kernel.filter(|_| !is_new || *count < MOST_SUMS);
        *count += usize::from(is_new && stack.is_some());
        let sum = sums.entry(stack).or_default();
        *sum = sum.saturating_add(ns);
    }

    /// The places whose waits end in these functions, for half of the time or more.
    pub fn in_functions<E>(
        &self,
        functions: &[&str],
        mut resolve: impl FnMut(StackId) -> Result<ResolvedStack, E>,
    ) -> Result<Vec<Place>, E> {
        let mut known: HashMap<StackId, bool> = HashMap::new();
        let mut found = Vec::new();
        for (place, sums) in &self.0 {
            let (mut all_ns, mut ended_ns) = (0u128, 0u128);
            for (stack, ns) in sums {
                let is_ended = match stack {
                    None => false,
                    Some(stack) => match known.get(stack) {
                        Some(is_ended) => *is_ended,
                        None => {
                            let is_ended = has_one_of(functions, &resolve(*stack)?);
                            known.insert(*stack, is_ended);
                            is_ended
                        }
                    },
                };
                all_ns += u128::from(*ns);
                ended_ns += if is_ended { u128::from(*ns) } else { 0 };
            }
            if ended_ns > 0 && ended_ns * 100 >= all_ns * LEAST_SHARE {
                found.push(*place);
            }
        }
        Ok(found)
    }
}

fn has_one_of(functions: &[&str], stack: &ResolvedStack) -> bool {
    let mut symbols =
        stack.frames.iter().flat_map(|frame| &frame.lines).filter_map(|line| line.symbol.as_deref());
    symbols.any(|symbol| functions.contains(&symbol))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::stack;
    use std::convert::Infallible;

    const PLACE: Place = Place { program: 0, user: Some(StackId(1)), kernel: None };

    fn resolve(id: StackId) -> Result<ResolvedStack, Infallible> {
        Ok(stack(match id.0 {
            7 => &["io_complete_rw", "blk_mq_end_request", "virtblk_done", "vring_interrupt"],
            8 => &["sock_def_readable", "tcp_rcv_established", "net_rx_action"],
            _ => &["hrtimer_wakeup", "hrtimer_interrupt"],
        }))
    }

    fn is_found(sums: &[(Option<u64>, u64)]) -> bool {
        let mut ends = Ends::default();
        for (stack, ns) in sums {
            ends.add(PLACE, stack.map(StackId), *ns);
        }
        let Ok(found) = ends.in_functions(&DISK_ENDS, resolve);
        found == [PLACE]
    }

    #[test]
    fn polls_that_disks_end_are_found() {
        assert!(is_found(&[(Some(7), 60), (Some(8), 40)]));
        assert!(is_found(&[(Some(7), 20), (Some(7), 30), (None, 50)]));
    }

    #[test]
    fn loops_that_clients_and_timers_wake_are_not() {
        assert!(!is_found(&[(Some(7), 40), (Some(8), 60)]));
        assert!(!is_found(&[(Some(8), 60), (Some(9), 60)]));
        assert!(!is_found(&[(None, 90)]), "the waker is not known");
        assert!(!is_found(&[(Some(7), 0)]));
    }
}
