// SPDX-License-Identifier: Apache-2.0
//! Names of stalls and of threads in them, for timelines.

use wallprof_model::profile::{StallRecord, WakerRecord};
use wallprof_model::{StallKind, ThreadRef};

use crate::escape::escape;

/// Its meaning, or its reason. Escaped.
pub(super) fn stall_name(stall: &StallRecord) -> String {
    match (&stall.meaning, stall.kind) {
        (Some(meaning), _) => escape(&meaning.to_string()).into_owned(),
        (None, StallKind::Fault) => format!("fault:{}", stall.reason.name()),
        (None, StallKind::OffCpu) => stall.reason.name().into(),
    }
}

pub(super) fn waker_name(waker: &WakerRecord) -> String {
    waker.thread.as_ref().map_or_else(|| "interrupt".into(), thread_name)
}

/// `keeper 4244`.
pub(super) fn thread_name(thread: &ThreadRef) -> String {
    format!("{} {}", thread.comm, thread.tid)
}
