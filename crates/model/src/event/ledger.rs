//! Time that threads spent in their states.

use crate::state::Reason;
use crate::thread::ThreadKey;
use crate::time::EpochSecond;

/// Time a thread spent, to be added to one thread's one-second bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerDelta {
    pub thread: ThreadKey,
    pub second: EpochSecond,
    pub wall_ns: u64,
    /// Exact running time: user + kernel + irq + the on-CPU part of faults.
    pub on_cpu_ns: u64,
    pub irq_ns: u64,
    pub fault_minor_ns: u64,
    pub fault_major_ns: u64,
    /// The part of both fault states that was on CPU.
    pub fault_on_cpu_ns: u64,
    pub runnable_ns: u64,
    pub preempted_ns: u64,
    /// Indexed by [`Reason::code`].
    pub blocked_ns: [u64; Reason::COUNT],
    /// Page faults that ended: with a page, with one that had to be read in or waited for, and without one.
    pub minor_faults: u64,
    pub major_faults: u64,
    pub failed_faults: u64,
    pub voluntary_switches: u64,
    pub involuntary_switches: u64,
    /// Samples of the ledger's clock in user and in kernel mode, outside interrupts: they divide `on_cpu_ns`.
    pub user_samples: u64,
    pub kernel_samples: u64,
    /// The part of `on_cpu_ns` that a trace divides: samples do not divide it again.
    pub traced_user_ns: u64,
    pub traced_kernel_ns: u64,
    /// The part of `on_cpu_ns` that neither samples nor a trace divide.
    pub undivided_ns: u64,
}

impl LedgerDelta {
    pub fn new(thread: ThreadKey, second: EpochSecond) -> Self {
        LedgerDelta {
            thread,
            second,
            wall_ns: 0,
            on_cpu_ns: 0,
            irq_ns: 0,
            fault_minor_ns: 0,
            fault_major_ns: 0,
            fault_on_cpu_ns: 0,
            runnable_ns: 0,
            preempted_ns: 0,
            blocked_ns: [0; Reason::COUNT],
            minor_faults: 0,
            major_faults: 0,
            failed_faults: 0,
            voluntary_switches: 0,
            involuntary_switches: 0,
            user_samples: 0,
            kernel_samples: 0,
            traced_user_ns: 0,
            traced_kernel_ns: 0,
            undivided_ns: 0,
        }
    }
}
