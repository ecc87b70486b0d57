//! What the program may do, by its capabilities (capabilities(7)): never more than the command needs.
//!
//! A binary that setcap(8) gave capabilities to lends them to everybody who may run it. So commands that only read and
//! write files give them up first, and a recorder opens the files that its caller names with the caller's own rights.

use rustix::process::{geteuid, getuid};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

/// What makes root root among files: a recording made under sudo belongs to the user who called.
const ROOTS_FILES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER);

/// Gives up every capability for good; root keeps those about files. Before the first thread is started, since each
/// thread has its own.
pub fn drop_for_files() {
    let kept = if is_root() { ROOTS_FILES } else { CapabilitySet::empty() };
    if let Ok(now) = capabilities(None) {
        // Giving up is always allowed; a kernel without capabilities has none to lend.
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

/// Runs `open` with the caller's own rights: without the capabilities that the binary was given, on this thread.
pub fn as_caller<T>(open: impl FnOnce() -> T) -> T {
    let lent = capabilities(None).ok().filter(|now| !is_root() && !now.effective.is_empty());
    let Some(now) = lent else { return open() };
    if set_capabilities(None, CapabilitySets { effective: CapabilitySet::empty(), ..now }).is_err() {
        return open();
    }
    let opened = open();
    // What is permitted may be made effective again.
    let _ = set_capabilities(None, now);
    opened
}

fn is_root() -> bool {
    getuid().is_root() && geteuid().is_root()
}
