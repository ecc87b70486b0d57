//! Control flow from packets: follows the recorded code along the trace and tells what it did, as events.
//!
//! The decoder is lazy: it stands at the start of a run and moves when a packet says how that run ends. So at any packet
//! all that is known to have been executed has been told, and nothing that is not.
//!
//! A trace is decoded in segments, each from a synchronisation point (PSB) to the next. Segments are independent: decoding
//! two of them one after the other, or each alone, tells the same events.

use crate::code::{Code, FunctionId, SpaceId};
use crate::event::{EndCause, Event, EventKind, GapCause, Sink};
use crate::instruction::{Far, Flow, Reading, decode};
use crate::packet::{CodeSize, IpPayload, LastIp, Packet, Tnt};
use crate::packets::{PSB, PacketError, Packets, find_psb};
use crate::return_stack::{ReturnAddress, ReturnStack};
use crate::run_cache::{CallSite, Exit, RunCache, RunId, Step, StepKind, place};
use crate::schedule::{Cursor, Schedule, Switch};
use crate::stopwatch::{ClockFacts, Stopwatch};

/// A contiguous piece of one CPU's or thread's trace, and what is needed to read it.
#[derive(Clone, Copy, Debug)]
pub struct Trace<'a, C> {
    pub bytes: &'a [u8],
    pub code: &'a C,
    pub schedule: &'a Schedule,
    pub clock: ClockFacts,
    /// Whether returns may be compressed to a branch result (the recording did not ask for `noretcomp`).
    pub return_compression: bool,
}

/// What was decoded, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decoded {
    /// Straight pieces of code between transfers of any kind.
    pub blocks: u64,
    /// The time of the segment's first synchronisation point, and of its last packet, in ticks.
    pub first_ticks: u64,
    pub last_ticks: u64,
}

/// Where segments of a trace start: its PSBs.
pub fn segment_starts(bytes: &[u8]) -> Vec<usize> {
    let mut starts = Vec::new();
    let mut from = 0;
    while let Some(start) = find_psb(bytes, from) {
        starts.push(start);
        from = start + PSB.len();
    }
    starts
}

/// Which part of the trace to decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Offset of a PSB.
    pub start: usize,
    /// Offset of the PSB to stop at, or the trace's length.
    pub end: usize,
    /// Nothing was decoded before this one: its first address is a beginning.
    pub first: bool,
}

/// Tells `sink` what happened in `segment` of `trace`.
pub fn decode_segment<C: Code>(
    trace: &Trace<'_, C>,
    segment: Segment,
    cache: &mut RunCache,
    sink: &mut impl Sink,
) -> Decoded {
    let mut decoder = Decoder::new(trace, segment, cache, sink);
    decoder.decode();
    decoder.decoded
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Tracing is off.
    Off,
    /// At a known place.
    On,
    /// Tracing is on, or may be, at an unknown place.
    Lost,
}

/// A synchronisation point that is being read.
#[derive(Clone, Copy, Debug, Default)]
struct Synchronisation {
    ip: Option<u64>,
    seen_tsc: bool,
    /// The first of the segment: it states what the segment before has told.
    silent: bool,
    /// The first of the next segment.
    last: bool,
}

/// A FUP whose meaning the next packet decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    None,
    /// Where an interrupt may have hit.
    Async(u64),
    Abort(u64),
}

/// The time between the last two packets that moved the decoder, and how much of the last one is used.
#[derive(Clone, Copy, Debug)]
struct Interval {
    start: u64,
    end: u64,
    results: u64,
    used: u64,
}

struct Decoder<'a, 'c, C, S> {
    trace: &'a Trace<'a, C>,
    segment: Segment,
    cache: &'c mut RunCache,
    sink: &'c mut S,
    packets: Packets<'a>,
    last_ip: LastIp,
    watch: Stopwatch,
    cursor: Cursor<'a>,
    reading: Reading,
    next_size: CodeSize,
    state: State,
    at: RunId,
    /// The steps of the run at hand have been told: it waits at its exit.
    at_exit: bool,
    /// Branch results to use, the oldest in the highest bit.
    results: u64,
    result_count: u32,
    interval: Interval,
    returns: ReturnStack,
    synchronisation: Option<Synchronisation>,
    source: Source,
    /// The next FUP says where the packet before it happened.
    fup_is_bound: bool,
    transaction: Option<(bool, bool)>,
    vector: Option<u8>,
    /// Long runs that may still be passed without a packet; grows with the packets.
    fuel: u32,
    decoded: Decoded,
}

const FULL_TANK: u32 = 4096;

impl<'a, 'c, C: Code, S: Sink> Decoder<'a, 'c, C, S> {
    fn new(trace: &'a Trace<'a, C>, segment: Segment, cache: &'c mut RunCache, sink: &'c mut S) -> Self {
        Decoder {
            trace,
            segment,
            cache,
            sink,
            packets: Packets::starting_at(trace.bytes, segment.start),
            last_ip: LastIp::default(),
            watch: Stopwatch::new(trace.clock),
            cursor: trace.schedule.cursor_at(0),
            reading: Reading { space: SpaceId::default(), size: CodeSize::Bits64 },
            next_size: CodeSize::Bits64,
            state: State::Off,
            at: RunId::NONE,
            at_exit: false,
            results: 0,
            result_count: 0,
            interval: Interval { start: 0, end: 0, results: 0, used: 0 },
            returns: ReturnStack::new(),
            synchronisation: None,
            source: Source::None,
            fup_is_bound: false,
            transaction: None,
            vector: None,
            fuel: FULL_TANK,
            decoded: Decoded::default(),
        }
    }

    fn decode(&mut self) {
        let mut offset = self.packets.offset();
        while let Some(packet) = self.packets.next_packet() {
            match packet {
                Ok(Packet::Cyc(cycles)) => self.watch.cyc(cycles),
                Ok(Packet::Tnt(tnt)) => self.branch_results(tnt),
                Ok(Packet::Tip(payload)) => self.indirect(payload),
                Ok(packet) => {
                    if self.other(packet, offset) {
                        break;
                    }
                }
                Err(PacketError::Truncated { .. }) => break,
                Err(PacketError::Unknown { .. }) => {
                    self.lose_now(GapCause::BadPacket);
                    self.synchronisation = None;
                    self.packets.seek_psb();
                }
            }
            offset = self.packets.offset();
        }
        self.decoded.last_ticks = self.watch.now();
    }

    /// Handles the packets that are not most of a trace; says whether the segment is done.
    #[inline(never)]
    fn other(&mut self, packet: Packet, offset: usize) -> bool {
        self.fuel = (self.fuel + 16).min(FULL_TANK);
        match packet {
            Packet::Psb => self.begin_synchronisation(offset),
            Packet::PsbEnd => return self.end_synchronisation(),
            Packet::Tsc(ticks) => self.time_stamp(ticks),
            Packet::Tma { ctc, fast } => self.watch.tma(ctc, fast),
            Packet::Mtc(mtc) => self.watch.mtc(mtc),
            Packet::Cbr(ratio) => self.watch.cbr(ratio),
            Packet::Fup(payload) => self.source_address(payload),
            Packet::TipPge(payload) => self.enable(payload),
            Packet::TipPgd(payload) => self.disable(payload),
            Packet::Overflow => self.overflow(),
            Packet::ModeExec { code, .. } => self.next_size = code,
            Packet::ModeTsx { inside, abort } => self.transaction = Some((inside, abort)),
            Packet::Pip { .. } if self.synchronisation.is_none() => self.reschedule(),
            Packet::PtWrite { ip_follows, .. }
            | Packet::ExecStop { ip_follows }
            | Packet::BlockEnd { ip_follows } => self.fup_is_bound = ip_follows,
            Packet::ControlFlowEvent { kind, vector, .. } => self.announce(kind, vector),
            _ => {}
        }
        false
    }

    // Synchronisation points.

    fn begin_synchronisation(&mut self, offset: usize) {
        if self.result_count > 0 || self.at_exit {
            self.lose(GapCause::Mismatch);
        }
        self.synchronisation = Some(Synchronisation {
            silent: offset == self.segment.start,
            last: offset >= self.segment.end,
            ..Synchronisation::default()
        });
        self.last_ip = LastIp::default();
        self.returns.clear();
        self.watch.psb();
        self.forget_pending();
    }

    fn forget_pending(&mut self) {
        self.source = Source::None;
        self.fup_is_bound = false;
        self.transaction = None;
        self.vector = None;
    }

    fn time_stamp(&mut self, ticks: u64) {
        match &mut self.synchronisation {
            Some(synchronisation) if !synchronisation.seen_tsc => {
                synchronisation.seen_tsc = true;
                self.watch.tsc_after_psb(ticks);
            }
            _ => self.watch.tsc(ticks),
        }
    }

    /// Says whether this was the synchronisation point that ends the segment.
    fn end_synchronisation(&mut self) -> bool {
        let Some(synchronisation) = self.synchronisation.take() else { return false };
        self.transaction = None;
        if synchronisation.silent {
            self.join(synchronisation.ip);
        } else {
            self.confirm(synchronisation.ip);
            self.reschedule();
        }
        self.start_interval();
        synchronisation.last
    }

    /// Starts the segment where its first synchronisation point says.
    fn join(&mut self, ip: Option<u64>) {
        self.cursor = self.trace.schedule.cursor_at(self.watch.now());
        self.reading.space = self.cursor.current().space;
        self.decoded.first_ticks = self.watch.now();
        self.sink.join(self.watch.now(), self.cursor.current());
        if self.segment.first {
            let switch = Switch { ticks: self.watch.now(), ..self.cursor.current() };
            self.tell_bare(EventKind::Switch(switch), 0);
        }
        if self.cache.is_full() {
            self.cache.clear();
        }
        let Some(ip) = ip else { return };
        self.stand_at(ip);
        let known = self.cache.has_code(self.at);
        self.state = if known { State::On } else { State::Lost };
        if self.segment.first && known {
            self.tell(EventKind::Begin, 0, ip);
        }
    }

    /// A synchronisation point in the middle must agree with where the decoder is; its word counts.
    fn confirm(&mut self, ip: Option<u64>) {
        self.next_interval(0);
        if self.cache.is_full() {
            self.lose(GapCause::LostData);
            self.cache.clear();
        }
        match (self.state, ip) {
            (State::On, Some(ip)) => {
                if let Err(cause) = self.walk_to(ip) {
                    self.lose(cause);
                    self.resume(ip);
                }
            }
            (State::On, None) => {
                let from = self.address();
                self.tell_end(EndCause::Other, from, from);
                self.state = State::Off;
            }
            (State::Off, Some(ip)) => self.begin(ip),
            (State::Lost, Some(ip)) => self.resume(ip),
            (State::Off | State::Lost, None) => self.state = State::Off,
        }
    }

    // Packets that move the decoder.

    #[inline(always)]
    fn branch_results(&mut self, tnt: Tnt) {
        if self.state != State::On {
            return;
        }
        if self.result_count > 0 || self.synchronisation.is_some() {
            return self.lose(GapCause::Mismatch);
        }
        self.source = Source::None;
        self.results = tnt.bits << (64 - u32::from(tnt.count));
        self.result_count = u32::from(tnt.count);
        self.next_interval(u64::from(tnt.count));
        self.fuel = (self.fuel + 1).min(FULL_TANK);
        if let Err(cause) = self.use_results() {
            self.lose(cause);
        }
    }

    fn indirect(&mut self, payload: IpPayload) {
        let ip = self.last_ip.update(payload);
        let source = std::mem::replace(&mut self.source, Source::None);
        let Some(ip) = ip else {
            return self.lose(GapCause::Mismatch);
        };
        match self.state {
            State::On => {}
            State::Lost => return self.resume(ip),
            State::Off => return self.begin(ip),
        }
        if self.result_count == 0 {
            self.next_interval(0);
        }
        let arrived = match source {
            Source::None => self.arrive(ip),
            Source::Async(from) => self.interrupt(from, ip),
            Source::Abort(from) => self.abort(from, ip),
        };
        if let Err(cause) = arrived.and_then(|()| self.use_results()) {
            self.lose(cause);
        }
    }

    fn interrupt(&mut self, from: u64, ip: u64) -> Result<(), GapCause> {
        let vector = self.vector.take();
        self.tell(EventKind::Interrupt { vector }, from, ip);
        self.reschedule();
        self.stand_at_traced(ip)
    }

    fn abort(&mut self, from: u64, ip: u64) -> Result<(), GapCause> {
        self.tell(EventKind::TransactionAbort, from, ip);
        self.stand_at_traced(ip)
    }

    /// A FUP: the decoder moves to its address; what happened there the next packet says.
    fn source_address(&mut self, payload: IpPayload) {
        let Some(ip) = self.last_ip.update(payload) else {
            return;
        };
        if let Some(synchronisation) = &mut self.synchronisation {
            synchronisation.ip = Some(ip);
            return;
        }
        let bound = std::mem::replace(&mut self.fup_is_bound, false);
        let transaction = self.transaction.take();
        match self.state {
            State::Off => return,
            State::Lost => {
                self.resume(ip);
                self.reading.size = self.next_size;
                if self.state != State::On {
                    return;
                }
            }
            State::On => {
                self.next_interval(0);
                if let Err(cause) = self.walk_to(ip) {
                    self.lose(cause);
                    self.resume(ip);
                }
            }
        }
        match transaction {
            Some((_, true)) => self.source = Source::Abort(ip),
            Some((true, false)) => self.tell(EventKind::TransactionBegin, ip, ip),
            Some((false, false)) => self.tell(EventKind::TransactionEnd, ip, ip),
            None if bound => {}
            None => self.source = Source::Async(ip),
        }
    }

    fn enable(&mut self, payload: IpPayload) {
        let ip = self.last_ip.update(payload);
        let Some(ip) = ip else {
            return self.lose_now(GapCause::Mismatch);
        };
        if let Some(synchronisation) = &mut self.synchronisation {
            // Erratum BDM70: inside a synchronisation point it says what the FUP would.
            synchronisation.ip = Some(ip);
            return;
        }
        self.forget_pending();
        match self.state {
            State::Off => self.begin(ip),
            State::Lost => self.resume(ip),
            State::On => {
                self.lose(GapCause::Mismatch);
                self.resume(ip);
            }
        }
    }

    fn disable(&mut self, payload: IpPayload) {
        let ip = self.last_ip.update(payload);
        let source = std::mem::replace(&mut self.source, Source::None);
        match self.state {
            State::Off => {}
            State::Lost => self.state = State::Off,
            State::On => {
                self.next_interval(0);
                if let Err(cause) = self.leave(source, ip) {
                    self.lose(cause);
                }
                self.state = State::Off;
            }
        }
        self.forget_pending();
    }

    fn leave(&mut self, source: Source, ip: Option<u64>) -> Result<(), GapCause> {
        if let Source::Async(from) | Source::Abort(from) = source {
            let vector = self.vector.take();
            self.tell_end(EndCause::Interrupt { vector }, from, from);
            return Ok(());
        }
        if let Some(ip) = ip {
            self.walk_to_branch(ip)?;
        }
        self.finish_steps()?;
        let site = *self.cache.site(self.at);
        let (cause, return_to) = match self.cache.run(self.at).exit {
            Exit::Far(Far::SystemCall) => (EndCause::SystemCall, site.after),
            Exit::Missing => return Err(GapCause::NoCode),
            _ => (EndCause::Other, site.after),
        };
        self.tell_end(cause, site.source, return_to);
        Ok(())
    }

    /// An event-trace packet: its vector belongs to the interrupt that follows.
    fn announce(&mut self, kind: u8, vector: u8) {
        const INTERRUPT: u8 = 1;
        if kind == INTERRUPT {
            self.vector = Some(vector);
        }
    }

    // Following code.

    /// Uses branch results until there are none, or a target is needed first.
    #[inline(always)]
    fn use_results(&mut self) -> Result<(), GapCause> {
        while self.result_count > 0 {
            let run = *self.cache.run(self.at);
            if run.step_count != 0 && !self.at_exit {
                self.tell_steps();
            }
            match run.exit {
                Exit::Branch => {
                    let taken = self.next_result();
                    if run.leaves && taken {
                        self.tell_taken_branch();
                    }
                    self.at = self.cache.next(self.trace.code, self.at, taken);
                }
                Exit::Return if self.trace.return_compression => self.compressed_return()?,
                Exit::Continue => self.pass_on()?,
                Exit::Missing => return Err(GapCause::NoCode),
                _ => {
                    self.at_exit = true;
                    return Ok(());
                }
            }
            self.decoded.blocks += u64::from(run.blocks);
            self.at_exit = false;
        }
        Ok(())
    }

    #[inline(always)]
    fn next_result(&mut self) -> bool {
        let taken = self.results >> 63 != 0;
        self.results <<= 1;
        self.result_count -= 1;
        self.interval.used += 1;
        taken
    }

    #[inline(always)]
    fn compressed_return(&mut self) -> Result<(), GapCause> {
        if !self.next_result() {
            return Err(GapCause::Mismatch);
        }
        let entry = self.returns.pop().ok_or(GapCause::UnknownReturn)?;
        let from = self.cache.site(self.at).source;
        let known = entry.space == self.reading.space.of_address(entry.address);
        let call = if known { entry.site } else { Default::default() };
        self.at = self.cache.after_call(self.trace.code, call, self.reading, entry.address);
        let site = self.cache.site(self.at);
        self.sink.event(&Event {
            ticks: self.interval.at_result(),
            from,
            to: entry.address,
            function: site.function,
            at_entry: site.at_entry,
            kind: EventKind::Return,
        });
        Ok(())
    }

    /// Moves to the exit of the run at hand and through it to `to`.
    #[inline(always)]
    fn arrive(&mut self, to: u64) -> Result<(), GapCause> {
        self.finish_steps()?;
        let run = *self.cache.run(self.at);
        let source = self.at;
        let (from, after, call) = {
            let site = self.cache.site(source);
            (site.source, site.after, site.call)
        };
        self.reading.size = self.next_size;
        let kind = match run.exit {
            Exit::IndirectCall => {
                self.push_return(after, call);
                Some(EventKind::Call { return_to: after })
            }
            Exit::Return => Some(EventKind::Return),
            Exit::IndirectJump => None,
            Exit::Far(far) => return self.arrive_far(far, from, after, to),
            Exit::Missing => return Err(GapCause::NoCode),
            Exit::Branch | Exit::Continue => return Err(GapCause::Mismatch),
        };
        self.at = self.cache.target(self.trace.code, source, self.reading, to);
        self.at_exit = false;
        self.decoded.blocks += u64::from(run.blocks);
        let site = self.cache.site(self.at);
        let leaves = site.function != self.cache.site(source).source_function;
        let kind = kind.or(leaves.then_some(EventKind::Jump { indirect: true }));
        if let Some(kind) = kind {
            let ticks = self.interval.at_packet();
            let (function, at_entry) = (site.function, site.at_entry);
            self.sink.event(&Event { ticks, from, to, function, at_entry, kind });
        }
        if self.cache.has_code(self.at) { Ok(()) } else { Err(GapCause::NoCode) }
    }

    fn arrive_far(&mut self, far: Far, from: u64, after: u64, to: u64) -> Result<(), GapCause> {
        let kind = match far {
            Far::SystemReturn => EventKind::SystemReturn,
            Far::SystemCall | Far::Other => EventKind::SystemCall { return_to: after },
        };
        self.reschedule();
        self.tell(kind, from, to);
        self.stand_at_traced(to)
    }

    /// Passes long runs and tells all steps up to an exit that only the trace can open.
    #[inline(always)]
    fn finish_steps(&mut self) -> Result<(), GapCause> {
        loop {
            let run = *self.cache.run(self.at);
            if run.step_count != 0 && !self.at_exit {
                self.tell_steps();
            }
            self.at_exit = true;
            if run.exit != Exit::Continue {
                return Ok(());
            }
            self.pass_on()?;
            self.at_exit = false;
        }
    }

    fn pass_on(&mut self) -> Result<(), GapCause> {
        self.fuel = self.fuel.checked_sub(1).ok_or(GapCause::Endless)?;
        self.at = self.cache.next(self.trace.code, self.at, false);
        Ok(())
    }

    /// Goes instruction by instruction to `ip`, which must be reached without the trace's help.
    fn walk_to(&mut self, ip: u64) -> Result<(), GapCause> {
        self.walk(|address, _| address == ip)?;
        self.stand_at_traced(ip)
    }

    /// Goes to the direct branch that leads to `ip`, or to an exit.
    fn walk_to_branch(&mut self, ip: u64) -> Result<(), GapCause> {
        let address = self.walk(|_, flow| match flow {
            Flow::Next => false,
            Flow::Jump(to) | Flow::Call(to) => to == ip,
            _ => true,
        })?;
        self.stand_at(address);
        Ok(())
    }

    fn walk(&mut self, arrived: impl Fn(u64, Flow) -> bool) -> Result<u64, GapCause> {
        const MOST: usize = 1 << 16;
        if self.at_exit {
            return Err(GapCause::Mismatch);
        }
        let mut address = self.address();
        for _ in 0..MOST {
            let instruction = decode(self.trace.code, self.reading, address);
            if arrived(address, instruction.map_or(Flow::Next, |instruction| instruction.flow)) {
                return Ok(address);
            }
            let instruction = instruction.ok_or(GapCause::NoCode)?;
            address = match instruction.flow {
                Flow::Next => instruction.next,
                Flow::Jump(to) => self.walk_jump(address, to),
                Flow::Call(to) => self.walk_call(address, instruction.next, to),
                _ => return Err(GapCause::Mismatch),
            };
        }
        Err(GapCause::Endless)
    }

    fn walk_jump(&mut self, from: u64, to: u64) -> u64 {
        if place(self.trace.code, self.reading, from).0 != place(self.trace.code, self.reading, to).0 {
            let ticks = self.interval.between_results();
            self.tell_at(ticks, EventKind::Jump { indirect: false }, from, to);
        }
        self.decoded.blocks += 1;
        to
    }

    fn walk_call(&mut self, from: u64, return_to: u64, to: u64) -> u64 {
        let ticks = self.interval.between_results();
        self.tell_at(ticks, EventKind::Call { return_to }, from, to);
        self.push_return(return_to, Default::default());
        self.decoded.blocks += 1;
        to
    }

    #[inline(always)]
    fn push_return(&mut self, address: u64, site: CallSite) {
        let space = self.reading.space.of_address(address);
        self.returns.push(ReturnAddress { address, site, space });
    }

    /// The address that is executed next.
    fn address(&self) -> u64 {
        let site = self.cache.site(self.at);
        if self.at_exit { site.source } else { site.start }
    }

    fn stand_at(&mut self, ip: u64) {
        self.reading.size = self.next_size;
        self.at = self.cache.at(self.trace.code, self.reading, ip);
        self.at_exit = false;
    }

    fn stand_at_traced(&mut self, ip: u64) -> Result<(), GapCause> {
        self.stand_at(ip);
        if self.cache.has_code(self.at) { Ok(()) } else { Err(GapCause::NoCode) }
    }

    // Beginnings, gaps, switches.

    fn begin(&mut self, ip: u64) {
        self.reschedule();
        self.stand_at(ip);
        self.start_interval();
        self.tell(EventKind::Begin, 0, ip);
        self.state = State::On;
        if !self.cache.has_code(self.at) {
            self.lose(GapCause::NoCode);
        }
    }

    /// Ends a gap, if the code at `ip` is known.
    fn resume(&mut self, ip: u64) {
        self.reschedule();
        self.stand_at(ip);
        if !self.cache.has_code(self.at) {
            return;
        }
        self.start_interval();
        self.state = State::On;
        self.fup_is_bound = false;
        self.tell(EventKind::Resume, 0, ip);
    }

    /// What runs from now on is unknown, unless tracing is off.
    #[cold]
    #[inline(never)]
    fn lose(&mut self, cause: GapCause) {
        if self.state == State::On {
            self.lose_now(cause);
        }
    }

    fn lose_now(&mut self, cause: GapCause) {
        if self.state != State::Lost {
            let from = if self.state == State::On { self.address() } else { 0 };
            self.tell_bare(EventKind::Gap(cause), from);
        }
        self.state = State::Lost;
        self.result_count = 0;
        self.at_exit = false;
        self.returns.clear();
        self.forget_pending();
    }

    /// The FUP that may follow says where execution goes on, not where an interrupt hit.
    fn overflow(&mut self) {
        self.synchronisation = None;
        self.lose_now(GapCause::Overflow);
        self.fup_is_bound = true;
    }

    /// Moves on to the thread that has the CPU at this time.
    fn reschedule(&mut self) {
        while let Some(switch) = self.cursor.advance(self.watch.now()) {
            self.reading.space = switch.space;
            self.tell_bare(EventKind::Switch(switch), 0);
        }
    }

    // Telling.

    fn start_interval(&mut self) {
        let now = self.watch.now();
        self.interval = Interval { start: now, end: now, results: 0, used: 0 };
    }

    #[inline(always)]
    fn next_interval(&mut self, results: u64) {
        let end = self.watch.now();
        self.interval = Interval { start: self.interval.end.min(end), end, results, used: 0 };
    }

    #[inline(always)]
    fn tell_steps(&mut self) {
        let ticks = self.interval.between_results();
        let space = self.reading.space;
        for step in self.cache.steps(self.cache.run(self.at)) {
            let kind = match step.kind {
                StepKind::Call { return_to, call } => {
                    let space = space.of_address(return_to);
                    self.returns.push(ReturnAddress { address: return_to, site: call, space });
                    EventKind::Call { return_to }
                }
                StepKind::Jump => EventKind::Jump { indirect: false },
            };
            let Step { from, to, function, at_entry, .. } = *step;
            self.sink.event(&Event { ticks, from, to, function, at_entry, kind });
        }
    }

    #[cold]
    fn tell_taken_branch(&mut self) {
        let site = *self.cache.site(self.at);
        let ticks = self.interval.at_result();
        self.tell_at(ticks, EventKind::Jump { indirect: false }, site.source, site.target());
    }

    fn tell_end(&mut self, cause: EndCause, from: u64, return_to: u64) {
        self.tell_bare(EventKind::End { cause, return_to }, from);
    }

    fn tell(&mut self, kind: EventKind, from: u64, to: u64) {
        self.tell_at(self.watch.now(), kind, from, to);
    }

    fn tell_at(&mut self, ticks: u64, kind: EventKind, from: u64, to: u64) {
        let (function, at_entry) = place(self.trace.code, self.reading, to);
        self.sink.event(&Event { ticks, from, to, function, at_entry, kind });
    }

    fn tell_bare(&mut self, kind: EventKind, from: u64) {
        let ticks = self.watch.now();
        self.sink.event(&Event { ticks, from, to: 0, function: FunctionId::UNKNOWN, at_entry: false, kind });
    }
}

impl Interval {
    /// When the code between the last result used and the next one ran: half-way.
    #[inline(always)]
    fn between_results(&self) -> u64 {
        self.at(2 * self.used + 1)
    }

    /// When the last result used came about.
    #[inline(always)]
    fn at_result(&self) -> u64 {
        self.at(2 * self.used)
    }

    #[inline(always)]
    fn at_packet(&self) -> u64 {
        if self.results == 0 { self.end } else { self.at(2 * self.used + 1) }
    }

    /// The time after `halves` of all the halves of results.
    #[inline(always)]
    fn at(&self, halves: u64) -> u64 {
        let all = 2 * self.results.max(1);
        let length = self.end - self.start;
        if length < 1 << 32 {
            self.start
                + ((length * halves * RECIPROCALS[self.results.max(1) as usize & 63]) >> 24).min(length)
        } else {
            self.start + (u128::from(length) * u128::from(halves.min(all)) / u128::from(all)) as u64
        }
    }
}

/// 2^24 by twice the index, rounded up.
const RECIPROCALS: [u64; 64] = reciprocals();

const fn reciprocals() -> [u64; 64] {
    let mut table = [1 << 23; 64];
    let mut index = 1;
    while index < 64 {
        table[index] = (1u64 << 24).div_ceil(2 * index as u64);
        index += 1;
    }
    table
}
