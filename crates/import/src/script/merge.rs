//! Pieces of blocks and files, put together: each thread's in the order of time, through one replay.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use wallprof_intel_pt::replay::{PathRoom, Recorder, Stretch, ThreadCalls, ThreadReplay};
use wallprof_intel_pt::{Departure, Event, EventKind, FunctionId, Sink, Switch, ThreadId, TimeConv};

use super::names::Names;
use super::piece::{Counts, FOLLOWED, Identity, Parsed, Piece, SLACK, Shift, Standing, Who};
use crate::by_time::ByTime;

/// Threads that are kept: `pid_max` is 2^22, and no trace has as many.
const MOST_THREADS: usize = 1 << 16;

/// A thread with all its calls.
#[derive(Debug)]
pub(super) struct Thread {
    pub who: Who,
    pub identity: Identity,
    pub calls: ThreadCalls,
}

/// Takes blocks in the order in which they stand in their files.
#[derive(Default)]
pub(super) struct Merger<'a> {
    /// What functions are called, where that matters.
    names: Option<&'a Names>,
    threads: BTreeMap<Who, Merging>,
    room: PathRoom,
    /// Who was seen last on each CPU.
    cpus: HashMap<u32, Who>,
    waiting: ByTime<What>,
    pub counts: Counts,
    /// Pieces of threads beyond those that are kept.
    pub refused: u64,
}

struct Merging {
    replay: ThreadReplay,
    identity: Identity,
    standing: Standing,
    is_away: bool,
    cpu: Option<u32>,
    last: u64,
}

/// Something that happens to threads.
enum What {
    Piece(Box<Piece>),
    /// Another thread is on the CPU.
    Gone {
        who: Who,
        cpu: u32,
    },
    /// It is not known what any thread did, but of the first `seen` in `block`, which know it already.
    Lost {
        block: Arc<HashMap<Who, usize>>,
        seen: usize,
    },
}

impl<'a> Merger<'a> {
    pub(super) fn new(names: &'a Names) -> Self {
        Merger { names: Some(names), ..Merger::default() }
    }

    /// Takes a block. Everything before `frontier` has come: no later block tells of an earlier time.
    pub(super) fn add(&mut self, parsed: Parsed, frontier: u64) {
        let Parsed { pieces, shifts, identities, lost_by_all, counts, .. } = parsed;
        self.counts.add(&counts);
        let numbers = identities.iter().enumerate().map(|(number, (who, _))| (*who, number));
        let block: Arc<HashMap<Who, usize>> = Arc::new(numbers.collect());
        self.shift(&shifts, &block);
        for (ns, seen) in lost_by_all {
            self.waiting.push(ns, What::Lost { block: Arc::clone(&block), seen });
        }
        for piece in pieces {
            self.waiting.push(piece.from, What::Piece(Box::new(piece)));
        }
        self.drain(frontier);
        for (who, identity) in identities {
            if let Some(thread) = self.threads.get_mut(&who) {
                thread.name(identity);
            }
        }
    }

    /// Who was on a CPU at the end of the block before has left it when somebody else begins there.
    fn shift(&mut self, shifts: &[Shift], block: &HashMap<Who, usize>) {
        for shift in shifts {
            let before = self.cpus.insert(shift.cpu, shift.last);
            let Some(who) = before.filter(|before| *before != shift.first) else { continue };
            if block.get(&who).is_none_or(|&number| number >= shift.seen) {
                self.waiting.push(shift.from, What::Gone { who, cpu: shift.cpu });
            }
        }
    }

    fn drain(&mut self, frontier: u64) {
        while let Some((ns, what)) = self.waiting.pop_if(|ns| ns <= frontier) {
            match what {
                What::Piece(piece) => self.piece(&piece),
                What::Gone { who, cpu } => self.gone(who, cpu, ns),
                What::Lost { block, seen } => {
                    let is_other = |who: &Who| block.get(who).is_none_or(|&number| number >= seen);
                    let others = self.threads.iter_mut().filter(|(who, _)| is_other(who));
                    others.for_each(|(_, thread)| thread.lose(ns));
                }
            }
        }
    }

    fn piece(&mut self, piece: &Piece) {
        if !self.threads.contains_key(&piece.who) && self.threads.len() >= MOST_THREADS {
            self.refused += 1;
            return;
        }
        let room = &self.room;
        let thread = self.threads.entry(piece.who).or_insert_with(|| Merging::new(room.clone()));
        let names = self.names;
        thread.add(piece, &|function| names.is_some_and(|names| names.is_stub(function)));
    }

    fn gone(&mut self, who: Who, cpu: u32, ns: u64) {
        if let Some(thread) = self.threads.get_mut(&who)
            && thread.cpu == Some(cpu)
            && thread.standing == Standing::Running
            && !thread.is_away
        {
            thread.depart(ns);
        }
    }

    /// The room that all threads' calls share.
    pub(super) fn room(&self) -> PathRoom {
        self.room.clone()
    }

    /// How many CPUs the texts name.
    pub(super) fn cpus(&self) -> u32 {
        self.cpus.len() as u32
    }

    /// All threads that anything was seen of.
    pub(super) fn finish(mut self) -> Vec<Thread> {
        self.drain(u64::MAX);
        let threads = self.threads.into_iter();
        threads
            .map(|(who, thread)| {
                let calls = thread.replay.finish(thread.last);
                Thread { who, identity: thread.identity, calls }
            })
            .collect()
    }
}

impl Merging {
    fn new(room: PathRoom) -> Merging {
        Merging {
            replay: ThreadReplay::within(room, FOLLOWED, TimeConv::NANOSECONDS).with_slack(SLACK),
            identity: Identity::default(),
            // Before its first line a thread is nowhere.
            standing: Standing::Off,
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
        if let Some(stands) = piece.stands {
            self.stand(stands, is_stub);
        }
        piece.stretches.iter().for_each(|stretch| self.replay.add_with_stubs(stretch, is_stub));
        self.standing = piece.standing.unwrap_or(self.standing);
        self.is_away = piece.is_away;
        self.cpu = piece.cpu;
        self.last = self.last.max(piece.to);
    }

    /// A thread that was not known to be anywhere goes on where its first line stands.
    fn stand(&mut self, stands: Event, is_stub: &dyn Fn(FunctionId) -> bool) {
        let kind = match self.standing {
            Standing::Running => return,
            Standing::Off => EventKind::Begin,
            Standing::Lost => EventKind::Resume,
        };
        self.tell(&Event { kind, ..stands }, is_stub);
    }

    fn lose(&mut self, ns: u64) {
        if self.standing == Standing::Running && !self.is_away {
            self.replay.lose(ns);
            self.standing = Standing::Lost;
            self.last = self.last.max(ns);
        }
    }

    fn depart(&mut self, ns: u64) {
        let departure = Departure::Unknown;
        let switch = Switch { ticks: ns, thread: ThreadId::NOBODY, departure, ..Switch::default() };
        let function = FunctionId::UNKNOWN;
        let kind = EventKind::Switch(switch);
        self.tell(&Event { ticks: ns, from: 0, to: 0, function, at_entry: false, kind }, &|_| false);
        self.is_away = true;
        self.last = self.last.max(ns);
    }

    /// An event by itself.
    fn tell(&mut self, event: &Event, is_stub: &dyn Fn(FunctionId) -> bool) {
        stretches_of(event).iter().for_each(|stretch| self.replay.add_with_stubs(stretch, is_stub));
    }
}

fn stretches_of(event: &Event) -> Vec<Stretch> {
    let mut recorder = Recorder::new(TimeConv::NANOSECONDS).with_slack(SLACK);
    recorder.join(event.ticks, Switch { ticks: event.ticks, thread: FOLLOWED, ..Switch::default() });
    recorder.event(event);
    recorder.finish(event.ticks)
}
