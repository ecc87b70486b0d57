// SPDX-License-Identifier: Apache-2.0
//! The kinds of spans: percentiles, why the slow ones are slow, and the slowest.

use std::collections::HashMap;

use serde::Serialize;
use wallprof_analysis::spans::{Exemplar, KindTail, TailOptions};
use wallprof_model::profile::RecordingInfo;
use wallprof_model::{SpanState, State, ThreadKey};
use wallprof_views::{Style, TailText, exemplar_text, name_of_kind};

/// Kinds on the page, and spans of each.
pub const MOST_KINDS: usize = 50;
const MOST_EXEMPLARS: usize = 10;
/// `UNACCOUNTED` of ledger.js.
const UNACCOUNTED: u8 = 31;
/// A page says as much as its spans allow.
pub const OPTIONS: TailOptions = TailOptions { tail: 0.999, body: (0.45, 0.55), or_lower: true };

#[derive(Serialize)]
pub struct KindHead {
    name: String,
    source: &'static str,
    count: u64,
    /// P50, P90, P99, P99.9 and the longest, ns.
    percentiles: [u64; 5],
    words: String,
    compared: Option<Compared>,
    slowest: Vec<SpanHead>,
}

/// The spans in the middle and the slowest ones, where these are enough.
#[derive(Serialize)]
struct Compared {
    /// Both as shares of all: from, to.
    middle: (f64, f64),
    slowest: (f64, f64),
    /// The name of each state, its code on the page, and the mean ns in a span of the middle and a slowest one.
    states: Vec<(String, u8, i64, i64)>,
}

impl Compared {
    fn new(kind: &KindTail) -> Option<Self> {
        let (group, body) = (kind.difference.as_ref()?, kind.body.as_ref()?);
        let both = body.states.into_iter().zip(group.tail.states);
        let states =
            SpanState::all().into_iter().zip(both).filter(|(_, (middle, slowest))| middle + slowest > 0);
        Some(Compared {
            middle: OPTIONS.body,
            slowest: (kind.tail_share, 1.0),
            states: states
                .map(|(state, (middle, slowest))| (state.label(), code(state), middle, slowest))
                .collect(),
        })
    }
}

fn code(state: SpanState) -> u8 {
    match state {
        SpanState::Cpu => State::Cpu.code(),
        SpanState::Of(state) => state.code(),
        SpanState::Unknown => UNACCOUNTED,
    }
}

#[derive(Serialize)]
struct SpanHead {
    /// Since the start of the recording.
    start_ns: u64,
    duration_ns: u64,
    /// `None`: the thread is not on the page.
    thread: Option<u32>,
    words: String,
}

/// The kinds with most spans first, as they come.
pub fn heads(kinds: &[KindTail], info: &RecordingInfo, index: &HashMap<ThreadKey, u32>) -> Vec<KindHead> {
    let style = Style::plain();
    let text = TailText { kinds, left_out: 0, has_spans: true, options: OPTIONS, info };
    let slowest = |exemplar: &Exemplar| SpanHead {
        start_ns: exemplar.span.start.0.saturating_sub(info.start.0),
        duration_ns: exemplar.span.duration_ns(),
        thread: index.get(&exemplar.span.thread).copied(),
        words: exemplar_text(exemplar, &style),
    };
    let head = |kind: &KindTail| {
        let quantiles = [0.5, 0.9, 0.99, 0.999].map(|share| kind.histogram.quantile_ns(share));
        let [p50, p90, p99, p999] = quantiles;
        KindHead {
            name: name_of_kind(kind, &style),
            source: kind.source.name(),
            count: kind.histogram.count(),
            percentiles: [p50, p90, p99, p999, kind.histogram.max_ns()],
            words: text.words(kind, &style),
            compared: Compared::new(kind),
            slowest: kind.exemplars.iter().take(MOST_EXEMPLARS).map(slowest).collect(),
        }
    };
    kinds.iter().take(MOST_KINDS).map(head).collect()
}
