// SPDX-License-Identifier: Apache-2.0
//! A differential flame graph as one SVG file that any browser opens, with zoom and search. The caller names,
//! places and colours the boxes. Names from recordings are text and never markup or script.

use std::io::{self, Write};

use crate::escape::escape;
use crate::line::cut;
use crate::style::Style;
use crate::xml::xml_markup;

const WIDTH: f64 = 1200.0;
const MARGIN: f64 = 10.0;
const LEVEL: f64 = 17.0;
const HEAD: f64 = 76.0;
/// Pixels of a character of the font at its size.
const CHARACTER: f64 = 6.7;
/// Characters of a name that are kept.
pub(super) const LONGEST_NAME: usize = 400;
/// Boxes narrower than this share of the picture are not drawn.
pub(super) const NARROWEST: f64 = 0.3 / WIDTH;

const SCRIPT: &str = include_str!("zoom.js");

/// A frame; `x` and `width` in shares of the whole width, 0 is the lowest level.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Drawn {
    pub x: f64,
    pub width: f64,
    pub level: usize,
    pub name: String,
    pub tooltip: String,
    pub fill: String,
}

/// The text above the boxes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Head {
    pub title: String,
    /// The meaning of widths and colours.
    pub legend: &'static str,
    pub notes: String,
}

pub(super) fn draw(out: &mut impl Write, head: &Head, boxes: &[Drawn]) -> io::Result<()> {
    let levels = boxes.iter().map(|frame| frame.level + 1).max().unwrap_or(0);
    let height = HEAD + levels as f64 * LEVEL + MARGIN;
    writeln!(
        out,
        r##"<?xml version="1.0" encoding="UTF-8"?>
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" font-family="monospace" font-size="11">
<style>.f{{cursor:pointer}} .f rect{{stroke:#fff;stroke-width:.5}} .f text{{pointer-events:none}} .hit rect{{stroke:#000;stroke-width:1.5}} .button{{cursor:pointer;text-decoration:underline}}</style>
<rect width="100%" height="100%" fill="#fdfcfa"/>"##
    )?;
    write_head(out, head)?;
    writeln!(out, r#"<g id="frames">"#)?;
    boxes.iter().try_for_each(|frame| write_frame(out, frame, height))?;
    writeln!(out, "</g>\n<script><![CDATA[\n{SCRIPT}]]></script>\n</svg>")
}

fn write_head(out: &mut impl Write, head: &Head) -> io::Result<()> {
    let title = xml_markup(&head.title, 150);
    writeln!(out, r#"<text x="{MARGIN}" y="20" font-size="15">{title}</text>"#)?;
    writeln!(out, r#"<text x="{MARGIN}" y="38">{}</text>"#, head.legend)?;
    writeln!(out, r#"<text x="{MARGIN}" y="54">{}</text>"#, xml_markup(&head.notes, 300))?;
    writeln!(
        out,
        r#"<text x="{MARGIN}" y="70" id="message"> </text><text x="1040" y="20" class="button" id="search">search</text><text x="1110" y="20" class="button" id="reset">reset</text>"#
    )
}

fn write_frame(out: &mut impl Write, frame: &Drawn, height: f64) -> io::Result<()> {
    let frames_width = WIDTH - 2.0 * MARGIN;
    let (x, width) = (MARGIN + frame.x * frames_width, frame.width * frames_width);
    let y = height - MARGIN - (frame.level as f64 + 1.0) * LEVEL;
    let Drawn { name, tooltip, fill, .. } = frame;
    let letters = ((width - 6.0) / CHARACTER).max(0.0) as usize;
    let label = if letters < 3 { String::new() } else { cut(&escape(name), letters, &Style::plain()) };
    writeln!(
        out,
        r#"<g class="f" data-name="{}"><title>{}</title><rect x="{x:.2}" y="{y:.1}" width="{width:.2}" height="{:.1}" fill="{fill}"/><text x="{:.2}" y="{:.1}">{}</text></g>"#,
        xml_markup(name, LONGEST_NAME),
        xml_markup(tooltip, LONGEST_NAME + 200),
        LEVEL - 1.0,
        x + 3.0,
        y + 12.0,
        xml_markup(&label, LONGEST_NAME),
    )
}

/// From pale to deep by `depth`, 0 to 1; red for longer times, blue for shorter ones.
pub(super) fn colour(depth: f64, is_longer: bool) -> String {
    let depth = 0.25 + 0.75 * depth.clamp(0.0, 1.0);
    let deep = if is_longer { [214.0, 39.0, 40.0] } else { [31.0, 105.0, 200.0] };
    let [red, green, blue] = deep.map(|channel: f64| (255.0 - (255.0 - channel) * depth).round() as u8);
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// The colour of boxes without a difference.
pub(super) const GREY: &str = "#dedbd5";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_never_markup() {
        assert_eq!(xml_markup("<script>'\"&]]>", 99), "&lt;script&gt;&#39;&quot;&amp;]]&gt;");
        assert_eq!(xml_markup("nul\0bell\x07\u{ffff}", 99), "nul\\x00bell\\x07\u{fffd}");
        assert_eq!(xml_markup(&"ä".repeat(10_000), 5), "ääää…");
        assert!(!SCRIPT.contains("]]>") && !SCRIPT.contains("innerHTML"));
    }
}
