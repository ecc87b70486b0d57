//! The processes that are known, kept current from the kernel's news, and what of it the walker has not been told.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use wallprof_model::{Loss, Owner};
use wallprof_probe::{Mapping, News};
use wallprof_symbols::{CodeRange, MmapEvent, NormaliseLosses, ProcessKey, Processes};

use crate::strangers::{Stranger, Strangers};

/// Stacks of a process that ended are on their way this long at most: they are told once a second.
const RETIRE_AFTER: Duration = Duration::from_secs(3);

/// The list of a process with more mappings than this is written once in [`LARGE_PAUSE`] at most.
const LARGE: usize = 4_096;
const LARGE_PAUSE: Duration = Duration::from_secs(1);

/// A process whose list of mappings is to be written for the walker.
#[derive(Debug, PartialEq, Eq)]
pub struct ChangedCode {
    pub pid: u32,
    pub exec_id: u32,
    /// The user who pays for the list.
    pub owner: Owner,
    pub ranges: Vec<CodeRange>,
}

#[derive(Default)]
pub struct KnownProcesses {
    pub processes: Processes,
    /// exec generation by pid, counted from what their threads say.
    generations: HashMap<u32, u32>,
    changed: BTreeSet<u32>,
    /// When the lists of processes with many mappings were last taken.
    large: HashMap<u32, Instant>,
    gone: Vec<u32>,
    /// Processes whose leader ended, oldest first.
    retiring: VecDeque<(Instant, u32)>,
    lost_mappings: u64,
    /// What `take_full` has reported.
    reported: NormaliseLosses,
    /// With `--name`.
    strangers: Option<Strangers>,
}

impl KnownProcesses {
    /// Remembers what processes map that are not known yet, some of which may turn out to be recorded.
    pub fn remember_strangers(&mut self) {
        self.strangers = Some(Strangers::default());
    }

    /// A process exists, in this exec generation. One not known yet has its mappings read now: it may be gone soon.
    pub fn process(&mut self, pid: u32, generation: u32) {
        if !self.generations.contains_key(&pid) {
            self.look_at(ProcessKey { pid, generation });
        }
    }

    /// A stack of this process image has come. News of an exec can be counted twice, when the process was first looked
    /// at between exec and news.
    pub fn meet(&mut self, process: ProcessKey) {
        if !self.processes.knows(process) {
            self.look_at(process);
        }
    }

    /// Applies what happened to processes, in order.
    pub fn apply(&mut self, news: &mut VecDeque<News>) {
        for item in news.drain(..) {
            match item {
                News::Mapping(mapping) if self.generations.contains_key(&mapping.pid) => self.map(&mapping),
                News::Mapping(mapping) => {
                    if let Some(strangers) = &mut self.strangers {
                        strangers.map(mapping);
                    }
                }
                News::Fork { pid, parent_pid } => self.fork(parent_pid, pid),
                News::Exec { pid } => {
                    if let Some(generation) = self.generations.get_mut(&pid) {
                        *generation += 1;
                        self.processes.exec(ProcessKey { pid, generation: *generation });
                        self.changed.insert(pid);
                    } else if let Some(strangers) = &mut self.strangers {
                        strangers.begin(pid);
                    }
                }
                News::Exit { pid } => {
                    if let Some(strangers) = &mut self.strangers {
                        strangers.end(pid);
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

    /// What the walker's lists do not have yet: processes with other code than before, and those that are gone.
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

    /// Whether there is more to take later.
    pub fn has_changes(&self) -> bool {
        !self.changed.is_empty()
    }

    fn code(&self, pid: u32) -> Option<ChangedCode> {
        let exec_id = *self.generations.get(&pid)?;
        Some(ChangedCode { pid, exec_id, owner: self.processes.owner(pid), ranges: self.processes.code(pid) })
    }

    /// Mappings that were not seen since the last call, whatever dropped them.
    pub fn take_losses(&mut self) -> u64 {
        std::mem::take(&mut self.lost_mappings)
    }

    /// What the tables of modules, mappings and run-time names had no place for since the last call, by reason.
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
        let stranger = self.strangers.as_mut().and_then(|strangers| strangers.meet(process.pid));
        let Some(Stranger { mappings, has_ended }) = stranger else {
            // A process that ended in between simply has no names.
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

    /// The walker met a process unprepared.
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

    /// Forgets processes that ended a while ago: all their stacks were emitted.
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

/// Whether threads of a process live on after its leader: the leader alone is a zombie.
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
    fn a_childs_code_is_its_parents_until_it_says_otherwise() {
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
    fn mappings_of_strangers_are_no_news() {
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
        assert!(known.take_full().iter().all(|(_, count)| *count == 0), "they all have a place");
        changes(&mut known, (1_000..17_000).map(file));
        let full: HashMap<_, _> = known.take_full().into();
        assert!(full[&Loss::ModulesFull] >= 17_000 - 16_384, "{full:?}");
        assert_eq!(full[&Loss::ProcessMappingsFull], 0);
        assert!(known.take_full().iter().all(|(_, count)| *count == 0), "reported already");
    }

    #[test]
    fn a_stranger_that_is_gone_is_known_from_its_exec_on() {
        let mut known = KnownProcesses::default();
        known.remember_strangers();
        let pid = u32::MAX - 1;
        let life = [mapping(pid), News::Exec { pid }, mapping(pid), News::Exit { pid }];
        assert_eq!(changes(&mut known, life), []);
        known.meet(ProcessKey { pid, generation: 9 });
        let (changed, _) = known.take_changes();
        assert_eq!((changed[0].exec_id, changed[0].ranges.len()), (9, 1));
        known.retire(Instant::now() + RETIRE_AFTER);
        assert_eq!(known.take_changes(), (vec![], vec![pid]));
    }

    #[test]
    fn a_process_that_ended_is_forgotten_later() {
        let mut known = KnownProcesses::default();
        let pid = u32::MAX - 1;
        known.process(pid, 0);
        assert_eq!(changes(&mut known, [News::Exit { pid }]), [(pid, 0, 0)]);
        known.retire(Instant::now() + RETIRE_AFTER);
        assert_eq!(known.take_changes(), (vec![], vec![pid]));
        assert_eq!(changes(&mut known, [mapping(pid)]), []);
    }

    #[test]
    fn what_the_walker_wants_is_looked_at() {
        let mut known = KnownProcesses::default();
        let own = std::process::id();
        known.apply(&mut [News::Wanted { pid: own, exec_id: 4 }].into());
        let (changed, _) = known.take_changes();
        assert_eq!((changed[0].pid, changed[0].exec_id), (own, 4));
        assert!(!changed[0].ranges.is_empty(), "the test itself has code");
    }
}
