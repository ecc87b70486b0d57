// SPDX-License-Identifier: Apache-2.0
//! Where processes say in their memory what they wait for: the map that the kernel side reads at switch-outs.

use std::collections::HashMap;

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::bpf::{bytes_of, wait_word};

/// A word in the memory of one process image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitWord {
    pub address: u64,
    pub exec_id: u32,
    /// The caller's number for what the word is, which comes back with each wait.
    pub definition: u32,
    /// 1 to 8.
    pub bytes: u8,
    /// The address has a pointer to the word.
    pub is_pointer: bool,
}

impl WaitWord {
    fn record(self) -> wait_word {
        wait_word {
            address: self.address,
            exec_id: self.exec_id,
            definition: self.definition,
            bytes: self.bytes,
            is_pointer: self.is_pointer.into(),
            ..wait_word::default()
        }
    }
}

/// The words by process.
pub(crate) struct WaitWords {
    words: MapHandle,
    version_map: MapHandle,
    written: HashMap<u32, WaitWord>,
    version: u32,
}

impl WaitWords {
    pub(crate) fn new(words: MapHandle, version_map: MapHandle) -> Self {
        WaitWords { words, version_map, written: HashMap::new(), version: 0 }
    }

    pub(crate) fn set(&mut self, pid: u32, word: Option<WaitWord>) {
        let Some(word) = word else { return self.forget(pid) };
        if self.written.get(&pid) == Some(&word) {
            return;
        }
        // Full: the waits of this process have no word.
        let written = self.words.update(&pid.to_ne_bytes(), bytes_of(&word.record()), MapFlags::ANY);
        if written.is_ok() {
            self.written.insert(pid, word);
        }
        self.change_version();
    }

    /// The entry may be one that the kernel side made at a fork.
    pub(crate) fn forget(&mut self, pid: u32) {
        if self.words.delete(&pid.to_ne_bytes()).is_ok() | self.written.remove(&pid).is_some() {
            self.change_version();
        }
    }

    /// Threads look into the map again. 0 means that no process has ever had a word.
    fn change_version(&mut self) {
        self.version = self.version.wrapping_add(1).max(1);
        let _ = self.version_map.update(&0u32.to_ne_bytes(), &self.version.to_ne_bytes(), MapFlags::ANY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_has_no_bytes_that_are_not_set() {
        let word =
            WaitWord { address: 0x5000, exec_id: 3, definition: 2, bytes: 4, is_pointer: true }.record();
        assert_eq!(bytes_of(&word).len(), 24);
        assert_eq!((word.address, word.exec_id, word.definition), (0x5000, 3, 2));
        assert_eq!((word.bytes, word.is_pointer, word.unused), (4, 1, [0; 6]));
    }
}
