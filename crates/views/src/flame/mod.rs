// SPDX-License-Identifier: Apache-2.0
//! A flame graph as one SVG file that any browser shows, with zoom and search, and that needs no network.

mod caption;
mod colour;
mod footer;
mod words;

use std::io::{self, Write};
use std::ops::Range;

use wallprof_analysis::Zone;
use wallprof_analysis::weights::{Side, Tree, Weights};
use wallprof_model::MonoNs;
use wallprof_model::profile::RecordingInfo;

use crate::boxes::{Drawn, Places, draw};
use words::Words;

/// About as many boxes as a browser zooms without delay.
const MOST_BOXES: usize = 10_000;

/// The input of a flame graph.
pub struct Flame<'a> {
    pub info: &'a RecordingInfo,
    pub weights: &'a Weights,
    pub side: Side,
    /// The part of the recording that is shown.
    pub range: Range<MonoNs>,
    /// The glob that selected the threads, if there was one.
    pub thread_glob: Option<&'a str>,
    /// The zone in which times of day are shown.
    pub zone: &'a Zone,
}

/// Writes the SVG file.
///
/// # Errors
/// The error of `out`; and `InvalidData` where there is nothing to show.
pub fn flame_svg(out: &mut impl Write, flame: &Flame<'_>) -> io::Result<()> {
    let tree = Tree::grow(flame.weights, MOST_BOXES);
    let boxes = boxes(&tree, &Words::new(flame.weights, &tree));
    if boxes.is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "there is nothing to show"));
    }
    draw(out, &caption::of(flame, &tree), &boxes)
}

/// The box of all threads, and the tree on it. Sums that do not fit a weight are exact here.
fn boxes(tree: &Tree, words: &Words) -> Vec<Drawn> {
    let mut weights: Vec<u128> = tree.nodes.iter().map(|node| u128::from(node.own)).collect();
    let mut whole = 0;
    for (at, node) in tree.nodes.iter().enumerate().rev() {
        match node.parent {
            Some(parent) => weights[parent] += weights[at],
            None => whole += weights[at],
        }
    }
    if whole == 0 {
        return Vec::new();
    }
    let mut places = Places::default();
    let all = Drawn {
        x: 0.0,
        width: 1.0,
        level: 0,
        name: words.name(None),
        about: words.about(None),
        fill: colour::ALL.to_string(),
    };
    let mut drawn = vec![all];
    for (node, weight) in tree.nodes.iter().zip(weights) {
        let width = weight as f64 / whole as f64;
        let (x, level) = places.put(node.parent, width);
        let (name, about) = (words.name(Some(node)), words.about(Some(node)));
        let fill = colour::colour_of_node(node).to_string();
        drawn.push(Drawn { x, width, level: level + 1, name, about, fill });
    }
    drawn
}
