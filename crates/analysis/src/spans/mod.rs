//! Spans: the time of each state in them, and why the slow ones are slow.

mod join;
mod keep;
mod sums;
mod tail;
mod unrecorded;

pub use join::ThreadPauses;
pub use keep::kept;
pub use sums::{divided, sums};
pub use tail::{Cause, Exemplar, Group, KindTail, LEAST_TAIL, Means, TailOptions, Tails};
pub use unrecorded::Unrecorded;
