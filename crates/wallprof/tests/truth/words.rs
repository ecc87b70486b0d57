// SPDX-License-Identifier: Apache-2.0
//! A word in memory says what a wait is for, where it can be read and a rule names its value.

use serde::Deserialize;

use wallprof_testkit::contract::Stall;
use wallprof_testkit::recorder::Recorder;
use wallprof_testkit::scenario::Scenario;
use wallprof_testkit::stored;

const RULES: &str = "[[word]]
software = 'engine'
module = 'words'
symbol = 'now_waits_for'
is_pointer = true
idle = ['request']
map = { 0x0300 = 'lock: record', 0x0600 = 'request' }
names = { 'lock: record' = 'row lock' }
";

/// `--min-stall`: a thread that comes back this long after its timeout is late.
const MIN_STALL_NS: u64 = 100_000;

#[derive(Debug, Deserialize)]
struct Waits {
    word: String,
    count: u64,
    total_ns: u64,
}

/// One stack waits for five things in turn. Two have a name: no name comes from what lies in memory otherwise,
/// or from the wait before.
#[test]
fn a_word_names_its_own_waits_and_no_others() {
    let Some(_run) = stored::run("a_word_names_its_own_waits_and_no_others") else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let rules = folder.path().join("engine.toml");
    std::fs::write(&rules, RULES).expect("written");
    let rules = ["--waits", rules.to_str().expect("a UTF-8 path")];
    let mut scenario = Scenario::ready("words", &["-d", "2"]);
    let recorder = Recorder::armed(&["-p", &scenario.pid(), rules[0], rules[1]], &[]);
    let truth = scenario.run();
    let recording = recorder.stop();
    let stalls = recording.stalls(&["--all", rules[0], rules[1]]);
    let tid = truth.start.tid("engine");
    let waits: Vec<&Stall> =
        stalls.iter().filter(|stall| stall.tid == tid && stall.reason == "poll").collect();
    let total_ns = |of: &dyn Fn(&Stall) -> bool| -> (u64, u64) {
        let found: Vec<_> = waits.iter().filter(|stall| of(stall)).collect();
        (found.len() as u64, found.iter().map(|stall| stall.blocked_ns).sum())
    };
    let truths = truth.all::<Waits>("waits");
    for truth in &truths {
        let (name, voluntary) = match truth.word.as_str() {
            "row_lock" => ("row lock", false),
            "request" => ("request", true),
            _ => continue,
        };
        let is_named = |stall: &Stall| stall.meaning.as_ref().is_some_and(|meaning| meaning.name == name);
        let (count, ns) = total_ns(&is_named);
        assert!(count <= truth.count && ns <= truth.total_ns, "{count} of {ns} ns: {truth:?}");
        // A request's waits are idle, and are not all recorded one by one.
        let least = if voluntary { 1 } else { truth.count * 9 / 10 };
        assert!(count >= least, "{count} waits: {truth:?}");
        for stall in waits.iter().filter(|stall| is_named(stall)) {
            let meaning = stall.meaning.as_ref().expect("it has one");
            assert_eq!((meaning.source.as_str(), meaning.software.as_deref()), ("word", Some("engine")));
            let detail = if voluntary { "request" } else { "lock: record" };
            assert_eq!((meaning.idle, meaning.detail.as_deref()), (voluntary, Some(detail)), "{stall:#?}");
            // On a busy machine a thread may come back too late from an idle wait.
            let overslept_ns = stall.duration_ns.saturating_sub(stall.asked_ns.unwrap_or(u64::MAX));
            assert!(stall.voluntary == voluntary || voluntary && overslept_ns >= MIN_STALL_NS, "{stall:#?}");
        }
    }
    let (unnamed, _) = total_ns(&|stall| stall.meaning.is_none());
    let others: u64 = truths
        .iter()
        .filter(|truth| !["row_lock", "request"].contains(&truth.word.as_str()))
        .map(|truth| truth.count)
        .sum();
    assert!(0 < unnamed && unnamed <= others + 1, "{unnamed} of {others} without a name: {truths:?}");
}
