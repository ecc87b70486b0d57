//! The live side of wallprof: what this kernel offers, the events to count, and the probes that measure.
//!
//! The one home of BPF and of unsafe code. Owns no aggregation beyond what the kernel side does and no names of
//! addresses.

mod arena;
mod batch;
pub mod bpf;
pub mod clock;
mod code_tables;
mod code_watch;
mod cpu_events;
pub mod cpus;
mod error;
pub mod events;
mod extents;
pub mod facts;
mod features;
mod image;
pub mod intel_pt;
pub mod memory;
mod messages;
mod perf;
mod plan;
mod probes;
mod programs;
pub mod reasons;
mod ring;
mod rule_numbers;
mod sideband;
pub mod slices;
mod tracefs;

pub use code_tables::{CodeMapping, CodeTables, FileId, NotPlaced, Owner, PlacedTable};
pub use code_watch::{CodeSide, CodeWatch};
pub use error::ProbeError;
pub use features::{Features, KernelTypes};
pub use image::FileImage;
pub use plan::{CgroupTarget, MAX_NAME_GLOBS, NameGlob, ProbeOptions, TargetSet, Targets, UserStacks};
pub use probes::{Inbox, KernelCounts, LOSS_NAMES, Probes, RunQueue, try_event};
pub use programs::{ProgramFacts, verified_programs};
pub use ring::TickNumbers;
pub use sideband::{Mapping, News};
pub use tracefs::PrivateTracefs;
