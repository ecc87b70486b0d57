// SPDX-License-Identifier: Apache-2.0
//! The end of a command: its exit code and, after a failure, one sentence on stderr.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use wallprof_views::escape;

use crate::stages;

/// The exit codes, which are promised to scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    Failed = 1,
    /// The command line is wrong.
    Usage = 2,
    /// Not permitted, or not offered by this kernel or this machine.
    Unavailable = 3,
    NothingRecorded = 4,
    /// Of `check`: a limit does not hold.
    LimitExceeded = 5,
}

/// Why a command failed: one sentence with the operation, its object and the next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub exit: Exit,
    pub message: String,
}

impl Failure {
    pub fn new(exit: Exit, message: impl fmt::Display) -> Self {
        Failure { exit, message: message.to_string() }
    }

    pub fn failed(message: impl fmt::Display) -> Self {
        Self::new(Exit::Failed, message)
    }

    pub fn usage(message: impl fmt::Display) -> Self {
        Self::new(Exit::Usage, message)
    }

    pub fn unavailable(message: impl fmt::Display) -> Self {
        Self::new(Exit::Unavailable, message)
    }

    /// Prints the message on stderr. A closed stderr is ignored.
    pub fn report(&self) -> ExitCode {
        say(&self.message);
        ExitCode::from(self.exit as u8)
    }
}

impl From<wallprof_recording::Error> for Failure {
    fn from(error: wallprof_recording::Error) -> Self {
        Failure::failed(error)
    }
}

/// Prints one line on stderr, with the program's name. A closed stderr is ignored.
pub fn say(message: &str) {
    stages::erase();
    let _ = writeln!(io::stderr(), "wallprof: {}", printable(message));
}

/// `message` with control characters escaped, since it may contain foreign names. Backslashes stay.
pub fn printable(message: &str) -> String {
    message.split('\\').map(escape).collect::<Vec<_>>().join("\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_in_messages_are_escaped() {
        assert_eq!(printable("no file a\x1b[31m\nb"), "no file a\\x1b[31m\\nb");
        assert_eq!(printable("write \\["), "write \\[");
    }

    #[test]
    fn exit_codes_are_the_promised_ones() {
        let exits =
            [Exit::Failed, Exit::Usage, Exit::Unavailable, Exit::NothingRecorded, Exit::LimitExceeded];
        assert_eq!(exits.map(|exit| exit as u8), [1, 2, 3, 4, 5]);
    }
}
