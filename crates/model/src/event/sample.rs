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
    pub thread: ThreadKey,
    pub second: EpochSecond,
    pub what: Weighted,
    pub user: Option<StackId>,
    pub kernel: Option<StackId>,
    /// For blocked time: its waker, where known.
    pub waker: Option<WakerStacks>,
    /// Nanoseconds, or counts for an extra event.
    pub weight: u64,
    /// How many samples or stacked intervals this sums up.
    pub count: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WakerStacks {
    /// `None`: woken from an interrupt, or by a thread that is not recorded.
    pub thread: Option<ThreadKey>,
    pub interrupt: bool,
    pub user: Option<StackId>,
    pub kernel: Option<StackId>,
}
