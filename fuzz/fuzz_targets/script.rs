// SPDX-License-Identifier: Apache-2.0
//! Any text as the output of `perf script` becomes events in the order of time, or an error.
#![no_main]

mod settled;

use std::path::PathBuf;

use libfuzzer_sys::fuzz_target;
use settled::Settled;
use wallprof_import::import_scripts;

// The input is split at the first zero byte into two files in memory.
fuzz_target!(|bytes: &[u8]| {
    let cut = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    let paths: Vec<PathBuf> = [&bytes[..cut], bytes.get(cut + 1..).unwrap_or_default()]
        .into_iter()
        .enumerate()
        .filter(|(number, part)| *number == 0 || !part.is_empty())
        .map(|(number, part)| {
            let path = PathBuf::from(format!("/dev/shm/wallprof-fuzz-{}-{number}", std::process::id()));
            std::fs::write(&path, part).expect("a file in memory");
            path
        })
        .collect();
    let _ = import_scripts(&paths, &mut Settled::default());
    for path in paths {
        let _ = std::fs::remove_file(path);
    }
});
