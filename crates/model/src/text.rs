// SPDX-License-Identifier: Apache-2.0
//! Characters that must be escaped before they reach a terminal, a page or a log: names come from programs
//! of other users.

/// Whether a reader would not see `c`, or a terminal would obey it: control characters (C0, DEL and C1),
/// bidirectional controls, which reorder the text around them, and other invisible characters.
pub fn is_hidden(c: char) -> bool {
    c.is_control() || is_invisible(c)
}

/// Unicode's format characters (category Cf), line and paragraph separators, and blank fillers.
fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}'
        | '\u{890}'..='\u{891}' | '\u{8e2}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}'
        | '\u{fff9}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}'
        | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controls_and_invisible_characters_are_hidden() {
        for c in ['\0', '\u{7f}', '\u{9b}', '\u{202a}', '\u{202e}', '\u{2066}', '\u{2069}', '\u{200b}'] {
            assert!(is_hidden(c), "{:x}", u32::from(c));
        }
        assert!(!"größe 日本語 \\ \u{fffd}".chars().any(is_hidden));
    }
}
