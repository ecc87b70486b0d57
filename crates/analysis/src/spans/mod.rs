// SPDX-License-Identifier: Apache-2.0
//! Spans: the time of each state in them, and why the slow ones are slow.

mod around;
mod join;
mod keep;
mod long;
mod over_budget;
mod sums;
mod tail;
mod unrecorded;
mod words;

pub use around::SpansAround;
pub use join::ThreadPauses;
pub use keep::kept;
pub use long::{LongPeriod, LongSum, long_periods, long_sums};
pub use over_budget::{OverBudget, over_budget};
pub use sums::{divided, sums};
pub use tail::{Cause, Exemplar, Group, KindTail, LEAST_TAIL, LOWEST_TAIL, Means, TailOptions, Tails};
pub use unrecorded::Unrecorded;
pub use words::words_of_state;
