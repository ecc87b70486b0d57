//! A mark in JSON.

use serde::Serialize;
use wallprof_model::{ClockMap, Mark};

#[derive(Serialize)]
pub(super) struct MarkJson<'a> {
    at_ns: u64,
    duration_ns: Option<u64>,
    text: &'a str,
}

impl<'a> MarkJson<'a> {
    pub fn of(mark: &'a Mark, clock: &ClockMap) -> Self {
        MarkJson { at_ns: clock.epoch_from_mono(mark.at).0, duration_ns: mark.duration_ns, text: &mark.text }
    }
}
