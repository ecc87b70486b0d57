// SPDX-License-Identifier: Apache-2.0
//! Traces that include the kernel, with user code or alone.

use super::*;

fn tsc(ticks: u8) -> [u8; 8] {
    [0x19, ticks, 0, 0, 0, 0, 0, 0]
}

fn switch(ticks: u64, thread: u32) -> Switch {
    Switch { ticks, thread: ThreadId(thread), space: USER, departure: Departure::Blocked }
}

/// `syscall; jne .` for the user; the kernel: `call +0x100; sysretq`, and there `ret`.
fn a_program_and_its_kernel() -> Pieces {
    let mut kernel = vec![0xe8, 0xfb, 0x00, 0x00, 0x00, 0x48, 0x0f, 0x07];
    kernel.resize(0x100, 0x90);
    kernel.push(0xc3);
    Pieces(vec![(USER, BASE, vec![0x0f, 0x05, 0x75, 0xfe]), (SpaceId::KERNEL, KERNEL, kernel)])
}

fn kinds(events: &[Event]) -> Vec<EventKind> {
    events.iter().map(|event| event.kind).collect()
}

#[test]
fn in_the_kernel_a_switch_comes_between_two_packets() {
    let schedule = Schedule::new([switch(0, 1), switch(20, 2)]);
    let packets: [&[u8]; 7] = [
        &psb(Some(BASE), 1),
        &tsc(10),
        &address(TIP, KERNEL),
        &tsc(30),
        &TAKEN,
        &tsc(40),
        &address(TIP, BASE + 2),
    ];
    let events = decode_with(&a_program_and_its_kernel(), &schedule, true, &packets);
    assert_eq!(
        kinds(&events)[1..],
        [
            EventKind::Start,
            EventKind::SystemCall { return_to: BASE + 2 },
            EventKind::Switch(switch(20, 2)),
            EventKind::Call { return_to: KERNEL + 5 },
            EventKind::Return,
            EventKind::SystemReturn,
        ]
    );
    assert_eq!(events[3].ticks, 20);
}

#[test]
fn in_user_code_a_switch_is_held_until_the_kernel_was_entered() {
    let schedule = Schedule::new([switch(0, 1), switch(20, 2)]);
    let packets: [&[u8]; 6] =
        [&psb(Some(BASE + 2), 1), &tsc(30), &NOT_TAKEN, &tsc(40), &PGD_WITHOUT_IP, &address(PGE, BASE + 2)];
    let mut bytes = vec![0x0f, 0x05, 0x75, 0xfe, 0x0f, 0x05];
    bytes.resize(16, 0x90);
    let events = decode_with(&at_base(&bytes), &schedule, true, &packets);
    let end = EventKind::End { cause: EndCause::SystemCall, return_to: BASE + 6 };
    assert_eq!(kinds(&events)[2..], [end, EventKind::Switch(switch(20, 2)), EventKind::Start]);
}

#[test]
fn switch_newer_than_the_time_of_an_enabling_comes_before_it() {
    // syscall; jne . in one space; jne .; syscall in the other.
    let code = Pieces(vec![
        (USER, BASE, vec![0x0f, 0x05, 0x75, 0xfe]),
        (SpaceId(2), BASE, vec![0x75, 0xfe, 0x0f, 0x05]),
    ]);
    let second = Switch { space: SpaceId(2), ..switch(20, 2) };
    let schedule = Schedule::new([switch(0, 1), second]);
    let enabling = address(PGE, BASE);
    let packets: [&[u8]; 6] = [&psb(Some(BASE), 1), &PGD_WITHOUT_IP, &enabling, &TAKEN, &tsc(30), &NOT_TAKEN];
    let events = decode_with(&code, &schedule, true, &packets);
    assert_eq!(kinds(&events)[3..], [EventKind::Switch(second), EventKind::Start], "{events:x?}");
    // Tracing went off before the next time: the switch may be later.
    let packets: [&[u8]; 5] = [&psb(Some(BASE), 1), &PGD_WITHOUT_IP, &enabling, &PGD_WITHOUT_IP, &tsc(30)];
    let events = decode_with(&code, &schedule, true, &packets);
    assert_eq!(kinds(&events)[3], EventKind::Start, "{events:x?}");
}

#[test]
fn kernel_alone_ends_at_the_return_to_user_code() {
    let end = EventKind::End { cause: EndCause::SystemReturn, return_to: 0 };
    let packets: [&[u8]; 5] =
        [&psb(None, 1), &address(PGE, KERNEL), &TAKEN, &PGD_WITHOUT_IP, &address(PGE, KERNEL)];
    assert_eq!(
        decode(&a_program_and_its_kernel(), &packets),
        [
            (EventKind::Start, 0, KERNEL),
            call(KERNEL, 5, KERNEL + 0x100),
            (EventKind::Return, KERNEL + 0x100, KERNEL + 5),
            (end, KERNEL + 5, 0),
            (EventKind::Start, 0, KERNEL)
        ]
    );
}

#[test]
fn interrupt_in_the_kernel_returns_into_it() {
    // nop … | the handler: iretq
    let mut kernel = vec![0x90; 0x100];
    kernel.extend([0x48, 0xcf]);
    let code = Pieces(vec![(SpaceId::KERNEL, KERNEL, kernel)]);
    let packets: [&[u8]; 5] = [
        &psb(None, 1),
        &address(PGE, KERNEL),
        &address(FUP, KERNEL + 7),
        &address(TIP, KERNEL + 0x100),
        &address(TIP, KERNEL + 7),
    ];
    assert_eq!(
        decode(&code, &packets)[1..],
        [
            (EventKind::Interrupt { vector: None }, KERNEL + 7, KERNEL + 0x100),
            (EventKind::SystemReturn, KERNEL + 0x100, KERNEL + 7)
        ]
    );
}

/// The program without the kernel's code.
fn a_program_alone() -> Pieces {
    at_base(&[0x0f, 0x05, 0x90, 0x90])
}

fn gap(cause: GapCause, from: u64) -> (EventKind, u64, u64) {
    (EventKind::Gap(cause), from, 0)
}

/// A system call into a kernel without an image, then these packets, after the two events of the call.
fn decode_after_system_call(code: &Pieces, packets: &[&[u8]]) -> Vec<(EventKind, u64, u64)> {
    let entered: [&[u8]; 2] = [&psb(Some(BASE), 1), &address(TIP, KERNEL)];
    decode(code, &[&entered, packets].concat())[2..].to_vec()
}

#[test]
fn kernel_without_an_image_is_one_gap_up_to_user_code() {
    let entered = gap(GapCause::NoCode, KERNEL);
    let packets: [&[u8]; 4] = [&TAKEN, &address(TIP, KERNEL + 0x100), &NOT_TAKEN, &address(TIP, BASE + 2)];
    let resumed = (EventKind::Resume, 0, BASE + 2);
    assert_eq!(decode_after_system_call(&a_program_alone(), &packets), [entered, resumed]);
}

#[test]
fn gap_of_kernel_code_that_continues_in_user_code_is_a_gap_of_both() {
    let entered = gap(GapCause::NoCode, KERNEL);
    let elsewhere = address(TIP, 0x50_0000);
    let packets: [&[u8]; 4] = [&elsewhere, &address(TIP, KERNEL), &elsewhere, &elsewhere];
    let further = gap(GapCause::NoCode, 0x50_0000);
    assert_eq!(decode_after_system_call(&a_program_alone(), &packets), [entered, further, further]);
    let overflow = [0x02, 0xf3];
    let lost = gap(GapCause::Overflow, 0);
    assert_eq!(decode_after_system_call(&a_program_alone(), &[&overflow, &overflow]), [entered, lost]);
}

#[test]
fn disabled_tracing_ends_a_gap_of_kernel_code() {
    let entered = gap(GapCause::NoCode, KERNEL);
    let end = (EventKind::End { cause: EndCause::Gap, return_to: 0 }, 0, 0);
    assert_eq!(decode_after_system_call(&a_program_alone(), &[&PGD_WITHOUT_IP]), [entered, end]);
}

#[test]
fn segments_agree_on_gaps_of_kernel_code() {
    let first = [&psb(Some(BASE), 1)[..], &address(TIP, KERNEL)].concat();
    for (at, then) in [(KERNEL + 8, 0x50_0000), (0x50_0000, KERNEL + 8), (KERNEL + 8, BASE + 2)] {
        let second = [&psb(Some(at), 9)[..], &address(TIP, then), &address(TIP, 0x50_0000)].concat();
        let bytes = [&first[..], &second].concat();
        let (code, schedule) = (a_program_alone(), Schedule::of_thread(ThreadId(1), USER));
        let trace =
            Trace { bytes: &bytes, code: &code, schedule: &schedule, clock: CLOCK, return_compression: true };
        let decoded = |segments: &[(usize, usize)]| {
            let mut events: Vec<Event> = Vec::new();
            for &(start, end) in segments {
                let segment = Segment { start, end, first: start == 0 };
                decode_segment(&trace, segment, &mut RunCache::new(), &mut events);
            }
            events
        };
        let whole = decoded(&[(0, bytes.len())]);
        assert_eq!(decoded(&[(0, first.len()), (first.len(), bytes.len())]), whole, "{at:x} {then:x}");
    }
}
