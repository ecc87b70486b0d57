// SPDX-License-Identifier: Apache-2.0
//! The file of a trace.

use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// The file that the trace is written to.
pub struct Place {
    pub trace: PathBuf,
    /// Whether the trace is only the input of the recording.
    pub is_intermediate: bool,
}

impl Place {
    pub fn of(output: &Path) -> Self {
        if output.extension().is_some_and(|extension| extension == "data") {
            return Place { trace: output.to_owned(), is_intermediate: false };
        }
        let mut trace = output.as_os_str().to_owned();
        trace.push(".perf.data");
        Place { trace: trace.into(), is_intermediate: true }
    }

    /// Adds to a failure that the trace was kept, if there is one.
    pub fn kept(&self, failure: Failure) -> Failure {
        match self.trace.metadata() {
            Ok(metadata) if metadata.len() > 0 => Failure {
                message: format!("{} (the trace is kept as {})", failure.message, self.trace.display()),
                ..failure
            },
            _ => failure,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trace_is_the_output_or_a_file_beside_it() {
        let data = Place::of("a/trace.data".as_ref());
        assert_eq!((data.trace.as_path(), data.is_intermediate), ("a/trace.data".as_ref(), false));
        let recording = Place::of("a/calls.db".as_ref());
        assert_eq!(recording.trace, PathBuf::from("a/calls.db.perf.data"));
        assert!(recording.is_intermediate);
        let failure = Failure::failed("it broke");
        assert_eq!(recording.kept(failure.clone()), failure, "nothing was written");
    }
}
