// SPDX-License-Identifier: Apache-2.0
//! What the verifier makes of each program. They are loaded for the answer, and not attached.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{OpenObject, libbpf_sys};

use crate::bpf::WallprofSkelBuilder;
use crate::error::ProbeError;
use crate::features::KernelTypes;
use crate::messages;
use crate::object::{configure, leave_out};
use crate::plan::{ProbeOptions, Targets, UserStacks, missing};

/// One program of the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramFacts {
    pub name: String,
    /// Instructions that the verifier walked through, of a million that it allows (5.16+; 0 before). `None`:
    /// this kernel lacks the tracepoint, and the program is not loaded.
    pub verified_instructions: Option<u32>,
}

/// Loads every program that can attach to this kernel, as for a recording of all threads.
pub fn verified_programs() -> Result<Vec<ProgramFacts>, ProbeError> {
    let types = KernelTypes::read()?;
    let log = messages::capture();
    let failed = |error: libbpf_rs::Error| ProbeError::from_load(&error, &log.all());
    let mut place: MaybeUninit<OpenObject> = MaybeUninit::uninit();
    let mut open = WallprofSkelBuilder::default().open(&mut place).map_err(failed)?;
    configure(&mut open, &everything(), types.features());
    leave_out(&mut open, |programs| missing(programs, &types));
    let skeleton = open.load().map_err(failed)?;
    let facts = skeleton.object().progs().map(|program| ProgramFacts {
        name: program.name().to_string_lossy().into_owned(),
        verified_instructions: program.autoload().then(|| verified_instructions(program.as_fd())).flatten(),
    });
    Ok(facts.collect())
}

/// A recording of all threads.
fn everything() -> ProbeOptions {
    ProbeOptions {
        targets: Targets::Everything,
        cpus: None,
        sample_hz: 99,
        events: Vec::new(),
        min_stall_ns: 100_000,
        busy_budget_ns: None,
        user_stacks: UserStacks::Tables,
        guarded: vec![0],
        spans: Vec::new(),
        loops: false,
    }
}

fn verified_instructions(program: BorrowedFd<'_>) -> Option<u32> {
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut size = size_of_val(&info) as u32;
    // SAFETY: the kernel writes at most `size` bytes into `info`, whose pointers are null: it fills no
    // arrays.
    let failed =
        unsafe { libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &raw mut info, &raw mut size) };
    (failed == 0).then_some(info.verified_insns)
}
