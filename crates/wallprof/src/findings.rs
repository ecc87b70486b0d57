//! Conclusions from a recording: drawn by `report`, and written into the file when `record` and `import` are done,
//! for those who query it.

use std::path::Path;

use wallprof_analysis::rules::{Collector, findings};
use wallprof_model::profile::Finding;
use wallprof_recording::{Recording, StallFilter, write_findings};

use crate::failure::{Failure, say};

/// Draws the conclusions and writes them into the complete recording. The recording is whole without them: a
/// failure is said and no more.
pub fn store(file: &Path) {
    let stored = draw(file).and_then(|found| Ok(write_findings(file, &found)?));
    if let Err(failure) = stored {
        say(&format!(
            "the findings are not in the file, `wallprof report` shows them all the same: {}",
            failure.message
        ));
    }
}

fn draw(file: &Path) -> Result<Vec<Finding>, Failure> {
    let recording = Recording::open(file)?;
    let mut collector = Collector::default();
    for stall in recording.stalls(&all_stalls())? {
        collector.add(&stall?);
    }
    collector.add_intrusions(&recording.intrusions()?);
    let (info, threads, interrupts) = (recording.info()?, recording.threads()?, recording.interrupts()?);
    Ok(findings(&collector.finish(info.min_stall_ns, &threads, &interrupts)))
}

/// Every stall of a recording.
pub fn all_stalls() -> StallFilter {
    StallFilter { include_voluntary: true, ..StallFilter::default() }
}
