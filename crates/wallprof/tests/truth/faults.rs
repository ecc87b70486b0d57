// SPDX-License-Identifier: Apache-2.0
//! Page faults: of a known length, of a cold file, failing ones, and as many as a thread can make.

use serde::Deserialize;
use wallprof_testkit::assert_always;
use wallprof_testkit::contract::{Report, Stall};
use wallprof_testkit::machine;
use wallprof_testkit::proc;
use wallprof_testkit::recorder::{Recorder, RecordingFile};
use wallprof_testkit::scenario::{Scenario, Truth};
use wallprof_testkit::stored;

use crate::ledger::{assert_adds_up, thread};

const MS: u64 = 1_000_000;
/// The two readings of the clocks that relate them are apart by no more.
const CLOCKS_NS: u64 = 10_000;
/// Between two places in the kernel where a switch is recorded, and between two readings of an open fault.
const EDGE_NS: u64 = 50_000;
/// Time of short faults, by state, that no stack carries yet.
const CARRIED_NS: u64 = 2 * MS;
/// More than the faults of 5 µs in a second.
const MANY: u64 = 200_000;
const FRESH_PAGES: u64 = 4_096;

/// An access to a page: its ends by the program's own clock, and those of its wait by the kernel's records of
/// switches. A reader that is held up may find its page there, and does not wait: both are 0.
#[derive(Debug, Deserialize)]
struct Times {
    start_ns: u64,
    off_ns: u64,
    on_ns: u64,
    end_ns: u64,
}

#[derive(Debug, Deserialize)]
struct Touch {
    #[serde(flatten)]
    times: Times,
    address: String,
    access: String,
    #[serde(rename = "in")]
    place: String,
    /// All of its waits, ns: the reader may run between two of them.
    waited_ns: u64,
    asked_ns: u64,
    mapping: String,
}

#[derive(Debug, Deserialize)]
struct Cold {
    #[serde(flatten)]
    times: Times,
    address: String,
    file: String,
    offset: u64,
    evicted: bool,
}

#[derive(Debug, Deserialize)]
struct Failed {
    segv: u64,
    bus: u64,
    slept_ns: u64,
}

#[derive(Debug, Deserialize)]
struct Fresh {
    pages: u64,
}

struct Performance {
    truth: Truth,
    recording: RecordingFile,
    report: Report,
    /// Faults that the kernel counted meanwhile, by tid.
    counted: Vec<(u32, u64)>,
}

fn perform(scenario_args: &[&str], args: &[&str]) -> Performance {
    let mut scenario = Scenario::ready("fault", scenario_args);
    let pid = scenario.pid();
    let counts = |scenario: &Scenario| -> Vec<(u32, u64)> {
        let workers = scenario.start.workers().iter();
        workers.map(|worker| (worker.tid, proc::faults(scenario.start.pid, worker.tid))).collect()
    };
    let recorder = Recorder::armed(&[&["-p", &pid], args].concat(), &[]);
    let before = counts(&scenario);
    let truth = scenario.run();
    let after = counts(&scenario);
    let recording = recorder.stop();
    let counted =
        before.iter().zip(after).map(|((tid, before), (_, after))| (*tid, after - before)).collect();
    let report = recording.report();
    Performance { truth, recording, report, counted }
}

/// The one stall at this address.
fn fault_at<'a>(stalls: &'a [Stall], address: &str) -> &'a Stall {
    let at = |stall: &&Stall| stall.fault.as_ref().is_some_and(|fault| fault.address == address);
    let mut found = stalls.iter().filter(at);
    let stall = found.next().unwrap_or_else(|| panic!("a fault at {address} among {stalls:#?}"));
    assert!(found.next().is_none(), "one fault at {address}");
    stall
}

impl Times {
    /// The stall begins after the access and before its wait, and ends likewise: where nothing holds the
    /// program up, they are some microseconds apart.
    fn assert_bracket(&self, stall: &Stall, truth: &Truth) {
        let [start, end] = [self.start_ns, self.end_ns].map(|at| truth.epoch_from_mono(at));
        let [off, on] = match self.off_ns {
            0 => [end, start],
            _ => [self.off_ns, self.on_ns].map(|at| truth.epoch_from_mono(at)),
        };
        let begins = start - CLOCKS_NS..=off + CLOCKS_NS;
        let ends = on - CLOCKS_NS..=end + CLOCKS_NS;
        assert!(begins.contains(&stall.start_ns) && ends.contains(&stall.end_ns), "{self:?}: {stall:#?}");
    }
}

fn assert_reports_the_access(stall: &Stall, touch: &Touch, server: u32) {
    let fault = stall.fault.as_ref().expect("a fault");
    assert_eq!((stall.kind.as_str(), stall.voluntary, stall.open), ("fault", false, false));
    assert_eq!(fault.access.as_deref(), Some(touch.access.as_str()), "{stall:#?}");
    assert_eq!(fault.mapping.as_deref(), Some(touch.mapping.as_str()), "{stall:#?}");
    assert_eq!((&fault.file, fault.file_offset), (&None, None));
    assert_eq!(stall.reason, if fault.major { "major" } else { "minor" });
    let (syscall, function) = match touch.place.as_str() {
        "user" => (None, "touch_page"),
        call => (Some(call), "touch_in_syscall"),
    };
    assert_eq!(stall.syscall.as_deref(), syscall);
    assert!(stall.user_stack_has(function), "{stall:#?}");
    let kernel = stall.kernel_stack.iter().flatten().filter_map(|frame| frame.symbol.as_deref());
    assert!(kernel.into_iter().any(|name| name == "handle_userfault"), "{stall:#?}");
    assert!(stall.blocked_ns + stall.runnable_ns <= stall.duration_ns, "{stall:#?}");
    if touch.waited_ns == 0 {
        return;
    }
    let waker = stall.waker.as_ref().unwrap_or_else(|| panic!("a waker of {stall:#?}"));
    assert_eq!((waker.tid, waker.user_stack_has("serve_pages")), (Some(server), true), "{stall:#?}");
    assert!(stall.blocked_ns + stall.runnable_ns + EDGE_NS >= touch.waited_ns, "{stall:#?}");
}

#[test]
fn faults_of_a_known_length() {
    let Some(_guard) = machine::reserve("faults_of_a_known_length") else { return };
    let Performance { truth, recording, report, .. } = perform(&[], &["--min-stall", "20us"]);
    let touches: Vec<Touch> = truth.all("fault");
    if touches.is_empty() {
        return wallprof_testkit::skip("faults_of_a_known_length", "userfaultfd is not permitted");
    }
    let stalls = recording.stalls(&["--thread", "reader"]);
    let server = truth.start.tid("server");
    for touch in &touches {
        let stall = fault_at(&stalls, &touch.address);
        assert_reports_the_access(stall, touch, server);
        touch.times.assert_bracket(stall, &truth);
    }
    let asked = touches.iter().filter(|touch| touch.waited_ns >= touch.asked_ns).count();
    assert!(asked * 2 > touches.len(), "{touches:#?}");
    // There is no second stall for the wait inside a fault, and none without a fault.
    let (from, to) = (touches[0].times.start_ns, touches[touches.len() - 1].times.end_ns);
    let during = |stall: &&Stall| stall.overlaps(truth.epoch_from_mono(from), truth.epoch_from_mono(to));
    for stall in stalls.iter().filter(during) {
        let asked = stall
            .fault
            .as_ref()
            .is_some_and(|fault| touches.iter().any(|touch| touch.address == fault.address));
        let late = matches!(stall.reason.as_str(), "preempted" | "runnable");
        assert!(asked || late || stall.duration_ns < MS, "{stall:#?}");
    }
    let reader = thread(&report, truth.start.tid("reader"), "reader");
    assert_adds_up(reader);
    let waited_ns: u64 = touches.iter().map(|touch| touch.waited_ns).sum();
    assert!(reader.latency.fault.total_ns >= waited_ns, "{waited_ns} ns: {reader:#?}");
    // A wait for a CPU in a fault is one in the ledger, too.
    let faulting_ns = reader.states.fault_minor + reader.states.fault_major;
    assert!(faulting_ns + reader.run_queue_ns >= waited_ns, "{waited_ns} ns: {reader:#?}");
    assert_eq!(reader.latency.fault.count, reader.faults.minor + reader.faults.major);
    let longest = stalls.iter().filter(|stall| stall.kind == "fault").map(|stall| stall.duration_ns).max();
    assert_eq!(Some(reader.latency.fault.max_ns), longest);
    let folded =
        recording.read("export", &["--to", "folded", "--view", "faults", "--thread", "reader", "-o", "-"]);
    let touched_ns: u64 = folded
        .lines()
        .filter(|line| line.contains(";touch_page;") || line.contains(";touch_in_syscall;"))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
        .sum();
    // The reader's other faults, such as those of its code, are not in these functions.
    let stalls_of = touches.iter().map(|touch| fault_at(&stalls, &touch.address));
    let faults_ns: u64 = stalls_of.map(|stall| stall.duration_ns - stall.runnable_ns).sum();
    assert!(touched_ns + CARRIED_NS >= faults_ns, "{touched_ns} of {faults_ns}: {folded}");
}

#[test]
fn a_page_of_a_cold_file() {
    let Some(_guard) = machine::reserve("a_page_of_a_cold_file") else { return };
    // In the build folder: a temporary folder may be in memory.
    let file = concat!(env!("CARGO_TARGET_TMPDIR"), "/fault-cold");
    let Performance { truth, recording, .. } = perform(&["-f", file], &["--min-stall", "10us"]);
    let cold: Cold = truth.one("cold");
    if !cold.evicted {
        return wallprof_testkit::skip("a_page_of_a_cold_file", "files stay in memory here");
    }
    let stalls = recording.stalls(&["--thread", "reader"]);
    let stall = fault_at(&stalls, &cold.address);
    let fault = stall.fault.as_ref().expect("a fault");
    assert_eq!((stall.reason.as_str(), fault.major), ("major", true), "{stall:#?}");
    assert_eq!(fault.access.as_deref(), Some("read"));
    assert_eq!(fault.mapping.as_deref(), Some("file"));
    assert_eq!(fault.file.as_deref(), Some(cold.file.as_str()));
    assert_eq!(fault.file_offset, Some(cold.offset));
    assert!(stall.user_stack_has("touch_cold"), "{stall:#?}");
    cold.times.assert_bracket(stall, &truth);
}

/// Handled signals in a loop are counted as failed faults. Neither the handler's time nor later waits become
/// the fault's.
#[test]
fn faults_that_fail() {
    let Some(_guard) = machine::reserve("faults_that_fail") else { return };
    let Performance { truth, recording, report, .. } = perform(&[], &[]);
    let failed: Failed = truth.one("failed");
    let reader = thread(&report, truth.start.tid("reader"), "reader");
    assert_adds_up(reader);
    assert_eq!(reader.faults.failed, failed.segv + failed.bus, "{reader:#?}");
    assert!(reader.states.blocked["sleep"] >= failed.slept_ns, "{reader:#?}");
    let served = truth.all::<Touch>("fault").len();
    let faults = recording.stalls(&["--thread", "reader", "--kind", "fault", "--longer-than", "1ms"]);
    assert_eq!(faults.len(), served, "{faults:#?}");
    assert!(recording.read("report", &[]).contains("failed page faults"));
}

#[derive(Debug, Deserialize)]
struct Stuck {
    address: String,
    since_ns: u64,
    by_ns: u64,
}

/// A page that never comes: an open stall, and an open fault in every view.
#[test]
fn a_fault_that_does_not_end() {
    let Some(_run) = stored::run("a_fault_that_does_not_end") else { return };
    let mut scenario = Scenario::ready("fault", &["-k"]);
    if scenario.start.workers().len() > 1 {
        return wallprof_testkit::skip("a_fault_that_does_not_end", "userfaultfd is not permitted");
    }
    let recorder = Recorder::armed(&["-p", &scenario.pid()], &[]);
    let truth = scenario.run();
    let recording = recorder.stop();
    let stuck: Stuck = truth.one("stuck");
    let stalls = recording.stalls(&["--thread", "stuck"]);
    let stall = fault_at(&stalls, &stuck.address);
    assert!(stall.open && stall.user_stack_has("touch_never"), "{stall:#?}");
    assert_eq!((stall.kind.as_str(), stall.reason.as_str()), ("fault", "minor"));
    assert!(stall.waker.is_none(), "no thread woke {stall:#?}");
    let [since, by] = [stuck.since_ns, stuck.by_ns].map(|at| truth.epoch_from_mono(at));
    assert!((since - CLOCKS_NS..=by + CLOCKS_NS).contains(&stall.start_ns), "{since} to {by}: {stall:#?}");
    let report = recording.report();
    let thread = thread(&report, truth.start.tid("stuck"), "stuck");
    assert_adds_up(thread);
    assert!(thread.states.fault_minor + EDGE_NS >= stall.blocked_ns, "{stall:#?} of {thread:#?}");
    let folded = recording.read("export", &["--to", "folded", "--view", "faults", "-o", "-"]);
    assert!(folded.contains(";touch_never;"), "{folded}");
}

/// As many as a thread can make: each is counted, as the kernel counts them, and nothing is lost.
#[test]
fn no_fault_is_lost() {
    let Some(_guard) = machine::reserve("no_fault_is_lost") else { return };
    let times = MANY.div_ceil(FRESH_PAGES).to_string();
    let Performance { truth, report, counted, .. } = perform(&["-t", &times], &[]);
    let spinner = thread(&report, truth.start.tid("spinner"), "spinner");
    assert_adds_up(spinner);
    assert!(truth.one::<Fresh>("fresh").pages >= MANY);
    for (tid, counted) in counted {
        let thread = report.threads.iter().find(|thread| thread.tid == tid).expect("a worker");
        let recorded = thread.faults.minor + thread.faults.major;
        assert_always!(
            recorded == counted,
            "{}: {recorded} faults, and {counted} of the kernel",
            thread.comm
        );
        assert_eq!(thread.latency.fault.count, recorded);
    }
    // Wakeups and switches by a thread that may not be traced are no faults.
    let is_a_supervisors = |reason: &str| matches!(reason, "sleeps_without_wakeup" | "switches_unseen");
    let mut losses = report.losses.keys().filter(|reason| !is_a_supervisors(reason));
    assert_eq!(losses.next(), None, "{:#?}", report.losses);
}
