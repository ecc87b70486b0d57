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
use super::tree::NodeId;
use crate::interest::Class;
use crate::weights::View;

/// A group of threads on both sides.
pub(super) type Pair<'s> = (&'s Group, &'s GroupTime, &'s GroupTime);

/// Every state of every group, judged.
pub(super) fn part_changes(pairs: &[Pair<'_>], sides: &Sides<'_>, view: &View) -> Vec<PartChange> {
    let mut parts = Vec::new();
    for (group, a, b) in pairs {
        let mut series: BTreeMap<Part, [Series; 2]> = BTreeMap::new();
        for (side, time) in [a, b].into_iter().enumerate() {
            for (part, one) in parts_of(time, view) {
                series.entry(part).or_default()[side] = one.clone();
            }
        }
        parts.extend(series.into_iter().map(|(part, [one, other])| PartChange {
            group: (*group).clone(),
            part,
            change: sides.part_change(part, [&one, &other], [a, b]),
            is_news: false,
        }));
    }
    parts
}

/// Whether a part is an involuntary wait. The time that a thread runs, sleeps, or waits for a CPU depends on
/// the other load of the machine, which differs in the next recording.
pub(super) fn is_asked_first(part: &PartChange) -> bool {
    matches!(part.part, Part::State(state @ State::Blocked(_)) if Class::of(state) != Class::Voluntary)
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
    pairs: &[Pair<'_>],
    parts: &[PartChange],
    changes: &[Option<Change>],
    rule: &WaitsRule,
) -> HashMap<NodeId, f64> {
    let mut levels = HashMap::new();
    for part in parts.iter().filter(|part| is_asked_first(part) && rule.is_news(&part.change)) {
        let Part::State(state) = part.part else { continue };
        let Some((_, a, b)) = pairs.iter().find(|(group, ..)| **group == part.group) else { continue };
        let stacks = a.stacks.iter().chain(&b.stacks).filter(|(_, of, _)| *of == state);
        let leaves: BTreeSet<NodeId> = stacks.map(|(leaf, ..)| *leaf).collect();
        let is_asked =
            |leaf: &&NodeId| changes[leaf.index()].is_some_and(|change| change.uncertainty.is_some());
        let asked = leaves.iter().filter(is_asked).count();
        let most_p = rule.most_p_of_stack(asked, asked < leaves.len());
        levels.extend(leaves.into_iter().map(|leaf| (leaf, most_p)));
    }
    levels
}

fn parts_of<'t>(time: &'t GroupTime, view: &View) -> impl Iterator<Item = (Part, &'t Series)> {
    let runs = view.includes(State::User) && time.running.total_ns() > 0;
    let running = runs.then_some((Part::Running, &time.running));
    let states = time.states.iter().filter(move |(state, _)| view.includes(**state));
    running.into_iter().chain(states.map(|(state, series)| (Part::State(*state), series)))
}
