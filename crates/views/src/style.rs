// SPDX-License-Identifier: Apache-2.0
//! The look of text. The caller, which knows the terminal, passes it in.

use std::borrow::Cow;

use wallprof_analysis::{Class, Zone};

use crate::escape::{escape, escape_to_ascii};

/// The narrowest layout; a narrower terminal wraps its lines.
const NARROWEST: usize = 76;

/// The abilities of the reader's screen.
#[derive(Clone, Debug, PartialEq)]
pub struct Style {
    /// Whether ANSI colours may be used.
    pub colour: bool,
    /// Columns of the screen.
    pub width: usize,
    /// Whether characters outside ASCII can be shown.
    pub unicode: bool,
    /// The zone in which times of day are shown.
    pub zone: Zone,
}

/// The role of a piece of text, which decides its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ink {
    Plain,
    Title,
    Strong,
    Faint,
    Kernel,
    Of(Class),
    Warning,
    /// Of two recordings, the second has more of it.
    More,
    Less,
}

impl Style {
    /// Plain text of 100 columns in UTC.
    pub fn plain() -> Self {
        Style { colour: false, width: 100, unicode: true, zone: Zone::utc() }
    }

    /// The width to lay out for.
    pub(crate) fn columns(&self) -> usize {
        self.width.max(NARROWEST)
    }

    /// A foreign name as it may be shown.
    pub(crate) fn name<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if self.unicode { escape(text) } else { escape_to_ascii(text) }
    }

    /// A thread's or process's name, which may be empty.
    pub(crate) fn comm<'t>(&self, comm: &'t str) -> Cow<'t, str> {
        if comm.is_empty() { Cow::Borrowed("(unnamed)") } else { self.name(comm) }
    }

    /// One of two ways to write the same.
    pub(crate) fn pick<'t>(&self, unicode: &'t str, ascii: &'t str) -> &'t str {
        if self.unicode { unicode } else { ascii }
    }

    /// `text` in the colour of `ink`, where colours are wanted.
    pub(crate) fn paint(&self, ink: Ink, text: &str) -> String {
        match ansi_from_ink(ink) {
            Some(code) if self.colour && !text.is_empty() => format!("\x1b[{code}m{text}\x1b[0m"),
            _ => text.to_string(),
        }
    }
}

fn ansi_from_ink(ink: Ink) -> Option<&'static str> {
    match ink {
        Ink::Plain => None,
        Ink::Title => Some("1;36"),
        Ink::Strong => Some("1"),
        Ink::Faint | Ink::Of(Class::Voluntary) => Some("2"),
        Ink::Kernel => Some("33"),
        Ink::Of(Class::Running) | Ink::Less => Some("32"),
        Ink::Of(Class::Late) | Ink::More => Some("31"),
        Ink::Of(Class::Peer) => Some("35"),
        Ink::Warning => Some("1;31"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_only_where_wanted() {
        let plain = Style::plain();
        assert_eq!(plain.paint(Ink::Warning, "x"), "x");
        let coloured = Style { colour: true, ..Style::plain() };
        assert_eq!(coloured.paint(Ink::Warning, "x"), "\x1b[1;31mx\x1b[0m");
        assert_eq!(coloured.paint(Ink::Plain, "x"), "x");
        assert_eq!(coloured.paint(Ink::Warning, ""), "");
    }
}
