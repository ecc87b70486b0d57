// SPDX-License-Identifier: Apache-2.0
//! The places in a program where the spans of `--span` begin and end: USDT probes, or the entry of a function
//! and the instructions by which execution leaves it.
//!
//! Owns the way from a name to offsets in an ELF file. Sets no probes and looks at no process. Files may be
//! written by anybody: reads are bounded, and each address in a file is checked against its segments.
//!
//! A return probe of the kernel (uretprobe) is not used for the end. It replaces the return address on the
//! stack, which breaks unwinding and makes Go programs crash.

mod ends;
#[cfg(test)]
mod fixture;
mod function;
mod layout;
mod problem;
mod shown;
mod target;
#[cfg(test)]
mod tests;
mod usdt;
mod wanted;

use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use object::elf::EM_X86_64;
use wallprof_model::Module;

use crate::elf::{ElfError, ElfFacts};
use crate::elf_records::Class;
use crate::live_file::open_regular;
use crate::module::ModuleFile;
use crate::resolver::ResolverOptions;
use crate::section::Sections;
use layout::Layout;

pub use problem::{ProbeSitesError, SiteProblem};
pub use target::{SpanTarget, SpanTargetError};

/// Places of one USDT probe.
pub const MAX_PROBES: usize = 64;
/// Ends of one function.
pub const MAX_ENDS: usize = 256;
/// One of them is in each program in Go.
const GO_SECTIONS: [&str; 3] = [".gopclntab", ".data.rel.ro.gopclntab", ".go.buildinfo"];
/// Bytes of one function. The largest ones of real programs, interpreters' loops, have some 100 KiB.
pub const MAX_FUNCTION: u64 = 1 << 20;

/// A place in a file's code. Offsets are in the file, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeSite {
    /// Of the instruction.
    pub offset: u64,
    /// Of the 16-bit counter that switches the probe on: `ref_ctr_offset` of perf's uprobes.
    pub semaphore: Option<u64>,
    /// The condition of a conditional jump; the place is an end only where the condition holds. `None`: always.
    ///
    /// The number is the lower half of the jump's opcode byte, `tttn` in the Intel SDM, volume 2, appendix B:
    /// 0 O, 1 NO, 2 B, 3 AE, 4 E, 5 NE, 6 BE, 7 A, 8 S, 9 NS, 10 P, 11 NP, 12 L, 13 GE, 14 LE, 15 G. It is a
    /// condition of the flags register at the probe, before the instruction runs.
    pub condition: Option<u8>,
}

/// The file that was read. A path can lead to another file later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FileIdentity {
    /// As `st_dev` of stat(2).
    pub device: u64,
    /// As `st_ino`.
    pub inode: u64,
}

impl FileIdentity {
    /// Of an open file, or of what a path leads to.
    pub fn of(metadata: &Metadata) -> Self {
        FileIdentity { device: metadata.dev(), inode: metadata.ino() }
    }
}

/// The places of a span, in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeSites {
    /// A span begins at each of them.
    pub begins: Vec<ProbeSite>,
    /// A span ends at each of them.
    pub ends: Vec<ProbeSite>,
    /// Indirect jumps of a function that use no jump table, and the rare `loop` and `jrcxz` out of it. Such an
    /// instruction either hands over to another function (a call by a pointer in last place) or stays in the
    /// function (`goto *label`). It is no end where the stack pointer differs from its value at the entry.
    pub unclear_ends: Vec<ProbeSite>,
    /// The file with these places.
    pub file: FileIdentity,
}

/// The places of a span, by the symbols of the file and its debug files in the usual directory.
///
/// A function can be named by its symbol, by the readable form of that (C++ without parameters, too), and by
/// its address in the file, as in `0x1139`. The symbols are those of `.symtab`, of a separate debug file with
/// the same build id or of MiniDebugInfo, and of `.dynsym`.
pub fn probe_sites(target: &SpanTarget) -> Result<ProbeSites, ProbeSitesError> {
    probe_sites_with(target, &ResolverOptions::default())
}

/// As [`probe_sites`], with debug files from the directories of `options`.
pub(crate) fn probe_sites_with(
    target: &SpanTarget,
    options: &ResolverOptions,
) -> Result<ProbeSites, ProbeSitesError> {
    find(target, options).map_err(|problem| ProbeSitesError { target: Box::new(target.clone()), problem })
}

fn find(target: &SpanTarget, options: &ResolverOptions) -> Result<ProbeSites, SiteProblem> {
    let file = Arc::new(open_regular(target.path()).map_err(SiteProblem::Unreadable)?);
    let metadata = file.metadata().map_err(SiteProblem::Unreadable)?;
    let sections = Sections::read(file.as_ref())?;
    if (sections.class, sections.machine) != (Class::Elf64, EM_X86_64) {
        return Err(SiteProblem::ForeignElf);
    }
    let facts = ElfFacts::read(file.as_ref())?;
    let layout = Layout { segments: facts.segments, file_size: metadata.len() };
    let found = match target {
        SpanTarget::Usdt { provider, begin, end, .. } => {
            let [begins, ends] = usdt::sites(file.as_ref(), &sections, &layout, provider, [begin, end])?;
            ProbeSites { begins, ends, ..ProbeSites::default() }
        }
        SpanTarget::Uprobe { .. } if GO_SECTIONS.iter().any(|name| sections.named(name).is_some()) => {
            return Err(SiteProblem::GoProgram);
        }
        SpanTarget::Uprobe { path, function } => {
            let path = path.to_string_lossy().into_owned();
            let module = Module { path, build_id: facts.build_id };
            let module = ModuleFile { module, file: Some(Arc::clone(&file)) };
            let program = function::Program { module: &module, sections: &sections, layout: &layout };
            function::sites::<File>(&file, &program, options, function)?
        }
    };
    Ok(ProbeSites { file: FileIdentity::of(&metadata), ..found })
}

impl From<ElfError> for SiteProblem {
    fn from(error: ElfError) -> Self {
        match error {
            ElfError::NotElf => SiteProblem::NotElf,
            ElfError::ForeignFormat => SiteProblem::ForeignElf,
            ElfError::Truncated | ElfError::Oversized => SiteProblem::DamagedHeaders,
        }
    }
}
