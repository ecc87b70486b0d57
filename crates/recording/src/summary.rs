// SPDX-License-Identifier: Apache-2.0
//! The result of a recording.

use std::collections::BTreeMap;

/// The result of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub duration_ns: u64,
    pub threads: u64,
    /// Stalls in the file, the voluntary ones included.
    pub stalls: u64,
    /// Stalls folded into counts.
    pub folded: u64,
    pub file_bytes: u64,
    /// False if another process was reading at the end. Then `-wal` and `-shm` belong to the recording.
    pub one_file: bool,
    pub losses: BTreeMap<String, u64>,
}
