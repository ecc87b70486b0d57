// SPDX-License-Identifier: Apache-2.0
//! Text from a command line or a foreign file, as messages show it.

use wallprof_model::text::is_hidden;

/// Characters of one name in a message.
const MAX_SHOWN: usize = 200;

/// The text with hidden characters escaped, and cut where it is longer than a message should be.
pub(super) fn shown(text: &str) -> String {
    let mut shown = String::new();
    for (number, c) in text.chars().enumerate() {
        if number == MAX_SHOWN {
            shown.push('…');
            break;
        }
        if is_hidden(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown
}

/// Names in a row.
pub(super) fn listed(names: &[String]) -> String {
    names.iter().map(|name| shown(name)).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_characters_are_escaped_and_long_text_is_cut() {
        assert_eq!(shown("größe\u{1b}[2J\n"), "größe\\u{1b}[2J\\n");
        assert_eq!(shown(&"é".repeat(1_000)), "é".repeat(MAX_SHOWN) + "…");
        assert_eq!(listed(&["a".into(), "b\0".into()]), "a, b\\u{0}");
    }
}
