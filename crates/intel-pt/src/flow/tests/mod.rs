// SPDX-License-Identifier: Apache-2.0
//! Small programs and hand-written packets, each for one rule of the manual.

mod filters;
mod kernel;
mod oddities;

use super::*;
use crate::code::{Function, FunctionId};
use crate::event::{EndCause, Event, EventKind};
use crate::packets::PSB;
use crate::schedule::{Departure, Switch, ThreadId};

const USER: SpaceId = SpaceId(1);
const BASE: u64 = 0x40_0000;
const KERNEL: u64 = 0xffff_ffff_8100_0000;

/// Code pieces at their addresses, a function every 0x100 bytes.
struct Pieces(Vec<(SpaceId, u64, Vec<u8>)>);

impl Code for Pieces {
    fn bytes(&self, space: SpaceId, address: u64) -> Option<&[u8]> {
        self.0.iter().filter(|piece| piece.0 == space).find_map(|(_, start, bytes)| {
            bytes.get(usize::try_from(address.checked_sub(*start)?).ok()?..).filter(|bytes| !bytes.is_empty())
        })
    }

    fn function(&self, _: SpaceId, address: u64) -> Option<Function> {
        Some(Function { id: FunctionId((address >> 8) as u32 & 0xffff), entry: address & !0xff })
    }
}

fn at_base(bytes: &[u8]) -> Pieces {
    Pieces(vec![(USER, BASE, bytes.to_vec())])
}

/// A synchronisation point.
fn psb(ip: Option<u64>, ticks: u8) -> Vec<u8> {
    let mut bytes = PSB.to_vec();
    bytes.extend([0x19, ticks, 0, 0, 0, 0, 0, 0, 0x02, 0x03, 10, 0]);
    bytes.extend(ip.map_or(Vec::new(), |ip| address(0x1d, ip)));
    bytes.extend([0x02, 0x23]);
    bytes
}

fn address(opcode: u8, ip: u64) -> Vec<u8> {
    [&[opcode | 0xc0][..], &ip.to_le_bytes()].concat()
}

const TIP: u8 = 0x0d;
const PGE: u8 = 0x11;
const PGD: u8 = 0x01;
const FUP: u8 = 0x1d;
const PGD_WITHOUT_IP: [u8; 1] = [0x01];
const TAKEN: [u8; 1] = [0b110];
const NOT_TAKEN: [u8; 1] = [0b100];

const CLOCK: ClockFacts = ClockFacts {
    mtc_shift: 0,
    tsc_ctc_numerator: 0,
    tsc_ctc_denominator: 0,
    max_non_turbo_ratio: 10,
    reference_ticks: 0,
};

fn decode_with(
    code: &impl Code,
    schedule: &Schedule,
    return_compression: bool,
    packets: &[&[u8]],
) -> Vec<Event> {
    let bytes = packets.concat();
    let trace = Trace { bytes: &bytes, code, schedule, clock: CLOCK, return_compression };
    let mut events = Vec::new();
    let whole = Segment { start: 0, end: bytes.len(), first: true };
    decode_segment(&trace, whole, &mut RunCache::new(), &mut events);
    events
}

/// Kind, from and to of the events, without the first one, which names the thread.
fn decode(code: &impl Code, packets: &[&[u8]]) -> Vec<(EventKind, u64, u64)> {
    let schedule = Schedule::of_thread(ThreadId(1), USER);
    let events = decode_with(code, &schedule, true, packets);
    events.iter().skip(1).map(|event| (event.kind, event.from, event.to)).collect()
}

const START: (EventKind, u64, u64) = (EventKind::Start, 0, BASE);

fn call(from: u64, length: u64, to: u64) -> (EventKind, u64, u64) {
    (EventKind::Call { return_to: from + length }, from, to)
}

#[test]
fn no_event_is_emitted_before_the_trace_proves_it() {
    // call +0x100; its target: jne .
    let mut bytes = vec![0xe8, 0xfb, 0x00, 0x00, 0x00];
    bytes.resize(0x100, 0x90);
    bytes.extend([0x75, 0xfe, 0xc3]);
    let code = at_base(&bytes);
    assert_eq!(decode(&code, &[&psb(Some(BASE), 1)]), [START]);
    assert_eq!(decode(&code, &[&psb(Some(BASE), 1), &TAKEN]), [START, call(BASE, 5, BASE + 0x100)]);
}

#[test]
fn compressed_return_goes_to_its_call() {
    // call +0x100; nop …; its target: ret
    let mut bytes = vec![0xe8, 0xfb, 0x00, 0x00, 0x00];
    bytes.resize(0x100, 0x90);
    bytes.push(0xc3);
    let code = at_base(&bytes);
    let returned = (EventKind::Return, BASE + 0x100, BASE + 5);
    assert_eq!(decode(&code, &[&psb(Some(BASE), 1), &TAKEN]), [START, call(BASE, 5, BASE + 0x100), returned]);
    let gap = |cause, from| (EventKind::Gap(cause), from, 0);
    assert_eq!(
        decode(&code, &[&psb(Some(BASE), 1), &NOT_TAKEN])[2],
        gap(GapCause::Mismatch, BASE + 0x100),
        "a return is never not taken"
    );
    assert_eq!(
        decode(&code, &[&psb(Some(BASE + 0x100), 1), &TAKEN])[1],
        gap(GapCause::UnknownReturn, BASE + 0x100)
    );
}

#[test]
fn target_may_come_after_later_results() {
    // jmp *%rax; at +0x10: jne +0; at +0x12: jmp *%rax
    let mut bytes = vec![0xff, 0xe0];
    bytes.resize(0x10, 0x90);
    bytes.extend([0x75, 0x00, 0xff, 0xe0]);
    bytes.resize(0x200, 0x90);
    let code = at_base(&bytes);
    let schedule = Schedule::of_thread(ThreadId(1), USER);
    let packets: [&[u8]; 4] =
        [&psb(Some(BASE), 1), &TAKEN, &address(TIP, BASE + 0x10), &address(TIP, BASE + 0x110)];
    let events = decode_with(&code, &schedule, false, &packets);
    assert_eq!(events.len(), 3);
    assert_eq!((events[2].from, events[2].to), (BASE + 0x12, BASE + 0x110));
    assert_eq!(events[2].kind, EventKind::Jump { indirect: true });
}

#[test]
fn system_call_ends_tracing_and_returns_behind_itself() {
    // nop; syscall; nop
    let code = at_base(&[0x90, 0x0f, 0x05, 0x90]);
    let end = EventKind::End { cause: EndCause::SystemCall, return_to: BASE + 3 };
    assert_eq!(
        decode(&code, &[&psb(Some(BASE), 1), &PGD_WITHOUT_IP, &address(PGE, BASE + 3)]),
        [START, (end, BASE + 1, 0), (EventKind::Start, 0, BASE + 3)]
    );
}

#[test]
fn interrupt_ends_tracing_at_its_address() {
    let code = at_base(&[0x90; 16]);
    let end = |vector| EventKind::End { cause: EndCause::Interrupt { vector }, return_to: BASE + 2 };
    let fup = address(FUP, BASE + 2);
    assert_eq!(decode(&code, &[&psb(Some(BASE), 1), &fup, &PGD_WITHOUT_IP])[1], (end(None), BASE + 2, 0));
    let fault = [0x02, 0x13, 0x81, 14];
    assert_eq!(
        decode(&code, &[&psb(Some(BASE), 1), &fault, &fup, &PGD_WITHOUT_IP])[1],
        (end(Some(14)), BASE + 2, 0)
    );
}

#[test]
fn kernel_code_is_the_same_in_every_space() {
    // syscall; nop | kernel: sysretq
    let code = Pieces(vec![
        (USER, BASE, vec![0x0f, 0x05, 0x90]),
        (SpaceId::KERNEL, KERNEL, vec![0x90, 0x48, 0x0f, 0x07]),
    ]);
    assert_eq!(
        decode(&code, &[&psb(Some(BASE), 1), &address(TIP, KERNEL), &address(TIP, BASE + 2)]),
        [
            START,
            (EventKind::SystemCall { return_to: BASE + 2 }, BASE, KERNEL),
            (EventKind::SystemReturn, KERNEL + 1, BASE + 2)
        ]
    );
    let fup = address(FUP, BASE);
    assert_eq!(
        decode(&code, &[&psb(Some(BASE), 1), &fup, &address(TIP, KERNEL)])[1],
        (EventKind::Interrupt { vector: None }, BASE, KERNEL)
    );
}

#[test]
fn transactions() {
    let code = at_base(&[0x90; 0x40]);
    let start = [&[0x99, 0x21][..], &address(FUP, BASE + 2)].concat();
    let commit = [&[0x99, 0x20][..], &address(FUP, BASE + 4)].concat();
    let abort = [&[0x99, 0x22][..], &address(FUP, BASE + 8), &address(TIP, BASE + 0x20)].concat();
    assert_eq!(
        decode(&code, &[&psb(Some(BASE), 1), &start, &commit, &abort]),
        [
            START,
            (EventKind::TransactionStart, BASE + 2, BASE + 2),
            (EventKind::TransactionEnd, BASE + 4, BASE + 4),
            (EventKind::TransactionAbort, BASE + 8, BASE + 0x20)
        ]
    );
}

#[test]
fn address_that_belongs_to_a_packet_is_not_an_interrupt() {
    // nop; nop; jmp *%rax
    let mut bytes = vec![0x90, 0x90, 0xff, 0xe0];
    bytes.resize(0x200, 0x90);
    let ptwrite = [&[0x02, 0x92, 1, 0, 0, 0][..], &address(FUP, BASE + 1)].concat();
    assert_eq!(
        decode(&at_base(&bytes), &[&psb(Some(BASE), 1), &ptwrite, &address(TIP, BASE + 0x100)]),
        [START, (EventKind::Jump { indirect: true }, BASE + 2, BASE + 0x100)]
    );
}

#[test]
fn after_an_overflow_execution_continues_at_the_next_address() {
    let mut bytes = vec![0x90, 0x90, 0xff, 0xe0];
    bytes.resize(0x200, 0x90);
    let code = at_base(&bytes);
    let overflow = [0x02, 0xf3];
    let gap = (EventKind::Gap(GapCause::Overflow), BASE, 0);
    let resume = |to| (EventKind::Resume, 0, to);
    let jump = (EventKind::Jump { indirect: true }, BASE + 2, BASE + 0x100);
    let tip = address(TIP, BASE + 0x100);
    assert_eq!(
        decode(&code, &[&psb(Some(BASE), 1), &overflow, &address(FUP, BASE + 1), &tip]),
        [START, gap, resume(BASE + 1), jump]
    );
    let dropped = decode(&code, &[&psb(Some(BASE), 1), &overflow, &TAKEN, &tip]);
    assert_eq!(dropped, [START, gap, resume(BASE + 0x100)], "erratum SKD010: the FUP is missing");
    let off = decode(&code, &[&psb(Some(BASE), 1), &overflow, &PGD_WITHOUT_IP, &address(PGE, BASE + 1)]);
    assert_eq!(off, [START, gap, (EventKind::Start, 0, BASE + 1)], "erratum APL11: it ends at once");
}

#[test]
fn overflow_may_write_a_synchronisation_point_before_the_address() {
    let mut bytes = vec![0x90, 0x90, 0xff, 0xe0];
    bytes.resize(0x200, 0x90);
    let code = at_base(&bytes);
    let (tip, fup) = (address(TIP, BASE + 0x100), address(FUP, BASE + 1));
    let first = [&psb(Some(BASE), 1)[..], &[0x02, 0xf3]].concat();
    let packets = [&first[..], &psb(None, 9), &fup, &tip].concat();
    let gap = (EventKind::Gap(GapCause::Overflow), BASE, 0);
    let resume = (EventKind::Resume, 0, BASE + 1);
    let jump = (EventKind::Jump { indirect: true }, BASE + 2, BASE + 0x100);
    assert_eq!(decode(&code, &[&packets]), [START, gap, resume, jump]);
    let schedule = Schedule::of_thread(ThreadId(1), USER);
    let trace =
        Trace { bytes: &packets, code: &code, schedule: &schedule, clock: CLOCK, return_compression: true };
    let mut events: Vec<Event> = Vec::new();
    let second = Segment { start: first.len(), end: packets.len(), first: false };
    decode_segment(&trace, second, &mut RunCache::new(), &mut events);
    let kinds: Vec<EventKind> = events.iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [resume.0, jump.0], "the second segment alone");
}

#[test]
fn missing_code_is_a_gap_until_known_code() {
    // jmp *%rax
    let code = at_base(&[0xff, 0xe0, 0x90, 0x90]);
    let unknown = address(TIP, 0x50_0000);
    let back = address(TIP, BASE + 2);
    assert_eq!(
        decode(&code, &[&psb(Some(BASE), 1), &unknown, &TAKEN, &unknown, &TAKEN, &back]),
        [
            START,
            (EventKind::Jump { indirect: true }, BASE, 0x50_0000),
            (EventKind::Gap(GapCause::NoCode), 0x50_0000, 0),
            (EventKind::Resume, 0, BASE + 2)
        ]
    );
}

#[test]
fn synchronisation_point_at_another_place_is_a_gap_of_no_length() {
    let mut bytes = vec![0xff, 0xe0];
    bytes.resize(0x40, 0x90);
    assert_eq!(
        decode(&at_base(&bytes), &[&psb(Some(BASE), 1), &psb(Some(BASE + 0x20), 9)]),
        [START, (EventKind::Gap(GapCause::Mismatch), BASE, 0), (EventKind::Resume, 0, BASE + 0x20)]
    );
}

#[test]
fn enabling_right_after_a_synchronisation_point_changes_nothing() {
    let code = at_base(&[0x90; 8]);
    assert_eq!(decode(&code, &[&psb(None, 1), &psb(Some(BASE), 2), &address(PGE, BASE)]), [START]);
}

#[test]
fn unknown_bytes_are_a_gap_to_the_next_synchronisation_point() {
    let code = at_base(&[0x90; 8]);
    assert_eq!(
        decode(&code, &[&psb(Some(BASE), 1), &[0x02, 0xff, 0x02], &psb(Some(BASE + 4), 9)]),
        [START, (EventKind::Gap(GapCause::BadPacket), BASE, 0), (EventKind::Resume, 0, BASE + 4)]
    );
}

#[test]
fn endless_loop_is_left_by_a_gap() {
    // jmp .
    let code = at_base(&[0xeb, 0xfe, 0x90]);
    assert_eq!(
        decode(&code, &[&psb(Some(BASE), 1), &TAKEN]),
        [START, (EventKind::Gap(GapCause::Endless), BASE, 0)]
    );
    assert_eq!(
        decode(&code, &[&psb(Some(BASE), 1), &address(FUP, BASE + 2)])[1..],
        [(EventKind::Gap(GapCause::Endless), BASE, 0), (EventKind::Resume, 0, BASE + 2)]
    );
}

#[test]
fn another_thread_has_another_address_space() {
    // syscall; nop in one, nop; jne . in the other
    let code = Pieces(vec![(USER, BASE, vec![0x0f, 0x05, 0x90]), (SpaceId(2), BASE, vec![0x90, 0x75, 0xfe])]);
    let switch = |ticks, thread, space| Switch {
        ticks,
        thread: ThreadId(thread),
        space: SpaceId(space),
        departure: Departure::Blocked,
    };
    let schedule = Schedule::new([switch(0, 1, 1), switch(20, 2, 2)]);
    let tsc = [0x19, 30, 0, 0, 0, 0, 0, 0];
    let packets: [&[u8]; 5] =
        [&psb(Some(BASE), 1), &PGD_WITHOUT_IP, &tsc, &address(PGE, BASE), &[0b1111_1110]];
    let events = decode_with(&code, &schedule, true, &packets);
    assert_eq!(events.last().map(|event| event.kind), Some(EventKind::Start), "{events:x?}");
    assert_eq!(events[3].kind, EventKind::Switch(switch(20, 2, 2)));
}

#[test]
fn code_of_32_bits_is_read_as_such() {
    // 0x40 is `inc eax` in 32 bits and a prefix in 64: inc eax; jne .-1
    let code = at_base(&[0x40, 0x75, 0xfd, 0x90]);
    let mode = [0x99, 0x02];
    let enable = address(PGE, BASE);
    let events = decode(&code, &[&psb(None, 1), &mode, &enable, &TAKEN, &NOT_TAKEN, &address(FUP, BASE + 3)]);
    assert_eq!(events, [START]);
}

#[test]
fn events_inside_a_packet_are_spread_over_its_time() {
    // Six branches, each after a call of the next: call +1; ret-less targets that fall through.
    let mut bytes = Vec::new();
    for _ in 0..6 {
        bytes.extend([0xe8, 0x01, 0, 0, 0, 0x90, 0x74, 0x00]);
    }
    let schedule = Schedule::of_thread(ThreadId(1), USER);
    let cycles = [0x07 | 120 << 3 & 0xf8, 120 >> 5 << 1];
    let events =
        decode_with(&at_base(&bytes), &schedule, true, &[&psb(Some(BASE), 100), &cycles, &[0b1000_0000]]);
    let times: Vec<u64> = events[2..].iter().map(|event| event.ticks - 100).collect();
    assert_eq!(times, [10, 30, 50, 70, 90, 110]);
}
