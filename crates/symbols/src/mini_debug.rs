// SPDX-License-Identifier: Apache-2.0
//! MiniDebugInfo: a small ELF file, packed with xz, in section `.gnu_debugdata` of a stripped program. It
//! has the functions that the program's dynamic symbols leave out. Format: gdb's manual, *Debugging
//! Information in a Special Section*.
//!
//! Owns the bounds on unpacking: the section belongs to a foreign file, and a few kilobytes of xz can unpack
//! to gigabytes.

use std::io::{self, Cursor, Read};
use std::num::NonZeroUsize;

use xz4rust::{XzDecoder, XzReader};

use crate::read_at::{ReadAt, read_bounded};
use crate::read_limits::Deadline;
use crate::section::Sections;

const SECTION: &str = ".gnu_debugdata";
const MAX_PACKED: u64 = 8 << 20;
/// The largest ones of Fedora belong to web browsers and unpack to some 10 MiB.
const MAX_UNPACKED: u64 = 32 << 20;
/// `xz -9` asks for a dictionary of 64 MiB, but no dictionary is of use beyond what may be unpacked.
const MAX_DICTIONARY: usize = 64 << 20;
const FIRST_DICTIONARY: usize = 64 << 10;
/// Unpacked between two looks at the deadline.
const PART: u64 = 1 << 20;
const INPUT_BUFFER: NonZeroUsize = NonZeroUsize::new(16 << 10).expect("not zero");

/// Whether the file has any.
pub(crate) fn exists(sections: &Sections) -> bool {
    sections.has_bytes(SECTION)
}

/// Bytes of the section as it lies in the file.
pub(crate) fn packed_size(sections: &Sections) -> u64 {
    sections.named(SECTION).map_or(0, |section| section.size)
}

/// The unpacked file; an error where the section is damaged, unpacks to too much, or the deadline is over.
/// `None`: there is none.
pub(crate) fn unpack<R: ReadAt + ?Sized>(
    source: &R,
    sections: &Sections,
    deadline: &Deadline,
) -> Option<io::Result<Vec<u8>>> {
    let section = sections.named(SECTION).filter(|section| section.has_bytes())?;
    let packed = read_bounded(source, section.offset, section.size, MAX_PACKED);
    Some(match packed {
        Some(packed) => unpack_bounded(packed, MAX_UNPACKED, deadline),
        None => Err(io::ErrorKind::FileTooLarge.into()),
    })
}

fn unpack_bounded(packed: Vec<u8>, limit: u64, deadline: &Deadline) -> io::Result<Vec<u8>> {
    let decoder = XzDecoder::in_heap_with_alloc_dict_size(FIRST_DICTIONARY, MAX_DICTIONARY);
    let mut reader = XzReader::new_with_buffer_size_and_decoder(Cursor::new(packed), INPUT_BUFFER, decoder);
    let mut unpacked = Vec::new();
    while reader.by_ref().take(PART).read_to_end(&mut unpacked)? > 0 {
        if unpacked.len() as u64 > limit {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        if deadline.is_over() {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
    Ok(unpacked)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_limits::Budget;
    use std::process::{Command, Stdio};
    use wallprof_model::Owner;

    fn packed(bytes: &[u8], options: &[&str]) -> Vec<u8> {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let path = folder.path().join("plain");
        std::fs::write(&path, bytes).expect("written");
        let output = Command::new("xz").args(options).arg("-c").arg(&path).stdin(Stdio::null()).output();
        let output = output.expect("xz");
        assert!(output.status.success(), "xz: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    fn unpacked(packed: &[u8], limit: u64) -> io::Result<Vec<u8>> {
        unpack_bounded(packed.to_vec(), limit, &Deadline::default())
    }

    #[test]
    fn output_of_xz_is_unpacked_with_any_settings() {
        let bytes = std::fs::read("/proc/self/exe").expect("the test's own binary");
        let bytes = &bytes[..bytes.len().min(128 << 10)];
        for options in
            [&[][..], &["-9"], &["-0"], &["--check=crc32"], &["--check=none"], &["--block-size=65536"]]
        {
            let packed = packed(bytes, options);
            assert!(unpacked(&packed, bytes.len() as u64).expect("unpacks") == bytes, "{options:?}");
        }
        assert!(unpacked(&packed(&[], &[]), 0).expect("unpacks").is_empty());
    }

    #[test]
    fn more_than_the_limit_is_refused() {
        let bomb = packed(&vec![0; 8 << 20], &["-9"]);
        assert!(bomb.len() < 8 << 10, "{} bytes", bomb.len());
        let refused = unpacked(&bomb, (8 << 20) - 1).expect_err("refused");
        assert_eq!(refused.kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(unpacked(&bomb, 8 << 20).expect("unpacks").len(), 8 << 20);
    }

    #[test]
    fn unpacking_ends_with_its_deadline() {
        let packed = packed(&vec![0; 8 << 20], &["-9"]);
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let mut budget = Budget::new(None);
        budget.set_stop(std::sync::Arc::clone(&stop));
        let unpacked = budget.for_file(Owner::User(1000)).spend(true, 0, |deadline| {
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            unpack_bounded(packed.clone(), 8 << 20, deadline)
        });
        assert_eq!(unpacked.expect("it starts").expect_err("it ends").kind(), io::ErrorKind::TimedOut);
        assert!(unpack_bounded(packed, 8 << 20, &Deadline::default()).is_ok());
    }

    #[test]
    fn every_truncation_and_damage_is_an_error_or_other_bytes() {
        let bytes: Vec<u8> = (0..2_000u32).flat_map(|number| (number * number).to_le_bytes()).collect();
        let packed = packed(&bytes, &[]);
        for len in (0..packed.len()).step_by(packed.len() / 40) {
            assert!(unpacked(&packed[..len], 1 << 20).is_err(), "cut to {len} bytes");
        }
        for at in (0..packed.len()).step_by(packed.len() / 80) {
            let mut damaged = packed.clone();
            damaged[at] ^= 0x55;
            let _ = unpacked(&damaged, 1 << 20);
        }
    }
}
