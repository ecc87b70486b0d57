// SPDX-License-Identifier: Apache-2.0
//! The spans that a stall lies in.

use std::collections::HashMap;

use wallprof_model::profile::StallRecord;
use wallprof_model::{Span, ThreadKey};

/// Single spans by thread and time.
#[derive(Debug, Default)]
pub struct SpansAround {
    threads: HashMap<ThreadKey, Vec<Placed>>,
}

#[derive(Debug)]
struct Placed {
    id: u64,
    span: Span,
    /// The latest end of this span and all that started before it.
    latest_end: u64,
}

impl SpansAround {
    pub fn new(spans: impl IntoIterator<Item = (u64, Span)>) -> Self {
        let mut threads: HashMap<ThreadKey, Vec<Placed>> = HashMap::new();
        for (id, span) in spans {
            let latest_end = span.end.0;
            threads.entry(span.thread).or_default().push(Placed { id, span, latest_end });
        }
        for placed in threads.values_mut() {
            placed.sort_by_key(|placed| (placed.span.start, std::cmp::Reverse(placed.span.end), placed.id));
            let mut latest = 0;
            for placed in placed {
                latest = latest.max(placed.span.end.0);
                placed.latest_end = latest;
            }
        }
        SpansAround { threads }
    }

    /// The spans of the thread in which the stall began, the innermost first.
    pub fn of(&self, stall: &StallRecord) -> Vec<(u64, Span)> {
        let Some(placed) = self.threads.get(&stall.thread) else { return Vec::new() };
        let at = stall.start;
        let started = &placed[..placed.partition_point(|placed| placed.span.start <= at)];
        let back = started.iter().rev().take_while(|placed| placed.latest_end > at.0);
        back.filter(|placed| placed.span.end > at).map(|placed| (placed.id, placed.span.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use wallprof_model::{MonoNs, SpanSource, SpanStates, StallReason};

    use super::*;

    fn span(thread: u32, start: u64, end: u64) -> Span {
        Span {
            thread: ThreadKey(thread),
            source: SpanSource::Code,
            kind: "order".into(),
            start: MonoNs(start),
            end: MonoNs(end),
            states: SpanStates::default(),
        }
    }

    #[test]
    fn a_stall_lies_in_the_spans_in_which_it_began_the_innermost_first() {
        let spans =
            [span(1, 100, 200), span(1, 120, 150), span(1, 130, 135), span(1, 200, 300), span(2, 0, 900)];
        let around = SpansAround::new((1..).zip(spans));
        let of = |thread, start| -> Vec<u64> {
            let stall = StallRecord::new(1, ThreadKey(thread), StallReason::Preempted, MonoNs(start), 1_000);
            around.of(&stall).into_iter().map(|(id, _)| id).collect()
        };
        assert_eq!(of(1, 99), [0; 0]);
        assert_eq!(of(1, 100), [1]);
        assert_eq!(of(1, 134), [3, 2, 1]);
        assert_eq!(of(1, 140), [2, 1]);
        assert_eq!(of(1, 160), [1], "the spans before it are over");
        assert_eq!(of(1, 200), [4], "a span ends where the next one starts");
        assert_eq!(of(1, 300), [0; 0]);
        assert_eq!(of(2, 500), [5]);
        assert_eq!(of(3, 500), [0; 0]);
    }
}
