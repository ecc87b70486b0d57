//! How often a process' threads have got a CPU.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;

use wallprof_model::MonoNs;

use super::folder::Folder;
use super::text::TextFile;

/// The switches of a process with more threads are not counted: each thread is a file to read.
const MAX_THREADS: usize = 32;
/// How often threads are counted,
const COUNT_EVERY_NS: u64 = 1_000_000_000;
/// and listed though there are as many as before: one may have taken another's place.
const LIST_ANYWAY_NS: u64 = 8_000_000_000;

/// The threads of a process, and what they have done since they were first listed together.
pub struct Switches {
    pid: u32,
    /// `None`: it is gone.
    folder: Option<Folder>,
    /// `None`: there are too many.
    threads: Option<BTreeMap<u32, Runs>>,
    /// Of the folder of threads, when they were last listed: there are as many more as there are threads.
    links: u64,
    listed: MonoNs,
    looked: MonoNs,
    sum: u64,
}

/// How often a thread has got a CPU.
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
        // What they did before is not what is counted.
        for runs in switches.threads.iter_mut().flat_map(BTreeMap::values_mut) {
            runs.counted = runs.read().unwrap_or(0);
        }
        switches
    }

    /// How many there have been; `None` when there are too many threads.
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

    /// As many as there were when they were last read.
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

    /// Of too many threads one more than are counted.
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
    fn of_too_many_threads_nothing_is_counted() {
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
    fn nobody_has_no_switches() {
        assert_eq!(Switches::of(u32::MAX, MonoNs(1)).read(MonoNs(2)), Some(0));
    }
}
