// SPDX-License-Identifier: Apache-2.0
//! Spans between two places in the code of a program: `--span`.
//!
//! The kernel side sends each one when it ends, with what its thread was not running for. The rest of it is running
//! time. Each hit of a probe costs its thread a microsecond or more, so the probes of an option that is hit too often
//! are removed.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use wallprof_model::histogram::bucket_from_ns;
use wallprof_model::span::{LateSample, Span, SpanSource, SpanState, SpanStates};
use wallprof_model::{MonoNs, ThreadKey};
use wallprof_probe::bpf::probed_record;

use crate::marks::{Flushed, Growth, Rows, limit};
use crate::session::states_from;
use crate::span_samples::{SpanSamples, late_length};

/// Hits a second of all threads, above which the probes of an option are removed: two hundredths of a CPU at least.
pub const MOST_HITS: u64 = 20_000;
/// Over which hits are counted.
const CHECK_EVERY_NS: u64 = 250_000_000;
/// Samples are kept this long for spans that end later.
const KEEP_SAMPLES_NS: u64 = 60_000_000_000;
/// Programs whose lengths are kept apart. Further ones have no late samples.
const MOST_PROGRAMS: usize = 1 << 10;

/// What the spans of one `--span` are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanKind {
    pub kind: Arc<str>,
    pub source: SpanSource,
}

#[derive(Default)]
pub(crate) struct Probed {
    /// By number of `--span`.
    kinds: Vec<SpanKind>,
    /// By thread.
    samples: HashMap<u32, SpanSamples>,
    /// By program and number of `--span`: how many spans there were so far, by bucket of their length.
    lengths: HashMap<(Vec<u8>, u32), Vec<u64>>,
    checked: Option<(u64, Vec<u64>)>,
    /// Numbers of those whose probes are gone.
    gone: BTreeSet<usize>,
    /// Those of them that were not reported yet, with their hits a second.
    removed: Vec<(usize, u64)>,
}

impl Probed {
    pub fn set_kinds(&mut self, kinds: Vec<SpanKind>) {
        self.kinds = kinds;
    }

    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    /// Takes a sample of a thread in a span.
    pub fn take_sample(&mut self, sample: LateSample) {
        self.samples.entry(sample.thread.0).or_default().take(sample);
    }

    /// Emits spans that have ended. `program_of` has the program of each thread in them.
    pub fn flush(
        &mut self,
        mut records: Vec<probed_record>,
        now: u64,
        program_of: &dyn Fn(u32) -> Vec<u8>,
    ) -> Flushed {
        let mut flushed = Flushed::default();
        records.sort_by_key(|record| (record.key, record.span));
        for records in records.chunk_by(|one, other| (one.key, one.span) == (other.key, other.span)) {
            let (key, span) = (records[0].key, records[0].span);
            let Some(SpanKind { kind, source }) = self.kinds.get(span as usize) else { continue };
            let (kind, source, thread) = (Arc::clone(kind), *source, ThreadKey(key));
            let durations = records.iter().map(|record| record.end.saturating_sub(record.start));
            let late_ns = self.count_lengths((program_of(key), span), durations.clone());
            let mut rows = Rows::default();
            for (record, ns) in records.iter().zip(durations) {
                if ns > late_ns
                    && let Some(samples) = self.samples.get_mut(&key)
                {
                    samples.emit_late(source, record.start + late_ns, record.end, &mut flushed.late);
                }
                let states = states_of(record, ns);
                rows.add(&kind, bucket_from_ns(ns), 1, ns, &states);
                let (kind, start, end) = (Arc::clone(&kind), MonoNs(record.start), MonoNs(record.end));
                flushed.spans.push(Span { thread, source, kind, start, end, states });
            }
            flushed.sums.extend(rows.finish(thread, source));
        }
        self.samples.retain(|_, samples| {
            samples.forget(now.saturating_sub(KEEP_SAMPLES_NS));
            !samples.is_empty()
        });
        flushed
    }

    /// Counts spans of a program and a `--span`. Returns the length that nineteen of twenty so far do not exceed,
    /// ns; the longest possible one before there are twenty.
    fn count_lengths(&mut self, of: (Vec<u8>, u32), durations: impl Iterator<Item = u64>) -> u64 {
        if self.lengths.len() >= MOST_PROGRAMS && !self.lengths.contains_key(&of) {
            return u64::MAX;
        }
        let counts = self.lengths.entry(of).or_default();
        for bucket in durations.map(|ns| usize::from(bucket_from_ns(ns))) {
            if counts.len() <= bucket {
                counts.resize(bucket + 1, 0);
            }
            counts[bucket] += 1;
        }
        match counts.iter().sum::<u64>() < 20 {
            true => u64::MAX,
            false => late_length(counts.iter().copied()),
        }
    }

    /// Whether hits are to be read at this time.
    pub fn is_due(&self, now: u64) -> bool {
        let checked = self.checked.as_ref().map_or(0, |(at, _)| *at);
        !self.is_empty() && now.saturating_sub(checked) >= CHECK_EVERY_NS
    }

    /// Takes the hits so far, by number of `--span`. Returns the numbers of those that are hit too often.
    pub fn take_hits(&mut self, now: u64, hits: Vec<u64>) -> Vec<usize> {
        let mut too_many = Vec::new();
        if let Some((at, before)) = &self.checked {
            let ns = u128::from(now.saturating_sub(*at).max(1));
            for (number, (hits, before)) in hits.iter().zip(before).enumerate() {
                let rate = (u128::from(hits.saturating_sub(*before)) * 1_000_000_000 / ns) as u64;
                // Some hits come between the reading of the first and the removal.
                if rate > MOST_HITS && self.gone.insert(number) {
                    self.removed.push((number, rate));
                    too_many.push(number);
                }
            }
        }
        self.checked = Some((now, hits));
        too_many
    }

    /// Numbers of `--span` whose probes were removed since the last call, with their hits a second.
    pub fn take_removed(&mut self) -> Vec<(usize, u64)> {
        std::mem::take(&mut self.removed)
    }
}

/// The states of a span, which add up to its length.
fn states_of(record: &probed_record, ns: u64) -> SpanStates {
    let mut growth = Growth::default();
    let mut grown = states_from(&record.states);
    grown.0[SpanState::Cpu.index()] = 0;
    growth.add(&grown);
    let mut states = growth.states();
    limit(&mut states, ns);
    states.0[SpanState::Cpu.index()] = ns.saturating_sub(states.total_ns());
    states
}

#[cfg(test)]
mod tests {
    use wallprof_model::{Reason, State};

    use super::*;

    const LOCK: SpanState = SpanState::Of(State::Blocked(Reason::Lock));

    fn probed() -> Probed {
        let kind = |kind: &str, source| SpanKind { kind: kind.into(), source };
        let mut probed = Probed::default();
        probed.set_kinds(vec![kind("work", SpanSource::Uprobe), kind("a..b", SpanSource::Usdt)]);
        probed
    }

    fn record(span: u32, start: u64, ns: u64) -> probed_record {
        probed_record { key: 7, span, start, end: start + ns, ..probed_record::default() }
    }

    #[test]
    fn states_add_up_to_the_span() {
        let mut long = record(0, 1_000, 500);
        long.states.blocked[usize::from(Reason::Lock.code())] = 300;
        // Running time was found in the wait before the span.
        long.states.runnable = 40u64.wrapping_neg();
        let states = states_of(&long, 500);
        assert_eq!((states.0[LOCK.index()], states.0[SpanState::Cpu.index()]), (300, 200));
        long.states.blocked[usize::from(Reason::Lock.code())] = 501;
        let states = states_of(&long, 500);
        assert_eq!((states.0[LOCK.index()], states.total_ns()), (500, 500));
    }

    #[test]
    fn spans_are_summed_by_kind_and_length() {
        let mut probed = probed();
        let records = [record(0, 0, 5_000), record(1, 100, 70), record(0, 9_000, 5_010), record(9, 0, 1)];
        let flushed = probed.flush(records.to_vec(), 20_000, &|_| b"engine".to_vec());
        let mut sums: Vec<_> =
            flushed.sums.iter().map(|sum| (&*sum.kind, sum.source, sum.count, sum.max_ns)).collect();
        sums.sort();
        assert_eq!(sums, [("a..b", SpanSource::Usdt, 1, 70), ("work", SpanSource::Uprobe, 2, 5_010)]);
        assert_eq!(flushed.spans.len(), 3);
    }

    #[test]
    fn samples_are_late_after_the_length_of_nineteen_of_twenty() {
        let mut probed = probed();
        let short: Vec<_> = (0..100).map(|at| record(0, at * 10_000, 1_000)).collect();
        probed.flush(short, 1_000_000, &|_| b"engine".to_vec());
        let (thread, state) = (ThreadKey(7), State::User);
        for at in [2_000_500, 2_001_900] {
            let (source, at) = (SpanSource::Busy, MonoNs(at));
            probed.take_sample(LateSample { thread, source, at, state, ns: 10, user: None, kernel: None });
        }
        let flushed = probed.flush(vec![record(0, 2_000_000, 2_000)], 2_002_000, &|_| b"engine".to_vec());
        let late: Vec<_> = flushed.late.iter().map(|sample| (sample.source, sample.at.0)).collect();
        assert_eq!(late, [(SpanSource::Uprobe, 2_001_900)]);
        let other = probed.flush(vec![record(0, 2_000_000, 2_000)], 2_002_000, &|_| b"another".to_vec());
        assert_eq!(other.late.len(), 0, "a program of its own");
        assert!(!probed.samples.is_empty());
        probed.flush(Vec::new(), 2_001_901 + KEEP_SAMPLES_NS, &|_| Vec::new());
        assert!(probed.samples.is_empty(), "of spans that never end");
    }

    #[test]
    fn probes_that_are_hit_too_often_are_removed() {
        let mut probed = probed();
        assert!(probed.is_due(CHECK_EVERY_NS));
        assert_eq!(probed.take_hits(1_000_000_000, vec![5_000_000, 10]), [0; 0]);
        assert!(!probed.is_due(1_100_000_000));
        assert!(probed.is_due(1_250_000_000));
        assert_eq!(probed.take_hits(1_250_000_000, vec![5_005_000, 5_011]), [1]);
        assert_eq!(probed.take_removed(), [(1, 20_004)]);
        assert_eq!(probed.take_removed(), []);
        assert_eq!(probed.take_hits(1_500_000_000, vec![5_005_000, 20_000]), [0; 0], "they are gone");
        assert!(!Probed::default().is_due(u64::MAX));
    }
}
