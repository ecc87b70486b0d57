// SPDX-License-Identifier: Apache-2.0
//! One line of `doctor`: its content and its layout.

use std::io::{self, Write};

use wallprof_views::Style;

use crate::terminal::wrap;

/// One check and its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    pub subject: &'static str,
    pub grade: Grade,
    /// The result.
    pub finding: String,
    /// The effect of a missing feature, and the remedy; empty if nothing is missing.
    pub advice: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grade {
    Fine,
    /// Recording works, with less data.
    Less,
    /// Nothing can be recorded.
    Blocks,
}

impl Check {
    pub fn fine(subject: &'static str, finding: impl Into<String>) -> Self {
        Check { subject, grade: Grade::Fine, finding: finding.into(), advice: String::new() }
    }

    pub fn less(subject: &'static str, finding: impl Into<String>, advice: impl Into<String>) -> Self {
        Check { subject, grade: Grade::Less, finding: finding.into(), advice: advice.into() }
    }

    pub fn blocks(subject: &'static str, finding: impl Into<String>, advice: impl Into<String>) -> Self {
        Check { subject, grade: Grade::Blocks, finding: finding.into(), advice: advice.into() }
    }

    /// The line, and below it the advice, wrapped.
    pub fn write(&self, out: &mut dyn Write, style: &Style) -> io::Result<()> {
        let (mark, colour) = match self.grade {
            Grade::Fine => ("ok", "32"),
            Grade::Less => ("less", "33"),
            Grade::Blocks => ("NO", "1;31"),
        };
        let mark = format!("{mark:<5}");
        let mark = if style.colour { format!("\x1b[{colour}m{mark}\x1b[0m") } else { mark };
        write!(out, "{mark}{:<SUBJECT$}", self.subject)?;
        let width = style.width.saturating_sub(INDENT).max(30);
        for (index, line) in
            wrap(&self.finding, width).into_iter().chain(wrap(&self.advice, width)).enumerate()
        {
            let indent = if index == 0 { 0 } else { INDENT };
            writeln!(out, "{:indent$}{line}", "")?;
        }
        Ok(())
    }
}

const SUBJECT: usize = 20;
const INDENT: usize = SUBJECT + 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_is_below_the_finding() {
        let check = Check::less("tracefs", "not mounted", "one two");
        let mut text = Vec::new();
        check.write(&mut text, &Style::plain()).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert_eq!(text, "less tracefs             not mounted\n                         one two\n");
    }
}
