//! The profile that is written, read back as JSON. `tests/readers` reads one with the viewer's own code.

use std::sync::Arc;

use serde_json::Value;
use wallprof_analysis::bins::{Ledgers, Samples, Slots};
use wallprof_analysis::weights::Side;
use wallprof_model::event::{LedgerDelta, SampleDelta, Weighted};
use wallprof_model::profile::{ResolvedFrame, ResolvedStack, WakerRecord};
use wallprof_model::{
    ClockAnchor, ClockMap, EpochNs, EpochSecond, FrameKind, StackEnd, StackId, StallReason, SymbolLine,
    ThreadInfo, ThreadRef,
};

use super::*;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
const ENGINE: ThreadKey = ThreadKey(1);
const KEEPER: ThreadKey = ThreadKey(2);
/// When the recordings start: 40 s after the boot, 100.5 s after the epoch.
const START: u64 = 40 * SECOND;
const RUNS: StackId = StackId(1);
const WAITS: StackId = StackId(2);

fn thread(key: ThreadKey, tid: u32, comm: &str) -> Thread {
    let info = ThreadInfo {
        key,
        tid,
        pid: 42,
        ns_tid: tid,
        ns_pid: 42,
        start_boot_ns: 0,
        comm: comm.into(),
        process: "matchd".into(),
        cgroup: None,
        kernel_thread: false,
    };
    let ledger = LedgerDelta::new(key, EpochSecond(0));
    Thread {
        info,
        start: MonoNs(START),
        end: MonoNs(START + 2 * SECOND),
        ledger,
        latency: Default::default(),
        stalls: 0,
    }
}

/// A recording of two seconds.
fn info() -> RecordingInfo {
    let anchor = ClockAnchor { mono: MonoNs(START), epoch: EpochNs(100 * SECOND + 500 * MS) };
    RecordingInfo {
        start: MonoNs(START),
        end: MonoNs(START + 2 * SECOND),
        clock: ClockMap::new(vec![anchor]),
        command: "matchd --fast".into(),
        ..RecordingInfo::default()
    }
}

fn stack(names: &[&str]) -> ResolvedStack {
    let frame = |name: &&str| {
        let line = SymbolLine { symbol: Some((*name).into()), ..SymbolLine::default() };
        let kind = FrameKind::Native;
        Arc::new(ResolvedFrame { kind, module: None, build_id: None, address: 0, lines: vec![line] })
    };
    ResolvedStack { frames: names.iter().map(frame).collect(), end: StackEnd::Complete }
}

/// The engine ran for 400 ms of its first half second, and waited for a lock then, for 1.6 s in all; the keeper slept.
fn stacks(threads: &[Thread]) -> BinnedStacks {
    let info = info();
    let row = |key, second, running_ms: u64, reason: Reason, blocked_ms: u64| {
        let mut row = LedgerDelta::new(key, EpochSecond(second));
        (row.wall_ns, row.on_cpu_ns) = ((running_ms + blocked_ms) * MS, running_ms * MS);
        row.user_samples = u64::from(running_ms > 0);
        row.blocked_ns[usize::from(reason.code())] = blocked_ms * MS;
        row
    };
    let rows = [
        row(ENGINE, 100, 400, Reason::Lock, 100),
        row(ENGINE, 101, 0, Reason::Lock, 1_000),
        row(ENGINE, 102, 0, Reason::Lock, 500),
        row(KEEPER, 101, 0, Reason::Sleep, 1_000),
    ];
    let mut ledgers = Ledgers::new(&info, threads);
    rows.iter().for_each(|row| ledgers.add(row));
    let ledger = ledgers.finish();
    let slots = Slots::new(&info, threads, &ledger);
    let mut samples = Samples::new(&slots, Side::Both);
    let sample = |second, state, user, weight| SampleDelta {
        thread: ENGINE,
        second: EpochSecond(second),
        what: Weighted::State(state),
        user: Some(user),
        kernel: None,
        waker: None,
        weight,
        count: 1,
    };
    let lock = State::Blocked(Reason::Lock);
    let all = [
        sample(100, State::User, RUNS, 1),
        sample(100, lock, WAITS, 100 * MS),
        sample(101, lock, WAITS, SECOND),
        sample(102, lock, WAITS, 500 * MS),
    ];
    let resolve = |id| match id {
        RUNS => Ok::<_, ()>(stack(&["match", "main"])),
        _ => Ok(stack(&["take", "main"])),
    };
    all.iter().for_each(|sample| samples.add(sample, None, resolve).expect("a stack"));
    samples.finish()
}

fn profile(write: impl FnOnce(&mut Trace<'_>)) -> Value {
    let (mut file, info) = (Vec::new(), info());
    let threads = [thread(KEEPER, 43, "keeper"), thread(ENGINE, 42, "engine")];
    let mut trace = Trace::start(&mut file, &info, &threads);
    write(&mut trace);
    trace.finish().expect("a Vec takes everything");
    drop(trace);
    serde_json::from_slice(&file).expect("JSON")
}

fn of_thread<'p>(profile: &'p Value, name: &str) -> &'p Value {
    let threads = profile["threads"].as_array().expect("a list");
    threads.iter().find(|thread| thread["name"] == name).expect("the thread")
}

fn numbers(list: &Value) -> Vec<f64> {
    list.as_array().expect("a list").iter().map(|number| number.as_f64().unwrap_or(0.0)).collect()
}

/// The viewer calls a process's first thread by the name of the process.
fn engine(profile: &Value) -> &Value {
    of_thread(profile, "matchd")
}

/// The functions of a stack, root first, and the category of its leaf.
fn path(profile: &Value, thread: &Value, stack: &Value) -> (Vec<String>, String) {
    let (mut at, mut names) = (stack.as_u64().map(|at| at as usize), Vec::new());
    let number =
        |table: &str, column: &str, at: usize| thread[table][column][at].as_u64().map(|at| at as usize);
    let category =
        number("frameTable", "category", number("stackTable", "frame", at.unwrap()).unwrap()).unwrap();
    while let Some(row) = at {
        let function = number("frameTable", "func", number("stackTable", "frame", row).unwrap()).unwrap();
        let name = number("funcTable", "name", function).unwrap();
        let strings = [&thread["stringArray"], &profile["shared"]["stringArray"]];
        let text = strings.iter().find_map(|strings| strings[name].as_str()).expect("a name");
        names.insert(0, text.to_string());
        at = number("stackTable", "prefix", row);
    }
    (names, profile["meta"]["categories"][category]["name"].as_str().unwrap().into())
}

#[test]
fn samples_are_the_wall_time_of_each_second_with_its_cpu_time() {
    let threads = [thread(ENGINE, 42, "engine"), thread(KEEPER, 43, "keeper")];
    let stacks = stacks(&threads);
    let profile = profile(|trace| trace.stacks(&stacks, &threads).unwrap());
    assert_eq!(profile["meta"]["startTime"], 100_500.0);
    assert_eq!(profile["meta"]["product"], "matchd --fast");
    let engine = engine(&profile);
    assert_eq!((&engine["tid"], &engine["isMainThread"]), (&"42".into(), &true.into()));
    let samples = &engine["samples"];
    assert_eq!(samples["weightType"], "tracing-ms");
    let times: Vec<f64> = numbers(&samples["timeDeltas"])
        .iter()
        .scan(0.0, |at, delta| {
            *at += delta;
            Some(*at)
        })
        .collect();
    assert_eq!(times, [0.0, 400.0, 500.0, 1_500.0, 2_000.0]);
    assert_eq!(numbers(&samples["weight"]), [0.0, 400.0, 100.0, 1_000.0, 500.0]);
    // Four fifths of each part of the first half second.
    assert_eq!(numbers(&samples["threadCPUDelta"]), [0.0, 320_000.0, 80_000.0, 0.0, 0.0]);
    assert_eq!(samples["stack"][0], Value::Null);
    let runs = path(&profile, engine, &samples["stack"][1]);
    assert_eq!(runs, (["main", "match", "[user]"].map(String::from).to_vec(), "User".into()));
    let waits = path(&profile, engine, &samples["stack"][4]);
    assert_eq!(waits, (["main", "take", "[blocked:lock]"].map(String::from).to_vec(), "Blocked".into()));
    let keeper = of_thread(&profile, "keeper");
    assert_eq!(numbers(&keeper["samples"]["weight"]), [0.0, 1_000.0]);
}

#[test]
fn weights_below_a_millisecond_are_not_lost() {
    let mut weights = samples::Weights::default();
    let sum: i32 = (0..1_000).map(|_| weights.add(None, 123_456)).sum();
    assert_eq!(sum, 123);
}

#[test]
fn stalls_are_markers_with_their_fields_and_stack() {
    let mut stall =
        StallRecord::new(7, ENGINE, StallReason::Blocked(Reason::Lock), MonoNs(START + 5 * MS), 20 * MS);
    stall.runnable_ns = 2 * MS;
    stall.user = Some(stack(&["take", "main"]));
    let thread = ThreadRef { key: None, pid: 42, tid: 43, comm: "kee\nper".into(), title: None };
    stall.waker = Some(WakerRecord { thread: Some(thread), user: None, kernel: None });
    let unknown = StallRecord { thread: ThreadKey(99), ..stall.clone() };
    let profile = profile(|trace| {
        trace.stall(&stall).unwrap();
        trace.stall(&unknown).unwrap();
    });
    let engine = engine(&profile);
    let markers = &engine["markers"];
    assert_eq!((numbers(&markers["startTime"]), numbers(&markers["endTime"])), (vec![5.0], vec![25.0]));
    let data = &markers["data"][0];
    assert_eq!(
        (&data["type"], &data["late"], &data["runnable"]),
        (&"Stall".into(), &20.0.into(), &2.0.into())
    );
    let (names, _) = path(&profile, engine, &data["cause"]["stack"]);
    assert_eq!(names, ["main", "take"]);
    let text = serde_json::to_string(&profile).unwrap();
    assert!(text.contains("kee\\\\nper 43"), "escaped: {text}");
    let schema = profile["meta"]["markerSchema"].as_array().expect("a list");
    let fields =
        schema.iter().find(|schema| schema["name"] == "Stall").expect("the schema")["fields"].clone();
    let keys: Vec<&str> =
        fields.as_array().unwrap().iter().filter_map(|field| field["key"].as_str()).collect();
    assert!(keys.iter().all(|key| !data[*key].is_null()), "{data} lacks one of {keys:?}");
}

#[test]
fn events_have_a_thread_of_their_own() {
    let mark = |at, duration_ns| Mark { at: MonoNs(START + at), text: "gap alarm".into(), duration_ns };
    let profile = profile(|trace| {
        trace.mark(&mark(MS, None)).unwrap();
        trace.mark(&mark(2 * MS, Some(MS))).unwrap();
    });
    let markers = &of_thread(&profile, "events")["markers"];
    assert_eq!(numbers(&markers["startTime"]), [1.0, 2.0]);
    assert_eq!(markers["endTime"][1], 3.0);
}
