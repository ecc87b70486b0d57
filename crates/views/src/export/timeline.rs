// SPDX-License-Identifier: Apache-2.0
//! Formats that show when something happened: they take single stalls beside weighted stacks.

use std::io::{self, Write};

use wallprof_analysis::bins::BinnedStacks;
use wallprof_model::counter::{CounterTrack, Mark};
use wallprof_model::profile::{LedgerRow, RecordingInfo, StallRecord, Thread};

/// Starts a timeline of these threads.
pub type StartTimeline =
    for<'a> fn(&'a mut dyn Write, &'a RecordingInfo, &[Thread]) -> io::Result<Box<dyn Timeline + 'a>>;

/// Writes one row after the other, so that memory need not grow with the recording. Rows of threads that the
/// timeline was not started with are skipped.
pub trait Timeline {
    /// The stacks of all threads of the recording come first.
    fn stacks(&mut self, stacks: &BinnedStacks, threads: &[Thread]) -> io::Result<()>;
    /// Stalls come in the order of their start.
    fn stall(&mut self, stall: &StallRecord) -> io::Result<()>;
    /// Seconds come in their order.
    fn second(&mut self, row: &LedgerRow) -> io::Result<()>;
    fn counter(&mut self, track: &CounterTrack) -> io::Result<()>;
    /// Marks come in the order of their time.
    fn mark(&mut self, mark: &Mark) -> io::Result<()>;
    fn finish(&mut self) -> io::Result<()>;
}
