// SPDX-License-Identifier: Apache-2.0
//! Delivery of a session's events to a sink, in batches.

use crate::session::Session;
use crate::sink::Sink;

/// Events that are delivered at once.
pub(crate) const BATCH: usize = 1024;
/// Recorded time between two calls of [`Sink::settled`].
const SETTLE_NS: u64 = 1_000_000_000;
/// Input between two calls of [`Sink::progress`].
const PROGRESS_BYTES: u64 = 4 << 20;

/// Delivers events, and reports progress.
pub(crate) struct Delivery<'a, S> {
    pub sink: &'a mut S,
    /// [`Sink::start`] was called.
    pub started: bool,
    /// The size of the input, where it is known.
    pub total: Option<u64>,
    settled: u64,
    next_progress: u64,
}

impl<'a, S: Sink> Delivery<'a, S> {
    pub(crate) fn new(sink: &'a mut S) -> Self {
        Delivery { sink, started: false, total: None, settled: 0, next_progress: 0 }
    }

    /// Delivers the pending events if they fill a batch.
    pub(crate) fn deliver_batch(&mut self, session: &mut Session) -> Result<(), S::Error> {
        if session.out.len() < BATCH {
            return Ok(());
        }
        self.deliver_all(session)
    }

    /// Delivers all pending events. They stay pending as long as the recording's start is not known.
    pub(crate) fn deliver_all(&mut self, session: &mut Session) -> Result<(), S::Error> {
        if !self.started {
            let Some(facts) = session.recording() else { return Ok(()) };
            self.sink.start(&facts)?;
            self.started = true;
            self.settled = facts.start.0;
        }
        for event in session.out.drain(..) {
            self.sink.take(event)?;
        }
        if session.now().0.saturating_sub(self.settled) >= SETTLE_NS {
            self.settled = session.now().0;
            self.sink.settled(session.now())?;
        }
        Ok(())
    }

    /// From here on progress is that of decoding `bytes` of trace.
    pub(crate) fn start_trace(&mut self, bytes: u64) {
        (self.next_progress, self.total) = (0, Some(bytes));
    }

    /// `position`: how far the input was read, in bytes.
    pub(crate) fn report_progress(&mut self, position: u64) {
        if position >= self.next_progress {
            self.next_progress = position.saturating_add(PROGRESS_BYTES);
            self.sink.progress(position, self.total);
        }
    }
}
