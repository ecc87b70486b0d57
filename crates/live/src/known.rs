// SPDX-License-Identifier: Apache-2.0
//! The processes that are known, updated from the kernel's news, and their changes since the walker's lists
//! were written.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use wallprof_model::{Frame, Loss, Owner};
use wallprof_probe::{Mapping, News, clock};
use wallprof_symbols::{CodeRange, MmapEvent, NormaliseLosses, ProcessKey, Processes};

use crate::cpu_accounts::{CpuAccounts, following};
use crate::untracked::{Untracked, UntrackedProcess};

/// A process is kept at least this long after its end, until stacks were read that it left behind. A watcher
/// reads stacks every ten seconds while little happens.
const RETIRE_AFTER: Duration = Duration::from_secs(3);
/// A process is kept at most this long after its end. While nothing is counted, no stacks are read.
const RETIRE_AT_LATEST: Duration = Duration::from_secs(15);
/// Processes whose end no event has reported are searched for this often. The event is lost when a ring is
/// full, and comes before that of the fork when the rings of two CPUs are not read at the same time.
const SEARCH_EVERY: Duration = Duration::from_secs(60);

/// The list of a process with more mappings than this is written at most once in [`LARGE_PAUSE`].
const LARGE: usize = 4_096;
const LARGE_PAUSE: Duration = Duration::from_secs(1);

/// The CPU time of news of one process is read this often. A single mapping takes 10 us.
const LONGEST_RUN: Duration = Duration::from_millis(1);

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
    /// By pid.
    generations: HashMap<u32, Generation>,
    changed: BTreeSet<u32>,
    /// Stacks have shown mappings that no event had reported.
    found: bool,
    /// When the lists of processes with many mappings were last taken.
    large: HashMap<u32, Instant>,
    gone: BTreeSet<u32>,
    /// Time of the recorder for news of processes, by their users.
    accounts: FollowingAccounts,
    /// The recording has not started yet.
    is_free: bool,
    /// Processes whose mappings are not followed, because their users have no time left. They are read again
    /// later, those of each user newest first.
    unfollowed: HashMap<Owner, BTreeSet<u32>>,
    over_budget: u64,
    /// Processes whose leader ended, oldest first.
    retiring: VecDeque<(Instant, u32)>,
    /// All stacks that were taken before this are emitted.
    emitted_until: Option<Instant>,
    /// The time of the last search for processes that ended unseen.
    searched: Option<Instant>,
    lost_mappings: u64,
    /// The losses that `take_full` has reported.
    reported: NormaliseLosses,
    /// `Some` with `--name`.
    untracked: Option<Untracked>,
}

/// The exec generation of a process, from the records of threads and from news of execs.
#[derive(Clone, Copy, Default)]
struct Generation {
    number: u32,
    /// The time of the last news of an exec.
    since: u64,
}

struct FollowingAccounts(CpuAccounts);

impl Default for FollowingAccounts {
    fn default() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        FollowingAccounts(CpuAccounts::new(following(cpus)))
    }
}

/// News of one process after the other, of which the time is charged to the process's user.
struct Run {
    pid: u32,
    since: Instant,
    cpu_before_ns: u64,
    /// Whether the user had time when the run began.
    has_time: bool,
}

impl KnownProcesses {
    /// Keeps the mappings of processes that are not known yet: they may be recorded later.
    pub fn keep_untracked(&mut self) {
        self.untracked = Some(Untracked::default());
    }

    /// Charges nothing until [`KnownProcesses::start_charging`]. What runs already is read once, however long
    /// that takes.
    pub fn charge_nothing(&mut self) {
        self.is_free = true;
    }

    pub fn start_charging(&mut self) {
        self.is_free = false;
    }

    /// Adds a process in this exec generation. The mappings of a new one are read now, because it may end
    /// soon.
    pub fn process(&mut self, pid: u32, generation: u32) {
        if !self.generations.contains_key(&pid) {
            self.look_at(ProcessKey { pid, generation });
        }
    }

    /// Adds the process image of a stack. The memory of a former program is gone: what is mapped now is not its.
    pub fn meet(&mut self, process: ProcessKey) {
        let newest = self.processes.newest_generation(process.pid);
        if newest.is_none_or(|newest| newest < process.generation) {
            self.look_at(process);
        }
    }

    /// Appends the frames of a user stack; see [`Processes::normalise_user`]. A process is read again for an
    /// unknown address only while its user has time.
    pub fn normalise_user(&mut self, process: ProcessKey, addresses: &[u64], frames: &mut Vec<Frame>) {
        self.meet(process);
        let owner = self.processes.owner(process.pid);
        if !self.accounts.0.may_start(owner, Instant::now()) {
            return self.processes.normalise_known(process, addresses, frames);
        }
        let cpu_before_ns = clock::thread_cpu_ns();
        if self.processes.normalise_user(process, addresses, frames) {
            self.changed.insert(process.pid);
            self.found = true;
        }
        self.charge(owner, clock::thread_cpu_ns().saturating_sub(cpu_before_ns));
    }

    /// Applies the news in order.
    pub fn apply(&mut self, news: &mut VecDeque<News>) {
        let mut run = None;
        for item in news.drain(..) {
            let has_time = pid_of(&item).is_none_or(|pid| self.enter_run(&mut run, pid));
            match item {
                News::Mapping(mapping) if self.generations.contains_key(&mapping.pid) => {
                    if has_time {
                        self.map(&mapping);
                    } else {
                        self.cover(mapping.pid, mapping.start, mapping.start.saturating_add(mapping.len));
                    }
                }
                News::Mapping(mapping) => {
                    if let Some(untracked) = &mut self.untracked {
                        untracked.map(mapping);
                    }
                }
                News::Covered { pid, start, end } => self.cover(pid, start, end),
                News::Fork { pid, parent_pid } => self.fork(parent_pid, pid),
                News::Exec { pid, time } => {
                    self.follow_again(pid);
                    if let Some(generation) = self.generations.get_mut(&pid) {
                        *generation = Generation { number: generation.number + 1, since: time };
                        self.processes.exec(ProcessKey { pid, generation: generation.number });
                        self.changed.insert(pid);
                    } else if let Some(untracked) = &mut self.untracked {
                        untracked.exec(pid);
                    }
                }
                News::Exit { pid } => {
                    if let Some(untracked) = &mut self.untracked {
                        untracked.end(pid);
                    }
                    self.end(pid);
                }
                News::Wanted { pid, exec_id, time } => {
                    self.want(ProcessKey { pid, generation: exec_id }, time);
                }
                News::Lost { count } => self.lost_mappings += count,
            }
        }
        self.end_run(run);
        self.changed.extend(self.processes.take_served_files());
        self.read_unfollowed();
        let now = Instant::now();
        self.search_ended(now);
        self.retire(now);
    }

    /// The processes whose mappings are not followed for now.
    pub fn unfollowed(&self) -> impl Iterator<Item = u32> + '_ {
        self.unfollowed.values().flatten().copied()
    }

    /// Charges the writing of a list of mappings.
    pub fn charge(&self, owner: Owner, cpu_ns: u64) {
        if self.is_free {
            return;
        }
        self.accounts.0.charge(owner, cpu_ns, Instant::now());
    }

    /// Whether a user has time for the reading of files.
    pub fn has_time(&self, owner: Owner) -> bool {
        self.is_free || self.accounts.0.may_start(owner, Instant::now())
    }

    /// Returns the code of a process once more with the next changes.
    pub fn look_again(&mut self, pid: u32) {
        if self.generations.contains_key(&pid) {
            self.changed.insert(pid);
        }
    }

    /// All stacks that were taken before `at` are emitted: processes that ended before may be retired.
    pub fn emitted_stacks_until(&mut self, at: Instant) {
        self.emitted_until = Some(at);
    }

    /// Returns the processes with changed code and the pids of processes that ended, since the last call.
    pub fn take_changes(&mut self) -> (Vec<ChangedCode>, Vec<u32>) {
        let now = Instant::now();
        self.large.retain(|_, since| now.duration_since(*since) < LARGE_PAUSE);
        let changed = std::mem::take(&mut self.changed);
        let has_to_wait = |pid: &u32| {
            self.large.contains_key(pid) || !self.accounts.0.may_start(self.processes.owner(*pid), now)
        };
        let (later, changed): (BTreeSet<u32>, BTreeSet<u32>) = changed.into_iter().partition(has_to_wait);
        self.changed = later;
        let code: Vec<ChangedCode> = changed.into_iter().filter_map(|pid| self.code(pid)).collect();
        let large = code.iter().filter(|code| code.ranges.len() > LARGE).map(|code| (code.pid, now));
        self.large.extend(large);
        (code, std::mem::take(&mut self.gone).into_iter().collect())
    }

    /// Whether changes are left for a later call of `take_changes`, or processes are to be read again.
    pub fn has_changes(&self) -> bool {
        !self.changed.is_empty() || !self.unfollowed.is_empty()
    }

    /// Whether stacks have shown mappings that no event had reported, since the last call.
    pub fn take_found(&mut self) -> bool {
        std::mem::take(&mut self.found)
    }

    fn code(&self, pid: u32) -> Option<ChangedCode> {
        let exec_id = self.generations.get(&pid)?.number;
        Some(ChangedCode { pid, exec_id, owner: self.processes.owner(pid), ranges: self.processes.code(pid) })
    }

    /// The number of mappings that were lost since the last call, for any reason.
    pub fn take_losses(&mut self) -> u64 {
        std::mem::take(&mut self.lost_mappings)
    }

    /// Entries that did not fit into the tables of modules, mappings and run-time names since the last call.
    pub fn take_full(&mut self) -> [(Loss, u64); 6] {
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
            (Loss::UnwindFilesUnreadable, losses.served_files.saturating_sub(before.served_files)),
            (Loss::MappingsOverBudget, std::mem::take(&mut self.over_budget)),
        ]
    }

    fn look_at(&mut self, process: ProcessKey) {
        self.generations.entry(process.pid).or_default().number = process.generation;
        self.changed.insert(process.pid);
        let untracked = self.untracked.as_mut().and_then(|untracked| untracked.take(process.pid));
        let Some(UntrackedProcess { mappings, has_ended }) = untracked else {
            let owner = self.processes.read_owner(process);
            if !self.accounts.0.may_start(owner, Instant::now()) {
                self.unfollowed.entry(owner).or_default().insert(process.pid);
                return;
            }
            let cpu_before_ns = clock::thread_cpu_ns();
            let scanned = self.processes.scan(process);
            self.charge(owner, clock::thread_cpu_ns().saturating_sub(cpu_before_ns));
            // A process that ended in between has no names. Its end was reported before, if at all, so that
            // no event will retire it.
            if scanned.is_err_and(|error| error.is_gone()) {
                self.end(process.pid);
            }
            return;
        };
        self.processes.exec(process);
        mappings.iter().for_each(|mapping| self.map(mapping));
        if has_ended {
            self.end(process.pid);
        }
    }

    /// Starts a run of news of this process, unless the last item was its, too. Returns whether its user has
    /// time.
    fn enter_run(&mut self, run: &mut Option<Run>, pid: u32) -> bool {
        let now = Instant::now();
        let goes_on = |run: &&Run| run.pid == pid && now.duration_since(run.since) < LONGEST_RUN;
        if let Some(run) = run.as_ref().filter(goes_on) {
            return run.has_time;
        }
        let cpu_before_ns = self.end_run(run.take());
        let has_time = self.accounts.0.may_start(self.processes.owner(pid), now);
        *run = Some(Run { pid, since: now, cpu_before_ns, has_time });
        has_time
    }

    /// Charges a run. Returns the CPU time of this thread.
    fn end_run(&self, run: Option<Run>) -> u64 {
        let cpu_ns = clock::thread_cpu_ns();
        if let Some(run) = run {
            self.charge(self.processes.owner(run.pid), cpu_ns.saturating_sub(run.cpu_before_ns));
        }
        cpu_ns
    }

    /// Something was mapped that is not looked at: what was there is gone.
    fn cover(&mut self, pid: u32, start: u64, end: u64) {
        if !self.generations.contains_key(&pid) {
            return;
        }
        self.over_budget += 1;
        if self.processes.unmap(pid, start, end) {
            self.changed.insert(pid);
        }
        let owner = self.processes.owner(pid);
        self.unfollowed.entry(owner).or_default().insert(pid);
    }

    /// Nothing is left of a process that was not looked at.
    fn follow_again(&mut self, pid: u32) {
        self.unfollowed.retain(|_, pids| {
            pids.remove(&pid);
            !pids.is_empty()
        });
    }

    /// Reads the mappings of processes whose users have time again, and follows them from now on.
    fn read_unfollowed(&mut self) {
        for owner in self.unfollowed.keys().copied().collect::<Vec<_>>() {
            while self.accounts.0.may_start(owner, Instant::now())
                && let Some(pid) = self.unfollowed.get_mut(&owner).and_then(BTreeSet::pop_last)
            {
                if let Some(&generation) = self.generations.get(&pid) {
                    let cpu_before_ns = clock::thread_cpu_ns();
                    // Of a process that has ended, what was known stays.
                    let _ = self.processes.scan(ProcessKey { pid, generation: generation.number });
                    self.charge(owner, clock::thread_cpu_ns().saturating_sub(cpu_before_ns));
                    self.changed.insert(pid);
                }
            }
        }
        self.unfollowed.retain(|_, pids| !pids.is_empty());
    }

    fn end(&mut self, pid: u32) {
        self.processes.exit(pid);
        self.retiring.push_back((Instant::now(), pid));
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

    /// The walker had no list for a process at this time. Its generation was the present one, unless an exec came
    /// after it. Execs are counted wrongly where a process was first read between one and the news of it, and
    /// where the rings of two CPUs both reported one.
    fn want(&mut self, process: ProcessKey, time: u64) {
        self.meet(process);
        self.changed.insert(process.pid);
        if let Some(generation) = self.generations.get_mut(&process.pid)
            && generation.since <= time
            && generation.number != process.generation
        {
            generation.number = process.generation;
            self.processes.correct_generation(process);
        }
    }

    /// Events of a CPU that came online were not reported: the mappings of all processes are read again, as their
    /// users have time.
    pub fn read_all_again(&mut self) {
        for &pid in self.generations.keys() {
            self.unfollowed.entry(self.processes.owner(pid)).or_default().insert(pid);
        }
        self.read_unfollowed();
    }

    fn fork(&mut self, parent: u32, pid: u32) {
        self.retiring.retain(|(_, retiring)| *retiring != pid);
        if let Some(&generation) = self.generations.get(&parent) {
            self.generations.insert(pid, generation);
            self.processes.fork(parent, ProcessKey { pid, generation: generation.number });
            self.changed.insert(pid);
        }
    }

    /// Forgets processes that ended a while ago and whose stacks are emitted.
    fn retire(&mut self, now: Instant) {
        while let Some(&(since, pid)) = self.retiring.front()
            && self.may_retire(now, since)
        {
            self.retiring.pop_front();
            if has_threads(pid) {
                self.retiring.push_back((now, pid));
                continue;
            }
            self.processes.retire(pid);
            self.follow_again(pid);
            self.changed.remove(&pid);
            self.generations.remove(&pid);
            // Of processes that are not known, too: the kernel side adds children by itself.
            self.gone.insert(pid);
        }
    }

    /// Whether a process that ended at `since` is retired at `now`.
    fn may_retire(&self, now: Instant, since: Instant) -> bool {
        let age = now.saturating_duration_since(since);
        let is_emitted = self.emitted_until.is_some_and(|until| until >= since);
        age >= RETIRE_AT_LATEST || (age >= RETIRE_AFTER && is_emitted)
    }

    /// Finds known processes that do not exist any more.
    fn search_ended(&mut self, now: Instant) {
        let last = *self.searched.get_or_insert(now);
        if now.saturating_duration_since(last) < SEARCH_EVERY {
            return;
        }
        self.searched = Some(now);
        let retiring: HashSet<u32> = self.retiring.iter().map(|(_, pid)| *pid).collect();
        let unseen = self.generations.keys().copied().filter(|pid| !retiring.contains(pid) && !exists(*pid));
        unseen.collect::<Vec<_>>().into_iter().for_each(|pid| self.end(pid));
    }
}

/// The process that is charged.
fn pid_of(item: &News) -> Option<u32> {
    match item {
        News::Mapping(mapping) => Some(mapping.pid),
        // The child is not known yet.
        News::Fork { parent_pid, .. } => Some(*parent_pid),
        News::Covered { pid, .. }
        | News::Exec { pid, .. }
        | News::Exit { pid }
        | News::Wanted { pid, .. } => Some(*pid),
        News::Lost { .. } => None,
    }
}

/// Whether a process or thread with this number exists.
pub(crate) fn exists(pid: u32) -> bool {
    // /proc may hide the processes of other users (proc(5), hidepid), a signal does not.
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH))
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

    fn exec(pid: u32) -> News {
        News::Exec { pid, time: 0 }
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
        assert_eq!(changes(&mut known, [exec(child)]), [(child, 8, 0)]);
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
    fn mappings_of_a_user_without_time_become_unknown_and_others_do_not() {
        let mut known = KnownProcesses::default();
        // Processes that do not exist share an owner.
        let (pid, own) = (u32::MAX - 1, std::process::id());
        [pid, own].into_iter().for_each(|pid| known.process(pid, 0));
        assert_eq!(changes(&mut known, [mapping(pid)]).len(), 2);
        known.charge(Owner::UNKNOWN, 10_000_000_000);
        let at = |pid, start| match mapping(pid) {
            News::Mapping(mapping) => News::Mapping(Mapping { start, ..mapping }),
            other => other,
        };
        let before = known.processes.code(own).len();
        let changed = changes(&mut known, [mapping(pid), at(own, 0x1000), at(pid, 0x1000)]);
        assert_eq!(changed, [(own, 0, before + 1)]);
        assert!(known.processes.code(pid).is_empty() && known.has_changes());
        assert_eq!(known.unfollowed().collect::<Vec<_>>(), [pid]);
        let lost: HashMap<_, _> = known.take_full().into();
        assert_eq!(lost[&Loss::MappingsOverBudget], 2);
        changes(&mut known, [exec(pid)]);
        assert_eq!(known.unfollowed().count(), 0, "nothing of the new program was missed");
    }

    #[test]
    fn new_program_of_a_user_without_time_is_not_followed() {
        let mut known = KnownProcesses::default();
        let (parent, child) = (u32::MAX - 1, u32::MAX - 2);
        known.process(parent, 0);
        changes(&mut known, [mapping(parent)]);
        known.charge(Owner::UNKNOWN, 10_000_000_000);
        let fork = News::Fork { pid: child, parent_pid: parent };
        assert_eq!(changes(&mut known, [fork, exec(child), mapping(child)]), []);
        assert_eq!(known.unfollowed().collect::<Vec<_>>(), [child]);
        assert!(known.processes.code(child).is_empty());
        changes(&mut known, [exec(child)]);
        assert_eq!(known.unfollowed().count(), 0, "nothing of the next program was missed");
    }

    /// The dynamic linker maps them, after the exec.
    fn wait_for_libraries(pid: u32) {
        let ends = std::time::Instant::now() + std::time::Duration::from_secs(30);
        let maps = || std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("the child runs");
        while !maps().contains("libc.so") || !sleeps(pid) {
            assert!(std::time::Instant::now() < ends, "{}", maps());
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    fn sleeps(pid: u32) -> bool {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") S "))
    }

    #[test]
    fn process_is_read_again_when_its_user_has_time() {
        use std::os::unix::process::CommandExt;
        let child = std::process::Command::new("sleep").arg("1000").uid(1000).spawn();
        let Ok(mut child) = child else {
            let test = "process_is_read_again_when_its_user_has_time";
            return wallprof_testkit::skip(test, "starting a process of another user takes root");
        };
        let (mut known, pid) = (KnownProcesses::default(), child.id());
        wait_for_libraries(pid);
        known.process(pid, 0);
        let ranges = known.processes.code(pid);
        assert!(!ranges.is_empty());
        known.charge(Owner::User(1000), 10_000_000_000);
        let covered = News::Covered { pid, start: 0, end: u64::MAX };
        known.apply(&mut VecDeque::from([covered]));
        assert!(known.processes.code(pid).is_empty());
        known.accounts = FollowingAccounts::default();
        known.apply(&mut VecDeque::new());
        assert_eq!((known.processes.code(pid), known.unfollowed().count()), (ranges, 0));
        let (changed, _) = known.take_changes();
        assert_eq!(
            changed.iter().map(|code| (code.pid, code.owner)).collect::<Vec<_>>(),
            [(pid, Owner::User(1000))]
        );
        child.kill().expect("killed");
        child.wait().expect("ended");
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
        let news = [mapping(pid), exec(pid), mapping(pid), News::Exit { pid }];
        assert_eq!(changes(&mut known, news), []);
        known.meet(ProcessKey { pid, generation: 9 });
        let (changed, _) = known.take_changes();
        assert_eq!((changed[0].exec_id, changed[0].ranges.len()), (9, 1));
        retire_emitted(&mut known);
        assert_eq!(known.take_changes(), (vec![], vec![pid]));
    }

    #[test]
    fn process_that_ended_is_removed_later() {
        let mut known = KnownProcesses::default();
        let pid = u32::MAX - 1;
        known.process(pid, 0);
        assert_eq!(changes(&mut known, [News::Exit { pid }]), [(pid, 0, 0)]);
        retire_emitted(&mut known);
        assert_eq!(known.take_changes(), (vec![], vec![pid]));
        assert_eq!(changes(&mut known, [mapping(pid)]), []);
    }

    #[test]
    fn process_stays_until_its_stacks_are_emitted() {
        let mut known = KnownProcesses::default();
        let (parent_pid, pid) = (std::process::id(), u32::MAX - 1);
        let process = ProcessKey { pid, generation: 0 };
        known.process(parent_pid, 0);
        known.emitted_stacks_until(Instant::now());
        changes(&mut known, [News::Fork { pid, parent_pid }, News::Exit { pid }]);
        known.retire(Instant::now() + RETIRE_AFTER);
        assert!(known.processes.knows(process), "a watcher reads its stacks later");
        retire_emitted(&mut known);
        assert!(!known.processes.knows(process));
    }

    #[test]
    fn process_is_retired_in_the_end_while_no_stacks_are_read() {
        let mut known = KnownProcesses::default();
        let pid = u32::MAX - 1;
        known.process(pid, 0);
        changes(&mut known, [News::Exit { pid }]);
        known.retire(Instant::now() + RETIRE_AT_LATEST);
        assert_eq!(known.take_changes(), (vec![], vec![pid]));
    }

    #[test]
    fn late_stacks_of_ended_processes_leave_nothing_behind() {
        let mut known = KnownProcesses::default();
        let living = std::process::id();
        known.process(living, 0);
        for pid in u32::MAX - 1_000..u32::MAX {
            changes(&mut known, [News::Exit { pid }]);
            retire_emitted(&mut known);
            let process = ProcessKey { pid, generation: 1 };
            known.meet(process);
            known.processes.normalise_user(process, &[0x7000_0000], &mut Vec::new());
            changes(&mut known, [News::Wanted { pid, exec_id: 1, time: 1 }]);
        }
        retire_emitted(&mut known);
        assert_eq!(left(&known), (vec![living], 1, 0));
    }

    #[test]
    fn untracked_processes_that_ended_leave_nothing_behind() {
        let mut known = KnownProcesses::default();
        known.keep_untracked();
        for pid in u32::MAX - 1_000..u32::MAX {
            changes(&mut known, [exec(pid), mapping(pid), News::Exit { pid }]);
            retire_emitted(&mut known);
            known.meet(ProcessKey { pid, generation: 1 });
        }
        retire_emitted(&mut known);
        assert_eq!(left(&known), (vec![], 0, 0));
    }

    #[test]
    fn process_whose_end_was_not_reported_is_found() {
        let mut known = KnownProcesses::default();
        let (living, child) = (std::process::id(), u32::MAX - 1);
        known.process(living, 0);
        // Two rings that were not read at the same time.
        changes(&mut known, [News::Exit { pid: child }, News::Fork { pid: child, parent_pid: living }]);
        retire_emitted(&mut known);
        assert_eq!(left(&known).0, [living, child]);
        known.search_ended(Instant::now() + SEARCH_EVERY);
        retire_emitted(&mut known);
        assert_eq!(left(&known), (vec![living], 1, 0));
    }

    /// Some time later, when all stacks are emitted.
    fn retire_emitted(known: &mut KnownProcesses) {
        known.emitted_stacks_until(Instant::now());
        known.retire(Instant::now() + RETIRE_AFTER);
    }

    /// The known processes, how many of them have images, and how many are to be retired.
    fn left(known: &KnownProcesses) -> (Vec<u32>, usize, usize) {
        let mut pids: Vec<u32> = known.generations.keys().copied().collect();
        pids.sort_unstable();
        (pids, known.processes.len(), known.retiring.len())
    }

    #[test]
    fn what_the_walker_wants_is_looked_at() {
        let mut known = KnownProcesses::default();
        let own = std::process::id();
        known.apply(&mut [News::Wanted { pid: own, exec_id: 4, time: 0 }].into());
        let (changed, _) = known.take_changes();
        assert_eq!((changed[0].pid, changed[0].exec_id), (own, 4));
        assert!(!changed[0].ranges.is_empty(), "the test itself has code");
    }

    #[test]
    fn execs_that_are_counted_twice_are_corrected_by_the_walker() {
        let mut known = KnownProcesses::default();
        let pid = u32::MAX - 1;
        known.process(pid, 4);
        let exec = |time| News::Exec { pid, time };
        // Two rings of one CPU that came online report it both.
        let news = [exec(10), exec(11), mapping(pid), News::Wanted { pid, exec_id: 5, time: 12 }];
        assert_eq!(changes(&mut known, news), [(pid, 5, 1)]);
        let mut frames = Vec::new();
        known.normalise_user(ProcessKey { pid, generation: 5 }, &[0x7000_0010], &mut frames);
        assert!(frames[0].module.is_some(), "what is mapped now is of the present program: {frames:?}");
        let next = [exec(20), mapping(pid), News::Wanted { pid, exec_id: 5, time: 19 }];
        assert_eq!(changes(&mut known, next), [(pid, 6, 1)], "it was requested before the exec");
    }

    #[test]
    fn former_program_of_a_process_has_none_of_its_memory() {
        let mut known = KnownProcesses::default();
        let own = std::process::id();
        known.process(own, 4);
        known.meet(ProcessKey { pid: own, generation: 3 });
        let (changed, _) = known.take_changes();
        assert_eq!(changed[0].exec_id, 4);
        let mut frames = Vec::new();
        let here = former_program_of_a_process_has_none_of_its_memory as fn() as usize as u64;
        known.normalise_user(ProcessKey { pid: own, generation: 3 }, &[here], &mut frames);
        known.normalise_user(ProcessKey { pid: own, generation: 4 }, &[here], &mut frames);
        assert_eq!(frames.iter().map(|frame| frame.module.is_some()).collect::<Vec<_>>(), [false, true]);
    }

    #[test]
    fn mappings_that_no_event_reported_change_the_list() {
        let mut known = KnownProcesses::default();
        let own = std::process::id();
        known.process(own, 4);
        // As if the first look had come in the middle of an exec.
        known.processes.unmap(own, 0, u64::MAX);
        known.take_changes();
        let here = mappings_that_no_event_reported_change_the_list as fn() as usize as u64;
        known.normalise_user(ProcessKey { pid: own, generation: 4 }, &[here], &mut Vec::new());
        assert!(known.take_changes().0.iter().any(|code| code.pid == own && !code.ranges.is_empty()));
        known.processes.unmap(own, 0, u64::MAX);
        known.read_all_again();
        assert!(known.take_changes().0.iter().any(|code| code.pid == own && !code.ranges.is_empty()));
    }
}
