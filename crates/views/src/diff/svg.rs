// SPDX-License-Identifier: Apache-2.0
//! A diff as a differential flame graph.
//!
//! Widths are B's time per second of wall time. Red frames take longer than in A, blue ones shorter; a larger
//! difference is deeper. Grey frames do not differ beyond noise.

use std::io::{self, Write};

use wallprof_analysis::diff::NodeId;

use super::amount::{margin, mark, rate, signed};
use super::colour::{GREY, colour};
use super::picture::{Box, Picture};
use super::{Diff, group_name};
use crate::boxes::{Caption, Drawn, draw};
use crate::style::Style;
use crate::units::counted;

const LEGEND: &str = "Width: time per second of wall time in B. Red: longer than in A, blue: shorter, grey: no difference beyond noise.";

/// Writes the picture.
///
/// # Errors
/// The error of `out`.
pub fn diff_svg(out: &mut impl Write, diff: &Diff<'_>) -> io::Result<()> {
    let picture = Picture::of(diff.comparison);
    let boxes: Vec<Drawn> =
        picture.boxes.iter().map(|frame| drawn(diff, frame, picture.largest_ns)).collect();
    draw(out, &caption(diff, &picture), &boxes)
}

fn caption(diff: &Diff<'_>, picture: &Picture) -> Caption {
    let style = Style::plain();
    let title = format!("{} against {}, {} view", diff.b.file, diff.a.file, diff.comparison.view);
    let mut notes = Vec::new();
    if picture.went.0 > 0 {
        let stacks = counted(picture.went.0 as u64, "stack", "stacks");
        notes.push(format!("in A only and not drawn: {stacks}, {} per second", rate(picture.went.1, &style)));
    }
    if picture.pruned > 0 {
        let frames = counted(picture.pruned as u64, "frame", "frames");
        notes.push(format!("too narrow and not drawn: {frames}"));
    }
    if picture.boxes.is_empty() {
        notes.push("B has no time in this view".into());
    }
    Caption { title, lines: vec![LEGEND.into(), notes.join("; ")], footer: Vec::new() }
}

fn drawn(diff: &Diff<'_>, frame: &Box, largest_ns: f64) -> Drawn {
    let name = name(diff, frame.node);
    let difference = frame.found.change.difference_ns();
    let fill = match frame.found.is_news && largest_ns > 0.0 {
        true => colour(difference.abs() / largest_ns, difference > 0.0),
        false => GREY.into(),
    };
    Drawn { x: frame.x, width: frame.width, level: frame.level, name, about: about(frame), fill }
}

fn name(diff: &Diff<'_>, node: NodeId) -> String {
    let tree = &diff.comparison.tree;
    match (tree.step(node), tree.group(node)) {
        (Some(step), _) => {
            tree.meant(node).map_or_else(|| step.to_string(), |meant| format!("[{meant}] {step}"))
        }
        (None, Some(group)) => group_name(group, &Style::plain()),
        (None, None) => "all threads in both".into(),
    }
}

fn about(frame: &Box) -> String {
    let (style, change) = (Style::plain(), &frame.found.change);
    let judged = if frame.found.is_news { mark(change) } else { "within noise" };
    let numbers = format!(
        "{} per second in B, {} in A, {} {}",
        rate(change.b_ns, &style),
        rate(change.a_ns, &style),
        signed(change, &style),
        margin(change, &style)
    );
    format!(": {} {judged}", numbers.trim_end()).trim_end().to_owned()
}
