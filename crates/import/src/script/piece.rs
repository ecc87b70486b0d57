//! What a block of text says of each thread: its lines as events, replayed as far as the block goes by itself.

use std::collections::HashMap;

use wallprof_intel_pt::replay::{Recorder, Stretch};
use wallprof_intel_pt::{
    Departure, EndCause, Event, EventKind, FunctionId, GapCause, Sink, Switch, ThreadId, TimeConv,
};

use super::flags::{Flags, Flow};
use super::line::{Branch, Head, Line, Place, TraceError};
use super::names::{Around, LocalNames};
use crate::gaps::Gaps;

/// The shortest call, and how much longer the longest is: a return lands that far behind its call.
const SHORTEST_CALL: u64 = 2;
pub(super) const SLACK: u64 = 15 - SHORTEST_CALL;
/// `syscall` and `int`.
const SYSTEM_CALL: u64 = 2;
/// The one thread that a recorder here follows.
pub(super) const FOLLOWED: ThreadId = ThreadId(1);

/// A thread of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Who {
    /// 0 and less: perf did not know who ran.
    pub tid: i32,
    /// Only for those: they are nobody's stack but a CPU's.
    pub cpu: Option<u32>,
}

/// How a thread stands between two of its lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Its next line goes on from where it is.
    Running,
    /// It is not traced: where it goes on is where its next line stands.
    Off,
    /// The same, behind a gap.
    Lost,
}

/// A thread's part of a block.
#[derive(Debug)]
pub(super) struct Piece {
    pub who: Who,
    pub from: u64,
    pub to: u64,
    /// Where its first line stands; `None` if that says so itself.
    pub stands: Option<Event>,
    pub stretches: Vec<Stretch>,
    /// `None`: as before.
    pub standing: Option<Standing>,
    /// It left its CPU and was not seen since.
    pub is_away: bool,
    pub cpu: Option<u32>,
}

/// Who ran first and last on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shift {
    pub cpu: u32,
    pub first: Who,
    pub from: u64,
    /// How many of `identities` had been seen by then.
    pub seen: usize,
    pub last: Who,
}

/// A thread's names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Identity {
    pub pid: Option<i32>,
    pub comm: Vec<u8>,
}

/// What a block says.
#[derive(Debug, Default)]
pub(super) struct Parsed {
    pub pieces: Vec<Piece>,
    pub shifts: Vec<Shift>,
    pub identities: Vec<(Who, Identity)>,
    /// When it was not known of anybody what they did, and how many of `identities` had been seen by then.
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
    /// Branches without the place that they lead to.
    pub untargeted: u64,
    /// Some times are in microseconds.
    pub coarse: bool,
}

impl Counts {
    pub(super) fn add(&mut self, other: &Counts) {
        self.branches += other.branches;
        self.gaps.merge(&other.gaps);
        self.unflagged += other.unflagged;
        self.untargeted += other.untargeted;
        self.coarse |= other.coarse;
    }
}

/// Reads `block`, which consists of whole lines. `cut`: other inputs may have a part of a thread's time between two of
/// its lines here, so it is in pieces that end wherever it may have left.
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

/// A thread in the block at hand.
struct Track {
    who: Who,
    identity: Identity,
    /// Empty between two pieces.
    recorder: Option<Recorder>,
    from: u64,
    to: u64,
    stands: Option<Event>,
    /// `None`: what came before the block decides.
    standing: Option<Standing>,
    is_away: bool,
    cpu: Option<u32>,
    in_transaction: Option<bool>,
}

struct Reader<'a, 'b> {
    names: &'a mut LocalNames<'b>,
    cut: bool,
    parsed: Parsed,
    tracks: Vec<Track>,
    numbers: HashMap<Who, usize>,
    last: Option<(Who, usize)>,
    cpus: HashMap<u32, Shift>,
    /// Where the last line was, and who ran there.
    on_cpu: Option<(u32, Who)>,
    /// Errors without a time, before the first line that has one.
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
            Line::Other => {}
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
        let who = who(head, branch);
        self.runs_on(head.cpu, who, head.ns);
        if is_idle(head, branch) {
            return;
        }
        let number = self.track(who, head);
        let track = &mut self.tracks[number];
        if self.cut && branch.flags.begin {
            track.end_piece(&mut self.parsed.pieces);
        }
        track.cpu = head.cpu;
        let from = self.names.around(&branch.from);
        let to = self.names.around(&branch.to);
        track.branch(head.ns, branch, from, to);
    }

    /// The number of the thread's track.
    #[inline]
    fn track(&mut self, who: Who, head: &Head<'_>) -> usize {
        if let Some((last, number)) = self.last
            && last == who
        {
            return number;
        }
        let next = self.tracks.len();
        let tracks = &mut self.tracks;
        let number = *self.numbers.entry(who).or_insert_with(|| {
            tracks.push(Track::new(who));
            next
        });
        self.tracks[number].name(head);
        self.last = Some((who, number));
        number
    }

    /// Who ran on the CPU before has left it, if it was not seen elsewhere since.
    #[inline]
    fn runs_on(&mut self, cpu: Option<u32>, who: Who, ns: u64) {
        let Some(cpu) = cpu else { return };
        if self.on_cpu.replace((cpu, who)) != Some((cpu, who)) {
            self.comes_to(cpu, who, ns);
        }
    }

    fn comes_to(&mut self, cpu: u32, who: Who, ns: u64) {
        let seen = self.tracks.len();
        let shift = self.cpus.entry(cpu).or_insert(Shift { cpu, first: who, from: ns, seen, last: who });
        let before = std::mem::replace(&mut shift.last, who);
        if before == who {
            return;
        }
        if let Some(&number) = self.numbers.get(&before) {
            let track = &mut self.tracks[number];
            if track.cpu == Some(cpu) && track.standing == Some(Standing::Running) && !track.is_away {
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
        let number = self.track(Who { tid: head.tid, cpu: None }, head);
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
        let number = self.track(Who { tid, cpu: None }, &head);
        self.tracks[number].lose(ns, error.cause);
    }

    /// Who has left its CPU, or is not traced, lost nothing.
    fn lose_all(&mut self, ns: u64, cause: GapCause) {
        let seen = self.tracks.len();
        if self.parsed.lost_by_all.last().is_none_or(|last| last.1 != seen) {
            self.parsed.lost_by_all.push((ns, seen));
        }
        let running = |track: &&mut Track| track.standing == Some(Standing::Running) && !track.is_away;
        self.tracks.iter_mut().filter(running).for_each(|track| track.lose(ns, cause));
    }

    fn finish(mut self) -> Parsed {
        for mut track in self.tracks {
            track.end_piece(&mut self.parsed.pieces);
            self.parsed.identities.push((track.who, track.identity));
        }
        self.parsed.shifts = self.cpus.into_values().collect();
        self.parsed.shifts.sort_unstable_by_key(|shift| (shift.from, shift.cpu));
        self.parsed
    }
}

fn who(head: &Head<'_>, branch: &Branch<'_>) -> Who {
    let cpu = if head.tid > 0 || is_idle(head, branch) { None } else { head.cpu };
    Who { tid: head.tid, cpu }
}

/// The idle task runs in the kernel only; whoever else has its number is somebody that perf did not know.
fn is_idle(head: &Head<'_>, branch: &Branch<'_>) -> bool {
    head.tid == 0 && is_kernel(branch.from.address | branch.to.address)
}

fn is_kernel(address: u64) -> bool {
    address >> 63 != 0
}

impl Track {
    fn new(who: Who) -> Track {
        Track {
            who,
            identity: Identity::default(),
            recorder: None,
            from: 0,
            to: 0,
            stands: None,
            standing: None,
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

    /// A piece that begins now, if none is under way.
    fn open(&mut self, ns: u64) -> &mut Recorder {
        let (from, to, stands) = (&mut self.from, &mut self.to, &mut self.stands);
        self.recorder.get_or_insert_with(|| {
            (*from, *to, *stands) = (ns, ns, None);
            let mut recorder = Recorder::new(TimeConv::NANOSECONDS).with_slack(SLACK);
            recorder.join(ns, Switch { ticks: ns, thread: FOLLOWED, ..Switch::default() });
            recorder
        })
    }

    fn end_piece(&mut self, pieces: &mut Vec<Piece>) {
        let Some(recorder) = self.recorder.take() else { return };
        pieces.push(Piece {
            who: self.who,
            from: self.from,
            to: self.to,
            stands: self.stands.take(),
            stretches: recorder.finish(self.to),
            standing: self.standing,
            is_away: self.is_away,
            cpu: self.cpu,
        });
    }

    fn tell(&mut self, event: Event) {
        self.to = self.to.max(event.ticks);
        self.open(event.ticks).event(&event);
    }

    fn depart(&mut self, ns: u64, departure: Departure) {
        if self.is_away {
            return;
        }
        self.is_away = true;
        let switch = Switch { ticks: ns, thread: ThreadId::NOBODY, departure, ..Switch::default() };
        self.tell(plain(ns, EventKind::Switch(switch)));
    }

    fn lose(&mut self, ns: u64, cause: GapCause) {
        self.come_back(ns);
        self.tell(plain(ns, EventKind::Gap(cause)));
        self.standing = Some(Standing::Lost);
    }

    fn come_back(&mut self, ns: u64) {
        if std::mem::take(&mut self.is_away) && self.recorder.is_some() {
            let switch = Switch { ticks: ns, thread: FOLLOWED, ..Switch::default() };
            self.tell(plain(ns, EventKind::Switch(switch)));
        }
    }

    fn branch(&mut self, ns: u64, branch: &Branch<'_>, from: Around, to: Around) {
        self.come_back(ns);
        let is_new = self.recorder.is_none();
        self.open(ns);
        if !branch.flags.begin {
            self.stand(ns, &branch.from, from, is_new);
        }
        self.transaction(ns, branch.flags);
        let places = Places { ns, from: branch.from.address, to: branch.to.address, around: to };
        self.standing = Some(Standing::Running);
        self.flow(branch.flags, &places, from);
        self.to = self.to.max(ns);
    }

    /// Where a line stands is where the thread went on, if it was not known to be anywhere.
    fn stand(&mut self, ns: u64, place: &Place<'_>, around: Around, is_new: bool) {
        if place.address == 0 {
            return;
        }
        let kind = if self.standing == Some(Standing::Lost) { EventKind::Resume } else { EventKind::Begin };
        let event =
            Event { ticks: ns, from: 0, to: place.address, function: around.function, at_entry: false, kind };
        match self.standing {
            Some(Standing::Running) => {}
            Some(Standing::Off | Standing::Lost) => self.tell(event),
            None if is_new => self.stands = Some(event),
            None => {}
        }
    }

    fn transaction(&mut self, ns: u64, flags: Flags) {
        let before = self.in_transaction.replace(flags.in_transaction);
        match (before, flags.in_transaction) {
            (Some(false), true) => self.tell(plain(ns, EventKind::TransactionBegin)),
            (Some(true), false) if flags.flow != Some(Flow::TransactionAbort) => {
                self.tell(plain(ns, EventKind::TransactionEnd));
            }
            _ => {}
        }
    }

    fn flow(&mut self, flags: Flags, places: &Places, from: Around) {
        if flags.begin {
            self.tell(places.event(EventKind::Begin));
        } else if let Some(kind) = places.kind(flags)
            && !places.stays_inside(kind, from)
        {
            self.tell(places.event(kind));
        }
        if flags.end || places.to == 0 {
            let (cause, return_to) = places.end(flags, from);
            // A call or jump that leaves what is traced is in its target from there on.
            let leaves =
                matches!(places.kind(flags), None | Some(EventKind::Call { .. } | EventKind::Jump { .. }));
            if leaves || flags.begin {
                self.tell(plain(places.ns, EventKind::End { cause, return_to }));
            }
            self.standing = Some(Standing::Off);
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

    /// What a branch does; `None` for one that only leaves what is traced.
    fn kind(&self, flags: Flags) -> Option<EventKind> {
        if self.to == 0 {
            return None;
        }
        // perf names no kind of direct jumps that leave what is traced.
        let flow = flags.flow.or(flags.end.then_some(Flow::ConditionalJump))?;
        Some(match flow {
            Flow::Call => EventKind::Call { return_to: self.behind(SHORTEST_CALL) },
            Flow::Return if flags.end => return None,
            Flow::Return => EventKind::Return,
            Flow::Jump => EventKind::Jump { indirect: true },
            Flow::ConditionalJump => EventKind::Jump { indirect: false },
            Flow::SystemReturn | Flow::InterruptReturn => EventKind::SystemReturn,
            Flow::TransactionAbort => EventKind::TransactionAbort,
            Flow::GuestExit => EventKind::Begin,
            Flow::GuestEntry => return None,
            _ if flags.end => return None,
            Flow::SystemCall | Flow::SoftwareInterrupt => {
                EventKind::SystemCall { return_to: self.behind(SYSTEM_CALL) }
            }
            Flow::Interrupt | Flow::Async => EventKind::Interrupt { vector: None },
        })
    }

    /// Why the trace ends here, and where it is expected back.
    fn end(&self, flags: Flags, from: Around) -> (EndCause, u64) {
        let Around { function, at_entry } = self.around;
        match flags.flow {
            _ if flags.begin => (EndCause::Other, 0),
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

    /// Within a function, where most of them are, a jump changes nothing.
    fn stays_inside(&self, kind: EventKind, from: Around) -> bool {
        let is_jump = matches!(kind, EventKind::Jump { .. });
        is_jump && from.function != FunctionId::UNKNOWN && from.function == self.around.function
    }
}

fn plain(ticks: u64, kind: EventKind) -> Event {
    Event { ticks, from: 0, to: 0, function: FunctionId::UNKNOWN, at_entry: false, kind }
}
