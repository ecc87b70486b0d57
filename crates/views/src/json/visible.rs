// SPDX-License-Identifier: Apache-2.0
//! JSON in which every hidden character of a string is an escape, so that a file may be printed as it is. A
//! parser reads the same text.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};
use wallprof_model::text::is_hidden;

/// Writes `value` as one line without its end.
pub(crate) fn to_writer(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    Ok(value.serialize(&mut Serializer::with_formatter(out, Visible))?)
}

struct Visible;

impl Formatter for Visible {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, out: &mut W, fragment: &str) -> io::Result<()> {
        // Nearly all text is this: no table of characters is asked.
        if fragment.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            return out.write_all(fragment.as_bytes());
        }
        let mut rest = fragment;
        while let Some((at, hidden)) = rest.char_indices().find(|(_, c)| is_hidden(*c)) {
            out.write_all(&rest.as_bytes()[..at])?;
            for unit in hidden.encode_utf16(&mut [0; 2]) {
                write!(out, "\\u{unit:04x}")?;
            }
            rest = &rest[at + hidden.len_utf8()..];
        }
        out.write_all(rest.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(text: &str) -> String {
        let mut out = Vec::new();
        to_writer(&mut out, &text).expect("a Vec takes everything");
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn hidden_characters_are_escapes() {
        assert_eq!(written("a\u{202e}b\u{9b}2J\u{7f}\n"), "\"a\\u202eb\\u009b2J\\u007f\\n\"");
        assert_eq!(written("tag\u{e0041}"), "\"tag\\udb40\\udc41\"");
        assert_eq!(written("größe"), "\"größe\"");
    }

    proptest! {
        #[test]
        fn parsers_read_the_same_text(text in any::<String>()) {
            let json = written(&text);
            prop_assert!(!json.chars().any(is_hidden));
            prop_assert_eq!(serde_json::from_str::<String>(&json).expect("JSON"), text);
        }
    }
}
