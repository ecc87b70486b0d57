//! What a recorded process counts: page faults, switches, memory, sockets.

use std::collections::BTreeMap;
use std::fs;

use wallprof_model::{CounterKind, CounterUnit, MonoNs, ThreadKey};

use super::Reading;
use super::sockets::Sockets;
use super::text::TextFile;

/// The switches of a process with more threads are not counted: each thread is a file to read.
const MAX_THREADS: usize = 32;
/// What `/proc/PID/stat` counts memory in.
const PAGE_BYTES: u64 = 4096;

/// A living process. Its files stay its own when its number is given out again.
pub struct Process {
    /// The row that its counters are told of.
    pub thread: ThreadKey,
    pid: u32,
    stat: TextFile,
    threads: Option<BTreeMap<u32, Runs>>,
    switches: u64,
    sockets: Sockets,
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
        let sockets = Sockets::of(pid);
        let mut process = Process { thread, pid, stat, threads: Some(BTreeMap::new()), switches: 0, sockets };
        process.look_for_threads();
        // What they did before is not what is counted.
        for runs in process.threads.iter_mut().flat_map(BTreeMap::values_mut) {
            runs.counted = runs.read().unwrap_or(0);
        }
        Some(process)
    }

    pub fn is_alive(&mut self) -> bool {
        self.stat.read().is_ok()
    }

    /// Opens the files of new threads, and closes those of threads that ended.
    pub fn look_for_threads(&mut self) {
        let entries = fs::read_dir(format!("/proc/{}/task", self.pid)).into_iter().flatten().flatten();
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

    pub fn read(&mut self, at: MonoNs, take: &mut dyn FnMut(Reading<'_>)) {
        if let Some(numbers) = self.stat.read().ok().and_then(Numbers::from_stat) {
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
        self.sockets.read(at, take);
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
        process.read(MonoNs(1), &mut |reading| names.push(reading.name.to_owned()));
        assert!(
            names.starts_with(&["faults.minor".into(), "faults.major".into(), "resident".into()]),
            "{names:?}"
        );
        assert!(Process::open(u32::MAX, ThreadKey(1)).is_none());
    }
}
