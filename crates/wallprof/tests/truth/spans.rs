// SPDX-License-Identifier: Apache-2.0
//! `wallprof tail` over the operations that a program logs itself, and over busy periods that it knows nothing
//! of: the planted cause, and its twin without.
//!
//! Other load on the machine, and a host that takes its CPUs, make requests slow as well. So what is expected is
//! taken from the log, over the same requests that the tail and the middle consist of. Running time is checked
//! by what it is not: the kernel's clock of a thread leaves out what the host takes, at once or later.

use std::fmt::Write as _;
use std::fs;

use serde::Deserialize;
use serde_json::Value;

use wallprof_testkit::contract::Finding;
use wallprof_testkit::recorder::Recorder;
use wallprof_testkit::scenario::{Scenario, program};
use wallprof_testkit::stored;

#[derive(Debug, Deserialize)]
struct Request {
    /// Before and after the mark of the start, if there is one.
    from_ns: u64,
    start_ns: u64,
    /// Before and after the mark of the end.
    end_ns: u64,
    to_ns: u64,
    /// For the lock, for the page, or until the neighbour was woken.
    waited_ns: u64,
    /// For a CPU, by the kernel's own sum.
    queued_ns: u64,
    /// Outside of the marks, between the two readings of that sum.
    around_ns: u64,
    /// By the client.
    sent_ns: u64,
    /// A recorder had switched the marks on.
    marked: bool,
}

impl Request {
    fn duration_ns(&self) -> u64 {
        self.end_ns - self.start_ns
    }

    fn with_marks_ns(&self) -> u64 {
        self.to_ns - self.from_ns
    }

    fn since_sent_ns(&self) -> u64 {
        self.to_ns - self.sent_ns
    }

    /// The waits that end with a wakeup, and the wakeups themselves: the kernel's sum begins where the CPU that
    /// the thread comes to has heard of it, and its wait for one where the waker decides.
    fn woken_ns(&self) -> u64 {
        let until_start_ns = if self.sent_ns > 0 { self.start_ns - self.sent_ns } else { 0 };
        self.waited_ns + until_start_ns
    }
}

/// Longer than requests without the planted cause are on a quiet machine.
const BUDGET_US: u64 = 700;
/// How many ms the planted cause takes: more than what else makes requests slow.
const PLANTED_MS: &str = "3";
/// The mean of the planted waits, less those of other load that are in the tail, too.
const LEAST_PLANTED_NS: i64 = 1_000_000;

/// The log of the program, and the one kind of `tail --json`.
struct Run {
    /// Those that are spans of the kind.
    requests: Vec<Request>,
    /// How long such a span takes, by the log.
    lasts: fn(&Request) -> u64,
    /// From the clock of the log to that of the JSON.
    epoch_offset: u64,
    kind: Value,
}

impl Run {
    fn with(cause: &str) -> Self {
        let mut scenario = Scenario::ready("requests", &["-d", "3", "-k", cause, "-n", PLANTED_MS]);
        let (pid, tid) = (scenario.pid(), scenario.start.tid("engine"));
        let recorder = Recorder::armed(&["-p", &pid, "--min-stall", "10us"], &[]);
        let truth = scenario.run();
        let recording = recorder.stop();
        let requests: Vec<Request> = truth.all("request");
        let first = requests.first().expect("a request").start_ns;
        let epoch_offset = truth.epoch_from_mono(first) - first;
        let mut csv = "start_epoch_ns,end_epoch_ns,tid,kind\n".to_owned();
        for Request { start_ns, end_ns, .. } in &requests {
            writeln!(csv, "{},{},{tid},request", start_ns + epoch_offset, end_ns + epoch_offset)
                .expect("text");
        }
        let log = recording.path().with_extension("csv");
        fs::write(&log, csv).expect("a file is written");
        recording.read("import", &["--spans", log.to_str().expect("UTF-8")]);
        let text = recording.read("tail", &["--json", "--tail", "P97.5", "--kind", "request"]);
        let mut tail: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(tail["kinds"].as_array().map(Vec::len), Some(1), "{tail}");
        let kind = tail["kinds"][0].take();
        let run = Run { requests, lasts: Request::duration_ns, epoch_offset, kind };
        run.check_counts();
        run.check_sums();
        run.check_percentiles();
        run
    }

    /// Whatever the cause: the parts add up, to what the log says.
    fn check_sums(&self) {
        let difference = &self.kind["difference"];
        assert_eq!(self.kind["count"].as_u64(), Some(self.requests.len() as u64));
        assert_eq!(sum_of_states(&difference["states"]), ns(&difference["mean_ns"]));
        let causes = self.causes().iter().map(|cause| ns(&cause["ns"]));
        assert_eq!(causes.sum::<i64>(), ns(&difference["mean_ns"]));
        let logged = self.logged_excess(Request::duration_ns);
        assert!(is_near(ns(&difference["mean_ns"]), logged, 2), "{logged}: {difference}");
        self.check_waits_for_cpu();
        for exemplar in self.kind["exemplars"].as_array().expect("a list") {
            let start = exemplar["start_ns"].as_u64().expect("a time") - self.epoch_offset;
            let request =
                self.requests.iter().find(|request| request.start_ns == start).expect("it is logged");
            assert_eq!(sum_of_states(&exemplar["states"]), request.duration_ns() as i64, "{exemplar}");
        }
    }

    fn check_percentiles(&self) {
        let sorted = |ns_of: fn(&Request) -> u64| {
            let mut durations: Vec<u64> = self.requests.iter().map(ns_of).collect();
            durations.sort_unstable();
            durations
        };
        let (least, most) = (sorted(Request::duration_ns), sorted(Request::with_marks_ns));
        for (name, share) in [("p50_ns", 0.5), ("p90_ns", 0.9), ("p99_ns", 0.99), ("p999_ns", 0.999)] {
            let rank = (share * least.len() as f64).ceil() as usize;
            let (found, least, most) = (ns(&self.kind[name]) as u64, least[rank - 1], most[rank - 1]);
            // A bucket is at most a sixteenth wide.
            assert!(
                (least * 15 / 16..=most * 17 / 16).contains(&found),
                "{name}: {found} of {least}..{most}"
            );
        }
    }

    /// Whatever the cause: the kernel has as much of waits for a CPU. It can have more: it counts from the
    /// wakeup that preempts, and a thread runs on until its CPU has heard of that.
    fn check_waits_for_cpu(&self) {
        let queued_ns = self.logged_excess(|request| request.queued_ns).max(0);
        let woken_ns = self.logged_excess(Request::woken_ns).max(0);
        let found_ns = self.state("runnable") + self.state("preempted");
        let log = format!("{queued_ns}, {woken_ns}: {}", self.kind["difference"]);
        assert!(found_ns <= (queued_ns + woken_ns) * 11 / 10 + SWITCH_LAG_NS, "{log}");
    }

    /// Whatever the cause: the waits for the lock in the tail are those of the log, which has the waits for a
    /// CPU after them in the same time.
    fn check_waits_for_lock(&self) {
        let waited_ns = self.logged_excess(|request| request.waited_ns);
        let found_ns = self.state("blocked:lock");
        let late_ns = self.state("runnable").max(0) + self.state("preempted").max(0) + self.state("unknown");
        let difference = &self.kind["difference"];
        assert!(found_ns * 10 <= waited_ns * 11, "{waited_ns}: {difference}");
        assert!((found_ns + late_ns) * 10 >= waited_ns * 9, "{waited_ns}: {difference}");
    }

    /// The work is the first cause, with the function that does it.
    fn check_work(&self) {
        let work = self.first_cause();
        assert_eq!(work["state"], "cpu", "{:?}", self.causes());
        let functions = work["user_stack"].as_array().expect("late samples divide the running time");
        assert!(functions.iter().any(|function| function["symbol"] == "handle_request"), "{work}");
    }

    /// The page that comes late is the first cause, for as long as the access took.
    fn check_fault(&self) {
        let fault = self.planted("fault:minor");
        let functions = fault["user_stack"].as_array().expect("a stack");
        assert!(functions.iter().any(|function| function["symbol"] == "touch_page"), "{fault}");
        assert_eq!(fault["waker"]["comm"], "pager", "{fault}");
        let waited_ns = self.logged_excess(|request| request.waited_ns);
        let found_ns = self.state("fault_minor");
        assert!(waited_ns >= LEAST_PLANTED_NS, "the page was there: {waited_ns}");
        let late_ns = self.state("runnable").max(0) + self.state("preempted").max(0) + self.state("unknown");
        let log = format!("{waited_ns}: {}", self.kind["difference"]);
        assert!(found_ns * 10 <= waited_ns * 11 && (found_ns + late_ns) * 10 >= waited_ns * 9, "{log}");
    }

    /// The loss of the CPU is the first cause, for as long as it took to wake the neighbour. `check_waits_for_cpu` has
    /// the upper limit.
    fn check_preemption(&self) {
        self.planted("preempted");
        let waited_ns = self.logged_excess(|request| request.waited_ns);
        let found_ns = self.state("preempted");
        assert!(waited_ns >= LEAST_PLANTED_NS, "the neighbour did not preempt: {waited_ns}");
        assert!(found_ns * 10 >= waited_ns * 9, "{waited_ns}: {}", self.kind["difference"]);
    }

    /// The parts in which the tail waited for something are none that the program has.
    fn check_has_no_waits(&self) {
        for cause in self.causes() {
            let state = cause["state"].as_str().expect("a name");
            assert!(!state.starts_with("blocked:") || ns(&cause["ns"]) < 1_000, "{cause}");
        }
    }

    /// The mean of the slowest requests, as many as the tail has, minus that of those in the middle.
    fn logged_excess(&self, ns_of: impl Fn(&Request) -> u64) -> i64 {
        let mut requests: Vec<&Request> = self.requests.iter().collect();
        requests.sort_by_key(|request| (self.lasts)(request));
        let mean = |part: &[&Request]| {
            (part.iter().map(|request| ns_of(request)).sum::<u64>() / part.len() as u64) as i64
        };
        let in_tail = self.kind["tail"]["count"].as_u64().expect("a count") as usize;
        let at = |percent: usize| requests.len() * percent / 100;
        mean(&requests[requests.len() - in_tail..]) - mean(&requests[at(45)..at(55)])
    }

    /// The edges that the tail and the middle have are those of their requests.
    fn check_counts(&self) {
        for part in ["tail", "body"] {
            let edge = |name: &str| self.kind[part][name].as_u64().expect("an edge");
            let (from, to) = (edge("from_ns"), edge("to_ns"));
            let all = self.requests.iter().filter(|request| (from..to).contains(&request.duration_ns()));
            assert_eq!(self.kind[part]["count"].as_u64(), Some(all.count() as u64), "{part}");
        }
    }

    fn state(&self, name: &str) -> i64 {
        let states = &self.kind["difference"]["states"];
        match name.split_once(':') {
            Some((state, reason)) => ns(&states[state][reason]),
            None => ns(&states[name]),
        }
    }

    fn causes(&self) -> &[Value] {
        self.kind["difference"]["causes"].as_array().expect("causes")
    }

    fn lock(&self) -> &Value {
        self.planted("blocked:lock")
    }

    /// The planted wait is the first cause, if the log has most of the excess there: a host that holds a CPU up makes
    /// requests run for longer, and other load makes them wait for one.
    fn planted(&self, state: &str) -> &Value {
        let waited_ns = self.logged_excess(|request| request.waited_ns);
        let others_ns = self.logged_excess(self.lasts) - waited_ns;
        let is_planted = |cause: &&Value| cause["state"] == state;
        let found = self.causes().iter().find(is_planted);
        let first = match waited_ns * 4 > others_ns * 5 {
            false => found,
            true if state == "preempted" => self.causes().first().filter(is_planted),
            true => Some(self.first_cause()).filter(is_planted),
        };
        first.unwrap_or_else(|| panic!("{waited_ns} and {others_ns}: {:?}", self.causes()))
    }

    /// Of the scenario's own: other load takes CPUs away.
    fn first_cause(&self) -> &Value {
        let of_load =
            |cause: &&Value| !["runnable", "preempted", "irq"].iter().any(|name| cause["state"] == *name);
        self.causes().iter().find(of_load).expect("a cause")
    }
}

/// Busy periods of a loop, and the log of the requests that they are.
struct LoopRun;

impl LoopRun {
    fn with(cause: &str) -> Run {
        let mut scenario = Scenario::ready("requests", &["-l", "-d", "5", "-k", cause, "-n", PLANTED_MS]);
        let pid = scenario.pid();
        let recorder = Recorder::armed(&["-p", &pid, "--min-stall", "10us", "-F", "997"], &[]);
        let truth = scenario.run();
        let recording = recorder.stop();
        let mut requests: Vec<Request> = truth.all("request");
        let first = requests.first().expect("a request").start_ns;
        let epoch_offset = truth.epoch_from_mono(first) - first;
        let text = recording.read("tail", &["--json", "--tail", "P97.5", "--thread", "engine"]);
        let mut tail: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(tail["kinds"].as_array().map(Vec::len), Some(1), "{tail}");
        assert_eq!(
            (&tail["kinds"][0]["kind"], &tail["kinds"][0]["source"]),
            (&"busy".into(), &"busy".into())
        );
        let kind = tail["kinds"][0].take();
        // It takes seconds to learn where the loop waits. Once that is known, each request is a period.
        let (found, logged) = (kind["count"].as_u64().expect("a count") as usize, requests.len());
        assert!((logged / 4..=logged).contains(&found), "{found} of {logged}");
        requests.drain(..logged - found);
        // A wait between the reading of the kernel's sum and the poll is in the sum of the next one.
        for at in 1..requests.len() {
            requests[at - 1].queued_ns += requests[at].queued_ns;
        }
        let run = Run { requests, lasts: Request::since_sent_ns, epoch_offset, kind };
        Self::check_periods(&run);
        run
    }

    /// Whatever the cause: each period is a request of the log.
    fn check_periods(run: &Run) {
        let Run { requests, epoch_offset, kind, .. } = run;
        for exemplar in kind["exemplars"].as_array().expect("a list") {
            let time = |name: &str| exemplar[name].as_u64().expect("a time");
            let (start, end) = (time("start_ns") - epoch_offset, time("end_ns") - epoch_offset);
            assert_eq!(sum_of_states(&exemplar["states"]), time("duration_ns") as i64, "{exemplar}");
            // It starts between the client's clock and the engine's, and ends before the next one is sent.
            let after = requests.partition_point(|request| request.sent_ns <= start);
            let request = requests[..after].last().expect("it was sent before");
            let next = requests.get(after).map_or(u64::MAX, |next| next.sent_ns);
            let log = format!("{start}..{end}: {request:?}, {exemplar}");
            let until = request.end_ns - SWITCH_LAG_NS as u64..next;
            assert!(start <= request.start_ns && until.contains(&end), "{log}");
            check_waits_of(exemplar, request);
        }
        let median = |ns_of: fn(&Request) -> u64| {
            let mut all: Vec<u64> = requests.iter().map(ns_of).collect();
            all.sort_unstable();
            all[all.len() / 2]
        };
        let (least, most) = (median(Request::duration_ns), median(Request::since_sent_ns));
        let found = kind["p50_ns"].as_u64().expect("a time");
        assert!((least - least / 16..=most + most / 16).contains(&found), "{least}..{most}: {found}");
        let difference = &kind["difference"];
        let (mean_ns, logged_ns) = (ns(&difference["mean_ns"]), run.logged_excess(Request::since_sent_ns));
        // The system calls around a request belong to its period.
        assert!((mean_ns - logged_ns).abs() <= 100_000 + logged_ns / 10, "{logged_ns}: {difference}");
        run.check_waits_for_cpu();
    }
}

/// What says where a request begins and ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    /// The engine marks it.
    Code,
    /// Two USDT probes. The stage is a function.
    Probes,
}

/// Requests whose begin and end the engine itself says, and its own log of them.
struct MarkedRun {
    run: Run,
    /// The stage in which it takes the lock; `None`: it takes none.
    stage: Option<Value>,
    over_budget: Option<Finding>,
}

impl MarkedRun {
    fn of(source: Source, cause: &str) -> Self {
        let mut arguments = vec!["-d", "4", "-k", cause, "-n", PLANTED_MS];
        arguments.extend((source == Source::Code).then_some("-m"));
        let mut scenario = Scenario::ready("requests", &arguments);
        let pid = scenario.pid();
        let (name, stage_name) = match source {
            Source::Code => ("request", "registry"),
            Source::Probes => ("request__begin..request__end", "take_registry_lock"),
        };
        let budget = format!("{name}={BUDGET_US}us");
        let file = program("requests").display().to_string();
        let usdt = format!("usdt:{file}:requests:{name}");
        let uprobe = format!("uprobe:{file}:{stage_name}");
        let mut options = vec!["-p", &pid, "--min-stall", "10us", "-F", "997", "--budget", &budget];
        if source == Source::Probes {
            options.extend(["--span", &usdt, "--span", &uprobe]);
        }
        let recorder = Recorder::armed(&options, &[]);
        let truth = scenario.run();
        let recording = recorder.stop();
        let mut requests: Vec<Request> = truth.all("request");
        let first = requests.first().expect("a request").start_ns;
        let epoch_offset = truth.epoch_from_mono(first) - first;
        let kind_of = |kind: &str| {
            let text = recording.read("tail", &["--json", "--tail", "P97.5", "--kind", kind]);
            let mut tail: Value = serde_json::from_str(&text).expect("JSON");
            tail["kinds"].get_mut(0).map(Value::take)
        };
        let kind = kind_of(name).expect("spans of that kind");
        assert_eq!(kind["source"], if source == Source::Code { "code" } else { "usdt" }, "{kind}");
        // Those before the recorder has seen the marks.
        let is_seen = |request: &Request| source == Source::Probes || request.marked;
        let before = requests.iter().take_while(|request| !is_seen(request)).count();
        requests.drain(..before);
        let count = kind["count"].as_u64().expect("a count") as usize;
        assert_eq!(count, requests.len(), "spans of all requests after the first {before}");
        assert!(requests.iter().all(is_seen), "the marks stayed on");
        let stage = kind_of(stage_name);
        let over_budget =
            recording.report().findings.into_iter().find(|finding| finding.rule == "over-budget");
        let marked = MarkedRun {
            run: Run { requests, lasts: Request::duration_ns, epoch_offset, kind },
            stage,
            over_budget,
        };
        marked.run.check_percentiles();
        marked.run.check_waits_for_cpu();
        marked.check_over_budget();
        marked.check_spans();
        marked
    }

    /// Whatever the cause: each request that the log has over the budget is counted. The clock of the marks is
    /// another one, so those within 2 % of the budget may be on either side.
    fn check_over_budget(&self) {
        let count = self.over_budget.as_ref().map_or(0, |finding| finding.count as usize);
        let longer = |ns: u64, ns_of: fn(&Request) -> u64| {
            self.run.requests.iter().filter(|request| ns_of(request) > ns).count()
        };
        let least = longer(BUDGET_US * 1_020, Request::duration_ns);
        let most = longer(BUDGET_US * 980, Request::with_marks_ns);
        assert!((least..=most).contains(&count), "{least}..={most}: {:?}", self.over_budget);
    }

    /// Whatever the cause: each span is a request of the log, and its states add up to it.
    fn check_spans(&self) {
        let Run { requests, epoch_offset, kind, .. } = &self.run;
        assert_eq!(sum_of_states(&kind["difference"]["states"]), ns(&kind["difference"]["mean_ns"]));
        for exemplar in kind["exemplars"].as_array().expect("a list") {
            let time = |name: &str| exemplar[name].as_u64().expect("a time");
            assert_eq!(sum_of_states(&exemplar["states"]), time("duration_ns") as i64, "{exemplar}");
            let (start, end) = (time("start_ns") - epoch_offset, time("end_ns") - epoch_offset);
            let middle = start + (end - start) / 2;
            let after = requests.partition_point(|request| request.from_ns <= middle);
            let request = requests[..after].last().expect("it is logged");
            let log = format!("{start}..{end}: {request:?}, {exemplar}");
            // The marks are between the clock readings of the log, and converted from another clock.
            let is_between = |at: u64, from: u64, to: u64| (from - 10_000..=to + 10_000).contains(&at);
            assert!(is_between(start, request.from_ns, request.start_ns), "{log}");
            assert!(is_between(end, request.end_ns, request.to_ns), "{log}");
            let durations = request.duration_ns() * 49 / 50..=request.with_marks_ns() * 51 / 50 + 1_000;
            assert!(durations.contains(&time("duration_ns")), "{log}");
            if ns(&exemplar["states"]["unknown"]) == 0 {
                check_waits_of(exemplar, request);
            }
        }
    }
}

/// Up to this much running time before a switch is part of the wait that follows: the limit of the same name of
/// the ledger.
const SWITCH_LAG_NS: i64 = 20_000;

/// The waits of a single span.
fn check_waits_of(exemplar: &Value, request: &Request) {
    let states = &exemplar["states"];
    let (found_ns, lock_ns) =
        (ns(&states["runnable"]) + ns(&states["preempted"]), ns(&states["blocked"]["lock"]));
    // A wait that fits beside the span may have been there: the sum is read before and after the span.
    assert!(found_ns > 0 || request.queued_ns <= request.around_ns, "{request:?}: {exemplar}");
    let switches = 1 + exemplar["stalls"].as_array().expect("a list").len() as i64;
    let most_ns = (request.queued_ns + request.woken_ns()) as i64 + SWITCH_LAG_NS * switches;
    assert!(found_ns + lock_ns <= most_ns, "{request:?}: {exemplar}");
    assert!(lock_ns <= request.waited_ns as i64 + SWITCH_LAG_NS, "{request:?}: {exemplar}");
}

/// The lock is in the finding about the budget, and is a cause with its owner.
fn lock_of(run: &Run, over_budget: Option<Finding>) -> &Value {
    let over_budget = over_budget.expect("requests over their budget");
    let words = "waiting for a lock in take_registry_lock";
    assert!(over_budget.title.contains(words) && !over_budget.stalls.is_empty(), "{over_budget:?}");
    let lock = run.lock();
    assert_eq!(lock["lock"]["owner"]["comm"], "housekeeper", "{lock}");
    lock
}

#[test]
fn tail_of_marked_spans_is_the_planted_lock() {
    let Some(_run) = stored::run("tail_of_marked_spans_is_the_planted_lock") else { return };
    let MarkedRun { run, stage, over_budget } = MarkedRun::of(Source::Code, "lock");
    lock_of(&run, over_budget);
    // Until the recorder has the slot of a thread, what its spans did is unknown: up to a tick of it.
    let excess_ns = ns(&run.kind["difference"]["mean_ns"]);
    assert!(run.state("unknown") * 20 <= excess_ns, "{}", run.kind["difference"]);
    run.check_waits_for_lock();
    let stage = stage.expect("the stage of the lock");
    let slow = run.requests.iter().filter(|request| request.waited_ns > 0).count() as u64;
    assert_eq!(stage["count"].as_u64(), Some(slow), "{stage}");
}

#[test]
fn tail_of_probed_spans_is_the_planted_lock() {
    let Some(_run) = stored::run("tail_of_probed_spans_is_the_planted_lock") else { return };
    let MarkedRun { run, stage, over_budget } = MarkedRun::of(Source::Probes, "lock");
    let lock = lock_of(&run, over_budget);
    let functions = lock["user_stack"].as_array().expect("a stack");
    assert!(functions.iter().any(|function| function["symbol"] == "serve"), "probes break no stack: {lock}");
    assert_eq!(run.state("unknown"), 0, "{}", run.kind["difference"]);
    run.check_waits_for_lock();
    let stage = stage.expect("calls of the function that takes the lock");
    assert_eq!(stage["source"], "uprobe", "{stage}");
    let slow: Vec<&Request> = run.requests.iter().filter(|request| request.waited_ns > 0).collect();
    assert_eq!(stage["count"].as_u64(), Some(slow.len() as u64), "{stage}");
    let longest = stage["max_ns"].as_u64().expect("a time");
    let longest_of = |ns_of: fn(&Request) -> u64| slow.iter().map(|request| ns_of(request)).max();
    let (least, most) = (longest_of(|request| request.waited_ns), longest_of(Request::duration_ns));
    assert!(Some(longest) >= least && Some(longest) <= most, "{least:?}..{most:?}: {stage}");
}

#[test]
fn tail_of_probed_spans_is_the_planted_work_and_its_twin_has_none() {
    let test = "tail_of_probed_spans_is_the_planted_work_and_its_twin_has_none";
    let Some(_run) = stored::run(test) else { return };
    let MarkedRun { run, stage, .. } = MarkedRun::of(Source::Probes, "work");
    assert!(stage.is_none(), "{stage:?}");
    run.check_work();
    run.check_has_no_waits();
    MarkedRun::of(Source::Probes, "none").run.check_has_no_waits();
}

#[test]
fn tail_of_marked_spans_is_the_planted_work_and_its_twin_has_none() {
    let test = "tail_of_marked_spans_is_the_planted_work_and_its_twin_has_none";
    let Some(_run) = stored::run(test) else { return };
    let MarkedRun { run, stage, .. } = MarkedRun::of(Source::Code, "work");
    assert!(stage.is_none(), "{stage:?}");
    run.check_work();
    run.check_has_no_waits();
    MarkedRun::of(Source::Code, "none").run.check_has_no_waits();
}

fn sum_of_states(states: &Value) -> i64 {
    let blocked = states["blocked"].as_object().expect("reasons");
    let all = states.as_object().expect("states").values().chain(blocked.values());
    all.filter_map(Value::as_i64).sum()
}

fn ns(value: &Value) -> i64 {
    value.as_i64().expect("a time")
}

/// Within so many percent, or 1 µs.
fn is_near(found: i64, expected: i64, percent: i64) -> bool {
    (found - expected).abs() <= (expected.abs() * percent / 100).max(1_000)
}

#[test]
fn tail_of_a_log_is_the_planted_lock() {
    let Some(_run) = stored::run("tail_of_a_log_is_the_planted_lock") else { return };
    let run = Run::with("lock");
    let lock = run.lock();
    run.check_waits_for_lock();
    let functions = lock["user_stack"].as_array().expect("a stack");
    assert!(functions.iter().any(|function| function["symbol"] == "take_registry_lock"), "{lock}");
    assert_eq!(lock["lock"]["owner"]["comm"], "housekeeper", "{lock}");
}

#[test]
fn tail_of_a_log_is_the_planted_work_and_its_twin_has_none() {
    let test = "tail_of_a_log_is_the_planted_work_and_its_twin_has_none";
    let Some(_run) = stored::run(test) else { return };
    let run = Run::with("work");
    assert_eq!(run.first_cause()["state"], "cpu", "{:?}", run.causes());
    run.check_has_no_waits();
    Run::with("none").check_has_no_waits();
}

#[test]
fn tail_of_busy_periods_is_the_planted_lock() {
    let Some(_run) = stored::run("tail_of_busy_periods_is_the_planted_lock") else { return };
    let run = LoopRun::with("lock");
    let lock = run.lock();
    run.check_waits_for_lock();
    assert_eq!(lock["lock"]["owner"]["comm"], "housekeeper", "{lock}");
}

#[test]
fn tail_of_busy_periods_is_the_planted_work_and_its_twin_has_none() {
    let test = "tail_of_busy_periods_is_the_planted_work_and_its_twin_has_none";
    let Some(_run) = stored::run(test) else { return };
    let run = LoopRun::with("work");
    run.check_work();
    run.check_has_no_waits();
    LoopRun::with("none").check_has_no_waits();
}

/// The same cause, whatever says where requests begin and end.
fn check_each_source(cause: &str, check: fn(&Run)) {
    check(&Run::with(cause));
    check(&LoopRun::with(cause));
    for source in [Source::Code, Source::Probes] {
        check(&MarkedRun::of(source, cause).run);
    }
}

#[test]
fn tail_of_each_source_is_the_planted_fault() {
    let Some(_run) = stored::run("tail_of_each_source_is_the_planted_fault") else { return };
    check_each_source("fault", Run::check_fault);
}

#[test]
fn tail_of_each_source_is_the_planted_preemption() {
    let Some(_run) = stored::run("tail_of_each_source_is_the_planted_preemption") else { return };
    check_each_source("preemption", Run::check_preemption);
}
