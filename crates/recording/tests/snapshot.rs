// SPDX-License-Identifier: Apache-2.0
//! A snapshot is a recording of some seconds of another one, which continues.

mod fixture;

use std::fs;
use std::os::unix::fs::PermissionsExt;

use fixture::flight::{Machine, NS, SERVER, bounded, end_of};
use fixture::references::{dangling, rows, unused_rows};
use fixture::*;
use wallprof_model::event::LedgerDelta;
use wallprof_model::{ClockAnchor, EpochNs, Event, MonoNs, ThreadInfo};
use wallprof_recording::{Error, Recorder, Recording, StallFilter, write_snapshot};

const LARGE: u64 = 1 << 40;

/// A flight recording after a minute, half of which is kept.
fn flight(place: &Place) -> (Recorder, Machine) {
    let mut recorder = Recorder::create(&place.file(), &bounded(30, LARGE)).unwrap();
    let mut machine = Machine::new(&mut recorder, 3);
    for second in 0..60 {
        machine.second(&mut recorder, second);
    }
    (recorder, machine)
}

fn snapshots(place: &Place) -> std::path::PathBuf {
    let folder = place.folder().join("snapshots");
    fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn snapshot_is_a_whole_recording_of_its_seconds() {
    let place = place();
    let (mut recorder, mut machine) = flight(&place);
    let spike = end_of(49).0 + NS / 2;
    let path =
        write_snapshot(&place.file(), MonoNs(spike - 10 * NS)..MonoNs(spike + 2 * NS), &snapshots(&place))
            .unwrap();
    assert_eq!(path.file_name().unwrap(), "wallprof-20270115T080040Z.db");
    machine.second(&mut recorder, 60);

    let recording = Recording::open(&path).unwrap();
    let info = recording.info().unwrap();
    assert_eq!((info.start, info.end, info.ended_cleanly), (end_of(39), end_of(52), true));
    assert_eq!(
        (info.kernel.as_str(), info.losses["stacks_full"], info.overhead.probe_runs),
        ("6.18.0", 13, 13)
    );
    assert_eq!(info.labels["version"], "1.4");
    assert_eq!(info.budgets["order"], 200_000);
    let threads = recording.threads().unwrap();
    assert_eq!(threads.len(), 1 + 13 * 3);
    let server = threads.iter().find(|thread| thread.info.comm == "server").unwrap();
    assert_eq!((server.ledger.wall_ns, server.stalls), (info.end.0 - info.start.0, 13));
    assert_eq!(server.latency.values().map(|latency| latency.count()).sum::<u64>(), 13);
    for stall in recording.stalls(&StallFilter::default()).unwrap() {
        let stall = stall.unwrap();
        assert_eq!(stall.user.unwrap().frames.len(), 2);
        assert_eq!(stall.waker.unwrap().thread.unwrap().comm, "server");
    }
    assert_eq!(dangling(&path), [""; 0]);
    assert_eq!((unused_rows(&path, "text"), unused_rows(&path, "thread")), (0, 0));
    assert_eq!(fs::read_dir(snapshots(&place)).unwrap().count(), 1, "one plain file");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

/// As after a suspended hour: the seconds after it have other numbers.
#[test]
fn snapshot_over_a_step_of_the_clock_has_the_seconds_on_both_sides() {
    let place = place();
    let mut recorder = Recorder::create(&place.file(), &bounded(600, LARGE)).unwrap();
    recorder.take(Event::Thread(ThreadInfo { key: SERVER, ..thread(1, "server") })).unwrap();
    for second in 0..30 {
        let hour = if second < 20 { 0 } else { 3_600 };
        if second == 20 {
            let epoch_ns = (u64::from(SECOND.0 + second) + hour) * NS;
            recorder.take(Event::Clock(ClockAnchor { mono: end_of(19), epoch: EpochNs(epoch_ns) })).unwrap();
        }
        let row = LedgerDelta { thread: SERVER, ..ledger(second + hour as u32, NS) };
        recorder.take(Event::Ledger(row)).unwrap();
        recorder.commit(end_of(second)).unwrap();
    }
    let path = write_snapshot(&place.file(), end_of(9)..end_of(28), &snapshots(&place)).unwrap();
    let recording = Recording::open(&path).unwrap();
    let info = recording.info().unwrap();
    assert_eq!((info.start, info.end), (end_of(9), end_of(28)));
    assert_eq!(recording.threads().unwrap()[0].ledger.wall_ns, 19 * NS);
}

#[test]
fn stalls_keep_their_ids() {
    let place = place();
    let (_recorder, _) = flight(&place);
    let path = write_snapshot(&place.file(), end_of(44)..end_of(45), &snapshots(&place)).unwrap();
    let (snapshot, whole) = (Recording::open(&path).unwrap(), Recording::open(&place.file()).unwrap());
    let stalls: Vec<_> = snapshot.stalls(&StallFilter::default()).unwrap().map(Result::unwrap).collect();
    assert_eq!(stalls.len(), 4);
    for stall in stalls {
        assert_eq!(whole.stall(stall.id).unwrap().unwrap(), stall);
    }
}

#[test]
fn range_outside_the_window_is_cut_or_refused() {
    let place = place();
    let (_recorder, _) = flight(&place);
    let folder = snapshots(&place);
    let all = write_snapshot(&place.file(), MonoNs(0)..MonoNs(u64::MAX), &folder).unwrap();
    let info = Recording::open(&all).unwrap().info().unwrap();
    assert_eq!((info.start, info.end), (end_of(29), end_of(59)));
    for (from, to) in [(MonoNs(0), START), (end_of(60), end_of(70)), (end_of(50), end_of(40))] {
        let error = write_snapshot(&place.file(), from..to, &folder).unwrap_err();
        assert!(matches!(error, Error::NothingKept { .. }), "{error}");
    }
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
}

#[test]
fn second_snapshot_of_a_second_gets_a_number() {
    let place = place();
    let (_recorder, _) = flight(&place);
    let names: Vec<String> = (0..3)
        .map(|_| write_snapshot(&place.file(), end_of(44)..end_of(45), &snapshots(&place)).unwrap())
        .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
        .collect();
    let name = "wallprof-20270115T080045Z";
    assert_eq!(names, [format!("{name}.db"), format!("{name}-2.db"), format!("{name}-3.db")]);
}

#[test]
fn failed_snapshot_does_not_disturb_the_recorder() {
    let place = place();
    let (mut recorder, mut machine) = flight(&place);
    let nowhere = place.folder().join("nowhere");
    let error = write_snapshot(&place.file(), end_of(44)..end_of(45), &nowhere).unwrap_err();
    assert!(matches!(error, Error::DirectoryMissing { .. }), "{error}");
    let error = write_snapshot(&place.file(), end_of(44)..end_of(45), &place.file()).unwrap_err();
    assert!(error.to_string().contains("wallprof.db"), "{error}");
    if !std::path::Path::new("/dev/full").exists() {
        let test = "failed_snapshot_does_not_disturb_the_recorder";
        wallprof_testkit::excuse(test, "a full device", "there is no /dev/full");
    } else {
        let full = place.folder().join("full");
        std::os::unix::fs::symlink("/dev/full", &full).unwrap();
        assert!(write_snapshot(&place.file(), end_of(44)..end_of(45), &full).is_err());
    }
    let missing = write_snapshot(&place.folder().join("none.db"), end_of(44)..end_of(45), &snapshots(&place));
    assert!(matches!(missing, Err(Error::NotFound { .. })));
    // Old rows are deleted with every second commit.
    (60..62).for_each(|second| machine.second(&mut recorder, second));
    assert_eq!(rows(&place.file(), "SELECT count(*) FROM bucket WHERE thread = 1"), 30);
}

/// A snapshot that another thread takes while the recorder commits: neither waits for the other, and each is
/// whole.
#[test]
fn recorder_does_not_wait_for_a_snapshot() {
    let place = place();
    let (mut recorder, mut machine) = flight(&place);
    let (path, folder) = (place.file(), snapshots(&place));
    let taking = std::thread::spawn(move || {
        let one = || write_snapshot(&path, MonoNs(0)..MonoNs(u64::MAX), &folder).unwrap();
        (0..10).map(|_| one()).collect::<Vec<_>>()
    });
    let mut second = 60;
    while !taking.is_finished() {
        machine.second(&mut recorder, second);
        second += 1;
    }
    for path in taking.join().unwrap() {
        let recording = Recording::open(&path).unwrap();
        let info = recording.info().unwrap();
        let threads = recording.threads().unwrap();
        let server = threads.iter().find(|thread| thread.info.comm == "server").unwrap();
        assert_eq!(server.ledger.wall_ns, info.end.0 - info.start.0);
        assert_eq!(dangling(&path), [""; 0]);
    }
    recorder.finish(end_of(second)).unwrap();
}
