// SPDX-License-Identifier: Apache-2.0
//! Holders of SQLite's locks on files. A busy handler sleeps and asks again: no thread wakes it, and no word
//! in memory names the holder. The kernel's list of file locks does, while the lock is held.
//!
//! Owns the reading of `/proc/locks`, a hundred times a second while recorded threads wait for a database, on
//! a thread of its own. The list takes at most a fiftieth of a CPU. Files are known by device and inode.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use wallprof_model::event::{Lock, Stall};
use wallprof_model::{MonoNs, ThreadKey, ThreadRef};
use wallprof_probe::clock;

/// The list is read this often, or after this many times as long as that took.
const EVERY: Duration = Duration::from_millis(10);
const REST: u32 = 50;
/// A process is followed for so long after its last wait.
const FOLLOWED: Duration = Duration::from_secs(3);
/// A sleep of the busy handler follows an attempt that failed: a lock that was seen so long before it may
/// still be the one.
const BEFORE_NS: u64 = 25_000_000;
const MOST_SEEN: usize = 4096;
const MOST_PROCESSES: usize = 64;
const MOST_DESCRIPTORS: usize = 4096;

/// SQLite's locks are on these bytes: of a database, and of the index of its write-ahead log (`-shm`).
const PENDING: u64 = 0x4000_0000;
const LAST_SHARED: u64 = PENDING + 2 + 510;
const LOG_INDEX: std::ops::RangeInclusive<u64> = 120..=127;

/// A process that had what another one waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    at: MonoNs,
    waiting: u32,
    holder: u32,
    comm: Arc<str>,
}

#[derive(Default)]
pub struct FileLocks {
    seen: Arc<Mutex<VecDeque<Held>>>,
    /// `None` before the first wait.
    waiting: Option<SyncSender<u32>>,
}

impl FileLocks {
    /// Sets the process that holds the database for which a thread of the process `pid` waits.
    pub fn complete(&mut self, pid: u32, stall: &mut Stall, key_of: impl Fn(u32) -> Option<ThreadKey>) {
        let is_sqlite = |meaning: &wallprof_model::Meaning| {
            meaning.software.as_deref() == Some("sqlite") && !meaning.idle
        };
        if stall.lock.is_some() || !stall.meaning.as_deref().is_some_and(is_sqlite) {
            return;
        }
        let seen = &self.seen;
        let waiting = self.waiting.get_or_insert_with(|| start(Arc::clone(seen)));
        waiting.try_send(pid).ok();
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        stall.lock = holder(&seen, pid, stall.start, stall.end).map(|held| Lock {
            address: 0,
            owner: Some(ThreadRef {
                key: key_of(held.holder),
                pid: held.holder,
                tid: held.holder,
                comm: held.comm.to_string(),
                title: None,
            }),
        });
    }
}

/// The process that was seen most often during a wait, and just before it.
fn holder(seen: &VecDeque<Held>, pid: u32, start: MonoNs, end: MonoNs) -> Option<&Held> {
    let times = start.0.saturating_sub(BEFORE_NS)..=end.0;
    let mut counts: HashMap<u32, (u32, &Held)> = HashMap::new();
    for held in seen.iter().filter(|held| held.waiting == pid && times.contains(&held.at.0)) {
        counts.entry(held.holder).or_insert((0, held)).0 += 1;
    }
    counts.into_values().max_by_key(|(count, held)| (*count, held.holder)).map(|(_, held)| held)
}

/// A thread that cannot be started has nobody who would hear it.
fn start(seen: Arc<Mutex<VecDeque<Held>>>) -> SyncSender<u32> {
    let (sender, requests) = sync_channel(MOST_PROCESSES);
    let thread = std::thread::Builder::new().name("wallprof-locks".into());
    drop(thread.spawn(move || follow(&requests, &seen)));
    sender
}

/// A file, as `/proc/locks` has it.
type FileId = (u32, u32, u64);

struct Waiting {
    until: Instant,
    files: HashSet<FileId>,
}

fn follow(requests: &Receiver<u32>, seen: &Mutex<VecDeque<Held>>) {
    let mut waiting: HashMap<u32, Waiting> = HashMap::new();
    let mut rest = EVERY;
    loop {
        let request = match waiting.is_empty() {
            true => requests.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => requests.recv_timeout(rest),
        };
        let now = Instant::now();
        match request {
            Ok(pid) => {
                if waiting.contains_key(&pid) || waiting.len() < MOST_PROCESSES {
                    let until = now + FOLLOWED;
                    let process =
                        waiting.entry(pid).or_insert_with(|| Waiting { until, files: files_of(pid) });
                    process.until = until;
                }
                continue;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        waiting.retain(|_, process| process.until > now);
        let cpu_before_ns = clock::thread_cpu_ns();
        let Ok(list) = std::fs::read_to_string("/proc/locks") else { return };
        let at = clock::mono_now();
        let locks: Vec<FileLock> =
            list.lines().filter_map(FileLock::parse).filter(FileLock::is_sqlite).collect();
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        for (&pid, process) in &waiting {
            for holder in holders(&locks, pid, &process.files) {
                if seen.len() == MOST_SEEN {
                    seen.pop_front();
                }
                seen.push_back(Held { at, waiting: pid, holder, comm: comm_of(holder) });
            }
        }
        drop(seen);
        let cpu_ns = clock::thread_cpu_ns().saturating_sub(cpu_before_ns);
        rest = EVERY.max(Duration::from_nanos(cpu_ns).saturating_mul(REST));
    }
}

fn comm_of(pid: u32) -> Arc<str> {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().into()
}

/// A lock of one process on a part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileLock {
    pid: u32,
    file: FileId,
    writes: bool,
    first: u64,
    last: u64,
}

impl FileLock {
    /// `2: POSIX  ADVISORY  WRITE 812 fe:01:4711 1073741825 1073741825`. Waiters for a lock have `->` after
    /// their number; the pid of an open file's lock is -1.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace().skip(1);
        if words.next()? != "POSIX" {
            return None;
        }
        let writes = words.nth(1)? == "WRITE";
        let pid = words.next()?.parse().ok()?;
        let file = file_id(words.next()?)?;
        let (first, last) = (words.next()?.parse().ok()?, words.next()?);
        let last = if last == "EOF" { u64::MAX } else { last.parse().ok()? };
        Some(FileLock { pid, file, writes, first, last })
    }

    fn is_sqlite(&self) -> bool {
        let is_database = self.first >= PENDING && self.last <= LAST_SHARED;
        is_database || (LOG_INDEX.contains(&self.first) && LOG_INDEX.contains(&self.last))
    }

    fn is_pending(&self) -> bool {
        self.writes && self.first <= PENDING && PENDING <= self.last
    }
}

/// `fe:01:4711`: two hexadecimal numbers and a decimal one.
fn file_id(text: &str) -> Option<FileId> {
    let mut parts = text.split(':');
    let mut device = || u32::from_str_radix(parts.next()?, 16).ok();
    let (major, minor) = (device()?, device()?);
    Some((major, minor, parts.next()?.parse().ok()?))
}

/// The processes for which one waits. A reader keeps a writer waiting only once that has announced its commit
/// (the pending lock); with a write-ahead log all connections have a reader's lock, always.
fn holders(locks: &[FileLock], pid: u32, files: &HashSet<FileId>) -> Vec<u32> {
    let of_files = || locks.iter().filter(|lock| files.contains(&lock.file));
    let pending: HashSet<FileId> =
        of_files().filter(|lock| lock.pid == pid && lock.is_pending()).map(|lock| lock.file).collect();
    let keeps = |lock: &&FileLock| lock.pid != pid && (lock.writes || pending.contains(&lock.file));
    let mut holders: Vec<u32> = of_files().filter(keeps).map(|lock| lock.pid).collect();
    holders.sort_unstable();
    holders.dedup();
    holders
}

/// The files that a process has open.
fn files_of(pid: u32) -> HashSet<FileId> {
    let Ok(mounts) = std::fs::read_to_string(format!("/proc/{pid}/mountinfo")) else { return HashSet::new() };
    let devices: HashMap<&str, (u32, u32)> = mounts.lines().filter_map(mount).collect();
    let Ok(folder) = std::fs::read_dir(format!("/proc/{pid}/fdinfo")) else { return HashSet::new() };
    let file = |entry: std::fs::DirEntry| {
        let text = std::fs::read_to_string(entry.path()).ok()?;
        let field = |name: &str| text.lines().find_map(|line| Some(line.strip_prefix(name)?.trim()));
        let (major, minor) = *devices.get(field("mnt_id:")?)?;
        Some((major, minor, field("ino:")?.parse().ok()?))
    };
    folder.flatten().take(MOST_DESCRIPTORS).filter_map(file).collect()
}

/// `36 35 98:0 /mnt1 /mnt2 rw …`: the mount's number and its device.
fn mount(line: &str) -> Option<(&str, (u32, u32))> {
    let mut words = line.split(' ');
    let number = words.next()?;
    let (major, minor) = words.nth(1)?.split_once(':')?;
    Some((number, (major.parse().ok()?, minor.parse().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileId = (0xfe, 1, 4711);

    fn locks(text: &str) -> Vec<FileLock> {
        text.lines().filter_map(FileLock::parse).filter(FileLock::is_sqlite).collect()
    }

    fn holders_for(pid: u32, text: &str) -> Vec<u32> {
        holders(&locks(text), pid, &HashSet::from([FILE, (0xfe, 1, 4712)]))
    }

    /// A list as the kernel prints it, of a writer in WAL mode beside a reader and one that waits.
    #[test]
    fn writer_holds_the_database_and_readers_of_the_log_do_not() {
        let text = "1: POSIX  ADVISORY  WRITE 20 fe:01:4712 120 120\n\
                    2: POSIX  ADVISORY  READ 20 fe:01:4712 124 124\n\
                    3: POSIX  ADVISORY  READ 30 fe:01:4712 124 124\n\
                    4: POSIX  ADVISORY  READ 10 fe:01:4711 1073741826 1073742335\n\
                    5: POSIX  ADVISORY  READ 30 fe:01:4711 1073741826 1073742335\n\
                    5: -> POSIX ADVISORY WRITE 40 fe:01:4711 0 EOF\n\
                    6: OFDLCK ADVISORY  WRITE -1 fe:01:4711 120 120\n\
                    7: FLOCK  ADVISORY  WRITE 50 fe:01:4711 0 EOF\n\
                    8: POSIX  ADVISORY  WRITE 60 fe:01:4711 0 EOF\n\
                    9: POSIX  ADVISORY  WRITE 70 fe:02:4711 120 120\n";
        assert_eq!(holders_for(10, text), [20]);
        assert_eq!(holders_for(20, text), [0; 0], "its own lock");
    }

    #[test]
    fn reader_holds_what_a_pending_commit_waits_for() {
        let reader = "1: POSIX  ADVISORY  READ 30 fe:01:4711 1073741826 1073742335\n";
        assert_eq!(holders_for(10, reader), [0; 0], "nothing is to be committed");
        let pending = "2: POSIX  ADVISORY  WRITE 10 fe:01:4711 1073741824 1073741825\n";
        assert_eq!(holders_for(10, &[reader, pending].concat()), [30]);
    }

    #[test]
    fn damaged_lines_are_no_locks() {
        for line in [
            "",
            "1:",
            "1: POSIX",
            "1: POSIX ADVISORY WRITE x fe:01:1 0 0",
            "1: POSIX ADVISORY WRITE 1 fe:1 0 0",
        ] {
            assert_eq!(FileLock::parse(line), None, "{line}");
        }
    }

    #[test]
    fn holder_is_the_one_seen_most_during_the_wait() {
        let held = |at, waiting, holder| Held { at: MonoNs(at), waiting, holder, comm: "x".into() };
        let ms = 1_000_000;
        let seen = VecDeque::from([
            held(10 * ms, 1, 5),
            held(100 * ms, 1, 6),
            held(110 * ms, 1, 6),
            held(110 * ms, 1, 7),
            held(120 * ms, 2, 8),
            held(200 * ms, 1, 9),
        ]);
        let holder =
            |start, end| holder(&seen, 1, MonoNs(start * ms), MonoNs(end * ms)).map(|held| held.holder);
        assert_eq!(holder(105, 150), Some(6));
        assert_eq!(holder(201, 202), Some(9), "just before");
        assert_eq!(holder(300, 310), None);
    }

    /// A lock that this process takes is in the kernel's list under the file's device and inode.
    #[test]
    fn a_lock_and_an_open_file_have_the_same_id() {
        let file = tempfile::tempfile().expect("a file");
        let lock = rustix::fs::fcntl_lock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive);
        lock.expect("nobody else has it");
        let pid = std::process::id();
        let list = std::fs::read_to_string("/proc/locks").expect("readable");
        let own: Vec<FileLock> =
            list.lines().filter_map(FileLock::parse).filter(|lock| lock.pid == pid).collect();
        let files = files_of(pid);
        assert!(own.iter().any(|lock| lock.writes && files.contains(&lock.file)), "{own:?}: {files:?}");
    }
}
