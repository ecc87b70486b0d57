use super::*;
use crate::error::Error;
use crate::{Recording, StallFilter};
use wallprof_model::event::Stall;
use wallprof_model::{Frame, FrameId, FrameKind, Module, ModuleId, StallReason, ThreadInfo};

/// A thread with names that fill about one page of the file.
fn bulky_thread(key: u32) -> Event {
    let name = |of: &str| format!("{of}{key}").repeat(300);
    Event::Thread(ThreadInfo {
        key: ThreadKey(key),
        tid: key,
        pid: key,
        ns_tid: key,
        ns_pid: key,
        start_boot_ns: 0,
        comm: name("comm"),
        process: name("process"),
        cgroup: None,
        kernel_thread: false,
    })
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
