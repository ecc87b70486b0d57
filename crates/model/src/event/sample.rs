// SPDX-License-Identifier: Apache-2.0
//! Weights on stacks.

use crate::stack::StackId;
use crate::state::State;
use crate::thread::ThreadKey;
use crate::time::EpochSecond;

/// The meaning of a sample's weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Weighted {
    /// Nanoseconds in a ledger state. `User` and `Kernel` are samples of the ledger's clock; the others
    /// are whole intervals, or sums of short ones carried by one stack.
    State(State),
    /// Counts of the extra event with this index.
    Event(u16),
}

/// Weight on one pair of stacks, to be added to one thread's one-second bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampleDelta {
    /// The thread whose time or events these are.
    pub thread: ThreadKey,
    /// The bucket: a second of the epoch, by the wall clock.
    pub second: EpochSecond,
    /// The unit of `weight`, and the state or the event.
    pub what: Weighted,
    /// `None`: no user stack was taken, as for a kernel thread.
    pub user: Option<StackId>,
    /// `None`: no kernel stack was taken, as for a sample in user mode.
    pub kernel: Option<StackId>,
    /// For blocked time: its waker, where known.
    pub waker: Option<WakerStacks>,
    /// Nanoseconds, or counts for an extra event.
    pub weight: u64,
    /// How many samples or stacked intervals this sums up.
    pub count: u64,
}

/// The waker of blocked time, with its stacks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WakerStacks {
    /// `None`: woken from an interrupt, or by a thread that is not recorded.
    pub thread: Option<ThreadKey>,
    /// An interrupt ended the wait: its handler has no thread and no user stack.
    pub interrupt: bool,
    /// The user stack of the waker at the wakeup. `None`: no stack was taken.
    pub user: Option<StackId>,
    /// The kernel stack at the wakeup, of the waker or of the interrupt. `None`: no stack was taken.
    pub kernel: Option<StackId>,
}
