// SPDX-License-Identifier: Apache-2.0
//! Busy periods, and `--span loop`: a poll at an idle place that returns at once ends one.

use crate::kernel::{Record, unchanged};
use crate::timeline::{Outcome, Timeline};

/// The system calls of the letter `p`, and of `s`.
const POLL: i32 = 7;
const NANOSLEEP: i32 = 35;
const LOSS_SPANS_FULL: i64 = 13;
const LOSS_LATE: i64 = 18;
const LOSS_PERIODS_ABANDONED: i64 = 19;

/// The first thread waits for work in poll. `returns` are the ticks at which one of its polls returns, and how many
/// events it has found.
fn timeline(text: &str, returns: &[(u32, i32)]) -> Timeline {
    let returned =
        |(tick, found): &(u32, i32)| format!("at {tick} set cpu_now 0\nat {tick} returned {POLL} {found}");
    let lines: Vec<String> = returns.iter().map(returned).collect();
    Timeline::new(text).with(&format!("at 0 idle 0 {POLL}\n{}", lines.join("\n")))
}

fn run(timeline: &Timeline) -> Outcome {
    let outcome = Outcome::of(unchanged(), timeline).unwrap_or_else(|error| panic!("{error}"));
    outcome.check_states().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(outcome.losses(LOSS_SPANS_FULL), 0);
    outcome
}

/// `START..END`, in ticks, with the ticks of each state that is not 0. The states add up to the period's length.
fn periods(timeline: &Timeline) -> Vec<String> {
    let outcome = run(timeline);
    let show = |period: &Record| {
        let (start, end) = (outcome.tick(period.number("start")), outcome.tick(period.number("end")));
        let mut text = format!("{start}..{end}");
        let ticks = |field: &str| period.number(field) / timeline.tick_ns as i64;
        for (name, field) in [
            ("cpu", "on_cpu"),
            ("irq", "irq"),
            ("runnable", "runnable"),
            ("preempted", "preempted"),
            ("lock", "blocked.0"),
            ("sleep", "blocked.5"),
        ] {
            if ticks(field) != 0 {
                text += &format!(" {name} {}", ticks(field));
            }
        }
        let states: i64 = (0..14).map(|sleep| period.number(&format!("blocked.{sleep}"))).sum::<i64>()
            + ["on_cpu", "runnable", "preempted"].map(|field| period.number(field)).iter().sum::<i64>();
        assert_eq!(states, period.number("end") - period.number("start"), "{text}");
        text
    };
    outcome.records("busy").map(show).collect()
}

#[test]
fn period_goes_from_a_wakeup_to_the_next_wait_for_work() {
    assert_eq!(
        periods(&timeline("a: RpppwRRRpppRRLLwRRppR", &[])),
        ["4..8 cpu 3 runnable 1", "11..18 cpu 4 runnable 1 lock 2"]
    );
}

#[test]
fn poll_that_returns_at_once_ends_a_period() {
    // The poll that slept returns in tick 6.
    let found = periods(&timeline("a: RpppwRRRRRRRRLLwRRppR", &[(6, 1), (9, 1), (11, 2)]));
    assert_eq!(found, ["4..9 cpu 4 runnable 1", "9..11 cpu 2", "11..18 cpu 4 runnable 1 lock 2"]);
}

#[test]
fn period_between_polls_has_its_interrupts_and_waits_for_a_cpu() {
    let found =
        periods(&timeline("a: RppRRRRiRRPPRRRppR\nb: ..........RR.....", &[(4, 1), (6, 1), (9, 1), (14, 1)]));
    assert_eq!(found, ["3..6 cpu 3", "6..9 cpu 3 irq 1", "9..14 cpu 3 preempted 2", "14..15 cpu 1"]);
}

#[test]
fn poll_elsewhere_ends_nothing() {
    let other =
        "at 0 idle 0 7\nat 4 set cpu_now 0\nat 4 returned 7 1\nat 6 returned 232 1\nat 7 returned 35 0";
    assert_eq!(periods(&Timeline::new("a: RppRRRRRRppR").with(other)), ["3..9 cpu 6"]);
    // Of a thread that is not known to wait for work anywhere.
    let none = "at 4 set cpu_now 0\nat 4 returned 7 1\nat 6 returned 7 1";
    assert_eq!(periods(&Timeline::new("a: RppRRRRRRppR").with(none)), [""; 0]);
}

#[test]
fn wait_for_work_elsewhere_is_no_wait_in_the_poll_that_follows() {
    // The thread waits for work in nanosleep as well: its poll in tick 6 has not slept.
    let both =
        format!("at 0 idle 0 {NANOSLEEP}\nat 0 idle 0 {POLL}\nat 6 set cpu_now 0\nat 6 returned {POLL} 1");
    assert_eq!(periods(&Timeline::new("a: RssRRRRRRppR").with(&both)), ["3..6 cpu 3", "6..9 cpu 3"]);
}

/// Ten ticks are a second, in which the kernel side looks up once whether a place is idle.
#[test]
fn no_period_goes_on_through_waits_at_a_place_that_is_no_longer_idle() {
    let of_seconds = |verdict: &str| {
        let verdicts = format!("at 0 idle 0 {POLL}\nat 9 {verdict} 0 {POLL}\nat 19 idle 0 {POLL}");
        let timeline = Timeline::new(&format!("a: R{}R", "ppRRR".repeat(7))).with(&verdicts);
        let timeline = timeline.ticks_of(100_000_000);
        (periods(&timeline), run(&timeline).losses(LOSS_PERIODS_ABANDONED))
    };
    let all = ["3..6 cpu 3", "8..11 cpu 3", "13..16 cpu 3", "18..21 cpu 3", "23..26 cpu 3", "28..31 cpu 3"]
        .map(String::from);
    assert_eq!(of_seconds("idle"), (all.to_vec(), 0));
    assert_eq!(of_seconds("asked"), (all.to_vec(), 0), "it still is idle as far as is known");
    assert_eq!(
        of_seconds("unknown"),
        (["3..6 cpu 3", "23..26 cpu 3", "28..31 cpu 3"].map(String::from).to_vec(), 1)
    );
}

/// The sleeps are in the seconds before and after the verdict.
#[test]
fn no_period_goes_on_through_waits_at_a_place_that_has_become_idle() {
    let found = |second: &str| {
        let verdicts = format!("at 0 idle 0 {POLL}\n{second}");
        let text = "a: RppRssRRRRRRssRRppRRssRRppR";
        let timeline = Timeline::new(text).with(&verdicts).ticks_of(100_000_000);
        (periods(&timeline), run(&timeline).losses(LOSS_PERIODS_ABANDONED))
    };
    assert_eq!(found(""), (["3..16 cpu 9 sleep 4", "18..24 cpu 4 sleep 2"].map(String::from).to_vec(), 0));
    assert_eq!(
        found(&format!("at 9 idle 0 {NANOSLEEP}")),
        (["14..16 cpu 2", "18..20 cpu 2", "22..24 cpu 2"].map(String::from).to_vec(), 1)
    );
}

#[test]
fn wait_late_in_a_period_that_finds_a_full_ring_is_counted() {
    let text = format!("a: R{}ppRRRRRLLwRRRppR", "ppRRR".repeat(3));
    let of = |used: u32| {
        run(&Timeline::new(&text).with(&format!(
            "at 0 idle 0 {POLL}\nat 0 set min_stall_ns 1000000000\nat 17 set ring_used {used}"
        )))
        .losses(LOSS_LATE)
    };
    assert_eq!((of(0), of(80)), (0, 1));
}

#[test]
fn loop_that_spins_has_periods_only_where_it_works() {
    let spin = timeline("a: RppRRRRRRRRRRRRRRRRppR", &[(4, 1), (8, 0), (10, 0), (12, 1), (16, 0)]);
    // Ticks of 1 µs: what follows a poll without events is spinning, unless it takes 5 µs.
    assert_eq!(periods(&spin.clone().ticks_of(1_000)), ["3..8 cpu 5", "12..16 cpu 4"]);
    // Ticks of 10 µs: all of it is work.
    assert_eq!(
        periods(&spin.ticks_of(10_000)),
        ["3..8 cpu 5", "8..10 cpu 2", "10..12 cpu 2", "12..16 cpu 4", "16..19 cpu 3"]
    );
}

#[test]
fn polls_over_the_end_of_a_second_leave_the_ledger_whole() {
    let returns: Vec<(u32, i32)> = (4..28).map(|tick| (tick, 1)).collect();
    let text = format!("a: Rpp{}ppRR", "R".repeat(26));
    let found = periods(&timeline(&text, &returns).ticks_of(100_000_000));
    let (last, others) = found.split_last().expect("a period");
    assert!(others.len() > 16 && others.iter().skip(1).all(|period| period.ends_with("cpu 1")), "{found:?}");
    assert_eq!((others.first().map(String::as_str), last.as_str()), (Some("3..5 cpu 2"), "27..29 cpu 2"));
}

/// The scheduler has counted a tick as running that the tracepoints have in the wait before: that wait was over when
/// the second period began.
#[test]
fn running_time_that_a_switch_out_takes_from_an_earlier_wait_is_in_no_period() {
    for (wait, others) in [("P", "b: ......RR......"), ("L", "")] {
        let text =
            format!("a: RppRRR{wait}{wait}RRRRppRR\n$: x..xxx.xxxxx..xx\n=: RppRRR{wait}RRRRRppRR\n{others}");
        let found = periods(&timeline(&text, &[(4, 1), (10, 1)]));
        assert_eq!(found.last().map(String::as_str), Some("10..12 cpu 2"), "{wait}: {found:?}");
    }
}

#[test]
fn what_the_hypervisor_took_between_polls_is_running_time() {
    let found = periods(&timeline("a: RppRRRhhRRRRppRR", &[(4, 1), (6, 1), (9, 1)]));
    assert_eq!(found, ["3..6 cpu 3", "6..9 cpu 3", "9..12 cpu 3"]);
}
