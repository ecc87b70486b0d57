// SPDX-License-Identifier: Apache-2.0
//! Shell globs over names: `*` any run of characters, `?` one character, `[a-z]`, `[!a-z]` (or `[^a-z]`)
//! one of a set, `\` takes the next character as it is. A glob matches the whole name.
//!
//! There are no path rules: `*` crosses `/`, as kernel thread names (`kworker/0:1`) need.

mod states;

use std::error::Error;
use std::fmt;

pub use states::{ByteStates, NoStates};

/// A parsed glob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {
    parts: Vec<Part>,
    /// The characters before the first part that takes several.
    prefix: String,
    /// The longest text after the prefix that each name has that matches.
    text: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Run,
    Any,
    One(char),
    Set { negated: bool, ranges: Vec<(char, char)> },
}

/// Why a text is not a glob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GlobError {
    SetNotClosed { glob: String },
    RangeReversed { glob: String, from: char, to: char },
    NothingEscaped { glob: String },
}

impl fmt::Display for GlobError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GlobError::SetNotClosed { glob } => {
                write!(
                    out,
                    "the glob {glob:?} has a [ without a ]: close it, or write \\[ for the character itself"
                )
            }
            GlobError::RangeReversed { glob, from, to } => {
                write!(
                    out,
                    "the glob {glob:?} has the range {from}-{to}, which holds nothing: write {to}-{from}"
                )
            }
            GlobError::NothingEscaped { glob } => {
                write!(out, "the glob {glob:?} ends in a \\: write \\\\ for the character itself")
            }
        }
    }
}

impl Error for GlobError {}

impl Glob {
    /// # Errors
    /// An open set, a reversed range, a trailing backslash.
    pub fn new(glob: &str) -> Result<Self, GlobError> {
        let mut parts = Vec::new();
        let mut rest = glob.chars();
        while let Some(c) = rest.next() {
            match c {
                '*' if parts.last() == Some(&Part::Run) => {}
                '*' => parts.push(Part::Run),
                '?' => parts.push(Part::Any),
                '[' => parts.push(parse_set(&mut rest, glob)?),
                '\\' => parts.push(Part::One(escaped(&mut rest, glob)?)),
                c => parts.push(Part::One(c)),
            }
        }
        let one = |part: &Part| match part {
            Part::One(one) => Some(*one),
            _ => None,
        };
        let prefix: String = parts.iter().map_while(one).collect();
        let texts = parts[prefix.chars().count()..].split(|part| one(part).is_none());
        let text = texts.map(|text| text.iter().filter_map(one).collect()).max_by_key(String::len);
        Ok(Glob { parts, prefix, text: text.unwrap_or_default() })
    }

    /// Whether the whole of `name` matches. Time is at most the product of both lengths.
    pub fn matches(&self, name: &str) -> bool {
        let Some(name) = name.strip_prefix(self.prefix.as_str()) else { return false };
        // Most names lack it, and the search for it is fast.
        if !name.contains(&self.text) {
            return false;
        }
        let (mut at, mut part) = (0, self.prefix.chars().count());
        let char_at = |at: usize| name[at..].chars().next();
        // Where to go on after a mismatch: the last run takes one more character.
        let mut retry: Option<(usize, usize)> = None;
        while at < name.len() || part < self.parts.len() {
            match (self.parts.get(part), char_at(at)) {
                (Some(Part::Run), _) => {
                    // Nothing that follows can fail.
                    if part + 1 == self.parts.len() {
                        return true;
                    }
                    retry = Some((at, part));
                    part += 1;
                    continue;
                }
                (Some(one), Some(c)) if one.takes(c) => {
                    at += c.len_utf8();
                    part += 1;
                    continue;
                }
                _ => {}
            }
            let Some((from, run)) = retry else { return false };
            let Some(c) = char_at(from) else { return false };
            let from = from + c.len_utf8();
            retry = Some((from, run));
            (at, part) = (from, run + 1);
        }
        true
    }
}

impl Part {
    fn takes(&self, c: char) -> bool {
        match self {
            Part::Run => false,
            Part::Any => true,
            Part::One(one) => *one == c,
            Part::Set { negated, ranges } => {
                ranges.iter().any(|&(from, to)| from <= c && c <= to) != *negated
            }
        }
    }
}

fn escaped(rest: &mut std::str::Chars<'_>, glob: &str) -> Result<char, GlobError> {
    rest.next().ok_or_else(|| GlobError::NothingEscaped { glob: glob.into() })
}

/// The set after its `[`. A `]` in first place is a member, as in the shell.
fn parse_set(rest: &mut std::str::Chars<'_>, glob: &str) -> Result<Part, GlobError> {
    let not_closed = || GlobError::SetNotClosed { glob: glob.into() };
    let mut ranges = Vec::new();
    let mut next = rest.next().ok_or_else(not_closed)?;
    let negated = matches!(next, '!' | '^');
    if negated {
        next = rest.next().ok_or_else(not_closed)?;
    }
    loop {
        let from = if next == '\\' { escaped(rest, glob)? } else { next };
        next = rest.next().ok_or_else(not_closed)?;
        let mut to = from;
        if next == '-' && !rest.as_str().starts_with(']') {
            to = rest.next().ok_or_else(not_closed)?;
            next = rest.next().ok_or_else(not_closed)?;
        }
        if to < from {
            return Err(GlobError::RangeReversed { glob: glob.into(), from, to });
        }
        ranges.push((from, to));
        if next == ']' {
            return Ok(Part::Set { negated, ranges });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matches(glob: &str, name: &str) -> bool {
        Glob::new(glob).unwrap().matches(name)
    }

    #[test]
    fn matches_as_the_shell_does() {
        for (glob, name) in [
            ("engine", "engine"),
            ("*", ""),
            ("**", "x"),
            ("eng*", "engine"),
            ("*gin*", "engine"),
            ("kworker/*:1", "kworker/0:1"),
            ("worker-?", "worker-7"),
            ("worker-[0-9]", "worker-7"),
            ("worker-[!0-9]", "worker-x"),
            ("worker-[^0-9]", "worker-x"),
            ("[]]", "]"),
            ("[a-]", "-"),
            ("[[]", "["),
            ("\\*", "*"),
            ("[\\]x]", "]"),
            ("a*b*c", "a--b--b-c"),
            ("日?語", "日本語"),
            ("日*語", "日本本語"),
            ("eng*", "eng"),
            ("eng?*", "engi"),
        ] {
            assert!(matches(glob, name), "{glob} {name}");
        }
        for (glob, name) in [
            ("engine", "engine2"),
            ("ngine", "engine"),
            ("?", ""),
            ("[!x]", "x"),
            ("a*b", "a--c"),
            ("\\*", "x"),
            ("", "x"),
            ("日", "日本"),
            ("eng?*", "eng"),
            ("日*", "本"),
        ] {
            assert!(!matches(glob, name), "{glob} {name}");
        }
    }

    #[test]
    fn errors_name_the_right_syntax() {
        assert!(Glob::new("[abc").unwrap_err().to_string().contains("write \\["));
        assert!(Glob::new("[z-a]").unwrap_err().to_string().contains("write a-z"));
        assert!(Glob::new("x\\").unwrap_err().to_string().contains("ends in a \\"));
        assert!(Glob::new("[").is_err() && Glob::new("[!").is_err() && Glob::new("[a-").is_err());
    }

    #[test]
    fn many_stars_do_not_explode() {
        assert!(!matches(&format!("{}[b]", "*a".repeat(200)), &"a".repeat(5_000)));
    }

    proptest! {
        #[test]
        fn an_escaped_name_matches_itself_only(name in "\\PC{0,12}", other in "\\PC{0,12}") {
            let glob: String = name.chars().flat_map(|c| ['\\', c]).collect();
            prop_assert!(matches(&glob, &name));
            prop_assert_eq!(matches(&glob, &other), name == other);
        }

        #[test]
        fn any_text_parses_or_is_refused(glob in ".{0,20}", name in ".{0,20}") {
            if let Ok(glob) = Glob::new(&glob) {
                glob.matches(&name);
            }
        }
    }
}
