// SPDX-License-Identifier: Apache-2.0
//! Long busy periods, and of those in which a thread ran for most of the time the stacks of the samples late in them. Single
//! periods are examples: of a busy thread not all are kept. The sums have all.

use std::collections::{BTreeMap, HashMap};

use wallprof_model::histogram::{Cell, Histogram, range_from_bucket};
use wallprof_model::profile::ResolvedStack;
use wallprof_model::{LateSample, MonoNs, Span, SpanDelta, SpanSource, SpanState, StackId, State, ThreadKey};

/// A shorter period keeps nobody waiting for long. Node's watchers warn from some 20 ms on.
const SHORTEST_NS: u64 = 10_000_000;
/// It must last this many times as long as the thread's periods usually do.
const TIMES_MEDIAN: u64 = 20;
/// Periods that are kept, of those that ran and of others: the longest.
const MOST: usize = 10_000;
/// Stacks of a period that are resolved: with fewer, its functions are known as well.
const MOST_STACKS: usize = 64;

/// A busy period that lasted much longer than is usual for its thread.
#[derive(Clone, Debug)]
pub struct LongPeriod {
    pub thread: ThreadKey,
    pub start: MonoNs,
    pub end: MonoNs,
    /// As the span's states have it, ns.
    pub ran_ns: u64,
    /// Where it ran late in the period, and for how long, ns, if it ran for most of it. What lies before the first sample
    /// is unknown.
    pub samples: Vec<(ResolvedStack, u64)>,
}

impl LongPeriod {
    pub fn duration_ns(&self) -> u64 {
        self.end.0.saturating_sub(self.start.0)
    }

    /// Whether the thread ran for half of it.
    pub fn is_running(&self) -> bool {
        self.ran_ns >= self.duration_ns() / 2
    }
}

/// All periods of one thread and one bucket of lengths that are as long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongSum {
    pub thread: ThreadKey,
    /// A [`wallprof_model::histogram`] bucket.
    pub bucket: u16,
    pub count: u64,
    pub total_ns: u64,
    pub max_ns: u64,
}

/// The sums of all periods of buckets in which every period is long, whatever it was made of, by thread and bucket.
pub fn long_sums(sums: &[SpanDelta]) -> Vec<LongSum> {
    let medians = medians(sums);
    let mut found: BTreeMap<(ThreadKey, u16), LongSum> = BTreeMap::new();
    for sum in sums.iter().filter(|sum| sum.source == SpanSource::Busy) {
        let from_ns = range_from_bucket(sum.bucket).0;
        if from_ns >= SHORTEST_NS.max(least_ns(&medians, sum.thread)) {
            let SpanDelta { thread, bucket, .. } = *sum;
            let nothing = LongSum { thread, bucket, count: 0, total_ns: 0, max_ns: 0 };
            let all = found.entry((thread, bucket)).or_insert(nothing);
            all.count = all.count.saturating_add(sum.count);
            all.total_ns = all.total_ns.saturating_add(sum.states.total_ns());
            all.max_ns = all.max_ns.max(sum.max_ns);
        }
    }
    found.into_values().collect()
}

/// The long periods among single spans, by thread and start. `spans` come longest first; `samples` may be in any
/// order, and `resolve` is asked for the stacks of those in long periods.
///
/// # Errors
/// Those of `resolve`.
pub fn long_periods<E>(
    sums: &[SpanDelta],
    spans: &[Span],
    samples: &[LateSample],
    mut resolve: impl FnMut(StackId) -> Result<ResolvedStack, E>,
) -> Result<Vec<LongPeriod>, E> {
    let medians = medians(sums);
    let is_long = |span: &Span| {
        span.source == SpanSource::Busy && span.duration_ns() >= least_ns(&medians, span.thread)
    };
    let is_running = |span: &Span| ran_ns(span) >= span.duration_ns() / 2;
    let spans = spans.iter().take_while(|span| span.duration_ns() >= SHORTEST_NS);
    // Those that waited do not keep out those that ran.
    let (mut running, mut waiting) = (0, 0);
    let is_one_of_most = |span: &&Span| {
        let count = if is_running(span) { &mut running } else { &mut waiting };
        *count += 1;
        *count <= MOST
    };
    let spans = spans.filter(|span| is_long(span)).filter(is_one_of_most);
    let mut found: Vec<(&Span, Vec<(StackId, u64)>)> = spans.map(|span| (span, Vec::new())).collect();
    found.sort_by_key(|(span, _)| (span.thread, span.start));
    for sample in samples.iter().filter(|sample| sample.is_running_in_period()) {
        let after =
            found.partition_point(|(span, _)| (span.thread, span.start) <= (sample.thread, sample.at));
        let before = after.checked_sub(1).and_then(|at| found.get_mut(at));
        if let Some((span, stacks)) = before
            && span.thread == sample.thread
            && sample.at <= span.end
            && is_running(span)
            && let Some(user) = sample.user
        {
            stacks.push((user, sample.ns));
        }
    }
    let mut period = |(span, stacks): (&Span, Vec<(StackId, u64)>)| {
        // Of many samples, one stands for its neighbours.
        let groups = stacks.chunks(stacks.len().div_ceil(MOST_STACKS).max(1));
        let samples = groups.map(|group| Ok((resolve(group[0].0)?, group.iter().map(|(_, ns)| ns).sum())));
        let (thread, start, end, ran_ns) = (span.thread, span.start, span.end, ran_ns(span));
        Ok(LongPeriod { thread, start, end, ran_ns, samples: samples.collect::<Result<_, E>>()? })
    };
    found.into_iter().map(&mut period).collect()
}

/// A shorter period is a usual one of its thread, ns.
fn least_ns(medians: &HashMap<ThreadKey, u64>, thread: ThreadKey) -> u64 {
    medians.get(&thread).map_or(0, |ns| ns.saturating_mul(TIMES_MEDIAN))
}

fn ran_ns(span: &Span) -> u64 {
    let ns = |state: SpanState| span.states.0[state.index()];
    ns(SpanState::Cpu) + ns(SpanState::Of(State::FaultMinor)) + ns(SpanState::Of(State::Irq))
}

/// The usual length of each thread's busy periods, ns.
fn medians(sums: &[SpanDelta]) -> HashMap<ThreadKey, u64> {
    let mut histograms: HashMap<ThreadKey, Histogram> = HashMap::new();
    for sum in sums.iter().filter(|sum| sum.source == SpanSource::Busy) {
        let cell = Cell { count: sum.count, total_ns: sum.states.total_ns(), max_ns: sum.max_ns };
        histograms.entry(sum.thread).or_default().add_cell(sum.bucket, cell);
    }
    histograms.into_iter().map(|(thread, histogram)| (thread, histogram.quantile_ns(0.5))).collect()
}

#[cfg(test)]
mod tests {
    use wallprof_model::SpanStates;
    use wallprof_model::histogram::bucket_from_ns;

    use super::*;
    use wallprof_testkit::stacks::stack;

    const MS: u64 = 1_000_000;

    fn span(thread: u32, start_ms: u64, ms: u64, ran_ms: u64) -> Span {
        let mut states = SpanStates::default();
        states.0[SpanState::Cpu.index()] = ran_ms * MS;
        let (start, end) = (MonoNs(start_ms * MS), MonoNs((start_ms + ms) * MS));
        Span { thread: ThreadKey(thread), source: SpanSource::Busy, kind: "busy".into(), start, end, states }
    }

    fn usual(thread: u32, ns: u64) -> SpanDelta {
        let mut states = SpanStates::default();
        states.0[SpanState::Cpu.index()] = ns * 1_000;
        SpanDelta {
            thread: ThreadKey(thread),
            source: SpanSource::Busy,
            kind: "busy".into(),
            bucket: bucket_from_ns(ns),
            count: 1_000,
            max_ns: ns,
            states,
        }
    }

    fn sample(thread: u32, at_ms: u64, state: State) -> LateSample {
        let user = Some(StackId(at_ms));
        let (thread, source, at) = (ThreadKey(thread), SpanSource::Busy, MonoNs(at_ms * MS));
        LateSample { thread, source, at, state, ns: MS, user, kernel: None }
    }

    #[test]
    fn periods_of_much_running_time_have_the_samples_in_them() {
        let spans = [span(1, 100, 90, 80), span(1, 400, 60, 20), span(2, 100, 50, 50), span(1, 300, 9, 9)];
        let sums = [usual(1, 40_000), usual(2, 3 * MS)];
        let at =
            [(1, 99, State::User), (1, 120, State::User), (1, 150, State::Kernel), (1, 160, State::Runnable)];
        let samples: Vec<_> = at.into_iter().map(|(thread, at, state)| sample(thread, at, state)).collect();
        let resolve = |id: StackId| Ok::<_, ()>(stack(&[&format!("function_{}", id.0)]));
        let found = long_periods(&sums, &spans, &samples, resolve).expect("all stacks are there");
        let periods: Vec<_> =
            found.iter().map(|period| (period.thread.0, period.duration_ns() / MS)).collect();
        assert_eq!(periods, [(1, 90), (1, 60)], "neither the usual, nor the short one");
        assert_eq!(found[0].ran_ns, 80 * MS);
        assert!(found[0].is_running() && !found[1].is_running() && found[1].samples.is_empty());
        let sample = |(stack, ns): &(ResolvedStack, u64)| {
            (stack.frames[0].lines[0].symbol.as_deref().map(str::to_owned), *ns)
        };
        let found: Vec<_> = found[0].samples.iter().map(sample).collect();
        assert_eq!(found, [(Some("function_120".into()), MS), (Some("function_150".into()), MS)]);
    }

    #[test]
    fn sums_have_all_periods_of_buckets_that_are_long() {
        let long = |thread, ms| usual(thread, ms * MS);
        // Twenty times the usual length of thread 2 is some 60 ms.
        let sums =
            [usual(1, 40_000), usual(1, 9 * MS), long(1, 12), long(1, 12), usual(2, 3 * MS), long(2, 30)];
        let few = sums.map(|sum| SpanDelta { count: if sum.max_ns >= 9 * MS { 7 } else { 1_000 }, ..sum });
        let (bucket, max_ns) = (bucket_from_ns(12 * MS), 12 * MS);
        let total_ns = 2 * 1_000 * 12 * MS;
        assert_eq!(long_sums(&few), [LongSum { thread: ThreadKey(1), bucket, count: 14, total_ns, max_ns }]);
    }

    #[test]
    fn many_samples_keep_their_time() {
        let samples: Vec<_> = (100..300).map(|at| sample(1, at, State::User)).collect();
        let resolve = |id: StackId| Ok::<_, ()>(stack(&[&format!("function_{}", id.0)]));
        let found = long_periods(&[usual(1, 40_000)], &[span(1, 99, 250, 250)], &samples, resolve);
        let found = found.expect("all stacks are there");
        let ns: u64 = found[0].samples.iter().map(|(_, ns)| ns).sum();
        assert!((found[0].samples.len() <= MOST_STACKS) && ns == 200 * MS, "{ns} ns");
    }
}
