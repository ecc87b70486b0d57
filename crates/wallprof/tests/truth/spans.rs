//! `wallprof tail` over the operations that a program logs itself: the planted cause, and its twin without.
//!
//! Other load on the machine makes requests slow as well. So the expected excess is taken from the log, over
//! the same requests that the tail and the middle consist of.

use std::fmt::Write as _;
use std::fs;

use serde::Deserialize;
use serde_json::Value;

use wallprof_testkit::machine;
use wallprof_testkit::recorder::Recorder;
use wallprof_testkit::scenario::Scenario;

#[derive(Debug, Deserialize)]
struct Request {
    start_ns: u64,
    end_ns: u64,
    /// For the lock.
    waited_ns: u64,
    /// On a CPU, by the kernel's clock of the thread.
    ran_ns: u64,
}

impl Request {
    fn duration_ns(&self) -> u64 {
        self.end_ns - self.start_ns
    }
}

/// The log of the program, and the one kind of `tail --json`.
struct Run {
    requests: Vec<Request>,
    /// From the clock of the log to that of the JSON.
    epoch_offset: u64,
    kind: Value,
}

impl Run {
    fn with(cause: &str) -> Self {
        let mut scenario = Scenario::ready("requests", &["-d", "3", "-k", cause]);
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
        let run = Run { requests, epoch_offset, kind: tail["kinds"][0].take() };
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
        for exemplar in self.kind["exemplars"].as_array().expect("a list") {
            let start = exemplar["start_ns"].as_u64().expect("a time") - self.epoch_offset;
            let request =
                self.requests.iter().find(|request| request.start_ns == start).expect("it is logged");
            assert_eq!(sum_of_states(&exemplar["states"]), request.duration_ns() as i64, "{exemplar}");
        }
    }

    fn check_percentiles(&self) {
        let mut durations: Vec<u64> = self.requests.iter().map(Request::duration_ns).collect();
        durations.sort_unstable();
        for (name, share) in [("p50_ns", 0.5), ("p90_ns", 0.9), ("p99_ns", 0.99), ("p999_ns", 0.999)] {
            let rank = (share * durations.len() as f64).ceil() as usize;
            // A bucket is at most a sixteenth wide.
            let (found, logged) = (ns(&self.kind[name]), durations[rank - 1] as i64);
            assert!((found - logged).abs() * 16 <= found.max(logged), "{name}: {found} of {logged}");
        }
    }

    /// The mean of the tail's requests minus that of those in the middle.
    fn logged_excess(&self, ns_of: impl Fn(&Request) -> u64) -> i64 {
        let mean = |part: &str| {
            let edge = |name: &str| self.kind[part][name].as_u64().expect("an edge");
            let (from, to) = (edge("from_ns"), edge("to_ns"));
            let all = self.requests.iter().filter(|request| (from..to).contains(&request.duration_ns()));
            let all: Vec<u64> = all.map(&ns_of).collect();
            assert_eq!(self.kind[part]["count"].as_u64(), Some(all.len() as u64), "{part}");
            (all.iter().sum::<u64>() / all.len() as u64) as i64
        };
        mean("tail") - mean("body")
    }

    fn state(&self, name: &str) -> i64 {
        ns(&self.kind["difference"]["states"][name])
    }

    fn causes(&self) -> &[Value] {
        self.kind["difference"]["causes"].as_array().expect("causes")
    }

    /// Waits of the scenario's own: other load takes CPUs away.
    fn first_cause(&self) -> &Value {
        let of_load = |cause: &&Value| cause["state"] != "runnable" && cause["state"] != "preempted";
        self.causes().iter().find(of_load).expect("a cause")
    }
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
    let Some(_guard) = machine::reserve("tail_of_a_log_is_the_planted_lock") else { return };
    let run = Run::with("lock");
    let lock = run.first_cause();
    assert_eq!(lock["state"], "blocked:lock", "{:?}", run.causes());
    // A thread that gets the lock can still wait for a CPU: the log has both as one.
    let waited_ns = run.logged_excess(|request| request.waited_ns);
    let waited_for_cpu_ns = run.state("runnable") + run.state("preempted");
    let difference = &run.kind["difference"];
    assert!(ns(&lock["ns"]) * 10 <= waited_ns * 11, "{waited_ns}: {difference}");
    let found_ns = ns(&lock["ns"]) + waited_for_cpu_ns.max(0);
    assert!(found_ns * 10 >= waited_ns * 9, "{found_ns} of {waited_ns}: {difference}");
    let functions = lock["user_stack"].as_array().expect("a stack");
    assert!(functions.iter().any(|function| function["symbol"] == "take_registry_lock"), "{lock}");
    assert_eq!(lock["lock"]["owner"]["comm"], "housekeeper", "{lock}");
}

#[test]
fn tail_of_a_log_is_the_planted_work_and_its_twin_has_none() {
    let test = "tail_of_a_log_is_the_planted_work_and_its_twin_has_none";
    let Some(_guard) = machine::reserve(test) else { return };
    let run = Run::with("work");
    assert_eq!(run.first_cause()["state"], "cpu", "{:?}", run.causes());
    let (ran_ns, difference) = (run.logged_excess(|request| request.ran_ns), &run.kind["difference"]);
    assert!(is_near(run.state("cpu"), ran_ns, 10), "{ran_ns}: {difference}");

    let twin = Run::with("none");
    let ran_ns = twin.logged_excess(|request| request.ran_ns);
    let found_ns = twin.state("cpu") + twin.state("unknown");
    assert!(is_near(found_ns, ran_ns, 10), "{ran_ns}: {:?}", twin.causes());
    for cause in twin.causes().iter().filter(|cause| cause["state"].as_str().expect("a name").contains(':')) {
        assert!(ns(&cause["ns"]) < 1_000, "{cause}");
    }
}
