// SPDX-License-Identifier: Apache-2.0
//! Busy programs without a problem.

use wallprof_testkit::contract::{Cause, Finding};
use wallprof_testkit::machine;
use wallprof_testkit::recorder::Recorder;
use wallprof_testkit::redis::Redis;
use wallprof_testkit::scenario::Scenario;
use wallprof_testkit::stored;

use crate::found::Found;

/// The findings that blame Redis while it answers this many requests of each kind. The others blame the machine,
/// which this test does not control.
fn blamed(redis: &Redis, requests: u32) -> Vec<Finding> {
    let recorder = Recorder::armed(&["-p", &redis.pid().to_string()], &[]);
    assert!(redis.benchmark(requests), "the server answers");
    let mut findings = Found::in_recording(&recorder.stop()).findings;
    findings.retain(|finding| finding.cause == Cause::Program);
    findings
}

fn assert_no_findings(test: &str, runs: u32, requests: u32) {
    let Some(_run) = stored::run(test) else { return };
    let Some(redis) = Redis::start() else {
        return wallprof_testkit::skip(test, "redis-server is not installed");
    };
    for run in 1..=runs {
        let blamed = blamed(&redis, requests);
        assert!(blamed.is_empty(), "run {run}: {blamed:#?}");
    }
}

#[test]
fn busy_redis_has_no_finding() {
    assert_no_findings("busy_redis_has_no_finding", 1, 20_000);
}

/// The findings about the loop of the scenario, whose requests compute for half a millisecond.
fn blocked_loops(args: &[&str], options: &[&str]) -> Vec<Finding> {
    let mut scenario = Scenario::ready("eventloop", &[&["-d", "4", "-c", "500", "-n", "32"], args].concat());
    let recorder = Recorder::armed(&[&["-p", &*scenario.pid(), "-F", "997"], options].concat(), &[]);
    scenario.run();
    let mut findings = Found::in_recording(&recorder.stop()).findings;
    findings.retain(|finding| finding.rule == "blocked-loop");
    findings
}

/// A loop that has 32 requests does not sleep until it has answered them all, one in each turn. The twin computes as long
/// for one request.
#[test]
fn requests_of_many_turns_are_no_blocked_loop() {
    let Some(_guard) = machine::reserve("requests_of_many_turns_are_no_blocked_loop") else { return };
    for options in [&[][..], &["--span", "loop"]] {
        let found = blocked_loops(&[], options);
        assert!(found.is_empty(), "{options:?}: {found:#?}");
    }
    let found = blocked_loops(&["-l"], &["--span", "loop"]);
    let title = found.first().map_or("", |finding| &finding.title);
    assert!(title.contains("its event loop was running in serve_request"), "{found:#?}");
}

/// `cargo test -p wallprof --test findings -- --ignored ten_undisturbed_runs`
#[test]
#[ignore = "takes a minute and a machine without other load"]
fn ten_undisturbed_runs_of_a_busy_redis_have_no_finding() {
    assert_no_findings("ten_undisturbed_runs_of_a_busy_redis_have_no_finding", 10, 200_000);
}
