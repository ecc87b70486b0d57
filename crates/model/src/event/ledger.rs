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
            pub thread: ThreadKey,
            pub second: EpochSecond,
            /// Indexed by [`Reason::code`].
            pub blocked_ns: [u64; Reason::COUNT],
            $($(#[$doc])* pub $sum: u64,)*
        }

        impl LedgerDelta {
            /// The name of each sum, and where it is; those of `blocked_ns` are not among them.
            pub const SUMS: &[(&str, fn(&mut LedgerDelta) -> &mut u64)] =
                &[$((stringify!($sum), |delta| &mut delta.$sum),)*];

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
    wall_ns,
    /// Exact running time: user + kernel + irq + the on-CPU part of faults.
    on_cpu_ns,
    irq_ns,
    fault_minor_ns,
    fault_major_ns,
    /// The part of both fault states that was on CPU.
    fault_on_cpu_ns,
    runnable_ns,
    preempted_ns,
    voluntary_switches,
    involuntary_switches,
    /// Samples of the ledger's clock in user and in kernel mode, outside interrupts: they divide `on_cpu_ns`.
    user_samples,
    kernel_samples,
    /// Page faults that ended: with a page, with one that had to be read in or waited for, and without one.
    minor_faults,
    major_faults,
    failed_faults,
    /// The part of `on_cpu_ns` that a trace divides: samples do not divide it again.
    traced_user_ns,
    traced_kernel_ns,
    /// The part of `on_cpu_ns` that neither samples nor a trace divide: `unaccounted`.
    undivided_ns,
    /// The part of `on_cpu_ns` outside interrupts and faults in a recording without samples: the state `cpu`.
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
