// SPDX-License-Identifier: Apache-2.0
//! Streams of perf.data become events in the order of time, or an error.
#![no_main]

mod settled;

use libfuzzer_sys::fuzz_target;
use settled::Settled;
use wallprof_import::{ImportOptions, import_stream};

fuzz_target!(|bytes: &[u8]| {
    // No file of this machine may be read: the files that the input names are searched in a folder that does
    // not exist.
    let options = ImportOptions { symfs: Some("/nonexistent".into()), ..ImportOptions::default() };
    let _ = import_stream(bytes, &options, &mut Settled::default());
});
