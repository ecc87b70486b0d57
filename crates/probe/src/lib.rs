//! The live side of wallprof: what this kernel offers, the events to count, and the probes that measure.
//!
//! The one home of BPF and of unsafe code. Owns no aggregation beyond what the kernel side does and no names of
//! addresses.

mod batch;
pub mod bpf;
pub mod clock;
pub mod cpus;
mod error;
pub mod events;
pub mod facts;
mod features;
mod messages;
mod perf;
mod plan;
mod probes;
mod programs;
pub mod reasons;
mod sideband;
mod tracefs;

pub use error::ProbeError;
pub use features::{Features, KernelTypes};
pub use plan::{CgroupTarget, ProbeOptions, Targets};
pub use probes::{Inbox, KernelCounts, LOSS_NAMES, Probes, try_event};
pub use programs::{ProgramFacts, verified_programs};
pub use sideband::{Mapping, News};
pub use tracefs::PrivateTracefs;
