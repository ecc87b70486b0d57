//! Weighted stacks in the formats of other tools.

mod folded;
mod format;
mod per_step;
mod pprof;
mod profile;
mod speedscope;

pub use folded::folded;
pub use format::ExportFormat;
pub use pprof::pprof;
pub use speedscope::speedscope;
