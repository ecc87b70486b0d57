// SPDX-License-Identifier: Apache-2.0
//! The time of calls in two recordings, path by path, as a differential flame graph.
//!
//! Widths are B's time. Calls that take longer than in A are red, shorter ones blue. The colour is deeper
//! where the difference over all calls of B is larger.

use std::io::{self, Write};

use wallprof_analysis::calls::{PathChange, PathFrame};

use super::colour::{GREY, colour};
use crate::boxes::{Caption, Drawn, NARROWEST, Places, draw};
use crate::functions::{function_name, signed};
use crate::style::Style;
use crate::units::{count, counted, time};

const LEGEND: &str = "Width: time in B. Red: a call takes longer than in A, or A has none; blue: shorter; grey: the same, or not known.";

/// Writes the picture of `paths`, parents before children, of the recordings with these names.
///
/// # Errors
/// The error of `out`.
pub fn calls_diff_svg(out: &mut impl Write, files: [&str; 2], paths: &[PathChange]) -> io::Result<()> {
    let [a, b] = files;
    let drawn = boxes(paths);
    let narrow = paths.iter().filter(|path| path.width_ns > 0).count() - drawn.len();
    let mut notes = Vec::new();
    if narrow > 0 {
        notes.push(format!("too narrow and not drawn: {}", counted(narrow as u64, "frame", "frames")));
    }
    if drawn.is_empty() {
        notes.push("B has no time in calls".into());
    }
    let title = format!("{b} against {a}, time per call");
    draw(out, &Caption { title, lines: vec![LEGEND.into(), notes.join("; ")], footer: Vec::new() }, &drawn)
}

/// A path lies on its parent, behind the siblings that were drawn before it.
fn boxes(paths: &[PathChange]) -> Vec<Drawn> {
    let roots = paths.iter().filter(|path| path.parent.is_none());
    let whole = roots.map(|path| path.width_ns as f64).sum::<f64>();
    let largest = paths.iter().map(|path| path.difference_ns().unsigned_abs()).max().unwrap_or(0);
    let mut places = Places::default();
    let mut drawn = Vec::new();
    for path in paths {
        let width = if whole > 0.0 { path.width_ns as f64 / whole } else { 0.0 };
        let (x, level) = places.put(path.parent, width);
        if width >= NARROWEST {
            let (name, about, fill) = (name(&path.frame), about(path), fill(path, largest));
            drawn.push(Drawn { x, width, level, name, about, fill });
        }
    }
    drawn
}

fn name(frame: &PathFrame) -> String {
    match frame {
        PathFrame::Function(function) => function_name(function),
        PathFrame::Outside(outside) => outside.label().to_owned(),
    }
}

fn fill(path: &PathChange, largest: u128) -> String {
    match path.difference_ns() {
        0 => GREY.into(),
        difference => colour(difference.unsigned_abs() as f64 / largest as f64, difference > 0),
    }
}

fn about(path: &PathChange) -> String {
    let style = Style::plain();
    let side = |numbers: &wallprof_model::CallNumbers| match numbers.average_ns() {
        Some(average) => format!("{} a call, {} calls", time(average, &style), count(numbers.calls)),
        None => "no complete call".to_owned(),
    };
    let change = path.per_call_ns().map_or(String::new(), |ns| format!(", {} a call", signed(ns, &style)));
    format!(": {} in B ({}), in A ({}){change}", time(path.width_ns, &style), side(&path.b), side(&path.a))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_analysis::calls::CalledFunction;
    use wallprof_model::{CallNumbers, Outside};

    fn path(parent: Option<usize>, symbol: &str, width_ns: u64, calls: [(u64, u64); 2]) -> PathChange {
        let [a, b] = calls.map(|(calls, complete_ns)| CallNumbers {
            calls,
            complete_ns,
            total_ns: complete_ns,
            ..CallNumbers::default()
        });
        let frame = match symbol {
            "[blocked]" => PathFrame::Outside(Outside::Blocked),
            symbol => PathFrame::Function(CalledFunction {
                symbol: Some(symbol.into()),
                module: None,
                is_kernel: false,
                address: None,
            }),
        };
        PathChange { parent, frame, a, b, width_ns }
    }

    #[test]
    fn boxes_lie_on_their_parents_side_by_side() {
        let paths = [
            path(None, "main", 100, [(1, 90), (1, 100)]),
            path(Some(0), "slower", 60, [(10, 10), (10, 60)]),
            path(Some(0), "[blocked]", 30, [(0, 0), (0, 0)]),
            path(Some(1), "faster", 20, [(10, 40), (10, 20)]),
            path(Some(0), "only in A", 0, [(1, 5), (0, 0)]),
        ];
        let boxes = boxes(&paths);
        let places: Vec<_> =
            boxes.iter().map(|frame| (frame.name.as_str(), frame.level, frame.x, frame.width)).collect();
        let expected = [
            ("main", 0, 0.0, 1.0),
            ("slower", 1, 0.0, 0.6),
            ("[blocked]", 1, 0.6, 0.3),
            ("faster", 2, 0.0, 0.2),
        ];
        assert_eq!(places, expected);
        let fills: Vec<_> = boxes.iter().map(|frame| frame.fill.as_str()).collect();
        assert_eq!((fills[1], fills[2]), (colour(1.0, true).as_str(), GREY));
        assert_eq!(fills[3], colour(20.0 / 50.0, false));
        assert!(boxes[1].about.contains("+5 ns a call"), "{}", boxes[1].about);
    }

    #[test]
    fn names_in_the_picture_are_never_markup() {
        let mut out = Vec::new();
        let paths = [path(None, "<b>&\"]]>", 5, [(1, 5), (1, 5)])];
        calls_diff_svg(&mut out, ["a", "<b>"], &paths).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("&lt;b&gt;") && !text.contains("<b>") && text.ends_with("</svg>\n"));
        let mut empty = Vec::new();
        calls_diff_svg(&mut empty, ["a", "b"], &[]).unwrap();
        assert!(String::from_utf8(empty).unwrap().contains("no time in calls"));
    }
}
