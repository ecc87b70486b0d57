//! The processes that are known, updated from the kernel's news, and their changes since the walker's lists
//! were written.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use wallprof_model::{Loss, Owner};
use wallprof_probe::{Mapping, News};
use wallprof_symbols::{CodeRange, MmapEvent, NormaliseLosses, ProcessKey, Processes};

use crate::untracked::{Untracked, UntrackedProcess};

/// The stacks of a process that ended arrive within this time: they are flushed once a second.
const RETIRE_AFTER: Duration = Duration::from_secs(3);

/// The list of a process with more mappings than this is written at most once in [`LARGE_PAUSE`].
const LARGE: usize = 4_096;
const LARGE_PAUSE: Duration = Duration::from_secs(1);

/// A process whose list of mappings is to be written for the walker.
#[derive(Debug, PartialEq, Eq)]
pub struct ChangedCode {
    pub pid: u32,
    pub exec_id: u32,
    /// The list is charged to this user.
    pub owner: Owner,
    pub ranges: Vec<CodeRange>,
}

#[derive(Default)]
pub struct KnownProcesses {
    pub processes: Processes,
    /// The exec generation by pid, from the records of threads and from news of execs.
    generations: HashMap<u32, u32>,
    changed: BTreeSet<u32>,
    /// When the lists of processes with many mappings were last taken.
    large: HashMap<u32, Instant>,
    gone: Vec<u32>,
    /// Processes whose leader ended, oldest first.
    retiring: VecDeque<(Instant, u32)>,
    lost_mappings: u64,
    /// The losses that `take_full` has reported.
    reported: NormaliseLosses,
    /// `Some` with `--name`.
    untracked: Option<Untracked>,
}

impl KnownProcesses {
    /// Keeps the mappings of processes that are not known yet: they may be recorded later.
    pub fn keep_untracked(&mut self) {
        self.untracked = Some(Untracked::default());
    }

    /// Adds a process in this exec generation. The mappings of a new one are read now, because it may end
    /// soon.
    pub fn process(&mut self, pid: u32, generation: u32) {
        if !self.generations.contains_key(&pid) {
            self.look_at(ProcessKey { pid, generation });
        }
    }

    /// Adds the process image of a stack. An exec is counted twice if the process was first read between the
    /// exec and the news of it; the generation of the stack corrects the count.
    pub fn meet(&mut self, process: ProcessKey) {
        if !self.processes.knows(process) {
            self.look_at(process);
        }
    }

    /// Applies the news in order.
    pub fn apply(&mut self, news: &mut VecDeque<News>) {
        for item in news.drain(..) {
            match item {
                News::Mapping(mapping) if self.generations.contains_key(&mapping.pid) => self.map(&mapping),
                News::Mapping(mapping) => {
                    if let Some(untracked) = &mut self.untracked {
                        untracked.map(mapping);
                    }
                }
                News::Fork { pid, parent_pid } => self.fork(parent_pid, pid),
                News::Exec { pid } => {
                    if let Some(generation) = self.generations.get_mut(&pid) {
                        *generation += 1;
                        self.processes.exec(ProcessKey { pid, generation: *generation });
                        self.changed.insert(pid);
                    } else if let Some(untracked) = &mut self.untracked {
                        untracked.exec(pid);
                    }
                }
                News::Exit { pid } => {
                    if let Some(untracked) = &mut self.untracked {
                        untracked.end(pid);
                    }
                    self.processes.exit(pid);
                    self.retiring.push_back((Instant::now(), pid));
                }
                News::Wanted { pid, exec_id } => self.want(ProcessKey { pid, generation: exec_id }),
                News::Lost { count } => self.lost_mappings += count,
            }
        }
        self.retire(Instant::now());
    }

    /// Returns the processes with changed code and the pids of processes that ended, since the last call.
    pub fn take_changes(&mut self) -> (Vec<ChangedCode>, Vec<u32>) {
        let now = Instant::now();
        self.large.retain(|_, since| now.duration_since(*since) < LARGE_PAUSE);
        let changed = std::mem::take(&mut self.changed);
        let (later, changed): (BTreeSet<u32>, BTreeSet<u32>) =
            changed.into_iter().partition(|pid| self.large.contains_key(pid));
        self.changed = later;
        let code: Vec<ChangedCode> = changed.into_iter().filter_map(|pid| self.code(pid)).collect();
        let large = code.iter().filter(|code| code.ranges.len() > LARGE).map(|code| (code.pid, now));
        self.large.extend(large);
        (code, std::mem::take(&mut self.gone))
    }

    /// Whether changes are left for a later call of `take_changes`.
    pub fn has_changes(&self) -> bool {
        !self.changed.is_empty()
    }

    fn code(&self, pid: u32) -> Option<ChangedCode> {
        let exec_id = *self.generations.get(&pid)?;
        Some(ChangedCode { pid, exec_id, owner: self.processes.owner(pid), ranges: self.processes.code(pid) })
    }

    /// The number of mappings that were lost since the last call, for any reason.
    pub fn take_losses(&mut self) -> u64 {
        std::mem::take(&mut self.lost_mappings)
    }

    /// Entries that did not fit into the tables of modules, mappings and run-time names since the last call.
    pub fn take_full(&mut self) -> [(Loss, u64); 4] {
        let losses = self.processes.losses();
        let before = std::mem::replace(&mut self.reported, losses);
        [
            (Loss::ModulesFull, losses.modules.saturating_sub(before.modules)),
            (Loss::ProcessMappingsFull, losses.mappings.saturating_sub(before.mappings)),
            (
                Loss::ProcessMappingsOverQuota,
                losses.mappings_over_quota.saturating_sub(before.mappings_over_quota),
            ),
            (Loss::JitNamesFull, losses.jit_names.saturating_sub(before.jit_names)),
        ]
    }

    fn look_at(&mut self, process: ProcessKey) {
        self.generations.insert(process.pid, process.generation);
        self.changed.insert(process.pid);
        let untracked = self.untracked.as_mut().and_then(|untracked| untracked.take(process.pid));
        let Some(UntrackedProcess { mappings, has_ended }) = untracked else {
            // The frames of a process that has ended meanwhile have no names.
            let _ = self.processes.scan(process);
            return;
        };
        self.processes.exec(process);
        mappings.iter().for_each(|mapping| self.map(mapping));
        if has_ended {
            self.processes.exit(process.pid);
        }
    }

    fn map(&mut self, mapping: &Mapping) {
        self.processes.mmap(&MmapEvent {
            pid: mapping.pid,
            start: mapping.start,
            len: mapping.len,
            file_offset: mapping.page_offset,
            path: OsStr::from_bytes(&mapping.path),
            build_id: mapping.build_id.as_deref(),
            inode: None,
            executable: true,
        });
        self.changed.insert(mapping.pid);
    }

    /// The walker has no list for a process.
    fn want(&mut self, process: ProcessKey) {
        self.meet(process);
        self.changed.insert(process.pid);
    }

    fn fork(&mut self, parent: u32, pid: u32) {
        self.retiring.retain(|(_, retiring)| *retiring != pid);
        if let Some(&generation) = self.generations.get(&parent) {
            self.generations.insert(pid, generation);
            self.processes.fork(parent, ProcessKey { pid, generation });
            self.changed.insert(pid);
        }
    }

    /// Removes processes that ended more than [`RETIRE_AFTER`] ago: all their stacks were emitted.
    fn retire(&mut self, now: Instant) {
        while let Some(&(since, pid)) = self.retiring.front()
            && now.duration_since(since) >= RETIRE_AFTER
        {
            self.retiring.pop_front();
            if has_threads(pid) {
                self.retiring.push_back((now, pid));
                continue;
            }
            self.generations.remove(&pid);
            self.processes.retire(pid);
            self.changed.remove(&pid);
            self.gone.push(pid);
        }
    }
}

/// Whether threads of a process remain after its leader has ended. The leader alone is a zombie.
fn has_threads(pid: u32) -> bool {
    std::fs::read_dir(format!("/proc/{pid}/task")).is_ok_and(|threads| threads.count() > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(pid: u32) -> News {
        News::Mapping(wallprof_probe::Mapping {
            pid,
            start: 0x7000_0000,
            len: 0x1000,
            page_offset: 0,
            build_id: None,
            path: b"/nowhere/lib.so".to_vec(),
        })
    }

    fn changes(known: &mut KnownProcesses, news: impl IntoIterator<Item = News>) -> Vec<(u32, u32, usize)> {
        known.apply(&mut news.into_iter().collect());
        let (changed, _) = known.take_changes();
        changed.iter().map(|code| (code.pid, code.exec_id, code.ranges.len())).collect()
    }

    #[test]
    fn child_has_the_code_of_its_parent_until_its_exec() {
        let mut known = KnownProcesses::default();
        let (parent, child) = (u32::MAX - 1, u32::MAX - 2);
        known.process(parent, 7);
        assert_eq!(changes(&mut known, [mapping(parent)]), [(parent, 7, 1)]);
        assert_eq!(changes(&mut known, [News::Fork { pid: child, parent_pid: parent }]), [(child, 7, 1)]);
        assert_eq!(changes(&mut known, [News::Exec { pid: child }]), [(child, 8, 0)]);
        assert_eq!(changes(&mut known, [mapping(child)]), [(child, 8, 1)]);
        assert_eq!(changes(&mut known, []), []);
    }

    #[test]
    fn mappings_of_untracked_processes_change_no_list() {
        let mut known = KnownProcesses::default();
        assert_eq!(changes(&mut known, [mapping(u32::MAX - 1)]), []);
        assert_eq!(changes(&mut known, [News::Lost { count: 3 }]), []);
        assert_eq!((known.take_losses(), known.take_losses()), (3, 0));
    }

    #[test]
    fn list_of_a_process_with_many_mappings_is_taken_once_a_second() {
        let mut known = KnownProcesses::default();
        let (large, small) = (u32::MAX - 1, u32::MAX - 2);
        let at = |pid, number: u64| match mapping(pid) {
            News::Mapping(mapping) => News::Mapping(Mapping { start: number * 0x2000, ..mapping }),
            other => other,
        };
        [large, small].into_iter().for_each(|pid| known.process(pid, 0));
        let many = (1..LARGE as u64 + 2).map(|number| at(large, number));
        assert_eq!(changes(&mut known, many.chain([at(small, 1)])).len(), 2);
        let more = [at(large, 1 << 20), at(small, 2)];
        assert_eq!(changes(&mut known, more), [(small, 0, 2)]);
        assert!(known.has_changes());
        known.large.values_mut().for_each(|since| *since -= LARGE_PAUSE);
        assert_eq!(changes(&mut known, []), [(large, 0, LARGE + 2)]);
        assert!(!known.has_changes());
    }

    #[test]
    fn files_beyond_the_limit_are_reported_once() {
        let mut known = KnownProcesses::default();
        known.process(std::process::id(), 0);
        let file = |number: u64| {
            let path = format!("/nowhere/{number}").into_bytes();
            let start = 0x1000_0000 + number * 0x1000;
            let (pid, len, page_offset) = (std::process::id(), 0x1000, 0);
            News::Mapping(Mapping { pid, start, len, page_offset, build_id: None, path })
        };
        changes(&mut known, (0..1_000).map(file));
        assert!(known.take_full().iter().all(|(_, count)| *count == 0), "all of them fit");
        changes(&mut known, (1_000..17_000).map(file));
        let full: HashMap<_, _> = known.take_full().into();
        assert!(full[&Loss::ModulesFull] >= 17_000 - 16_384, "{full:?}");
        assert_eq!(full[&Loss::ProcessMappingsFull], 0);
        assert!(known.take_full().iter().all(|(_, count)| *count == 0), "reported already");
    }

    #[test]
    fn untracked_process_that_has_ended_is_known_from_its_exec_on() {
        let mut known = KnownProcesses::default();
        known.keep_untracked();
        let pid = u32::MAX - 1;
        let news = [mapping(pid), News::Exec { pid }, mapping(pid), News::Exit { pid }];
        assert_eq!(changes(&mut known, news), []);
        known.meet(ProcessKey { pid, generation: 9 });
        let (changed, _) = known.take_changes();
        assert_eq!((changed[0].exec_id, changed[0].ranges.len()), (9, 1));
        known.retire(Instant::now() + RETIRE_AFTER);
        assert_eq!(known.take_changes(), (vec![], vec![pid]));
    }

    #[test]
    fn process_that_ended_is_removed_later() {
        let mut known = KnownProcesses::default();
        let pid = u32::MAX - 1;
        known.process(pid, 0);
        assert_eq!(changes(&mut known, [News::Exit { pid }]), [(pid, 0, 0)]);
        known.retire(Instant::now() + RETIRE_AFTER);
        assert_eq!(known.take_changes(), (vec![], vec![pid]));
        assert_eq!(changes(&mut known, [mapping(pid)]), []);
    }

    #[test]
    fn process_that_the_walker_requests_is_read() {
        let mut known = KnownProcesses::default();
        let own = std::process::id();
        known.apply(&mut [News::Wanted { pid: own, exec_id: 4 }].into());
        let (changed, _) = known.take_changes();
        assert_eq!((changed[0].pid, changed[0].exec_id), (own, 4));
        assert!(!changed[0].ranges.is_empty(), "the test itself has code");
    }
}
