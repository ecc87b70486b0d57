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
    /// All of them, with the verifier's log; empty if there are none.
    pub(crate) fn all(&self) -> String {
        WARNINGS.lock().map(|warnings| warnings.concat()).unwrap_or_default()
    }
}

/// The most useful line of all messages: the first warning. With `WALLPROF_DEBUG_BPF`, every line.
pub(crate) fn shown(all: &str) -> &str {
    if std::env::var_os("WALLPROF_DEBUG_BPF").is_some() {
        return all;
    }
    all.lines().next().unwrap_or_default().trim_start_matches("libbpf: ")
}
