// SPDX-License-Identifier: Apache-2.0
//! One recording, added up by group of threads: each state's time and each stack's, by second.
//!
//! Stacks partition the states. Time that was measured whole is never scaled up: the part without a stack is
//! under `[unsampled]`. Samples are scaled to the running time that the ledger knows exactly, as a report
//! divides it. Waits that the recording keeps one by one are kept with the stack and the state they belong
//! to.

use std::collections::{BTreeMap, HashMap};

use wallprof_model::event::Weighted;
use wallprof_model::profile::{LedgerRow, RecordingInfo, ResolvedStack, SampleRow, StallRecord, Thread};
use wallprof_model::{EpochSecond, Meaning, Reason, StackId, State, ThreadKey};

use super::meant::Meant;
use super::series::Series;
use super::step::steps_from_stacks;
use super::tree::{NodeId, Tree};
use super::waits::{Waits, wait_of};
use super::windows::Windows;
use crate::interest::Class;
use crate::totals::accounts;

/// Threads that are taken for the same in two recordings, by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Group {
    pub process: String,
    pub thread: String,
}

/// One recording, collected.
#[derive(Clone, Debug)]
pub struct Side {
    pub(crate) windows: Windows,
    /// The shortest wait that was kept by itself.
    pub(crate) min_stall_ns: u64,
    pub(crate) groups: BTreeMap<Group, GroupTime>,
}

impl Side {
    /// The seconds of wall time that were observed.
    pub fn wall_s(&self) -> f64 {
        self.windows.total_ns() / 1e9
    }

    /// Whether any thread waited. A source that samples running time alone knows no waits.
    pub fn has_waits(&self) -> bool {
        let mut states = self.groups.values().flat_map(|time| time.states.keys());
        states.any(|state| Class::of(*state) != Class::Running)
    }

    /// How many whole one-second windows that is worth to judge noise by.
    pub fn effective_windows(&self) -> f64 {
        self.windows.effective()
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct GroupTime {
    pub threads: usize,
    /// Running time outside interrupts and faults: user and kernel together.
    pub running: Series,
    pub states: BTreeMap<State, Series>,
    pub stacks: Vec<(NodeId, State, Series)>,
    /// The waits that were kept one by one, by leaf.
    pub waits: BTreeMap<NodeId, Waits>,
}

/// Takes the rows of one recording.
#[derive(Debug)]
pub struct Collector {
    members: HashMap<ThreadKey, usize>,
    groups: Vec<Rows>,
    lived: BTreeMap<EpochSecond, u64>,
    leaves: HashMap<(usize, State, Option<StackId>, Option<StackId>), NodeId>,
}

/// The sums of a group's rows, before states and stacks agree.
#[derive(Debug, Default)]
struct Rows {
    group: Option<Group>,
    threads: usize,
    user_ns: u64,
    kernel_ns: u64,
    running: Series,
    states: BTreeMap<State, Series>,
    stacks: BTreeMap<NodeId, (State, Series)>,
    waits: BTreeMap<NodeId, Waits>,
}

impl Collector {
    pub fn new(threads: &[Thread]) -> Self {
        let mut by_name: BTreeMap<Group, usize> = BTreeMap::new();
        let mut collector = Collector {
            members: HashMap::new(),
            groups: Vec::new(),
            lived: BTreeMap::new(),
            leaves: HashMap::new(),
        };
        for (thread, account) in threads.iter().zip(accounts(threads)) {
            let name = Group { process: thread.info.process.clone(), thread: thread.info.comm.clone() };
            let group = *by_name.entry(name.clone()).or_insert(collector.groups.len());
            if group == collector.groups.len() {
                collector.groups.push(Rows { group: Some(name), ..Rows::default() });
            }
            collector.members.insert(thread.info.key, group);
            let rows = &mut collector.groups[group];
            rows.threads += 1;
            rows.user_ns = rows.user_ns.saturating_add(account.states.user);
            rows.kernel_ns = rows.kernel_ns.saturating_add(account.states.kernel);
        }
        collector
    }

    /// Adds a bucket. A row of a thread that is not among the recording's is left out.
    pub fn ledger(&mut self, row: &LedgerRow) {
        let Some(rows) = self.members.get(&row.thread).and_then(|&group| self.groups.get_mut(group)) else {
            return;
        };
        let lived = self.lived.entry(row.second).or_default();
        *lived = row.wall_ns.max(*lived);
        let claimed = row.irq_ns.saturating_add(row.fault_on_cpu_ns).saturating_add(row.undivided_ns);
        let claimed = claimed.saturating_add(row.cpu_ns);
        rows.running.add(row.second, row.on_cpu_ns.saturating_sub(claimed));
        let measured = [
            (State::Cpu, row.cpu_ns),
            (State::Irq, row.irq_ns),
            (State::FaultMinor, row.fault_minor_ns),
            (State::FaultMajor, row.fault_major_ns),
            (State::Runnable, row.runnable_ns),
            (State::Preempted, row.preempted_ns),
        ];
        let blocked =
            Reason::ALL.map(|reason| (State::Blocked(reason), row.blocked_ns[usize::from(reason.code())]));
        for (state, ns) in measured.into_iter().chain(blocked).filter(|(_, ns)| *ns > 0) {
            rows.states.entry(state).or_default().add(row.second, ns);
        }
    }

    /// Adds samples, and what the place means if they are of waits. `resolve` gives the frames of a stack, which is
    /// asked for once for each group.
    ///
    /// # Errors
    /// The error of `resolve`.
    pub fn sample<E>(
        &mut self,
        row: &SampleRow,
        meaning: Option<&Meaning>,
        tree: &mut Tree,
        mut resolve: impl FnMut(StackId) -> Result<ResolvedStack, E>,
    ) -> Result<(), E> {
        let (Weighted::State(state), Some(&group)) = (row.what, self.members.get(&row.thread)) else {
            return Ok(());
        };
        self.lived.entry(row.second).or_default();
        let rows = &mut self.groups[group];
        let key = (group, state, row.user, row.kernel);
        let leaf = match self.leaves.get(&key) {
            Some(&known) => known,
            None => {
                let user = row.user.map(&mut resolve).transpose()?;
                let kernel = row.kernel.map(&mut resolve).transpose()?;
                let steps = steps_from_stacks(user.as_ref(), kernel.as_ref(), state);
                let node = rows.group.as_ref().map_or(NodeId::ALL, |group| tree.group_node(group));
                *self.leaves.entry(key).or_insert(tree.leaf(node, steps))
            }
        };
        if matches!(state, State::Blocked(_)) {
            let meant = meaning.and_then(|meaning| Meant::of(meaning, state));
            tree.votes(leaf).add_place(meant, row.weight);
        }
        let (_, series) = rows.stacks.entry(leaf).or_insert_with(|| (state, Series::default()));
        match state {
            State::User | State::Kernel => series.add_samples(row.second, row.weight, row.count),
            _ => series.add(row.second, row.weight),
        }
        Ok(())
    }

    /// Adds a stall of the recording; those that say nothing about lengths of waits are left out.
    pub fn stall(&mut self, stall: &StallRecord, tree: &mut Tree) {
        let (Some((state, ns)), Some(&group)) = (wait_of(stall), self.members.get(&stall.thread)) else {
            return;
        };
        let rows = &mut self.groups[group];
        let node = rows.group.as_ref().map_or(NodeId::ALL, |group| tree.group_node(group));
        let leaf = tree.leaf(node, steps_from_stacks(stall.user.as_ref(), stall.kernel.as_ref(), state));
        tree.votes(leaf).add_wait(stall.meaning.as_ref().and_then(|meaning| Meant::of(meaning, state)), ns);
        rows.waits.entry(leaf).or_default().add(stall.start, ns);
    }

    pub fn finish(self, info: &RecordingInfo, tree: &mut Tree) -> Side {
        let windows = Windows::new(info, &self.lived);
        let groups = self.groups.into_iter().filter_map(|rows| {
            let group = rows.group.clone()?;
            let node = tree.group_node(&group);
            let unsampled = |state| tree.leaf(node, steps_from_stacks(None, None, state));
            Some((group, rows.agreed(unsampled)))
        });
        Side { groups: groups.collect(), windows, min_stall_ns: info.min_stall_ns }
    }
}

impl Rows {
    /// States and stacks that add up to each other.
    fn agreed(self, mut unsampled: impl FnMut(State) -> NodeId) -> GroupTime {
        let taken = self.taken();
        let mut time =
            GroupTime { threads: self.threads, running: self.running.clone(), ..GroupTime::default() };
        time.waits = self.waits.clone();
        if time.running.total_ns() == 0 {
            taken
                .iter()
                .filter(|(state, _)| is_sampled(**state))
                .for_each(|(_, ns)| time.running.add_all(ns));
        }
        let mut scales = BTreeMap::new();
        for state in every_state() {
            let nothing = Series::default();
            let taken = taken.get(&state).unwrap_or(&nothing);
            let share = self.share(state, taken);
            if share.unsampled.total_ns() > 0 {
                time.stacks.push((unsampled(state), state, share.unsampled));
            }
            if share.whole.total_ns() > 0 {
                time.states.insert(state, share.whole);
            }
            scales.insert(state, (share.scale, taken.total_ns()));
        }
        for (leaf, (state, series)) in self.stacks {
            let (of, whole) = scales[&state];
            time.stacks.push((leaf, state, if of == whole { series } else { series.scaled(of, whole) }));
        }
        time
    }

    /// The time of all stacks in each state.
    fn taken(&self) -> BTreeMap<State, Series> {
        let mut taken: BTreeMap<State, Series> = BTreeMap::new();
        for (state, series) in self.stacks.values() {
            taken.entry(*state).or_default().add_all(series);
        }
        taken
    }

    fn share(&self, state: State, taken: &Series) -> Share {
        match state {
            State::User => self.sampled_share(self.user_ns, taken),
            State::Kernel => self.sampled_share(self.kernel_ns, taken),
            _ => measured_share(self.states.get(&state), taken),
        }
    }

    fn sampled_share(&self, exact_ns: u64, taken: &Series) -> Share {
        let taken_ns = taken.total_ns();
        // A source without a ledger: its samples are all there is.
        if self.user_ns == 0 && self.kernel_ns == 0 {
            return Share { whole: taken.clone(), unsampled: Series::default(), scale: taken_ns };
        }
        if taken_ns == 0 {
            let guess = self.running.scaled(exact_ns, self.running.total_ns()).guessed();
            return Share { whole: guess.clone(), unsampled: guess, scale: 0 };
        }
        Share { whole: taken.scaled(exact_ns, taken_ns), unsampled: Series::default(), scale: exact_ns }
    }
}

/// One state of a group: its time, the part of it without a stack, and the value to which its stacks are
/// scaled.
struct Share {
    whole: Series,
    unsampled: Series,
    scale: u64,
}

/// Stacks may hold a little more than the ledger, which counts interrupts out of waits.
fn measured_share(measured: Option<&Series>, taken: &Series) -> Share {
    let taken_ns = taken.total_ns();
    match measured {
        None => Share { whole: taken.clone(), unsampled: Series::default(), scale: taken_ns },
        Some(whole) => Share {
            whole: whole.clone(),
            unsampled: whole.without(taken),
            scale: taken_ns.min(whole.total_ns()),
        },
    }
}

fn is_sampled(state: State) -> bool {
    matches!(state, State::User | State::Kernel)
}

fn every_state() -> impl Iterator<Item = State> {
    crate::States::default().iter().map(|(state, _)| state).collect::<Vec<_>>().into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diff::fixture::Fixture;
    use proptest::prelude::*;

    fn stack_ns(side: &Side, tree: &Tree, path: &str) -> u64 {
        let shown = |node| tree.path(node).iter().map(ToString::to_string).collect::<Vec<_>>().join(";");
        let stacks = side.groups.values().flat_map(|time| &time.stacks);
        stacks.filter(|(node, ..)| shown(*node) == path).map(|(.., series)| series.total_ns()).sum()
    }

    #[test]
    fn samples_are_scaled_to_the_running_time() {
        let mut tree = Tree::default();
        let fixture = Fixture::new(2).running("t", 300, &[("main;hot", 3), ("main;cold", 1)]);
        let side = fixture.side(&mut tree);
        assert_eq!(stack_ns(&side, &tree, "main;hot;[user]"), 450_000_000);
        assert_eq!(stack_ns(&side, &tree, "main;cold;[user]"), 150_000_000);
    }

    #[test]
    fn running_time_without_samples_is_there_and_uncertain() {
        let mut tree = Tree::default();
        let side = Fixture::new(2).running("t", 300, &[]).side(&mut tree);
        assert_eq!(stack_ns(&side, &tree, "[unsampled];[user]"), 600_000_000);
        let time = side.groups.values().next().unwrap();
        assert_eq!(time.states[&State::User].sampling_variance(), 0.36e18);
        assert_eq!(time.running.sampling_variance(), 0.0, "user and kernel together are exact");
    }

    #[test]
    fn waits_without_a_stack_are_unsampled() {
        let mut tree = Tree::default();
        let lock = State::Blocked(Reason::Lock);
        let fixture = Fixture::new(2).waiting("t", lock, 100, &[("main;take", 60)]);
        let side = fixture.side(&mut tree);
        assert_eq!(stack_ns(&side, &tree, "main;take;[blocked:lock]"), 120_000_000);
        assert_eq!(stack_ns(&side, &tree, "[unsampled];[blocked:lock]"), 80_000_000);
    }

    #[test]
    fn single_waits_are_with_their_stack_and_state() {
        let mut tree = Tree::default();
        let lock = State::Blocked(Reason::Lock);
        let mut fixture = Fixture::new(1);
        let key = fixture.thread("t");
        fixture.single_waits(key, 0, lock, "main;take", &[200_000, 300_000, 99_999]);
        fixture.single_waits(ThreadKey(1), 0, lock, "main;put", &[500_000]);
        let side = fixture.side(&mut tree);
        let time = side.groups.values().next().unwrap();
        let sums: Vec<u64> = time.waits.values().map(Waits::total_ns).collect();
        assert_eq!(sums, [500_000, 500_000], "the shortest is not kept by itself");
        assert!(time.waits.keys().all(|leaf| time.stacks.iter().any(|(node, ..)| node == leaf)));
    }

    #[test]
    fn samples_of_running_time_alone_know_no_waits() {
        let running = Fixture::new(2).running("t", 300, &[("main", 1)]);
        let has_waits = |fixture: &Fixture| fixture.side(&mut Tree::default()).has_waits();
        assert!(!has_waits(&running));
        assert!(has_waits(&running.waiting("t", State::Blocked(Reason::Sleep), 600, &[])));
    }

    #[test]
    fn threads_of_one_name_are_one_group() {
        let mut tree = Tree::default();
        let fixture = Fixture::new(3).running("w", 100, &[("main", 1)]).running("w", 200, &[("main", 1)]);
        let side = fixture.side(&mut tree);
        assert_eq!((side.groups.len(), side.groups.values().next().unwrap().threads), (1, 2));
        assert_eq!(stack_ns(&side, &tree, "main;[user]"), 900_000_000);
        assert_eq!(side.wall_s(), 3.0);
    }

    proptest! {
        #[test]
        fn stacks_add_up_to_their_states(
            running in proptest::collection::vec((0..900u64, 0..9u64, 0..9u64), 1..4),
            waiting in proptest::collection::vec((0..900u64, 0..500u64, 0..500u64), 1..4),
        ) {
            let mut fixture = Fixture::new(3);
            for (ms, hot, cold) in running {
                fixture = fixture.running("t", ms, &[("main;hot", hot), ("main;cold", cold)]);
            }
            for (ms, one, two) in waiting {
                let state = State::Blocked(Reason::Disk);
                fixture = fixture.waiting("t", state, ms, &[("main;one", one), ("main;two", two)]);
            }
            let mut tree = Tree::default();
            let side = fixture.side(&mut tree);
            for time in side.groups.values() {
                for (state, whole) in &time.states {
                    let of_state = time.stacks.iter().filter(|(_, of, _)| of == state);
                    let (count, sum) =
                        of_state.fold((0, 0), |(count, sum), (.., ns)| (count + 1, sum + ns.total_ns()));
                    // Scaling rounds each second of each stack down by less than a nanosecond.
                    prop_assert!(sum.abs_diff(whole.total_ns()) <= 3 * count, "{state:?}");
                }
            }
        }
    }
}
