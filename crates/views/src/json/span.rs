//! The span that a stall lies in, in JSON.

use serde::Serialize;
use wallprof_model::{ClockMap, Span};

#[derive(Serialize)]
pub(super) struct SpanJson<'a> {
    id: u64,
    source: &'static str,
    kind: &'a str,
    start_ns: u64,
    end_ns: u64,
    duration_ns: u64,
}

impl<'a> SpanJson<'a> {
    pub fn of((id, span): &'a (u64, Span), clock: &ClockMap) -> Self {
        SpanJson {
            id: *id,
            source: span.source.name(),
            kind: &span.kind,
            start_ns: clock.epoch_from_mono(span.start).0,
            end_ns: clock.epoch_from_mono(span.end).0,
            duration_ns: span.duration_ns(),
        }
    }
}
