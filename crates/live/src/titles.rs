// SPDX-License-Identifier: Apache-2.0
//! What processes call themselves: the title that a server sets (`postgres: app shop [local] idle`), or the
//! script that an interpreter runs. A finding names the holder of a lock by it.
//!
//! Owns the reading of `/proc/PID/cmdline`. A command line may contain passwords: of one that is no title, only
//! the script's name is kept. Titles change all the time, so that they are read once a second, on a thread of
//! their own: a process whose memory is on a disk that does not answer stops the reader of its command line.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use wallprof_model::event::Stall;
use wallprof_model::{MonoNs, ThreadRef};
use wallprof_probe::clock;
use wallprof_symbols::Undisturbed;

/// Bytes of a title that are kept, and of a command line that are read.
const MOST_BYTES: usize = 128;
const MOST_READ: u64 = 512;

/// Processes that are read in a second: those with a title, and some of the others, in turn.
const MOST_TITLED: usize = 64;
const MOST_OTHERS: usize = 16;

/// Different titles of one process that are kept as they are. After that, a process has only the words that
/// are in all of them.
const MOST_TITLES: usize = 32;

/// Extensions of the scripts that interpreters run.
const SCRIPTS: [&str; 8] = ["py", "rb", "js", "mjs", "pl", "php", "sh", "jar"];

/// Titles of the recorded processes.
pub struct Titles {
    known: Arc<Mutex<Known>>,
    wanted: SyncSender<Vec<u32>>,
}

#[derive(Default)]
struct Known {
    processes: HashMap<u32, Process>,
    /// The last process without a title that was read.
    last: u32,
}

/// What one process called itself.
#[derive(Default)]
struct Process {
    /// The last two readings, the older one first.
    readings: Vec<(MonoNs, Reading)>,
    /// The words at the start that all readings have; `None` before the second one.
    role: Option<Arc<str>>,
    titles: Vec<Arc<str>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Reading {
    Title(Arc<str>),
    Script(Arc<str>),
    Nothing,
}

impl Titles {
    /// Starts the thread that reads. `None`: it could not be started.
    pub fn start() -> Option<Self> {
        // One request waits at most. A reader that is stopped gets no more.
        let (wanted, requests) = sync_channel(1);
        let known = Arc::new(Mutex::new(Known::default()));
        let shared = Arc::clone(&known);
        let thread = std::thread::Builder::new().name("wallprof-titles".into());
        thread.spawn(move || read_requests(&requests, &shared)).ok()?;
        Some(Titles { known, wanted })
    }

    /// Has the titles of these processes read, and forgets those of others.
    pub fn follow(&self, mut pids: Vec<u32>) {
        pids.sort_unstable();
        drop(self.wanted.try_send(pids));
    }

    /// Sets the titles of the holder of a lock and of the thread that ended the wait.
    pub fn complete(&self, stall: &mut Stall) {
        let waker = stall.waker.as_mut().and_then(|waker| waker.thread.as_mut());
        let owner = stall.lock.as_mut().and_then(|lock| lock.owner.as_mut());
        let (start, end) = (stall.start, stall.end);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        for thread in waker.into_iter().chain(owner) {
            known.complete(thread, start, end);
        }
    }
}

fn read_requests(requests: &Receiver<Vec<u32>>, known: &Mutex<Known>) {
    while let Ok(pids) = requests.recv() {
        let due = known.lock().unwrap_or_else(PoisonError::into_inner).due(&pids);
        for pid in due {
            let reading = command_line(pid).map_or(Reading::Nothing, |bytes| reading(&bytes));
            let now = clock::mono_now();
            known.lock().unwrap_or_else(PoisonError::into_inner).read(pid, now, reading);
        }
    }
}

fn command_line(pid: u32) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = File::open(format!("/proc/{pid}/cmdline")).ok()?;
    Undisturbed(file).take(MOST_READ).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

impl Known {
    /// The processes to be read now, of those that live. `pids` ascend.
    fn due(&mut self, pids: &[u32]) -> Vec<u32> {
        self.processes.retain(|pid, _| pids.binary_search(pid).is_ok());
        let is_titled = |pid: &u32| self.processes.get(pid).is_some_and(Process::is_titled);
        let (titled, others): (Vec<u32>, Vec<u32>) = pids.iter().partition(|pid| is_titled(pid));
        let next = others.partition_point(|&pid| pid <= self.last);
        let in_turn = others[next..].iter().chain(&others[..next]).take(MOST_OTHERS);
        let mut due: Vec<u32> = in_turn.copied().collect();
        self.last = due.last().copied().unwrap_or(self.last);
        due.extend(titled.into_iter().take(MOST_TITLED));
        due
    }

    fn read(&mut self, pid: u32, at: MonoNs, reading: Reading) {
        self.processes.entry(pid).or_default().add(at, reading);
    }

    fn complete(&mut self, thread: &mut ThreadRef, start: MonoNs, end: MonoNs) {
        if let Some(process) = self.processes.get_mut(&thread.pid) {
            thread.title = process.title(start, end);
        }
    }
}

impl Process {
    fn is_titled(&self) -> bool {
        matches!(self.readings.last(), Some((_, Reading::Title(_))))
    }

    fn add(&mut self, at: MonoNs, reading: Reading) {
        let before = self.readings.last().map(|(_, reading)| reading);
        self.role = match (before, &reading) {
            (_, Reading::Script(name)) => Some(name.clone()),
            (Some(Reading::Title(before)), Reading::Title(title)) => {
                common_words(self.role.as_ref().unwrap_or(before), title)
            }
            _ => None,
        };
        if self.readings.len() == 2 {
            self.readings.remove(0);
        }
        self.readings.push((at, reading));
    }

    /// The title that was read during a wait, else what all titles of the process have in common: another one
    /// may have been set at the time.
    fn title(&mut self, start: MonoNs, end: MonoNs) -> Option<Arc<str>> {
        let during = self.readings.iter().rev().find_map(|(at, reading)| match reading {
            Reading::Title(title) if (start..=end).contains(at) => Some(title.clone()),
            _ => None,
        });
        let Some(title) = during else { return self.role.clone() };
        if self.titles.contains(&title) {
            return Some(title);
        }
        if self.titles.len() == MOST_TITLES {
            return self.role.clone();
        }
        self.titles.push(title.clone());
        Some(title)
    }
}

/// The title or the script in a command line. A title has words and no NUL between them, because the process
/// wrote it over its arguments.
fn reading(bytes: &[u8]) -> Reading {
    let end = bytes.iter().rposition(|&byte| byte != 0 && byte != b' ').map_or(0, |last| last + 1);
    let bytes = &bytes[..end];
    if !bytes.contains(&0) {
        return match bytes.contains(&b' ') {
            true => Reading::Title(clipped(&String::from_utf8_lossy(bytes))),
            false => Reading::Nothing,
        };
    }
    let script = bytes.split(|&byte| byte == 0).skip(1).find_map(|argument| {
        let name = argument.rsplit(|&byte| byte == b'/').next()?;
        let name = String::from_utf8_lossy(name);
        let (_, extension) = name.rsplit_once('.')?;
        (!name.contains(' ') && SCRIPTS.contains(&extension)).then(|| clipped(&name))
    });
    script.map_or(Reading::Nothing, Reading::Script)
}

fn clipped(text: &str) -> Arc<str> {
    let end = (0..=text.len().min(MOST_BYTES)).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    text[..end].into()
}

/// `postgres: app shop [local]` of `… [local] idle` and `… [local] UPDATE`. `None`: no word.
fn common_words(one: &str, other: &str) -> Option<Arc<str>> {
    let pairs = one.split(' ').zip(other.split(' '));
    let words: Vec<&str> = pairs.take_while(|(one, other)| one == other).map(|(word, _)| word).collect();
    (!words.is_empty()).then(|| words.join(" ").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn title(text: &str) -> Reading {
        Reading::Title(text.into())
    }

    #[test]
    fn title_is_told_from_a_command_line() {
        assert_eq!(
            reading(b"postgres: app shop [local] idle\0\0\0\0"),
            title("postgres: app shop [local] idle")
        );
        assert_eq!(reading(b"nginx: worker process"), title("nginx: worker process"));
        assert_eq!(reading(b"redis-server *:6379    "), title("redis-server *:6379"));
        for none in
            [&b""[..], b"\0\0", b"redis-server\0", b"mysql\0-psecret\0shop\0", b"sh\0-c\0cat a.sh b\0"]
        {
            assert_eq!(reading(none), Reading::Nothing, "{none:?}");
        }
        assert_eq!(
            reading(b"python3\0-O\0/srv/worker.py\0--key\0secret\0"),
            Reading::Script("worker.py".into())
        );
        assert_eq!(reading(b"java\0-Xmx1g\0-jar\0/srv/shop.jar\0"), Reading::Script("shop.jar".into()));
    }

    #[test]
    fn hostile_titles_are_bounded_text() {
        let Reading::Title(long) = reading(&b"\xff a\x1b[2J\n".repeat(100)) else { panic!() };
        assert!(long.len() <= MOST_BYTES && long.contains('\u{fffd}'), "{long}");
        let Reading::Title(wide) = reading("ä ".repeat(200).as_bytes()) else { panic!() };
        assert!((MOST_BYTES - 2..=MOST_BYTES).contains(&wide.len()));
    }

    #[test]
    fn title_is_that_of_the_wait_or_what_does_not_change() {
        let mut process = Process::default();
        process.add(MonoNs(10), title("postgres: app shop [local] idle"));
        assert_eq!(process.title(MonoNs(20), MonoNs(30)), None, "it may have changed since");
        process.add(MonoNs(25), title("postgres: app shop [local] idle in transaction"));
        let during = process.title(MonoNs(20), MonoNs(30));
        assert_eq!(during.as_deref(), Some("postgres: app shop [local] idle in transaction"));
        process.add(MonoNs(40), title("postgres: app shop [local] UPDATE"));
        assert_eq!(process.title(MonoNs(50), MonoNs(60)).as_deref(), Some("postgres: app shop [local]"));
        process.add(MonoNs(70), Reading::Script("worker.py".into()));
        assert_eq!(process.title(MonoNs(50), MonoNs(60)).as_deref(), Some("worker.py"));
    }

    #[test]
    fn process_that_sets_ever_new_titles_has_its_role() {
        let mut process = Process::default();
        let mut last = None;
        for at in 0..=MOST_TITLES as u64 {
            process.add(MonoNs(at), title(&format!("job {at}")));
            last = process.title(MonoNs(at), MonoNs(at));
        }
        assert_eq!(last.as_deref(), Some("job"));
    }

    #[test]
    fn titled_processes_are_read_each_second_and_others_in_turn() {
        let mut known = Known::default();
        let pids: Vec<u32> = (1..=40).collect();
        known.due(&pids);
        known.read(7, MonoNs(1), title("a b"));
        assert_eq!(known.last, 16);
        let due = known.due(&pids);
        assert_eq!((due.first(), due.last(), due.len()), (Some(&17), Some(&7), MOST_OTHERS + 1));
        let due = known.due(&pids);
        assert_eq!(due[..9], [33, 34, 35, 36, 37, 38, 39, 40, 1], "and again from the start");
        known.due(&[1, 2]);
        assert!(known.processes.is_empty(), "7 has ended");
    }

    #[test]
    fn thread_reads_the_titles_that_are_wanted() {
        let titles = Titles::start().unwrap();
        titles.follow(vec![std::process::id()]);
        while titles.known.lock().unwrap().processes.is_empty() {
            std::thread::yield_now();
        }
        assert!(titles.known.lock().unwrap().processes.contains_key(&std::process::id()));
    }
}
