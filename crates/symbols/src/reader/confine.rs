// SPDX-License-Identifier: Apache-2.0
//! The limits that a reader sets on itself after it was executed and before it reads anything.
//!
//! A file may take the reader over. It then has 512 MiB of memory and a minute of a CPU, can write to no
//! file, and has neither capabilities nor, under root, root's user id.

use std::io;

use rustix::process::{
    DumpableBehavior, Gid, Resource, Rlimit, Signal, Uid, geteuid, set_dumpable_behavior,
    set_parent_process_death_signal, setrlimit,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid,
};

/// For the program itself, a copy of 64 MiB, and parsed state: a thousand addresses of a Rust program take 27
/// MiB.
const ADDRESS_SPACE: u64 = 512 << 20;
/// Seconds. Files within [`crate::ResolverOptions::copy_limit`] take a few.
const CPU_TIME: u64 = 60;
const OPEN_FILES: u64 = 64;
/// The user and group `nobody` of most distributions.
const NOBODY: u32 = 65534;

/// Gives up all rights and resources that a reader does not need. `copy_bytes`: the size of the memory file
/// that it may write until
/// [`forbid_writing`]. To be called while the process has one thread.
pub(super) fn confine(copy_bytes: u64) -> io::Result<()> {
    limit(Resource::Core, 0)?;
    limit(Resource::As, ADDRESS_SPACE)?;
    limit(Resource::Cpu, CPU_TIME)?;
    limit(Resource::Nofile, OPEN_FILES)?;
    limit(Resource::Fsize, copy_bytes)?;
    set_no_new_privs(true)?;
    drop_user();
    set_capabilities(
        None,
        CapabilitySets {
            effective: CapabilitySet::empty(),
            permitted: CapabilitySet::empty(),
            inheritable: CapabilitySet::empty(),
        },
    )?;
    // A process of the same user may neither trace the reader nor read its memory.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    // A change of the user id resets this one, so that it comes last. The signal comes when the parent's
    // thread that started the reader ends.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    Ok(())
}

/// From now on each write to a file fails, to memory files, too.
pub(super) fn forbid_writing() -> io::Result<()> {
    limit(Resource::Fsize, 0)
}

/// Root becomes `nobody`. In a user namespace without that user root stays, without capabilities.
fn drop_user() {
    if geteuid().is_root() {
        let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
        let _ = set_thread_groups(&[]);
        let _ = set_thread_res_gid(group, group, group);
        let _ = set_thread_res_uid(user, user, user);
    }
}

/// A limit that is lower already stays.
fn limit(resource: Resource, most: u64) -> io::Result<()> {
    let hard = rustix::process::getrlimit(resource).maximum;
    let most = Some(hard.map_or(most, |hard| hard.min(most)));
    Ok(setrlimit(resource, Rlimit { current: most, maximum: most })?)
}
