// SPDX-License-Identifier: Apache-2.0
//! How often the threads of a process were switched in.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;

use wallprof_model::MonoNs;

use super::folder::Folder;
use super::text::TextFile;

/// Switches of a process with more threads are not counted: each thread is a file to read.
const MAX_THREADS: usize = 32;
/// How often threads are counted,
const COUNT_EVERY_NS: u64 = 1_000_000_000;
/// and listed even where their number has not changed: one may have taken another's place.
const LIST_ANYWAY_NS: u64 = 8_000_000_000;

/// The threads of a process, and their switches since they were first listed together.
pub struct Switches {
    pid: u32,
    /// `None`: the process has ended.
    folder: Option<Folder>,
    /// `None`: it has too many threads.
    threads: Option<BTreeMap<u32, Runs>>,
    /// Links of the directory of threads when they were last listed: its number of threads plus a constant.
    links: u64,
    listed: MonoNs,
    looked: MonoNs,
    sum: u64,
}

/// How often a thread was switched in.
struct Runs {
    schedstat: TextFile,
    counted: u64,
}

impl Switches {
    pub fn of(pid: u32, at: MonoNs) -> Self {
        let mut switches = Switches {
            pid,
            folder: Folder::open(&format!("/proc/{pid}/task")),
            threads: Some(BTreeMap::new()),
            links: 0,
            listed: MonoNs(0),
            looked: MonoNs(0),
            sum: 0,
        };
        switches.list(at);
        // Earlier switches do not count.
        for runs in switches.threads.iter_mut().flat_map(BTreeMap::values_mut) {
            runs.counted = runs.read().unwrap_or(0);
        }
        switches
    }

    /// Switches so far. `None` when there are too many threads.
    pub fn read(&mut self, at: MonoNs) -> Option<u64> {
        self.look_for_threads(at);
        for runs in self.threads.as_mut()?.values_mut() {
            if let Some(count) = runs.read() {
                self.sum += count.saturating_sub(runs.counted);
                runs.counted = count;
            }
        }
        self.sum()
    }

    /// The sum as of the last reading.
    pub fn sum(&self) -> Option<u64> {
        self.threads.is_some().then_some(self.sum)
    }

    fn look_for_threads(&mut self, at: MonoNs) {
        if self.threads.is_none() || at.0 < self.looked.0.saturating_add(COUNT_EVERY_NS) {
            return;
        }
        self.looked = at;
        let links = self.folder.as_ref().and_then(Folder::metadata).map_or(0, |folder| folder.nlink());
        if links != self.links || at.0 >= self.listed.0.saturating_add(LIST_ANYWAY_NS) {
            self.links = links;
            self.list(at);
        }
    }

    /// Opens the files of new threads, and closes those of threads that ended.
    fn list(&mut self, at: MonoNs) {
        self.listed = at;
        let tids = self.tids();
        if tids.len() > MAX_THREADS {
            self.threads = None;
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

    /// Where there are too many threads, one more than are counted.
    fn tids(&self) -> Vec<u32> {
        let mut tids = Vec::new();
        let take = |tid, _: &_| {
            tids.push(tid);
            if tids.len() > MAX_THREADS { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        self.folder.as_ref().inspect(|folder| folder.numbers(take));
        tids
    }
}

impl Runs {
    /// `running waiting times`: the third number (sched-stats.rst).
    fn read(&mut self) -> Option<u64> {
        self.schedstat.read().ok()?.split_whitespace().nth(2)?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::sync::Barrier;

    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    #[test]
    fn threads_are_found_within_a_second_and_when_they_end() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let pid = child.id();
        let mut switches = Switches::of(pid, MonoNs(SECOND_NS));
        let tids = |switches: &Switches| -> Vec<u32> {
            switches.threads.iter().flatten().map(|(tid, _)| *tid).collect()
        };
        assert_eq!(tids(&switches), [pid]);
        switches.read(MonoNs(2 * SECOND_NS));
        // As if its thread were a new one.
        switches.threads = Some(BTreeMap::new());
        switches.links = 0;
        let before = switches.read(MonoNs(3 * SECOND_NS - 1));
        assert!(tids(&switches).is_empty(), "threads are counted once a second");
        let after = switches.read(MonoNs(3 * SECOND_NS));
        assert_eq!(tids(&switches), [pid]);
        assert!(after > before, "it got a CPU: {before:?} {after:?}");
        child.kill().unwrap();
        child.wait().unwrap();
        switches.read(MonoNs(4 * SECOND_NS));
        assert!(tids(&switches).is_empty());
    }

    #[test]
    fn nothing_is_counted_for_too_many_threads() {
        let (started, done) = (Barrier::new(MAX_THREADS + 1), Barrier::new(MAX_THREADS + 1));
        std::thread::scope(|scope| {
            for _ in 0..MAX_THREADS {
                scope.spawn(|| [&started, &done].map(Barrier::wait));
            }
            started.wait();
            let mut switches = Switches::of(std::process::id(), MonoNs(1));
            done.wait();
            assert_eq!(switches.read(MonoNs(2)), None);
        });
    }

    #[test]
    fn missing_process_has_no_switches() {
        assert_eq!(Switches::of(u32::MAX, MonoNs(1)).read(MonoNs(2)), Some(0));
    }
}
