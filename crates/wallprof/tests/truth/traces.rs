// SPDX-License-Identifier: Apache-2.0
//! A stall has the trace that its thread worked for, by OpenTelemetry's OTEP 4947: however the code of the process
//! finds the thread's variable, and no other trace, nor one of a thread that works for none.

use serde::Deserialize;

use wallprof_testkit::contract::Stall;
use wallprof_testkit::recorder::Recorder;
use wallprof_testkit::scenario::{Scenario, program};
use wallprof_testkit::{machine, skip};

/// Sleeps that begin before a library that was just loaded was found have no trace.
const FOUND_AFTER_NS: u64 = 200_000_000;
/// Between the scenario's and the recording's time of day.
const SLACK_NS: u64 = 50_000;

#[derive(Debug, Deserialize)]
struct Traced {
    trace_id: String,
    span_id: String,
    start_ns: u64,
    end_ns: u64,
}

#[derive(Debug, Deserialize)]
struct Untraced {
    count: u64,
}

/// The scenario sleeps for a trace between two of its own readings of the clock.
fn assert_traces_of(name: &str, args: &[&str]) {
    let mut scenario = Scenario::ready(name, args);
    let recorder = Recorder::armed(&["-p", &scenario.pid()], &[]);
    let truth = scenario.run();
    let recording = recorder.stop();
    let stalls = recording.stalls(&["--all"]);
    let [engine, other] = ["engine", "other"].map(|thread| truth.start.tid(thread));
    let traces: Vec<Traced> = truth.all("traced");
    let found_at =
        traces.first().expect("a trace").start_ns + if args.is_empty() { 0 } else { FOUND_AFTER_NS };
    let ids = |stall: &Stall| stall.trace_id.clone().zip(stall.span_id.clone());
    let sleeps = |tid: u32| stalls.iter().filter(move |stall| stall.tid == tid && stall.reason == "sleep");
    let mut seen = 0;
    for trace in traces.iter().filter(|trace| trace.start_ns >= found_at) {
        let [start, end] =
            [trace.start_ns - SLACK_NS, trace.end_ns + SLACK_NS].map(|at| truth.epoch_from_mono(at));
        let within = sleeps(engine).filter(|stall| start <= stall.start_ns && stall.end_ns <= end);
        for stall in within {
            assert_eq!(ids(stall), Some((trace.trace_id.clone(), trace.span_id.clone())), "{name} {args:?}");
            seen += 1;
        }
    }
    let expected = traces.iter().filter(|trace| trace.start_ns >= found_at).count();
    assert!(expected > 20 && seen * 10 >= expected * 9, "{seen} of {expected}: {name} {args:?}");
    let with_a_trace = sleeps(engine).filter(|stall| stall.trace_id.is_some()).count();
    assert!(with_a_trace <= traces.len(), "{with_a_trace} of {}: {name} {args:?}", traces.len());
    let untraced = truth.one::<Untraced>("untraced").count as usize;
    let without = sleeps(engine).filter(|stall| stall.trace_id.is_none()).count();
    assert!(without * 10 >= untraced * 9, "{without} of {untraced}: {name} {args:?}");
    assert!(sleeps(other).all(|stall| stall.trace_id.is_none()), "{name} {args:?}");
    // What is asked for by its id is the sleep for that trace.
    let last = &traces[traces.len() - 2];
    let found = recording.stalls(&["--trace", &last.trace_id.to_uppercase()]);
    let spans: Vec<_> = found.iter().map(|stall| stall.span_id.as_deref()).collect();
    assert!(
        !spans.is_empty() && spans.iter().all(|span| *span == Some(&last.span_id)),
        "{spans:?}: {last:?}"
    );
}

#[test]
fn stalls_have_the_traces_that_their_threads_publish() {
    let Some(_guard) = machine::reserve("stalls_have_the_traces_that_their_threads_publish") else { return };
    assert_traces_of("traces", &[]);
    for library in ["near", "block", "index", "offset"] {
        assert_traces_of("traces-late", &["-l", &format!("libcontext-{library}.so")]);
    }
}

#[test]
fn stalls_of_musl_have_the_traces_that_their_threads_publish() {
    let test = "stalls_of_musl_have_the_traces_that_their_threads_publish";
    let Some(_guard) = machine::reserve(test) else { return };
    if !program("traces-late-musl").exists() {
        return skip(test, "musl-gcc is not installed: Debian package musl-tools");
    }
    assert_traces_of("traces-musl", &[]);
    for library in ["block", "index"] {
        assert_traces_of("traces-late-musl", &["-l", &format!("libcontext-{library}.so")]);
    }
}
