// SPDX-License-Identifier: Apache-2.0
//! Headers of files that another program serves (FUSE), and of other users' files from other machines. Opening
//! or reading such a file may never return, so that a reader ([`crate::reader`]) does it, ordered by a thread
//! that waits for the reader alone.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::time::{Duration, Instant};

use wallprof_model::Owner;

use crate::elf::ElfFacts;
use crate::live_file::FileKey;
use crate::read_limits::{Budget, ReadLimits};
use crate::reader::wire::{Scope, Setup};
use crate::reader::{ReaderCommand, ReaderProcess};

/// Files that wait for the thread.
const MAX_WAITING: usize = 256;
/// A reader takes 5 ms, and a server on another continent some hundred for each read.
const LONGEST: Duration = Duration::from_secs(2);
/// Files of a file system that did not answer are not read for this long.
const PAUSE: Duration = Duration::from_secs(60);
/// Readers take this much time at once, and a twentieth of a CPU after that.
const BURST: Duration = Duration::from_secs(3);
const REFILL_PART: u32 = 20;
/// Files of which it is known that they cannot be read. The table is cleared when it is full.
const MAX_UNREADABLE: usize = 1 << 12;

/// A file whose headers were read, or could not be.
pub(crate) struct Headers {
    pub key: FileKey,
    pub facts: Option<ElfFacts>,
    /// Opened with `O_PATH`.
    pub file: File,
}

/// The thread, started with the first file, and the files that it reads.
#[derive(Default)]
pub(crate) struct ServedHeaders {
    /// `None`: this program has no reader.
    command: Option<ReaderCommand>,
    thread: Option<Thread>,
    /// Files that were ordered and not returned yet.
    ordered: HashSet<FileKey>,
    unreadable: HashSet<FileKey>,
    lost: u64,
}

struct Thread {
    orders: SyncSender<(FileKey, File)>,
    done: Receiver<Headers>,
}

impl ServedHeaders {
    /// Replaces the program that reads files.
    pub(crate) fn set_reader(&mut self, command: ReaderCommand) {
        self.command = Some(command);
    }

    /// Orders the headers of a file. True: they will be returned by [`ServedHeaders::take`].
    pub(crate) fn order(&mut self, key: FileKey, file: File) -> bool {
        if self.ordered.contains(&key) {
            return true;
        }
        if self.unreadable.contains(&key) {
            return false;
        }
        let is_sent = self.thread().is_some_and(|thread| match thread.orders.try_send((key, file)) {
            Ok(()) => true,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
        });
        if is_sent {
            self.ordered.insert(key);
        } else {
            self.lost += 1;
        }
        is_sent
    }

    /// The files whose headers were read, or could not be, since the last call.
    pub(crate) fn take(&mut self) -> Vec<Headers> {
        let Some(thread) = &self.thread else { return Vec::new() };
        let done: Vec<Headers> = thread.done.try_iter().collect();
        for headers in &done {
            self.ordered.remove(&headers.key);
            if headers.facts.is_none() {
                self.lost += 1;
                if self.unreadable.len() >= MAX_UNREADABLE {
                    self.unreadable.clear();
                }
                self.unreadable.insert(headers.key);
            }
        }
        done
    }

    /// Whether headers are being read.
    pub(crate) fn is_reading(&self) -> bool {
        !self.ordered.is_empty()
    }

    /// Orders without headers so far: the file could not be read, or too many waited.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    fn thread(&mut self) -> Option<&Thread> {
        if self.thread.is_none() {
            let command = self.command.clone().or_else(ReaderCommand::of_this_program)?;
            self.thread = start(command).ok();
        }
        self.thread.as_ref()
    }
}

/// Detached: it ends when the sender of orders is dropped, after the file that it is at.
fn start(command: ReaderCommand) -> io::Result<Thread> {
    let (orders, ordered) = sync_channel::<(FileKey, File)>(MAX_WAITING);
    let (finished, done) = channel();
    let run = move || read_all(&command, &ordered, &finished);
    std::thread::Builder::new().name("wallprof-served".into()).spawn(run)?;
    Ok(Thread { orders, done })
}

fn read_all(command: &ReaderCommand, ordered: &Receiver<(FileKey, File)>, finished: &Sender<Headers>) {
    let mut silent: HashMap<u64, Instant> = HashMap::new();
    let mut pace = Pace { refilled_at: Instant::now() };
    while let Ok((key, file)) = ordered.recv() {
        silent.retain(|_, since| since.elapsed() < PAUSE);
        let is_silent = silent.contains_key(&key.device());
        let (facts, spent) = if is_silent { (None, Duration::ZERO) } else { pace.read(command, &file) };
        if facts.is_none() && spent >= LONGEST {
            silent.insert(key.device(), Instant::now());
        }
        if finished.send(Headers { key, facts, file }).is_err() {
            return;
        }
    }
}

fn read_in_child(command: &ReaderCommand, file: &File) -> Option<ElfFacts> {
    let setup = Setup { scope: Scope::Headers, debug_limit: 0, unpacked_limit: 0, copy_limit: 0 };
    let limits = ReadLimits { per_file: LONGEST, in_all: LONGEST * 3, bytes: 0 };
    let mut reader = ReaderProcess::start(command, file, &setup).ok()?;
    let mut budget = Budget::new(Some(limits));
    budget.for_file(Owner::UNKNOWN).spend(true, 0, |deadline| reader.headers(deadline)).flatten()
}

/// The time that readers may take.
struct Pace {
    /// When all that was spent is refilled.
    refilled_at: Instant,
}

impl Pace {
    /// Reads a file when there is time. Returns how long that took.
    fn read(&mut self, command: &ReaderCommand, file: &File) -> (Option<ElfFacts>, Duration) {
        std::thread::sleep(self.time_to_wait(Instant::now()));
        let started = Instant::now();
        let facts = read_in_child(command, file);
        let spent = started.elapsed();
        self.spend(spent, Instant::now());
        (facts, spent)
    }

    fn time_to_wait(&self, now: Instant) -> Duration {
        self.refilled_at.saturating_duration_since(now).saturating_sub(BURST * REFILL_PART)
    }

    fn spend(&mut self, spent: Duration, now: Instant) {
        self.refilled_at = self.refilled_at.max(now) + spent * REFILL_PART;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_take_a_twentieth_of_a_cpu_after_their_burst() {
        let start = Instant::now();
        let (mut pace, mut now) = (Pace { refilled_at: start }, start);
        let mut spent = Duration::ZERO;
        while now < start + Duration::from_secs(600) {
            now += pace.time_to_wait(now);
            let reader = Duration::from_millis(5);
            (now, spent) = (now + reader, spent + reader);
            pace.spend(reader, now);
        }
        let limit = BURST + Duration::from_secs(600) / REFILL_PART;
        assert!(spent <= limit + Duration::from_millis(5), "{spent:?}");
        assert!(spent > limit - Duration::from_millis(100), "{spent:?}");
    }

    #[test]
    fn file_without_a_reader_is_counted_and_orders_are_bounded() {
        let file = || File::open("/dev/null").expect("a file");
        let key = |number: u64| FileKey::of_number(number);
        let mut none = ServedHeaders::default();
        assert!(!none.order(key(1), file()) && !none.is_reading());
        assert_eq!((none.lost(), none.take().len()), (1, 0));
        let (orders, _ordered) = sync_channel(1);
        let (_finished, done) = channel();
        let mut full = ServedHeaders { thread: Some(Thread { orders, done }), ..ServedHeaders::default() };
        assert!(full.order(key(1), file()) && full.order(key(1), file()), "it is ordered once");
        assert!(!full.order(key(2), file()) && full.is_reading());
        assert_eq!(full.lost(), 1);
    }
}
