// SPDX-License-Identifier: Apache-2.0
//! A thread that loses its CPU: when, for how long, and to which thread.

use serde::Deserialize;

use wallprof_testkit::contract::Stall;
use wallprof_testkit::recorder::Recorder;
use wallprof_testkit::scenario::{Scenario, Truth};
use wallprof_testkit::stored;

const EDGE_NS: u64 = 50_000;
/// The part of the neighbour's time on the CPU that its own clock cannot see: waking up, going to sleep,
/// pauses below 20 µs, and the switches each time it is interrupted.
const UNSEEN_NS: u64 = 150_000;
const UNSEEN_A_PAUSE_NS: u64 = 50_000;

#[derive(Debug, Deserialize)]
struct Interval {
    start_ns: u64,
    end_ns: u64,
}

#[derive(Debug, Deserialize)]
struct Gap {
    start_ns: u64,
    end_ns: u64,
    cpu_ns: u64,
    queued_ns: u64,
    switched: bool,
}

impl Gap {
    /// In the others an interrupt or the hypervisor took most of the time, and a switch hardly any.
    fn is_mostly_off_cpu(&self) -> bool {
        self.queued_ns * 2 > self.end_ns - self.start_ns
    }
}

/// How long the neighbour ran during the stall by its own clock, and in how many pieces.
fn overlap(stall: &Stall, truth: &Truth, ran: &[Interval]) -> (u64, u64) {
    let inside = ran.iter().filter_map(|interval| {
        let start = truth.epoch_from_mono(interval.start_ns).max(stall.start_ns);
        let end = truth.epoch_from_mono(interval.end_ns).min(stall.end_ns);
        end.checked_sub(start)
    });
    inside.fold((0, 0), |(ns, pieces), piece| (ns + piece, pieces + 1))
}

/// The worker's stalls in a gap, mostly one. With other load on the CPU the worker can come back and be
/// preempted again before it reads the clock.
fn stalls_of<'a>(gap: &Gap, truth: &Truth, stalls: &'a [Stall]) -> Vec<&'a Stall> {
    let (start, end) = (truth.epoch_from_mono(gap.start_ns), truth.epoch_from_mono(gap.end_ns));
    stalls.iter().filter(|stall| stall.overlaps(start, end)).collect()
}

/// Whether the gap's two ends are those of its stalls.
fn has_their_ends(gap: &Gap, truth: &Truth, inside: &[&Stall]) -> bool {
    let (Some(first), Some(last)) = (inside.first(), inside.last()) else { return false };
    let (start, end) = (truth.epoch_from_mono(gap.start_ns), truth.epoch_from_mono(gap.end_ns));
    // The interrupt that takes the CPU away still runs as the worker, by its CPU clock.
    let edge_ns = EDGE_NS + gap.cpu_ns;
    first.start_ns.abs_diff(start) <= edge_ns && last.end_ns.abs_diff(end) <= edge_ns
}

fn neighbours_ns(stall: &Stall, neighbour: u32) -> u64 {
    let ran = stall.ran_instead.iter().flatten();
    ran.filter(|ran| ran.tid == neighbour && ran.comm.as_deref() == Some("neighbour")).map(|ran| ran.ns).sum()
}

fn assert_all_of_it_waited_for_a_cpu(stall: &Stall) {
    assert_eq!((stall.blocked_ns, stall.runnable_ns), (0, stall.duration_ns), "{stall:#?}");
    let all: u64 = stall.ran_instead.iter().flatten().map(|ran| ran.ns).sum();
    assert!(all <= stall.duration_ns, "more ran than there was time for: {stall:#?}");
}

#[test]
fn a_neighbour_takes_the_cpu() {
    let Some(_run) = stored::run("a_neighbour_takes_the_cpu") else { return };
    let mut scenario = Scenario::ready("preempted", &["-d", "4"]);
    let pid = scenario.pid();
    let recorder = Recorder::armed(&["-p", &pid, "--min-stall", "20us"], &[]);
    let truth = scenario.run();
    let recording = recorder.stop();
    // Threads that the kernel keeps from being traced take the CPU, too.
    let untraced = recording.report().losses.get("switches_unseen").map_or(0, |count| *count as usize);
    let stalls = recording.stalls(&["--thread", "worker", "--reason", "preempted"]);
    let neighbour = truth.start.tid("neighbour");
    let ran: Vec<Interval> = truth.all("ran");
    let (gaps, holes): (Vec<Gap>, Vec<Gap>) =
        truth.all("gap").into_iter().partition(|gap: &Gap| gap.switched);
    let gaps: Vec<Gap> = gaps.into_iter().filter(Gap::is_mostly_off_cpu).collect();
    assert!(gaps.len() >= 100, "{} gaps are too few to judge by", gaps.len());

    let (mut unseen, mut matched) = (0, 0);
    let mut blamed = 0;
    let mut shown = 0;
    let mut apart = Vec::new();
    for gap in &gaps {
        let inside = stalls_of(gap, &truth, &stalls);
        unseen += usize::from(inside.is_empty());
        if !has_their_ends(gap, &truth, &inside) {
            apart.push(gap);
            continue;
        }
        matched += 1;
        shown += usize::from(inside.iter().all(|stall| stall.user_stack_has("watch_clock")));
        inside.iter().for_each(|stall| assert_all_of_it_waited_for_a_cpu(stall));
        let own_clock = inside.iter().map(|stall| overlap(stall, &truth, &ran));
        let (own_clock_ns, pieces) =
            own_clock.fold((0, 0), |(ns, all), (more, pieces)| (ns + more, all + pieces));
        let recorded_ns: u64 = inside.iter().map(|stall| neighbours_ns(stall, neighbour)).sum();
        let unseen_ns = UNSEEN_NS + pieces * UNSEEN_A_PAUSE_NS;
        blamed += usize::from(recorded_ns.abs_diff(own_clock_ns) <= unseen_ns);
    }
    assert!(
        unseen <= gaps.len() / 100 + untraced,
        "{unseen} of {} gaps have no stall, {untraced} switches were not traced: {apart:#?}",
        gaps.len()
    );
    // A hypervisor that holds a CPU back delays the clock reading before or after a switch, while nothing is
    // switched. Gaps without a switch show how often it does so for long. Its short ones mostly happen when a
    // timer is set or a CPU is woken: one gap in 10 is allowed for them.
    let excused = gaps.len() / 10 + holes.len() + untraced;
    assert!(
        matched + excused >= gaps.len(),
        "{matched} of {} gaps have their stall; {excused} excused; the others: {apart:#?}",
        gaps.len()
    );
    // A thread can lose its CPU in the few instructions in which a function has no frame yet.
    assert!(shown * 100 >= matched * 99, "{shown} of {matched} stalls show what the worker did");
    // Its own clock also stops while a hypervisor, or a third thread, has the CPU.
    assert!(blamed * 100 >= matched * 90, "{blamed} of {matched} stalls say how long the neighbour ran");
}
