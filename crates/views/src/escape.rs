// SPDX-License-Identifier: Apache-2.0
//! Foreign names made harmless for a terminal: characters that could move the cursor, change colours, break
//! a line, reorder text or hide are written as escape sequences.

use std::borrow::Cow;
use std::fmt::Write;

use wallprof_model::text::is_hidden;

/// `text` with control characters, line ends, backslashes, bidirectional controls and other invisible
/// characters written out: `\n`, `\x1b`, `\\`, `\u{202e}`. Everything else stays as it is.
pub fn escape(text: &str) -> Cow<'_, str> {
    escape_if(text, is_harmful)
}

/// The same for a terminal that shows ASCII only: every other character is written out too.
pub(crate) fn escape_to_ascii(text: &str) -> Cow<'_, str> {
    escape_if(text, |c| is_harmful(c) || !c.is_ascii())
}

fn escape_if(text: &str, harmful: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&harmful) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if harmful(c) { write_out(&mut escaped, c) } else { escaped.push(c) }
    }
    Cow::Owned(escaped)
}

fn write_out(escaped: &mut String, c: char) {
    let written = match c {
        '\n' => write!(escaped, "\\n"),
        '\r' => write!(escaped, "\\r"),
        '\t' => write!(escaped, "\\t"),
        '\\' => write!(escaped, "\\\\"),
        c if c.is_ascii() => write!(escaped, "\\x{:02x}", u32::from(c)),
        c => write!(escaped, "\\u{{{:x}}}", u32::from(c)),
    };
    debug_assert!(written.is_ok(), "a String takes everything");
}

fn is_harmful(c: char) -> bool {
    c == '\\' || is_hidden(c)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn control_characters_are_written_out() {
        for (hostile, shown) in [
            ("\x1b[31mred", "\\x1b[31mred"),
            ("a\nb\r\tc\0", "a\\nb\\r\\tc\\x00"),
            ("\u{9b}2J\x7f", "\\u{9b}2J\\x7f"),
            ("cod\u{202e}exe", "cod\\u{202e}exe"),
            ("zero\u{200b}width\u{feff}", "zero\\u{200b}width\\u{feff}"),
            ("tag\u{e0041}", "tag\\u{e0041}"),
            ("back\\slash", "back\\\\slash"),
            ("line\u{2028}end", "line\\u{2028}end"),
        ] {
            assert_eq!(escape(hostile), shown);
        }
    }

    #[test]
    fn harmless_names_stay_as_they_are() {
        for name in ["kworker/0:1-events", "größe", "日本語", "a;b", "std::vector<int>"] {
            assert!(matches!(escape(name), Cow::Borrowed(same) if same == name));
        }
        assert_eq!(escape_to_ascii("größe"), "gr\\u{f6}\\u{df}e");
    }

    proptest! {
        #[test]
        fn nothing_harmful_is_left_and_no_two_names_look_alike(a in any::<String>(), b in any::<String>()) {
            let shown = escape(&a);
            prop_assert!(!shown.chars().any(is_hidden));
            prop_assert_eq!(shown == escape(&b), a == b);
            prop_assert!(escape_to_ascii(&a).is_ascii());
        }
    }
}
