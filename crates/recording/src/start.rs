// SPDX-License-Identifier: Apache-2.0
//! The facts with which a recording starts.

use wallprof_model::{ClockAnchor, Labels, MonoNs, SpanBudgets};

use crate::budget::SizeBudget;
use crate::retention::Retention;

/// The known facts when a recording starts. An empty text is unknown.
#[derive(Clone, Debug, Default)]
pub struct RecordingStart {
    pub start: MonoNs,
    /// `None`: the source knows no times of day.
    pub clock: Option<ClockAnchor>,
    /// `live`, `perf.data`, `intel-pt` or `perf-script`.
    pub source: String,
    pub kernel: String,
    pub arch: String,
    pub cpus: u32,
    pub hostname: String,
    pub machine_id: String,
    pub boot_id: String,
    /// The recorded program's name, without its arguments.
    pub command: String,
    /// What the user says about the recording.
    pub labels: Labels,
    /// How long spans may take.
    pub budgets: SpanBudgets,
    pub min_stall_ns: u64,
    /// Busy periods are turns of loops.
    pub has_turns: bool,
    pub sample_period_ns: Option<u64>,
    pub budget: SizeBudget,
    /// `None`: everything is kept.
    pub retention: Option<Retention>,
}
