// SPDX-License-Identifier: Apache-2.0
//! The vDSO: code that the kernel maps into every process and that has no file.
//!
//! Its image is copied from this process's own memory into a memory file, so that it is a module like any
//! other. Processes of another word size have another vDSO, which is not read.

use std::fs::File;
use std::io::{BufRead, BufReader, Seek, Write};
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, memfd_create};

/// Its name in `/proc/PID/maps`.
pub(crate) const LABEL: &str = "[vdso]";

/// It is two or three pages.
const MAX_IMAGE: u64 = 1 << 20;

/// Whether the vDSO at `start` is the one this process has, too: 32-bit processes keep theirs below 4 GiB,
/// 64-bit ones next to the stack.
pub(crate) fn is_own_kind(start: u64) -> bool {
    cfg!(target_pointer_width = "64") == (start > u64::from(u32::MAX))
}

/// The image as a file in memory; `None` when the kernel was booted with `vdso=0`.
pub(crate) fn image() -> Option<File> {
    let (start, end) = own_range()?;
    let mut bytes = vec![0; usize::try_from(end.checked_sub(start)?.min(MAX_IMAGE)).ok()?];
    File::open("/proc/self/mem").ok()?.read_exact_at(&mut bytes, start).ok()?;
    let mut file = File::from(memfd_create("wallprof-vdso", MemfdFlags::CLOEXEC).ok()?);
    file.write_all(&bytes).ok()?;
    file.rewind().ok()?;
    Some(file)
}

fn own_range() -> Option<(u64, u64)> {
    let maps = BufReader::new(File::open("/proc/self/maps").ok()?);
    let line = maps.lines().map_while(Result::ok).find(|line| line.ends_with(LABEL))?;
    let (start, end) = line.split_once(' ')?.0.split_once('-')?;
    Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::ElfFacts;

    #[test]
    fn the_image_is_an_elf_file() {
        let image = image().expect("kernels have a vDSO");
        let facts = ElfFacts::read(&image).expect("a valid ELF file");
        assert!(facts.segments.iter().any(|segment| segment.executable));
        assert!(is_own_kind(own_range().expect("mapped").0));
    }
}
