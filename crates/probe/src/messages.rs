// SPDX-License-Identifier: Apache-2.0
//! libbpf's own messages: kept for the error that follows them, never printed.

use std::sync::Mutex;

use libbpf_rs::{PrintLevel, set_print};

static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Warnings since [`capture`].
pub(crate) struct Messages;

pub(crate) fn capture() -> Messages {
    set_print(Some((PrintLevel::Warn, |_, message| {
        if let Ok(mut warnings) = WARNINGS.lock() {
            warnings.push(message);
        }
    })));
    if let Ok(mut warnings) = WARNINGS.lock() {
        warnings.clear();
    }
    Messages
}

impl Messages {
    /// The most useful line: the last one of a verifier's log, else the first warning; empty if there is
    /// none.
    pub(crate) fn text(&self) -> String {
        let Ok(warnings) = WARNINGS.lock() else { return String::new() };
        let all = warnings.concat();
        if std::env::var_os("WALLPROF_DEBUG_BPF").is_some() {
            return all;
        }
        let first = all.lines().next().unwrap_or_default();
        first.trim_start_matches("libbpf: ").to_string()
    }
}
