// SPDX-License-Identifier: Apache-2.0
//! Traces of a part of the code.

use super::*;

/// Code of which only these addresses are traced.
struct Filtered {
    code: Pieces,
    traced: Vec<(u64, u64)>,
}

impl Code for Filtered {
    fn bytes(&self, space: SpaceId, address: u64) -> Option<&[u8]> {
        self.code.bytes(space, address)
    }

    fn function(&self, space: SpaceId, address: u64) -> Option<Function> {
        self.code.function(space, address)
    }

    fn is_filtered(&self) -> bool {
        true
    }

    fn is_left_out(&self, _: SpaceId, address: u64) -> bool {
        !self.traced.iter().any(|&(from, to)| (from..to).contains(&address))
    }
}

/// Only the first function is traced.
fn first_function(bytes: &[u8]) -> Filtered {
    Filtered { code: at_base(bytes), traced: vec![(BASE, BASE + 0x100)] }
}

type Events = Vec<(EventKind, u64, u64)>;

/// The events after the start, if tracing ends, to `ip` or without an address.
fn ended(code: &impl Code, ip: Option<u64>) -> Events {
    let end = ip.map_or(PGD_WITHOUT_IP.to_vec(), |ip| address(PGD, ip));
    decode(code, &[&psb(Some(BASE), 1), &end])[1..].to_vec()
}

fn end(cause: EndCause, from: u64) -> (EventKind, u64, u64) {
    (EventKind::End { cause, return_to: 0 }, from, 0)
}

/// nop; call +0x200; jmp +0x300; jne +0x400; ret
fn three_ways_out() -> Vec<u8> {
    let mut bytes =
        vec![0x90, 0xe8, 0xfa, 0x01, 0, 0, 0xe9, 0xf5, 0x02, 0, 0, 0x0f, 0x85, 0xef, 0x03, 0, 0, 0xc3];
    bytes.resize(0x500, 0x90);
    bytes
}

#[test]
fn call_out_of_the_filter_names_the_untraced_function() {
    let code = first_function(&three_ways_out());
    let expected = [call(BASE + 1, 5, BASE + 0x200), end(EndCause::Other, BASE + 1)];
    assert_eq!(ended(&code, None), expected, "erratum SKL014");
    assert_eq!(ended(&code, Some(BASE + 0x200)), expected);
    assert_eq!(ended(&code.code, Some(BASE + 0x200)), expected, "the filters are not known");
}

#[test]
fn jump_out_of_the_filter_names_its_target() {
    let code = first_function(&three_ways_out());
    let packets = |ip: Option<u64>| {
        let end = ip.map_or(PGD_WITHOUT_IP.to_vec(), |ip| address(PGD, ip));
        decode(&code, &[&psb(Some(BASE + 6), 1), &end])[1..].to_vec()
    };
    let jump = (EventKind::Jump { indirect: false }, BASE + 6, BASE + 0x300);
    assert_eq!(packets(None), [jump, end(EndCause::Jump, BASE + 6)]);
    assert_eq!(packets(Some(BASE + 0x300)), packets(None));
}

#[test]
fn taken_branch_out_of_the_filter_ends_tracing() {
    let code = first_function(&three_ways_out());
    let packets = |end: &[u8]| decode(&code, &[&psb(Some(BASE + 11), 1), end])[1..].to_vec();
    let jump = (EventKind::Jump { indirect: false }, BASE + 11, BASE + 0x400);
    assert_eq!(packets(&PGD_WITHOUT_IP), [jump, end(EndCause::Jump, BASE + 11)]);
    assert_eq!(packets(&address(PGD, BASE + 0x400)), packets(&PGD_WITHOUT_IP));
}

#[test]
fn branch_to_a_part_of_the_same_function_leaves_no_function() {
    // nop; jmp +0x80, which the filter leaves out
    let mut bytes = vec![0x90, 0xeb, 0x7d];
    bytes.resize(0x100, 0x90);
    let code = Filtered { code: at_base(&bytes), traced: vec![(BASE, BASE + 0x40)] };
    let expected = [end(EndCause::Other, BASE + 1)];
    assert_eq!(ended(&code, None), expected);
    assert_eq!(ended(&code, Some(BASE + 0x80)), expected);
    assert_eq!(ended(&code.code, Some(BASE + 0x80)), expected);
}

#[test]
fn trace_ends_at_the_first_branch_that_leaves_all_ranges() {
    // call +0x200, traced too; there: jmp +0x280, traced too; there: call +0x300
    let mut bytes = vec![0xe8, 0xfb, 0x01, 0, 0];
    bytes.resize(0x200, 0x90);
    bytes.extend([0xeb, 0x7e]);
    bytes.resize(0x280, 0x90);
    bytes.extend([0xe8, 0x7b, 0, 0, 0]);
    bytes.resize(0x400, 0x90);
    let code =
        Filtered { code: at_base(&bytes), traced: vec![(BASE, BASE + 0x40), (BASE + 0x200, BASE + 0x300)] };
    let expected = [
        call(BASE, 5, BASE + 0x200),
        call(BASE + 0x280, 5, BASE + 0x300),
        end(EndCause::Other, BASE + 0x280),
    ];
    assert_eq!(ended(&code, None), expected);
    assert_eq!(ended(&code, Some(BASE + 0x300)), expected);
}

#[test]
fn indirect_branch_out_of_the_filter_goes_to_the_address_of_the_packet() {
    for (bytes, is_call) in [([0xff, 0xd0], true), ([0xff, 0xe0], false)] {
        let code = first_function(&bytes);
        let expected = match is_call {
            true => [call(BASE, 2, BASE + 0x700), end(EndCause::Other, BASE)],
            false => [(EventKind::Jump { indirect: true }, BASE, BASE + 0x700), end(EndCause::Jump, BASE)],
        };
        assert_eq!(ended(&code, Some(BASE + 0x700)), expected);
    }
}

#[test]
fn system_call_ends_a_filtered_trace_like_any_other() {
    let code = first_function(&[0x90, 0x0f, 0x05, 0xe8, 0, 2, 0, 0]);
    let end = EventKind::End { cause: EndCause::SystemCall, return_to: BASE + 3 };
    assert_eq!(ended(&code, None), [(end, BASE + 1, 0)]);
    assert_eq!(
        ended(&code, Some(KERNEL)),
        [(end, BASE + 1, 0)],
        "the kernel is traced, but not this part of it"
    );
    let interrupted = [&address(FUP, BASE + 1)[..], &PGD_WITHOUT_IP].concat();
    let end = EventKind::End { cause: EndCause::Interrupt { vector: None }, return_to: BASE + 1 };
    assert_eq!(decode(&code, &[&psb(Some(BASE), 1), &interrupted])[1], (end, BASE + 1, 0));
}

#[test]
fn range_that_stops_the_trace_ends_it_once() {
    let code = first_function(&three_ways_out());
    let stopped = [&PGD_WITHOUT_IP[..], &[0x02, 0x83]].concat();
    let expected = [START, call(BASE + 1, 5, BASE + 0x200), end(EndCause::Other, BASE + 1)];
    assert_eq!(decode(&code, &[&psb(Some(BASE), 1), &stopped]), expected);
    assert_eq!(decode(&code, &[&psb(Some(BASE), 1), &[0x02, 0x83]]), expected, "without the end itself");
}

#[test]
fn without_filters_an_end_without_an_address_is_at_the_instruction_that_turned_tracing_off() {
    // call +0x100; there: syscall
    let mut bytes = vec![0xe8, 0xfb, 0, 0, 0];
    bytes.resize(0x100, 0x90);
    bytes.extend([0x0f, 0x05]);
    let code = at_base(&bytes);
    let end = EventKind::End { cause: EndCause::SystemCall, return_to: BASE + 0x102 };
    assert_eq!(ended(&code, None), [call(BASE, 5, BASE + 0x100), (end, BASE + 0x100, 0)]);
}

#[test]
fn compressed_return_may_go_to_a_call_out_of_the_filter() {
    // The processor kept the call on its return stack while tracing was off.
    let code = first_function(&three_ways_out());
    let packets: [&[u8]; 4] = [&psb(Some(BASE), 1), &PGD_WITHOUT_IP, &address(PGE, BASE + 17), &TAKEN];
    let returned = (EventKind::Return, BASE + 17, BASE + 6);
    assert_eq!(decode(&code, &packets).last(), Some(&returned));
}

#[test]
fn return_out_of_the_filter_has_its_target() {
    let code = at_base(&[0x90, 0xc3, 0x90]);
    let end = |return_to| EventKind::End { cause: EndCause::Return, return_to };
    let packets = [&psb(Some(BASE), 1)[..], &address(PGD, BASE + 0x1000)];
    assert_eq!(decode(&code, &packets)[1], (end(BASE + 0x1000), BASE + 1, 0));
    let packets = [&psb(Some(BASE), 1)[..], &PGD_WITHOUT_IP];
    assert_eq!(decode(&code, &packets)[1], (end(0), BASE + 1, 0));
}
