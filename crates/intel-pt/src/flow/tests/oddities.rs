// SPDX-License-Identifier: Apache-2.0
//! Features of real traces beyond branches: code that differs from the image, packets of other features,
//! repeated events, empty synchronisation points.

use super::*;

const PTWRITE_WITH_IP: [u8; 6] = [0x02, 0x92, 1, 0, 0, 0];
const OVERFLOW: [u8; 2] = [0x02, 0xf3];

/// nop; nop; jmp *%rax; nop …
fn a_jump() -> Pieces {
    let mut bytes = vec![0x90, 0x90, 0xff, 0xe0];
    bytes.resize(0x200, 0x90);
    at_base(&bytes)
}

fn jump(to: u64) -> (EventKind, u64, u64) {
    (EventKind::Jump { indirect: true }, BASE + 2, to)
}

fn interrupted(vector: Option<u8>, at: u64) -> (EventKind, u64, u64) {
    (EventKind::End { cause: EndCause::Interrupt { vector }, return_to: at }, at, 0)
}

#[test]
fn changed_code_is_a_gap_up_to_the_address_of_the_packet() {
    // The image has `jne .` where a breakpoint was, or a call that was patched in.
    let mut bytes = vec![0x75, 0xfe];
    bytes.resize(0x100, 0x90);
    bytes.extend([0xff, 0xe0]);
    let packets: [&[u8]; 3] = [&psb(Some(BASE), 1), &address(TIP, BASE + 0x100), &address(TIP, BASE + 0x20)];
    assert_eq!(
        decode(&at_base(&bytes), &packets),
        [
            START,
            (EventKind::Gap(GapCause::Mismatch), BASE, 0),
            (EventKind::Resume, 0, BASE + 0x100),
            (EventKind::Jump { indirect: true }, BASE + 0x100, BASE + 0x20)
        ]
    );
}

#[test]
fn packets_with_addresses_keep_them() {
    let fup = address(FUP, BASE + 1);
    let sequences: [&[&[u8]]; 6] = [
        &[&PTWRITE_WITH_IP, &fup],
        // MWAIT, power entry, execution stopped: one address for all; power exit.
        &[&[0x02, 0xc2, 1, 0, 0, 0, 0, 0, 0, 0], &[0x02, 0x22, 0, 0], &[0x02, 0x62], &fup],
        &[&[0x02, 0xe2], &fup, &[0x02, 0xa2, 0, 0, 0, 0, 0]],
        // A block of registers from PEBS.
        &[&[0x02, 0x63, 0x01, 0x04, 1, 2, 3, 4, 5, 6, 7, 8, 0x02, 0xb3], &fup],
        // The event trace: an `iret` at the address, and a mode change there.
        &[&[0x02, 0x13, 0x82, 0], &fup],
        &[&[0x99, 0x05], &fup],
    ];
    for sequence in sequences {
        let packets = sequence.concat();
        let found = decode(&a_jump(), &[&psb(Some(BASE), 1), &packets, &address(TIP, BASE + 0x100)]);
        assert_eq!(found, [START, jump(BASE + 0x100)], "{packets:x?}");
    }
}

#[test]
fn missing_address_is_not_waited_for() {
    let bytes = [0x74, 0x00, 0x90, 0x90, 0x90];
    let fup = address(FUP, BASE + 3);
    assert_eq!(
        decode(&at_base(&bytes), &[&psb(Some(BASE), 1), &PTWRITE_WITH_IP, &TAKEN, &fup, &PGD_WITHOUT_IP]),
        [START, interrupted(None, BASE + 3)]
    );
}

#[test]
fn event_has_its_vector_and_data() {
    let page_fault = [&[0x02, 0x13, 0x81, 14][..], &[0x02, 0x53, 0, 0, 0x10, 0, 0, 0, 0, 0, 0]].concat();
    let fup = address(FUP, BASE + 1);
    assert_eq!(
        decode(&a_jump(), &[&psb(Some(BASE), 1), &page_fault, &fup, &PGD_WITHOUT_IP])[1..],
        [interrupted(Some(14), BASE + 1)]
    );
}

#[test]
fn repeated_fault_ends_and_starts_tracing_each_time() {
    let fault = [&address(FUP, BASE + 1)[..], &PGD_WITHOUT_IP, &address(PGE, BASE + 1)].concat();
    let again = [interrupted(None, BASE + 1), (EventKind::Start, 0, BASE + 1)];
    let found = decode(&a_jump(), &[&psb(Some(BASE), 1), &fault, &fault, &address(TIP, BASE + 0x100)]);
    assert_eq!(found, [&[START][..], &again, &again, &[jump(BASE + 0x100)]].concat());
}

#[test]
fn code_that_runs_out_of_the_filter_ends_at_its_edge() {
    // Behind the edge there is a call, which is not traced.
    let code = at_base(&[0x90, 0x90, 0x90, 0x90, 0xe8, 0x10, 0, 0, 0, 0x90]);
    let end = EventKind::End { cause: EndCause::Other, return_to: BASE + 3 };
    assert_eq!(
        decode(&code, &[&psb(Some(BASE), 1), &address(PGD, BASE + 3), &address(PGE, BASE + 9)]),
        [START, (end, BASE + 3, 0), (EventKind::Start, 0, BASE + 9)]
    );
}

#[test]
fn stopped_trace_continues_where_it_is_started() {
    let stop = [0x02, 0x83];
    let end = EventKind::End { cause: EndCause::Other, return_to: BASE + 4 };
    let expected = [START, (end, BASE + 2, 0), (EventKind::Start, 0, BASE + 8)];
    let start = address(PGE, BASE + 8);
    assert_eq!(decode(&a_jump(), &[&psb(Some(BASE), 1), &PGD_WITHOUT_IP, &stop, &start]), expected);
    assert_eq!(decode(&a_jump(), &[&psb(Some(BASE), 1), &stop, &start]), expected);
}

#[test]
fn consecutive_overflows_are_one_gap() {
    let packets: [&[u8]; 5] = [&psb(Some(BASE), 1), &OVERFLOW, &OVERFLOW, &OVERFLOW, &address(FUP, BASE + 1)];
    let gap = (EventKind::Gap(GapCause::Overflow), BASE, 0);
    assert_eq!(decode(&a_jump(), &packets), [START, gap, (EventKind::Resume, 0, BASE + 1)]);
}

#[test]
fn empty_synchronisation_points_emit_nothing() {
    let point = psb(Some(BASE), 1);
    let packets = [&point[..], &point, &point, &address(TIP, BASE + 0x100)].concat();
    assert_eq!(decode(&a_jump(), &[&packets]), [START, jump(BASE + 0x100)]);
    let [segments, whole] = divided(&a_jump(), &packets);
    assert_eq!(segments, [EventKind::Start, EventKind::Jump { indirect: true }]);
    assert_eq!(segments, whole);
}

#[test]
fn synchronisation_point_in_a_call_keeps_the_call_and_drops_its_return_address() {
    // call +0x100; there: nop; ret. The processor drops it, too, and writes the target of the return.
    let mut bytes = vec![0xe8, 0xfb, 0, 0, 0, 0x90];
    bytes.resize(0x100, 0x90);
    bytes.extend([0x90, 0xc3]);
    let packets: [&[u8]; 3] = [&psb(Some(BASE), 1), &psb(Some(BASE + 0x101), 9), &address(TIP, BASE + 5)];
    let expected = [START, call(BASE, 5, BASE + 0x100), (EventKind::Return, BASE + 0x101, BASE + 5)];
    assert_eq!(decode(&at_base(&bytes), &packets), expected);
}

#[test]
fn calls_before_a_system_call_are_returned_from_by_a_bit() {
    // call +0x100; there: syscall; ret
    let mut bytes = vec![0xe8, 0xfb, 0, 0, 0, 0x90];
    bytes.resize(0x100, 0x90);
    bytes.extend([0x0f, 0x05, 0xc3]);
    let packets: [&[u8]; 4] = [&psb(Some(BASE), 1), &PGD_WITHOUT_IP, &address(PGE, BASE + 0x102), &TAKEN];
    let found = decode(&at_base(&bytes), &packets);
    assert_eq!(found.last(), Some(&(EventKind::Return, BASE + 0x102, BASE + 5)));
}

/// Events of the segments alone, and of all together.
fn divided(code: &Pieces, packets: &[u8]) -> [Vec<EventKind>; 2] {
    let schedule = Schedule::of_thread(ThreadId(1), USER);
    let trace = Trace { bytes: packets, code, schedule: &schedule, clock: CLOCK, return_compression: true };
    let starts = segment_starts(packets);
    let decode = |starts: &[usize]| {
        let mut kinds = Vec::new();
        for (index, &start) in starts.iter().enumerate() {
            let end = starts.get(index + 1).copied().unwrap_or(packets.len());
            let mut sink = |event: &Event| kinds.push(event.kind);
            let segment = Segment { start, end, first: index == 0 };
            decode_segment(&trace, segment, &mut RunCache::new(), &mut sink);
        }
        kinds.split_off(1)
    };
    [decode(&starts), decode(&starts[..1])]
}

#[test]
fn interrupted_synchronisation_point_still_starts_a_segment() {
    let broken = &psb(Some(BASE), 1)[..psb(Some(BASE), 1).len() - 2];
    let (tip, fup) = (address(TIP, BASE + 0x100), address(FUP, BASE + 1));
    let jump = EventKind::Jump { indirect: true };
    let gap = EventKind::Gap(GapCause::Overflow);
    let packets = [broken, &tip].concat();
    assert_eq!(divided(&a_jump(), &packets)[0], [EventKind::Start, jump]);
    let packets = [broken, &OVERFLOW, &fup, &tip].concat();
    assert_eq!(divided(&a_jump(), &packets)[0], [EventKind::Start, gap, EventKind::Resume, jump]);
    let enabling = [broken, &[PGE], &[0x02, 0x23], &tip].concat();
    assert_eq!(divided(&a_jump(), &enabling)[0], [EventKind::Start, jump]);
    let end = EventKind::End { cause: EndCause::Other, return_to: BASE + 4 };
    let packets = [broken, &PGD_WITHOUT_IP, &address(PGE, BASE)].concat();
    assert_eq!(divided(&a_jump(), &packets)[0], [EventKind::Start, end, EventKind::Start]);
    // In the middle of a trace, and interrupted by another synchronisation point.
    for middle in [&[&OVERFLOW, &fup[..]].concat()[..], &psb(Some(BASE + 1), 3), &[0x02, 0xff]] {
        let packets = [&psb(Some(BASE), 1), broken, middle, &psb(Some(BASE + 1), 5), &tip].concat();
        let [segments, whole] = divided(&a_jump(), &packets);
        assert_eq!(segments, whole, "{middle:x?}");
        assert_eq!(segments.last(), Some(&jump), "{middle:x?}");
    }
}
