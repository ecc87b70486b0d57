// SPDX-License-Identifier: Apache-2.0
//! Below the boxes: the colour and the time of each state, and the parts that are not in the picture.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use wallprof_analysis::weights::{View, Weights};
use wallprof_model::State;

use super::colour::{Colour, colour_of_state};
use super::words::shown_weight;
use crate::boxes::{CHARACTER, Item, WIDTH};
use crate::svg::MARGIN;

/// The states in as many rows as they need, and each note in a row of its own.
pub(super) fn footer(weights: &Weights, notes: &[String]) -> Vec<Item> {
    let mut items = Vec::new();
    let (mut x, mut y) = (MARGIN, 0.0);
    for (colour, text) in legend(weights) {
        let width = Item::SQUARE + (text.chars().count() + 2) as f64 * CHARACTER;
        if x + width > WIDTH && x > MARGIN {
            (x, y) = (MARGIN, y + Item::ROW);
        }
        items.push(Item { x, y, fill: Some(colour.to_string()), text });
        x += width;
    }
    if !items.is_empty() {
        y += Item::ROW;
    }
    for note in notes {
        items.push(Item { x: MARGIN, y, fill: None, text: note.clone() });
        y += Item::ROW;
    }
    items
}

/// The states of a time view, the longest first.
fn legend(weights: &Weights) -> Vec<(Colour, String)> {
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
    states.sort_by_key(|(state, ns)| (Reverse(*ns), *state));
    let entry = |(state, ns): (State, u64)| {
        (colour_of_state(state), format!("{} {}", state.label(), shown_weight(ns, true)))
    };
    states.into_iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_analysis::weights::{Frames, WeightedStack};

    /// One stack in each state, the first state the longest.
    fn weights(states: &[State]) -> Weights {
        let stack = |(at, state): (usize, &State)| WeightedStack {
            thread: 0,
            frames: vec![],
            state: Some(*state),
            weight: 1_000 - at as u64,
            count: 1,
        };
        let stacks = states.iter().enumerate().map(stack).collect();
        Weights { view: View::Wall, threads: vec![], frames: Frames::default(), stacks, left_out_ns: 0 }
    }

    #[test]
    fn states_fill_rows_and_notes_have_their_own() {
        let states: Vec<State> = (0..=u8::MAX).filter_map(State::from_code).collect();
        let items = footer(&weights(&states), &["a note".into(), "another".into()]);
        let end = |item: &Item| item.text_x() + item.text.chars().count() as f64 * CHARACTER;
        assert!(items.iter().all(|item| end(item) <= WIDTH), "{items:?}");
        for (one, next) in items.iter().zip(&items[1..]) {
            assert!(next.y == one.y && next.x > end(one) || next.y == one.y + Item::ROW, "{one:?} {next:?}");
        }
        assert_eq!((items[0].x, items[0].text.as_str()), (MARGIN, "user 1.00 µs"));
        assert_eq!(items.last().unwrap().fill, None);
    }

    #[test]
    fn nothing_has_no_footer() {
        assert_eq!(footer(&weights(&[]), &[]), []);
    }
}
