// SPDX-License-Identifier: Apache-2.0
//! Traces with their exact truth, generated from a seed, at any size. For tests.
//!
//! A machine runs a random program ([`Program`]) and knows the effect of each of its instructions. An encoder
//! written from the manual's rules writes the packets. Neither shares code with the decoder.

mod elf;
mod encoder;
mod machine;
mod perf_data;
mod program;
mod random;
mod ranges;
pub mod record;

pub use elf::CODE_OFFSET;
pub use encoder::{Encoder, Settings, TSC_CTC};
pub use machine::{Change, Generated, Machine, Plan, Tracing, True, generate, generate_traced};
pub use perf_data::{PID, PerfDataWriter, TIME_CONV};
pub use program::Program;
pub use random::Random;

use crate::flow::Trace;
use crate::stopwatch::ClockFacts;

impl Generated {
    /// The parameters of the clocks, as in a recording's header.
    pub fn clock(&self) -> ClockFacts {
        ClockFacts {
            mtc_shift: self.settings.mtc_shift.unwrap_or(0),
            tsc_ctc_numerator: TSC_CTC.0,
            tsc_ctc_denominator: TSC_CTC.1,
            max_non_turbo_ratio: self.settings.max_non_turbo_ratio,
            reference_ticks: 0,
        }
    }

    /// The trace, for the decoder.
    pub fn as_trace(&self) -> Trace<'_, Program> {
        Trace {
            bytes: &self.trace,
            code: &self.program,
            schedule: &self.schedule,
            clock: self.clock(),
            return_compression: self.settings.return_compression,
        }
    }
}
