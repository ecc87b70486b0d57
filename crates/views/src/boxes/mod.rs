// SPDX-License-Identifier: Apache-2.0
//! Frames as boxes that stand on their callers: one SVG file that any browser opens, with zoom and search, and that
//! needs no network. The caller names, measures and colours the boxes. Names from recordings are text and never markup
//! or script.

use std::io::{self, Write};

use crate::line::cut;
use crate::style::Style;
use crate::svg::{MARGIN, begin, below, markup, xml_markup, xml_text};

pub(crate) const WIDTH: f64 = 1200.0;
const LEVEL: f64 = 17.0;
/// Pixels of a character of the font at its size.
pub(crate) const CHARACTER: f64 = 6.7;
/// Characters of a name that are kept; templates may be endless.
pub(crate) const LONGEST_NAME: usize = 500;
/// Boxes narrower than this share of the picture are not drawn.
pub(crate) const NARROWEST: f64 = 0.3 / WIDTH;

const STYLE: &str = ".f{cursor:pointer} .f rect{stroke:#fff;stroke-width:.5} .f text{pointer-events:none} .base{opacity:.55} .hit rect{stroke:#000;stroke-width:1.5} .button{cursor:pointer;text-decoration:underline}";
const SCRIPT: &str = include_str!("zoom.js");

/// A frame; `x` and `width` in shares of the whole width, 0 is the lowest level.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Drawn {
    pub x: f64,
    pub width: f64,
    pub level: usize,
    pub name: String,
    /// What follows the name in the tooltip.
    pub about: String,
    pub fill: String,
}

/// What is above and below the boxes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Caption {
    pub title: String,
    /// The lines below the title, such as the meaning of widths and colours.
    pub lines: Vec<String>,
    pub footer: Vec<Item>,
}

/// A text below the boxes, with its place from the lower left corner of the boxes in pixels.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Item {
    pub x: f64,
    pub y: f64,
    /// The colour of a square before the text.
    pub fill: Option<String>,
    pub text: String,
}

impl Item {
    /// Pixels of the square with the gap behind it, and of a row.
    pub const SQUARE: f64 = 16.0;
    pub const ROW: f64 = 18.0;

    /// The start of the text.
    pub fn text_x(&self) -> f64 {
        self.x + if self.fill.is_some() { Item::SQUARE } else { 0.0 }
    }
}

/// Places boxes on their parents, each behind its siblings that came before.
#[derive(Default)]
pub(crate) struct Places {
    /// Of each box the level, and where its next child starts.
    boxes: Vec<(usize, f64)>,
    next_root: f64,
}

impl Places {
    /// The left edge and the level of the next box. `parent` is the number of a box that was placed before.
    pub fn put(&mut self, parent: Option<usize>, width: f64) -> (f64, usize) {
        let (level, next) = match parent {
            Some(parent) => {
                let (level, next) = &mut self.boxes[parent];
                (*level + 1, next)
            }
            None => (0, &mut self.next_root),
        };
        let x = *next;
        *next += width;
        self.boxes.push((level, x));
        (x, level)
    }
}

pub(crate) fn draw(out: &mut impl Write, caption: &Caption, boxes: &[Drawn]) -> io::Result<()> {
    let levels = boxes.iter().map(|drawn| drawn.level + 1).max().unwrap_or(0);
    // The message has a line of its own.
    let head = below(caption.lines.len() + 1);
    let ground = head + levels as f64 * LEVEL;
    let footer = caption.footer.iter().map(|item| item.y + Item::ROW).fold(0.0, f64::max);
    let lines: Vec<&str> = caption.lines.iter().map(String::as_str).collect();
    begin(out, (WIDTH, ground + MARGIN + footer), STYLE, &caption.title, &lines)?;
    write_controls(out, head)?;
    writeln!(out, r#"<g id="frames">"#)?;
    boxes.iter().try_for_each(|drawn| write_box(out, drawn, ground))?;
    writeln!(out, "</g>")?;
    caption.footer.iter().try_for_each(|item| write_item(out, item, ground + MARGIN))?;
    writeln!(out, "<script><![CDATA[\n{SCRIPT}]]></script>\n</svg>")
}

fn write_controls(out: &mut impl Write, head: f64) -> io::Result<()> {
    let (y, search, reset) = (head - 6.0, WIDTH - MARGIN - 150.0, WIDTH - MARGIN - 80.0);
    writeln!(
        out,
        r#"<text x="{MARGIN}" y="{y}" id="message"> </text><text x="{search}" y="20" class="button" id="search">search</text><text x="{reset}" y="20" class="button" id="reset">reset</text>"#
    )
}

fn write_box(out: &mut impl Write, drawn: &Drawn, ground: f64) -> io::Result<()> {
    let frames_width = WIDTH - 2.0 * MARGIN;
    let (x, width) = (MARGIN + drawn.x * frames_width, drawn.width * frames_width);
    let y = ground - (drawn.level as f64 + 1.0) * LEVEL;
    let name = xml_text(&drawn.name, LONGEST_NAME);
    let letters = ((width - 6.0) / CHARACTER).max(0.0) as usize;
    let label = if letters < 3 { String::new() } else { cut(&name, letters, &Style::plain()) };
    writeln!(
        out,
        r#"<g class="f" data-letters="{}"><title>{}{}</title><rect x="{x:.4}" y="{y:.1}" width="{width:.4}" height="{:.1}" fill="{}"/><text x="{:.2}" y="{:.1}">{}</text></g>"#,
        name.chars().count(),
        markup(&name),
        markup(&drawn.about),
        LEVEL - 1.0,
        drawn.fill,
        x + 3.0,
        y + 12.0,
        markup(&label),
    )
}

fn write_item(out: &mut impl Write, item: &Item, top: f64) -> io::Result<()> {
    let (x, y) = (item.x, top + item.y);
    if let Some(fill) = &item.fill {
        writeln!(out, r#"<rect x="{x}" y="{y}" width="11" height="11" fill="{fill}"/>"#)?;
    }
    writeln!(out, r#"<text x="{}" y="{}">{}</text>"#, item.text_x(), y + 10.0, xml_markup(&item.text, 300))
}

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

    #[test]
    fn labels_fit_their_box() {
        let label = |name: &str, width: f64| {
            let (name, about, fill) = (name.to_owned(), String::new(), String::new());
            let mut out = Vec::new();
            write_box(&mut out, &Drawn { x: 0.0, width, level: 0, name, about, fill }, 100.0).unwrap();
            let text = String::from_utf8(out).unwrap();
            let (before, _) = text.split_once("</text>").unwrap();
            before.rsplit_once('>').unwrap().1.to_owned()
        };
        assert_eq!(label("handle_tick", 1.0), "handle_tick");
        assert_eq!(label("handle_tick", 0.04), "handl…");
        assert_eq!(label("handle_tick", 0.02), "");
        assert_eq!(label(&"x".repeat(10_000), 1.0).chars().count(), 175);
    }

    #[test]
    fn boxes_stand_on_their_parents_side_by_side() {
        let mut places = Places::default();
        assert_eq!(places.put(None, 0.5), (0.0, 0));
        assert_eq!(places.put(Some(0), 0.125), (0.0, 1));
        assert_eq!(places.put(Some(1), 0.125), (0.0, 2));
        assert_eq!(places.put(Some(0), 0.25), (0.125, 1));
        assert_eq!(places.put(None, 0.5), (0.5, 0));
        assert_eq!(places.put(Some(4), 0.5), (0.5, 1));
    }
}
