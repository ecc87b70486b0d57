// SPDX-License-Identifier: Apache-2.0
//! A flame graph as one SVG file that any browser shows, with zoom and search, and that needs no network.
//!
//! inferno lays the boxes out and brings the script. It gets numbers for names. `brush` puts in the names and
//! colours afterwards, so that no name can be mistaken for inferno's own notation.

mod brush;
mod caption;
mod colour;
mod footer;
mod words;

use std::io::{self, Write};
use std::ops::Range;

use inferno::flamegraph::color::{BackgroundColor, Color};
use inferno::flamegraph::{Direction, Options, TextTruncateDirection, from_lines};
use wallprof_analysis::Zone;
use wallprof_analysis::weights::{Side, Tree, Weights};
use wallprof_model::MonoNs;
use wallprof_model::profile::RecordingInfo;

use caption::Caption;
use footer::Footer;
use words::Words;

/// About as many boxes as a browser zooms without delay.
const MOST_BOXES: usize = 10_000;

/// Numbers up to here are exact in the script.
const MOST_EXACT: u128 = 1 << 53;

const BACKGROUND: Color = Color { r: 250, g: 250, b: 248 };

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
    let caption = Caption::of(flame, &tree);
    let drawn = draw(&tree, &caption)?;
    let footer = Footer::new(flame.weights, &caption.notes);
    brush::paint(out, &drawn, &tree, &Words::new(flame.weights, &tree), &footer)
}

/// The boxes with numbers for names, and the caption.
fn draw(tree: &Tree, caption: &Caption) -> io::Result<Vec<u8>> {
    let lines = lines(tree);
    let mut options = Options::default();
    options.title = caption.title.clone();
    options.subtitle = Some(caption.subtitle.clone());
    options.name_type = String::new();
    options.direction = Direction::Straight;
    options.text_truncate_direction = TextTruncateDirection::Right;
    options.min_width = 0.0;
    options.bgcolors = Some(BackgroundColor::Flat(BACKGROUND));
    options.no_sort = true;
    let mut drawn = Vec::new();
    from_lines(&mut options, lines.lines(), &mut drawn)?;
    Ok(drawn)
}

/// Folded lines, sorted as inferno wants them: numbers of equal length sort as the boxes do.
fn lines(tree: &Tree) -> String {
    let total: u128 = tree.nodes.iter().map(|node| u128::from(node.own)).sum();
    // A box that is wide enough to be kept stays above 0: one in 100,000 of 2^53 is.
    let shift = (total / MOST_EXACT).checked_ilog2().map_or(0, |bits| bits + 1);
    let mut lines = String::new();
    let mut paths: Vec<(usize, usize)> = Vec::new();
    let mut path = String::new();
    for (at, node) in tree.nodes.iter().enumerate() {
        while paths.last().is_some_and(|(below, _)| Some(*below) != node.parent) {
            paths.pop();
        }
        path.truncate(paths.last().map_or(0, |(_, end)| *end));
        if !path.is_empty() {
            path.push(';');
        }
        path.push_str(&brush::name_from_node(at));
        paths.push((at, path.len()));
        if node.own >> shift > 0 {
            lines.push_str(&format!("{path} {}\n", node.own >> shift));
        }
    }
    lines
}
