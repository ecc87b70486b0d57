// SPDX-License-Identifier: Apache-2.0
//! Recordings of tests that failed, kept after the test.

use std::path::Path;
use std::{fs, io};

use crate::machine::name_of_this_test;
use crate::note;

/// With the part that SQLite has not moved into the file yet, if there is one.
fn copy_with_log(recording: &Path, copy: &Path) -> io::Result<u64> {
    let [log, copied_log] = [recording, copy].map(|file| file.with_extension("db-wal"));
    match fs::copy(log, copied_log) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => fs::copy(recording, copy),
    }
}

/// Copies the recording where this test is failing now, and prints the copy's path. The folder is the one that
/// `WALLPROF_KEEP` names; without the variable nothing is kept.
pub fn if_failing(recording: &Path) {
    let Some(folder) = std::env::var_os("WALLPROF_KEEP").filter(|_| std::thread::panicking()) else { return };
    let test = name_of_this_test();
    for number in 1.. {
        let copy = Path::new(&folder).join(format!("{}-{number}.db", test.replace("::", ".")));
        if copy.exists() {
            continue;
        }
        match fs::create_dir_all(&folder).and_then(|()| copy_with_log(recording, &copy)) {
            Ok(_) => note(&format!("kept {test}: {}", copy.display())),
            Err(error) => note(&format!("kept {test}: nothing: {}: {error}", recording.display())),
        }
        return;
    }
}
