// SPDX-License-Identifier: Apache-2.0
//! Text in columns: widths as a terminal counts them, cutting, padding, wrapping.

use std::io::{self, Write};

use unicode_width::UnicodeWidthStr;

use crate::style::{Ink, Style};

/// Columns that `text` takes on a terminal.
pub(crate) fn width(text: &str) -> usize {
    text.width()
}

/// `text` in at most `columns`, its end replaced by `…` where it is longer.
pub(crate) fn cut(text: &str, columns: usize, style: &Style) -> String {
    let ends = text.char_indices().map(|(at, _)| at);
    longest(text, columns, style, ends, |mark, end| format!("{}{mark}", &text[..end]))
}

/// The same with the start replaced: for paths, whose end is most specific.
pub(crate) fn cut_start(text: &str, columns: usize, style: &Style) -> String {
    let starts = text.char_indices().rev().map(|(at, _)| at).filter(|at| *at > 0);
    let starts = std::iter::once(text.len()).chain(starts);
    longest(text, columns, style, starts, |mark, start| format!("{mark}{}", &text[start..]))
}

/// `text`, or what `marked` makes of the last of `places`, from short to long, that still fits. The whole
/// is measured each time: a variation selector widens the character before it.
fn longest(
    text: &str,
    columns: usize,
    style: &Style,
    places: impl Iterator<Item = usize>,
    marked: impl Fn(&str, usize) -> String,
) -> String {
    if width(text) <= columns {
        return text.to_string();
    }
    let mark = style.pick("…", "~");
    let texts = places.map(|place| marked(mark, place));
    texts.take_while(|text| width(text) <= columns).last().unwrap_or_default()
}

/// `text` in exactly `columns`, at the left.
pub(crate) fn left(text: &str, columns: usize, style: &Style) -> String {
    let mut text = cut(text, columns, style);
    text.extend(std::iter::repeat_n(' ', columns.saturating_sub(width(&text))));
    text
}

/// `text` in at least `columns`, at the right. Numbers are never cut.
pub(crate) fn right(text: &str, columns: usize) -> String {
    format!("{}{text}", " ".repeat(columns.saturating_sub(width(text))))
}

/// A word of a wrapped text: kept together, coloured by itself.
#[derive(Clone, Debug)]
pub(crate) struct Word {
    pub text: String,
    pub ink: Ink,
}

impl Word {
    pub fn plain(text: impl Into<String>) -> Self {
        Word { text: text.into(), ink: Ink::Plain }
    }

    pub fn strong(text: impl Into<String>) -> Self {
        Word { text: text.into(), ink: Ink::Strong }
    }
}

/// Writes `label` and then `words`, which continue under the first one when the line is full. Without words
/// nothing is written.
pub(crate) fn write_wrapped(
    out: &mut impl Write,
    (label, indent): (&str, usize),
    words: &[Word],
    style: &Style,
) -> io::Result<()> {
    let mut words = words.iter().filter(|word| !word.text.is_empty()).peekable();
    if words.peek().is_none() {
        return Ok(());
    }
    let columns = style.columns().saturating_sub(indent).max(20);
    write!(out, "{}", style.paint(Ink::Faint, &left(label, indent, style)))?;
    let mut used = 0;
    let mut run = Word::plain("");
    for word in words {
        let text = cut(&word.text, columns, style);
        let breaks = used > 0 && used + 1 + width(&text) > columns;
        if breaks || run.ink != word.ink {
            write!(out, "{}", style.paint(run.ink, &run.text))?;
            run = Word { text: String::new(), ink: word.ink };
        }
        if breaks {
            write!(out, "\n{}", " ".repeat(indent))?;
            used = 0;
        } else if used > 0 {
            run.text.push(' ');
            used += 1;
        }
        used += width(&text);
        run.text.push_str(&text);
    }
    write!(out, "{}", style.paint(run.ink, &run.text))?;
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn wide_characters_keep_columns() {
        let style = Style::plain();
        assert_eq!(left("日本", 6, &style), "日本  ");
        assert_eq!(left("日本語", 4, &style), "日… ");
        assert_eq!(cut_start("/usr/lib/libc.so.6", 8, &style), "…bc.so.6");
        assert_eq!(cut("abc", 0, &style), "");
        assert_eq!(right("12", 4), "  12");
        assert_eq!(cut("release_order", 5, &Style { unicode: false, ..style }), "rele~");
    }

    #[test]
    fn variation_selector_widens_the_character_before_it() {
        let style = Style::plain();
        assert_eq!(cut("ab®\u{fe0f}cd", 4, &style), "ab®…");
        assert_eq!(cut_start("ab®\u{fe0f}c", 4, &style), "…®\u{fe0f}c");
    }

    #[test]
    fn words_wrap_under_the_first() {
        let words: Vec<Word> =
            ["in", "release_order_of_the_client_in_the_book", "← handle_tick", "← main_loop_of_it"]
                .map(Word::plain)
                .into();
        let mut out = Vec::new();
        write_wrapped(&mut out, ("  waited", 12), &words, &Style { width: 60, ..Style::plain() }).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "  waited    in release_order_of_the_client_in_the_book ← handle_tick\n            ← main_loop_of_it\n"
        );
    }

    proptest! {
        #[test]
        fn cut_text_fits(text in "\\PC{0,40}", columns in 0usize..20) {
            let style = Style::plain();
            prop_assert!(width(&cut(&text, columns, &style)) <= columns);
            prop_assert!(width(&cut_start(&text, columns, &style)) <= columns);
        }
    }
}
