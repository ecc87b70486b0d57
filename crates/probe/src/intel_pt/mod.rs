// SPDX-License-Identifier: Apache-2.0
//! Intel PT on this machine: the features of the processor, and traces of threads or CPUs with everything
//! that is needed to read them later: switches and mappings.
//!
//! Nothing is decoded here. Facts about `perf_event_open(2)` and the PMU: perf-intel-pt(1),
//! arch/x86/events/intel/pt.c.

mod aux;
mod pmu;
mod tracer;

pub use aux::Piece;
pub use pmu::{Missing, Pmu};
pub use tracer::{OpenError, TraceEvent, TraceTargets, Traced, Tracer, anchor_in_ticks, ticks_now};
