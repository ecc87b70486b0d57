// SPDX-License-Identifier: Apache-2.0
//! The sums of spans of one kind, by thread and duration.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use wallprof_model::histogram::bucket_from_ns;
use wallprof_model::{Span, SpanDelta, SpanSource, SpanStates, ThreadKey};

use super::Unrecorded;

/// The span with the part of its running time that can have been waits divided off.
pub fn divided(span: &Span, unrecorded: &Unrecorded) -> Span {
    let mut span = span.clone();
    let seconds = unrecorded.seconds_of(span.start, span.end);
    span.states.divide_cpu(unrecorded.most_ns(span.thread, seconds));
    span
}

/// Of spans of one kind, whose running time is not divided yet.
///
/// Waits that have no stall of their own lie once in all the spans of a second, not in each of them. So a sum
/// has less unknown time than its spans one by one.
pub fn sums(spans: &[Span], unrecorded: &Unrecorded) -> Vec<SpanDelta> {
    let nested = most_at_once(spans);
    let mut sets: BTreeMap<(ThreadKey, u16, (u64, u64)), Sum> = BTreeMap::new();
    for span in spans {
        let ns = span.duration_ns();
        let seconds = unrecorded.seconds_of(span.start, span.end);
        let sum = sets.entry((span.thread, bucket_from_ns(ns), seconds)).or_default();
        sum.add(&Sum { count: 1, max_ns: ns, states: span.states });
    }
    let mut sums: BTreeMap<(ThreadKey, u16), Sum> = BTreeMap::new();
    for ((thread, bucket, seconds), mut sum) in sets {
        let nested = nested.get(&thread).copied().unwrap_or(1);
        let most_ns = unrecorded.most_ns(thread, seconds).map(|ns| ns.saturating_mul(nested));
        sum.states.divide_cpu(most_ns);
        sums.entry((thread, bucket)).or_default().add(&sum);
    }
    let kind = spans.first().map(|span| Arc::clone(&span.kind)).unwrap_or_default();
    let source = spans.first().map_or(SpanSource::Import, |span| span.source);
    let delta = |((thread, bucket), sum): ((ThreadKey, u16), Sum)| SpanDelta {
        thread,
        source,
        kind: Arc::clone(&kind),
        bucket,
        count: sum.count,
        max_ns: sum.max_ns,
        states: sum.states,
    };
    sums.into_iter().map(delta).collect()
}

#[derive(Default)]
struct Sum {
    count: u64,
    max_ns: u64,
    states: SpanStates,
}

impl Sum {
    fn add(&mut self, other: &Sum) {
        self.count += other.count;
        self.max_ns = self.max_ns.max(other.max_ns);
        self.states.add(&other.states);
    }
}

/// The most spans of each thread that are open at one time: a wait counts in each of them.
fn most_at_once(spans: &[Span]) -> HashMap<ThreadKey, u64> {
    let mut edges: HashMap<ThreadKey, Vec<(u64, i64)>> = HashMap::new();
    for span in spans {
        let edges = edges.entry(span.thread).or_default();
        edges.push((span.start.0, 1));
        edges.push((span.end.0.max(span.start.0), -1));
    }
    let most = |mut edges: Vec<(u64, i64)>| {
        // At one time, ends come before starts.
        edges.sort_unstable();
        let open = edges.iter().scan(0i64, |open, (_, more)| {
            *open += more;
            Some(*open)
        });
        open.max().unwrap_or(0).max(1).unsigned_abs()
    };
    edges.into_iter().map(|(thread, edges)| (thread, most(edges))).collect()
}

#[cfg(test)]
mod tests {
    use wallprof_model::event::LedgerDelta;
    use wallprof_model::{ClockMap, EpochSecond, MonoNs, SpanState};

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn spans(times: &[(u64, u64)]) -> Vec<Span> {
        let span = |(start, ns): &(u64, u64)| Span {
            thread: ThreadKey(1),
            source: SpanSource::Import,
            kind: "order".into(),
            start: MonoNs(*start),
            end: MonoNs(start + ns),
            states: SpanStates(std::array::from_fn(|at| if at == 0 { *ns } else { 0 })),
        };
        times.iter().map(span).collect()
    }

    fn unrecorded(waited_ns: u64) -> Unrecorded {
        let mut unrecorded = Unrecorded::new(ClockMap::default());
        let mut row = LedgerDelta::new(ThreadKey(1), EpochSecond(0));
        row.runnable_ns = waited_ns;
        unrecorded.add_second(&row);
        unrecorded
    }

    fn cpu_and_unknown(states: &SpanStates) -> (u64, u64) {
        (states.0[SpanState::Cpu.index()], states.0[SpanState::Unknown.index()])
    }

    #[test]
    fn short_waits_of_a_second_are_in_its_spans_once() {
        let spans = spans(&[(0, 1_000), (5_000, 1_000), (9_000, 1_000)]);
        let unrecorded = unrecorded(400);
        assert_eq!(cpu_and_unknown(&divided(&spans[1], &unrecorded).states), (600, 400));
        let sums = sums(&spans, &unrecorded);
        assert_eq!((sums.len(), sums[0].count), (1, 3));
        assert_eq!(cpu_and_unknown(&sums[0].states), (2_600, 400));
    }

    #[test]
    fn short_waits_count_in_each_of_nested_spans() {
        let sums = sums(&spans(&[(0, 10_000), (10_000, 10_000), (15_000, 10_000)]), &unrecorded(400));
        assert_eq!(cpu_and_unknown(&sums[0].states), (29_200, 800));
    }

    #[test]
    fn time_outside_of_the_ledger_is_unknown() {
        let sums = sums(&spans(&[(SECOND - 500, 1_000)]), &unrecorded(0));
        assert_eq!(cpu_and_unknown(&sums[0].states), (0, 1_000));
    }
}
