// SPDX-License-Identifier: Apache-2.0
//! The span that a stall lies in, in JSON.

use schemars::JsonSchema;
use serde::Serialize;
use wallprof_model::{ClockMap, Span};

use super::schema;

/// One operation of the application.
#[derive(Serialize, JsonSchema)]
pub(super) struct SpanJson<'a> {
    id: u64,
    #[schemars(schema_with = "schema::span_sources")]
    source: &'static str,
    /// The name of the operation.
    kind: &'a str,
    /// Unix epoch.
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
