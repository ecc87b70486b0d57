//! Which colour is which state, and how much of it there is.

use std::collections::BTreeMap;

use wallprof_analysis::weights::{View, Weights};
use wallprof_model::State;

use super::colour::{Colour, colour_of_state};
use super::paint::shown_weight;

/// One state of the legend.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub colour: Colour,
    /// `user 12.3 ms`.
    pub text: String,
}

/// The states of a time view, the longest first.
pub(super) fn legend(weights: &Weights) -> Vec<Entry> {
    if matches!(weights.view, View::Event(_)) {
        return Vec::new();
    }
    let mut states: BTreeMap<State, u64> = BTreeMap::new();
    for stack in &weights.stacks {
        if let Some(state) = stack.state {
            let sum = states.entry(state).or_default();
            *sum = sum.saturating_add(stack.weight);
        }
    }
    let mut states: Vec<(State, u64)> = states.into_iter().collect();
    states.sort_by_key(|(state, ns)| (std::cmp::Reverse(*ns), *state));
    let entry = |(state, ns): (State, u64)| Entry {
        colour: colour_of_state(state),
        text: format!("{} {}", state.label(), shown_weight(ns, true)),
    };
    states.into_iter().map(entry).collect()
}
