// SPDX-License-Identifier: Apache-2.0
//! Foreign names as text of an XML document, before the writer of XML escapes `<`, `&` and quotes.

use crate::escape::escape;

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
