// SPDX-License-Identifier: Apache-2.0
//! The importing machine: whether it is the recorded one, and whether its kernel's symbols fit the recorded
//! kernel.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use wallprof_symbols::{FileSearch, KernelSymbols};

use crate::format::bytes::Bytes;
use crate::format::facts::Facts;

/// perf's name of the kernel.
pub(crate) const KERNEL: &[u8] = b"[kernel.kallsyms]";
const NT_GNU_BUILD_ID: u32 = 3;

/// The recorded address of the kernel's start. Symbol tables of the same kernel after another boot have
/// another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KernelBase(pub u64);

/// The identity of a machine and its kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Machine {
    hostname: String,
    kernel: String,
    kernel_build_id: Option<Vec<u8>>,
}

impl Machine {
    /// The machine that runs this program.
    pub(crate) fn this() -> Self {
        let read =
            |path| fs::read_to_string(path).map(|text: String| text.trim().to_owned()).unwrap_or_default();
        Machine {
            hostname: read("/proc/sys/kernel/hostname"),
            kernel: read("/proc/sys/kernel/osrelease"),
            kernel_build_id: fs::read("/sys/kernel/notes").ok().and_then(|notes| build_id_from_notes(&notes)),
        }
    }

    /// Whether the recording is of this machine with this kernel, as far as the recording says.
    pub(crate) fn is_recorded(&self, facts: &Facts) -> bool {
        let same_build = match (facts.build_id(KERNEL), &self.kernel_build_id) {
            (Some(recorded), Some(own)) => recorded == own,
            _ => true,
        };
        !facts.kernel.is_empty()
            && facts.kernel == self.kernel
            && facts.hostname == self.hostname
            && same_build
    }
}

/// The symbols of the recorded kernel: those of the running kernel, or the copy in perf's cache.
pub(crate) fn kernel_symbols(
    facts: &Facts,
    search: &FileSearch,
    base: Option<KernelBase>,
) -> Option<Arc<KernelSymbols>> {
    let own = search.same_kernel.then(KernelSymbols::load).and_then(Result::ok);
    let fits = |symbols: &KernelSymbols| base.is_some_and(|base| starts_at(symbols, base));
    let symbols = own.filter(fits).or_else(|| {
        let path = cached_symbols(search.build_id_cache.as_deref()?, facts.build_id(KERNEL)?);
        KernelSymbols::from_path(&path).ok().filter(fits)
    })?;
    Some(Arc::new(symbols))
}

fn starts_at(symbols: &KernelSymbols, base: KernelBase) -> bool {
    symbols.symbol(base.0).is_some_and(|symbol| symbol.offset == 0)
}

fn cached_symbols(cache: &Path, build_id: &[u8]) -> PathBuf {
    let hex: String = build_id.iter().map(|byte| format!("{byte:02x}")).collect();
    cache.join("[kernel.kallsyms]").join(hex).join("kallsyms")
}

fn build_id_from_notes(notes: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Bytes::new(notes);
    loop {
        let (name, len, kind) = (bytes.u32()?, bytes.u32()?, bytes.u32()?);
        let name = bytes.take_u64(u64::from(name).next_multiple_of(4))?;
        let content = bytes.take_u64(u64::from(len).next_multiple_of(4))?;
        if kind == NT_GNU_BUILD_ID && name == b"GNU\0" {
            return content.get(..len as usize).map(<[u8]>::to_vec);
        }
    }
}

#[cfg(test)]
mod tests {
    use wallprof_intel_pt::generator::record::halves;

    use super::*;

    #[test]
    fn another_kernel_or_host_is_another_machine() {
        let machine =
            Machine { hostname: "a".into(), kernel: "6.1".into(), kernel_build_id: Some(vec![1; 20]) };
        let recorded = |hostname: &str, kernel: &str, build_id: &[u8]| {
            let mut facts = Facts::default();
            (facts.hostname, facts.kernel) = (hostname.into(), kernel.into());
            facts.add_build_id(KERNEL, build_id);
            machine.is_recorded(&facts)
        };
        assert!(recorded("a", "6.1", &[1; 20]) && recorded("a", "6.1", &[]));
        assert!(
            !recorded("b", "6.1", &[1; 20]) && !recorded("a", "6.2", &[]) && !recorded("a", "6.1", &[2; 20])
        );
        assert!(!Machine::default().is_recorded(&Facts::default()), "no facts prove nothing");
    }

    #[test]
    fn notes_hold_the_build_id() {
        let note = |name: &[u8], kind: u32, content: &[u8]| {
            let mut bytes = halves(&[name.len() as u32, content.len() as u32, kind]);
            bytes.extend(name);
            bytes.extend(content);
            bytes
        };
        let notes = [note(b"Xen\0", 3, &[9; 4]), note(b"GNU\0", 3, &[1, 2, 3, 4])].concat();
        assert_eq!(build_id_from_notes(&notes), Some(vec![1, 2, 3, 4]));
        assert_eq!(build_id_from_notes(&notes[..notes.len() - 1]), None);
        assert_eq!(build_id_from_notes(&[0xff; 64]), None);
    }

    #[test]
    fn symbols_of_another_boot_do_not_fit() {
        let symbols =
            KernelSymbols::from_reader(&b"ffffffff81000000 T startup_64\nffffffff81001000 T _etext\n"[..]);
        let symbols = symbols.expect("symbols");
        assert!(starts_at(&symbols, KernelBase(0xffff_ffff_8100_0000)));
        assert!(!starts_at(&symbols, KernelBase(0xffff_ffff_8200_0000)));
        assert!(!starts_at(&symbols, KernelBase(0xffff_ffff_8100_0010)));
    }
}
