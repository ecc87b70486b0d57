// SPDX-License-Identifier: Apache-2.0
//! Emits everything that belongs to past seconds, in the order in which each event refers to earlier ones
//! only.

use std::collections::HashMap;
use std::time::Instant;

use wallprof_model::event::{DelayKind, KernelDelay, OwnerSample, Stall};
use wallprof_model::{ClockAnchor, Event, Loss, MonoNs, ThreadKey};
use wallprof_probe::bpf::{constants as c, delay_record, stall_record};

use super::waits::is_brief;
use super::{Latest, SECOND_NS, Session, SessionError};
use crate::kernel_side::KernelSide;
use crate::stalls::stalls_from_record;

/// A wait that has lasted this long is emitted before it ends.
const OPEN_AFTER_NS: u64 = 1_000_000_000;

/// Waits that are emitted from one flush to the next because their place is unknown, where other voluntary
/// waits are too many: half of what the recorder can afford in a second.
const FIRST_WAITS_EACH_FLUSH: u32 = 500;

/// Short waits of threads that hold a lock for which others wait, emitted from one flush to the next: as many
/// again.
const HOLDER_WAITS_EACH_FLUSH: u32 = 500;

/// Threads that ended unseen are searched for this often. The records of those that end now arrive in
/// between.
const LOOK_EVERY_NS: u64 = 16 * SECOND_NS;

/// What a flush has beside the ledgers and the stalls that have ended.
#[derive(Clone, Copy)]
pub(super) struct Flush {
    /// The sums of the kernel side's maps.
    pub sums: bool,
    /// Waits that have not ended; without them where [`Session::flush_rest`] follows.
    pub open_waits: bool,
}

impl<K: KernelSide> Session<K> {
    /// Emits the seconds up to `boundary`. `now` is the time up to which the rings were read.
    pub(super) fn flush(
        &mut self,
        boundary: u64,
        now: u64,
        flush: Flush,
        emit: &mut dyn FnMut(Event),
    ) -> Result<(), SessionError> {
        self.latest = Latest::default();
        self.follow_cpus(emit)?;
        self.take_snapshot(emit)?;
        // A thread that ended after the rings were read and before the snapshot reached it is in neither. What it last
        // did would count up to the boundary. Threads may have closed seconds in that time, too.
        self.kernel.drain_rings(&mut self.pending)?;
        let ended = std::mem::take(&mut self.pending.ended);
        for record in &ended {
            self.threads.update(record, emit);
        }
        self.take_seconds();
        self.emit_stacks(emit)?;
        let second = ((boundary + self.epoch_offset()) / SECOND_NS) as u32;
        // Before the stalls, which have the verdicts.
        let waits = if flush.sums { self.emit_samples(second, now, emit)? } else { Vec::new() };
        self.judge_waits(&waits, now);
        self.emit_stalls(now, emit);
        self.emit_delays(emit);
        self.quotas.flush(MonoNs(now), emit);
        if flush.open_waits {
            self.emit_open_waits(OPEN_AFTER_NS, emit)?;
        }
        self.send_verdicts(now);
        if flush.sums {
            self.emit_aggregates(second, emit)?;
            self.emit_spans(second, emit)?;
        }
        self.emit_marked(boundary, emit);
        self.emit_probed(now, emit);
        let offset = self.epoch_offset();
        for record in &ended {
            self.accounts.end(record, offset, emit);
            self.open.remove(&record.key);
            self.threads.end(record.key, now);
            self.places.end_thread(record.key);
        }
        if boundary / LOOK_EVERY_NS != self.flushed_until / LOOK_EVERY_NS {
            self.end_unseen_threads(now, emit);
        }
        self.threads.forget_ended(now);
        self.accounts.flush(boundary, offset, emit);
        self.emit_cost(emit)?;
        self.flushed_until = boundary.max(self.flushed_until).min(now);
        // After the stalls: a title that is read now is one of a wait that ends later.
        if let Some(titles) = &self.titles {
            titles.follow(self.threads.processes().collect());
        }
        self.follow_clock(emit);
        self.follow_counters(emit);
        Ok(())
    }

    /// The last record of a thread may have found a full ring.
    fn end_unseen_threads(&mut self, now: u64, emit: &mut dyn FnMut(Event)) {
        let kernel = &self.kernel;
        for key in self.accounts.end_unseen(&|tid| kernel.thread_exists(tid), emit) {
            self.open.remove(&key);
            self.threads.end(key, now);
            self.places.end_thread(key);
        }
    }

    /// Emits what is left after the last flush of a recording that counts no longer and ended at `end`. `open`
    /// are the waits that were open right before it.
    pub(super) fn flush_rest(
        &mut self,
        open: Vec<stall_record>,
        end: MonoNs,
        emit: &mut dyn FnMut(Event),
    ) -> Result<(), SessionError> {
        lose_stalls(std::mem::take(&mut self.pending.stalls).len() as u64, emit);
        self.add_open_waits(open, end, emit)?;
        self.emit_waits_still_open(end, emit);
        self.emit_samples(u32::MAX, end.0, emit)?;
        self.emit_aggregates(u32::MAX, emit)?;
        self.emit_spans(u32::MAX, emit)?;
        self.emit_marked(end.0, emit);
        self.emit_probed(end.0, emit);
        self.emit_noise(u64::MAX, emit)?;
        self.accounts.flush(end.0, self.epoch_offset(), emit);
        Ok(())
    }

    fn take_seconds(&mut self) {
        for second in std::mem::take(&mut self.pending.seconds) {
            self.accounts.close_second(&second);
        }
    }

    pub(super) fn follow_counters(&mut self, emit: &mut dyn FnMut(Event)) {
        if let Some(counters) = &mut self.counters {
            counters.follow(self.accounts.processes(), emit);
        }
        self.read_counters(emit);
    }

    pub(super) fn read_counters(&mut self, emit: &mut dyn FnMut(Event)) {
        if let Some(counters) = &mut self.counters {
            counters.read_when_due(&self.kernel, emit);
        }
    }

    /// A step of the wall clock is an event of its own, and moves the ends of seconds. It comes after the
    /// seconds before it, which are emitted under their old numbers.
    fn follow_clock(&mut self, emit: &mut dyn FnMut(Event)) {
        if let Some(anchor) = self.clock_step() {
            self.set_clock(anchor);
            emit(Event::Clock(anchor));
        }
    }

    fn set_clock(&mut self, anchor: ClockAnchor) {
        self.clock = anchor;
        self.kernel.set_epoch_offset(self.epoch_offset());
    }

    /// A CPU that has come online is recorded from now on. Before, only its switches were.
    fn follow_cpus(&mut self, emit: &mut dyn FnMut(Event)) -> Result<(), SessionError> {
        let came = self.kernel.follow_cpus()?;
        if came > 0 {
            self.follower.follow_cpus();
            emit(Event::loss(Loss::CpusCameOnline, came as u64));
        }
        Ok(())
    }

    pub(super) fn take_snapshot(&mut self, emit: &mut dyn FnMut(Event)) -> Result<(), SessionError> {
        self.take_snapshot_of(&mut |_| {}, emit)
    }

    /// Reads the threads with events since the last snapshot; the first snapshot after arming has all
    /// threads.
    pub(super) fn take_snapshot_of(
        &mut self,
        seen: &mut dyn FnMut(u32),
        emit: &mut dyn FnMut(Event),
    ) -> Result<(), SessionError> {
        let (accounts, threads, quotas) = (&mut self.accounts, &mut self.threads, &mut self.quotas);
        let places = &mut self.places;
        let mut known = self.follower.known();
        threads.follow_pods(emit);
        self.kernel.snapshot(&mut |record| {
            seen(record.key);
            if accounts.update(record) && record.kernel_thread == 0 {
                known.process(record.tgid, record.exec_id);
            }
            if record.kernel_thread == 0 {
                quotas.meet(record.tgid);
                places.follow_exec(record.key, record.exec_id);
            }
            threads.update(record, emit);
        })
    }

    pub(super) fn emit_stacks(&mut self, emit: &mut dyn FnMut(Event)) -> Result<(), SessionError> {
        let (now, until) = (self.kernel.now(), Instant::now());
        let stacks = &mut self.stacks;
        let mut known = self.follower.known();
        self.kernel.drain_stacks(&mut |id, record| stacks.emit(id, record, now, &mut known, emit))?;
        known.emitted_stacks_until(until);
        let changed = known.take_found();
        drop(known);
        if changed {
            self.follower.write_changes();
        }
        Ok(())
    }

    fn emit_stalls(&mut self, now: u64, emit: &mut dyn FnMut(Event)) {
        let (mut idle, mut others) = (0, 0);
        let samples = std::mem::take(&mut self.pending.holder_samples);
        self.owner_samples.add(samples, |id| self.stacks.id(id));
        for record in std::mem::take(&mut self.pending.stalls) {
            self.open.remove(&record.key);
            if self.threads.pid_of(record.key).is_none() {
                // A short-lived thread that ended after the rings were read and before the snapshot. Its own
                // record comes with the next reading.
                if record.end >= self.flushed_until {
                    self.pending.stalls.push(record);
                } else if !is_brief(&record) {
                    lose_stalls(1, emit);
                }
                continue;
            }
            self.meet_place(&record, now);
            if is_brief(&record) {
                continue;
            }
            for stall in self.stalls_of(&record) {
                if stall.is_idle() {
                    idle += 1
                } else {
                    others += 1
                }
                emit(Event::Stall(Box::new(stall)));
            }
        }
        self.owner_samples.forget_before(now);
        let next = self.controller.next(idle, others);
        self.kernel.set_thresholds(next.stall_ns, next.voluntary_ns);
    }

    /// Lets the kernel side know what was learned about places.
    pub(super) fn send_verdicts(&mut self, now: u64) {
        self.kernel.forget_places(&self.places.take_gone());
        self.kernel.set_place_verdicts(&self.places.take_unsent_verdicts(now));
        self.kernel.set_no_locks(&std::mem::take(&mut self.no_locks));
        self.kernel.allow_first_waits(FIRST_WAITS_EACH_FLUSH);
        self.kernel.allow_holder_waits(HOLDER_WAITS_EACH_FLUSH);
    }

    /// Emits the delays in the kernel of recorded threads.
    fn emit_delays(&mut self, emit: &mut dyn FnMut(Event)) {
        for record in std::mem::take(&mut self.pending.delays) {
            if self.threads.pid_of(record.key).is_some()
                && let Some(delay) = delay_from_record(&record)
            {
                emit(Event::KernelDelay(delay));
            }
        }
    }

    /// Emits waits that have not ended and are older than `older_than_ns`, each once.
    fn emit_open_waits(
        &mut self,
        older_than_ns: u64,
        emit: &mut dyn FnMut(Event),
    ) -> Result<(), SessionError> {
        let mut records = Vec::new();
        // 0 would be a look, which `meet_sleepers` takes.
        self.kernel.open_waits(older_than_ns.max(1), &mut |record| records.push(*record))?;
        if records.is_empty() {
            return Ok(());
        }
        self.emit_stacks(emit)?;
        self.name_waits(&mut records);
        for record in records {
            if self.threads.pid_of(record.key).is_some() {
                self.meet_place(&record, record.end);
                self.open.insert(record.key, record);
                // What was over at the wakeup comes with the end of the whole wait.
                let open = self.stalls_of(&record).into_iter().filter(|stall| stall.open);
                open.for_each(|stall| emit(Event::Stall(Box::new(stall))));
            }
        }
        Ok(())
    }

    /// Adds the waits of a recording that ended at `end` to those that were emitted as open before. What a thread
    /// waited for, and with which stacks, is in `before`, which was read while the recording counted: by now the
    /// thread may have gone on. How long the thread waited, and whether it was woken, is read now, as it was at
    /// the end.
    fn add_open_waits(
        &mut self,
        before: Vec<stall_record>,
        end: MonoNs,
        emit: &mut dyn FnMut(Event),
    ) -> Result<(), SessionError> {
        let mut waits: HashMap<_, _> =
            before.into_iter().map(|record| ((record.key, record.start), record)).collect();
        self.kernel.open_waits(self.min_stall_ns.max(1), &mut |now| {
            let wait = waits.entry((now.key, now.start)).or_insert(*now);
            let woken = c::STALL_WOKEN as u16;
            wait.flags = wait.flags & !woken | now.flags & woken;
            (wait.end, wait.waker) = (now.end, now.waker);
            (wait.runnable_ns, wait.blocked_ns) = (now.runnable_ns, now.blocked_ns);
        })?;
        let known = |record: &stall_record| {
            self.threads.pid_of(record.key).is_some()
                && end.0.saturating_sub(record.start) >= self.min_stall_ns
        };
        let mut records: Vec<_> = waits.into_values().filter(known).collect();
        self.emit_stacks(emit)?;
        self.name_waits(&mut records);
        for record in records {
            self.meet_place(&record, record.end);
            self.open.entry(record.key).or_insert(record);
        }
        Ok(())
    }

    /// Emits waits again, up to `end`, that were emitted as open and have not ended by then.
    fn emit_waits_still_open(&mut self, end: MonoNs, emit: &mut dyn FnMut(Event)) {
        for mut record in std::mem::take(&mut self.open).into_values() {
            let since = self.accounts.since(record.key);
            if since.is_none_or(|since| since > record.end) || record.start >= end.0 {
                continue;
            }
            move_end(&mut record, end.0);
            self.emit_stall(&record, emit);
        }
    }

    fn emit_stall(&mut self, record: &stall_record, emit: &mut dyn FnMut(Event)) {
        for stall in self.stalls_of(record) {
            emit(Event::Stall(Box::new(stall)));
        }
    }

    /// A command that the recorder starts waits for the start of the recording. That wait is not the
    /// command's own.
    fn is_held(&self, record: &stall_record) -> bool {
        record.start <= self.start.0
            && self.held.is_some_and(|held| self.threads.pid_of(record.key) == Some(held))
    }

    fn stalls_of(&mut self, record: &stall_record) -> Vec<Stall> {
        if self.is_held(record) {
            return Vec::new();
        }
        let mut stalls = stalls_from_record(record, self.min_stall_ns, self);
        for stall in &mut stalls {
            if let (Some(fault), Some(pid)) = (&mut stall.fault, self.threads.pid_of(record.key)) {
                self.fault_files.complete(pid, &record.fault, fault);
            }
            if let (Some(file), Some(pid)) = (&mut stall.file, self.threads.pid_of(record.key)) {
                self.waited_files.complete(pid, &record.fault, file);
            }
            if let Some(pid) = self.threads.pid_of(record.key) {
                self.peers.complete(pid, stall);
                self.file_locks.complete(pid, stall, |tid| self.threads.key_of_tid(tid));
            }
            stall.owner_sample = self.owner_sample(stall);
            if let Some(titles) = &self.titles {
                titles.complete(stall);
            }
        }
        stalls
    }

    /// What the owner of the lock ran while the thread waited for it.
    fn owner_sample(&self, stall: &Stall) -> Option<OwnerSample> {
        let owner = stall.lock.as_ref()?.owner.as_ref()?.key?;
        let woken = stall.end.0.saturating_sub(stall.runnable_ns);
        self.owner_samples.first_in(owner, stall.start.0..woken)
    }

    /// JIT-compiled code is named by the runtime that made it.
    pub(super) fn emit_jit_names(&self, emit: &mut dyn FnMut(Event)) {
        for (frame, lines) in self.follower.known().processes.jit_names() {
            emit(Event::Symbol { frame, lines });
        }
    }
}

fn lose_stalls(count: u64, emit: &mut dyn FnMut(Event)) {
    if count > 0 {
        emit(Event::loss(Loss::StallsOfUnknownThreads, count));
    }
}

/// Moves the end of an open wait to `end`. Up to there the thread slept or waited for a CPU as before. A
/// record that was made after `end` becomes shorter.
fn move_end(record: &mut stall_record, end: u64) {
    let waits_for_cpu = u64::from(record.flags) & (c::STALL_WOKEN | c::STALL_PREEMPTED) != 0;
    let part = if waits_for_cpu { &mut record.runnable_ns } else { &mut record.blocked_ns };
    *part =
        part.saturating_add(end.saturating_sub(record.end)).saturating_sub(record.end.saturating_sub(end));
    record.end = end;
}

fn delay_from_record(record: &delay_record) -> Option<KernelDelay> {
    let kind = match u64::from(record.kind) {
        c::DELAY_RECLAIM => DelayKind::Reclaim,
        c::DELAY_COMPACTION => DelayKind::Compaction,
        c::DELAY_LOCK if record.mmap_lock != 0 => DelayKind::MmapLock,
        c::DELAY_LOCK => DelayKind::KernelLock,
        _ => return None,
    };
    Some(KernelDelay {
        thread: ThreadKey(record.key),
        kind,
        start: MonoNs(record.start),
        end: MonoNs(record.end),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_wait_goes_on_asleep_or_runnable_as_it_was() {
        let mut asleep = stall_record { start: 1, end: 5, blocked_ns: 4, ..stall_record::default() };
        move_end(&mut asleep, 9);
        assert_eq!((asleep.end, asleep.blocked_ns, asleep.runnable_ns), (9, 8, 0));
        let flags = c::STALL_WOKEN as u16;
        let mut woken = stall_record { start: 1, end: 5, runnable_ns: 2, flags, ..stall_record::default() };
        move_end(&mut woken, 9);
        assert_eq!((woken.end, woken.blocked_ns, woken.runnable_ns), (9, 0, 6));
    }

    #[test]
    fn open_wait_ends_with_the_recording() {
        let mut asleep = stall_record { start: 1, end: 5, blocked_ns: 4, ..stall_record::default() };
        move_end(&mut asleep, 3);
        assert_eq!((asleep.end, asleep.blocked_ns), (3, 2));
        let flags = c::STALL_PREEMPTED as u16;
        let mut waiting = stall_record { start: 1, end: 5, runnable_ns: 1, flags, ..stall_record::default() };
        move_end(&mut waiting, 2);
        assert_eq!((waiting.end, waiting.runnable_ns), (2, 0));
    }

    #[test]
    fn wait_for_the_lock_of_the_memory_map_has_its_own_kind() {
        let record = |kind: u64, mmap_lock| delay_record {
            key: 3,
            start: 5,
            end: 9,
            kind: kind as u32,
            mmap_lock,
            ..delay_record::default()
        };
        let kind = |kind, mmap_lock| delay_from_record(&record(kind, mmap_lock)).map(|delay| delay.kind);
        assert_eq!(kind(c::DELAY_LOCK, 1), Some(DelayKind::MmapLock));
        assert_eq!(kind(c::DELAY_LOCK, 0), Some(DelayKind::KernelLock));
        assert_eq!(kind(c::DELAY_RECLAIM, 0), Some(DelayKind::Reclaim));
        assert_eq!(kind(c::DELAYS, 0), None);
        let delay = delay_from_record(&record(c::DELAY_COMPACTION, 0)).expect("compaction");
        assert_eq!((delay.thread, delay.start, delay.end), (ThreadKey(3), MonoNs(5), MonoNs(9)));
    }
}
