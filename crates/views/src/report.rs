// SPDX-License-Identifier: Apache-2.0
//! The input of a report.

use wallprof_analysis::StallDigest;
use wallprof_model::Mark;
use wallprof_model::profile::{Finding, FoldedStalls, InterruptRow, IntrusionRow, RecordingInfo, Thread};

/// Everything a report reads of a recording. `stalls` has taken all of the recording's stalls.
#[derive(Clone, Copy)]
pub struct Report<'a> {
    pub info: &'a RecordingInfo,
    pub threads: &'a [Thread],
    pub interrupts: &'a [InterruptRow],
    /// Threads and interrupts on guarded CPUs.
    pub intrusions: &'a [IntrusionRow],
    pub folded: &'a [FoldedStalls],
    /// Notes of the application, oldest first.
    pub marks: &'a [Mark],
    pub stalls: &'a StallDigest,
    /// In the order in which they are to be read.
    pub findings: &'a [Finding],
}

impl Report<'_> {
    /// Nanoseconds from the start to the end of the recording.
    pub(crate) fn duration_ns(&self) -> u64 {
        self.info.end.0.saturating_sub(self.info.start.0)
    }
}
