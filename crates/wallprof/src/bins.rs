// SPDX-License-Identifier: Apache-2.0
//! Rows of a recording by bin, for what shows them over time.

use wallprof_analysis::bins::{BinnedLedger, Ledgers, Samples};
use wallprof_model::profile::{RecordingInfo, Thread};
use wallprof_recording::Recording;

use crate::failure::Failure;

/// The sums of these threads by bin.
///
/// # Errors
/// The recording cannot be read.
pub fn ledger(
    recording: &Recording,
    info: &RecordingInfo,
    threads: &[Thread],
) -> Result<BinnedLedger, Failure> {
    let mut ledgers = Ledgers::new(info, threads);
    for second in recording.ledger(..)? {
        ledgers.add(&second?);
    }
    Ok(ledgers.finish())
}

/// Adds all samples with their stacks and meanings.
///
/// # Errors
/// The recording cannot be read.
pub fn add_samples(samples: &mut Samples<'_>, recording: &Recording) -> Result<(), Failure> {
    for sample in recording.samples(..)? {
        let sample = sample?;
        let meaning = recording.meaning(&sample);
        samples.add(&sample, meaning, |stack| recording.resolve(stack))?;
    }
    Ok(())
}
