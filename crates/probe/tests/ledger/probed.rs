// SPDX-License-Identifier: Apache-2.0
//! Spans of `--span`: what a thread waited between two probes, and which calls of a function are spans.

use crate::kernel::{Record, unchanged};
use crate::timeline::{Outcome, Timeline};

/// `SPAN_PROBE_CALL` and `SPAN_PROBE_CONDITION` of bpf/include/records.h, with the condition JE.
const CALL: u64 = 0x100;
const IF_EQUAL: u64 = 0x200 | 4 << 12;
/// Of the flags register.
const CARRY: u64 = 1;
const PARITY: u64 = 1 << 2;
const ZERO: u64 = 1 << 6;
const SIGN: u64 = 1 << 7;
const OVERFLOW: u64 = 1 << 11;
/// Numbers of `enum loss`.
const LOSS_PROBED_SPANS: i64 = 16;
const LOSS_SPANS_WITHOUT_END: i64 = 17;

/// `probes` are lines such as `3 begin COOKIE SP`, whose first word is the tick. The first thread hits them.
fn outcome(text: &str, probes: &[String]) -> Outcome {
    let lines = probes.iter().map(|probe| {
        let (tick, command) = probe.split_once(' ').expect("a tick and a command");
        format!("at {tick} set cpu_now 0\nat {tick} {command}")
    });
    let timeline = Timeline::new(text).with(&lines.collect::<Vec<_>>().join("\n"));
    let outcome = Outcome::of(unchanged(), &timeline).unwrap_or_else(|error| panic!("{error}"));
    outcome.check_states().unwrap_or_else(|error| panic!("{error}"));
    outcome
}

/// `START..END`, in ticks, with the ticks of each state that is not 0.
fn spans(outcome: &Outcome) -> Vec<String> {
    let show = |span: &Record| {
        let mut text =
            format!("{}..{}", outcome.tick(span.number("start")), outcome.tick(span.number("end")));
        for (name, field) in [
            ("lock", "blocked.0"),
            ("disk", "blocked.2"),
            ("minor", "blocked.12"),
            ("runnable", "runnable"),
            ("preempted", "preempted"),
            ("irq", "irq"),
        ] {
            let ns = span.number(field);
            if ns != 0 {
                text += &format!(" {name} {}", ns / 1_000_000);
            }
        }
        text
    };
    outcome.records("probed").map(show).collect()
}

fn begin(tick: u32, cookie: u64, sp: u64) -> String {
    format!("{tick} begin {cookie} {sp}")
}

fn end(tick: u32, cookie: u64, sp: u64) -> String {
    format!("{tick} end {cookie} {sp}")
}

#[test]
fn span_has_the_waits_between_its_probes_and_no_others() {
    let text = "a: RRLLwRRRLLLwwRRPPRRiRddwR";
    let found = outcome(text, &[begin(7, 0, 0), end(18, 0, 0), begin(18, 1, 0), end(21, 1, 0)]);
    assert_eq!(
        spans(&found),
        ["7..18 lock 3 runnable 2 preempted 2"].into_iter().chain(["18..21 irq 1"]).collect::<Vec<_>>()
    );
    let of: Vec<i64> = found.records("probed").map(|span| span.number("span")).collect();
    assert_eq!(of, [0, 1]);
}

#[test]
fn span_over_the_end_of_a_second_has_all_of_it() {
    let text = "a: RRLLLLLLLLLLLLLLLLLLLLLLLLwRR";
    let lines = [begin(1, 0, 0), end(28, 0, 0)];
    let probes: Vec<String> = lines
        .iter()
        .map(|line| {
            let (tick, command) = line.split_once(' ').expect("a tick");
            format!("at {tick} set cpu_now 0\nat {tick} {command}")
        })
        .collect();
    let timeline = Timeline::new(text).ticks_of(100_000_000).with(&probes.join("\n"));
    let outcome = Outcome::of(unchanged(), &timeline).unwrap_or_else(|error| panic!("{error}"));
    let span = outcome.records("probed").next().expect("a span");
    assert_eq!((span.number("blocked.0"), span.number("runnable")), (2_400_000_000, 100_000_000));
}

#[test]
fn outer_call_of_a_function_that_calls_itself_is_the_span() {
    let memory = |tick: u32, address: u64, value: u64| format!("{tick} memory {address} {value}");
    let nested = [
        memory(1, 5_000, 77),
        begin(1, CALL, 5_000),
        begin(3, CALL, 4_000),
        end(5, CALL, 4_000),
        end(8, CALL, 5_000),
    ];
    let found = outcome("a: RRRRRRRRRR", &nested);
    assert_eq!((spans(&found), found.losses(LOSS_SPANS_WITHOUT_END)), (vec!["1..8".to_owned()], 0));
    // The first call was left by a jump, and its frame has other contents by now.
    let left = [
        memory(1, 5_000, 77),
        begin(1, CALL, 5_000),
        memory(3, 5_000, 78),
        begin(3, CALL, 4_000),
        end(5, CALL, 4_000),
    ];
    let found = outcome("a: RRRRRRRRRR", &left);
    assert_eq!((spans(&found), found.losses(LOSS_SPANS_WITHOUT_END)), (vec!["3..5".to_owned()], 1));
    // The next one begins further out.
    let left = [memory(1, 5_000, 77), begin(1, CALL, 5_000), begin(3, CALL, 6_000), end(5, CALL, 6_000)];
    let found = outcome("a: RRRRRRRRRR", &left);
    assert_eq!((spans(&found), found.losses(LOSS_SPANS_WITHOUT_END)), (vec!["3..5".to_owned()], 1));
}

#[test]
fn innermost_span_is_one_where_probes_of_a_kind_are_hit_again() {
    let probes = [
        begin(1, 0, 5_000),
        begin(3, 0, 4_000),
        end(5, 0, 4_000),
        end(7, 0, 5_000),
        begin(8, 0, 0),
        end(9, 0, 0),
    ];
    let found = outcome("a: RRRRRRRRRRR", &probes);
    assert_eq!(
        (spans(&found), found.losses(LOSS_SPANS_WITHOUT_END)),
        (vec!["3..5".to_owned(), "8..9".to_owned()], 1)
    );
}

#[test]
fn conditional_jump_ends_a_call_where_it_is_taken() {
    let conditional = |tick: u32, flags: u64| format!("{tick} end {} 5000 {flags}", CALL | IF_EQUAL);
    let found = outcome("a: RRRRRRRRRR", &[begin(1, CALL, 5_000), conditional(3, 0), conditional(6, ZERO)]);
    assert_eq!(spans(&found), ["1..6"]);
}

#[test]
fn condition_holds_by_the_flags_of_the_processor() {
    let holds = |condition: u64, flags: u64| {
        let cookie = CALL | 0x200 | condition << 12;
        let end = format!("6 end {cookie} 5000 {flags}");
        spans(&outcome("a: RRRRRRRRRR", &[begin(1, CALL, 5_000), end])).len() == 1
    };
    let holding = |flags: u64| -> Vec<u64> { (0..16).filter(|&condition| holds(condition, flags)).collect() };
    assert_eq!(holding(0), [1, 3, 5, 7, 9, 11, 13, 15]);
    assert_eq!(holding(CARRY), [1, 2, 5, 6, 9, 11, 13, 15]);
    assert_eq!(holding(ZERO | PARITY), [1, 3, 4, 6, 9, 10, 13, 14]);
    assert_eq!(holding(SIGN), [1, 3, 5, 7, 8, 11, 12, 14]);
    assert_eq!(holding(SIGN | OVERFLOW), [0, 3, 5, 7, 8, 11, 13, 15]);
    assert_eq!(holding(OVERFLOW), [0, 3, 5, 7, 9, 11, 12, 14]);
}

#[test]
fn other_image_of_a_process_is_in_no_span_of_the_one_before() {
    let found = outcome(
        "a: RRRRRRRRRR",
        &[begin(1, 0, 0), "3 field 0 exec_id 9".to_owned(), end(4, 0, 0), begin(5, 0, 0), end(7, 0, 0)],
    );
    assert_eq!(spans(&found), ["5..7"]);
}

/// The ledger stands still in a pause.
#[test]
fn span_over_a_pause_is_left_out() {
    let timeline = |armed: u64| {
        Timeline::new("a: RRRRRRRRRR").with(&format!(
            "at 1 set cpu_now 0\nat 1 begin 0 0\nat 5 set armed_at {armed}\nat 7 set cpu_now 0\nat 7 end 0 0"
        ))
    };
    let spans_since = |armed| {
        let outcome = Outcome::of(unchanged(), &timeline(armed)).unwrap_or_else(|error| panic!("{error}"));
        spans(&outcome).len()
    };
    let start = 50_000_000_000;
    assert_eq!((spans_since(start), spans_since(start + 5_000_000)), (1, 0));
    let ends_within = outcome("a: RRRRRRRRRR", &[begin(1, 0, 0), "5 set window 0".to_owned(), end(7, 0, 0)]);
    assert_eq!(spans(&ends_within).len(), 0);
}

#[test]
fn spans_that_find_a_full_ring_are_counted() {
    let found = outcome("a: RRRRRRRRRR", &[begin(1, 0, 0), "2 set ring_used 80".to_owned(), end(4, 0, 0)]);
    assert_eq!((spans(&found).len(), found.losses(LOSS_PROBED_SPANS)), (0, 1));
}
