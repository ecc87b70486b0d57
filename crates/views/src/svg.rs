// SPDX-License-Identifier: Apache-2.0
//! The parts that all pictures have: how the document begins, and foreign names as text of it.

use std::io::{self, Write};

use crate::escape::escape;

/// Pixels from the left edge to the texts.
pub(crate) const MARGIN: f64 = 10.0;
/// The base of the first line below the title, and the pixels from one line to the next.
const FIRST_LINE: f64 = 38.0;
const LINE: f64 = 16.0;

/// The upper edge of what is drawn below a title and this number of lines.
pub(crate) fn below(lines: usize) -> f64 {
    FIRST_LINE - 10.0 + LINE * lines as f64
}

/// Begins a document of `width` and `height` pixels with a title and lines below it. `style` is CSS.
pub(crate) fn begin(
    out: &mut impl Write,
    (width, height): (f64, f64),
    style: &str,
    title: &str,
    lines: &[&str],
) -> io::Result<()> {
    writeln!(
        out,
        r##"<?xml version="1.0" encoding="UTF-8"?>
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0}" width="{width}" height="{height:.0}" font-family="monospace" font-size="11">
<style>{style}</style>
<rect width="100%" height="100%" fill="#fdfcfa"/>
<text x="{MARGIN}" y="20" font-size="15">{}</text>"##,
        xml_markup(title, 150)
    )?;
    for (at, line) in lines.iter().enumerate() {
        let y = FIRST_LINE + LINE * at as f64;
        writeln!(out, r#"<text x="{MARGIN}" y="{y}">{}</text>"#, xml_markup(line, 300))?;
    }
    Ok(())
}

/// `text` in at most `longest` characters, with hidden characters and those that XML cannot hold (XML 1.0,
/// section 2.2) written out.
pub(crate) fn xml_text(text: &str, longest: usize) -> String {
    // An escape is never shorter than its character: one character more is enough to see a cut.
    let end = text.char_indices().nth(longest + 1).map_or(text.len(), |(end, _)| end);
    let mut shown: Vec<char> = escape(&text[..end]).chars().take(longest + 1).collect();
    if shown.len() > longest {
        shown.truncate(longest.saturating_sub(1));
        shown.push('…');
    }
    shown.into_iter().map(|c| if matches!(c, '\u{fffe}' | '\u{ffff}') { '\u{fffd}' } else { c }).collect()
}

/// Foreign text as XML, in at most `longest` characters before markup is escaped.
pub(crate) fn xml_markup(text: &str, longest: usize) -> String {
    markup(&xml_text(text, longest))
}

/// Text that [`xml_text`] made, or ours, as XML.
pub(crate) fn markup(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
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
    use proptest::prelude::*;

    #[test]
    fn long_names_are_cut_and_marked() {
        assert_eq!(xml_text("main", 4), "main");
        assert_eq!(xml_text("main_loop", 4), "mai…");
        assert_eq!(xml_text("\0\0", 5), "\\x00…");
        assert_eq!(xml_text("\u{fffe}", 5), "\u{fffd}");
        assert_eq!(xml_text(&"ö".repeat(10_000), 500).chars().count(), 500);
    }

    proptest! {
        #[test]
        fn nothing_is_left_that_xml_cannot_hold(text in any::<String>(), longest in 1..40usize) {
            let shown = xml_text(&text, longest);
            prop_assert!(shown.chars().count() <= longest);
            let is_xml = |c: char| !c.is_control() && !matches!(c, '\u{fffe}' | '\u{ffff}');
            prop_assert!(shown.chars().all(is_xml));
        }
    }
}
