// SPDX-License-Identifier: Apache-2.0
//! A mark in JSON.

use schemars::JsonSchema;
use serde::Serialize;
use wallprof_model::{ClockMap, Mark};

/// An event on the time axis.
#[derive(Serialize, JsonSchema)]
pub(super) struct MarkJson<'a> {
    /// Unix epoch.
    at_ns: u64,
    duration_ns: Option<u64>,
    text: &'a str,
}

impl<'a> MarkJson<'a> {
    pub fn of(mark: &'a Mark, clock: &ClockMap) -> Self {
        MarkJson { at_ns: clock.epoch_from_mono(mark.at).0, duration_ns: mark.duration_ns, text: &mark.text }
    }
}
