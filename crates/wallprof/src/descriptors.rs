// SPDX-License-Identifier: Apache-2.0
//! The limit on open files: the recorder holds one for each recorded process, program and counter.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit to the hard one. Must run after the user's command was started: it inherits the
/// limit, and programs that call select(2) may rely on a low one.
pub fn raise_limit() {
    let now = getrlimit(Resource::Nofile);
    if now.current != now.maximum {
        // After an error the old limit holds; a file that cannot be opened is counted as a loss at its use.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: now.maximum, ..now });
    }
}
