// SPDX-License-Identifier: Apache-2.0
//! `wallprof import --spans`: operations of the application, with the waits that the recording has of them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use wallprof_analysis::spans::{ThreadPauses, Unrecorded, divided, kept, sums};
use wallprof_model::{MonoNs, Span, SpanSource, ThreadKey};
use wallprof_recording::{Additions, Recording};

use super::row::{RowError, SpanRow};
use crate::failure::Failure;

/// Limits: 24 bytes a span, and a report that can be read.
const MAX_SPANS: usize = 10_000_000;
const MAX_KINDS: usize = 1_000;

/// The rows of all files, and what the recording knows of the threads.
#[derive(Default)]
pub struct SpanRows {
    /// By the kernel's thread id, which may have been used again.
    threads: HashMap<u32, Vec<Observed>>,
    pauses: HashMap<ThreadKey, ThreadPauses>,
    unrecorded: Unrecorded,
    kinds: BTreeMap<Arc<str>, Vec<Row>>,
    count: usize,
}

struct Observed {
    key: ThreadKey,
    start: MonoNs,
    end: MonoNs,
}

#[derive(Clone, Copy)]
struct Row {
    thread: ThreadKey,
    start: MonoNs,
    end: MonoNs,
}

impl SpanRows {
    /// Reads the threads, their ledgers and their stalls.
    pub fn of(recording: &Recording) -> Result<Self, Failure> {
        let unrecorded = Unrecorded::new(recording.info()?.clock);
        let mut rows = SpanRows { unrecorded, ..SpanRows::default() };
        for thread in recording.threads()? {
            let observed = Observed { key: thread.info.key, start: thread.start, end: thread.end };
            rows.threads.entry(thread.info.tid).or_default().push(observed);
        }
        for row in recording.ledger(..)? {
            rows.unrecorded.add_second(&row?);
        }
        recording.each_stall(|stall| {
            rows.pauses.entry(stall.thread).or_default().add(&stall);
            rows.unrecorded.add_stall(&stall);
        })?;
        rows.pauses.values_mut().for_each(ThreadPauses::finish);
        Ok(rows)
    }

    /// Takes a span of a recorded thread.
    pub fn add(&mut self, row: &SpanRow<'_>) -> Result<(), RowError> {
        let mut all = self.threads.get(&row.tid).into_iter().flatten();
        let found = all.rfind(|thread| thread.start <= row.end && thread.end >= row.start);
        let thread = found.ok_or_else(|| RowError::NoThread(row.tid.to_string()))?.key;
        if self.count >= MAX_SPANS {
            return Err(RowError::TooManySpans);
        }
        if self.kinds.len() >= MAX_KINDS && !self.kinds.contains_key(row.kind) {
            return Err(RowError::TooManyNames);
        }
        let new = Row { thread, start: row.start, end: row.end };
        match self.kinds.get_mut(row.kind) {
            Some(rows) => rows.push(new),
            None => drop(self.kinds.insert(row.kind.into(), vec![new])),
        }
        self.count += 1;
        Ok(())
    }

    /// Adds all spans, with their states.
    pub fn write(&self, to: &mut Additions) -> Result<(), Failure> {
        for (kind, rows) in &self.kinds {
            let spans: Vec<Span> = rows.iter().map(|row| self.span(kind, row)).collect();
            let all: Vec<&Span> = spans.iter().collect();
            let single: Vec<Span> =
                kept(&all).into_iter().map(|at| divided(&spans[at], &self.unrecorded)).collect();
            let single: Vec<&Span> = single.iter().collect();
            to.spans(kind, &single, &sums(&spans, &self.unrecorded))?;
        }
        Ok(())
    }

    fn span(&self, kind: &Arc<str>, row: &Row) -> Span {
        let states = match self.pauses.get(&row.thread) {
            Some(pauses) => pauses.states_of(row.start, row.end),
            None => ThreadPauses::default().states_of(row.start, row.end),
        };
        let Row { thread, start, end } = *row;
        Span { thread, source: SpanSource::Import, kind: Arc::clone(kind), start, end, states }
    }
}
