// SPDX-License-Identifier: Apache-2.0
//! The spans that are kept one by one, beside the sums of all.

use std::collections::HashMap;

use wallprof_model::Span;

/// Of each kind the slowest of each second, the slowest of all, and about as many of the others.
const SLOWEST_OF_SECOND: usize = 4;
const SLOWEST: usize = 2_000;
const OTHERS: usize = 2_000;

const NS_PER_SECOND: u64 = 1_000_000_000;

/// The positions of the spans of one kind that are kept, in order.
pub fn kept(spans: &[&Span]) -> Vec<usize> {
    let mut by_duration: Vec<usize> = (0..spans.len()).collect();
    by_duration.sort_by_key(|&at| std::cmp::Reverse(spans[at].duration_ns()));
    let mut of_second: HashMap<u64, usize> = HashMap::new();
    let mut kept: Vec<usize> = Vec::new();
    for (rank, &at) in by_duration.iter().enumerate() {
        let in_second = of_second.entry(spans[at].end.0 / NS_PER_SECOND).or_default();
        *in_second += 1;
        if rank < SLOWEST || *in_second <= SLOWEST_OF_SECOND {
            kept.push(at);
        }
    }
    // By rank, so that each duration is among them as often as among all.
    let step = (spans.len() / OTHERS).max(1);
    kept.extend(by_duration.iter().step_by(step));
    kept.sort_unstable();
    kept.dedup();
    kept
}

#[cfg(test)]
mod tests {
    use wallprof_model::{MonoNs, SpanSource, SpanStates, ThreadKey};

    use super::*;

    fn span(start: u64, ns: u64) -> Span {
        Span {
            thread: ThreadKey(1),
            source: SpanSource::Import,
            kind: "order".into(),
            start: MonoNs(start),
            end: MonoNs(start + ns),
            states: SpanStates::default(),
        }
    }

    #[test]
    fn few_spans_are_all_kept() {
        let spans: Vec<Span> = (0..100).map(|at| span(at * 10, at)).collect();
        assert_eq!(kept(&spans.iter().collect::<Vec<_>>()).len(), 100);
    }

    #[test]
    fn of_many_the_slowest_of_each_second_and_a_part_of_the_others_are_kept() {
        let mut spans: Vec<Span> = (0..50_000).map(|at| span(at * 1_000_000, 100 + at % 7)).collect();
        // The one span of a second without others is no slower than they are.
        spans.push(span(90 * NS_PER_SECOND, 1));
        spans.push(span(70 * NS_PER_SECOND, 5_000));
        let kept = kept(&spans.iter().collect::<Vec<_>>());
        assert!(kept.len() < 5_000, "{}", kept.len());
        assert!(kept.contains(&50_000) && kept.contains(&50_001));
        let short = kept.iter().filter(|&&at| spans[at].duration_ns() == 100).count();
        assert!((200..400).contains(&short), "a seventh of the others: {short}");
    }
}
