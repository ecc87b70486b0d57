// SPDX-License-Identifier: Apache-2.0
//! Reasons why nothing could be imported.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::format::header::HeaderError;

/// The failure, with the input it is about. `S` is the sink's own error.
#[derive(Debug)]
pub enum ImportError<S> {
    /// The input cannot be opened or read.
    Unreadable { input: PathBuf, cause: io::Error },
    /// The input is not perf.data, or not one that can be read.
    Refused { input: PathBuf, why: Refusal },
    /// The sink cannot keep the events.
    Sink(S),
}

/// Why an input is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    NotPerfData,
    ByteSwapped,
    FirstFormat,
    FileInPipe,
    /// perf.data is given together with other files.
    PerfDataAmongTexts,
    Truncated,
    Oversized,
    /// A hardware trace comes through a pipe. It cannot be read, because it is read more than once.
    IntelPtInPipe,
    Folder,
    /// Text of a trace whose lines lack the kind of branch.
    ScriptWithoutFlags,
    /// Text of a trace whose lines lack the targets of branches.
    ScriptWithoutTargets,
}

impl From<HeaderError> for Refusal {
    fn from(error: HeaderError) -> Self {
        match error {
            HeaderError::NotPerfData => Refusal::NotPerfData,
            HeaderError::ByteSwapped => Refusal::ByteSwapped,
            HeaderError::FirstFormat => Refusal::FirstFormat,
            HeaderError::FileInPipe => Refusal::FileInPipe,
            HeaderError::Truncated => Refusal::Truncated,
            HeaderError::Oversized => Refusal::Oversized,
        }
    }
}

impl<S> ImportError<S> {
    pub(crate) fn refused(input: &Path, why: impl Into<Refusal>) -> Self {
        ImportError::Refused { input: input.to_owned(), why: why.into() }
    }

    pub(crate) fn unreadable(input: &Path, cause: io::Error) -> Self {
        ImportError::Unreadable { input: input.to_owned(), cause }
    }
}

impl<S: fmt::Display> fmt::Display for ImportError<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ImportError::Unreadable { input, cause } => {
                write!(f, "cannot read {} ({cause}): give a file that `perf record` wrote", shown(input))
            }
            ImportError::Refused { input, why } => refusal(*why, &shown(input), f),
            ImportError::Sink(error) => error.fmt(f),
        }
    }
}

impl<S: std::error::Error + 'static> std::error::Error for ImportError<S> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ImportError::Unreadable { cause, .. } => Some(cause),
            ImportError::Refused { .. } => None,
            ImportError::Sink(error) => error.source(),
        }
    }
}

fn refusal(why: Refusal, input: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match why {
        Refusal::NotPerfData => write!(
            f,
            "{input} is neither perf.data nor the text of `perf script`, with a thread and an event in each sample: \
             give a file that perf wrote"
        ),
        Refusal::ByteSwapped => write!(
            f,
            "{input} is from a machine of the other byte order, which cannot be imported: record on a little-endian one"
        ),
        Refusal::FirstFormat => {
            write!(f, "{input} is from a perf before 2010, which cannot be imported: record with a newer one")
        }
        Refusal::FileInPipe => write!(
            f,
            "a finished perf.data file cannot be read from a pipe, its tables are at its end: give its name, or < FILE"
        ),
        Refusal::PerfDataAmongTexts => write!(
            f,
            "{input} is a perf.data, and files that are imported together must be texts of `perf script`: import it alone"
        ),
        Refusal::Truncated => {
            write!(f, "the header of {input} is cut short: copy the file again, or record again")
        }
        Refusal::Oversized => {
            write!(f, "the header of {input} is damaged, its tables are too large: copy the file again")
        }
        Refusal::IntelPtInPipe => write!(
            f,
            "Intel PT cannot be read from a pipe ({input} is one): record into a file, with -o, and give its name"
        ),
        Refusal::ScriptWithoutFlags => write!(
            f,
            "{input} does not say which branches are calls: print it with `perf script --itrace=cr --ns -F+flags,+addr`"
        ),
        Refusal::ScriptWithoutTargets => write!(
            f,
            "{input} does not say where branches lead (`=> address`): print it with `perf script --itrace=cr --ns -F+flags,+addr`"
        ),
        Refusal::Folder => {
            write!(f, "{input} is a folder: give the file in it, or record without --threads, into one file")
        }
    }
}

fn shown(input: &Path) -> String {
    if input == Path::new("-") { "standard input".into() } else { input.display().to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_one_sentence_that_names_the_input() {
        let refusals = [
            Refusal::NotPerfData,
            Refusal::ByteSwapped,
            Refusal::FirstFormat,
            Refusal::PerfDataAmongTexts,
            Refusal::Truncated,
            Refusal::Oversized,
            Refusal::IntelPtInPipe,
            Refusal::Folder,
            Refusal::ScriptWithoutFlags,
            Refusal::ScriptWithoutTargets,
        ];
        for why in refusals {
            let text = ImportError::<io::Error>::refused(Path::new("a.data"), why).to_string();
            assert!(text.contains("a.data") && !text.contains('\n'), "{text}");
        }
        let stdin = ImportError::<io::Error>::refused(Path::new("-"), Refusal::NotPerfData).to_string();
        assert!(stdin.starts_with("standard input is neither perf.data"), "{stdin}");
    }
}
