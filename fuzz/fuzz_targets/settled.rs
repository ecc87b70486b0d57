// SPDX-License-Identifier: Apache-2.0
//! A sink that drops all events and checks only that time does not go back.

use wallprof_import::{RecordingFacts, Sink};
use wallprof_model::{Event, MonoNs};

/// The time up to which all events were emitted, in ns.
#[derive(Default)]
pub struct Settled(u64);

impl Sink for Settled {
    type Error = std::convert::Infallible;

    fn start(&mut self, facts: &RecordingFacts) -> Result<(), Self::Error> {
        self.0 = facts.start.0;
        Ok(())
    }

    fn take(&mut self, _event: Event) -> Result<(), Self::Error> {
        Ok(())
    }

    fn settled(&mut self, until: MonoNs) -> Result<(), Self::Error> {
        assert!(until.0 >= self.0, "time goes back");
        self.0 = until.0;
        Ok(())
    }

    fn progress(&mut self, _bytes: u64, _of: Option<u64>) {}
}
