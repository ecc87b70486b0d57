//! Whether this process can still open files. Where it cannot, programs have no names and counters stand
//! still.

use std::fs::File;

/// Linux: include/uapi/asm-generic/errno-base.h.
const ENFILE: i32 = 23;
const EMFILE: i32 = 24;

/// Whether this process (EMFILE) or the machine (ENFILE) has reached its limit of open files.
pub(crate) fn are_exhausted() -> bool {
    let error = File::open("/dev/null").err();
    error.is_some_and(|error| matches!(error.raw_os_error(), Some(ENFILE | EMFILE)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_can_be_opened_here() {
        assert!(!are_exhausted());
    }
}
