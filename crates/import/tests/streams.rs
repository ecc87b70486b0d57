// SPDX-License-Identifier: Apache-2.0
//! Whole streams are imported; damaged ones end in an error or a count.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use wallprof_import::{ImportError, ImportOptions, Outcome, RecordingFacts, Sink, import, import_stream};
use wallprof_intel_pt::generator::record::words;
use wallprof_model::{Event, MissingFile, MonoNs};

use stream::{PERIOD_NS, Stream, two_threads};

mod stream;

/// Keeps the events, and checks the order of times.
#[derive(Default)]
struct Imported {
    events: Vec<Event>,
    settled: u64,
}

impl Sink for Imported {
    type Error = std::convert::Infallible;

    fn start(&mut self, facts: &RecordingFacts) -> Result<(), Self::Error> {
        assert!(self.events.is_empty());
        self.settled = facts.start.0;
        Ok(())
    }

    fn take(&mut self, event: Event) -> Result<(), Self::Error> {
        self.events.push(event);
        Ok(())
    }

    fn settled(&mut self, until: MonoNs) -> Result<(), Self::Error> {
        assert!(until.0 >= self.settled, "time goes back from {} to {}", self.settled, until.0);
        self.settled = until.0;
        Ok(())
    }

    fn progress(&mut self, _bytes: u64, _of: Option<u64>) {}
}

fn imported_stream(bytes: &[u8]) -> (Result<Outcome, ImportError<std::convert::Infallible>>, Imported) {
    let mut imported_stream = Imported::default();
    let outcome = import_stream(bytes, &ImportOptions::default(), &mut imported_stream);
    (outcome, imported_stream)
}

/// The records of a stream in a file, as perf writes it before it completes the header.
fn unfinished_file(stream: &Stream) -> Vec<u8> {
    const HEADER: u64 = 104;
    let fields = [HEADER, 152, HEADER, 0, HEADER, 0, 0, 0, 0, 0, 0, 0];
    [b"PERFILE2", &words(&fields)[..], &stream.bytes[16..]].concat()
}

#[test]
fn unfinished_file_with_stack_dumps_is_read_as_far_as_it_goes() {
    let stream = two_threads();
    let place = tempfile::tempdir().expect("a folder");
    let file = place.path().join("perf.data");
    let imported = |bytes: &[u8]| {
        std::fs::write(&file, bytes).expect("written");
        let mut imported_stream = Imported::default();
        (
            import(&file, &ImportOptions::default(), &mut imported_stream).expect("it can be read"),
            imported_stream.events,
        )
    };
    let whole = unfinished_file(&stream);
    let (outcome, events) = imported(&whole);
    let (expected, expected_events) = imported_stream(&stream.bytes);
    let expected = expected.expect("it is whole");
    let losses = [("binaries_missing", 1), ("perf_did_not_finish", 1), ("perf_lost_records", 3)];
    assert_eq!((outcome.samples, outcome.stacks), (expected.samples, expected.stacks));
    assert_eq!((outcome.losses, outcome.end), (losses.into(), expected.end));
    assert_eq!(events.len(), expected_events.events.len() + 1, "one loss more");
    // The file ends early, at any position.
    for len in (whole.len() / 2..whole.len()).step_by(37) {
        let (outcome, _) = imported(&whole[..len]);
        assert_eq!(outcome.losses["perf_did_not_finish"], 1);
        assert!(outcome.samples > 0 && outcome.samples <= expected.samples, "{len}");
    }
    // Foreign bytes behind the records.
    let (outcome, _) = imported(&[&whole[..], &[0xa5; 61]].concat());
    assert_eq!(outcome.samples, expected.samples);
    assert!(outcome.losses.keys().any(|loss| loss.starts_with("input_")), "{:?}", outcome.losses);
}

#[test]
fn two_threads_take_turns_on_a_cpu() {
    let (outcome, imported_stream) = imported_stream(&two_threads().bytes);
    let outcome = outcome.expect("it is whole");
    assert_eq!((outcome.threads, outcome.samples), (2, 20));
    assert_eq!(outcome.losses, [("binaries_missing", 1), ("perf_lost_records", 3)].into());
    let stalls: Vec<_> = imported_stream
        .events
        .iter()
        .filter_map(|event| if let Event::Stall(stall) = event { Some(stall) } else { None })
        .collect();
    // Each waits a millisecond at a time. The last waits end with the recording, and with the thread's life.
    assert!((18..=20).contains(&stalls.len()), "{} stalls", stalls.len());
    assert!(stalls.iter().filter(|stall| stall.end.0 - stall.start.0 == PERIOD_NS).count() >= 18);
}

#[test]
fn samples_of_a_threads_exit_are_kept() {
    let (thread, code) = ([100, 100], 0x55_0000_0000);
    let mut stream = Stream::new();
    stream.map(thread, code, "/nowhere/program", PERIOD_NS);
    stream.sample(thread, &[code + 16], 2 * PERIOD_NS);
    stream.exit(thread, 3 * PERIOD_NS);
    stream.sample(thread, &[code + 16], 4 * PERIOD_NS);
    // Another process whose start was not recorded.
    stream.sample([200, 100], &[code + 16], 5 * PERIOD_NS);
    let (outcome, imported) = imported_stream(&stream.bytes);
    let outcome = outcome.expect("it is whole");
    assert_eq!((outcome.threads, outcome.losses["samples_of_ended_threads"]), (1, 1));
    let ends: Vec<_> = imported
        .events
        .iter()
        .filter_map(|event| if let Event::ThreadEnd { at, .. } = event { Some(at.0) } else { None })
        .collect();
    assert_eq!(ends, [3 * PERIOD_NS, 4 * PERIOD_NS]);
    let ledgers = imported.events.iter().filter_map(|event| match event {
        Event::Ledger(delta) => Some((delta.wall_ns, delta.on_cpu_ns, delta.user_samples)),
        _ => None,
    });
    let sums = ledgers.fold((0, 0, 0), |sums, add| (sums.0 + add.0, sums.1 + add.1, sums.2 + add.2));
    assert_eq!(sums, (3 * PERIOD_NS, 2 * PERIOD_NS, 2));
}

/// The losses of a stream, the position at which it breaks off, and its threads.
fn broken(bytes: &[u8]) -> (Vec<&'static str>, Option<u64>, u64) {
    let outcome = imported_stream(bytes).0.expect("its header is whole");
    (outcome.losses.into_keys().collect(), outcome.broken_at, outcome.threads)
}

#[test]
fn stream_that_breaks_off_before_its_first_sample_has_a_position() {
    let mut stream = Stream::new();
    stream.finished_round();
    stream.finished_round();
    let (last, whole) = (stream.records[2], &stream.bytes[..]);
    assert_eq!(broken(whole), (vec![], None, 0));
    assert_eq!(broken(&whole[..last]), (vec![], None, 0), "it may end between records");
    for len in last + 1..whole.len() {
        assert_eq!(broken(&whole[..len]), (vec!["input_truncated"], Some(last as u64), 0), "{len}");
    }
    let mut damaged = stream.bytes.clone();
    // The size of the record in its header.
    damaged[last + 6] = 7;
    assert_eq!(broken(&damaged), (vec!["input_damaged"], Some(last as u64), 0));
}

#[test]
fn samples_of_the_idle_task_are_left_out_and_counted() {
    let (thread, code) = ([100, 100], 0x55_0000_0000);
    let mut stream = Stream::new();
    stream.map(thread, code, "/nowhere/program", 1_000);
    for (at, thread) in [[0, 0], thread, [0, 0], [0, 0]].into_iter().enumerate() {
        stream.sample(thread, &[code + 16], PERIOD_NS * (1 + at as u64));
    }
    let (outcome, _) = imported_stream(&stream.bytes);
    let outcome = outcome.expect("it is whole");
    assert_eq!((outcome.threads, outcome.samples, outcome.idle_samples), (1, 1, 3));
    assert_eq!(outcome.losses, [("binaries_missing", 1)].into());
}

/// A sample in a program that is not on this machine, after the records of `program`.
fn missing_files(program: impl FnOnce(&mut Stream)) -> Vec<MissingFile> {
    let (thread, code) = ([100, 100], 0x55_0000_0000);
    let mut stream = Stream::new();
    program(&mut stream);
    stream.sample(thread, &[code + 16], PERIOD_NS);
    stream.finished_round();
    let (outcome, imported) = imported_stream(&stream.bytes);
    assert_eq!(outcome.expect("it is whole").losses, [("binaries_missing", 1)].into());
    let file = |event| if let Event::MissingFile { file, .. } = event { Some(file) } else { None };
    imported.events.into_iter().filter_map(file).collect()
}

#[test]
fn build_id_of_a_program_that_is_not_here_is_kept() {
    let (thread, code, path) = ([100, 100], 0x55_0000_0000, "/nowhere/program");
    let known = [MissingFile { build_id: vec![7; 20], code_offset: 0 }];
    let by_mapping = missing_files(|stream| stream.map_with_build_id(thread, code, [7; 20], path, 1_000));
    assert_eq!(by_mapping, known);
    let by_table = missing_files(|stream| {
        stream.build_id([7; 20], path);
        stream.map(thread, code, path, 1_000);
    });
    assert_eq!(by_table, known);
    let both = missing_files(|stream| {
        stream.build_id([8; 20], path);
        stream.map_with_build_id(thread, code, [7; 20], path, 1_000);
    });
    assert_eq!(both, known, "the mapping's own counts");
    assert_eq!(missing_files(|stream| stream.map(thread, code, path, 1_000)), []);
}

#[test]
fn number_of_losses_saturates() {
    let mut stream = two_threads();
    let end = 10_000 + 30 * PERIOD_NS;
    stream.lost(u64::MAX, end);
    stream.lost(u64::MAX, end + 1);
    let (outcome, _) = imported_stream(&stream.bytes);
    assert_eq!(outcome.expect("it is whole").losses["perf_lost_records"], u64::MAX);
}

#[test]
fn stream_may_end_anywhere() {
    let Stream { bytes, records } = two_threads();
    for &at in &records {
        for end in [at, at + 4, at + 12] {
            // The threads known by then are emitted.
            if let (Ok(outcome), _) = imported_stream(&bytes[..end]) {
                assert!(outcome.threads <= 2 && outcome.samples <= 20);
            }
        }
    }
}

proptest! {
    #[test]
    fn damaged_streams_end(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..16)) {
        let mut bytes = two_threads().bytes;
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let _ = imported_stream(&bytes);
    }

    #[test]
    fn records_in_any_order(order in prop::collection::vec(any::<prop::sample::Index>(), 1..80)) {
        let Stream { bytes, records } = two_threads();
        let record = |number: usize| {
            let end = records.get(number + 1).copied().unwrap_or(bytes.len());
            &bytes[records[number]..end]
        };
        let mut mixed = bytes[..16].to_vec();
        for number in order {
            mixed.extend(record(number.index(records.len())));
        }
        let _ = imported_stream(&mixed);
    }
}

/// The seeds of `fuzz/fuzz_targets/perf_data.rs`; WALLPROF_BLESS=1 writes them.
#[test]
fn seeds_of_the_fuzz_target_are_the_generated_streams() {
    let Stream { bytes, records } = two_threads();
    let seeds = [
        ("two_threads", &bytes[..]),
        ("attributes_alone", &bytes[..records[1]]),
        ("a_map", &bytes[..records[3]]),
    ];
    let folder: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/perf_data");
    for (name, expected) in seeds {
        let path = folder.join(name);
        if std::env::var_os("WALLPROF_BLESS").is_some() {
            std::fs::create_dir_all(&folder).expect("a folder");
            std::fs::write(&path, expected).expect("written");
        }
        assert!(
            std::fs::read(&path).expect("a seed") == expected,
            "{name} differs from the generated stream"
        );
    }
}
