// SPDX-License-Identifier: Apache-2.0
//! The events of each thread in a block of text, replayed as far as the block alone allows.

use std::collections::HashMap;

use wallprof_intel_pt::replay::{Recorder, Stretch};
use wallprof_intel_pt::{
    Departure, EndCause, Event, EventKind, FunctionId, GapCause, Sink, Switch, ThreadId, TimeConv,
};

use super::flags::{Flags, Flow};
use super::line::{Branch, Head, Line, Place, TraceError};
use super::names::{Around, LocalNames};
use super::samples::{self, AmongBranches};
use crate::gaps::Gaps;

/// The length of the shortest call instruction.
const SHORTEST_CALL: u64 = 2;
/// The longest call is this much longer. A return lands that far behind its call.
pub(super) const SLACK: u64 = 15 - SHORTEST_CALL;
/// The length of `syscall` and `int`.
const SYSTEM_CALL: u64 = 2;
/// The one thread that a recorder follows here.
pub(super) const FOLLOWED: ThreadId = ThreadId(1);

/// A thread of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct TextThreadId {
    /// 0 and less: perf did not know the thread.
    pub tid: i32,
    /// Only for unknown threads, which have a stack for each CPU.
    pub cpu: Option<u32>,
}

/// The state of a thread between two of its lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TraceState {
    /// Its next line continues at its place.
    Running,
    /// It is not traced. It continues at the place of its next line.
    Off,
    /// The same, behind a gap.
    Lost,
}

/// A thread's part of a block.
#[derive(Debug)]
pub(super) struct Piece {
    pub id: TextThreadId,
    pub from: u64,
    pub to: u64,
    /// The place of its first line; `None` if that line has it itself.
    pub first_place: Option<Event>,
    pub stretches: Vec<Stretch>,
    /// `None`: as before the block.
    pub trace_state: Option<TraceState>,
    /// It left its CPU and was not seen since.
    pub is_away: bool,
    pub cpu: Option<u32>,
}

/// The first and the last thread on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CpuUse {
    pub cpu: u32,
    pub first: TextThreadId,
    pub from: u64,
    /// The number of `identities` that had been seen before.
    pub seen: usize,
    pub last: TextThreadId,
}

/// A thread's names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Identity {
    pub pid: Option<i32>,
    pub comm: Vec<u8>,
}

/// The content of a block.
#[derive(Debug, Default)]
pub(super) struct Parsed {
    pub pieces: Vec<Piece>,
    pub cpu_uses: Vec<CpuUse>,
    pub identities: Vec<(TextThreadId, Identity)>,
    /// Times at which the activity of all threads was unknown, and the number of `identities` seen before.
    pub lost_by_all: Vec<(u64, usize)>,
    pub counts: Counts,
    /// The time of the last line.
    pub until: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub branches: u64,
    pub gaps: Gaps,
    /// Branches whose kind is not printed.
    pub unflagged: u64,
    /// Branches without a target.
    pub untargeted: u64,
    /// Samples of other events.
    pub samples: u64,
    /// Lines with a thread and a time that could not be read.
    pub unread: u64,
    /// Some times are in microseconds.
    pub coarse: bool,
}

impl Counts {
    pub(super) fn add(&mut self, other: &Counts) {
        self.branches += other.branches;
        self.gaps.merge(&other.gaps);
        self.unflagged += other.unflagged;
        self.untargeted += other.untargeted;
        self.samples += other.samples;
        self.unread += other.unread;
        self.coarse |= other.coarse;
    }
}

/// Reads `block`, which consists of whole lines. `cut`: other inputs may have a part of a thread's time
/// between two of its lines here, so a piece ends wherever the thread may have left.
pub(super) fn parse_block(block: &[u8], names: &mut LocalNames<'_>, cut: bool) -> Parsed {
    let mut reader = Reader {
        names,
        cut,
        parsed: Parsed::default(),
        tracks: Vec::new(),
        numbers: HashMap::new(),
        last: None,
        cpus: HashMap::new(),
        on_cpu: None,
        pending: Vec::new(),
    };
    let mut start = 0;
    for end in memchr::memchr_iter(b'\n', block).chain([block.len()]) {
        reader.line(&block[start.min(end)..end]);
        start = end + 1;
    }
    reader.finish()
}

/// A thread in the current block.
struct Track {
    id: TextThreadId,
    identity: Identity,
    /// Empty between two pieces.
    recorder: Option<Recorder>,
    from: u64,
    to: u64,
    first_place: Option<Event>,
    /// `None`: the state before the block holds.
    trace_state: Option<TraceState>,
    is_away: bool,
    cpu: Option<u32>,
    in_transaction: Option<bool>,
}

struct Reader<'a, 'b> {
    names: &'a mut LocalNames<'b>,
    cut: bool,
    parsed: Parsed,
    tracks: Vec<Track>,
    numbers: HashMap<TextThreadId, usize>,
    last: Option<(TextThreadId, usize)>,
    cpus: HashMap<u32, CpuUse>,
    /// The place of the last line, and the thread that ran there.
    on_cpu: Option<(u32, TextThreadId)>,
    /// Errors without a time, in front of the first line that has one.
    pending: Vec<TraceError>,
}

impl Reader<'_, '_> {
    fn line(&mut self, line: &[u8]) {
        match Line::parse(line) {
            Line::Branch(head, branch) => self.branch(&head, &branch),
            Line::Unflagged => self.parsed.counts.unflagged += 1,
            Line::Untargeted => self.parsed.counts.untargeted += 1,
            Line::Error(error) => {
                self.parsed.counts.gaps.add(error.cause, 1);
                self.error(error);
            }
            Line::Switch(head, departure) => self.departure(&head, departure),
            Line::Other => match samples::kind_among_branches(line) {
                AmongBranches::Sample => self.parsed.counts.samples += 1,
                AmongBranches::Unread => self.parsed.counts.unread += 1,
                AmongBranches::Nothing => {}
            },
        }
    }

    fn time(&mut self, ns: u64) {
        self.parsed.until = Some(ns);
        for error in std::mem::take(&mut self.pending) {
            self.error_at(&error, ns);
        }
    }

    fn branch(&mut self, head: &Head<'_>, branch: &Branch<'_>) {
        self.parsed.counts.branches += 1;
        self.parsed.counts.coarse |= head.coarse;
        self.time(head.ns);
        let id = id(head, branch);
        self.runs_on(head.cpu, id, head.ns);
        if is_idle(head, branch) {
            return;
        }
        let number = self.track(id, head);
        let track = &mut self.tracks[number];
        if self.cut && branch.flags.start {
            track.end_piece(&mut self.parsed.pieces);
        }
        track.cpu = head.cpu;
        let from = self.names.around(&branch.from);
        let to = self.names.around(&branch.to);
        track.branch(head.ns, branch, from, to);
    }

    /// The number of the thread's track.
    #[inline]
    fn track(&mut self, id: TextThreadId, head: &Head<'_>) -> usize {
        if let Some((last, number)) = self.last
            && last == id
        {
            return number;
        }
        let next = self.tracks.len();
        let tracks = &mut self.tracks;
        let number = *self.numbers.entry(id).or_insert_with(|| {
            tracks.push(Track::new(id));
            next
        });
        self.tracks[number].name(head);
        self.last = Some((id, number));
        number
    }

    /// The previous thread on the CPU has left it, unless it was seen elsewhere since.
    #[inline]
    fn runs_on(&mut self, cpu: Option<u32>, id: TextThreadId, ns: u64) {
        let Some(cpu) = cpu else { return };
        if self.on_cpu.replace((cpu, id)) != Some((cpu, id)) {
            self.comes_to(cpu, id, ns);
        }
    }

    fn comes_to(&mut self, cpu: u32, id: TextThreadId, ns: u64) {
        let seen = self.tracks.len();
        let cpu_use = self.cpus.entry(cpu).or_insert(CpuUse { cpu, first: id, from: ns, seen, last: id });
        let before = std::mem::replace(&mut cpu_use.last, id);
        if before == id {
            return;
        }
        if let Some(&number) = self.numbers.get(&before) {
            let track = &mut self.tracks[number];
            if track.cpu == Some(cpu) && track.trace_state == Some(TraceState::Running) && !track.is_away {
                track.depart(ns, Departure::Unknown);
                if self.cut {
                    track.end_piece(&mut self.parsed.pieces);
                }
            }
        }
    }

    fn departure(&mut self, head: &Head<'_>, departure: Departure) {
        self.time(head.ns);
        if head.tid <= 0 {
            return;
        }
        let number = self.track(TextThreadId { tid: head.tid, cpu: None }, head);
        let track = &mut self.tracks[number];
        track.open(head.ns);
        track.depart(head.ns, departure);
        if self.cut {
            track.end_piece(&mut self.parsed.pieces);
        }
    }

    fn error(&mut self, error: TraceError) {
        match error.ns.or(self.parsed.until) {
            Some(ns) => self.error_at(&error, ns),
            None => self.pending.push(error),
        }
    }

    fn error_at(&mut self, error: &TraceError, ns: u64) {
        self.parsed.until = Some(self.parsed.until.unwrap_or(0).max(ns));
        let Some(tid) = error.tid else {
            return self.lose_all(ns, error.cause);
        };
        let head = Head { comm: b"", pid: None, tid, cpu: error.cpu, ns, coarse: false };
        let number = self.track(TextThreadId { tid, cpu: None }, &head);
        self.tracks[number].lose(ns, error.cause);
    }

    /// A thread that has left its CPU, or is not traced, lost nothing.
    fn lose_all(&mut self, ns: u64, cause: GapCause) {
        let seen = self.tracks.len();
        if self.parsed.lost_by_all.last().is_none_or(|last| last.1 != seen) {
            self.parsed.lost_by_all.push((ns, seen));
        }
        let running = |track: &&mut Track| track.trace_state == Some(TraceState::Running) && !track.is_away;
        self.tracks.iter_mut().filter(running).for_each(|track| track.lose(ns, cause));
    }

    fn finish(mut self) -> Parsed {
        for mut track in self.tracks {
            track.end_piece(&mut self.parsed.pieces);
            self.parsed.identities.push((track.id, track.identity));
        }
        self.parsed.cpu_uses = self.cpus.into_values().collect();
        self.parsed.cpu_uses.sort_unstable_by_key(|cpu_use| (cpu_use.from, cpu_use.cpu));
        self.parsed
    }
}

fn id(head: &Head<'_>, branch: &Branch<'_>) -> TextThreadId {
    let cpu = if head.tid > 0 || is_idle(head, branch) { None } else { head.cpu };
    TextThreadId { tid: head.tid, cpu }
}

/// The idle task runs in the kernel only. Other lines with its number are of a thread that perf did not know.
fn is_idle(head: &Head<'_>, branch: &Branch<'_>) -> bool {
    head.tid == 0 && is_kernel(branch.from.address | branch.to.address)
}

fn is_kernel(address: u64) -> bool {
    address >> 63 != 0
}

impl Track {
    fn new(id: TextThreadId) -> Track {
        Track {
            id,
            identity: Identity::default(),
            recorder: None,
            from: 0,
            to: 0,
            first_place: None,
            trace_state: None,
            is_away: false,
            cpu: None,
            in_transaction: None,
        }
    }

    fn name(&mut self, head: &Head<'_>) {
        let identity = &mut self.identity;
        identity.pid = head.pid.filter(|pid| *pid > 0).or(identity.pid);
        if !head.comm.is_empty() && identity.comm != head.comm {
            identity.comm = head.comm.to_vec();
        }
    }

    /// Starts a piece at `ns`, if none is open.
    fn open(&mut self, ns: u64) -> &mut Recorder {
        let (from, to, first_place) = (&mut self.from, &mut self.to, &mut self.first_place);
        self.recorder.get_or_insert_with(|| {
            (*from, *to, *first_place) = (ns, ns, None);
            let mut recorder = Recorder::new(TimeConv::NANOSECONDS).with_slack(SLACK);
            recorder.join(ns, Switch { ticks: ns, thread: FOLLOWED, ..Switch::default() });
            recorder
        })
    }

    fn end_piece(&mut self, pieces: &mut Vec<Piece>) {
        let Some(recorder) = self.recorder.take() else { return };
        pieces.push(Piece {
            id: self.id,
            from: self.from,
            to: self.to,
            first_place: self.first_place.take(),
            stretches: recorder.finish(self.to),
            trace_state: self.trace_state,
            is_away: self.is_away,
            cpu: self.cpu,
        });
    }

    fn record(&mut self, event: Event) {
        self.to = self.to.max(event.ticks);
        self.open(event.ticks).event(&event);
    }

    fn depart(&mut self, ns: u64, departure: Departure) {
        if self.is_away {
            return;
        }
        self.is_away = true;
        let switch = Switch { ticks: ns, thread: ThreadId::NONE, departure, ..Switch::default() };
        self.record(plain(ns, EventKind::Switch(switch)));
    }

    fn lose(&mut self, ns: u64, cause: GapCause) {
        self.come_back(ns);
        self.record(plain(ns, EventKind::Gap(cause)));
        self.trace_state = Some(TraceState::Lost);
    }

    fn come_back(&mut self, ns: u64) {
        if std::mem::take(&mut self.is_away) && self.recorder.is_some() {
            let switch = Switch { ticks: ns, thread: FOLLOWED, ..Switch::default() };
            self.record(plain(ns, EventKind::Switch(switch)));
        }
    }

    fn branch(&mut self, ns: u64, branch: &Branch<'_>, from: Around, to: Around) {
        self.come_back(ns);
        let is_new = self.recorder.is_none();
        self.open(ns);
        if !branch.flags.start {
            self.resume(ns, &branch.from, from, is_new);
        }
        self.transaction(ns, branch.flags);
        let places = Places { ns, from: branch.from.address, to: branch.to.address, around: to };
        self.trace_state = Some(TraceState::Running);
        self.flow(branch.flags, &places, from);
        self.to = self.to.max(ns);
    }

    /// A thread at an unknown place continues at the place of this line.
    fn resume(&mut self, ns: u64, place: &Place<'_>, around: Around, is_new: bool) {
        if place.address == 0 {
            return;
        }
        let kind =
            if self.trace_state == Some(TraceState::Lost) { EventKind::Resume } else { EventKind::Start };
        let event =
            Event { ticks: ns, from: 0, to: place.address, function: around.function, at_entry: false, kind };
        match self.trace_state {
            Some(TraceState::Running) => {}
            Some(TraceState::Off | TraceState::Lost) => self.record(event),
            None if is_new => self.first_place = Some(event),
            None => {}
        }
    }

    fn transaction(&mut self, ns: u64, flags: Flags) {
        let before = self.in_transaction.replace(flags.in_transaction);
        match (before, flags.in_transaction) {
            (Some(false), true) => self.record(plain(ns, EventKind::TransactionStart)),
            (Some(true), false) if flags.flow != Some(Flow::TransactionAbort) => {
                self.record(plain(ns, EventKind::TransactionEnd));
            }
            _ => {}
        }
    }

    fn flow(&mut self, flags: Flags, places: &Places, from: Around) {
        if flags.start {
            self.record(places.event(EventKind::Start));
        } else if let Some(kind) = places.kind(flags)
            && !places.stays_inside(kind, from)
        {
            self.record(places.event(kind));
        }
        if flags.end || places.to == 0 {
            let (cause, return_to) = places.end(flags, from);
            // A call or jump out of the traced code is in its target from then on.
            let leaves =
                matches!(places.kind(flags), None | Some(EventKind::Call { .. } | EventKind::Jump { .. }));
            if leaves || flags.start {
                self.record(plain(places.ns, EventKind::End { cause, return_to }));
            }
            self.trace_state = Some(TraceState::Off);
        }
    }
}

/// One line's time and addresses.
struct Places {
    ns: u64,
    from: u64,
    to: u64,
    around: Around,
}

impl Places {
    fn event(&self, kind: EventKind) -> Event {
        let Around { function, at_entry } = self.around;
        Event { ticks: self.ns, from: self.from, to: self.to, function, at_entry, kind }
    }

    /// The kind of a branch; `None` for one that only leaves the traced code.
    fn kind(&self, flags: Flags) -> Option<EventKind> {
        if self.to == 0 {
            return None;
        }
        // perf prints no kind for direct jumps that leave the traced code.
        let flow = flags.flow.or(flags.end.then_some(Flow::ConditionalJump))?;
        Some(match flow {
            Flow::Call => EventKind::Call { return_to: self.behind(SHORTEST_CALL) },
            Flow::Return if flags.end => return None,
            Flow::Return => EventKind::Return,
            Flow::Jump => EventKind::Jump { indirect: true },
            Flow::ConditionalJump => EventKind::Jump { indirect: false },
            Flow::SystemReturn | Flow::InterruptReturn => EventKind::SystemReturn,
            Flow::TransactionAbort => EventKind::TransactionAbort,
            Flow::GuestExit => EventKind::Start,
            Flow::GuestEntry => return None,
            _ if flags.end => return None,
            Flow::SystemCall | Flow::SoftwareInterrupt => {
                EventKind::SystemCall { return_to: self.behind(SYSTEM_CALL) }
            }
            Flow::Interrupt | Flow::Async => EventKind::Interrupt { vector: None },
        })
    }

    /// The cause of the end of tracing, and the address at which it is expected to resume.
    fn end(&self, flags: Flags, from: Around) -> (EndCause, u64) {
        let Around { function, at_entry } = self.around;
        match flags.flow {
            _ if flags.start => (EndCause::Other, 0),
            Some(Flow::Call) if self.to != 0 => (EndCause::Other, 0),
            None | Some(Flow::Jump | Flow::ConditionalJump) if self.to != 0 => match at_entry {
                true if function != from.function => (EndCause::Jump, 0),
                _ => (EndCause::Other, 0),
            },
            None => (EndCause::Other, self.from),
            Some(Flow::SystemCall | Flow::SoftwareInterrupt) => {
                (EndCause::SystemCall, self.behind(SYSTEM_CALL))
            }
            Some(Flow::Interrupt | Flow::Async) => (EndCause::Interrupt { vector: None }, self.from),
            Some(Flow::Call) => (EndCause::Other, self.behind(SHORTEST_CALL)),
            Some(Flow::Return) => (EndCause::Return, self.to),
            Some(_) => (EndCause::Other, 0),
        }
    }

    fn behind(&self, length: u64) -> u64 {
        self.from.wrapping_add(length)
    }

    /// A jump within a function changes nothing. Most jumps are of this kind.
    fn stays_inside(&self, kind: EventKind, from: Around) -> bool {
        let is_jump = matches!(kind, EventKind::Jump { .. });
        is_jump && from.function != FunctionId::UNKNOWN && from.function == self.around.function
    }
}

fn plain(ticks: u64, kind: EventKind) -> Event {
    Event { ticks, from: 0, to: 0, function: FunctionId::UNKNOWN, at_entry: false, kind }
}
