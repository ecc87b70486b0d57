// SPDX-License-Identifier: Apache-2.0
//! Limits on the memory that a reader takes for a recording of unknown origin.
//!
//! Rows refer to texts, frames and stacks by number. So a file of a few megabytes can name one long text a
//! million times, or a million stacks of two thousand frames. No recorder comes near these limits. A reader
//! refuses recordings that exceed them.

use std::cell::Cell;
use std::fmt;

use rusqlite::{Error, Result};

/// Bytes of names and paths, each copy counted.
const MAX_TEXT: u64 = 256 << 20;
/// Functions of stacks that are resolved to be kept, and frames of call paths.
const MAX_STEPS: u64 = 1 << 26;

/// The sums that one reader has charged so far.
#[derive(Default)]
pub(crate) struct Bounds {
    text: Cell<u64>,
    steps: Cell<u64>,
}

/// A recording has more than one reader keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exceeded {
    Text,
    Steps,
}

impl Bounds {
    /// Charges a name that the caller keeps.
    pub fn text(&self, bytes: usize) -> Result<()> {
        charge(&self.text, bytes as u64, MAX_TEXT, Exceeded::Text)
    }

    /// Charges the functions of a stack that the caller keeps.
    pub fn steps(&self, steps: usize) -> Result<()> {
        charge(&self.steps, steps as u64, MAX_STEPS, Exceeded::Steps)
    }
}

fn charge(used: &Cell<u64>, more: u64, limit: u64, exceeded: Exceeded) -> Result<()> {
    used.set(used.get().saturating_add(more));
    match used.get() <= limit {
        true => Ok(()),
        false => Err(Error::ToSqlConversionFailure(Box::new(exceeded))),
    }
}

impl Exceeded {
    /// The next step for the user.
    pub fn advice(self) -> &'static str {
        match self {
            Exceeded::Text => "no recorder writes so many, so record again",
            Exceeded::Steps => "choose a part of it with --thread, or with --from and --to",
        }
    }
}

/// Written to follow "the recording … has".
impl fmt::Display for Exceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exceeded::Text => write!(f, "names of more than {} MiB", MAX_TEXT >> 20),
            Exceeded::Steps => write!(f, "stacks of more than {} million functions", MAX_STEPS / 1_000_000),
        }
    }
}

impl std::error::Error for Exceeded {}

/// The limit that made a reader fail, if one did.
pub(crate) fn exceeded(error: &Error) -> Option<Exceeded> {
    match error {
        Error::ToSqlConversionFailure(cause) => cause.downcast_ref().copied(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charges_beyond_a_limit_are_refused_from_then_on() {
        let bounds = Bounds::default();
        assert!(bounds.text(MAX_TEXT as usize).is_ok() && bounds.steps(7).is_ok());
        let error = bounds.text(1).expect_err("one byte more");
        assert_eq!(exceeded(&error), Some(Exceeded::Text));
        assert!(bounds.text(0).is_err() && bounds.steps(1).is_ok());
        assert_eq!(exceeded(&Error::QueryReturnedNoRows), None);
    }
}
