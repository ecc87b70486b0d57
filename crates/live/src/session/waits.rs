// SPDX-License-Identifier: Apache-2.0
//! What waits mean while they are recorded: rules, names, and what is learned from who ends them.

use std::sync::Arc;

use wallprof_meaning::waits::Link;
use wallprof_model::event::PlaceVerdict;
use wallprof_model::{Event, Meaning, Reason};
use wallprof_probe::bpf::{constants as c, stall_record};
use wallprof_probe::reasons::listed_syscall_name;

use super::aggregates::WaitSample;
use super::{Session, SessionError, learned_reason};
use crate::kernel_side::KernelSide;
use crate::places::{MetWait, Waits};
use crate::stalls::timed_out;

impl<K: KernelSide> Session<K> {
    /// Looks at the threads that sleep already: a lock has waiters before the first of them wakes, and a rule
    /// about a place holds from the start. Their waits are emitted later, if they last: this look reports none.
    pub(super) fn meet_sleepers(&mut self, emit: &mut dyn FnMut(Event)) -> Result<(), SessionError> {
        let mut records = Vec::new();
        self.kernel.open_waits(0, &mut |record| records.push(*record))?;
        self.emit_stacks(emit)?;
        self.name_waits(&mut records);
        for record in records {
            self.meet_place(&record, record.end);
        }
        let now = self.kernel.now().0;
        self.send_verdicts(now);
        Ok(())
    }

    /// Judges places by the waits since the last flush: their sums, and those that were emitted one by one.
    pub(super) fn judge_waits(&mut self, samples: &[WaitSample], now: u64) {
        let mut records = std::mem::take(&mut self.pending.stalls);
        for sample in samples {
            self.ask_rules(sample.key.user_stack, sample.key.kernel_stack);
        }
        self.name_waits(&mut records);
        for sample in samples {
            let (thread, stack) = (sample.key.key, sample.key.user_stack);
            if self.ask_rules(stack, sample.key.kernel_stack).is_none()
                && let Some(spot) = self.spot(thread, sample.reason, stack)
            {
                let WaitSample { waker, ns, count, .. } = *sample;
                self.places.add(Waits { thread, spot, stack, waker, ns, count });
            }
        }
        // Others follow later: their threads are not known yet.
        for record in &records {
            if self.threads.pid_of(record.key).is_some() && !is_brief(record) {
                self.add_single(record);
            }
        }
        self.pending.stalls = records;
        let waits = self.stacks.waits_mut();
        self.places.judge(now, &mut |wait, others| waits.depth(wait, others));
    }

    fn add_single(&mut self, record: &stall_record) {
        let Some(reason) = learned_reason(record) else { return };
        if self.ask_rules(record.user_stack, record.kernel_stack).is_none()
            && let Some(spot) = self.spot(record.key, reason, record.user_stack)
        {
            let link = self.link(record);
            self.places.add_single(spot, record.user_stack, link);
        }
    }

    fn link(&self, record: &stall_record) -> Link {
        let flag = |flag: u64| u64::from(record.flags) & flag != 0;
        let by_thread = flag(c::STALL_WOKEN) && !self.stacks.is_interrupt(record.waker_kernel_stack);
        let waker = by_thread.then(|| self.threads.key_of_tid(record.waker.tid)).flatten();
        let blocked_ns = record.end.saturating_sub(record.start).saturating_sub(record.runnable_ns);
        Link {
            thread: record.key,
            start: record.start,
            woken: record.start + blocked_ns,
            end: record.end,
            waker: waker.map(|thread| thread.0),
            timed_out: timed_out(record),
        }
    }

    /// Names what the waits of these records are known by. Those that seemed to be for a lock, and are for none by their
    /// functions, get another reason.
    pub(super) fn name_waits(&mut self, records: &mut [stall_record]) {
        for record in &*records {
            self.ask_rules(record.user_stack, record.kernel_stack);
        }
        // The lock is not held while files are read: the follower would learn of new processes too late.
        let follower = &self.follower;
        self.stacks.name_waits(&mut |id| follower.known().processes.module_file(id));
        for record in records {
            if is_lock_by_value(record) && self.stacks.waits_mut().is_no_lock(record.user_stack) {
                self.no_locks.push(record.place);
                set_no_lock(record);
            }
        }
    }

    fn ask_rules(&mut self, user_stack: u64, kernel_stack: u64) -> Option<Arc<Meaning>> {
        self.stacks.waits_mut().ask_rules(user_stack, kernel_stack)
    }

    /// Notes the place of a wait.
    pub(super) fn meet_place(&mut self, record: &stall_record, now: u64) {
        let Some(reason) = learned_reason(record) else { return };
        let ruled = self.ask_rules(record.user_stack, record.kernel_stack);
        let meaning = self.by_word_or_rule(record, ruled.as_ref());
        let spot = self.spot(record.key, reason, record.user_stack);
        let ruled = meaning.map(|meaning| match meaning.idle {
            true => PlaceVerdict::Idle,
            false => PlaceVerdict::NotIdle,
        });
        if record.place != 0 {
            let stack = record.user_stack;
            let in_epoll = listed_syscall_name(record.syscall).is_some_and(|name| name.starts_with("epoll_"));
            self.places.meet(record.place, record.key, MetWait { spot, stack, in_epoll, ruled }, now);
        }
    }
}

/// Whether nothing but its value says that a wait is for a lock.
fn is_lock_by_value(record: &stall_record) -> bool {
    let flags = u64::from(record.flags);
    let is_lock = flags & c::STALL_LOCK != 0 && flags & (c::STALL_OWNER | c::STALL_PREEMPTED) == 0;
    is_lock && record.place != 0 && record.reason == Reason::Lock.code()
}

/// The wait of a futex that is no lock. The kernel side has not numbered its place.
fn set_no_lock(record: &mut stall_record) {
    record.reason = Reason::Wait.code();
    record.flags &= !(c::STALL_LOCK as u16);
    (record.lock_address, record.place) = (0, 0);
}

/// Whether a wait is too short for a stall, and was emitted so that its place is known.
pub(super) fn is_brief(record: &stall_record) -> bool {
    u64::from(record.flags) & c::STALL_BRIEF != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_that_is_for_a_lock_by_its_value_alone_can_be_for_none() {
        let lock = stall_record {
            reason: Reason::Lock.code(),
            flags: c::STALL_LOCK as u16,
            lock_address: 0x7000,
            place: 9,
            ..stall_record::default()
        };
        assert!(is_lock_by_value(&lock));
        let owned = stall_record { flags: (c::STALL_LOCK | c::STALL_OWNER) as u16, ..lock };
        assert!(!is_lock_by_value(&owned), "memory names its owner");
        assert!(!is_lock_by_value(&stall_record { place: 0, ..lock }), "its value is that of no other wait");
        assert!(!is_lock_by_value(&stall_record { reason: Reason::Poll.code(), ..lock }));
        let mut wait = lock;
        set_no_lock(&mut wait);
        assert_eq!((wait.reason, wait.flags, wait.lock_address), (Reason::Wait.code(), 0, 0));
        assert!(!is_lock_by_value(&wait));
    }
}
