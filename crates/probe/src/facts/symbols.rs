// SPDX-License-Identifier: Apache-2.0
//! Whether the kernel shows the addresses of its functions.

use std::path::Path;

use super::files::Files;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KernelSymbols {
    Readable,
    /// All addresses read as zero: kernel.kptr_restrict, or no CAP_SYSLOG.
    Hidden,
    #[default]
    Absent,
}

impl KernelSymbols {
    pub fn read(files: &dyn Files) -> Self {
        match files.read(Path::new("/proc/kallsyms")) {
            Ok(text) => Self::from_kallsyms(&text),
            Err(_) => KernelSymbols::Absent,
        }
    }

    /// From the first lines of `/proc/kallsyms`; per-CPU symbols near zero exist on x86, all zeros do not.
    fn from_kallsyms(text: &str) -> Self {
        let is_hidden = |line: &str| line.bytes().take_while(|byte| *byte != b' ').all(|digit| digit == b'0');
        match text.is_empty() {
            true => KernelSymbols::Absent,
            false if text.lines().all(is_hidden) => KernelSymbols::Hidden,
            false => KernelSymbols::Readable,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::files::fake::FakeFiles;
    use super::*;

    #[test]
    fn hidden_addresses_are_zeros() {
        let read = |text| KernelSymbols::read(&FakeFiles::new(&[("/proc/kallsyms", text)]));
        assert_eq!(
            read("0000000000000000 A fixed_percpu_data\n0000000000000000 T _stext\n"),
            KernelSymbols::Hidden
        );
        assert_eq!(
            read("0000000000000000 A fixed_percpu_data\nffffffff81000000 T _stext\n"),
            KernelSymbols::Readable
        );
        assert_eq!(read(""), KernelSymbols::Absent);
        assert_eq!(KernelSymbols::read(&FakeFiles::default()), KernelSymbols::Absent);
    }
}
