// SPDX-License-Identifier: Apache-2.0
//! Spans that lasted longer than the budget of their kind.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use wallprof_model::histogram::{bucket_from_ns, range_from_bucket};
use wallprof_model::profile::Thread;
use wallprof_model::{MonoNs, Span, SpanBudgets, SpanDelta, SpanStates, ThreadKey};

/// Spans of a kind whose times are kept, to find the stalls in them: the longest.
const MOST: usize = 10_000;

/// The spans of one kind over its budget, in processes of one name.
#[derive(Clone, Debug)]
pub struct OverBudget {
    pub kind: Arc<str>,
    pub process: Arc<str>,
    pub budget_ns: u64,
    /// Of all spans of the kind so many were over it, and of these some were kept one by one.
    pub all: u64,
    pub count: u64,
    pub kept: u64,
    /// By how much they were over it.
    pub excess_ns: u64,
    pub longest_ns: u64,
    /// Of the kept ones.
    pub states: SpanStates,
    pub spans: Vec<(ThreadKey, MonoNs, MonoNs)>,
}

/// Of a recording with these sums and single spans, which come longest first. Of equal kinds in processes of one
/// name there is one. Kinds without a span over the budget have none.
pub fn over_budget<'s>(
    budgets: &SpanBudgets,
    threads: &[Thread],
    sums: &[SpanDelta],
    spans: impl IntoIterator<Item = &'s Span>,
) -> Vec<OverBudget> {
    if budgets.is_empty() {
        return Vec::new();
    }
    let processes: HashMap<ThreadKey, &str> =
        threads.iter().map(|thread| (thread.info.key, thread.info.process.as_str())).collect();
    let mut found: BTreeMap<(&str, Arc<str>), OverBudget> = BTreeMap::new();
    let mut of = |thread: ThreadKey, kind: &Arc<str>, add: &mut dyn FnMut(&mut OverBudget)| {
        let (Some(process), Some(budget_ns)) = (processes.get(&thread), budgets.get(&**kind)) else { return };
        let entry = found.entry((process, Arc::clone(kind)));
        add(entry.or_insert_with(|| OverBudget::new(kind, process, *budget_ns)));
    };
    for sum in sums {
        // Of a bucket with the budget in it, it is not known how many were over it: those that are kept.
        let (from_ns, _) = range_from_bucket(sum.bucket);
        of(sum.thread, &sum.kind, &mut |over| {
            over.all = over.all.saturating_add(sum.count);
            if from_ns > over.budget_ns {
                over.count = over.count.saturating_add(sum.count);
                let allowed_ns = sum.count.saturating_mul(over.budget_ns);
                over.excess_ns =
                    over.excess_ns.saturating_add(sum.states.total_ns().saturating_sub(allowed_ns));
                over.longest_ns = over.longest_ns.max(sum.max_ns);
            }
        });
    }
    for span in spans {
        let ns = span.duration_ns();
        of(span.thread, &span.kind, &mut |over| {
            if ns > over.budget_ns {
                over.kept += 1;
                if range_from_bucket(bucket_from_ns(ns)).0 <= over.budget_ns {
                    over.count = over.count.saturating_add(1);
                    over.excess_ns = over.excess_ns.saturating_add(ns - over.budget_ns);
                }
                over.longest_ns = over.longest_ns.max(ns);
                over.states.add(&span.states);
                if over.spans.len() < MOST {
                    over.spans.push((span.thread, span.start, span.end));
                }
            }
        });
    }
    let mut found: Vec<OverBudget> = found.into_values().collect();
    found.iter_mut().for_each(|over| over.count = over.count.max(over.kept));
    found.retain(|over| over.count > 0);
    found
}

impl OverBudget {
    fn new(kind: &Arc<str>, process: &str, budget_ns: u64) -> Self {
        OverBudget {
            kind: Arc::clone(kind),
            process: process.into(),
            budget_ns,
            all: 0,
            count: 0,
            kept: 0,
            excess_ns: 0,
            longest_ns: 0,
            states: SpanStates::default(),
            spans: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use wallprof_model::{SpanSource, SpanState};

    use super::*;
    use crate::weights::fixture::thread;

    const US: u64 = 1_000;

    fn span(key: u32, us: u64) -> Span {
        let mut states = SpanStates::default();
        states.0[SpanState::Cpu.index()] = us * US;
        let (start, end) = (MonoNs(0), MonoNs(us * US));
        Span { thread: ThreadKey(key), source: SpanSource::Code, kind: "order".into(), start, end, states }
    }

    fn sum(key: u32, us: u64, count: u64) -> SpanDelta {
        let mut states = SpanStates::default();
        states.0[SpanState::Cpu.index()] = us * US * count;
        SpanDelta {
            thread: ThreadKey(key),
            source: SpanSource::Code,
            kind: "order".into(),
            bucket: bucket_from_ns(us * US),
            count,
            max_ns: us * US,
            states,
        }
    }

    #[test]
    fn spans_are_counted_by_kind_and_process() {
        let budgets = SpanBudgets::from([("order".into(), 500 * US)]);
        let threads = [1, 2].map(|key| thread(key, &format!("thread-{key}")));
        // The bucket of 505 µs begins below the budget.
        let sums = [sum(1, 20, 1_000), sum(1, 505, 2), sum(2, 900, 3)];
        let spans = [span(2, 900), span(1, 505), span(1, 500), span(1, 20)];
        let found = over_budget(&budgets, &threads, &sums, &spans);
        assert_eq!(found.len(), 1);
        let over = &found[0];
        // One of the two of 505 µs was kept.
        assert_eq!((over.all, over.count, over.kept), (1_005, 4, 2), "{over:?}");
        assert_eq!((over.excess_ns, over.longest_ns), ((3 * 400 + 5) * US, 900 * US));
        assert_eq!(over.states.total_ns(), 1_405 * US);
        let keys: Vec<u32> = over.spans.iter().map(|(thread, ..)| thread.0).collect();
        assert_eq!(keys, [2, 1]);
    }

    #[test]
    fn other_kinds_and_spans_within_the_budget_are_none() {
        let (threads, sums) = ([thread(1, "thread-1")], [sum(1, 20, 1_000)]);
        let found = |kind: &str, us: u64| {
            let budgets = SpanBudgets::from([(kind.to_owned(), us * US)]);
            over_budget(&budgets, &threads, &sums, &[span(1, 20)]).len()
        };
        assert_eq!((found("order", 20), found("order", 19), found("busy", 1)), (0, 1, 0));
        assert!(over_budget(&SpanBudgets::new(), &threads, &sums, &[span(1, 20)]).is_empty());
    }
}
