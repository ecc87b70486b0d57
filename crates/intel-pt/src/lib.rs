//! Intel Processor Trace: packets → control flow → timed calls and returns → call paths.
//!
//! Pure: trace bytes and code bytes come in as slices, events and numbers go out. Nothing here opens a file, reads a
//! clock or starts a thread; segments of a trace decode independently, on any thread the caller has.

#![warn(missing_docs)]

pub mod code;
pub mod event;
pub mod flow;
#[cfg(feature = "generator")]
pub mod generator;
mod instruction;
pub mod packet;
pub mod packets;
pub mod replay;
mod return_stack;
mod run_cache;
pub mod schedule;
pub mod stopwatch;
pub mod time_conv;

pub use code::{Code, Function, FunctionId, SpaceId};
pub use event::{EndCause, Event, EventKind, GapCause, Sink};
pub use flow::{Decoded, FurtherGaps, Segment, Trace, decode_segment, segment_starts};
pub use run_cache::RunCache;
pub use schedule::{Departure, Schedule, ScheduleBuilder, Switch, SwitchStore, ThreadId};
pub use stopwatch::ClockFacts;
pub use time_conv::TimeConv;
