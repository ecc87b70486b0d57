// SPDX-License-Identifier: Apache-2.0
//! Finds the system calls that start threads.
//!
//! A new thread returns from the same instruction as its creator, to which the unwind entry there applies. Its
//! own stack has no frame yet.

use crate::elf::{Elf, Machine};
use crate::image::{Budget, Image, Meter};

/// `mov $NR,%eax; syscall` with the numbers of `clone` and `clone3`, as in glibc and in Go's runtime.
const SYSTEM_CALLS: [[u8; 7]; 2] =
    [[0xb8, 56, 0, 0, 0, 0x0f, 0x05], [0xb8, (435 & 0xff) as u8, (435 >> 8) as u8, 0, 0, 0x0f, 0x05]];

/// Whether the code in front of the ELF virtual address `address` is the system call `clone` or `clone3`.
/// False for a file that cannot be read. `budget` ends a search that takes too much.
pub fn is_behind_clone(image: &dyn Image, budget: &dyn Budget, address: u64) -> bool {
    let meter = Meter::new(budget);
    let Some(elf) = Elf::read(image, &meter).ok().filter(|elf| elf.machine == Machine::X86_64) else {
        return false;
    };
    let mut code = [0; 7];
    let from = address.wrapping_sub(code.len() as u64);
    elf.read_at(from, &mut code).is_some_and(|code| SYSTEM_CALLS.iter().any(|call| code == call))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{CODE, Image as ImageFile};
    use crate::image::Unlimited;

    /// Whether the instruction behind `mov $number,%eax; syscall` is behind a clone, and the one behind that.
    fn answers(number: u32) -> [bool; 2] {
        let mut image = ImageFile::new(0);
        let mov = [&[0xb8][..], &number.to_le_bytes()].concat();
        image.code = [&[0x90; 16][..], &mov, &[0x0f, 0x05, 0x90, 0xc3]].concat();
        let file = image.bytes();
        [23, 24].map(|at| is_behind_clone(&&file[..], &Unlimited, CODE + at))
    }

    #[test]
    fn clones_are_told_from_other_system_calls() {
        const CLOSE: u32 = 3;
        assert_eq!([56, 435, CLOSE].map(answers), [[true, false], [true, false], [false, false]]);
    }

    #[test]
    fn code_that_is_not_there_is_no_clone() {
        let file = ImageFile::new(4).bytes();
        for address in [0, 6, CODE, CODE + 4, u64::MAX] {
            assert!(!is_behind_clone(&&file[..], &Unlimited, address), "{address:#x}");
        }
        assert!(!is_behind_clone(&&b"\x7fELF"[..], &Unlimited, CODE));
    }
}
