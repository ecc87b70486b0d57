// SPDX-License-Identifier: Apache-2.0
//! The live side of wallprof: the features of this kernel, the events that can be counted, and the probes.
//!
//! The only crate with BPF and unsafe code. It aggregates nothing beyond the kernel side's sums, and names no
//! addresses.

// Lets the linker's `--icf=safe` fold equal functions of Rust, whose addresses nothing may compare: the object
// of the program says by this table, which has no symbol, that none of its addresses means anything. Objects
// without the table, which are those of C, stay as they are.
std::arch::global_asm!(".addrsig");

mod arena;
mod attach;
mod batch;
pub mod bpf;
pub mod clock;
mod code_tables;
mod code_watch;
mod counts;
mod cpu_events;
pub mod cpus;
mod error;
pub mod events;
mod extents;
pub mod facts;
mod features;
mod inbox;
pub mod intel_pt;
mod iterators;
mod look;
pub mod memory;
mod messages;
mod object;
mod perf;
mod plan;
mod probes;
mod process_words;
mod programs;
pub mod reasons;
mod ring;
mod rule_numbers;
mod sideband;
pub mod slices;
mod span_probes;
mod tracefs;
mod undisturbed;

pub use code_tables::{CodeMapping, CodeTables, FileId, NotPlaced, PlacedTable};
pub use code_watch::{CodeSide, CodeWatch};
pub use counts::{KernelCounts, RunQueue};
pub use cpu_events::try_event;
pub use error::ProbeError;
pub use features::{Features, KernelTypes};
pub use inbox::Inbox;
pub use look::{Look, Pass};
pub use plan::{
    CgroupTarget, CodePlace, MAX_NAME_GLOBS, MAX_SPAN_PROBES, NameGlob, ProbeOptions, SpanProbes, TargetSet,
    Targets, UserStacks,
};
pub use probes::{MarkSlot, Probes};
pub use process_words::{ProcessWords, TraceAccess, WaitWord};
pub use programs::{ProgramFacts, verified_programs};
pub use ring::TickNumbers;
pub use sideband::{Mapping, News};
pub use tracefs::PrivateTracefs;
pub use undisturbed::KeptCpu;
/// Files are read for their unwind tables by it.
pub use wallprof_unwind::FileImage;
