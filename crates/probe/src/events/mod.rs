// SPDX-License-Identifier: Apache-2.0
//! perf's event names: translates the text after `-e` to the terms of `perf_event_open(2)`.
//!
//! Reads sysfs and tracefs through [`Files`](crate::facts::files::Files) and opens nothing. Only opening an
//! event shows whether the kernel accepts it.

mod available;
mod cache;
mod error;
mod generic;
mod nearest;
mod parse;
mod pmu;
mod source;
mod spec;
mod tracepoint;

pub use available::{Available, Tracepoints, available};
pub use error::EventError;
pub use parse::{parse_event, split_list};
pub(crate) use pmu::term_format;
pub use source::{EventSources, find_tracefs, has_hardware_counters};
pub use spec::{PerfEventSpec, Sampling, event_type};
