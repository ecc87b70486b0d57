// SPDX-License-Identifier: Apache-2.0
//! Counters as tracks of their process, those of the machine beside the application's
//! events.
//!
//! A sample is a difference from the one before. The viewer adds up those of an amount, and draws the others as rates.
//! It takes the first sample for 0, so that an amount has two at its start.

use fxprof_processed_profile::{CounterHandle, Timestamp};
use serde_json::{Value, json};
use wallprof_model::MonoNs;
use wallprof_model::counter::{Counter, CounterKind, CounterTrack, CounterUnit};

use super::Trace;
use crate::escape::escape;

/// The library knows no other than those of Firefox, which have names and units of their own.
const CATEGORY: &str = "wallprof";
/// Below the library's own tracks.
const WEIGHT: u32 = 50;

/// A counter that never changes has nothing to show.
pub(super) fn add(trace: &mut Trace<'_>, track: &CounterTrack) {
    let Some((first, rest)) = track.points.split_first() else { return };
    if rest.iter().all(|(_, value)| value.total_cmp(&first.1).is_eq()) {
        return;
    }
    let process = match track.counter.thread {
        None => trace.machine().process,
        Some(key) => match trace.processes.get(&key) {
            Some(process) => *process,
            None => return,
        },
    };
    let name = escape(&track.counter.name);
    let counter = trace.profile.add_counter(process, &name, CATEGORY, description(&track.counter));
    trace.displays.push(display(&track.counter, &name));
    let scale = scale(track.counter.unit);
    let put = |trace: &mut Trace<'_>, at, delta: f64| sample(trace, counter, at, delta * scale);
    put(trace, first.0, 0.0);
    if track.counter.kind == CounterKind::Level {
        put(trace, first.0, first.1);
    }
    for pair in track.points.windows(2) {
        let delta = pair[1].1 - pair[0].1;
        // A sum that falls has started again.
        let delta = if track.counter.kind == CounterKind::Sum { delta.max(0.0) } else { delta };
        put(trace, pair[1].0, delta);
    }
}

fn sample(trace: &mut Trace<'_>, counter: CounterHandle, at: MonoNs, delta: f64) {
    let at: Timestamp = trace.time(at);
    trace.profile.add_counter_sample(counter, at, delta, 0);
}

/// Times are shown in milliseconds.
fn scale(unit: CounterUnit) -> f64 {
    if unit == CounterUnit::Ns { 1e-6 } else { 1.0 }
}

fn description(counter: &Counter) -> &'static str {
    match counter.kind {
        CounterKind::Level => "An amount, as it was read",
        CounterKind::Sum => "The growth of a sum from one reading to the next",
    }
}

/// How the viewer draws a counter. The library has no field for that.
fn display(counter: &Counter, name: &str) -> Value {
    let label = if counter.unit == CounterUnit::Ns { format!("{name} (ms)") } else { name.to_owned() };
    let is_bytes = counter.unit == CounterUnit::Bytes;
    let unit = if is_bytes { "bytes" } else { "number" };
    let (graph, source, format) = match counter.kind {
        CounterKind::Level => ("line-accumulated", "accumulated", unit),
        CounterKind::Sum if is_bytes => ("line-rate", "rate", "bytes-per-second"),
        CounterKind::Sum => ("line-rate", "count", unit),
    };
    let row = json!({ "type": "value", "source": source, "format": { "unit": format }, "label": label });
    json!({
        "graphType": graph,
        "unit": if is_bytes { "bytes" } else { "" },
        "color": "grey",
        "markerSchemaLocation": null,
        "sortWeight": WEIGHT,
        "label": label,
        "tooltipRows": [row],
    })
}
