// SPDX-License-Identifier: Apache-2.0
//! `lazy-binding` for functions that were bound while their symbols were missing.

use std::collections::BTreeSet;

use serde::Deserialize;
use wallprof_testkit::contract::Frame;
use wallprof_testkit::recorder::Recorder;
use wallprof_testkit::scenario::Scenario;
use wallprof_testkit::stored;

use crate::found::Found;

#[derive(Debug, Deserialize)]
struct Bound {
    functions: usize,
}

#[derive(Debug, Deserialize)]
struct Stall {
    duration_ns: u64,
    user_stack: Option<Vec<Frame>>,
    binding: Option<Binding>,
}

#[derive(Debug, Deserialize)]
struct Binding {
    symbol: Option<String>,
    library: Option<String>,
}

/// Served pages come 2 ms late.
const SERVED_NS: u64 = 2_000_000;

/// The name of the function that a stall bound, if its library and its caller are right, too.
fn soundly_bound(stall: &Stall) -> Option<&str> {
    let Binding { symbol, library } = stall.binding.as_ref()?;
    let (symbol, library) = (symbol.as_deref()?, library.as_deref()?);
    let caller = format!("call_{symbol}");
    let calls = stall.user_stack.iter().flatten().any(|frame| frame.symbol.as_deref() == Some(&caller));
    (library.ends_with("/liblazy.so") && calls).then_some(symbol)
}

#[test]
fn a_finding_names_the_function_its_library_its_caller_and_the_remedy() {
    let test = "a_finding_names_the_function_its_library_its_caller_and_the_remedy";
    let Some(_run) = stored::run(test) else { return };
    let mut scenario = Scenario::ready("loader", &["-d", "0.5"]);
    let recorder = Recorder::armed(&["-p", &scenario.pid()], &[]);
    let truth = scenario.run();
    let functions = truth.one::<Bound>("bound").functions;
    if functions == 0 {
        return wallprof_testkit::skip(test, "there is no userfaultfd");
    }
    let recording = recorder.stop();
    let stalls = recording.read("stalls", &["--json", "--kind", "fault"]);
    let stalls: Vec<Stall> =
        stalls.lines().map(|line| serde_json::from_str(line).expect("a stall in JSON")).collect();
    let bound: BTreeSet<&str> = stalls.iter().filter_map(soundly_bound).collect();
    assert_eq!(bound.len(), functions, "{bound:?} of {} faults", stalls.len());
    let unsound = |stall: &&Stall| stall.binding.is_some() && soundly_bound(stall).is_none();
    assert!(!stalls.iter().any(|stall| unsound(&stall)), "{:#?}", stalls.iter().find(unsound));
    let found = Found::in_recording(&recording);
    let finding = found.findings.iter().find(|finding| finding.rule == "lazy-binding").expect("a finding");
    for part in ["bound lazy_", " of liblazy.so ", "at its first call in call_lazy_", "called by bind_lazily"]
    {
        assert!(finding.title.contains(part), "{part}: {}", finding.title);
    }
    assert!(
        finding.advice.contains("LD_BIND_NOW=1") && finding.advice.contains("-z,now"),
        "{}",
        finding.advice
    );
    assert!(
        finding.count >= functions as u64 && finding.total_ns >= functions as u64 * SERVED_NS,
        "{finding:?}"
    );
    let longest = stalls.iter().map(|stall| stall.duration_ns).max();
    assert!(Some(finding.max_ns) <= longest, "{finding:?}");
}
