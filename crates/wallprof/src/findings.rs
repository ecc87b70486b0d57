//! The findings of a recording: computed by `report`, and stored in the file at the end of `record` and
//! `import`, with the meanings of the waits, for queries.

use std::path::Path;

use wallprof_analysis::rules::{Collector, Surroundings, findings, reads_counter, reads_process_counter};
use wallprof_analysis::waits::Rules;
use wallprof_model::counter::CounterTrack;
use wallprof_model::profile::{
    CrossCallRow, Finding, InterruptRow, IntrusionRow, KernelDelayRow, RecordingInfo, Thread, ThrottledRow,
};
use wallprof_recording::{Recording, StallMeaning, write_findings};

use crate::failure::{Failure, say};
use crate::meanings::open_recording;

/// Computes the findings and stores them in the complete recording. The recording is usable without them: a
/// failure is only printed.
pub fn store(file: &Path, rules: &Rules) {
    let stored = compute(file, rules).and_then(|found| Ok(write_findings(file, &found.0, &found.1)?));
    if let Err(failure) = stored {
        say(&format!(
            "the findings could not be stored in the file, `wallprof report` shows them anyway: {}",
            failure.message
        ));
    }
}

fn compute(file: &Path, rules: &Rules) -> Result<(Vec<Finding>, Vec<StallMeaning>), Failure> {
    let recording = open_recording(file, rules)?;
    let (mut collector, mut meanings) = (Collector::default(), Vec::new());
    recording.each_stall(|stall| {
        if stall.meaning.is_some() || stall.wait_id.is_some() {
            meanings.push((stall.id, stall.meaning.clone(), stall.wait_id));
        }
        collector.add(&stall);
    })?;
    Ok((Background::read(&recording)?.findings(collector), meanings))
}

/// The data of a recording that findings need besides its stalls.
pub struct Background {
    pub info: RecordingInfo,
    pub threads: Vec<Thread>,
    pub interrupts: Vec<InterruptRow>,
    pub intrusions: Vec<IntrusionRow>,
    kernel_delays: Vec<KernelDelayRow>,
    cross_calls: Vec<CrossCallRow>,
    throttled: Vec<ThrottledRow>,
    counters: Vec<CounterTrack>,
    process_counters: Vec<CounterTrack>,
}

impl Background {
    pub fn read(recording: &Recording) -> Result<Self, Failure> {
        let counters = recording.counters()?;
        Ok(Background {
            info: recording.info()?,
            threads: recording.threads()?,
            interrupts: recording.interrupts()?,
            intrusions: recording.intrusions()?,
            kernel_delays: recording.kernel_delays()?,
            cross_calls: recording.cross_calls()?,
            throttled: recording.throttled()?,
            counters: counters.whole(reads_counter)?,
            process_counters: counters.whole_of_processes(reads_process_counter)?,
        })
    }

    /// The findings from `stalls`, which must be all stalls of the recording.
    pub fn findings(&self, stalls: Collector) -> Vec<Finding> {
        findings(&stalls.finish(&Surroundings {
            info: &self.info,
            threads: &self.threads,
            interrupts: &self.interrupts,
            intrusions: &self.intrusions,
            kernel_delays: &self.kernel_delays,
            cross_calls: &self.cross_calls,
            throttled: &self.throttled,
            counters: &self.counters,
            process_counters: &self.process_counters,
        }))
    }
}
