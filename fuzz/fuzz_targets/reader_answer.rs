// SPDX-License-Identifier: Apache-2.0
//! Bytes from the process that reads foreign files are an answer with one entry for each address, or no
//! answer.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wallprof_symbols::functions_in_answer;

fuzz_target!(|bytes: &[u8]| {
    let Some((&count, answer)) = bytes.split_first() else { return };
    let count = usize::from(count);
    assert!(functions_in_answer(answer, count).is_none_or(|functions| functions == count));
});
