// SPDX-License-Identifier: Apache-2.0
//! Every state of every matched group, judged, and what follows for the leaves of a state that is news.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use wallprof_model::State;

use super::collect::{Group, GroupTime};
use super::comparison::{Part, PartChange};
use super::evidence::Change;
use super::news::{Floor, WaitsRule};
use super::series::Series;
use super::sides::Sides;
use super::step::Step;
use super::tree::{NodeId, Tree};
use super::waits::Waits;
use crate::interest::Class;
use crate::weights::View;

/// A group of threads on both sides.
pub(super) type Pair<'s> = (&'s Group, &'s GroupTime, &'s GroupTime);

/// Every state of every group, judged.
pub(super) fn part_changes(
    tree: &Tree,
    pairs: &[Pair<'_>],
    sides: &Sides<'_>,
    view: &View,
) -> Vec<PartChange> {
    let mut parts = Vec::new();
    for (group, a, b) in pairs {
        let mut series: BTreeMap<Part, [Series; 2]> = BTreeMap::new();
        for (side, time) in [a, b].into_iter().enumerate() {
            for (part, one) in parts_of(tree, time, view) {
                series.entry(part).or_default()[side] = one;
            }
        }
        let [waits_a, waits_b] = [a, b].map(|time| waits_by_part(tree, time));
        parts.extend(series.into_iter().map(|(part, [one, other])| {
            let waits = waits_a.get(&part).zip(waits_b.get(&part)).map(|(a, b)| [a, b]);
            let change = sides.part_change([&one, &other], waits);
            PartChange { group: (*group).clone(), part, change, is_news: false }
        }));
    }
    parts
}

/// The waits that were kept one by one, by what their stack means.
fn waits_by_part(tree: &Tree, time: &GroupTime) -> BTreeMap<Part, Waits> {
    let mut by_part: BTreeMap<Part, Vec<&Waits>> = BTreeMap::new();
    for (leaf, waits) in &time.waits {
        if let Some(Step::State(state)) = tree.step(*leaf) {
            by_part.entry(tree.part_of(*leaf, *state)).or_default().push(waits);
        }
    }
    by_part.into_iter().map(|(part, waits)| (part, Waits::merged(waits.into_iter()))).collect()
}

/// Whether a part is an involuntary wait. The time that a thread runs, sleeps, or waits for a CPU depends on
/// the other load of the machine, which differs in the next recording.
pub(super) fn is_asked_first(part: &PartChange) -> bool {
    let is_wait = matches!(part.part, Part::State(State::Blocked(_)) | Part::Meant(..));
    is_wait && part.part.class() != Class::Voluntary
}

pub(super) fn asked_p(part: &PartChange) -> Option<f64> {
    part.change.uncertainty.map(|found| found.p)
}

pub(super) fn waits_rule(parts: &[PartChange], floor: Floor) -> WaitsRule {
    let asked = parts.iter().filter(|part| is_asked_first(part)).filter_map(asked_p);
    WaitsRule::new(floor, asked.count())
}

/// How small the p of a leaf has to be whose state is news.
pub(super) fn leaf_levels(
    tree: &Tree,
    pairs: &[Pair<'_>],
    parts: &[PartChange],
    changes: &[Option<Change>],
    rule: &WaitsRule,
) -> HashMap<NodeId, f64> {
    let mut levels = HashMap::new();
    for part in parts.iter().filter(|part| is_asked_first(part) && rule.is_news(&part.change)) {
        let Some((_, a, b)) = pairs.iter().find(|(group, ..)| **group == part.group) else { continue };
        let stacks: BTreeMap<NodeId, State> =
            a.stacks.iter().chain(&b.stacks).map(|(leaf, state, _)| (*leaf, *state)).collect();
        let is_in_part =
            |(leaf, state): (NodeId, State)| (tree.part_of(leaf, state) == part.part).then_some(leaf);
        let leaves: BTreeSet<NodeId> = stacks.into_iter().filter_map(is_in_part).collect();
        let is_asked =
            |leaf: &&NodeId| changes[leaf.index()].is_some_and(|change| change.uncertainty.is_some());
        let asked = leaves.iter().filter(is_asked).count();
        let most_p = rule.most_p_of_stack(asked, asked < leaves.len());
        levels.extend(leaves.into_iter().map(|leaf| (leaf, most_p)));
    }
    levels
}

/// A group's time by state and by what its waits mean. What has no meaning is the rest of its state.
pub(super) fn parts_of(tree: &Tree, time: &GroupTime, view: &View) -> Vec<(Part, Series)> {
    let mut meant: BTreeMap<Part, Series> = BTreeMap::new();
    let mut of_state: BTreeMap<State, Series> = BTreeMap::new();
    for (leaf, state, series) in time.stacks.iter().filter(|(_, state, _)| view.includes(*state)) {
        let part = tree.part_of(*leaf, *state);
        if part.meant().is_some() {
            meant.entry(part).or_default().add_all(series);
            of_state.entry(*state).or_default().add_all(series);
        }
    }
    let runs = view.includes(State::User) && time.running.total_ns() > 0;
    let running = runs.then(|| (Part::Running, time.running.clone()));
    let states = time.states.iter().filter(|(state, _)| view.includes(**state));
    let without_meaning = states.map(|(state, whole)| {
        let rest = of_state.get(state).map_or_else(|| whole.clone(), |meant| whole.without(meant));
        (Part::State(*state), rest)
    });
    let parts = running.into_iter().chain(without_meaning).chain(meant);
    parts.filter(|(_, series)| series.total_ns() > 0).collect()
}
