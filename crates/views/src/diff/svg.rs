//! A diff as a differential flame graph: one SVG file that any browser opens, with zoom and search.
//!
//! Widths are B's time per second of wall time. Red takes longer than in A, blue shorter, the more the deeper;
//! grey does not differ beyond noise. Names from recordings are text and never markup or script.

use std::io::{self, Write};

use wallprof_analysis::diff::NodeId;

use super::amount::{margin, mark, rate, signed};
use super::picture::{Box, Picture};
use super::{Diff, group_name};
use crate::escape::escape;
use crate::line::cut;
use crate::style::Style;
use crate::units::counted;
use crate::xml::xml_text;

const WIDTH: f64 = 1200.0;
const MARGIN: f64 = 10.0;
const LEVEL: f64 = 17.0;
const HEAD: f64 = 76.0;
/// Pixels of a character of the font at its size.
const CHARACTER: f64 = 6.7;
/// Characters of a name that are kept.
const LONGEST_NAME: usize = 400;

const SCRIPT: &str = include_str!("zoom.js");

/// Writes the picture.
///
/// # Errors
/// What `out` returns.
pub fn diff_svg(out: &mut impl Write, diff: &Diff<'_>) -> io::Result<()> {
    let picture = Picture::of(diff.comparison);
    let levels = picture.boxes.iter().map(|frame| frame.level + 1).max().unwrap_or(0);
    let height = HEAD + levels as f64 * LEVEL + MARGIN;
    writeln!(
        out,
        r##"<?xml version="1.0" encoding="UTF-8"?>
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" font-family="monospace" font-size="11">
<style>.f{{cursor:pointer}} .f rect{{stroke:#fff;stroke-width:.5}} .f text{{pointer-events:none}} .hit rect{{stroke:#000;stroke-width:1.5}} .button{{cursor:pointer;text-decoration:underline}}</style>
<rect width="100%" height="100%" fill="#fdfcfa"/>"##
    )?;
    write_head(out, diff, &picture)?;
    writeln!(out, r#"<g id="frames">"#)?;
    for frame in &picture.boxes {
        write_frame(out, diff, &picture, frame, height)?;
    }
    writeln!(out, "</g>\n<script><![CDATA[\n{SCRIPT}]]></script>\n</svg>")
}

fn write_head(out: &mut impl Write, diff: &Diff<'_>, picture: &Picture) -> io::Result<()> {
    let style = Style::plain();
    let title = format!("{} against {}, {} view", diff.b.file, diff.a.file, diff.comparison.view);
    let title = markup(&title, 150);
    writeln!(out, r#"<text x="{MARGIN}" y="20" font-size="15">{title}</text>"#)?;
    let widths = "Width: time per second of wall time in B. Red: longer than in A, blue: shorter, grey: no difference beyond noise.";
    writeln!(out, r#"<text x="{MARGIN}" y="38">{widths}</text>"#)?;
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
    writeln!(out, r#"<text x="{MARGIN}" y="54">{}</text>"#, markup(&notes.join("; "), 300))?;
    writeln!(
        out,
        r#"<text x="{MARGIN}" y="70" id="told"> </text><text x="1040" y="20" class="button" id="search">search</text><text x="1110" y="20" class="button" id="reset">reset</text>"#
    )
}

fn write_frame(
    out: &mut impl Write,
    diff: &Diff<'_>,
    picture: &Picture,
    frame: &Box,
    height: f64,
) -> io::Result<()> {
    let room = WIDTH - 2.0 * MARGIN;
    let (x, width) = (MARGIN + frame.x * room, frame.width * room);
    let y = height - MARGIN - (frame.level as f64 + 1.0) * LEVEL;
    let name = name(diff, frame.node);
    let fill = colour(frame, picture.largest_ns);
    let letters = ((width - 6.0) / CHARACTER).max(0.0) as usize;
    let label = if letters < 3 { String::new() } else { cut(&escape(&name), letters, &Style::plain()) };
    writeln!(
        out,
        r#"<g class="f" data-name="{}"><title>{}</title><rect x="{x:.2}" y="{y:.1}" width="{width:.2}" height="{:.1}" fill="{fill}"/><text x="{:.2}" y="{:.1}">{}</text></g>"#,
        markup(&name, LONGEST_NAME),
        markup(&tooltip(&name, frame), LONGEST_NAME + 200),
        LEVEL - 1.0,
        x + 3.0,
        y + 12.0,
        markup(&label, LONGEST_NAME),
    )
}

fn name(diff: &Diff<'_>, node: NodeId) -> String {
    let tree = &diff.comparison.tree;
    match (tree.step(node), tree.group(node)) {
        (Some(step), _) => step.to_string(),
        (None, Some(group)) => group_name(group, &Style::plain()),
        (None, None) => "all threads in both".into(),
    }
}

fn tooltip(name: &str, frame: &Box) -> String {
    let (style, change) = (Style::plain(), &frame.found.change);
    let name: String = name.chars().take(LONGEST_NAME).collect();
    let judged = if frame.found.is_news { mark(change) } else { "within noise" };
    let numbers = format!(
        "{} per second in B, {} in A, {} {}",
        rate(change.b_ns, &style),
        rate(change.a_ns, &style),
        signed(change, &style),
        margin(change, &style)
    );
    format!("{name}: {} {judged}", numbers.trim_end()).trim_end().to_owned()
}

/// From pale to deep by the share of the largest difference.
fn colour(frame: &Box, largest_ns: f64) -> String {
    let difference = frame.found.change.difference_ns();
    if !frame.found.is_news || largest_ns <= 0.0 {
        return "#dedbd5".into();
    }
    let depth = 0.25 + 0.75 * (difference.abs() / largest_ns).min(1.0);
    let deep = if difference > 0.0 { [214.0, 39.0, 40.0] } else { [31.0, 105.0, 200.0] };
    let [red, green, blue] = deep.map(|channel: f64| (255.0 - (255.0 - channel) * depth).round() as u8);
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// Foreign text as XML, in at most `longest` characters before markup is escaped.
fn markup(text: &str, longest: usize) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in xml_text(text, longest).chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_never_markup() {
        assert_eq!(markup("<script>'\"&]]>", 99), "&lt;script&gt;&#39;&quot;&amp;]]&gt;");
        assert_eq!(markup("nul\0bell\x07\u{ffff}", 99), "nul\\x00bell\\x07\u{fffd}");
        assert_eq!(markup(&"ä".repeat(10_000), 5), "ääää…");
        assert!(!SCRIPT.contains("]]>") && !SCRIPT.contains("innerHTML"));
    }
}
