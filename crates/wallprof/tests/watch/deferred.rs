// SPDX-License-Identifier: Apache-2.0
//! Deferred flushing: the watcher emits a few seconds at once. No second loses anything by that, and no
//! reader sees less.
//!
//! Where the machine is never calm enough for that, every second is emitted by itself, and all of this holds
//! as well.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use wallprof_recording::Recording;
use wallprof_testkit::defect::always;
use wallprof_testkit::machine;
use wallprof_testkit::scenario::Scenario;

use crate::watcher::{Watcher, value};

/// Of [`SCRAPES`] readers, a machine that becomes busy may keep this many waiting for longer than they wait.
const LATE: usize = 1;
const SCRAPES: usize = 6;
const SECOND_NS: u64 = 1_000_000_000;
/// The clock may be adjusted by this much meanwhile.
const CLOCK_NS: u64 = 50_000_000;

/// Time on the CPU by the metrics, and the time of the request, in seconds since the epoch.
struct Scrape {
    asked: f64,
    on_cpu: f64,
}

/// Wall time and time on the CPU of each thread and second, ns.
type Ledger = BTreeMap<(u32, u32), (u64, u64)>;

#[test]
fn deferred_seconds_are_emitted_one_by_one_and_on_request() {
    let test = "deferred_seconds_are_emitted_one_by_one_and_on_request";
    let Some(_guard) = machine::reserve(test) else { return };
    let mut scenario = Scenario::ready("sleepers", &["-d", "30"]);
    // None of its waits is as long as that: its activity does not end the deferring.
    let watcher = Watcher::start(&["-p", &scenario.pid(), "--threshold", "1s"]);
    scenario.open_gate();
    // Further apart than a busy watcher's flushes.
    let scrapes: Vec<_> =
        (0..SCRAPES).map(|_| scrape_after(&watcher, Duration::from_millis(1_700))).collect();
    let (status, folder) = watcher.stop();
    assert!(status.success());
    let ledger = ledger_of(&folder.path().join("flight.db"));
    let merged = merged_seconds(&ledger);
    assert!(merged * 4 < ledger.len(), "{merged} of {} seconds were emitted with others", ledger.len());
    let late = scrapes.iter().filter(|scrape| scrape.on_cpu < emitted_before(&ledger, scrape.asked)).count();
    assert!(late <= LATE, "{late} of {} scrapes were older than the last whole second", scrapes.len());
}

fn scrape_after(watcher: &Watcher, pause: Duration) -> Scrape {
    std::thread::park_timeout(pause);
    let asked = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_secs_f64();
    Scrape { asked, on_cpu: value(&watcher.metrics(), "wallprof_oncpu_seconds_total", &[]) }
}

fn ledger_of(path: &std::path::Path) -> Ledger {
    let recording = always(Recording::open(path));
    let rows = recording.ledger(..).expect("a ledger");
    let mut ledger = Ledger::new();
    for row in rows {
        let delta = row.expect("a row");
        ledger.insert((delta.thread.0, delta.second.0), (delta.wall_ns, delta.on_cpu_ns));
    }
    ledger
}

/// The number of seconds that were emitted with the one after them. Each emitted stretch reaches from the end
/// of the one before it to the end of its second.
fn merged_seconds(ledger: &Ledger) -> usize {
    let mut merged = 0;
    let last = ledger.keys().map(|(_, second)| *second).max().unwrap_or(0);
    for (((thread, before), _), ((same, second), (wall_ns, _))) in ledger.iter().zip(ledger.iter().skip(1)) {
        if thread == same && *second < last {
            let seconds = u64::from(second - before);
            assert!(
                wall_ns.abs_diff(seconds * SECOND_NS) <= CLOCK_NS || *wall_ns < SECOND_NS,
                "thread {thread}: {wall_ns} ns in {seconds} s up to {second}"
            );
            merged += seconds as usize - 1;
        }
    }
    merged
}

/// Time on the CPU in the seconds that were over at the time of the request, long enough to be known.
fn emitted_before(ledger: &Ledger, asked: f64) -> f64 {
    let known = ledger.iter().filter(|((_, second), _)| f64::from(*second) + 2.2 <= asked);
    known.map(|(_, (_, on_cpu_ns))| *on_cpu_ns as f64 / 1e9).sum::<f64>() - 1e-6
}
