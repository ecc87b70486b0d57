// SPDX-License-Identifier: Apache-2.0
//! The errors that profilers of waiting time make, one timeline each.

use std::path::Path;

use crate::kernel::unchanged;
use crate::timeline::{Outcome, Sleep, Timeline};

/// `SAMPLE_FAULT_MINOR` of bpf/include/records.h; the next one is of major faults.
const SAMPLE_FAULT_MINOR: i64 = 3;
/// Numbers of `enum loss`.
const LOSS_RING_FULL: i64 = 0;
const LOSS_LATENCY_FULL: i64 = 3;
const LOSS_SCRATCH_BUSY: i64 = 6;
const LOSS_NO_WAKEUP: i64 = 7;
const LOSS_NO_SWITCH: i64 = 10;

/// 100 ms, so that ten ticks are a second.
const TENTH_NS: u64 = 100_000_000;
/// Within the largest distance between the scheduler's clock and that of the tracepoints.
const MOMENT_NS: u64 = 5_000;

/// Timelines whose ledgers are those of the picture.
pub fn pictures() -> Vec<(&'static str, Timeline)> {
    let seconds = |text: &str| Timeline::new(text).ticks_of(TENTH_NS);
    let moments = |text: &str| Timeline::new(text).ticks_of(MOMENT_NS);
    vec![
        ("wait_does_not_end_at_its_wakeup", Timeline::new("a: RRRLLLLwwwRRLLwRRR")),
        ("preempted_thread_gets_no_wakeup", Timeline::new("a: RRRPPPPRRRPRRR\nb: ..NRRRRLLLLLLL")),
        ("every_reason_has_its_state", Timeline::new("a: RRLLwRccwRddwRppwRsswRmmwR")),
        ("wait_is_charged_to_the_second_in_which_it_was", seconds("a: RRRRRLLLLLLLLLLLLLLLLLwwwwwwwwRRRR")),
        ("wakeup_in_a_later_second", seconds("a: RRRRRLLLLLLLLLwwwwwwwwwwwwRRRR")),
        ("preemption_over_seconds", seconds("a: RRRPPPPPPPPPPPPPPPPPPPPRRRPPR")),
        ("running_over_seconds", seconds("a: RLwRRRRRRRRRRRRRRRRRRRRRRRRRRRLwR")),
        (
            "new_thread_waits_for_its_first_cpu",
            seconds("a: .....NNNNNNNNNNRRRRRLLwR\nb@1: RRLLwRRLLwRRRLwRRRRRRRRR"),
        ),
        (
            "thread_that_ends_is_counted_up_to_there",
            seconds("a: RRLLwRRRRRRRRRRRR......\nb@1: RRRRRRRRRRRRLLwRRRRRRRR"),
        ),
        (
            "clock_step_moves_the_ends_of_seconds",
            seconds("a: RRLLwRRLLwRRLLwRRRRRLLwRRPPR\nclock: .......+......+"),
        ),
        // The scheduler's own sum is the running time.
        (
            "time_that_ran_before_the_switch_in_is_taken_from_the_wait",
            moments("a: RRRLLLLLwRRRRLLLLLL\n$: xxx.....xxxxx......\n=: RRRLLLLRwRRRRLLLLLL"),
        ),
        (
            "time_that_ran_before_the_switch_in_is_taken_from_the_preemption",
            moments("a: RRRPPPPPRRRRLLLLLL\n$: xxx....xxxxx......\n=: RRRPPPPRRRRRLLLLLL"),
        ),
        (
            "time_that_ran_before_the_first_switch_in_is_taken_from_the_wait",
            moments("a: ...NNNNNRRRRLLLLLL\n$: .......xxxxx......\n=: ...NNNNRRRRRLLLLLL"),
        ),
        (
            "time_after_the_schedulers_last_reading_is_left_for_the_wait",
            moments("a: RRRLLLLLRRRRLLLLLLR\n$: xxx.....xxx.......x\n=: RRRLLLLLRRRLLLLLLLR"),
        ),
        (
            "no_more_is_taken_from_a_wait_than_it_lasted",
            moments("a: RLwRRRLwwRRRLLLRR\n$: x..xxxxxxxxx...xx\n=: RLwRRRRwwRRRLLLRR"),
        ),
        ("steal_time_is_running_time", moments("a: RRRLLLLLwRhhhhhhhhhhRLLLLL")),
        (
            "two_threads_that_take_turns_on_a_cpu",
            seconds(
                "a: RRRPPPPRRRRLLLLLwwwRRRRPPPPPP\nb: wwwRRRRPPPPRRRRRRRRPPPPRRRRRR\n=: PPPRRRRPPPPRRRRRRRRPPPPRRRRRR",
            ),
        ),
        ("interrupt_is_a_part_of_the_running_time", seconds("a: RRLLwRRRiiRRRiRLLLwRiiRRRRRRR")),
        ("minor_fault_moves_running_time", seconds("a: RLwRRfffRRRRfRRLLwRRRRRRfRRRRR")),
        ("major_fault_moves_its_waits", Timeline::new("a: RLwRRFFDDDDwwFFRRLLwRRFDDDRRR")),
        ("minor_fault_that_waits", Timeline::new("a: RLwRRffuuuuwwffRRLLwRRfuuuRRR")),
        (
            "fault_within_which_the_cpu_is_taken",
            Timeline::new(
                "a: RLwRRFFPPPFFDDwFRRLLwRR\nb: wwwwwwwRRRLLLLLLLLLLLLL\n=: PPPPPPPRRRLLLLLLLLLLLLL",
            ),
        ),
        ("interrupt_within_a_fault_is_no_part_of_it", Timeline::new("a: RLwRRffjjffRRRFjFDDwFjFRRLLwR")),
        (
            "fault_is_major_from_its_second_on",
            // It was taken for a minor one in the second before.
            seconds("a: RLwRRFFFFFFFFFFFRRRLLwR\n=: RLwRRfffffFFFFFFRRRLLwR"),
        ),
        (
            "second_that_ends_after_a_wakeup_before_the_switch_out",
            moments("a: RLwRRRRRwwwwwwwwRRRR\n!: .......W............")
                .starting_at(1_000_000_000 - 11 * MOMENT_NS),
        ),
        (
            "wakeup_that_is_not_seen_after_one_that_was",
            seconds("a: RLwRRRRLLLLLLLLRRRLLwR\n!: ...............-......"),
        ),
        (
            "fault_that_is_major_as_its_end_shows",
            Timeline::new("a: RLwRRffuuuuwwFFRRLLwR\n=: RLwRRFFDDDDwwFFRRLLwR"),
        ),
        (
            "fault_over_seconds",
            seconds("a: RLwRRFFFDDDDDDDDDDDDwwwFFFRRRLLwR\n=: RLwRRFFFDDDDDDDDDDDDwwwFFFRRRLLwR"),
        ),
        ("fault_that_a_signal_ends_is_running_time", Timeline::new("a: RLwRRxxxRRRLLwRRR")),
        (
            "fault_that_fails_unseen_is_running_time",
            Timeline::new("a: RLwRRyyyRRRLLwRRRffRRR\n=: RLwRRRRRRRRLLwRRRffRRR"),
        ),
        // Where a thread is does not matter to its ledger.
        (
            "thread_that_migrates_while_it_is_blocked",
            Timeline::new("a: RRRLLLLLwwwRRRPPPPRRR\n@: 000001111222222233333"),
        ),
        // What is seen late, early or not at all.
        (
            "wakeup_before_the_switch_out_that_it_ends",
            moments("a: RLwRRRRRwwwwwwRRRR\n!: .......W.........."),
        ),
        (
            "wakeup_long_before_the_switch_out_ended_no_wait",
            Timeline::new("a: RRRRRLLLLLLwRRRR\n!: ..W............."),
        ),
        (
            "wakeup_before_the_switch_out_before_6_17",
            moments("a: RLwRRRRRwwwwwwRRRR\n!: .......W..........\n=: RLwRRRRRwwwwwwRRRR")
                .with("set stacks_at_switch_out 1"),
        ),
        (
            "wakeup_long_before_the_switch_out_before_6_17",
            Timeline::new("a: RRRRRLLLLLLwRRRR\n!: ..W.............").with("set stacks_at_switch_out 1"),
        ),
        ("wakeup_that_is_not_seen", Timeline::new("a: RRRRLLLLLLRRRR\n!: ..........-")),
        (
            "switch_that_only_the_incoming_thread_sees",
            Timeline::new("a: RRRLLLwRRRRPPRR\n!: .......<......."),
        ),
        (
            "run_that_no_event_starts",
            Timeline::new("a: RRRLLLwwRRRLLLwRR\n!: ........v........\n=: RRRLLLwwRRRLLLwRR"),
        ),
        ("preempted_run_that_no_event_starts", Timeline::new("a: RRRPPPPPRRRLLLwRR\n!: ........v........")),
        (
            "switch_ins_of_kernels_before_6_17",
            Timeline::new("a: RRLLLLwwwRRPPPRRdddwRR\nb@1: RccccwRRRRRRRRRRRRRRRR")
                .with("set stacks_at_switch_out 1"),
        ),
        (
            "records_that_find_a_full_ring_lose_no_time",
            seconds("a: RRLLwRRRRRRRLLLLLLLLLLwwRRR").with("set ring_used 99"),
        ),
        // What is under way when the recording starts, or ends.
        ("wait_that_is_open_at_the_start", Timeline::new("a: sssssssswwRRRLLwR\narmed: ...AAAAAAAAAAAAAA")),
        ("run_that_is_open_at_the_start", Timeline::new("a: RRRRRRRRLLLwRRR\narmed: ...AAAAAAAAAAAA")),
        (
            "preemption_that_is_open_at_the_start",
            Timeline::new(
                "a: RRPPPPPPPPRRRLLwR\nb: wwRRRRRRRRLLLLLLL\narmed: ....AAAAAAAAAAAAA\n=: PPRRRRRRRRLLLLLLL",
            ),
        ),
        (
            "waits_that_are_open_at_the_end",
            Timeline::new(
                "a: RRRLLLLLLLLLLLLLL\nb@1: RRRLLLLwwwwwwwww\nc@2: RRRPPPPPPPPPPPPP\nd@3: RRRRRRRRRRRRRRRR\narmed: .AAAAAAAAAAA",
            ),
        ),
        (
            "thread_without_an_event_is_what_it_is",
            seconds("a: pppppppppppppppppppppppp\nb@1: RRRRRRRRRRRRRRRRRRRRRRRR"),
        ),
        // Pauses: what happens in one is not seen.
        (
            "run_that_goes_on_over_a_pause",
            Timeline::new("a: RRRRRRRRRRRRLLLwRRR\narmed: AAAA.....AAAAAAAAAA"),
        ),
        (
            "wait_for_a_cpu_that_begins_in_a_pause",
            Timeline::new("a: RLwRRRPPPPPPRRRLLwR\nb: ssssswRRRRRRLLLLLLL\narmed: AAAA.....AAAAAAAAAA"),
        ),
        (
            "wait_that_begins_in_a_pause",
            Timeline::new("a: RRRRRRssssssssRRRLLwR\narmed: AAAA.....AAAAAAAAAAAA"),
        ),
        ("run_that_begins_in_a_pause", Timeline::new("a: RRLLLLwRRRRRRRRRLLwR\narmed: AAAA.....AAAAAAAAAAA")),
        (
            "interrupt_over_a_pause",
            Timeline::new(
                "a: LwRiiiiiiiiiRRLwRiiRRLLwR\n=: LwRRRRRRRRRRRRLwRiiRRLLwR\narmed: AAAAA.....AAAAAAAAAAAAAAA",
            ),
        ),
        (
            "interrupt_that_ends_in_a_pause",
            Timeline::new(
                "a: LwRiiiiRRRRRRRLwRiiRRLLwR\n=: LwRRRRRRRRRRRRLwRiiRRLLwR\narmed: AAAAA.....AAAAAAAAAAAAAAA",
            ),
        ),
        (
            "fault_that_ends_in_a_pause",
            Timeline::new("a: RRRfffRRRssssssRRRRLLwR\narmed: AAAAA.....AAAAAAAAAAAAA"),
        ),
        ("nothing_counts_after_the_end", Timeline::new("a: RRLLwRRPPRRLLwRRRRR\narmed: AAAAAAA")),
    ]
}

/// How a check of a program ends: an error says what is wrong.
pub type Check = fn(&Path) -> Result<(), String>;

/// Checks of what a picture does not show.
pub const CHECKS: [(&str, Check); 19] = [
    ("stalls_have_their_lengths_and_wakers", stalls_have_their_lengths_and_wakers),
    ("waker_in_an_interrupt_is_no_thread", waker_in_an_interrupt_is_no_thread),
    ("renamed_waker_has_the_name_of_its_wakeup", renamed_waker_has_its_name),
    ("idle_task_is_no_thread", idle_task_is_no_thread),
    ("threads_that_ran_on_the_cpu_before_a_migration", ran_before_a_migration),
    ("wait_that_never_ends_has_a_stack", wait_that_never_ends_has_a_stack),
    ("wait_after_the_end_lends_no_stack", wait_after_the_end_lends_no_stack),
    ("unseen_events_are_counted", unseen_events_are_counted),
    ("interrupt_depth_ends_at_a_switch", interrupt_depth_ends_at_a_switch),
    ("sample_in_a_walk_has_scratch_memory_of_its_own", sample_in_a_walk_has_its_own_scratch),
    ("histograms_have_the_time_of_the_ledger", histograms_have_the_time_of_the_ledger),
    ("full_map_is_counted", full_map_is_counted),
    ("number_used_again_is_another_thread", number_used_again_is_another_thread),
    ("task_state_is_a_bit_mask", task_state_is_a_bit_mask),
    ("faults_are_counted_by_their_ends", faults_are_counted_by_their_ends),
    ("stacks_of_a_fault_over_seconds_have_the_time_of_the_ledger", stacks_of_a_fault_over_seconds),
    ("fault_that_fails_after_a_wait_has_its_stack", fault_that_fails_after_a_wait),
    ("first_event_closes_the_second_before_it", first_event_closes_the_second_before_it),
    ("wait_after_a_fault_that_ended_in_a_pause_is_a_stall", wait_after_a_fault_that_ended_in_a_pause),
];

fn same<T: PartialEq + std::fmt::Debug>(found: &T, expected: &T) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{found:?}\ninstead of {expected:?}")) }
}

fn stalls_are(program: &Path, timeline: &Timeline, expected: &[&str]) -> Result<(), String> {
    let outcome = Outcome::of(program, timeline)?;
    outcome.check_partition()?;
    same(&outcome.stalls("stall"), &expected.iter().map(|stall| (*stall).to_owned()).collect())
}

fn stalls_have_their_lengths_and_wakers(program: &Path) -> Result<(), String> {
    let timeline = Timeline::new(
        "a: RRRLLLLwwRPPRR
         !: .......2......
         b@1: RRRRRRRRRRRRRR
         c: PPPRRRRRRLRRLL",
    );
    let expected = [
        // `a` has had the CPU since before the recording.
        "c 0..3 preempted",
        "a 3..9 lock runnable 2 by b behind c 2",
        "c 9..10 lock by an interrupt",
        "a 10..12 preempted behind c 2",
    ];
    stalls_are(program, &timeline, &expected)
}

/// `bystander` is current when the interrupt wakes `a`.
fn waker_in_an_interrupt_is_no_thread(program: &Path) -> Result<(), String> {
    let timeline = Timeline::new("bystander@1: RRRRRRRRRRRR\na: RRRLLLLwRRRR\n!: .......b");
    stalls_are(program, &timeline, &["a 3..8 lock runnable 1 by an interrupt"])
}

fn renamed_waker_has_its_name(program: &Path) -> Result<(), String> {
    let timeline = Timeline::new("a: RRRLLLLwRRRR\n!: .......2\nold@1: RRRRRRRRRRRR");
    let timeline = timeline.with("at 5 comm 1 new");
    stalls_are(program, &timeline, &["a 3..8 lock runnable 1 by new"])
}

fn idle_task_is_no_thread(program: &Path) -> Result<(), String> {
    // CPU 0 is idle while `a` waits for it: nothing ran instead.
    let timeline = Timeline::new("a: RRLLwwRRLLwwRR").with("set every_thread 1");
    stalls_are(
        program,
        &timeline,
        &["a 2..6 lock runnable 2 by an interrupt", "a 8..12 lock runnable 2 by an interrupt"],
    )?;
    let outcome = Outcome::of(program, &timeline)?;
    same(&outcome.records.iter().filter(|record| record.text("tid") == "0").count(), &0)
}

fn ran_before_a_migration(program: &Path) -> Result<(), String> {
    let timeline = Timeline::new(
        "a: RRLLwwwwRRR
         @: 00000011111
         b: ssRRRRRRLLL
         c@1: sRRRRRRRLLL",
    );
    let expected = [
        "c 0..1 sleep by an interrupt",
        "b 0..2 sleep by an interrupt",
        // Two ticks behind `b`, and then two behind `c`.
        "a 2..8 lock runnable 4 by an interrupt behind c 2 behind b 2",
    ];
    stalls_are(program, &timeline, &expected)
}

fn wait_that_never_ends_has_a_stack(program: &Path) -> Result<(), String> {
    let timeline = Timeline::new("a: pppppppppppppppp\nb@1: RRRLLLLLLLLLLLLL\narmed: ..AAAAAAAAAAAAAA");
    let outcome = Outcome::of(program, &timeline.with("set open_after_ns 1000000"))?;
    same(&outcome.stalls("open"), &vec!["a 2..16 poll".into(), "b 3..16 lock".into()])?;
    let stacks: Vec<&str> = outcome.records("open").map(|stall| stall.text("kernel_stack")).collect();
    same(&stacks, &vec!["1", "1"])
}

/// A thread goes on after the end, and what it waits for then is not what it waited for at the end.
fn wait_after_the_end_lends_no_stack(program: &Path) -> Result<(), String> {
    let later = "set open_after_ns 0\nat 14 set open_after_ns 1000000\nat 14 open_waits";
    let timeline = Timeline::new("a: RRRLLLLLLwRRppppp\narmed: AAAAAAAA").with(later);
    let outcome = Outcome::of(program, &timeline)?;
    same(&outcome.stalls("open"), &vec!["a 3..8 lock".into(), "a 3..14 lock".into()])?;
    let stacks: Vec<&str> = outcome.records("open").map(|stall| stall.text("kernel_stack")).collect();
    same(&stacks, &vec!["1", "0"])
}

fn unseen_events_are_counted(program: &Path) -> Result<(), String> {
    let lost = Outcome::of(program, &Timeline::new("a: RRRLLLRRRLLwRR\n!: ......-"))?;
    same(&lost.losses(LOSS_NO_WAKEUP), &1)?;
    let lost = Outcome::of(program, &Timeline::new("a: RRRLLLwRRR\n!: .......<"))?;
    same(&lost.losses(LOSS_NO_SWITCH), &1)?;
    // One second, and one wait. Records of ends find room until the ring is full.
    let text = "a: RRRLLLwRRRRRLwR";
    let full = Timeline::new(text).ticks_of(TENTH_NS).with("set ring_used 80");
    same(&Outcome::of(program, &full)?.losses(LOSS_RING_FULL), &3)
}

/// The recording starts within an interrupt, and one has no end.
fn interrupt_depth_ends_at_a_switch(program: &Path) -> Result<(), String> {
    let timeline = Timeline::new("a: iiiiRRLLwRRRiiRLLwR\narmed: ..AAAAAAAAAAAAAAAAA");
    let outcome = Outcome::of(program, &timeline)?;
    let irq: i64 = outcome.records("interrupt").map(|cell| cell.number("total")).sum();
    same(&irq, &2_000_000)?;
    let depths: Vec<i64> = outcome.records("cpu").map(|cpu| cpu.number("interrupt_depth")).collect();
    same(&depths, &vec![0; 8])?;
    // The first interrupt that ends is not the one that began.
    let drifted = Timeline::new("a: RRLLwRRRRLLwRRiiRLLwR")
        .with("set armed_at 1\nset window 99999999999\nirq 7\nset window 0");
    let outcome = Outcome::of(program, &drifted)?;
    outcome.check_states()
}

fn sample_in_a_walk_has_its_own_scratch(program: &Path) -> Result<(), String> {
    let timeline = Timeline::new("a: RRRLLLLwRRRR").with("sample_in_next_walk");
    let outcome = Outcome::of(program, &timeline)?;
    outcome.check_states()?;
    same(&outcome.losses(LOSS_SCRATCH_BUSY), &0)?;
    let levels: Vec<i64> = outcome.records("cpu").map(|cpu| cpu.number("scratch_level")).collect();
    same(&levels, &vec![0; 8])?;
    let samples = outcome.records("sample").filter(|sample| sample.text("kernel_stack") == "1");
    same(&(samples.count() >= 2), &true)
}

fn histograms_have_the_time_of_the_ledger(program: &Path) -> Result<(), String> {
    let timeline = Timeline::new("a: RRLLwRccwwRPPRddwRppRFDDwFR\nb@1: RRLLwRccwwRPPRddwRppRFDDwFR");
    let outcome = Outcome::of(program, &timeline)?;
    let total = |metric: i64| -> i64 {
        let cells = outcome.records("latency").filter(|cell| cell.number("metric") == metric);
        cells.map(|cell| cell.number("total") / 1_000_000).sum()
    };
    // Waits for a CPU, faults, and blocked time by reason.
    let found: Vec<i64> = [1, 2, 16, 17, 18, 20].map(total).into();
    same(&found, &vec![14, 10, 4, 4, 4, 4])
}

fn full_map_is_counted(program: &Path) -> Result<(), String> {
    let timeline = Timeline::new("a: RRLLwRccwwRPPRddwRppRR").with("limit latency 2");
    let outcome = Outcome::of(program, &timeline)?;
    outcome.check_states()?;
    same(&(outcome.losses(LOSS_LATENCY_FULL) > 0), &true)
}

/// What a fault did in a second before the one in which it turned out to be a major one stays a minor fault's, in
/// the ledger and in the sums of stacks.
fn stacks_of_a_fault_over_seconds(program: &Path) -> Result<(), String> {
    for doing in [
        "RLwRRFFFDDDDDDDDDDDDwwwFFFRRRLLwR",
        "RLwRRfffuuuuuuuuuuuuwwwfffRRRLLwR",
        "RLwRRFFFuuuuuuuuuuuuwwwFFFRRRLLwR\n=: RLwRRfffuuuuuuuuuuuuwwwFFFRRRLLwR",
    ] {
        let outcome = Outcome::of(program, &Timeline::new(&format!("a: {doing}")).ticks_of(TENTH_NS))?;
        outcome.check_states()?;
        let of_stacks = |what: i64| -> i64 {
            let rows = outcome.records("sample").filter(|row| row.number("what") == what);
            rows.map(|row| row.number("weight")).sum()
        };
        let sums = [of_stacks(SAMPLE_FAULT_MINOR), of_stacks(SAMPLE_FAULT_MINOR + 1)];
        same(&Some(sums), &outcome.faults()).map_err(|error| format!("{doing}: {error}"))?;
    }
    Ok(())
}

/// Also where no event tells that the fault failed, and the next switch or fault finds the thread elsewhere.
fn fault_that_fails_after_a_wait(program: &Path) -> Result<(), String> {
    for doing in ["RLwRRfuuwxRRR", "RLwRRfuuwyRRRLLwR", "RLwRRfuuwyRRRfuuwfR"] {
        let outcome = Outcome::of(program, &Timeline::new(&format!("a: {doing}")).ticks_of(5_000))?;
        outcome.check_partition()?;
        outcome.check_samples().map_err(|error| format!("{doing}: {error}"))?;
    }
    Ok(())
}

/// Whatever a thread's first event is: what it did before counts in the seconds in which it was.
fn first_event_closes_the_second_before_it(program: &Path) -> Result<(), String> {
    let threads = [
        ("RRRRRRRRRRRRLLLwRRR", "a run ends in a sleep"),
        ("RRRRRRRRRRRRPPPPRRR", "a run is preempted"),
        ("ssssssssssssssswRRR", "a wait ends"),
        ("PPPPPPPPPPPPRRRRRRR", "a preemption ends"),
        ("RRRRRRRRRRRR.......", "the thread ends"),
    ];
    for (doing, what) in threads {
        let outcome = Outcome::of(program, &Timeline::new(&format!("a: {doing}")).ticks_of(TENTH_NS))?;
        outcome.check_states().map_err(|error| format!("{what}: {error}"))?;
        let closed: Vec<i64> =
            outcome.records("second").map(|second| outcome.tick(second.number("boundary"))).collect();
        same(&closed, &vec![10]).map_err(|error| format!("{what}: {error}"))?;
    }
    Ok(())
}

fn wait_after_a_fault_that_ended_in_a_pause(program: &Path) -> Result<(), String> {
    let timeline = Timeline::new("a: RRRfffRRRssssssRRRRLLwR\narmed: AAAAA.....AAAAAAAAAAAAA");
    stalls_are(
        program,
        &timeline,
        &["a 10..15 sleep by an interrupt", "a 19..22 lock runnable 1 by an interrupt"],
    )
}

/// `b` has the number that `a` had.
fn number_used_again_is_another_thread(program: &Path) -> Result<(), String> {
    let text = "a=100: RRLLwRRR..........\nb=100: ..........NNRRLLwR";
    let outcome = Outcome::of(program, &Timeline::new(text))?;
    outcome.check_states()?;
    let keys: Vec<&str> = outcome
        .records
        .iter()
        .filter(|record| matches!(record.kind.as_str(), "thread" | "end"))
        .map(|record| record.text("key"))
        .collect();
    same(&keys, &vec!["1", "2"])
}

/// A killable wait for a file system, and a worker of the kernel that idles: neither is S or D alone.
fn task_state_is_a_bit_mask(program: &Path) -> Result<(), String> {
    for (state, flags, syscall, expected) in [
        (0x102, 0, 74, "disk"),
        (0x402, 0x0020_0000, -1, "wait"),
        (0x2, 0x0020_0000, -1, "other"),
        (0x4, 0, 7, "stopped"),
        (0x8, 0, 7, "stopped"),
        (0x8001, 0, 7, "stopped"),
        (0x1, 0, 61, "child"),
        (0x2, 0, -1, "memory"),
    ] {
        let sleep = Some(Sleep { state, flags, syscall });
        let timeline = Timeline { sleep, ..Timeline::new("a: RRLLwRR") };
        stalls_are(program, &timeline, &[&format!("a 2..5 {expected} runnable 1 by an interrupt")])
            .map_err(|error| format!("state {state:#x}: {error}"))?;
    }
    Ok(())
}

fn faults_are_counted_by_their_ends(program: &Path) -> Result<(), String> {
    let timeline = Timeline::new("a: RLwRfRFRxRyRffRyRRLwR");
    let outcome = Outcome::of(program, &timeline)?;
    let record = outcome.records("thread").next().ok_or("no record")?;
    let faults: Vec<i64> = (0..3).map(|end| record.number(&format!("ledger.faults.{end}"))).collect();
    same(&faults, &vec![2, 1, 3])
}

#[test]
fn ledgers_are_what_timelines_say() {
    let mut failed = Vec::new();
    for (name, timeline) in pictures() {
        let outcome = Outcome::of(unchanged(), &timeline).and_then(|outcome| outcome.check_states());
        if let Err(error) = outcome {
            failed.push(format!("{name}:\n{}\n{error}\n", timeline.text));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn records_are_what_timelines_say() {
    let failed: Vec<String> = CHECKS
        .iter()
        .filter_map(|(name, check)| Some(format!("{name}: {}", check(unchanged()).err()?)))
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
