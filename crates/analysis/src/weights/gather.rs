// SPDX-License-Identifier: Apache-2.0
//! Collects samples and long waits by thread, state and stack. `fit` makes weighted stacks of them that add
//! up to the ledgers.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use wallprof_model::event::{SampleDelta, WakerStacks, Weighted};
use wallprof_model::profile::{ResolvedStack, StallRecord, Thread};
use wallprof_model::{Meaning, MonoNs, StackId, State, ThreadKey};

use super::frame::Frames;
use super::paths::{PathId, Paths};
use super::view::{Side, View};
use super::wait_parts::{common, length, parts};

/// Collects the weights of one view of some threads.
pub struct Gather<'a> {
    pub(super) view: View,
    /// The index of the event that the view counts.
    pub(super) event: Option<u16>,
    side: Side,
    pub(super) threads: &'a [Thread],
    /// The selected threads: their index in `threads`.
    pub(super) selected: BTreeMap<ThreadKey, usize>,
    /// The index of every thread in `threads`.
    pub(super) places: HashMap<ThreadKey, usize>,
    pub(super) frames: Frames,
    pub(super) paths: Paths,
    known: HashMap<StackId, PathId>,
    pub(super) sums: BTreeMap<Group, HashMap<Stacks, Sum>>,
}

/// Weights that are fitted to the ledger together: an index in `threads`, and a state or an event.
pub(super) type Group = (usize, Weighted);

/// The stacks that weights are added up for. `None`: there is no stack.
pub(super) type Stacks = Option<Stacked>;

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Stacked {
    pub(super) pair: Pair,
    pub(super) waker: Option<Waker>,
    /// Of a wait.
    pub(super) meaning: Option<Arc<Meaning>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Pair {
    pub(super) user: PathId,
    pub(super) kernel: PathId,
}

const NO_CODE: Pair = Pair { user: PathId::EMPTY, kernel: PathId::EMPTY };

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Waker {
    pub(super) thread: Option<ThreadKey>,
    pub(super) interrupt: bool,
    pub(super) stacks: Pair,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sum {
    pub(super) weight: u64,
    /// The part of `weight` that lies outside the range.
    pub(super) outside: u64,
    pub(super) count: u64,
}

impl<'a> Gather<'a> {
    /// `events` are the recording's names of events. `threads` are all of its threads, with their ledgers of
    /// the range that is shown. The view shows those that `selects` accepts.
    pub fn new(
        view: View,
        side: Side,
        events: &[String],
        threads: &'a [Thread],
        selects: impl Fn(&Thread) -> bool,
    ) -> Self {
        let event = match &view {
            View::Event(name) => events.iter().position(|known| known == name),
            _ => None,
        };
        let selected = threads.iter().enumerate().filter(|(_, thread)| selects(thread));
        Gather {
            view,
            event: event.and_then(|index| u16::try_from(index).ok()),
            side,
            threads,
            selected: selected.map(|(at, thread)| (thread.info.key, at)).collect(),
            places: threads.iter().enumerate().map(|(at, thread)| (thread.info.key, at)).collect(),
            frames: Frames::default(),
            paths: Paths::new(),
            known: HashMap::new(),
            sums: BTreeMap::new(),
        }
    }

    /// Takes a sample of the range, and what it means if it is of waits. `resolve` is asked once for each stack.
    ///
    /// # Errors
    /// The error of `resolve`.
    pub fn add<E>(
        &mut self,
        sample: &SampleDelta,
        meaning: Option<Arc<Meaning>>,
        mut resolve: impl FnMut(StackId) -> Result<ResolvedStack, E>,
    ) -> Result<(), E> {
        let Some(group) = self.group(sample.thread, sample.what) else { return Ok(()) };
        let mut pair = |user, kernel| self.pair(user, kernel, &mut resolve);
        let stacks = match pair(sample.user, sample.kernel)? {
            None => None,
            Some(pair) => {
                let waker = self.waker(sample.waker.as_ref(), &mut resolve)?;
                Some(Stacked { pair, waker, meaning: meaning.filter(|_| is_wait(sample.what)) })
            }
        };
        let sum = self.sums.entry(group).or_default().entry(stacks).or_default();
        sum.weight = sum.weight.saturating_add(sample.weight);
        sum.count = sum.count.saturating_add(sample.count);
        Ok(())
    }

    /// Takes a wait that reaches beyond `range`, or that is still open. A wait that has ended counts as a
    /// sample in the second in which it ended. `sampled`: that sample was taken, too, so the part outside
    /// the range comes off.
    pub fn add_wait(&mut self, wait: &StallRecord, range: &Range<MonoNs>, sampled: bool) {
        let user = wait.user.as_ref().map(|stack| self.paths.add(stack, &mut self.frames));
        let kernel = wait.kernel.as_ref().map(|stack| self.paths.add(stack, &mut self.frames));
        let waker = self.waker_of(wait);
        for (state, part) in parts(wait) {
            let Some(group) = self.group(wait.thread, Weighted::State(state)) else { continue };
            let Some(pair) = self.sided(user, kernel) else { continue };
            let meaning = wait.meaning.clone().filter(|_| is_wait(group.1));
            let stacks = Some(Stacked { pair, waker, meaning });
            let sum = self.sums.entry(group).or_default().entry(stacks).or_default();
            let (whole, inside) = (length(&part), length(&common(&part, range)));
            if sampled {
                sum.outside = sum.outside.saturating_add(whole - inside);
            } else {
                sum.weight = sum.weight.saturating_add(inside);
                sum.count = sum.count.saturating_add(1);
            }
        }
    }

    /// As the sample of the wait has it. That of an open wait is not known yet.
    fn waker_of(&mut self, wait: &StallRecord) -> Option<Waker> {
        let waker = wait.waker.as_ref().filter(|_| self.view == View::Wakers)?;
        let user = waker.user.as_ref().map(|stack| self.paths.add(stack, &mut self.frames));
        let kernel = waker.kernel.as_ref().map(|stack| self.paths.add(stack, &mut self.frames));
        let stacks = self.sided(user, kernel).unwrap_or(NO_CODE);
        let thread = waker.thread.as_ref().and_then(|thread| thread.key);
        Some(Waker { thread, interrupt: waker.thread.is_none(), stacks })
    }

    fn group(&self, thread: ThreadKey, what: Weighted) -> Option<Group> {
        let shown = match what {
            Weighted::State(state) => self.view.includes(state),
            Weighted::Event(index) => self.event == Some(index),
        };
        self.selected.get(&thread).filter(|_| shown).map(|at| (*at, what))
    }

    /// The paths of two stacks, as far as the side shows them; `None` where neither has a frame.
    fn pair<E>(
        &mut self,
        user: Option<StackId>,
        kernel: Option<StackId>,
        resolve: &mut impl FnMut(StackId) -> Result<ResolvedStack, E>,
    ) -> Result<Option<Pair>, E> {
        let user = user.map(|stack| self.path(stack, resolve)).transpose()?;
        let kernel = kernel.map(|stack| self.path(stack, resolve)).transpose()?;
        Ok(self.sided(user, kernel))
    }

    fn sided(&self, user: Option<PathId>, kernel: Option<PathId>) -> Option<Pair> {
        let (user, kernel) = (user.unwrap_or(PathId::EMPTY), kernel.unwrap_or(PathId::EMPTY));
        if (Pair { user, kernel }) == NO_CODE {
            return None;
        }
        Some(match self.side {
            Side::Both => Pair { user, kernel },
            Side::User => Pair { user, kernel: PathId::EMPTY },
            Side::Kernel => Pair { user: PathId::EMPTY, kernel },
        })
    }

    fn path<E>(
        &mut self,
        stack: StackId,
        resolve: &mut impl FnMut(StackId) -> Result<ResolvedStack, E>,
    ) -> Result<PathId, E> {
        if let Some(path) = self.known.get(&stack) {
            return Ok(*path);
        }
        let path = self.paths.add(&resolve(stack)?, &mut self.frames);
        self.known.insert(stack, path);
        Ok(path)
    }

    fn waker<E>(
        &mut self,
        waker: Option<&WakerStacks>,
        resolve: &mut impl FnMut(StackId) -> Result<ResolvedStack, E>,
    ) -> Result<Option<Waker>, E> {
        let Some(waker) = waker.filter(|_| self.view == View::Wakers) else { return Ok(None) };
        let stacks = self.pair(waker.user, waker.kernel, resolve)?;
        let stacks = stacks.unwrap_or(NO_CODE);
        Ok(Some(Waker { thread: waker.thread, interrupt: waker.interrupt, stacks }))
    }
}

fn is_wait(what: Weighted) -> bool {
    matches!(what, Weighted::State(State::Blocked(_)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::fixture::{code, kernel_code, stack, thread};
    use crate::weights::stack::{WeightedStack, Weights};
    use proptest::prelude::*;
    use std::sync::Arc;
    use wallprof_model::profile::{ResolvedFrame, WakerRecord};
    use wallprof_model::{EpochSecond, MeaningSource, Reason, StackEnd, StallReason, ThreadRef};
    use wallprof_testkit::stacks::stall;

    const USER: StackId = StackId(1);
    const KERNEL: StackId = StackId(2);
    const OTHER: StackId = StackId(3);
    const NOTHING: StackId = StackId(4);

    /// `main < handle`, `sys_futex < futex_wait`, `main < sweep`, and a stack without a frame.
    fn resolve() -> impl Fn(StackId) -> Result<ResolvedStack, ()> {
        let frame = |name: &str| code(&[name]);
        let (main, handle, sweep) = (frame("main"), frame("handle"), frame("sweep"));
        let (entry, wait) = (kernel_code("sys_futex"), kernel_code("futex_wait"));
        move |id| {
            let frames: [&Arc<ResolvedFrame>; 2] = match id {
                USER => [&handle, &main],
                KERNEL => [&wait, &entry],
                OTHER => [&sweep, &main],
                NOTHING => return Ok(ResolvedStack { frames: [].into(), end: StackEnd::ReadFailed }),
                _ => return Err(()),
            };
            Ok(stack(&frames))
        }
    }

    fn sample(what: Weighted, user: Option<StackId>, kernel: Option<StackId>, weight: u64) -> SampleDelta {
        SampleDelta {
            thread: ThreadKey(1),
            second: EpochSecond(0),
            what,
            user,
            kernel,
            waker: None,
            weight,
            count: 1,
        }
    }

    fn state(state: State, user: StackId, weight: u64) -> SampleDelta {
        sample(Weighted::State(state), Some(user), None, weight)
    }

    const LOCK: State = State::Blocked(Reason::Lock);

    fn lock_waits(kernel: Option<StackId>, weight: u64, waker: Option<WakerStacks>) -> SampleDelta {
        SampleDelta { waker, ..sample(Weighted::State(LOCK), Some(USER), kernel, weight) }
    }

    /// A thread that lived 1,000 ns: 500 user, 100 kernel, 50 in interrupts, 200 blocked, 90 preempted, 60
    /// unexplained.
    fn engine() -> Thread {
        let mut engine = thread(1, "engine");
        let ledger = &mut engine.ledger;
        (ledger.wall_ns, ledger.on_cpu_ns, ledger.irq_ns) = (1_000, 650, 50);
        (ledger.user_samples, ledger.kernel_samples) = (5, 1);
        (ledger.preempted_ns, ledger.blocked_ns[0]) = (90, 200);
        engine
    }

    fn gathered(view: View, side: Side, samples: &[SampleDelta]) -> Weights {
        let threads = [engine(), thread(2, "keeper")];
        let mut gather = Gather::new(view, side, &["cs".into()], &threads, |thread| thread.info.key.0 == 1);
        samples.iter().for_each(|sample| gather.add(sample, None, resolve()).unwrap());
        gather.finish()
    }

    /// `a;b;c WEIGHT`, as the folded format writes it, without the thread.
    fn lines(weights: &Weights) -> Vec<String> {
        let line = |stack: &WeightedStack| {
            let functions = stack.frames.iter().flat_map(|frame| weights.frames.get(*frame).functions());
            let names: Vec<_> = functions.map(|function| function.name.into_owned()).collect();
            format!("{} {}", names.join(";"), stack.weight)
        };
        weights.stacks.iter().map(line).collect()
    }

    #[test]
    fn the_wall_view_is_the_ledger_with_stacks() {
        let weights = gathered(
            View::Wall,
            Side::Both,
            &[
                state(State::User, USER, 30),
                state(State::User, OTHER, 10),
                sample(Weighted::State(State::Kernel), Some(USER), Some(KERNEL), 10),
                lock_waits(Some(KERNEL), 150, None),
                sample(Weighted::State(State::Preempted), None, None, 70),
                sample(Weighted::Event(0), Some(USER), None, 9),
            ],
        );
        assert_eq!(
            lines(&weights),
            [
                "main;handle;[user] 375",
                "main;sweep;[user] 125",
                "main;handle;sys_futex;futex_wait;[kernel] 100",
                "[unsampled];[irq] 50",
                "[unsampled];[preempted] 90",
                "main;handle;sys_futex;futex_wait;[blocked:lock] 150",
                "[unsampled];[blocked:lock] 50",
                "[unaccounted] 60",
            ]
        );
        assert_eq!((weights.total(), weights.left_out_ns), (1_000, 0));
    }

    #[test]
    fn meaning_of_a_wait_stands_between_its_stack_and_its_state() {
        let row_lock = Arc::new(Meaning {
            name: "row lock".into(),
            software: Some("postgresql".into()),
            idle: false,
            holder: true,
            source: MeaningSource::Stack,
        });
        let threads = [engine()];
        let mut gather = Gather::new(View::OffCpu, Side::User, &[], &threads, |_| true);
        let (with, without) = (lock_waits(Some(KERNEL), 120, None), lock_waits(None, 30, None));
        gather.add(&with, Some(Arc::clone(&row_lock)), resolve()).unwrap();
        gather.add(&without, None, resolve()).unwrap();
        let preempted = state(State::Preempted, USER, 90);
        gather.add(&preempted, Some(row_lock), resolve()).unwrap();
        assert_eq!(
            lines(&gather.finish()),
            [
                "main;handle;[preempted] 90",
                "main;handle;[blocked:lock] 30",
                "main;handle;[row lock of postgresql];[blocked:lock] 120",
                "[unsampled];[blocked:lock] 50",
            ]
        );
    }

    #[test]
    fn the_parts_of_wall_time_are_its_lines() {
        let samples = [state(State::User, USER, 30), lock_waits(Some(KERNEL), 150, None)];
        let mut wall = lines(&gathered(View::Wall, Side::Both, &samples));
        let parts = [View::OnCpu, View::OffCpu, View::Faults];
        let mut parts: Vec<_> =
            parts.into_iter().flat_map(|view| lines(&gathered(view, Side::Both, &samples))).collect();
        parts.push("[unaccounted] 60".into());
        wall.sort();
        parts.sort();
        assert_eq!(wall, parts);
    }

    #[test]
    fn one_side_of_the_stacks_keeps_all_of_the_time() {
        let samples = [
            state(State::User, USER, 1),
            sample(Weighted::State(State::Kernel), Some(USER), Some(KERNEL), 1),
            lock_waits(Some(KERNEL), 200, None),
        ];
        let user = gathered(View::Wall, Side::User, &samples);
        assert!(lines(&user).contains(&"main;handle;[blocked:lock] 200".into()));
        let kernel = gathered(View::Wall, Side::Kernel, &samples);
        assert!(lines(&kernel).contains(&"[user] 500".into()), "sampled, and no kernel frame");
        assert_eq!((user.total(), kernel.total()), (1_000, 1_000));
    }

    #[test]
    fn waits_longer_than_their_state_are_scaled_down_to_it() {
        let samples = [lock_waits(None, 900, None), lock_waits(Some(KERNEL), 300, None)];
        let weights = gathered(View::OffCpu, Side::Both, &samples);
        let lock: Vec<u64> = weights
            .stacks
            .iter()
            .filter(|stack| stack.state == Some(LOCK))
            .map(|stack| stack.weight)
            .collect();
        assert_eq!(lock, [150, 50]);
    }

    #[test]
    fn waker_stands_above_the_wait_leaf_first() {
        let waker = |thread, interrupt, user| {
            Some(WakerStacks { thread, interrupt, user, kernel: interrupt.then_some(KERNEL) })
        };
        let weights = gathered(
            View::Wakers,
            Side::Both,
            &[
                lock_waits(None, 100, waker(Some(ThreadKey(2)), false, Some(OTHER))),
                lock_waits(None, 20, waker(None, true, None)),
                lock_waits(None, 10, waker(None, false, None)),
                lock_waits(None, 30, None),
            ],
        );
        let mut lines = lines(&weights);
        lines.sort();
        assert_eq!(
            lines,
            [
                "main;handle;[blocked:lock];[woken by];[thread not recorded] 10",
                "main;handle;[blocked:lock];[woken by];futex_wait;sys_futex;[interrupt] 20",
                "main;handle;[blocked:lock];[woken by];sweep;main;keeper 100",
            ]
        );
        assert_eq!(weights.left_out_ns, 30 + 40, "waits without a waker, and time without a stack");
    }

    #[test]
    fn events_are_counted_as_they_are() {
        let samples = [
            sample(Weighted::Event(0), Some(USER), Some(KERNEL), 7),
            sample(Weighted::Event(0), None, Some(NOTHING), 2),
            sample(Weighted::Event(1), Some(USER), None, 1),
            state(State::User, USER, 5),
        ];
        let weights = gathered(View::Event("cs".into()), Side::Both, &samples);
        assert_eq!(lines(&weights), ["[unsampled] 2", "main;handle;sys_futex;futex_wait 7"]);
        assert!(gathered(View::Event("faults".into()), Side::Both, &samples).stacks.is_empty());
    }

    fn wait(user: &ResolvedStack, reason: StallReason, times: [u64; 3]) -> StallRecord {
        let [start, blocked_ns, end] = times;
        let runnable_ns = (end - start) - blocked_ns;
        let wait = stall(1, 1, reason, MonoNs(start), end - start);
        StallRecord { open: true, blocked_ns, runnable_ns, user: Some(user.clone()), ..wait }
    }

    /// The weights in the range from 1,000 to 2,000 of a wait on `main < handle`, and of a sample of it.
    fn weigh_wait(reason: StallReason, times: [u64; 3], sampled_ns: Option<u64>) -> Vec<String> {
        let (threads, resolve) = ([engine()], resolve());
        let mut gather = Gather::new(View::OffCpu, Side::Both, &[], &threads, |_| true);
        if let Some(ns) = sampled_ns {
            gather.add(&lock_waits(None, ns, None), None, &resolve).unwrap();
        }
        let wait = wait(&resolve(USER).unwrap(), reason, times);
        gather.add_wait(&wait, &(MonoNs(1_000)..MonoNs(2_000)), sampled_ns.is_some());
        lines(&gather.finish()).into_iter().filter(|line| line.starts_with("main")).collect()
    }

    #[test]
    fn only_the_part_of_a_long_wait_that_lies_in_the_range_counts() {
        let lock = StallReason::Blocked(Reason::Lock);
        assert_eq!(weigh_wait(lock, [1_880, 5_000, 6_880], None), ["main;handle;[blocked:lock] 120"]);
        assert_eq!(
            weigh_wait(StallReason::Preempted, [1_950, 0, 2_050], None),
            ["main;handle;[preempted] 50"]
        );
        // It ended in the range, and its sample there has all of its 850 ns.
        assert_eq!(weigh_wait(lock, [300, 850, 1_150], Some(850)), ["main;handle;[blocked:lock] 150"]);
        let empty: [&str; 0] = [];
        assert_eq!(weigh_wait(StallReason::Runnable, [900, 20, 930], None), empty, "it ended before");
    }

    #[test]
    fn wait_that_began_before_the_range_has_its_part_of_the_view_of_wakers() {
        let (threads, resolve) = ([engine(), thread(2, "keeper")], resolve());
        let mut gather = Gather::new(View::Wakers, Side::Both, &[], &threads, |_| true);
        let by = |thread: Option<ThreadKey>, interrupt, user: Option<StackId>| WakerStacks {
            thread,
            interrupt,
            user,
            kernel: None,
        };
        for (ns, waker) in [(850, by(Some(ThreadKey(2)), false, Some(OTHER))), (20, by(None, true, None))] {
            gather.add(&lock_waits(None, ns, Some(waker)), None, &resolve).unwrap();
        }
        let wait = wait(&resolve(USER).unwrap(), StallReason::Blocked(Reason::Lock), [300, 850, 1_150]);
        let keeper = ThreadRef { key: Some(ThreadKey(2)), ..ThreadRef::default() };
        let waker = WakerRecord { thread: Some(keeper), user: Some(resolve(OTHER).unwrap()), kernel: None };
        let wait = StallRecord { open: false, waker: Some(waker), ..wait };
        gather.add_wait(&wait, &(MonoNs(1_000)..MonoNs(2_000)), true);
        let mut lines = lines(&gather.finish());
        lines.sort();
        assert_eq!(
            lines,
            [
                "main;handle;[blocked:lock];[woken by];[interrupt] 20",
                "main;handle;[blocked:lock];[woken by];sweep;main;keeper 150",
            ]
        );
    }

    #[test]
    fn an_unreadable_stack_is_an_error() {
        let threads = [engine()];
        let mut gather = Gather::new(View::Wall, Side::Both, &[], &threads, |_| true);
        assert_eq!(gather.add(&state(State::User, StackId(99), 1), None, resolve()), Err(()));
    }

    proptest! {
        #[test]
        fn wall_is_wall_whatever_was_sampled(
            samples in proptest::collection::vec((0..28u8, 0..5u64, 0..5u64, any::<u64>()), 0..40),
            times in proptest::array::uniform4(0..3_000_000_000u64)
        ) {
            let mut engine = thread(1, "engine");
            let [on_cpu, irq, blocked, gap] = times;
            (engine.ledger.on_cpu_ns, engine.ledger.irq_ns) = (on_cpu + irq, irq);
            engine.ledger.blocked_ns[3] = blocked;
            engine.ledger.wall_ns = on_cpu + irq + blocked + gap;
            let threads = [engine];
            let mut gather = Gather::new(View::Wall, Side::Both, &[], &threads, |_| true);
            let resolve = resolve();
            for (code, user, kernel, weight) in samples {
                let Some(state) = State::from_code(code) else { continue };
                let stack = |id| (id > 0).then_some(StackId(id));
                gather.add(&sample(Weighted::State(state), stack(user), stack(kernel), weight), None, &resolve).unwrap();
            }
            let weights = gather.finish();
            prop_assert_eq!(weights.total(), u128::from(threads[0].ledger.wall_ns));
        }
    }
}
