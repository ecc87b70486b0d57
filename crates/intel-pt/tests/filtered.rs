// SPDX-License-Identifier: Apache-2.0
//! Generated traces of some functions: every event is true, and time is charged to the called functions.

use std::collections::BTreeMap;

use wallprof_intel_pt::generator::{Generated, Plan, Tracing, True, generate_traced};
use wallprof_intel_pt::replay::{CallTree, Frame, PathId, ThreadCalls, ThreadReplay, replay_segment};
use wallprof_intel_pt::{
    EndCause, Event, EventKind, FunctionId, RunCache, Segment, TimeConv, decode_segment, segment_starts,
};

const SEEDS: u64 = 400;

fn plan(seed: u64) -> Plan {
    let (functions, instructions) = (6 + (seed % 40) as usize, 4_000 + 500 * (seed % 7) as usize);
    Plan { functions, threads: 1, instructions, overflows: false, exceptions: seed.is_multiple_of(3) }
}

/// User code alone, with the kernel, ranges of either; ends of tracing with and without addresses.
fn tracing(seed: u64) -> Tracing {
    let (ranges, kernel_ranges) = [(1, 0), (3, 0), (0, 0), (1, 1), (2, 2), (0, 1)][(seed % 6) as usize];
    let kernel = kernel_ranges > 0 || ranges == 0 || (seed / 6).is_multiple_of(2);
    Tracing {
        ranges,
        splits: (seed / 12).is_multiple_of(2),
        kernel,
        kernel_ranges,
        addressed_ends: (seed / 24).is_multiple_of(2),
    }
}

fn generated(seed: u64) -> Generated {
    generate_traced(seed, plan(seed), tracing(seed))
}

fn decode(generated: &Generated, segments: &[Segment]) -> Vec<Event> {
    let mut events = Vec::new();
    let mut cache = RunCache::new();
    for &segment in segments {
        decode_segment(&generated.as_trace(), segment, &mut cache, &mut events);
    }
    events
}

fn decoded(generated: &Generated) -> Vec<Event> {
    decode(generated, &[Segment { start: 0, end: generated.trace.len(), first: true }])
}

fn segments(generated: &Generated) -> Vec<Segment> {
    let mut starts = segment_starts(&generated.trace);
    starts.push(generated.trace.len());
    let segment =
        |(index, piece): (usize, &[usize])| Segment { start: piece[0], end: piece[1], first: index == 0 };
    starts.windows(2).enumerate().map(segment).collect()
}

fn essence(event: &Event) -> Event {
    Event { ticks: 0, ..*event }
}

#[test]
fn every_event_is_true() {
    let mut ends = 0;
    for seed in 0..SEEDS {
        let generated = generated(seed);
        let (events, truth) = (decoded(&generated), &generated.truth);
        let is_different = |(found, truth): (&Event, &True)| essence(found) != essence(&truth.event);
        let different = events.iter().zip(truth).position(is_different);
        if let Some(at) = different {
            let context = at.saturating_sub(3)..(at + 5).min(events.len()).min(truth.len());
            let truth: Vec<Event> = truth[context.clone()].iter().map(|truth| truth.event).collect();
            panic!("seed {seed} at {at}: {:x?}\n{truth:x?}\n{:?}", &events[context], generated.settings);
        }
        assert_eq!(events.len(), truth.len(), "seed {seed}");
        let segments = decode(&generated, &segments(&generated));
        assert_eq!(events.iter().zip(&segments).position(|(one, other)| one != other), None, "seed {seed}");
        assert_eq!(events.len(), segments.len(), "seed {seed}");
        ends += events.iter().filter(|event| matches!(event.kind, EventKind::End { .. })).count();
    }
    assert!(ends > 50 * SEEDS as usize, "{ends}");
}

/// A frame that the trace can show, and the number of calls open when it runs.
#[derive(Clone, Copy)]
struct Shown {
    depth: usize,
    frame: Frame,
    /// It was called by traced code, or has a known return address.
    has_known_return: bool,
    return_to: u64,
}

/// Complete calls, incomplete ones, own ticks, and the number of intervals in their sum.
type Numbers = (u64, u64, u64, u64);

/// The stack as far as the trace can show it, by the true open calls.
#[derive(Default)]
struct Reference {
    shown: Vec<Shown>,
    numbers: BTreeMap<Vec<Frame>, Numbers>,
    last: u64,
    /// An interrupt occurred at the first instruction of a function that is called now. Addresses do not
    /// distinguish the two.
    is_ambiguous: bool,
}

impl Reference {
    /// `None`: addresses alone do not determine the calls.
    fn of(generated: &Generated) -> Option<BTreeMap<Vec<Frame>, Numbers>> {
        let mut reference = Reference { last: generated.truth[0].event.ticks, ..Reference::default() };
        for truth in &generated.truth[1..] {
            reference.apply(truth);
        }
        reference.charge(generated.end);
        while !reference.shown.is_empty() {
            reference.drop_top();
        }
        Some(reference.numbers).filter(|_| !reference.is_ambiguous)
    }

    fn of_top(&mut self) -> &mut Numbers {
        self.numbers.entry(self.shown.iter().map(|shown| shown.frame).collect()).or_default()
    }

    fn charge(&mut self, ticks: u64) {
        let passed = ticks - self.last;
        if !self.shown.is_empty() {
            let numbers = self.of_top();
            numbers.2 += passed;
            numbers.3 += 1;
        }
        self.last = ticks;
    }

    fn apply(&mut self, &True { event, depth, .. }: &True) {
        self.charge(event.ticks);
        let target = Frame::of_target(&event);
        match event.kind {
            EventKind::Call { return_to } | EventKind::SystemCall { return_to } => {
                self.push(depth, target, return_to);
            }
            EventKind::Interrupt { .. } => self.push(depth, target, event.from),
            EventKind::Return | EventKind::SystemReturn => self.pop_above(depth),
            EventKind::Jump { .. } => {
                let top = *self.shown.last().expect("a frame");
                self.pop();
                self.shown.push(Shown { frame: target, ..top });
            }
            EventKind::Start => self.start(&event, depth),
            EventKind::End { cause, return_to } => self.end(cause, return_to, depth),
            _ => panic!("{event:?}"),
        }
    }

    fn push(&mut self, depth: usize, frame: Frame, return_to: u64) {
        self.shown.push(Shown { depth, frame, has_known_return: return_to != 0, return_to });
    }

    fn pop(&mut self) {
        self.of_top().0 += 1;
        self.shown.pop();
    }

    fn drop_top(&mut self) {
        self.of_top().1 += 1;
        self.shown.pop();
    }

    fn pop_above(&mut self, depth: usize) {
        while self.shown.last().is_some_and(|top| top.depth > depth) {
            self.pop();
        }
    }

    fn start(&mut self, event: &Event, depth: usize) {
        self.pop_above(depth);
        let Some(top) = self.shown.last().copied() else {
            return self.push(depth, Frame::of_target(event), 0);
        };
        if top.frame.is_outside() && (top.depth, top.return_to) == (depth, event.to) {
            self.pop();
        } else if event.at_entry {
            self.is_ambiguous |= self.shown.iter().any(|shown| shown.return_to == event.to);
            if top.frame == Frame::Untraced && self.shown.len() == 1 {
                self.pop();
            }
            self.push(depth, Frame::of_target(event), 0);
        }
    }

    fn end(&mut self, cause: EndCause, return_to: u64, depth: usize) {
        match cause {
            EndCause::Return | EndCause::SystemReturn => self.pop_above(depth),
            EndCause::Jump if !self.shown.last().expect("a frame").has_known_return => self.drop_top(),
            cause => return self.push(depth, Frame::of_end(cause), return_to),
        }
        if self.shown.last().is_none_or(|top| !top.frame.is_outside()) {
            self.push(depth, Frame::Untraced, 0);
        }
    }
}

fn replayed(generated: &Generated, segments: &[Segment]) -> ThreadCalls {
    let mut replay = ThreadReplay::new(wallprof_intel_pt::ThreadId(1), TimeConv::NANOSECONDS);
    let mut cache = RunCache::new();
    let mut end = 0;
    for &segment in segments {
        let (decoded, stretches) =
            replay_segment(&generated.as_trace(), segment, TimeConv::NANOSECONDS, &mut cache);
        stretches.iter().for_each(|stretch| replay.add(stretch));
        end = decoded.last_ticks;
    }
    replay.finish(end)
}

fn numbers(calls: &ThreadCalls) -> BTreeMap<Vec<Frame>, Numbers> {
    let frames = |path: PathId| {
        let above = std::iter::successors(Some(path), |&path| calls.tree.parent(path));
        let mut frames: Vec<Frame> = above.map(|path| calls.tree.frame(path)).collect();
        frames.pop();
        frames.reverse();
        frames
    };
    let of_path = |path| {
        let numbers = calls.tree.numbers(path);
        (frames(path), (numbers.calls, numbers.incomplete, numbers.self_ticks, 0))
    };
    calls.tree.paths(CallTree::ROOT).into_iter().skip(1).map(of_path).collect()
}

/// Without parts of functions and without exceptions the stack is known whenever code is traced.
fn whole_functions(seed: u64) -> Generated {
    let plan = Plan { exceptions: false, ..plan(seed) };
    generate_traced(seed, plan, Tracing { splits: false, ..tracing(seed) })
}

#[test]
fn every_path_is_counted_as_often_as_the_trace_can_show_it() {
    let mut compared = 0;
    for seed in 0..SEEDS {
        let generated = whole_functions(seed);
        let Some(truth) = Reference::of(&generated) else { continue };
        compared += 1;
        let whole = [Segment { start: 0, end: generated.trace.len(), first: true }];
        let found = numbers(&replayed(&generated, &whole));
        let counts = |numbers: &BTreeMap<Vec<Frame>, Numbers>| -> BTreeMap<Vec<Frame>, (u64, u64)> {
            let counts = numbers.iter().map(|(path, numbers)| (path.clone(), (numbers.0, numbers.1)));
            counts.filter(|(_, counts)| *counts != (0, 0)).collect()
        };
        let (counted, expected) = (counts(&found), counts(&truth));
        let different = expected.iter().find(|(path, counts)| counted.get(*path) != Some(counts));
        let other = different.map(|(path, _)| counted.get(path));
        assert_eq!(different, None, "seed {seed}: {other:?} {:x?}", generated.program.traced);
        assert_eq!(counted.len(), expected.len(), "seed {seed}");
        assert_eq!(numbers(&replayed(&generated, &segments(&generated))), found, "seed {seed} by segments");
    }
    assert!(compared > SEEDS * 9 / 10, "{compared}");
}

/// If cycles are counted and each start has its time, the times of ends and starts are exact to a tick of the
/// core's clock, and one of rounding.
#[test]
fn time_of_an_untraced_callee_is_its_own() {
    let mut visits = 0;
    for seed in 0..SEEDS {
        let generated = whole_functions(seed);
        let settings = &generated.settings;
        let Some(truth) = Reference::of(&generated) else { continue };
        if !settings.cycles || !settings.stamped_enabling {
            continue;
        }
        let whole = [Segment { start: 0, end: generated.trace.len(), first: true }];
        let found = numbers(&replayed(&generated, &whole));
        let tick = u64::from(settings.max_non_turbo_ratio.div_ceil(settings.core_ratio)) + 1;
        for (path, &(complete, incomplete, ticks, intervals)) in &truth {
            let is_call = path.len() > 1 && path.last() == Some(&Frame::Untraced);
            if is_call && incomplete == 0 {
                let error = found[path].2.abs_diff(ticks);
                assert!(
                    error <= tick * intervals,
                    "seed {seed}: {error} of {ticks} ticks, {intervals} parts"
                );
                visits += complete;
            }
        }
    }
    assert!(visits > 3_000, "{visits}");
}

/// The paths of user code alone.
fn of_user(numbers: BTreeMap<Vec<Frame>, Numbers>) -> BTreeMap<Vec<Frame>, (u64, u64)> {
    let is_user = |frame: &Frame| match frame {
        Frame::Function(function) => *function < FunctionId::FIRST_OF_KERNEL,
        frame => *frame == Frame::Untraced,
    };
    let is_of_user = |path: &Vec<Frame>| path.iter().all(is_user) && path.last() != Some(&Frame::Untraced);
    let counts = numbers.into_iter().filter(|(path, _)| is_of_user(path));
    counts.map(|(path, numbers)| (path, (numbers.0, numbers.1))).collect()
}

/// The kernel's code is not known, or not even its functions.
#[test]
fn kernel_without_an_image_changes_no_call_of_user_code() {
    let (mut calls, mut gaps) = (0, 0);
    for seed in 0..SEEDS {
        let mut generated = whole_functions(seed);
        let Some(truth) = Reference::of(&generated) else { continue };
        let Some(kernel) = &mut generated.program.kernel else { continue };
        kernel.code.clear();
        if seed.is_multiple_of(2) {
            generated.program.kernel = None;
        }
        let segments = segments(&generated);
        let whole = [Segment { start: 0, end: generated.trace.len(), first: true }];
        let mut found = numbers(&replayed(&generated, &whole));
        assert_eq!(numbers(&replayed(&generated, &segments)), found, "seed {seed} by segments");
        gaps += found
            .iter()
            .filter(|(path, _)| path.last() == Some(&Frame::Lost))
            .map(|(_, gaps)| gaps.0)
            .sum::<u64>();
        found.retain(|_, numbers| (numbers.0, numbers.1) != (0, 0));
        let (found, expected) = (of_user(found), of_user(truth));
        let different = expected.iter().find(|(path, counts)| found.get(*path) != Some(counts));
        let other = different.map(|(path, _)| found.get(path));
        assert_eq!(different, None, "seed {seed}: {other:?} {:x?}", generated.program.traced);
        assert_eq!(found.len(), expected.len(), "seed {seed}");
        calls += expected.values().map(|counts| counts.0).sum::<u64>();
    }
    assert!(calls > 4_000 && gaps > 10_000, "{calls} {gaps}");
}
