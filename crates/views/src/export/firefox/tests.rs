// SPDX-License-Identifier: Apache-2.0
//! The profile that is written, read back as JSON. `tests/readers` reads one with the viewer's own code.

use std::sync::Arc;

use serde_json::Value;
use wallprof_model::profile::{ResolvedStack, WakerRecord};
use wallprof_model::{MeaningSource, Reason, StallReason, ThreadRef};

use super::*;
use crate::export::fixture::{
    ENGINE, KEEPER, MS, START, info, stack, stacks, stacks_of_running, stacks_of_waits, thread,
};

/// The thread of events that belong to none.
const EVENTS: &str = "events and machine";

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

/// Where a thread has many stacks, most are short.
#[test]
fn weights_below_a_millisecond_are_not_lost() {
    let mut weights = samples::Weights::default();
    let sum: i32 = (0..1_000).map(|_| weights.add(None, 123_456_789)).sum();
    assert_eq!(sum, 123_456_789);
    let threads = [thread(ENGINE, 42, "engine")];
    let stacks = stacks_of_running(&threads, [(0, 400_123, [1, 0]), (0, 400_123, [1, 0])]);
    let profile = profile(|trace| trace.stacks(&stacks, &threads).unwrap());
    assert_eq!(numbers(&engine(&profile)["samples"]["weight"]), [0.0, 0.4, 0.4]);
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
    assert_eq!(shown(false), ["matchd", "keeper", EVENTS]);
    assert_eq!(shown(true), ["matchd", EVENTS]);
}

/// A counter's differences in the profile, with the times at which they are.
fn differences(counter: &Value) -> Vec<(f64, f64)> {
    let mut at = 0.0;
    let times = numbers(&counter["samples"]["timeDeltas"]).into_iter().map(|delta| {
        at += delta;
        at
    });
    times.zip(numbers(&counter["samples"]["count"])).collect()
}

#[test]
fn counters_are_tracks_of_their_process_and_of_the_machine() {
    use wallprof_model::counter::{Counter, CounterKind, CounterUnit};
    let track = |name: &str, thread, kind, unit, values: [f64; 3]| CounterTrack {
        counter: Counter { name: name.into(), thread, kind, unit },
        points: (0..)
            .zip(values)
            .map(|(second, value)| (MonoNs(START + second * 1_000 * MS), value))
            .collect(),
    };
    let profile = profile(|trace| {
        let tracks = [
            track("memory.rss", Some(ENGINE), CounterKind::Level, CounterUnit::Bytes, [7e6, 9e6, 8e6]),
            track("cpu0.steal", None, CounterKind::Sum, CounterUnit::Ns, [5e9, 5.25e9, 1e9]),
            track("swap.free", None, CounterKind::Level, CounterUnit::Bytes, [1.0, 1.0, 1.0]),
            track("faults", Some(ThreadKey(99)), CounterKind::Sum, CounterUnit::Count, [1.0, 2.0, 3.0]),
        ];
        tracks.iter().for_each(|track| trace.counter(track).unwrap());
    });
    let [memory, steal] = &profile["counters"].as_array().expect("a list")[..] else {
        panic!("without those that never change, and of unknown threads: {}", profile["counters"])
    };
    let main_thread = |counter: &Value| {
        let at = counter["mainThreadIndex"].as_u64().expect("a number") as usize;
        profile["threads"][at]["name"].clone()
    };
    assert_eq!((&memory["name"], main_thread(memory)), (&"memory.rss".into(), "matchd".into()));
    // The viewer takes the first for 0.
    assert_eq!(differences(memory), [(0.0, 0.0), (0.0, 7e6), (1_000.0, 2e6), (2_000.0, -1e6)]);
    assert_eq!(memory["display"]["graphType"], "line-accumulated");
    assert_eq!((&steal["name"], main_thread(steal)), (&"cpu0.steal".into(), EVENTS.into()));
    assert_eq!(
        differences(steal),
        [(0.0, 0.0), (1_000.0, 250.0), (2_000.0, 0.0)],
        "a sum that fell has restarted"
    );
    assert_eq!(
        (&steal["display"]["graphType"], &steal["display"]["label"]),
        (&"line-rate".into(), &"cpu0.steal (ms)".into())
    );
}

#[test]
fn frames_have_files_and_lines() {
    let at = |name: &str, file: Option<&str>, line| {
        let mut frame = (*stack(&[name]).frames[0]).clone();
        (frame.lines[0].file, frame.lines[0].line) = (file.map(str::to_owned), line);
        Arc::new(frame)
    };
    let mut stall = StallRecord::new(7, ENGINE, StallReason::Blocked(Reason::Lock), MonoNs(START), 20 * MS);
    let stacks = [
        [at("take", Some("/src/lock.c"), Some(7)), at("main", None, None)],
        [at("take", Some("/src/lock.c"), Some(9)), at("main", None, None)],
        [at("take", Some("/src/other.c"), None), at("main", None, None)],
    ];
    let profile = profile(|trace| {
        for frames in stacks {
            let user = ResolvedStack { frames: frames.to_vec().into(), ..stack(&[]) };
            stall.user = Some(user);
            trace.stall(&stall).unwrap();
        }
    });
    let engine = engine(&profile);
    let text =
        |number: &Value| number.as_u64().map(|at| engine["stringArray"][at as usize].as_str().unwrap());
    let leaf = |marker: usize| {
        let stack = &engine["markers"]["data"][marker]["cause"]["stack"];
        let frame =
            engine["stackTable"]["frame"][stack.as_u64().unwrap() as usize].as_u64().unwrap() as usize;
        let function = engine["frameTable"]["func"][frame].as_u64().unwrap() as usize;
        let of_function = |column: &str| text(&engine["funcTable"][column][function]);
        (function, of_function("name"), of_function("fileName"), engine["frameTable"]["line"][frame].as_u64())
    };
    let (first, second, third) = (leaf(0), leaf(1), leaf(2));
    assert_eq!((first.1, first.2, first.3), (Some("take"), Some("/src/lock.c"), Some(7)));
    assert_eq!((second.0, second.3), (first.0, Some(9)), "the same function at another line");
    assert_eq!((third.1, third.2, third.3), (Some("take"), Some("/src/other.c"), None));
    assert_ne!(third.0, first.0, "a function of another file");
    let (names, _) = path(&profile, engine, &engine["markers"]["data"][0]["cause"]["stack"]);
    assert_eq!(names, ["main", "take"]);
    assert!(!serde_json::to_string(&profile).unwrap().contains('\u{1}'));
}

#[test]
fn processes_are_called_by_what_their_titles_have_in_common() {
    let mut stall = StallRecord::new(7, ENGINE, StallReason::Blocked(Reason::Lock), MonoNs(START), 20 * MS);
    let profile = profile(|trace| {
        for title in ["postgres: shop [local] idle", "postgres: shop [local] UPDATE"] {
            let title = Some(title.into());
            let thread = ThreadRef { key: Some(KEEPER), pid: 42, tid: 43, comm: "keeper".into(), title };
            stall.waker = Some(WakerRecord { thread: Some(thread), user: None, kernel: None });
            trace.stall(&stall).unwrap();
        }
    });
    let engine = of_thread(&profile, "postgres: shop [local]");
    assert_eq!(engine["processName"], "postgres: shop [local]");
    let text =
        serde_json::to_string(&engine["markers"]["data"]).unwrap() + &engine["stringArray"].to_string();
    assert!(text.contains("keeper 43 (postgres: shop [local] UPDATE)"), "{text}");
}

/// A report divides all running time of a thread by all of its samples.
#[test]
fn running_time_of_each_second_is_divided_by_the_samples_of_that_second() {
    let threads = [thread(ENGINE, 42, "engine")];
    let stacks = stacks_of_running(&threads, [(90, 0, [1, 0]), (30, 0, [0, 1])]);
    let profile = profile(|trace| trace.stacks(&stacks, &threads).unwrap());
    let samples = &engine(&profile)["samples"];
    let by_category: Vec<(f64, String)> = numbers(&samples["weight"])
        .into_iter()
        .zip(samples["stack"].as_array().unwrap())
        .filter(|(_, stack)| !stack.is_null())
        .map(|(ms, stack)| (ms, path(&profile, engine(&profile), stack).1))
        .collect();
    assert_eq!(by_category, [(90.0, "User".into()), (30.0, "Kernel".into())], "by all samples, 60 ms each");
    assert_eq!(numbers(&samples["threadCPUDelta"]).iter().sum::<f64>(), 120_000.0);
}

#[test]
fn events_have_a_thread_of_their_own() {
    let mark = |at, duration_ns| Mark { at: MonoNs(START + at), text: "gap alarm".into(), duration_ns };
    let profile = profile(|trace| {
        trace.mark(&mark(MS, None)).unwrap();
        trace.mark(&mark(2 * MS, Some(MS))).unwrap();
    });
    let events = of_thread(&profile, EVENTS);
    assert_eq!(events["showMarkersInTimeline"], true);
    let markers = &events["markers"];
    assert_eq!(numbers(&markers["startTime"]), [1.0, 2.0]);
    assert_eq!(markers["endTime"][1], 3.0);
    let schemas = profile["meta"]["markerSchema"].as_array().expect("a list");
    let locations = &schemas.iter().find(|schema| schema["name"] == "Event").expect("the schema")["display"];
    assert!(locations.as_array().expect("a list").contains(&"timeline-overview".into()), "{locations}");
}
