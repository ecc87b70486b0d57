// SPDX-License-Identifier: Apache-2.0
//! A bounded recording keeps its window whole, and nothing else.

mod fixture;

use fixture::flight::{Machine, NS, bounded, end_of};
use fixture::references::{dangling, rows, unused_rows};
use fixture::*;
use wallprof_model::event::{SampleDelta, Stall};
use wallprof_model::{EpochSecond, Event, Frame, FrameId, FrameKind, Module, ModuleId, StackEnd, StackId};
use wallprof_recording::{Recorder, Recording, StallFilter};

const LARGE: u64 = 1 << 40;

/// Records seconds of a machine with some forks in each, and keeps those of the last `keep`.
fn record(place: &Place, seconds: u32, keep: u64, forks: u32) -> (Recorder, Machine) {
    let mut recorder = Recorder::create(&place.file(), &bounded(keep, LARGE)).unwrap();
    let mut machine = Machine::new(&mut recorder, forks);
    for second in 0..seconds {
        machine.second(&mut recorder, second);
    }
    (recorder, machine)
}

#[test]
fn readers_see_only_the_window() {
    let place = place();
    let (_recorder, _) = record(&place, 100, 20, 3);
    let recording = Recording::open(&place.file()).unwrap();
    let info = recording.info().unwrap();
    assert_eq!((info.start, info.end), (end_of(79), end_of(99)));
    assert_eq!(info.losses["stacks_full"], 20);
    assert_eq!(info.overhead.probe_runs, 20);
    let threads = recording.threads().unwrap();
    let server = threads.iter().find(|thread| thread.info.comm == "server").unwrap();
    assert_eq!((server.start, server.end), (info.start, info.end));
    assert_eq!(server.ledger.wall_ns, 20 * NS);
    assert_eq!(server.latency.values().map(|latency| latency.count()).sum::<u64>(), 20);
    assert_eq!(server.stalls, 20);
    assert_eq!(recording.stalls(&StallFilter::default()).unwrap().count(), 20 * 4);
    let seconds: Vec<EpochSecond> = recording.samples(..).unwrap().map(|row| row.unwrap().second).collect();
    assert_eq!(seconds.first(), Some(&EpochSecond(SECOND.0 + 80)));
    assert_eq!(seconds.len(), 20 * 4);
    assert_eq!(recording.interrupts().unwrap().iter().map(|row| row.count).sum::<u64>(), 20 * 4);
}

#[test]
fn nothing_is_deleted_before_the_window_is_full() {
    let place = place();
    let (_recorder, _) = record(&place, 19, 20, 1);
    let recording = Recording::open(&place.file()).unwrap();
    assert_eq!(recording.info().unwrap().start, START);
    assert_eq!(recording.threads().unwrap().len(), 20);
}

#[test]
fn unused_rows_are_deleted_and_kept_rows_are_whole() {
    let place = place();
    let (mut recorder, mut machine) = record(&place, 60, 20, 5);
    assert_eq!(dangling(&place.file()), [""; 0]);
    machine.forks_a_second = 0;
    for second in 60..140 {
        machine.second(&mut recorder, second);
        assert_eq!(dangling(&place.file()), [""; 0], "second {second}");
    }
    let count = |table: &str| rows(&place.file(), &format!("SELECT count(*) FROM {table}"));
    assert_eq!(["thread", "frame", "mention", "sample_waker"].map(count), [1, 2, 1, 1]);
    assert_eq!(rows(&place.file(), "SELECT count(*) FROM node WHERE frame IS NOT NULL"), 2);
    assert_eq!(unused_rows(&place.file(), "text"), 0);
}

/// Minutes of 50 processes a second with 10,000 names. The kept data do not grow.
#[test]
fn long_recording_stays_within_its_limits() {
    let place = place();
    let (mut recorder, mut machine) = record(&place, 60, 20, 50);
    let tables = [
        "thread",
        "text",
        "node",
        "frame",
        "line",
        "mention",
        "sample_waker",
        "sample",
        "stall",
        "bucket",
        "latency_cell",
    ];
    let counts = || tables.map(|table| rows(&place.file(), &format!("SELECT count(*) FROM {table}")));
    let (early, early_bytes) = (counts(), std::fs::metadata(place.file()).unwrap().len());
    for second in 60..300 {
        machine.second(&mut recorder, second);
    }
    for ((table, early), late) in tables.iter().zip(early).zip(counts()) {
        assert!(late <= early + early / 4, "{table}: {early} rows early, {late} late");
    }
    assert_eq!(dangling(&place.file()), [""; 0]);
    let summary = recorder.finish(end_of(299)).unwrap();
    assert!(
        summary.file_bytes <= early_bytes * 5 / 4,
        "{} bytes early, {} late",
        early_bytes,
        summary.file_bytes
    );
    assert!(summary.losses.keys().all(|reason| reason == "stacks_full"), "{:?}", summary.losses);
}

#[test]
fn size_limit_shortens_the_window() {
    let place = place();
    let keep_bytes = 1 << 20;
    let mut recorder = Recorder::create(&place.file(), &bounded(3_600, keep_bytes)).unwrap();
    let mut machine = Machine::new(&mut recorder, 50);
    for second in 0..250 {
        machine.second(&mut recorder, second);
    }
    let recording = Recording::open(&place.file()).unwrap();
    let info = recording.info().unwrap();
    let kept = (info.end.0 - info.start.0) / NS;
    assert!((10..200).contains(&kept), "{kept} s");
    let server =
        recording.threads().unwrap().into_iter().find(|thread| thread.info.comm == "server").unwrap();
    assert_eq!(server.ledger.wall_ns, info.end.0 - info.start.0);
    drop(recording);
    let file_bytes = recorder.finish(end_of(250)).unwrap().file_bytes;
    assert!(file_bytes < keep_bytes + keep_bytes / 4, "{file_bytes} bytes");
}

#[test]
fn open_stall_outlives_the_window() {
    let place = place();
    let mut recorder = Recorder::create(&place.file(), &bounded(10, LARGE)).unwrap();
    take_all(&mut recorder, definitions());
    let open = |duration_ns| Stall {
        user: Some(USER),
        kernel: Some(KERNEL),
        syscall: Some("futex".into()),
        open: true,
        ..stall(100, duration_ns)
    };
    recorder.take(Event::Stall(Box::new(open(NS)))).unwrap();
    let mut machine = Machine::new(&mut recorder, 2);
    for second in 0..60 {
        machine.second(&mut recorder, second);
    }
    let of_worker = || {
        let recording = Recording::open(&place.file()).unwrap();
        let all = recording.stalls(&StallFilter::default()).unwrap().map(Result::unwrap);
        all.filter(|stall| &*stall.comm == "worker").collect::<Vec<_>>()
    };
    let kept = of_worker();
    assert_eq!((kept.len(), kept[0].id, kept[0].open), (1, 1, true));
    assert_eq!(kept[0].user.as_ref().unwrap().frames.len(), 2);
    assert_eq!(kept[0].syscall.as_deref(), Some("futex"));
    assert_eq!(dangling(&place.file()), [""; 0]);

    let closed = Stall { open: false, user: None, kernel: None, ..open(60 * NS) };
    recorder.take(Event::Stall(Box::new(closed))).unwrap();
    machine.second(&mut recorder, 60);
    let kept = of_worker();
    assert_eq!((kept.len(), kept[0].id, kept[0].open, kept[0].duration_ns()), (1, 1, false, 60 * NS));
    for second in 61..120 {
        machine.second(&mut recorder, second);
    }
    assert!(of_worker().is_empty());
    assert_eq!(dangling(&place.file()), [""; 0]);
    assert_eq!(
        rows(&place.file(), "SELECT count(*) FROM frame WHERE address < 0"),
        0,
        "its kernel frame went"
    );
}

#[test]
fn open_stall_of_an_ended_thread_is_deleted() {
    let place = place();
    let mut recorder = Recorder::create(&place.file(), &bounded(10, LARGE)).unwrap();
    take_all(&mut recorder, definitions());
    let open = Stall { open: true, user: Some(USER), ..stall(100, NS) };
    recorder.take(Event::Stall(Box::new(open))).unwrap();
    recorder.take(Event::ThreadEnd { thread: wallprof_model::ThreadKey(7), at: at(2 * NS) }).unwrap();
    let mut machine = Machine::new(&mut recorder, 1);
    for second in 0..60 {
        machine.second(&mut recorder, second);
    }
    assert_eq!(rows(&place.file(), "SELECT count(*) FROM stall WHERE flags & 2"), 0);
    assert_eq!(dangling(&place.file()), [""; 0]);
}

/// An id may be defined as another stack while rows still refer to the old one.
#[test]
fn redefined_stack_does_not_change_rows() {
    let place = place();
    let mut recorder = Recorder::create(&place.file(), &bounded(30, LARGE)).unwrap();
    take_all(&mut recorder, definitions());
    let mut machine = Machine::new(&mut recorder, 1);
    for second in 0..40 {
        recorder.take(Event::Sample(sample(second, 1))).unwrap();
        if second == 20 {
            let frames = vec![wallprof_model::FrameId(0)];
            recorder.take(Event::Stack { id: USER, frames, end: StackEnd::Complete }).unwrap();
        }
        machine.second(&mut recorder, second);
        assert_eq!(dangling(&place.file()), [""; 0], "second {second}");
    }
    let recording = Recording::open(&place.file()).unwrap();
    let lengths: Vec<usize> = recording
        .samples(..)
        .unwrap()
        .map(Result::unwrap)
        .filter(|sample| sample.weight == 1)
        .map(|sample| recording.resolve(sample.user.unwrap()).unwrap().frames.len())
        .collect();
    assert_eq!(lengths.len(), 30);
    assert_eq!((lengths[0], lengths[29]), (2, 1));
}

/// One of 20 programs a second, each of which runs once.
fn run_new_program(recorder: &mut Recorder, second: u32, number: u32) {
    let (module, frame) = (ModuleId(100 + number), FrameId(1_000 + number));
    let stack = StackId(10_000 + u64::from(number));
    let path = format!("/build/target/{number}");
    recorder.take(Event::Module { id: module, module: Module { path, build_id: None } }).unwrap();
    let at = Frame { kind: FrameKind::Native, module: Some(module), address: 0x1000 };
    recorder.take(Event::Frame { id: frame, frame: at }).unwrap();
    recorder.take(Event::Stack { id: stack, frames: vec![frame], end: StackEnd::Complete }).unwrap();
    recorder.take(Event::Sample(SampleDelta { user: Some(stack), ..sample(second, 1) })).unwrap();
}

#[test]
fn files_of_programs_that_ran_long_ago_leave_the_recording() {
    let place = place();
    let mut recorder = Recorder::create(&place.file(), &bounded(10, LARGE)).unwrap();
    take_all(&mut recorder, definitions());
    let (mut machine, mut forgotten) = (Machine::new(&mut recorder, 2), 0);
    for second in 0..100 {
        (0..20).for_each(|program| run_new_program(&mut recorder, second, 20 * second + program));
        machine.second(&mut recorder, second);
        forgotten += machine.forgotten_modules;
    }
    assert!(forgotten > 1_500, "{forgotten} of 2,000 modules");
    let file = rusqlite::Connection::open(place.file()).unwrap();
    let count = |sql: &str| file.query_row(sql, [], |row| row.get::<_, u32>(0)).unwrap();
    let left = count("SELECT count(*) FROM module");
    assert!((11 * 20..500).contains(&left), "{left} modules are left");
    let paths = "SELECT count(*) FROM text WHERE text LIKE '/build/target/%'";
    // A path goes some steps after its stack, node, frame and module.
    assert!(count(paths) < 1_000, "{} paths", count(paths));
    let nameless =
        "SELECT count(*) FROM frame WHERE module IS NOT NULL AND module NOT IN (SELECT id FROM module)";
    assert_eq!(count(nameless), 0, "a frame keeps its module");
    assert_eq!(dangling(&place.file()), [""; 0]);
}

#[test]
fn source_learns_the_ids_to_define_again() {
    let place = place();
    let mut recorder = Recorder::create(&place.file(), &bounded(10, LARGE)).unwrap();
    take_all(&mut recorder, definitions());
    recorder.take(Event::Sample(sample(0, 1))).unwrap();
    recorder.take(Event::Ledger(ledger(0, NS))).unwrap();
    let (mut stacks, mut frames, mut threads) = (Vec::new(), Vec::new(), Vec::new());
    let mut modules = Vec::new();
    for second in 0..100 {
        recorder.commit(end_of(second)).unwrap();
        let forgotten = recorder.take_forgotten();
        assert!(second > 10 || forgotten.is_empty(), "{forgotten:?} after second {second}");
        stacks.extend(forgotten.stacks);
        frames.extend(forgotten.frames);
        threads.extend(forgotten.threads);
        modules.extend(forgotten.modules);
    }
    stacks.sort_unstable();
    frames.sort_unstable();
    assert_eq!(stacks, [USER, KERNEL]);
    assert_eq!(frames.iter().map(|id| id.0).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(threads, [wallprof_model::ThreadKey(7)]);
    assert_eq!(modules, [wallprof_model::ModuleId(3)]);
    recorder.take(Event::Sample(sample(100, 1))).unwrap();
    recorder.commit(end_of(100)).unwrap();
    let losses = recorder.finish(end_of(101)).unwrap().losses;
    assert_eq!(losses[wallprof_recording::UNKNOWN_REFERENCE], 1, "the thread of the sample");
}

#[test]
fn unbounded_recording_deletes_nothing() {
    let place = place();
    let mut recorder = recorder(&place.file());
    let mut machine = Machine::new(&mut recorder, 1);
    for second in 0..50 {
        machine.second(&mut recorder, second);
    }
    assert!(recorder.take_forgotten().is_empty());
    assert_eq!(recorder.finish(end_of(50)).unwrap().threads, 51);
    assert_eq!(rows(&place.file(), "SELECT count(DISTINCT flush_second) FROM latency_cell"), 1);
}
