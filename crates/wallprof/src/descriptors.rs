//! How many files the recorder may have open: it holds one of each recorded process, program and counter.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit to the hard one. After a command of the user's was started: it inherits the limits, and a program
/// that calls select(2) may rely on a low one.
pub fn raise_limit() {
    let now = getrlimit(Resource::Nofile);
    if now.current != now.maximum {
        // As many as there were is what there is then; a file that cannot be opened is counted where it is missed.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: now.maximum, ..now });
    }
}
