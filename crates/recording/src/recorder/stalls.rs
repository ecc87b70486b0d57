// SPDX-License-Identifier: Apache-2.0
//! Stalls from the event to the row: open ones and their rows, and the judgement of the size budget.

use wallprof_model::event::{OwnerSample, Stall, Waker};
use wallprof_model::{StackId, StallKind};

use super::{Recorder, STALLS_FOLDED};
use crate::budget::{self, Candidate};
use crate::ids::UNKNOWN_REFERENCE;
use crate::pending::StallRow;

/// Limit on the threads that had the CPU during one stall. The first ones had it longest.
const MAX_RAN_INSTEAD: usize = 64;

impl Recorder {
    /// Rewrites the stall's ids to rows. An open stall gets its row at once, which later events of it
    /// replace.
    pub(super) fn stall(&mut self, mut stall: Box<Stall>) {
        let Some(thread) = self.ids.thread(stall.thread) else { return };
        if let Some(kept) = &mut self.kept {
            kept.expect(thread, stall.thread);
        }
        stall.thread.0 = thread;
        stall.user = self.ids.stack(stall.user).map(stack_id);
        stall.kernel = self.ids.stack(stall.kernel).map(stack_id);
        if let Some(waker) = &mut stall.waker {
            waker.user = self.ids.stack(waker.user).map(stack_id);
            waker.kernel = self.ids.stack(waker.kernel).map(stack_id);
        }
        let sample = stall.owner_sample.take();
        stall.owner_sample = sample.and_then(|sample| {
            Some(OwnerSample { user: stack_id(self.ids.stack(Some(sample.user))?), ..sample })
        });
        let row = self.row_of_open_stall(&stall);
        self.pending.candidates.push(Candidate { stall, row });
    }

    pub(super) fn row_of_open_stall(&mut self, stall: &Stall) -> Option<u64> {
        let key = (stall.thread.0, stall.kind);
        let known =
            self.ids.open_stalls.get(&key).filter(|(start, _)| *start == stall.start).map(|open| open.1);
        if stall.open {
            let row = known.unwrap_or_else(|| self.new_stall_row());
            let before = self.ids.open_stalls.insert(key, (stall.start, row));
            if let Some((_, before)) = before
                && before != row
            {
                self.close_stall(before);
            }
            return Some(row);
        }
        if known.is_some() {
            self.ids.open_stalls.remove(&key);
        }
        known
    }

    /// Closes the stalls of a thread that has ended.
    pub(super) fn close_stalls_of(&mut self, thread: u32) {
        if self.window.is_none() {
            return;
        }
        for kind in [StallKind::OffCpu, StallKind::Fault] {
            if let Some((_, id)) = self.ids.open_stalls.remove(&(thread, kind)) {
                self.close_stall(id);
            }
        }
    }

    /// Closes an open stall of which no further event will come.
    pub(super) fn close_stall(&mut self, id: u64) {
        let Some(window) = &mut self.window else { return };
        window.generations.close_stall(id);
        window.held.release(id, &mut self.ids, &mut self.tree, &mut self.texts);
    }

    pub(super) fn new_stall_row(&mut self) -> u64 {
        self.written.stalls += 1;
        self.next_stall += 1;
        self.next_stall - 1
    }

    /// Decides which stalls are kept, and counts the losses.
    pub(super) fn settle(&mut self) {
        let unknown = std::mem::take(&mut self.ids.unknown);
        self.pending.lose(UNKNOWN_REFERENCE, unknown);
        if self.pending.candidates.is_empty() {
            return;
        }
        let allowance = self.budget.allowance(
            self.last.0.saturating_sub(self.start.0),
            self.last.0.saturating_sub(self.decided.0),
            self.database.used_bytes(),
        );
        self.decided = self.last;
        let candidates = std::mem::take(&mut self.pending.candidates);
        let mut division = budget::divide(candidates, allowance);
        division.kept.sort_by_key(|candidate| candidate.stall.start);
        for candidate in division.kept {
            let row = self.stall_row(candidate);
            self.note_open(&row);
            self.pending.stalls.push(row);
        }
        for stall in &division.folded {
            self.pending.fold(stall);
        }
        self.pending.lose(STALLS_FOLDED, division.folded.len() as u64);
        self.written.folded += division.folded.len() as u64;
    }

    pub(super) fn stall_row(&mut self, candidate: Candidate) -> StallRow {
        let Candidate { stall, row } = candidate;
        let mut ran_instead = Vec::with_capacity(stall.ran_instead.len().min(MAX_RAN_INSTEAD));
        for ran in stall.ran_instead.iter().take(MAX_RAN_INSTEAD) {
            ran_instead.push((self.mention(&ran.thread), ran.ns));
        }
        let id = row.unwrap_or_else(|| self.new_stall_row());
        if let Some(kept) = &mut self.kept {
            kept.add(id, &stall);
        }
        StallRow {
            id,
            replaces: row.is_some(),
            comm: self.text(&stall.comm),
            syscall: self.optional_text(stall.syscall.as_deref()),
            waker: stall.waker.as_ref().and_then(|waker| self.stall_waker(waker)),
            lock_owner: stall.lock.as_ref().and_then(|lock| Some(self.mention(lock.owner.as_ref()?))),
            fault: stall.fault.as_ref().map(|fault| {
                let file = fault.file.as_deref().map(|file| self.text(file));
                (fault.clone(), file)
            }),
            peer: stall.peer.as_ref().map(|peer| {
                let end = |end: Option<std::net::SocketAddr>| end.map(|end| end.to_string());
                let comm = peer.process.as_ref().map(|process| process.comm.as_str());
                let (local, remote) = (end(peer.local), end(peer.remote));
                let texts = [local.as_deref(), remote.as_deref(), comm].map(|text| self.optional_text(text));
                (peer.clone(), texts)
            }),
            word: stall
                .word
                .as_ref()
                .map(|word| (self.text(&word.source.symbol), self.text(&word.source.module), word.value)),
            file: stall.file.as_ref().map(|file| (self.text(&file.path), file.offset)),
            ran_instead,
            stall,
        }
    }

    /// Keeps the rows that an open stall refers to, however long it lasts.
    pub(super) fn note_open(&mut self, row: &StallRow) {
        let Some(window) = &mut self.window else { return };
        // No further event comes of a stall that was taken together with its thread's end.
        let known = self.ids.open_stalls.get(&(row.stall.thread.0, row.stall.kind));
        let goes_on = row.stall.open && known.is_some_and(|(_, id)| *id == row.id);
        if goes_on {
            window.held.hold(row, &mut self.ids, &mut self.tree, &mut self.texts);
        } else if row.replaces {
            window.held.release(row.id, &mut self.ids, &mut self.tree, &mut self.texts);
        }
        if row.replaces {
            window.generations.wrote_stall(row.id, goes_on);
        }
    }

    pub(super) fn stall_waker(&mut self, waker: &Waker) -> Option<u32> {
        Some(self.mention(waker.thread.as_ref()?))
    }
}

fn stack_id(node: u32) -> StackId {
    StackId(u64::from(node))
}
