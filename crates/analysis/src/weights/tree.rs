// SPDX-License-Identifier: Apache-2.0
//! The boxes of a flame graph: stacks merged by the names of their functions, narrow ones left out.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use wallprof_model::State;

use super::frame::Role;
use super::stack::{Step, WeightedStack, Weights};

/// The shares of the whole below which boxes may be left out, finest first: one in so many.
const SHARES: [u64; 4] = [100_000, 10_000, 1_000, 100];

/// A flame graph's boxes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// In depth-first order: a box comes before those that stand on it, siblings in the order of their names.
    pub nodes: Vec<Node>,
    /// Boxes narrower than one in so many of the whole were left out.
    pub one_in: u64,
    /// How many boxes were left out. Their weight is still part of what they stand on.
    pub left_out: usize,
}

/// One box.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    pub role: Role,
    /// Part of the stack that woke the thread below.
    pub waking: bool,
    /// The box that this one stands on; `None` for the lowest ones.
    pub parent: Option<usize>,
    pub weight: u64,
    /// The part of `weight` that no box above takes.
    pub own: u64,
    /// The state that most of the weight was spent in.
    pub state: Option<State>,
}

/// The key by which boxes above the same box are merged.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Label {
    name: String,
    role: Role,
    waking: bool,
}

impl Tree {
    /// Merges `weights` into about as many boxes as can be drawn: of the shares below which boxes are left
    /// out, the finest that leaves at most `most_boxes`, else the coarsest. The lowest boxes are processes,
    /// then threads.
    pub fn grow(weights: &Weights, most_boxes: usize) -> Tree {
        let (labels, rows) = Labels::of(weights);
        let whole = weights.total();
        let mut growth = Growth::new(&labels, least_weight(whole, SHARES[0]));
        rows.iter().for_each(|(row, stack)| growth.add(row, &weights.stacks[*stack]));
        let mut boxes = growth.finish();
        let mut one_in = SHARES[0];
        for share in &SHARES[1..] {
            if boxes.kept.len() > most_boxes {
                one_in = *share;
                boxes.leave_out(least_weight(whole, one_in));
            }
        }
        Tree { nodes: nodes(&boxes.kept, &labels), one_in, left_out: boxes.left_out }
    }

    /// The weight of all boxes.
    pub fn total(&self) -> u64 {
        self.nodes.iter().fold(0, |sum, node| sum.saturating_add(node.own))
    }
}

fn least_weight(whole: u128, one_in: u64) -> u64 {
    u64::try_from(whole.div_ceil(u128::from(one_in))).unwrap_or(u64::MAX)
}

/// The labels of all functions, and each stack as their ranks.
struct Labels<'a> {
    weights: &'a Weights,
    numbers: HashMap<Label, u32>,
    /// The functions of steps that were met.
    steps: HashMap<Step, Vec<u32>>,
}

impl Labels<'_> {
    /// The labels in their order, and a row of ranks among them for each stack, in order.
    fn of(weights: &Weights) -> (Vec<Label>, Vec<(Vec<u32>, usize)>) {
        let mut labels = Labels { weights, numbers: HashMap::new(), steps: HashMap::new() };
        let rows = weights.stacks.iter().enumerate().map(|(at, stack)| (labels.row(stack), at));
        let mut rows: Vec<(Vec<u32>, usize)> = rows.collect();
        let mut sorted: Vec<(Label, u32)> = labels.numbers.into_iter().collect();
        sorted.sort_unstable();
        let mut ranks = vec![0; sorted.len()];
        for (rank, (_, number)) in sorted.iter().enumerate() {
            ranks[*number as usize] = rank as u32;
        }
        rows.iter_mut().flat_map(|(row, _)| row).for_each(|number| *number = ranks[*number as usize]);
        rows.sort_unstable();
        (sorted.into_iter().map(|(label, _)| label).collect(), rows)
    }

    fn row(&mut self, stack: &WeightedStack) -> Vec<u32> {
        let thread = &self.weights.threads[stack.thread];
        let mut row = vec![
            self.number(named(&thread.process), Role::Process, false),
            self.number(named(&thread.comm), Role::Thread, false),
        ];
        for step in self.weights.steps(stack) {
            self.extend(&mut row, step);
        }
        row
    }

    fn extend(&mut self, row: &mut Vec<u32>, step: Step) {
        if let Some(known) = self.steps.get(&step) {
            row.extend(known);
            return;
        }
        let functions = self.weights.functions(step).into_iter();
        let numbers: Vec<u32> =
            functions.map(|function| self.number(&function.name, function.role, step.waking)).collect();
        row.extend(&numbers);
        self.steps.insert(step, numbers);
    }

    fn number(&mut self, name: &str, role: Role, waking: bool) -> u32 {
        let next = self.numbers.len() as u32;
        *self.numbers.entry(Label { name: name.into(), role, waking }).or_insert(next)
    }
}

fn named(name: &str) -> &str {
    if name.is_empty() { "(unnamed)" } else { name }
}

/// A box that is kept.
struct Box {
    label: u32,
    depth: usize,
    weight: u64,
    state: Option<State>,
}

/// The boxes in depth-first order.
struct Boxes {
    kept: Vec<Box>,
    left_out: usize,
}

impl Boxes {
    /// Removes boxes narrower than `least`. A box is at least as wide as the boxes on it, so that no box
    /// loses its base.
    fn leave_out(&mut self, least: u64) {
        let before = self.kept.len();
        self.kept.retain(|kept| kept.weight >= least);
        self.left_out += before - self.kept.len();
    }
}

/// Merges rows that come in order. Holds only what is open and what is wide enough to be kept.
struct Growth<'a> {
    labels: &'a [Label],
    least: u64,
    boxes: Boxes,
    open: Vec<Open>,
    /// The state and weight of each row so far, and what they weigh together.
    rows: Vec<(Option<State>, u64)>,
    sum: u128,
}

/// A box that rows may still add to; its place in `kept` is kept free for it.
struct Open {
    label: u32,
    place: usize,
    /// How many rows came before it, and what they weigh.
    rows_before: usize,
    sum_before: u128,
}

impl<'a> Growth<'a> {
    fn new(labels: &'a [Label], least: u64) -> Self {
        let boxes = Boxes { kept: Vec::new(), left_out: 0 };
        Growth { labels, least, boxes, open: Vec::new(), rows: Vec::new(), sum: 0 }
    }

    fn add(&mut self, row: &[u32], stack: &WeightedStack) {
        let common = row.iter().zip(&self.open).take_while(|(label, open)| **label == open.label).count();
        self.close(common);
        for label in &row[common..] {
            let place = self.boxes.kept.len();
            self.boxes.kept.push(Box { label: *label, depth: self.open.len(), weight: 0, state: None });
            let (rows_before, sum_before) = (self.rows.len(), self.sum);
            self.open.push(Open { label: *label, place, rows_before, sum_before });
        }
        self.rows.push((stack.state, stack.weight));
        self.sum += u128::from(stack.weight);
    }

    fn close(&mut self, depth: usize) {
        while self.open.len() > depth {
            let Some(open) = self.open.pop() else { return };
            let weight = u64::try_from(self.sum - open.sum_before).unwrap_or(u64::MAX);
            if weight < self.least {
                // The boxes on it were narrower and are removed, so that it is the last one.
                self.boxes.kept.truncate(open.place);
                self.boxes.left_out += 1;
                continue;
            }
            let kept = &mut self.boxes.kept[open.place];
            kept.weight = weight;
            let own = own_state(&self.labels[kept.label as usize]);
            kept.state = own.or_else(|| most(&self.rows[open.rows_before..]));
        }
    }

    fn finish(mut self) -> Boxes {
        self.close(0);
        self.boxes
    }
}

fn own_state(label: &Label) -> Option<State> {
    match label.role {
        Role::State(state) => Some(state),
        _ => None,
    }
}

/// The state of most of the weight, the first in the order of states where several have as much.
fn most(rows: &[(Option<State>, u64)]) -> Option<State> {
    let mut by_state: BTreeMap<State, u128> = BTreeMap::new();
    for (state, weight) in rows {
        if let Some(state) = state {
            *by_state.entry(*state).or_default() += u128::from(*weight);
        }
    }
    by_state.into_iter().max_by_key(|(state, weight)| (*weight, Reverse(*state))).map(|(state, _)| state)
}

fn nodes(boxes: &[Box], labels: &[Label]) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::with_capacity(boxes.len());
    let mut below: Vec<usize> = Vec::new();
    for one in boxes {
        below.truncate(one.depth);
        let parent = below.last().copied();
        if let Some(parent) = parent {
            nodes[parent].own = nodes[parent].own.saturating_sub(one.weight);
        }
        let Label { name, role, waking } = labels[one.label as usize].clone();
        let (weight, state) = (one.weight, one.state);
        below.push(nodes.len());
        nodes.push(Node { name, role, waking, parent, weight, own: weight, state });
    }
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::fixture::code;
    use crate::weights::{FrameId, Frames, Mark, View, WeightedThread};
    use proptest::prelude::*;
    use wallprof_model::Reason;

    const LOCK: State = State::Blocked(Reason::Lock);

    fn weights(stacks: &[(&[&str], State, u64)]) -> Weights {
        let mut frames = Frames::default();
        let thread = WeightedThread { process: "engine".into(), comm: "".into(), pid: 1, tid: 2 };
        let stack = |(names, state, weight): &(&[&str], State, u64)| {
            let mut ids: Vec<FrameId> = names.iter().map(|name| frames.code(&code(&[name]))).collect();
            ids.push(frames.mark(Mark::State(*state)));
            WeightedStack { thread: 0, frames: ids, state: Some(*state), weight: *weight, count: 1 }
        };
        let stacks = stacks.iter().map(stack).collect();
        Weights { view: View::Wall, threads: vec![thread], frames, stacks, left_out_ns: 0 }
    }

    /// Each box by its place under its parents: `engine/(unnamed)/main 7/2`, total and own.
    fn shown(tree: &Tree) -> Vec<String> {
        let mut paths: Vec<String> = Vec::new();
        for node in &tree.nodes {
            let below = node.parent.map(|parent| format!("{}/", paths[parent])).unwrap_or_default();
            paths.push(format!("{below}{}", node.name));
        }
        let line = |(path, node): (String, &Node)| format!("{path} {}/{}", node.weight, node.own);
        paths.into_iter().zip(&tree.nodes).map(line).collect()
    }

    #[test]
    fn equal_functions_on_equal_ones_are_one_box() {
        let tree = Tree::grow(
            &weights(&[
                (&["main", "run"], State::User, 5),
                (&["main", "run"], LOCK, 2),
                (&["main", "run"], State::User, 1),
                (&["main", "idle"], LOCK, 9),
            ]),
            1_000,
        );
        assert_eq!(
            shown(&tree),
            [
                "engine 17/0",
                "engine/(unnamed) 17/0",
                "engine/(unnamed)/main 17/0",
                "engine/(unnamed)/main/idle 9/0",
                "engine/(unnamed)/main/idle/[blocked:lock] 9/9",
                "engine/(unnamed)/main/run 8/0",
                "engine/(unnamed)/main/run/[blocked:lock] 2/2",
                "engine/(unnamed)/main/run/[user] 6/6",
            ]
        );
        let states: Vec<_> = tree.nodes.iter().map(|node| node.state).collect();
        assert_eq!(states[2..], [LOCK, LOCK, LOCK, State::User, LOCK, State::User].map(Some));
        assert_eq!(tree.left_out, 0);
    }

    #[test]
    fn narrow_boxes_go_first_and_their_weight_stays_below() {
        let stacks: &[(&[&str], State, u64)] = &[
            (&["main", "wide"], State::User, 999_000),
            (&["main", "narrow", "deep"], State::User, 999),
            (&["main", "dust"], State::User, 1),
        ];
        let tree = Tree::grow(&weights(stacks), 1_000);
        assert_eq!((tree.one_in, tree.left_out), (100_000, 2), "dust and its state");
        let tree = Tree::grow(&weights(stacks), 5);
        assert_eq!((tree.one_in, tree.left_out, tree.nodes.len()), (1_000, 5, 5));
        assert_eq!(shown(&tree)[2], "engine/(unnamed)/main 1000000/1000");
    }

    #[test]
    fn nothing_is_an_empty_picture() {
        assert_eq!(Tree::grow(&weights(&[]), 10).nodes, []);
    }

    proptest! {
        #[test]
        fn boxes_hold_all_of_the_weight(
            stacks in proptest::collection::vec((proptest::collection::vec(0..4usize, 0..6), 0..20u8, 1..1_000_000u64), 1..60),
            most_boxes in 1..40usize
        ) {
            let names = ["a", "b", "c", "d"];
            let rows: Vec<(Vec<&str>, State, u64)> = stacks
                .iter()
                .map(|(row, code, weight)| {
                    (row.iter().map(|at| names[*at]).collect(), State::from_code(*code).unwrap_or(LOCK), *weight)
                })
                .collect();
            let borrowed: Vec<_> = rows.iter().map(|(row, state, weight)| (row.as_slice(), *state, *weight)).collect();
            let weights = weights(&borrowed);
            let tree = Tree::grow(&weights, most_boxes);
            prop_assert_eq!(tree.nodes.iter().map(|node| u128::from(node.own)).sum::<u128>(), weights.total());
            for (at, node) in tree.nodes.iter().enumerate() {
                prop_assert!(node.parent.is_none_or(|parent| parent < at && tree.nodes[parent].weight >= node.weight));
            }
        }
    }
}
