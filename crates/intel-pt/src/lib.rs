// SPDX-License-Identifier: Apache-2.0
//! Intel Processor Trace: packets → control flow → timed calls and returns → call paths.
//!
//! Pure: bytes of the trace and of the code come in as slices, events and numbers go out. The crate opens no
//! file, reads no clock and starts no thread. Segments of a trace decode independently, on any thread of the
//! caller.
//!
//! # Example
//!
//! One call of a function, which a conditional branch behind it proves:
//!
//! ```
//! use wallprof_intel_pt::packets::PSB;
//! use wallprof_intel_pt::{
//!     ClockFacts, Code, Event, EventKind, Function, FunctionId, RunCache, Schedule, Segment, SpaceId,
//!     ThreadId, Trace, decode_segment,
//! };
//!
//! /// A program at 0x1000: `call 0x1010`. At 0x1010: `jne .`.
//! struct Program(Vec<u8>);
//!
//! impl Code for Program {
//!     fn bytes(&self, _: SpaceId, address: u64) -> Option<&[u8]> {
//!         self.0.get(address.checked_sub(0x1000)? as usize..).filter(|bytes| !bytes.is_empty())
//!     }
//!
//!     fn function(&self, _: SpaceId, address: u64) -> Option<Function> {
//!         Some(Function { id: FunctionId((address >> 4) as u32), entry: address & !15 })
//!     }
//! }
//!
//! let mut code = vec![0xe8, 0x0b, 0, 0, 0];
//! code.resize(0x10, 0x90);
//! code.extend([0x75, 0xfe]);
//!
//! // PSB, TSC, FUP with the address 0x1000, PSBEND; then a TNT packet: one branch, taken.
//! let mut bytes = PSB.to_vec();
//! bytes.extend([0x19, 100, 0, 0, 0, 0, 0, 0]);
//! bytes.extend([0x3d, 0x00, 0x10, 0x02, 0x23, 0b110]);
//!
//! let clock = ClockFacts {
//!     mtc_shift: 0,
//!     tsc_ctc_numerator: 0,
//!     tsc_ctc_denominator: 0,
//!     max_non_turbo_ratio: 0,
//!     reference_ticks: 0,
//! };
//! let schedule = Schedule::of_thread(ThreadId(1), SpaceId(1));
//! let program = Program(code);
//! let trace =
//!     Trace { bytes: &bytes, code: &program, schedule: &schedule, clock, return_compression: true };
//! let whole = Segment { start: 0, end: bytes.len(), first: true };
//! let mut events: Vec<Event> = Vec::new();
//! decode_segment(&trace, whole, &mut RunCache::new(), &mut events);
//!
//! let call = events.last().expect("a call");
//! assert_eq!(call.kind, EventKind::Call { return_to: 0x1005 });
//! assert_eq!((call.from, call.to, call.ticks), (0x1000, 0x1010, 100));
//! ```
#![warn(missing_docs)]

pub mod code;
pub mod event;
pub mod flow;
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
