// SPDX-License-Identifier: Apache-2.0
//! The receiver of an import's events.

use wallprof_model::{Event, MonoNs};

use crate::options::{RecordingFacts, TraceWindow};

/// Receives the events of an import.
pub trait Sink {
    type Error;

    /// Called once, before the first event.
    fn start(&mut self, facts: &RecordingFacts) -> Result<(), Self::Error>;

    fn take(&mut self, event: Event) -> Result<(), Self::Error>;

    /// About a second of recorded time has passed: all events up to `until` were delivered.
    fn settled(&mut self, until: MonoNs) -> Result<(), Self::Error>;

    /// The part of a hardware trace to decode. Called once, after `start`.
    fn window(&mut self) -> TraceWindow {
        TraceWindow::default()
    }

    /// `bytes` of the input were read, out of `of` where the size is known.
    fn progress(&mut self, bytes: u64, of: Option<u64>);
}
