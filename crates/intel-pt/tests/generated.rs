// SPDX-License-Identifier: Apache-2.0
//! Decodes generated traces of many seeds, and compares every event with the machine's.

use std::collections::BTreeMap;

use wallprof_intel_pt::generator::{Change, Generated, Machine, Plan, Random, True, generate};
use wallprof_intel_pt::replay::{
    CallTree, Frame, PathId, Recorder, ThreadCalls, ThreadReplay, replay_segment,
};
use wallprof_intel_pt::{
    Event, EventKind, GapCause, RunCache, Segment, Sink, ThreadId, TimeConv, decode_segment, segment_starts,
};

const SEEDS: u64 = 1_000;

fn plan(seed: u64, overflows: bool) -> Plan {
    let instructions = 2_000 + 500 * (seed % 7) as usize;
    Plan {
        functions: 6 + (seed % 40) as usize,
        threads: 1 + (seed % 4) as usize,
        instructions,
        overflows,
        exceptions: true,
    }
}

/// The trace in pieces of this number of segments.
fn pieces(generated: &Generated, segments: usize) -> Vec<Segment> {
    let mut starts: Vec<usize> = segment_starts(&generated.trace).into_iter().step_by(segments).collect();
    starts.push(generated.trace.len());
    let piece =
        |(index, piece): (usize, &[usize])| Segment { start: piece[0], end: piece[1], first: index == 0 };
    starts.windows(2).enumerate().map(piece).collect()
}

fn decode(generated: &Generated, segments: usize) -> Vec<Event> {
    let trace = generated.as_trace();
    let mut cache = RunCache::new();
    let mut events = Vec::new();
    for segment in pieces(generated, segments) {
        decode_segment(&trace, segment, &mut cache, &mut events);
    }
    events
}

fn replay(generated: &Generated, segments: usize) -> BTreeMap<ThreadId, ThreadCalls> {
    let trace = generated.as_trace();
    let mut cache = RunCache::new();
    let mut replays: BTreeMap<ThreadId, ThreadReplay> = BTreeMap::new();
    let mut end = 0;
    for segment in pieces(generated, segments) {
        let (decoded, stretches) = replay_segment(&trace, segment, TimeConv::NANOSECONDS, &mut cache);
        for stretch in stretches {
            let new = || ThreadReplay::new(stretch.thread, TimeConv::NANOSECONDS);
            replays.entry(stretch.thread).or_insert_with(new).add(&stretch);
        }
        end = decoded.last_ticks;
    }
    replays.into_iter().map(|(thread, replay)| (thread, replay.finish(end))).collect()
}

type Counts = BTreeMap<Vec<Frame>, (u64, u64)>;

/// The machine's own stack: complete and incomplete calls of each path, by thread.
#[derive(Default)]
struct Reference {
    stacks: BTreeMap<ThreadId, Vec<Frame>>,
    /// The number of each thread's frames, from the outermost on, that were open at a gap.
    suspect: BTreeMap<ThreadId, usize>,
    counts: BTreeMap<ThreadId, Counts>,
    current: ThreadId,
}

impl Reference {
    fn of(generated: &Generated) -> BTreeMap<ThreadId, Counts> {
        let mut reference = Reference::default();
        generated.truth.iter().for_each(|truth| reference.apply(&truth.event, truth.change));
        reference.finish()
    }

    /// Calls that are open at the end are incomplete, unless a gap has counted them already.
    fn finish(mut self) -> BTreeMap<ThreadId, Counts> {
        for thread in self.stacks.keys().copied().collect::<Vec<_>>() {
            self.current = thread;
            self.count_open();
        }
        self.counts
    }

    fn count_open(&mut self) {
        let Some(stack) = self.stacks.get(&self.current) else { return };
        let suspect = self.suspect.entry(self.current).or_default();
        for depth in *suspect..stack.len() {
            let path = stack[..=depth].to_vec();
            self.counts.entry(self.current).or_default().entry(path).or_default().1 += 1;
        }
        *suspect = stack.len();
    }

    fn apply(&mut self, event: &Event, change: Change) {
        match change {
            Change::Nothing => {}
            Change::Push(frame) => self.push(frame),
            Change::Pop(count) => (0..count).for_each(|_| self.pop()),
            Change::Replace(frame) => {
                self.pop();
                self.push(frame);
            }
            Change::Switch(thread) => self.switch(event, thread),
        }
    }

    fn push(&mut self, frame: Frame) {
        self.stacks.entry(self.current).or_default().push(frame);
    }

    fn pop(&mut self) {
        let stack = self.stacks.get_mut(&self.current).unwrap();
        let suspect = self.suspect.entry(self.current).or_default();
        if *suspect == stack.len() {
            *suspect -= 1;
        } else {
            self.counts.entry(self.current).or_default().entry(stack.clone()).or_default().0 += 1;
        }
        stack.pop().unwrap();
    }

    fn switch(&mut self, event: &Event, thread: ThreadId) {
        let EventKind::Switch(switch) = event.kind else { panic!("{event:?}") };
        if self.stacks.contains_key(&self.current) {
            self.push(Frame::of_departure(switch.departure));
        }
        self.current = thread;
        if self.stacks.contains_key(&thread) {
            self.pop();
        }
    }
}

fn path(calls: &ThreadCalls, path: PathId) -> Vec<Frame> {
    let mut frames = Vec::new();
    let mut at = path;
    while let Some(parent) = calls.tree.parent(at) {
        frames.insert(0, calls.tree.frame(at));
        at = parent;
    }
    frames
}

fn counts(calls: &ThreadCalls) -> Counts {
    let all = calls.tree.paths(CallTree::ROOT).into_iter().skip(1);
    let counted = |id| (path(calls, id), (calls.tree.numbers(id).calls, calls.tree.numbers(id).incomplete));
    all.map(counted).filter(|(_, counts)| *counts != (0, 0)).collect()
}

fn assert_invariants(seed: u64, calls: &ThreadCalls) {
    let all = calls.tree.paths(CallTree::ROOT);
    let spent: u64 = all.iter().map(|&path| calls.tree.numbers(path).self_ticks).sum();
    assert_eq!(spent, calls.last - calls.first, "seed {seed}: self times add up to the span");
    assert_eq!(calls.tree.numbers(CallTree::ROOT).self_ticks, 0, "seed {seed}");
    for path in all {
        let numbers = calls.tree.numbers(path);
        assert!(!matches!(calls.tree.frame(path), Frame::Floor(_)), "seed {seed}");
        assert!(numbers.calls == 0 || numbers.min_ticks <= numbers.max_ticks, "seed {seed}");
        assert_eq!(numbers.histogram().count(), numbers.calls, "seed {seed}");
    }
}

/// The event without its time, and for gaps without the last address, which only the decoder knows.
fn essence(event: &Event) -> Event {
    let from = if matches!(event.kind, EventKind::Gap(_)) { 0 } else { event.from };
    Event { ticks: 0, from, ..*event }
}

fn assert_true(seed: u64, overflows: bool) {
    let generated = generate(seed, plan(seed, overflows));
    let events = decode(&generated, usize::MAX);
    let different = events
        .iter()
        .zip(&generated.truth)
        .position(|(found, truth)| essence(found) != essence(&truth.event));
    if let Some(at) = different {
        let context = at.saturating_sub(3)..(at + 3).min(events.len()).min(generated.truth.len());
        let truth: Vec<Event> = generated.truth[context.clone()].iter().map(|truth| truth.event).collect();
        panic!("seed {seed} at {at}: {:x?}\n{truth:x?}\n{:?}", &events[context], generated.settings);
    }
    let (found, truth) = (events.len(), generated.truth.len());
    assert_eq!(found, truth, "seed {seed} {:?}", generated.truth.get(found));
    let by_segments = decode(&generated, 1);
    let different = events.iter().zip(&by_segments).find(|(whole, segments)| whole != segments);
    assert_eq!(different, None, "seed {seed} by segments");
    assert_eq!(events.len(), by_segments.len(), "seed {seed} by segments");
}

#[test]
fn every_event_is_true() {
    (0..SEEDS).for_each(|seed| assert_true(seed, false));
}

#[test]
fn every_event_outside_overflows_is_true() {
    (0..SEEDS).for_each(|seed| assert_true(seed, true));
}

#[test]
fn every_path_is_counted_as_often_as_it_was_taken() {
    for seed in 0..SEEDS {
        let generated = generate(seed, plan(seed, false));
        let truth = Reference::of(&generated);
        let mut replayed = replay(&generated, 1 + seed as usize % 5);
        replayed.retain(|_, calls| calls.tree.len() > 1);
        assert_eq!(replayed.len(), truth.len(), "seed {seed}");
        for (thread, calls) in &replayed {
            assert_invariants(seed, calls);
            let found = counts(calls);
            let different = truth[thread].iter().find(|(path, counts)| found.get(*path) != Some(counts));
            assert_eq!(different, None, "seed {seed}: {:?}", different.map(|(path, _)| found.get(path)));
            assert_eq!(found.len(), truth[thread].len(), "seed {seed}");
        }
    }
}

/// The truth with empty gaps at random places, and the expected counts.
fn with_gaps(seed: u64, generated: &Generated) -> (Vec<Event>, BTreeMap<ThreadId, Counts>) {
    let mut random = Random::new(seed ^ 0x6a95);
    let mut reference = Reference::default();
    let mut events = Vec::new();
    for True { event, change, .. } in &generated.truth {
        events.push(*event);
        reference.apply(event, *change);
        let goes_on =
            matches!(event.kind, EventKind::Call { .. } | EventKind::Return | EventKind::Jump { .. });
        if goes_on && random.per_mille(20) {
            let bare = Event { from: 0, at_entry: false, ..*event };
            events.push(Event { kind: EventKind::Gap(GapCause::Overflow), ..bare });
            events.push(Event { kind: EventKind::Resume, to: event.to + 1, ..bare });
            reference.count_open();
        }
    }
    (events, reference.finish())
}

#[test]
fn gaps_change_only_the_frames_open_at_them() {
    for seed in 0..SEEDS {
        let generated = generate(seed, plan(seed, false));
        let (events, truth) = with_gaps(seed, &generated);
        let mut recorder = Recorder::new(TimeConv::NANOSECONDS);
        recorder.join(events[0].ticks, wallprof_intel_pt::Switch::default());
        events.iter().for_each(|event| recorder.event(event));
        let mut replays: BTreeMap<ThreadId, ThreadReplay> = BTreeMap::new();
        for stretch in recorder.finish(generated.end) {
            let new = || ThreadReplay::new(stretch.thread, TimeConv::NANOSECONDS);
            replays.entry(stretch.thread).or_insert_with(new).add(&stretch);
        }
        for (thread, replay) in replays {
            let Some(truth) = truth.get(&thread) else { continue };
            let calls = replay.finish(generated.end);
            assert_invariants(seed, &calls);
            let mut found = counts(&calls);
            found.retain(|path, _| !path.contains(&Frame::Lost));
            let different = truth.iter().find(|(path, counts)| found.get(*path) != Some(counts));
            assert_eq!(different, None, "seed {seed}: {:?}", different.map(|(path, _)| found.get(path)));
            assert_eq!(found.len(), truth.len(), "seed {seed}");
        }
    }
}

#[test]
fn overflows_keep_every_invariant() {
    for seed in 0..SEEDS {
        let generated = generate(seed, plan(seed, true));
        let replayed = replay(&generated, 1);
        let whole = replay(&generated, usize::MAX);
        for (thread, calls) in &replayed {
            assert_invariants(seed, calls);
            assert!(counts(calls) == counts(&whole[thread]), "seed {seed}");
        }
    }
}

#[test]
fn with_cycle_counts_times_are_within_25_ns() {
    const TICKS_IN_25_NS: u64 = 62;
    let mut errors = Vec::new();
    for seed in 0..SEEDS / 4 {
        let generated = generate(seed, plan(seed, false));
        if !generated.settings.cycles {
            continue;
        }
        let found = decode(&generated, usize::MAX);
        let error = |(found, truth): (&Event, &True)| found.ticks.abs_diff(truth.event.ticks);
        errors.extend(found.iter().zip(&generated.truth).map(error));
    }
    errors.sort_unstable();
    let share = |of: usize| errors[(errors.len() - 1) * of / 1000];
    eprintln!(
        "errors in ticks: median {}, p99 {}, p99.9 {}, max {}",
        share(500),
        share(990),
        share(999),
        share(1000)
    );
    assert!(share(990) <= TICKS_IN_25_NS);
}

#[test]
fn trace_taken_piece_by_piece_is_the_whole_one() {
    for seed in 0..20 {
        let plan = plan(seed, true);
        let whole = generate(seed, plan);
        let mut machine = Machine::new(seed, plan);
        let (mut trace, mut truth, mut switches) = (Vec::new(), Vec::new(), Vec::new());
        for instructions in [1, plan.instructions / 3, plan.instructions - plan.instructions / 3 - 1] {
            machine.run(instructions);
            trace.extend(machine.take_trace());
            truth.extend(machine.take_truth());
            switches.extend(machine.take_switches());
        }
        let rest = machine.finish();
        trace.extend(rest.trace);
        truth.extend(rest.truth);
        switches.extend(rest.schedule.switches());
        assert!(trace == whole.trace, "seed {seed}");
        assert!(truth == whole.truth, "seed {seed}");
        assert_eq!(switches, whole.schedule.switches().collect::<Vec<_>>(), "seed {seed}");
    }
}
