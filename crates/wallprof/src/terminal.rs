// SPDX-License-Identifier: Apache-2.0
//! The abilities of the user's terminal, from the terminal and the environment.

use std::env::{self, VarError};
use std::io::{self, IsTerminal};

use jiff::tz::TimeZone;
use wallprof_analysis::Zone;
use wallprof_views::Style;

/// The width if neither terminal nor environment has one.
const DEFAULT_WIDTH: usize = 100;

/// The style for stdout: colour only on a terminal, and not with NO_COLOR (<https://no-color.org>) or
/// TERM=dumb; the width of COLUMNS, else of the terminal; times of day in the local zone.
pub fn style_for_stdout() -> Style {
    let terminal = io::stdout().is_terminal();
    let variable = |name: &str| present(env::var(name));
    Style {
        colour: terminal && colour_wanted(variable),
        width: width(variable("COLUMNS"), terminal.then(terminal_width).flatten()),
        unicode: is_utf8(variable),
        zone: zone(),
    }
}

/// The local time zone.
pub fn zone() -> Zone {
    TimeZone::try_system().unwrap_or(TimeZone::UTC).into()
}

/// Lines of whole words, at most `width` characters where the words allow it.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_string()),
        }
    }
    lines
}

/// A variable that is set and not empty.
fn present(value: Result<String, VarError>) -> Option<String> {
    value.ok().filter(|value| !value.is_empty())
}

fn colour_wanted(variable: impl Fn(&str) -> Option<String>) -> bool {
    variable("NO_COLOR").is_none() && variable("TERM").is_none_or(|term| term != "dumb")
}

fn width(columns: Option<String>, terminal: Option<usize>) -> usize {
    let columns = columns.and_then(|columns| columns.parse().ok());
    columns.or(terminal).filter(|width| *width > 0).unwrap_or(DEFAULT_WIDTH)
}

fn terminal_width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    Some(usize::from(size.ws_col))
}

/// By the variable that decides the character set (locale(7)); the default is UTF-8.
fn is_utf8(variable: impl Fn(&str) -> Option<String>) -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(variable);
    locale.is_none_or(|locale| {
        let locale = locale.to_ascii_lowercase();
        locale.contains("utf-8") || locale.contains("utf8")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(set: &'static [(&str, &str)]) -> impl Fn(&str) -> Option<String> {
        |name| set.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string())
    }

    #[test]
    fn no_colour_if_the_environment_forbids_it() {
        assert!(colour_wanted(environment(&[("TERM", "xterm")])));
        assert!(!colour_wanted(environment(&[("NO_COLOR", "1"), ("TERM", "xterm")])));
        assert!(!colour_wanted(environment(&[("TERM", "dumb")])));
        assert_eq!(present(Ok(String::new())), None, "an empty NO_COLOR is not set");
    }

    #[test]
    fn width_is_that_of_columns_then_of_the_terminal() {
        assert_eq!(width(Some("132".into()), Some(80)), 132);
        assert_eq!(width(Some("wide".into()), Some(80)), 80);
        assert_eq!(width(None, Some(0)), DEFAULT_WIDTH);
        assert_eq!(width(Some("0".into()), None), DEFAULT_WIDTH);
    }

    #[test]
    fn first_locale_variable_decides() {
        assert!(is_utf8(environment(&[("LANG", "de_DE.UTF-8")])));
        assert!(!is_utf8(environment(&[("LC_ALL", "C"), ("LANG", "de_DE.UTF-8")])));
        assert!(is_utf8(environment(&[("LC_CTYPE", "en_US.utf8")])));
        assert!(is_utf8(environment(&[])));
    }

    #[test]
    fn words_wrap() {
        assert_eq!(wrap("a bb ccc dddd", 6), ["a bb", "ccc", "dddd"]);
        assert_eq!(wrap("longer than that", 3), ["longer", "than", "that"]);
        assert!(wrap("", 10).is_empty());
    }
}
