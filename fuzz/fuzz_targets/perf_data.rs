//! Streams of perf.data become events in the order of time, or an error.
#![no_main]

mod settled;

use libfuzzer_sys::fuzz_target;
use settled::Settled;
use wallprof_import::{ImportOptions, import_stream};

fuzz_target!(|bytes: &[u8]| {
    // No file of this machine is to be read: what the input names is looked for where nothing is.
    let options = ImportOptions { symfs: Some("/nonexistent".into()), ..ImportOptions::default() };
    let _ = import_stream(bytes, &options, &mut Settled::default());
});
