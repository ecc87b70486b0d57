//! What a recorded process counts: page faults, switches, memory, sockets.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;

use wallprof_model::{CounterKind, CounterUnit, MonoNs, ThreadKey};
use wallprof_probe::clock;

use super::Reading;
use super::namespaces::Namespaces;
use super::sockets::Sockets;
use super::text::TextFile;

/// The switches of a process with more threads are not counted: each thread is a file to read.
const MAX_THREADS: usize = 32;
/// How often threads are listed though there are as many as before: one may have taken another's place.
const LIST_ANYWAY_NS: u64 = 8_000_000_000;
/// What `/proc/PID/stat` counts memory in.
const PAGE_BYTES: u64 = 4096;

/// A living process. Its files stay its own when its number is given out again.
pub struct Process {
    /// The row that its counters are told of.
    pub thread: ThreadKey,
    pid: u32,
    stat: TextFile,
    threads: Option<BTreeMap<u32, Runs>>,
    /// Of the folder of threads, when they were last listed: there are as many more as there are threads.
    links: u64,
    listed: MonoNs,
    switches: u64,
    pub sockets: Sockets,
    /// It is gone, as was seen when it was last read.
    is_gone: bool,
}

/// How often a thread has got a CPU.
struct Runs {
    schedstat: TextFile,
    counted: u64,
}

impl Process {
    /// `None` when it is gone.
    pub fn open(pid: u32, thread: ThreadKey) -> Option<Self> {
        let stat = TextFile::open(format!("/proc/{pid}/stat"))?;
        let mut process = Process {
            thread,
            pid,
            stat,
            threads: Some(BTreeMap::new()),
            links: 0,
            listed: MonoNs(0),
            switches: 0,
            sockets: Sockets::of(pid),
            is_gone: false,
        };
        process.look_for_threads(clock::mono_now());
        // What they did before is not what is counted.
        for runs in process.threads.iter_mut().flat_map(BTreeMap::values_mut) {
            runs.counted = runs.read().unwrap_or(0);
        }
        Some(process)
    }

    /// Whether it lived when it was last read.
    pub fn is_alive(&self) -> bool {
        !self.is_gone
    }

    /// Opens the files of new threads, and closes those of threads that ended.
    pub fn look_for_threads(&mut self, at: MonoNs) {
        if self.threads.is_none() {
            return;
        }
        let folder = format!("/proc/{}/task", self.pid);
        let links = fs::metadata(&folder).map_or(0, |folder| folder.nlink());
        if links == self.links && at.0 < self.listed.0.saturating_add(LIST_ANYWAY_NS) {
            return;
        }
        (self.links, self.listed) = (links, at);
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse::<u32>().ok();
        let tids: Vec<u32> = entries.filter_map(number).take(MAX_THREADS + 1).collect();
        if tids.len() > MAX_THREADS {
            self.threads = None;
            return;
        }
        let Some(threads) = &mut self.threads else { return };
        threads.retain(|tid, _| tids.contains(tid));
        for tid in tids {
            let path = format!("/proc/{}/task/{tid}/schedstat", self.pid);
            if !threads.contains_key(&tid)
                && let Some(schedstat) = TextFile::open(path)
            {
                threads.insert(tid, Runs { schedstat, counted: 0 });
            }
        }
    }

    pub fn read(&mut self, at: MonoNs, namespaces: &Namespaces, take: &mut dyn FnMut(Reading<'_>)) {
        let Ok(stat) = self.stat.read() else {
            self.is_gone = true;
            return;
        };
        if let Some(numbers) = Numbers::from_stat(stat) {
            numbers.tell(take);
        }
        if let Some(threads) = &mut self.threads {
            for runs in threads.values_mut() {
                if let Some(count) = runs.read() {
                    self.switches += count.saturating_sub(runs.counted);
                    runs.counted = count;
                }
            }
            let (kind, unit) = (CounterKind::Sum, CounterUnit::Count);
            take(Reading { name: "switches", kind, unit, value: self.switches });
        }
        self.sockets.tell(at, namespaces, take);
    }
}

impl Runs {
    /// `running waiting times`: the third number (sched-stats.rst).
    fn read(&mut self) -> Option<u64> {
        self.schedstat.read().ok()?.split_whitespace().nth(2)?.parse().ok()
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Numbers {
    minor_faults: u64,
    major_faults: u64,
    resident_bytes: u64,
}

impl Numbers {
    /// Fields 10, 12 and 24 of proc_pid_stat(5), counted behind the name, which may hold anything.
    fn from_stat(text: &str) -> Option<Self> {
        let mut fields =
            text[text.rfind(')')? + 1..].split_whitespace().map(|field| field.parse::<u64>().ok());
        Some(Numbers {
            minor_faults: fields.nth(7)??,
            major_faults: fields.nth(1)??,
            resident_bytes: fields.nth(11)??.saturating_mul(PAGE_BYTES),
        })
    }

    fn tell(&self, take: &mut dyn FnMut(Reading<'_>)) {
        let mut tell = |name, kind, unit, value| take(Reading { name, kind, unit, value });
        tell("faults.minor", CounterKind::Sum, CounterUnit::Count, self.minor_faults);
        tell("faults.major", CounterKind::Sum, CounterUnit::Count, self.major_faults);
        tell("resident", CounterKind::Level, CounterUnit::Bytes, self.resident_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_behind_any_name() {
        let text =
            "42 (a) 1 ) 9) S 1 2 3 4 5 6 10 11 12 13 14 15 16 17 20 0 1 0 99 123456 7 18446744073709551615";
        let expected = Numbers { minor_faults: 10, major_faults: 12, resident_bytes: 7 * PAGE_BYTES };
        assert_eq!(Numbers::from_stat(text), Some(expected));
        for damaged in ["", "42 (a", "42 (a) S 1 2", "42 (a) S 1 2 3 4 5 6 x 8 9"] {
            assert_eq!(Numbers::from_stat(damaged), None, "{damaged}");
        }
    }

    #[test]
    fn this_process_counts() {
        let mut process = Process::open(std::process::id(), ThreadKey(1)).expect("it lives");
        assert!(process.is_alive());
        let mut names = Vec::new();
        process.read(MonoNs(1), &Namespaces::default(), &mut |reading| names.push(reading.name.to_owned()));
        assert!(
            names.starts_with(&["faults.minor".into(), "faults.major".into(), "resident".into()]),
            "{names:?}"
        );
        assert!(Process::open(u32::MAX, ThreadKey(1)).is_none());
    }
}
