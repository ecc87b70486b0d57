// SPDX-License-Identifier: Apache-2.0
//! What building the unwind table of one file may take. A recording names files that anybody may have
//! written.

use std::time::{Duration, Instant};

use wallprof_unwind::Budget;

/// The table of chromium, with 600,000 entries, takes some 50 MB to build.
const MAX_HELD: u64 = 80 << 20;
/// That takes 2 s on a busy CPU.
const LONGEST: Duration = Duration::from_secs(15);

/// The budget of one build.
pub(crate) struct BuildBudget {
    until: Instant,
}

impl BuildBudget {
    /// The time runs from now on.
    pub(crate) fn start() -> Self {
        BuildBudget { until: Instant::now() + LONGEST }
    }
}

impl Budget for BuildBudget {
    fn allows(&self, held: u64) -> bool {
        held <= MAX_HELD && Instant::now() < self.until
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;
    use wallprof_unwind::{FileImage, Table, TableError};

    fn table(file: &File) -> Result<Table, TableError> {
        Table::from_image(&FileImage::open(file).expect("an image"), &BuildBudget::start())
    }

    /// A program that was found by its path, with debug information.
    fn own_program() -> File {
        File::open(std::env::current_exe().expect("a running program")).expect("opens")
    }

    #[test]
    fn an_ordinary_program_has_the_table_of_its_bytes() {
        let path = std::env::current_exe().expect("a running program");
        let whole = Table::from_elf(&std::fs::read(path).expect("readable")).expect("a table");
        assert_eq!(table(&own_program()).expect("a table").rules(), whole.rules());
    }

    /// A file of a few pages that claims an `.eh_frame` of 16 GiB, most of it a hole.
    #[test]
    fn a_sparse_file_with_a_huge_section_is_refused() {
        const SECTION_SIZE: u64 = 32;
        let mut start = vec![0; 64];
        let program = own_program();
        program.read_exact_at(&mut start, 0).expect("a header");
        let length = program.metadata().expect("metadata").len();
        let mut bytes = vec![0; length as usize];
        program.read_exact_at(&mut bytes, 0).expect("the program");
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let (headers, count) = (number(40), u64::from(u16::from_le_bytes([start[60], start[61]])));
        let huge = tempfile::tempfile().expect("a scratch file");
        huge.write_all_at(&bytes, 0).expect("written");
        huge.set_len(16 << 30).expect("a hole");
        // Every section begins where it did and is as large as the file allows.
        for section in 1..count {
            let at = headers + section * 64;
            let offset = number(at as usize + 24);
            let is_names = section == u64::from(u16::from_le_bytes([start[62], start[63]]));
            if !is_names {
                let size = (16u64 << 30) - offset;
                huge.write_all_at(&size.to_le_bytes(), at + SECTION_SIZE).expect("written");
            }
        }
        assert_eq!(table(&huge).err(), Some(TableError::OverBudget));
    }
}
