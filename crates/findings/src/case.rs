// SPDX-License-Identifier: Apache-2.0
//! One stall as the rules read it: its facts, without the frames of its stacks.

use std::collections::{BTreeMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use wallprof_analysis::interest::Class;
use wallprof_analysis::tally::Tally;
use wallprof_meaning::site::Site;
use wallprof_meaning::waits::{BARRIER, DISK, LINUX, SLEEP, TEAM, TURN, is_of_a_result};
use wallprof_model::event::{Access, Peer};
use wallprof_model::{Meaning, MonoNs, Reason, StallReason, ThreadKey};

use super::callers::Callers;
use super::slow_fault::FaultWait;

/// The kernel's priority of threads with a deadline.
const DEADLINE: i16 = -1;

/// One interval off the CPU, or one page fault.
#[derive(Clone, Debug)]
pub struct Case {
    pub id: u64,
    pub thread: ThreadKey,
    pub pid: u32,
    /// The thread's name at the time.
    pub comm: Arc<str>,
    pub reason: StallReason,
    pub meaning: Option<Arc<Meaning>>,
    /// The first of the time slices of its wait; `None` for a wait in one piece.
    pub wait: Option<u64>,
    /// Whether it is a wait of several slices, as one.
    pub has_slices: bool,
    pub voluntary: bool,
    pub open: bool,
    pub start: MonoNs,
    pub end: MonoNs,
    pub runnable_ns: u64,
    /// The part of it at the end: of a wait in slices, that of the last one.
    pub last_runnable_ns: u64,
    /// Whether it gave its CPU to others itself.
    pub yielded: bool,
    /// The timeout that the thread had asked for.
    pub asked_ns: Option<u64>,
    /// The time after that timeout, where the thread overslept it.
    pub overslept_ns: Option<u64>,
    /// The CPU it came back on, or waits for.
    pub cpu: Option<u32>,
    /// The kernel's number: a lower one goes first.
    pub priority: Option<i16>,
    pub syscall: Option<Arc<str>>,
    pub site: Option<Arc<Site>>,
    /// `None`: not known, or nothing of the program.
    pub callers: Option<Arc<Callers>>,
    /// Whether it waited inside the allocator.
    pub in_allocator: bool,
    pub waker: Option<Woken>,
    pub lock: Option<Held>,
    /// What the owner of the lock ran at one time of the wait, if that is known.
    pub owner_callers: Option<Arc<Callers>>,
    /// The threads that had the CPU meanwhile, most time first; the first few.
    pub ran_instead: Box<[(Party, u64)]>,
    /// For how long threads had the CPU meanwhile, those that are not listed, too.
    pub ran_ns: u64,
    /// The part of it in which threads had it that are neither recorded nor of the waiting thread's process.
    pub outside_ns: u64,
    /// `None`: an interval off the CPU.
    pub fault: Option<PageFault>,
    pub first_call: Option<Arc<FirstCall>>,
    /// The file that a wait for a disk was for.
    pub file: Option<Arc<str>>,
    /// The other end of the socket or pipe that it waited on.
    pub peer: Option<Box<Peer>>,
    /// Where in the kernel it waited.
    pub kernel_place: Option<Arc<str>>,
}

/// A page fault's page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageFault {
    pub major: bool,
    pub access: Option<Access>,
    /// `None`: memory without a file.
    pub file: Option<Arc<str>>,
    /// In the file, bytes.
    pub offset: Option<u64>,
    /// What it waited for, if it is a minor one.
    pub wait: Option<FaultWait>,
}

/// A function that the dynamic linker was binding, because it was called for the first time.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FirstCall {
    pub symbol: Option<Arc<str>>,
    /// The file that has it, without its folders.
    pub library: Option<Arc<str>>,
    /// The function that called it.
    pub site: Option<Arc<Site>>,
}

/// The meanings of waits of workers for their next work.
const WITHOUT_WORK: [&str; 8] = ["work", "tasks", "pool", "items", "jobs", "messages", "connections", TURN];

/// Names of the kernel's threads that do what interrupts left begin so.
const SOFTIRQ: &str = "ksoftirqd/";
const WORKER: &str = "kworker/";

/// Another thread that is involved in a stall.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Party {
    /// `None`: a thread that is not recorded.
    pub key: Option<ThreadKey>,
    pub pid: u32,
    pub tid: u32,
    pub comm: Arc<str>,
}

impl Party {
    /// Whatever it was called at the time.
    pub fn is_same_thread(&self, other: &Party) -> bool {
        (self.key, self.pid, self.tid) == (other.key, other.pid, other.tid)
    }

    /// Its name without the number that threads of a pool have.
    pub fn kind(&self) -> String {
        without_number(&self.comm)
    }

    /// Whether it is one of the kernel's threads that do what interrupts left: as one that ended a wait, it only passed
    /// on what came from elsewhere.
    pub fn only_passes_on(&self, reason: Reason) -> bool {
        self.comm.starts_with(SOFTIRQ) || reason == Reason::Network && self.comm.starts_with(WORKER)
    }
}

/// The waker of a wait, and the place in its code.
#[derive(Clone, Debug)]
pub struct Woken {
    /// `None`: an interrupt.
    pub by: Option<Party>,
    /// What its process called itself at the time.
    pub title: Option<Arc<str>>,
    pub site: Option<Arc<Site>>,
    /// Whether that was an answer of a process that serves a file system (FUSE).
    pub serves_files: bool,
    /// Whether it had copied the memory map of its process, for a fork.
    pub has_forked: bool,
}

/// A lock that a thread waited for.
#[derive(Clone, Debug)]
pub struct Held {
    /// 0: not known.
    pub address: u64,
    pub owner: Option<Party>,
    /// What the owner's process called itself at the time.
    pub title: Option<Arc<str>>,
}

impl Case {
    pub fn duration_ns(&self) -> u64 {
        self.end.0.saturating_sub(self.start.0)
    }

    /// How late the thread returned.
    pub fn late_ns(&self) -> u64 {
        self.overslept_ns.unwrap_or(self.duration_ns())
    }

    /// For how long it was ready to run and waited for a CPU, ns: the end of the interval.
    pub fn cpu_wait_ns(&self) -> u64 {
        if self.reason == StallReason::Preempted { self.duration_ns() } else { self.runnable_ns }
    }

    /// When it was woken: the wait for a CPU comes after that.
    pub fn woken(&self) -> MonoNs {
        MonoNs(self.end.0.saturating_sub(self.last_runnable_ns).max(self.start.0))
    }

    /// From when on it kept its thread from what the thread would have done with a CPU: all of a wait that counts
    /// as one for a CPU.
    pub fn queued_from(&self) -> MonoNs {
        match self.reason {
            StallReason::Preempted | StallReason::Runnable => self.start,
            _ => self.woken(),
        }
    }

    /// The duration without the wait for a CPU.
    pub fn without_run_queue_ns(&self) -> u64 {
        self.duration_ns().saturating_sub(self.runnable_ns)
    }

    /// Whether its timeout ended it.
    pub fn timed_out(&self) -> bool {
        self.asked_ns.is_some_and(|asked_ns| self.without_run_queue_ns() >= asked_ns)
    }

    /// Whether it made its thread late: an involuntary stall that is no wait for data of another thread or
    /// program.
    pub fn is_late(&self) -> bool {
        Class::of_stall(self.reason, self.voluntary, self.meaning.as_deref()) == Class::Late
            || self.is_for_a_lock()
            || self.is_at_a_barrier()
            || !self.voluntary && self.kernel_said().is_some()
    }

    /// The function that it is in: the innermost one of its place.
    pub fn function(&self) -> Option<&Arc<str>> {
        self.site.as_ref()?.functions.first()
    }

    /// Whether it is a wait for a lock: by the kernel's word, or by what it means. A wait for a disk is one
    /// whatever the software calls it. A wait that the kernel's functions name is for neither.
    pub fn is_for_a_lock(&self) -> bool {
        let StallReason::Blocked(reason) = self.reason else { return false };
        let means_one = self.meaning.as_ref().is_some_and(|meaning| !meaning.idle);
        let is_other = self.is_for_a_disk() || self.polls_the_other_end();
        let is_one = reason == Reason::Lock || means_one && !is_other;
        !self.voluntary && self.kernel_said().is_none() && is_one && !self.is_at_a_barrier()
    }

    /// Whether it polls one connection until the other end has answered, or reads: what a client does that wants a
    /// timeout.
    pub fn polls_the_other_end(&self) -> bool {
        self.meaning.as_ref().is_some_and(|meaning| meaning.is_for_the_other_end())
    }

    /// Whether it is a wait for other threads that do a part of the same work.
    pub fn is_at_a_barrier(&self) -> bool {
        let is_one = |said| [BARRIER, TEAM].contains(&said);
        !self.voluntary && matches!(self.reason, StallReason::Blocked(_)) && self.said().is_some_and(is_one)
    }

    /// Whether it is a wait for what another thread brings about for this one: the value of a future.
    pub fn is_for_a_result(&self) -> bool {
        !self.voluntary && self.meaning.as_deref().is_some_and(is_for_a_result)
    }

    /// Whether it is the wait of a worker for its next work.
    pub fn is_without_work(&self) -> bool {
        let is_one = |meaning: &Meaning| meaning.idle && WITHOUT_WORK.contains(&&*meaning.name);
        self.meaning.as_deref().is_some_and(is_one)
    }

    /// Whether it slept for as long as it had asked to, in the middle of what it does: by the kernel's word, or by what
    /// the wait means. A thread of PostgreSQL or Java sleeps in a wait that could end earlier.
    pub fn is_asleep(&self) -> bool {
        let is_sleep = self.reason == StallReason::Blocked(Reason::Sleep);
        let by_meaning = |meaning: &Arc<Meaning>| meaning.software.is_some() && &*meaning.name == SLEEP;
        self.meaning.as_ref().map_or(is_sleep, by_meaning)
    }

    /// Whether its thread has a deadline (SCHED_DEADLINE), and with it a runtime for each period.
    pub fn has_deadline(&self) -> bool {
        self.priority == Some(DEADLINE)
    }

    /// Whether it is a wait for a disk: by the kernel's word, or because disks end such waits.
    pub fn is_for_a_disk(&self) -> bool {
        let means_one = |meaning: &Arc<Meaning>| meaning.software.is_none() && meaning.name == DISK;
        let is_one =
            self.reason == StallReason::Blocked(Reason::Disk) || self.meaning.as_ref().is_some_and(means_one);
        is_one && self.kernel_said().is_none()
    }

    /// What the kernel's own functions call it: an RCU grace period, a scanner. `None` for idle waits.
    pub fn kernel_said(&self) -> Option<&str> {
        let StallReason::Blocked(_) = self.reason else { return None };
        let said = self.meaning.as_ref().filter(|said| said.software.as_deref() == Some(LINUX) && !said.idle);
        said.map(|meaning| &*meaning.name)
    }

    /// Whether a process that serves a file system (FUSE) read what it waited for, which looks like a wait for a disk:
    /// pages are read without a function of FUSE in the waiting thread's stack.
    pub fn is_read_by_a_process(&self) -> bool {
        let is_for_pages = self.is_major() || self.reason == StallReason::Blocked(Reason::Disk);
        is_for_pages && self.waker.as_ref().is_some_and(|waker| waker.serves_files)
    }

    /// The file that its call or its page fault was for.
    pub fn read_file(&self) -> Option<&Arc<str>> {
        self.file.as_ref().or_else(|| self.fault.as_ref()?.file.as_ref())
    }

    /// Whether it is a page fault that read a page in.
    pub fn is_major(&self) -> bool {
        self.fault.as_ref().is_some_and(|fault| fault.major)
    }

    /// What its software calls it, where a rule says so.
    pub fn said(&self) -> Option<&str> {
        self.meaning.as_ref().filter(|meaning| meaning.software.is_some()).map(|meaning| &*meaning.name)
    }

    /// The part of `from..to` that lies in this interval, ns.
    pub fn overlap_ns(&self, from: MonoNs, to: MonoNs) -> u64 {
        self.end.min(to).0.saturating_sub(self.start.max(from).0)
    }

    /// The thread it waited for: the owner of the lock, else the thread that ended the wait.
    pub fn waited_for(&self) -> Option<&Party> {
        let owner = self.lock.as_ref().and_then(|lock| lock.owner.as_ref());
        owner.or_else(|| self.waker.as_ref()?.by.as_ref())
    }

    /// What the process of [`Case::waited_for`] called itself at the time.
    pub fn title_waited_for(&self) -> Option<&Arc<str>> {
        match self.lock.as_ref().filter(|lock| lock.owner.is_some()) {
            Some(lock) => lock.title.as_ref(),
            None => self.waker.as_ref()?.title.as_ref(),
        }
    }

    /// Where a thread ended the wait. An interrupt releases nothing: it means that a timeout ended.
    pub fn release(&self) -> Option<&Arc<Site>> {
        let waker = self.waker.as_ref()?;
        waker.by.as_ref().and(waker.site.as_ref())
    }

    /// The recorded thread that ended it.
    pub fn waker_key(&self) -> Option<ThreadKey> {
        self.waker.as_ref()?.by.as_ref()?.key
    }
}

/// Whether a wait with this meaning is for a result.
pub(super) fn is_for_a_result(meaning: &Meaning) -> bool {
    !meaning.idle && is_of_a_result(meaning)
}

/// Cases by key, in the order of the keys.
pub(super) fn grouped<'e, K: Ord>(
    cases: impl IntoIterator<Item = &'e Case>,
    key: impl Fn(&Case) -> K,
) -> BTreeMap<K, Vec<&'e Case>> {
    let mut groups: BTreeMap<K, Vec<&Case>> = BTreeMap::new();
    for case in cases {
        groups.entry(key(case)).or_default().push(case);
    }
    groups
}

/// A thread's name without the number that threads of a pool have.
pub(super) fn without_number(comm: &str) -> String {
    comm.chars().filter(|letter| !letter.is_ascii_digit()).collect()
}

/// Groups by function. Cases whose stacks do not reach a function of the program are with the longest waits of the others
/// where threads of the same name have these.
pub(super) fn by_function(cases: Vec<&Case>) -> Vec<Vec<&Case>> {
    let function = |case: &Case| case.function().cloned();
    let names_the_program = |case: &&Case| case.site.as_ref().is_some_and(|site| site.names_the_program());
    let (known, cut): (Vec<&Case>, Vec<&Case>) = cases.into_iter().partition(names_the_program);
    let mut groups: Vec<Vec<&Case>> = grouped(known, function).into_values().collect();
    let sum_ns = |group: &Vec<&Case>| group.iter().map(|case| case.duration_ns()).sum::<u64>();
    let mut rest = cut;
    if let Some(longest) = groups.iter_mut().max_by_key(|group| sum_ns(group)) {
        let names: HashSet<String> = longest.iter().map(|case| without_number(&case.comm)).collect();
        let (same, other) = rest.into_iter().partition(|case| names.contains(&without_number(&case.comm)));
        longest.extend::<Vec<&Case>>(same);
        rest = other;
    }
    groups.extend(grouped(rest, function).into_values());
    groups
}

/// Groups of single processes, with those of one program and `key` together: `is_problem` groups of several
/// processes become one, the groups of one process stay apart.
pub(super) fn across_processes<'e, K: Ord>(
    groups: impl IntoIterator<Item = Vec<&'e Case>>,
    key: impl Fn(&[&Case]) -> K,
    is_problem: impl Fn(&[&'e Case]) -> bool,
) -> Vec<Vec<&'e Case>> {
    let mut alike: BTreeMap<K, Vec<Vec<&Case>>> = BTreeMap::new();
    for group in groups.into_iter().filter(|group| is_problem(group)) {
        alike.entry(key(&group)).or_default().push(group);
    }
    let pid = |group: &Vec<&Case>| group.first().map(|case| case.pid);
    let merged = alike.into_values().flat_map(|groups| {
        let of_one_process = groups.iter().all(|group| pid(group) == pid(&groups[0]));
        if of_one_process { groups } else { vec![groups.concat()] }
    });
    merged.collect()
}

/// The value that most of the cases' lateness has; `None` where it is known of none.
pub(super) fn mostly<T: Ord + Hash + Clone>(cases: &[&Case], of: impl Fn(&Case) -> Option<T>) -> Option<T> {
    let mut tally = Tally::default();
    for case in cases {
        if let Some(value) = of(case) {
            tally.add(value, case.late_ns());
        }
    }
    tally.top().map(|(value, _)| value.clone())
}
