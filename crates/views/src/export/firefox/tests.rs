// SPDX-License-Identifier: Apache-2.0
//! The profile that is written, read back as JSON. `tests/readers` reads one with the viewer's own code.

use std::sync::Arc;

use serde_json::Value;
use wallprof_model::profile::WakerRecord;
use wallprof_model::{MeaningSource, Reason, StallReason, ThreadRef};

use super::*;
use crate::export::fixture::{ENGINE, KEEPER, MS, START, info, stack, stacks, stacks_of_waits, thread};

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

/// The viewer draws samples of the category Idle as gaps.
#[test]
fn meaning_says_whether_a_wait_is_idle() {
    let waits = |reason, name: &str, idle| {
        let meaning = Meaning {
            name: name.into(),
            software: Some("postgresql".into()),
            idle,
            holder: !idle,
            source: MeaningSource::Stack,
        };
        let threads = [thread(ENGINE, 42, "engine")];
        let stacks = stacks_of_waits(&threads, reason, Some(&Arc::new(meaning)));
        let profile = profile(|trace| trace.stacks(&stacks, &threads).unwrap());
        let engine = engine(&profile);
        path(&profile, engine, &engine["samples"]["stack"][4])
    };
    let (frames, category) = waits(Reason::Poll, "row lock", false);
    assert_eq!(frames, ["main", "take", "[row lock of postgresql]", "[blocked:poll]"]);
    assert_eq!(category, "Blocked");
    assert_eq!(waits(Reason::Network, "client idle", true).1, "Idle");
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
fn idle_wait_is_a_marker_without_lateness() {
    let mut stall = StallRecord::new(7, ENGINE, StallReason::Blocked(Reason::Poll), MonoNs(START), 20 * MS);
    stall.voluntary = true;
    let profile = profile(|trace| trace.stall(&stall).unwrap());
    let data = &engine(&profile)["markers"]["data"][0];
    assert_eq!((&data["late"], &data["runnable"]), (&Value::Null, &0.0.into()));
}

/// The viewer by itself hides threads that ran for a twentieth of the busiest one's time.
#[test]
fn threads_that_wait_and_events_are_shown_at_first() {
    let threads = [thread(ENGINE, 42, "engine"), thread(KEEPER, 43, "keeper")];
    let stacks = stacks(&threads);
    let sleep = |voluntary| {
        let reason = StallReason::Blocked(Reason::Sleep);
        StallRecord { voluntary, ..StallRecord::new(7, KEEPER, reason, MonoNs(START), 300 * MS) }
    };
    let shown = |voluntary| {
        let profile = profile(|trace| {
            trace.stacks(&stacks, &threads).unwrap();
            trace.stall(&sleep(voluntary)).unwrap();
            trace.mark(&Mark { at: MonoNs(START), text: "gap alarm".into(), duration_ns: None }).unwrap();
        });
        let names = |at: f64| profile["threads"][at as usize]["name"].as_str().unwrap().to_owned();
        let visible = numbers(&profile["meta"]["initialVisibleThreads"]);
        visible.into_iter().map(names).collect::<Vec<_>>()
    };
    assert_eq!(shown(false), ["matchd", "keeper", "events"]);
    assert_eq!(shown(true), ["matchd", "events"]);
}

#[test]
fn events_have_a_thread_of_their_own() {
    let mark = |at, duration_ns| Mark { at: MonoNs(START + at), text: "gap alarm".into(), duration_ns };
    let profile = profile(|trace| {
        trace.mark(&mark(MS, None)).unwrap();
        trace.mark(&mark(2 * MS, Some(MS))).unwrap();
    });
    let events = of_thread(&profile, "events");
    assert_eq!(events["showMarkersInTimeline"], true);
    let markers = &events["markers"];
    assert_eq!(numbers(&markers["startTime"]), [1.0, 2.0]);
    assert_eq!(markers["endTime"][1], 3.0);
    let schemas = profile["meta"]["markerSchema"].as_array().expect("a list");
    let locations = &schemas.iter().find(|schema| schema["name"] == "Event").expect("the schema")["display"];
    assert!(locations.as_array().expect("a list").contains(&"timeline-overview".into()), "{locations}");
}
