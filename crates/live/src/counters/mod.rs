// SPDX-License-Identifier: Apache-2.0
//! Counters of the machine and of the recorded processes, about ten times a second.
//!
//! Owns the schedule of readings, and that a value is emitted only when it changed. The cost is bounded: a
//! reading that takes long comes less often.

mod accepts;
mod activity;
mod disk_limits;
mod folder;
mod groups;
mod machine;
mod memory_group;
mod namespaces;
mod netlink;
mod pace;
mod process;
mod sockets;
mod stock;
mod switches;
mod text;
mod upstreams;
mod waited;

pub(crate) use folder::Folder;
pub(crate) use netlink::SocketList;

use std::collections::{BTreeMap, HashMap, HashSet};

use wallprof_model::{Counter, CounterKey, CounterKind, CounterUnit, Event, Loss, MonoNs, ThreadKey};
use wallprof_probe::clock::{self, ProcessClock};

use self::machine::Machine;
use self::namespaces::{NamespaceId, Namespaces};
use self::pace::Pace;
use self::process::Process;
use self::upstreams::Upstreams;
use crate::descriptors;
use crate::kernel_side::KernelSide;

/// Processes whose counters are read. Further ones are counted as a loss.
const MAX_PROCESSES: usize = 16;

/// A process whose counters could be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub pid: u32,
    /// Its first thread where that is recorded, else another one.
    pub thread: ThreadKey,
    /// Its CPU time so far. Of too many processes the busiest are read.
    pub on_cpu_ns: u64,
}

/// Everything that is read, and the values that were emitted last.
pub struct Counters {
    machine: Machine,
    processes: BTreeMap<u32, Process>,
    /// Whether processes have clocks that show which of them ran.
    have_clocks: bool,
    namespaces: Namespaces,
    /// The namespaces of processes with sockets, and one process in each.
    homes: BTreeMap<NamespaceId, u32>,
    /// The sockets of all processes.
    inodes: HashSet<u32>,
    upstreams: Upstreams,
    left_out: u64,
    book: Book,
    pace: Pace,
}

/// One value as read.
#[derive(Clone, Copy, Debug)]
pub struct Reading<'a> {
    pub name: &'a str,
    pub kind: CounterKind,
    pub unit: CounterUnit,
    pub value: u64,
}

/// Values as they were emitted.
#[derive(Default)]
struct Book {
    /// By the thread that the row belongs to, and by name.
    entries: HashMap<Option<ThreadKey>, HashMap<String, Entry>>,
    defined: u32,
}

struct Entry {
    key: CounterKey,
    value: u64,
    emitted: MonoNs,
    read: MonoNs,
}

impl Counters {
    pub fn new() -> Self {
        Counters {
            machine: Machine::open(),
            processes: BTreeMap::new(),
            have_clocks: activity::clocks_use_pids_of_proc(),
            namespaces: Namespaces::default(),
            homes: BTreeMap::new(),
            inodes: HashSet::new(),
            upstreams: Upstreams::default(),
            left_out: 0,
            book: Book::default(),
            pace: Pace::default(),
        }
    }

    /// Sets the processes that are recorded and alive. Once a second is enough.
    pub fn follow(&mut self, mut candidates: Vec<Candidate>, emit: &mut dyn FnMut(Event)) {
        let before = self.processes.len();
        let lives = |pid: &u32| candidates.iter().any(|candidate| candidate.pid == *pid);
        let book = &mut self.book;
        self.processes.retain(|pid, process| {
            let stays = lives(pid) && process.is_alive();
            if !stays {
                book.entries.remove(&Some(process.thread));
            }
            stays
        });
        if self.processes.len() < before {
            self.gather_sockets();
        }
        candidates.retain(|candidate| !self.processes.contains_key(&candidate.pid));
        candidates.sort_by_key(|candidate| (std::cmp::Reverse(candidate.on_cpu_ns), candidate.pid));
        let mut left_out = 0;
        for candidate in candidates {
            if self.processes.len() >= MAX_PROCESSES || descriptors::left() < descriptors::RESERVED {
                left_out += 1;
            } else if let Some(process) = self.open(candidate) {
                self.processes.insert(candidate.pid, process);
            }
        }
        if left_out > self.left_out {
            emit(Event::loss(Loss::CountersProcessesLeftOut, left_out - self.left_out));
            self.left_out = left_out;
        }
    }

    fn open(&self, Candidate { pid, thread, .. }: Candidate) -> Option<Process> {
        let clock = if self.have_clocks { ProcessClock::of(pid) } else { None };
        Process::open(pid, thread, clock)
    }

    /// Reads when a reading is due, and emits the values that changed.
    pub fn read_when_due(&mut self, kernel: &impl KernelSide, emit: &mut dyn FnMut(Event)) {
        let at = clock::mono_now();
        self.look_at_upstreams(at, emit);
        if !self.pace.is_due(at) {
            return;
        }
        let began = clock::thread_cpu_ns();
        let book = &mut self.book;
        let queues = kernel.run_queues();
        self.machine.read(&queues, &mut |reading| book.enter(None, at, reading, emit));
        self.look(at);
        let (book, namespaces) = (&mut self.book, &self.namespaces);
        for process in self.processes.values_mut() {
            let thread = Some(process.thread);
            process.read(at, namespaces, &mut |at, reading| book.enter(thread, at, reading, emit));
        }
        self.pace.took(at, clock::thread_cpu_ns().saturating_sub(began));
    }

    /// Looks which processes run, and at the sockets of all.
    fn look(&mut self, at: MonoNs) {
        // `count` looks at each of them.
        let with_news = self.processes.values_mut().filter_map(|process| process.look(at).then_some(()));
        if with_news.count() > 0 {
            self.gather_sockets();
            self.namespaces.expect_changes();
        }
        self.namespaces.look(at, &self.homes, &self.inodes);
    }

    /// Has a schedule of its own: a request that is answered between two looks is not seen.
    fn look_at_upstreams(&mut self, at: MonoNs, emit: &mut dyn FnMut(Event)) {
        let Counters { upstreams, processes, homes, book, .. } = self;
        let runs = processes.values().any(Process::may_run);
        if upstreams.look(at, homes, &|| processes.keys().copied().collect(), runs) {
            for (&pid, process) in processes.iter() {
                let thread = Some(process.thread);
                upstreams.pass(pid, at, &mut |at, reading| book.enter(thread, at, reading, emit));
            }
        }
    }

    fn gather_sockets(&mut self) {
        let sockets = || self.processes.iter().map(|(pid, process)| (*pid, &process.sockets));
        self.inodes = sockets().flat_map(|(_, sockets)| sockets.inodes()).collect();
        self.homes = sockets().filter_map(|(pid, sockets)| Some((sockets.home()?, pid))).collect();
    }
}

impl Book {
    fn enter(
        &mut self,
        thread: Option<ThreadKey>,
        at: MonoNs,
        reading: Reading<'_>,
        emit: &mut dyn FnMut(Event),
    ) {
        let mut emit_value = |key, at, value: u64| emit(Event::CounterValue { key, at, value: value as f64 });
        let entries = self.entries.entry(thread).or_default();
        if let Some(entry) = entries.get_mut(reading.name) {
            if entry.value != reading.value {
                // The old value held until here.
                if entry.read > entry.emitted {
                    emit_value(entry.key, entry.read, entry.value);
                }
                emit_value(entry.key, at, reading.value);
                (entry.value, entry.emitted) = (reading.value, at);
            }
            entry.read = at;
            return;
        }
        let key = CounterKey(self.defined);
        self.defined += 1;
        let name = reading.name.to_owned();
        entries.insert(name.clone(), Entry { key, value: reading.value, emitted: at, read: at });
        let counter = Counter { name, thread, kind: reading.kind, unit: reading.unit };
        emit(Event::Counter { key, counter });
        emit(Event::CounterValue { key, at, value: reading.value as f64 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(book: &mut Book, at: u64, value: u64) -> Vec<(u64, f64)> {
        let mut emitted = Vec::new();
        let reading =
            Reading { name: "memory.free", kind: CounterKind::Level, unit: CounterUnit::Bytes, value };
        book.enter(None, MonoNs(at), reading, &mut |event| {
            if let Event::CounterValue { at, value, .. } = event {
                emitted.push((at.0, value));
            }
        });
        emitted
    }

    #[test]
    fn unchanged_value_is_emitted_once() {
        let mut book = Book::default();
        assert_eq!(enter(&mut book, 1, 7), [(1, 7.0)]);
        assert_eq!(enter(&mut book, 2, 7), []);
        assert_eq!(enter(&mut book, 3, 7), []);
        assert_eq!(
            enter(&mut book, 4, 9),
            [(3, 7.0), (4, 9.0)],
            "the old value up to the last reading, and the new one"
        );
        assert_eq!(enter(&mut book, 5, 8), [(5, 8.0)]);
    }

    #[test]
    fn processes_beyond_the_limit_are_counted() {
        let mut counters = Counters::new();
        let own = |busy| Candidate { pid: std::process::id(), thread: ThreadKey(1), on_cpu_ns: busy };
        let ended = Candidate { pid: u32::MAX, thread: ThreadKey(2), on_cpu_ns: u64::MAX };
        let mut losses = Vec::new();
        counters.follow(vec![own(5), ended], &mut |event| losses.push(event));
        assert_eq!(counters.processes.keys().copied().collect::<Vec<_>>(), [std::process::id()]);
        assert!(losses.is_empty(), "an ended process is not left out");
        counters.follow(vec![], &mut |_| {});
        assert!(counters.processes.is_empty());
    }
}
