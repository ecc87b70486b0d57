// SPDX-License-Identifier: Apache-2.0
//! The footer below the boxes: the colour and the time of each state, and the parts that are not in the
//! picture.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use wallprof_analysis::weights::{View, Weights};
use wallprof_model::State;

use super::colour::{Colour, colour_of_state};
use super::words::shown_weight;

/// Pixels of the picture before the script adapts it to its window, and of a character.
const WIDTH: usize = 1200;
const CHARACTER_WIDTH: usize = 8;

/// Pixels from one row to the next, from the edge, and of a square of colour with the gap behind it.
const ROW_HEIGHT: usize = 18;
const MARGIN: usize = 10;
const SQUARE: usize = 16;

/// One text, at its place from the upper left corner of the footer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Item {
    pub x: usize,
    pub y: usize,
    /// That of the square before the text.
    pub colour: Option<Colour>,
    pub text: String,
}

/// Everything below the boxes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Footer {
    pub items: Vec<Item>,
    /// In pixels.
    pub height: usize,
}

impl Footer {
    pub fn new(weights: &Weights, notes: &[String]) -> Self {
        let mut footer = Footer { items: Vec::new(), height: 0 };
        let mut x = MARGIN;
        for (colour, text) in legend(weights) {
            let width = SQUARE + (text.chars().count() + 2) * CHARACTER_WIDTH;
            if x + width > WIDTH && x > MARGIN {
                (x, footer.height) = (MARGIN, footer.height + ROW_HEIGHT);
            }
            footer.items.push(Item { x, y: footer.height, colour: Some(colour), text });
            x += width;
        }
        if !footer.items.is_empty() {
            footer.height += ROW_HEIGHT;
        }
        for note in notes {
            footer.items.push(Item { x: MARGIN, y: footer.height, colour: None, text: note.clone() });
            footer.height += ROW_HEIGHT;
        }
        footer
    }
}

impl Item {
    /// The start of the text.
    pub fn text_x(&self) -> usize {
        self.x + if self.colour.is_some() { SQUARE } else { 0 }
    }
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
        let footer = Footer::new(&weights(&states), &["a note".into(), "another".into()]);
        let rows: std::collections::BTreeSet<usize> = footer.items.iter().map(|item| item.y).collect();
        assert_eq!(footer.height, rows.len() * ROW_HEIGHT);
        for item in &footer.items {
            assert!(item.text_x() + item.text.chars().count() * CHARACTER_WIDTH <= WIDTH, "{item:?}");
        }
        for (one, next) in footer.items.iter().zip(&footer.items[1..]) {
            let end = one.text_x() + one.text.chars().count() * CHARACTER_WIDTH;
            assert!(next.y > one.y || next.x > end, "{one:?} {next:?}");
        }
        assert_eq!((footer.items[0].x, footer.items[0].text.as_str()), (MARGIN, "user 1.00 µs"));
        assert_eq!(footer.items.last().unwrap().colour, None);
    }

    #[test]
    fn empty_footer_has_no_height() {
        assert_eq!(Footer::new(&weights(&[]), &[]), Footer { items: vec![], height: 0 });
    }
}
