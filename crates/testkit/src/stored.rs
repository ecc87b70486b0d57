// SPDX-License-Identifier: Apache-2.0
//! Stored runs: what a live test got from the machine once, judged again in each run of the tests.
//!
//! A test that begins with [`run`] reads a recording and what the scenarios said, and judges both. It needs a
//! machine only to make them. So `tests/stored/PROGRAM/TEST.zst` has both, in the order in which the test asked
//! for them, and the test is a pure one. Beside it, `TEST.txt` is what the readers print of the recordings, which
//! is compared to the letter: a difference is read by a person, and accepted by `make goldens`.
//!
//! `tests/stored/causes` has recordings of real software, which have no scenario: [`file`] and [`difference`] are
//! for these.
//!
//! `WALLPROF_STORED=live` makes a live test of it again: `make confirm`. `WALLPROF_STORED=write` also stores the
//! run if the test passes: `make rerecord`.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use serde::{Deserialize, Serialize};

use crate::machine::{self, SerialGuard, name_of_this_test};
use crate::recorder::{RecordingFile, scratch_folder};

/// The readers whose text is compared.
const READERS: [&str; 4] = ["report", "stalls", "blame", "tail"];

thread_local! {
    static RUN: RefCell<Option<State>> = const { RefCell::new(None) };
}

/// One thing that the test got from the machine.
struct Entry {
    label: String,
    bytes: Vec<u8>,
}

#[derive(Serialize, Deserialize)]
struct Head {
    label: String,
    length: usize,
}

enum State {
    /// The entries that are left, what the readers printed so far, and which readers are asked.
    Replayed {
        left: VecDeque<Entry>,
        text: String,
        readers: &'static [&'static str],
    },
    Written(Vec<Entry>),
}

/// A test's use of its stored run, or of the machine.
pub struct Run {
    machine: Option<SerialGuard>,
}

/// The stored run of the test that runs now. `None` where it is to run live and cannot, see [`machine::reserve`].
///
/// # Panics
/// Where no run of it is stored.
pub fn run(test: &str) -> Option<Run> {
    begin(test, &READERS[..1])
}

/// As [`run`]. Not only what `report` prints is compared, but what all readers of stalls do.
pub fn run_in_full(test: &str) -> Option<Run> {
    begin(test, &READERS)
}

fn begin(test: &str, readers: &'static [&'static str]) -> Option<Run> {
    if std::env::var_os("WALLPROF_TESTS").is_some_and(|value| value == "stored") {
        machine::defer();
        return None;
    }
    let mode = std::env::var("WALLPROF_STORED").unwrap_or_default();
    let (state, machine) = if mode.is_empty() {
        let path = path("zst");
        let file = fs::read(&path).unwrap_or_else(|error| {
            panic!("{}: {error}: make rerecord TEST={}", path.display(), name_of_this_test())
        });
        (Some(State::Replayed { left: entries(&file), text: String::new(), readers }), None)
    } else {
        let machine = machine::reserve(test)?;
        ((mode == "write").then(|| State::Written(Vec::new())), Some(machine))
    };
    RUN.set(state);
    Some(Run { machine })
}

impl Drop for Run {
    fn drop(&mut self) {
        let state = RUN.take();
        if std::thread::panicking() {
            return;
        }
        match state {
            Some(State::Replayed { left, text, .. }) => {
                let labels: Vec<String> = left.into_iter().map(|entry| entry.label).collect();
                assert!(labels.is_empty(), "the stored run has more than the test asked for: {labels:?}");
                compare(&text);
            }
            Some(State::Written(entries)) => write(&entries),
            None => {}
        }
        self.machine.take();
    }
}

/// Whether the test judges a stored run now.
pub fn is_replayed() -> bool {
    RUN.with_borrow(|state| matches!(state, Some(State::Replayed { .. })))
}

/// Whether the test judges a stored run, or makes one: nothing in it may be missing.
pub fn is_in_use() -> bool {
    RUN.with_borrow(Option::is_some)
}

/// The next entry of a stored run.
///
/// # Panics
/// Where the test asks for something else than it did then.
pub(crate) fn replay(label: &str) -> Option<Vec<u8>> {
    RUN.with_borrow_mut(|state| {
        let Some(State::Replayed { left, .. }) = state else { return None };
        let next = left.pop_front().filter(|entry| entry.label == label);
        Some(next.unwrap_or_else(|| panic!("the stored run has no {label} here: make rerecord")).bytes)
    })
}

/// Adds an entry, if this run is to be stored.
pub(crate) fn keep(label: &str, bytes: impl FnOnce() -> Vec<u8>) {
    RUN.with_borrow_mut(|state| {
        if let Some(State::Written(entries)) = state {
            entries.push(Entry { label: label.to_owned(), bytes: bytes() });
        }
    });
}

/// A number that the machine says.
pub fn number(label: &str, live: impl FnOnce() -> u64) -> u64 {
    if let Some(bytes) = replay(label) {
        return String::from_utf8_lossy(&bytes).parse().expect("a number");
    }
    let number = live();
    keep(label, || number.to_string().into_bytes());
    number
}

/// Notes what the readers print of a recording of a stored run.
pub(crate) fn read_all(recording: &RecordingFile) {
    let readers = RUN.with_borrow(|state| match state {
        Some(State::Replayed { readers, .. }) => Some(*readers),
        _ => None,
    });
    let Some(readers) = readers else { return };
    let read = text_of(recording, readers);
    RUN.with_borrow_mut(|state| {
        if let Some(State::Replayed { text, .. }) = state {
            text.push_str(&read);
        }
    });
}

/// What these readers print of a recording, one after the other.
pub fn text_of(recording: &RecordingFile, readers: &[&str]) -> String {
    let read = |reader: &&str| format!("$ wallprof {reader}\n{}\n", recording.read(reader, &[]));
    readers.iter().map(read).collect()
}

// --- files ---

/// `tests/stored/PROGRAM/TEST.EXTENSION`.
fn path(extension: &str) -> PathBuf {
    let program = std::env::current_exe().expect("the path of the test program");
    let program = program.file_name().and_then(|name| name.to_str()).expect("a UTF-8 name");
    let program = program.rsplit_once('-').map_or(program, |(name, _)| name);
    let test = name_of_this_test().replace("::", ".");
    folder().join(program).join(format!("{test}.{extension}"))
}

/// `tests/stored`.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/stored")
}

fn entries(file: &[u8]) -> VecDeque<Entry> {
    let bytes = zstd::decode_all(file).expect("a stored run is compressed");
    let (mut left, mut entries) = (bytes.as_slice(), VecDeque::new());
    while !left.is_empty() {
        let mut line = String::new();
        left.read_line(&mut line).expect("the head of an entry");
        let Head { label, length } = serde_json::from_str(&line).expect("the head of an entry");
        let (bytes, rest) = left.split_at(length);
        entries.push_back(Entry { label, bytes: bytes.to_owned() });
        left = rest;
    }
    entries
}

/// The recording of a file with nothing else.
pub fn file(path: &Path) -> RecordingFile {
    let file = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let entry = entries(&file).pop_front().expect("a recording");
    RecordingFile::with(&entry.bytes)
}

/// Stores a recording without anything else.
pub fn store(path: &Path, recording: &Path) {
    let bytes = fs::read(recording).unwrap_or_else(|error| panic!("{}: {error}", recording.display()));
    write_to(path, &[Entry { label: "recording".to_owned(), bytes }]);
}

fn write(entries: &[Entry]) {
    write_to(&path("zst"), entries);
}

fn write_to(path: &Path, entries: &[Entry]) {
    let mut all = Vec::new();
    for Entry { label, bytes } in entries {
        let without = if label == "recording" { anonymous(bytes) } else { bytes.clone() };
        let head = Head { label: label.clone(), length: without.len() };
        writeln!(all, "{}", serde_json::to_string(&head).expect("JSON")).expect("memory");
        all.extend(without);
    }
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder of stored runs");
    fs::write(path, zstd::encode_all(all.as_slice(), 19).expect("memory")).expect("a stored run is written");
}

/// The recording without the names of this machine and its folders.
fn anonymous(recording: &[u8]) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("recording.db");
    fs::write(&path, recording).expect("a temporary file");
    let file = Connection::open(&path).expect("a recording is an SQLite file");
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the tree");
    let home =
        std::env::var("CARGO_HOME").or_else(|_| std::env::var("HOME").map(|home| format!("{home}/.cargo")));
    let mut folders =
        vec![(tree.to_str().expect("UTF-8").to_owned(), "/wallprof"), (home.expect("a home"), "/cargo")];
    folders.extend(own_groups().map(|group| (group, "/group")));
    let columns: Vec<(String, String)> = file
        .prepare(
            "SELECT t.name, c.name FROM sqlite_schema t JOIN pragma_table_info(t.name) c
             WHERE t.type = 'table' AND c.type = 'TEXT'",
        )
        .and_then(|mut query| query.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect())
        .expect("its columns");
    for (table, column) in columns {
        for (from, to) in &folders {
            let change =
                format!("UPDATE {table} SET {column} = replace({column}, ?1, ?2) WHERE instr({column}, ?1)");
            file.execute(&change, [from, *to]).expect("a name is replaced");
        }
    }
    file.execute_batch(
        "UPDATE recording SET hostname = 'host', machine_id = '0', boot_id = '0';
         PRAGMA journal_mode = DELETE; VACUUM;",
    )
    .expect("the machine's names are replaced");
    drop(file);
    fs::read(&path).expect("a temporary file")
}

/// The control groups of this test, longest names first: scenarios make theirs in them.
fn own_groups() -> impl Iterator<Item = String> {
    let text = fs::read_to_string("/proc/self/cgroup").expect("the groups of this process");
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2)).filter(|path| *path != "/");
    let mut groups: Vec<String> = paths.map(str::to_owned).collect();
    groups.sort_by_key(|path| (std::cmp::Reverse(path.len()), path.clone()));
    groups.dedup();
    groups.into_iter()
}

/// Compares what the readers print with `TEST.txt`.
fn compare(text: &str) {
    if let Some(difference) = difference(&path("txt"), text) {
        panic!("{difference}");
    }
}

/// How a text differs from a golden. Where `WALLPROF_GOLDENS=write` the text becomes the golden.
pub fn difference(path: &Path, text: &str) -> Option<String> {
    if std::env::var_os("WALLPROF_GOLDENS").is_some_and(|value| value == "write") {
        fs::write(path, text).expect("a golden is written");
        return None;
    }
    let golden = fs::read_to_string(path).unwrap_or_default();
    if text == golden {
        return None;
    }
    let printed = scratch_folder().join("stored").join(path.file_name().expect("a name"));
    fs::create_dir_all(printed.parent().expect("a folder")).expect("a folder");
    fs::write(&printed, text).expect("a file for what was printed");
    let at = golden.lines().zip(text.lines()).take_while(|(then, now)| then == now).count();
    let line = |text: &str| text.lines().nth(at).unwrap_or("(no more lines)").to_owned();
    Some(format!(
        "line {} of {} is now another:\n- {}\n+ {}\nAll of it is in {}. If it is right: make goldens",
        at + 1,
        path.display(),
        line(&golden),
        line(text),
        printed.display()
    ))
}
