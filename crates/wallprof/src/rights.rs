// SPDX-License-Identifier: Apache-2.0
//! The capabilities of the program (capabilities(7)): never more than the command needs.
//!
//! A binary with capabilities from setcap(8) gives them to every user that may run it. So commands that only
//! read and write files drop them first, and a recorder opens the files of its caller with the rights of the
//! caller.

use rustix::process::{geteuid, getuid};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

/// The capabilities of root over files. Recordings under sudo are given to the calling user, which needs
/// them.
const ROOTS_FILES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER);

/// Drops every capability permanently; root keeps those over files. Must run before the first thread is
/// started, since each thread has its own set.
pub fn drop_for_files() {
    let kept = if is_root() { ROOTS_FILES } else { CapabilitySet::empty() };
    if let Ok(now) = capabilities(None) {
        // Dropping is always allowed; a kernel without capabilities has none.
        let _ = set_capabilities(
            None,
            CapabilitySets {
                effective: now.effective & kept,
                permitted: now.permitted & kept,
                inheritable: CapabilitySet::empty(),
            },
        );
    }
}

/// Runs `open` with the rights of the caller: this thread does without the capabilities of the binary
/// meanwhile.
pub fn as_caller<T>(open: impl FnOnce() -> T) -> T {
    let given = capabilities(None).ok().filter(|now| !is_root() && !now.effective.is_empty());
    let Some(now) = given else { return open() };
    if set_capabilities(None, CapabilitySets { effective: CapabilitySet::empty(), ..now }).is_err() {
        return open();
    }
    let opened = open();
    // Permitted capabilities may be made effective again.
    let _ = set_capabilities(None, now);
    opened
}

fn is_root() -> bool {
    getuid().is_root() && geteuid().is_root()
}
