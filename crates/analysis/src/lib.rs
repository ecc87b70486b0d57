// SPDX-License-Identifier: Apache-2.0
//! Results from a recording's plain values: every number that is computed rather than measured,
//! and the small languages users type (durations, sizes, times).
//!
//! Pure: values in, values out. No files, clocks, environment or kernel.

pub mod bins;
pub mod blame;
pub mod calls;
pub mod counters;
pub mod diff;
pub mod duration;
pub mod equal_stacks;
pub mod holders;
pub mod interest;
pub mod interrupts;
pub mod latency;
pub mod ledger;
pub mod now;
mod quantity;
pub mod receive;
pub mod recurrence;
pub mod runs;
pub mod size;
pub mod spans;
pub mod stalls;
pub mod tally;
pub mod timepoint;
pub mod totals;
pub mod weights;
pub mod zone;

pub use duration::{ns_from_duration, text_from_ns};
pub use equal_stacks::{EqualStacks, StackGroup};
pub use holders::{Holder, HolderFrom, Holders};
pub use interest::Class;
pub use latency::Latency;
pub use ledger::{Account, Inconsistency, Samples, States};
pub use quantity::QuantityError;
pub use size::bytes_from_size;
pub use stalls::{Interpreted, StallDigest, StallGroup};
pub use tally::Tally;
pub use timepoint::{Timepoint, TimepointError, clipped};
pub use zone::Zone;
