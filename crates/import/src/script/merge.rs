// SPDX-License-Identifier: Apache-2.0
//! Merges pieces of blocks and files: those of each thread go through one replay in the order of time.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use wallprof_intel_pt::replay::{PathLimit, Recorder, Stretch, ThreadCalls, ThreadReplay};
use wallprof_intel_pt::{Departure, Event, EventKind, FunctionId, Sink, Switch, ThreadId, TimeConv};

use super::names::Names;
use super::piece::{Counts, CpuUse, FOLLOWED, Identity, Parsed, Piece, SLACK, TextThreadId, TraceState};
use crate::by_time::ByTime;

/// The limit of threads. `pid_max` is 2^22, and no trace has as many.
const MOST_THREADS: usize = 1 << 16;

/// A thread with all its calls.
#[derive(Debug)]
pub(super) struct Thread {
    pub id: TextThreadId,
    pub identity: Identity,
    pub calls: ThreadCalls,
}

/// Takes the blocks of each file in the order of the file.
#[derive(Default)]
pub(super) struct Merger<'a> {
    /// The names of functions, if stubs are to be recognised.
    names: Option<&'a Names>,
    threads: BTreeMap<TextThreadId, Merging>,
    limit: PathLimit,
    /// The thread last seen on each CPU.
    cpus: HashMap<u32, TextThreadId>,
    pending: ByTime<Item>,
    pub counts: Counts,
    /// Pieces of threads beyond the limit.
    pub refused: u64,
}

struct Merging {
    replay: ThreadReplay,
    identity: Identity,
    trace_state: TraceState,
    is_away: bool,
    cpu: Option<u32>,
    last: u64,
}

/// An item of a thread, in the order of time.
enum Item {
    /// A piece of a thread.
    Piece(Box<Piece>),
    /// Another thread is on the CPU.
    Gone { id: TextThreadId, cpu: u32 },
    /// The activity of all threads is unknown. The first `seen` ones in `block` report that themselves.
    Lost { block: Arc<HashMap<TextThreadId, usize>>, seen: usize },
}

impl<'a> Merger<'a> {
    pub(super) fn new(names: &'a Names) -> Self {
        Merger { names: Some(names), ..Merger::default() }
    }

    /// Adds a block. No later block has a time before `frontier`.
    pub(super) fn add(&mut self, parsed: Parsed, frontier: u64) {
        let Parsed { pieces, cpu_uses, identities, lost_by_all, counts, .. } = parsed;
        self.counts.add(&counts);
        let numbers = identities.iter().enumerate().map(|(number, (id, _))| (*id, number));
        let block: Arc<HashMap<TextThreadId, usize>> = Arc::new(numbers.collect());
        self.leave_cpus(&cpu_uses, &block);
        for (ns, seen) in lost_by_all {
            self.pending.push(ns, Item::Lost { block: Arc::clone(&block), seen });
        }
        for piece in pieces {
            self.pending.push(piece.from, Item::Piece(Box::new(piece)));
        }
        self.drain(frontier);
        for (id, identity) in identities {
            if let Some(thread) = self.threads.get_mut(&id) {
                thread.name(identity);
            }
        }
    }

    /// The thread that was on a CPU at the end of the previous block has left it, if another thread starts
    /// there.
    fn leave_cpus(&mut self, cpu_uses: &[CpuUse], block: &HashMap<TextThreadId, usize>) {
        for leave_cpus in cpu_uses {
            let before = self.cpus.insert(leave_cpus.cpu, leave_cpus.last);
            let Some(id) = before.filter(|before| *before != leave_cpus.first) else { continue };
            if block.get(&id).is_none_or(|&number| number >= leave_cpus.seen) {
                self.pending.push(leave_cpus.from, Item::Gone { id, cpu: leave_cpus.cpu });
            }
        }
    }

    fn drain(&mut self, frontier: u64) {
        while let Some((ns, item)) = self.pending.pop_if(|ns| ns <= frontier) {
            match item {
                Item::Piece(piece) => self.piece(&piece),
                Item::Gone { id, cpu } => self.gone(id, cpu, ns),
                Item::Lost { block, seen } => {
                    let is_other = |id: &TextThreadId| block.get(id).is_none_or(|&number| number >= seen);
                    let others = self.threads.iter_mut().filter(|(id, _)| is_other(id));
                    others.for_each(|(_, thread)| thread.lose(ns));
                }
            }
        }
    }

    fn piece(&mut self, piece: &Piece) {
        if !self.threads.contains_key(&piece.id) && self.threads.len() >= MOST_THREADS {
            self.refused += 1;
            return;
        }
        let limit = &self.limit;
        let thread = self.threads.entry(piece.id).or_insert_with(|| Merging::new(limit.clone()));
        let names = self.names;
        thread.add(piece, &|function| names.is_some_and(|names| names.is_stub(function)));
    }

    fn gone(&mut self, id: TextThreadId, cpu: u32, ns: u64) {
        if let Some(thread) = self.threads.get_mut(&id)
            && thread.cpu == Some(cpu)
            && thread.trace_state == TraceState::Running
            && !thread.is_away
        {
            thread.depart(ns);
        }
    }

    /// The limit that all threads' calls share.
    pub(super) fn limit(&self) -> PathLimit {
        self.limit.clone()
    }

    /// The number of CPUs in the texts.
    pub(super) fn cpus(&self) -> u32 {
        self.cpus.len() as u32
    }

    /// All threads in the texts.
    pub(super) fn finish(mut self) -> Vec<Thread> {
        self.drain(u64::MAX);
        let threads = self.threads.into_iter();
        threads
            .map(|(id, thread)| {
                let calls = thread.replay.finish(thread.last);
                Thread { id, identity: thread.identity, calls }
            })
            .collect()
    }
}

impl Merging {
    fn new(limit: PathLimit) -> Merging {
        Merging {
            replay: ThreadReplay::within(limit, FOLLOWED, TimeConv::NANOSECONDS).with_slack(SLACK),
            identity: Identity::default(),
            // Before its first line a thread is not traced.
            trace_state: TraceState::Off,
            is_away: false,
            cpu: None,
            last: 0,
        }
    }

    fn name(&mut self, identity: Identity) {
        self.identity.pid = identity.pid.or(self.identity.pid);
        if !identity.comm.is_empty() {
            self.identity.comm = identity.comm;
        }
    }

    fn add(&mut self, piece: &Piece, is_stub: &dyn Fn(FunctionId) -> bool) {
        if let Some(first_place) = piece.first_place {
            self.resume(first_place, is_stub);
        }
        piece.stretches.iter().for_each(|stretch| self.replay.add_with_stubs(stretch, is_stub));
        self.trace_state = piece.trace_state.unwrap_or(self.trace_state);
        self.is_away = piece.is_away;
        self.cpu = piece.cpu;
        self.last = self.last.max(piece.to);
    }

    /// A thread at an unknown place continues at the place of its first line.
    fn resume(&mut self, first_place: Event, is_stub: &dyn Fn(FunctionId) -> bool) {
        let kind = match self.trace_state {
            TraceState::Running => return,
            TraceState::Off => EventKind::Start,
            TraceState::Lost => EventKind::Resume,
        };
        self.replay_event(&Event { kind, ..first_place }, is_stub);
    }

    fn lose(&mut self, ns: u64) {
        if self.trace_state == TraceState::Running && !self.is_away {
            self.replay.lose(ns);
            self.trace_state = TraceState::Lost;
            self.last = self.last.max(ns);
        }
    }

    fn depart(&mut self, ns: u64) {
        let departure = Departure::Unknown;
        let switch = Switch { ticks: ns, thread: ThreadId::NONE, departure, ..Switch::default() };
        let function = FunctionId::UNKNOWN;
        let kind = EventKind::Switch(switch);
        self.replay_event(&Event { ticks: ns, from: 0, to: 0, function, at_entry: false, kind }, &|_| false);
        self.is_away = true;
        self.last = self.last.max(ns);
    }

    /// Replays one event by itself.
    fn replay_event(&mut self, event: &Event, is_stub: &dyn Fn(FunctionId) -> bool) {
        stretches_of(event).iter().for_each(|stretch| self.replay.add_with_stubs(stretch, is_stub));
    }
}

fn stretches_of(event: &Event) -> Vec<Stretch> {
    let mut recorder = Recorder::new(TimeConv::NANOSECONDS).with_slack(SLACK);
    recorder.join(event.ticks, Switch { ticks: event.ticks, thread: FOLLOWED, ..Switch::default() });
    recorder.event(event);
    recorder.finish(event.ticks)
}
