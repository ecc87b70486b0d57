// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::error::Error;
use crate::{Recording, Retention, StallFilter};
use wallprof_model::event::{Binding, LatencyDelta, Stall};
use wallprof_model::histogram::Cell;
use wallprof_model::{
    Counter, CounterKey, CounterKind, CounterUnit, Frame, FrameId, FrameKind, Metric, Module, ModuleId,
    SpanDelta, SpanSource, SpanState, SpanStates, StackEnd, StackId, StallReason, SymbolLine, ThreadInfo,
};

/// A thread with names that fill about one page of the file.
fn bulky_thread(key: u32) -> Event {
    let name = |of: &str| format!("{of}{key}").repeat(300);
    Event::Thread(ThreadInfo::new(ThreadKey(key), (key, name("process")), (key, name("comm"))))
}

/// SQLite refuses pages beyond its limit in the same way as on a full disk.
fn limit_pages(recorder: &Recorder, more: i64) {
    let now = recorder.database.file_bytes() as i64 / 4096;
    recorder.database.connection().pragma_update(None, "max_page_count", now + more).unwrap();
}

#[test]
fn full_disk_keeps_commits_and_loses_nothing_once_it_has_space() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let mut recorder = Recorder::create(&path, &RecordingStart::default()).unwrap();
    recorder.take(bulky_thread(1)).unwrap();
    recorder.commit(MonoNs(10)).unwrap();
    limit_pages(&recorder, 1);
    for key in 2..50 {
        recorder.take(bulky_thread(key)).unwrap();
    }
    for _ in 0..3 {
        let error = recorder.commit(MonoNs(20)).unwrap_err();
        assert!(matches!(error, Error::DiskFull { .. }), "{error}");
    }
    let read = Recording::open(&path).unwrap();
    assert_eq!((read.threads().unwrap().len(), read.info().unwrap().end), (1, MonoNs(10)));
    drop(read);

    limit_pages(&recorder, 10_000);
    recorder.commit(MonoNs(30)).unwrap();
    assert_eq!(recorder.finish(MonoNs(40)).unwrap().threads, 49);
    assert_eq!(Recording::open(&path).unwrap().threads().unwrap().len(), 49);
}

#[test]
fn kept_stalls_have_their_numbers_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let mut recorder = Recorder::create(&path, &RecordingStart::default()).unwrap();
    recorder.keep_stall_numbers();
    recorder.take(bulky_thread(70)).unwrap();
    for start in [500, 300] {
        recorder.take(Event::Stall(Box::new(stall(70, start)))).unwrap();
    }
    recorder.commit(MonoNs(1_000)).unwrap();
    let kept = recorder.take_kept_stalls();
    assert!(recorder.take_kept_stalls().is_empty());
    recorder.finish(MonoNs(2_000)).unwrap();
    let all = StallFilter { include_voluntary: true, ..StallFilter::default() };
    let recording = Recording::open(&path).unwrap();
    let written: Vec<_> = recording
        .stalls(&all)
        .unwrap()
        .map(|stall| stall.map(|stall| (stall.id, stall.start)).unwrap())
        .collect();
    assert_eq!(kept.iter().map(|kept| (kept.id, kept.start)).collect::<Vec<_>>(), written);
    assert!(kept.len() == 2 && kept.iter().all(|kept| kept.thread == ThreadKey(70)));
}

fn stall(thread: u32, start: u64) -> Stall {
    Stall::new(ThreadKey(thread), StallReason::Preempted, MonoNs(start), 100)
}

#[test]
fn disk_full_at_the_end_leaves_an_unfinished_recording() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let mut recorder = Recorder::create(&path, &RecordingStart::default()).unwrap();
    recorder.take(bulky_thread(1)).unwrap();
    recorder.commit(MonoNs(10)).unwrap();
    limit_pages(&recorder, 1);
    for key in 2..50 {
        recorder.take(bulky_thread(key)).unwrap();
    }
    assert!(matches!(recorder.finish(MonoNs(20)), Err(Error::DiskFull { .. })));
    let read = Recording::open(&path).unwrap();
    let info = read.info().unwrap();
    assert_eq!((info.ended_cleanly, info.end, read.threads().unwrap().len()), (false, MonoNs(10), 1));
}

#[test]
fn memory_is_bounded_without_commits() {
    let folder = tempfile::tempdir().unwrap();
    let mut recorder = Recorder::create(&folder.path().join("a.db"), &RecordingStart::default()).unwrap();
    recorder
        .take(Event::Module { id: ModuleId(0), module: Module { path: "m".into(), build_id: None } })
        .unwrap();
    for id in 0..150_000 {
        let frame = Frame { kind: FrameKind::Native, module: Some(ModuleId(0)), address: u64::from(id) };
        recorder.take(Event::Frame { id: FrameId(id), frame }).unwrap();
        assert!(recorder.pending.frames.len() <= 65_536);
    }
    let written: i64 =
        recorder.database.connection().query_row("SELECT count(*) FROM frame", [], |row| row.get(0)).unwrap();
    assert_eq!(written, 2 * 65_536);
}

#[test]
fn reader_at_the_end_leaves_the_log_in_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let mut recorder = Recorder::create(&path, &RecordingStart::default()).unwrap();
    recorder.commit(MonoNs(10)).unwrap();
    let reader = Recording::open(&path).unwrap();
    recorder.take(bulky_thread(1)).unwrap();
    assert!(!recorder.finish(MonoNs(20)).unwrap().one_file);
    assert_eq!(reader.info().unwrap().end, MonoNs(10), "a snapshot does not change");
    drop(reader);
    let info = Recording::open(&path).unwrap().info().unwrap();
    assert_eq!((info.end, info.ended_cleanly), (MonoNs(20), true));
}

/// The events of one program: a thread, a module, a named frame, a stack, a stall and a counter.
fn short_lived_program(number: u32, now: MonoNs) -> Vec<Event> {
    let (thread, module, frame) = (ThreadKey(number), ModuleId(number), FrameId(number));
    let (stack, name) = (StackId(u64::from(number)), format!("program{number}"));
    let line = SymbolLine { symbol: Some(name.clone()), ..SymbolLine::default() };
    let code = Frame { kind: FrameKind::Native, module: Some(module), address: 16 };
    let info = ThreadInfo::new(thread, (number, name.clone()), (number, name.clone()));
    let stall = Stall { user: Some(stack), ..stall(number, now.0) };
    let (kind, unit) = (CounterKind::Level, CounterUnit::Bytes);
    let counter = Counter { name: "memory".into(), thread: Some(thread), kind, unit };
    vec![
        Event::Thread(info),
        Event::ThreadSeen { thread, from: now },
        Event::Module {
            id: module,
            module: Module { path: format!("/{name}"), build_id: Some(vec![1; 20]) },
        },
        Event::Frame { id: frame, frame: code },
        Event::Stack { id: stack, frames: vec![frame], end: StackEnd::Complete },
        Event::Binding(Binding { stack, depth: 1, symbol: Some(name), library: None }),
        Event::Symbol { frame, lines: vec![line] },
        Event::Stall(Box::new(stall)),
        Event::Counter { key: CounterKey(number), counter },
        Event::CounterValue { key: CounterKey(number), at: now, value: 1.0 },
        Event::ThreadEnd { thread, at: MonoNs(now.0 + 1) },
    ]
}

/// The entries of each table of a recorder that outlives a commit.
fn entries(recorder: &Recorder) -> [(&'static str, usize); 15] {
    let (ids, tree, texts) = (&recorder.ids, &recorder.tree, &recorder.texts);
    let window = recorder.window.as_ref().expect("a bounded recording");
    [
        ("threads", ids.threads.len()),
        ("modules", ids.modules.len()),
        ("frames", ids.frames.len()),
        ("stacks", ids.stacks.len()),
        ("mentions", ids.mentions.len()),
        ("wakers", ids.wakers.len()),
        ("counters", ids.counters.len()),
        ("counters of threads", ids.counters_of.len()),
        ("call paths", ids.call_paths.len()),
        ("bindings", ids.bindings.len()),
        ("named frames", ids.named_frames.len()),
        ("open stalls", ids.open_stalls.len()),
        ("nodes", tree.len()),
        ("texts", texts.len()),
        ("generations", window.generations.len()),
    ]
}

#[test]
fn stream_of_programs_does_not_fill_the_tables_of_a_bounded_recording() {
    const SECOND: u64 = 1_000_000_000;
    let folder = tempfile::tempdir().unwrap();
    let retention = Some(Retention { keep_ns: 30 * SECOND, keep_bytes: u64::MAX });
    let start = RecordingStart { retention, ..RecordingStart::default() };
    let mut recorder = Recorder::create(&folder.path().join("a.db"), &start).unwrap();
    let (mut number, mut forgotten) = (0, 0);
    // The most of 100 commits: counters, and the names that they use, go only every 16 commits.
    let (mut early, mut late) = ([0; 15], [0; 15]);
    for second in 1..=400 {
        let now = MonoNs(second * SECOND);
        for _ in 0..4 {
            number += 1;
            short_lived_program(number, now).into_iter().for_each(|event| recorder.take(event).unwrap());
        }
        recorder.commit(now).unwrap();
        forgotten += recorder.take_forgotten().threads.len();
        let most = match second {
            100..200 => &mut early,
            300.. => &mut late,
            _ => continue,
        };
        most.iter_mut().zip(entries(&recorder)).for_each(|(most, (_, now))| *most = now.max(*most));
    }
    assert!(forgotten > 1_000, "{forgotten} of {number} threads");
    for ((table, _), (early, late)) in entries(&recorder).into_iter().zip(early.into_iter().zip(late)) {
        assert!(late <= early, "{table}: {early} entries in seconds 100 to 199, {late} in 300 to 400");
    }
}

/// Count, total and maximum of all rows of a thread's row, and the number of rows.
fn latency_in_file(recorder: &Recorder, thread: u32) -> (i64, i64, i64, i64) {
    let sql = "SELECT sum(count), sum(total_ns), max(max_ns), count(*) FROM latency_cell WHERE thread = ?";
    recorder
        .database
        .connection()
        .query_row(sql, [thread], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))
        .unwrap()
}

#[test]
fn sums_grow_with_each_commit_also_after_a_full_disk_and_the_end_of_their_thread() {
    let folder = tempfile::tempdir().unwrap();
    let mut recorder = Recorder::create(&folder.path().join("a.db"), &RecordingStart::default()).unwrap();
    let latency = |ns: u64| {
        let cell = Cell { count: 1, total_ns: ns, max_ns: ns };
        Event::Latency(LatencyDelta { thread: ThreadKey(1), metric: Metric::RunQueue, bucket: 3, cell })
    };
    let span = |ns: u64| {
        let states = SpanStates([ns; SpanState::COUNT]);
        let (thread, source, kind) = (ThreadKey(1), SpanSource::Busy, "busy".into());
        Event::Spans(Box::new(SpanDelta { thread, source, kind, bucket: 3, count: 1, max_ns: ns, states }))
    };
    recorder.take(bulky_thread(1)).unwrap();
    for (at, ns) in [(10, 5), (20, 7)] {
        recorder.take(latency(ns)).unwrap();
        recorder.take(span(ns)).unwrap();
        recorder.commit(MonoNs(at)).unwrap();
    }
    assert_eq!(latency_in_file(&recorder, 1), (2, 12, 7, 1));
    limit_pages(&recorder, 1);
    recorder.take(latency(3)).unwrap();
    recorder.take(span(3)).unwrap();
    (2..50).for_each(|key| recorder.take(bulky_thread(key)).unwrap());
    recorder.commit(MonoNs(30)).unwrap_err();
    recorder.commit(MonoNs(30)).unwrap_err();
    assert_eq!(latency_in_file(&recorder, 1), (2, 12, 7, 1));
    limit_pages(&recorder, 10_000);
    recorder.commit(MonoNs(40)).unwrap();
    assert_eq!(latency_in_file(&recorder, 1), (3, 15, 7, 1));
    recorder.take(Event::ThreadEnd { thread: ThreadKey(1), at: MonoNs(45) }).unwrap();
    for (at, ns) in [(50, 11), (60, 13)] {
        recorder.take(latency(ns)).unwrap();
        recorder.take(span(ns)).unwrap();
        recorder.commit(MonoNs(at)).unwrap();
    }
    assert_eq!(latency_in_file(&recorder, 1), (5, 39, 13, 1));
    let spans = recorder.database.connection().query_row(
        "SELECT count, max_ns, cpu_ns, count(*) OVER () FROM span_cell",
        [],
        |row| Ok([row.get(0)?, row.get(1)?, row.get(2)?, row.get::<_, i64>(3)?]),
    );
    assert_eq!(spans.unwrap(), [5, 13, 39, 1]);
}

#[test]
fn bounded_recording_adds_up_what_is_filed_under_one_second() {
    let folder = tempfile::tempdir().unwrap();
    let retention = Some(Retention { keep_ns: u64::MAX, keep_bytes: u64::MAX });
    let start = RecordingStart { retention, ..RecordingStart::default() };
    let mut recorder = Recorder::create(&folder.path().join("a.db"), &start).unwrap();
    recorder.take(bulky_thread(1)).unwrap();
    for at in [10, 20, 2_000_000_000] {
        let cell = Cell { count: 1, total_ns: 5, max_ns: 5 };
        let delta = LatencyDelta { thread: ThreadKey(1), metric: Metric::RunQueue, bucket: 3, cell };
        recorder.take(Event::Latency(delta)).unwrap();
        recorder.commit(MonoNs(at)).unwrap();
    }
    assert_eq!(latency_in_file(&recorder, 1), (3, 15, 5, 2), "one row for each second");
}
