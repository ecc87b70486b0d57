//! A recorder that is killed leaves a file that opens, with all but the last second in it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::ledger::{assert_adds_up, thread};
use crate::recorder::Recorder;
use crate::scenario::Scenario;
use crate::stage;

/// Written about once a second, so that the last second may be missing; as much again for the write.
const MAY_BE_MISSING: Duration = Duration::from_secs(2);

fn epoch_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    now.as_nanos() as u64
}

/// Kills a recorder at moments spread over the phases of a write, each after a run of another length.
#[test]
fn a_killed_recorder_loses_the_last_second() {
    let Some(_stage) = stage::enter("a_killed_recorder_loses_the_last_second") else { return };
    for length in ["2.2", "2.45", "2.7", "2.95"] {
        let mut scenario = Scenario::ready("spin", &["-d", length, "-t", "user"]);
        let pid = scenario.pid();
        let recorder = Recorder::armed(&["-p", &pid], &[]);
        let truth = scenario.perform();
        let killed_at = epoch_ns();
        let recording = recorder.kill();
        let report = recording.report();
        let missing_ns = killed_at.saturating_sub(report.recording.end_ns);
        assert!(missing_ns <= MAY_BE_MISSING.as_nanos() as u64, "{missing_ns} ns are missing");
        let spinner = thread(&report, truth.start.tid("user"), "user");
        assert_adds_up(spinner);
        assert!(spinner.on_cpu_ns > 0 || report.recording.duration_ns < 1_000_000_000, "{spinner:#?}");
    }
}
