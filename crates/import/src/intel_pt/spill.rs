// SPDX-License-Identifier: Apache-2.0
//! Packed switches beyond the memory limit go to an unnamed file in the folder for temporary files. If no
//! file can be made, or the disk is full, they stay in memory.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use wallprof_intel_pt::SwitchStore;

/// Bytes of packed switches in memory: some six million switches.
const HELD: usize = 32 << 20;

/// Stores packed switches beyond [`HELD`] bytes.
#[derive(Debug)]
pub(crate) struct Spill {
    most_held: usize,
    held: AtomicUsize,
    /// `None`: no file can be made.
    file: OnceLock<Option<File>>,
    end: AtomicU64,
    error: Mutex<Option<io::Error>>,
}

impl Default for Spill {
    fn default() -> Self {
        Spill {
            most_held: HELD,
            held: AtomicUsize::new(0),
            file: OnceLock::new(),
            end: AtomicU64::new(0),
            error: Mutex::new(None),
        }
    }
}

impl Spill {
    /// The error at reading back, if there was one.
    pub(crate) fn take_error(&self) -> Option<io::Error> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn failed(&self, cause: &io::Error) {
        let sentence = format!("its switches, kept in a temporary file, cannot be read back: {cause}");
        let error = io::Error::new(cause.kind(), sentence);
        self.error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }
}

impl SwitchStore for Spill {
    fn put(&self, bytes: &[u8]) -> Option<u64> {
        if self.held.fetch_add(bytes.len(), Ordering::Relaxed) + bytes.len() <= self.most_held {
            return None;
        }
        let file = self.file.get_or_init(|| tempfile::tempfile().ok()).as_ref()?;
        let place = self.end.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        file.write_all_at(bytes, place).ok()?;
        Some(place)
    }

    fn get(&self, place: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let Some(file) = self.file.get().and_then(Option::as_ref) else { return Vec::new() };
        match file.read_exact_at(&mut bytes, place) {
            Ok(()) => bytes,
            Err(cause) => {
                self.failed(&cause);
                Vec::new()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_beyond_the_limit_go_to_a_file() {
        let spill = Spill { most_held: 5, ..Spill::default() };
        let places = [b"abc", b"def", b"ghi"].map(|bytes| spill.put(bytes));
        assert_eq!(places, [None, Some(0), Some(3)]);
        assert_eq!((spill.get(0, 3), spill.get(3, 3)), (b"def".to_vec(), b"ghi".to_vec()));
        assert!(spill.take_error().is_none());
    }

    #[test]
    fn unreadable_switches_are_an_error() {
        let spill = Spill { most_held: 0, ..Spill::default() };
        assert_eq!(spill.put(b"abc"), Some(0));
        assert!(spill.get(2, 3).is_empty());
        let error = spill.take_error().expect("an error");
        assert!(error.to_string().contains("temporary file"), "{error}");
    }
}
