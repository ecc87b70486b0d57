// SPDX-License-Identifier: Apache-2.0
//! Time that threads spent in their states.

use crate::state::Reason;
use crate::thread::ThreadKey;
use crate::time::EpochSecond;

/// Declares [`LedgerDelta`] from the list of its sums. The recording's table has a column for each of them,
/// and adding one is an entry in this list.
macro_rules! ledger {
    ($($(#[$doc:meta])* $sum:ident,)*) => {
        /// Time a thread spent, to be added to one thread's one-second bucket.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct LedgerDelta {
            /// The thread whose time this is.
            pub thread: ThreadKey,
            /// The bucket: a second of the epoch, by the wall clock.
            pub second: EpochSecond,
            /// Blocked outside of page faults, ns by [`Reason::code`].
            pub blocked_ns: [u64; Reason::COUNT],
            $($(#[$doc])* pub $sum: u64,)*
        }

        impl LedgerDelta {
            /// The name of each sum, and where it is; those of `blocked_ns` are not among them.
            pub const SUMS: &[(&str, fn(&mut LedgerDelta) -> &mut u64)] =
                &[$((stringify!($sum), |delta| &mut delta.$sum),)*];

            /// All sums are 0.
            pub fn new(thread: ThreadKey, second: EpochSecond) -> Self {
                LedgerDelta { thread, second, blocked_ns: [0; Reason::COUNT], $($sum: 0,)* }
            }

            /// Adds all of `other`'s numbers, whatever thread and second they are of.
            pub fn add(&mut self, other: &LedgerDelta) {
                $(self.$sum = self.$sum.saturating_add(other.$sum);)*
                for (sum, more) in self.blocked_ns.iter_mut().zip(other.blocked_ns) {
                    *sum = sum.saturating_add(more);
                }
            }
        }
    };
}

ledger! {
    /// Observed time, ns: the states and the unaccounted time add up to it.
    wall_ns,
    /// Running time by the scheduler's own sum, ns: user + kernel + irq + the on-CPU part of faults.
    on_cpu_ns,
    /// Interrupts while the thread was current, ns.
    irq_ns,
    /// Page faults without I/O, on and off CPU, ns.
    fault_minor_ns,
    /// Page faults that read a page in or waited for one, on and off CPU, ns.
    fault_major_ns,
    /// The part of `fault_minor_ns` and `fault_major_ns` that was on CPU, ns.
    fault_on_cpu_ns,
    /// From a wakeup, or from the creation of the thread, to the CPU, ns.
    runnable_ns,
    /// Off the CPU although the thread could have run on, ns.
    preempted_ns,
    /// Switches away from the thread at which it blocked.
    voluntary_switches,
    /// Switches away from the thread at which it could have run on.
    involuntary_switches,
    /// Samples in user mode, outside of interrupts. With `kernel_samples` they divide `on_cpu_ns`.
    user_samples,
    /// Samples in the kernel, outside of interrupts.
    kernel_samples,
    /// Page faults that ended with a page, without I/O.
    minor_faults,
    /// Page faults that ended with a page that had to be read in or waited for.
    major_faults,
    /// Page faults that ended without a page: by a signal or an error.
    failed_faults,
    /// The part of `on_cpu_ns` that a trace shows in user mode, ns: samples do not divide it again.
    traced_user_ns,
    /// The part of `on_cpu_ns` that a trace shows in the kernel, ns: samples do not divide it again.
    traced_kernel_ns,
    /// The part of `on_cpu_ns` that neither samples nor a trace divide, ns: it is unaccounted.
    undivided_ns,
    /// The part of `on_cpu_ns` outside of interrupts and faults, without sampling, ns: the state `cpu`.
    cpu_ns,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sum_is_listed_and_added() {
        let mut delta = LedgerDelta::new(ThreadKey(1), EpochSecond(2));
        for (value, (_, sum)) in (1..).zip(LedgerDelta::SUMS) {
            *sum(&mut delta) = value;
        }
        delta.blocked_ns = [u64::MAX; Reason::COUNT];
        let mut twice = delta.clone();
        twice.add(&LedgerDelta { thread: ThreadKey(7), ..delta });
        for (value, (name, sum)) in (1..).zip(LedgerDelta::SUMS) {
            assert_eq!(*sum(&mut twice), 2 * value, "{name}");
        }
        assert_eq!((twice.thread, twice.blocked_ns), (ThreadKey(1), [u64::MAX; Reason::COUNT]));
    }
}
