// SPDX-License-Identifier: Apache-2.0
//! Which stalls raise no severity: waits that are no lateness, and, where all threads are watched, those of
//! threads that do next to nothing, of the kernel, of wallprof, and of young processes.
//!
//! Pure. They are counted all the same, as `info`.

use wallprof_analysis::Class;
use wallprof_model::event::{LedgerDelta, Stall};
use wallprof_model::{EpochSecond, Reason, ThreadInfo};

/// The name of wallprof's own processes.
const OWN_PROCESS: &str = "wallprof";
/// A process younger than this may be a command that some script runs.
const YOUNG_NS: u64 = 1_000_000_000;
/// A thread is idle that neither ran, nor waited for locks, disks or memory, for a hundredth of its recent
/// time: an average over some ten seconds, in which each second weighs a tenth less than the one after it.
const FADING: f64 = 0.9;
/// Seconds that can come after a later one: of a thread that slept.
const STEP_SECONDS: u32 = 15;
/// A hundredth of each second: 10 ms, in the sum of all weights.
const IDLE_NS: f64 = 1e8;

/// What matters of a thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Relevance {
    is_own_or_the_kernels: bool,
    start_boot_ns: u64,
    /// Of running and such waits, fading.
    recent_ns: f64,
    second: EpochSecond,
}

impl Relevance {
    pub fn of(info: &ThreadInfo) -> Self {
        Relevance {
            is_own_or_the_kernels: is_own_or_the_kernels(info),
            start_boot_ns: info.start_boot_ns,
            recent_ns: 0.0,
            second: EpochSecond(0),
        }
    }

    /// The process has another name: a command that wallprof starts is called `wallprof` before its exec.
    pub fn rename(&mut self, info: &ThreadInfo) {
        self.is_own_or_the_kernels = is_own_or_the_kernels(info);
    }

    /// Takes a second of the thread.
    pub fn add(&mut self, delta: &LedgerDelta) {
        // The clock was set back where the second is long past.
        if delta.second.0 + STEP_SECONDS < self.second.0 {
            self.second = EpochSecond(delta.second.0.saturating_sub(1));
        }
        let seconds = delta.second.0.saturating_sub(self.second.0);
        self.recent_ns = self.recent_ns * FADING.powi(seconds.min(1_000) as i32) + active_ns(delta) as f64;
        self.second = self.second.max(delta.second);
    }

    /// Whether a late stall in this second concerns a user who watches all threads.
    pub fn matters(&self, stall: &Stall, now: EpochSecond) -> bool {
        // The clocks differ by the time that the machine was suspended: then the age is not known.
        let age_ns = stall.start.0.checked_sub(self.start_boot_ns);
        let is_young = self.start_boot_ns > 0 && age_ns.is_some_and(|age_ns| age_ns < YOUNG_NS);
        let seconds = now.0.saturating_sub(self.second.0).min(1_000) as i32;
        let active_ns = self.recent_ns * FADING.powi(seconds) + stall.late_ns() as f64;
        !self.is_own_or_the_kernels && !is_young && active_ns >= IDLE_NS
    }
}

fn is_own_or_the_kernels(info: &ThreadInfo) -> bool {
    info.kernel_thread || info.process == OWN_PROCESS
}

/// Whether a stall is lateness, and no wait for data or an answer, which may be idleness.
pub(crate) fn is_lateness(stall: &Stall) -> bool {
    Class::of_stall(stall.reason, stall.is_idle(), stall.meaning.as_deref()) == Class::Late
}

/// The time in which a thread ran, or waited for what it needed. Waits for a CPU are left out: on a full
/// machine each tick of an idle service has them.
fn active_ns(delta: &LedgerDelta) -> u64 {
    const LATE: [Reason; 4] = [Reason::Lock, Reason::Disk, Reason::Memory, Reason::Stopped];
    let late = LATE.map(|reason| delta.blocked_ns[usize::from(reason.code())]);
    let others = [delta.on_cpu_ns, delta.fault_major_ns];
    late.into_iter().chain(others).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_model::{MonoNs, StallReason, ThreadKey};

    const MS: u64 = 1_000_000;

    fn info() -> ThreadInfo {
        ThreadInfo {
            start_boot_ns: 500 * MS,
            ..ThreadInfo::new(ThreadKey(1), (1, "redis-server"), (1, "redis-server"))
        }
    }

    #[test]
    fn waits_for_a_cpu_do_not_make_an_idle_thread_matter() {
        let mut relevance = running(MS);
        let mut delta = LedgerDelta::new(ThreadKey(1), EpochSecond(130));
        delta.runnable_ns = 200 * MS;
        relevance.add(&delta);
        assert!(!relevance.matters(&late(9 * MS), EpochSecond(130)));
    }

    fn ran(relevance: &mut Relevance, second: u32, ns: u64) {
        let mut delta = LedgerDelta::new(ThreadKey(1), EpochSecond(second));
        delta.on_cpu_ns = ns;
        relevance.add(&delta);
    }

    fn late(ns: u64) -> Stall {
        Stall::new(ThreadKey(1), StallReason::Runnable, MonoNs(60_000 * MS), ns)
    }

    /// After half a minute in which it ran for so long each second.
    fn running(ns: u64) -> Relevance {
        let mut relevance = Relevance::of(&info());
        (100..130).for_each(|second| ran(&mut relevance, second, ns));
        relevance
    }

    #[test]
    fn a_thread_that_runs_matters_and_an_idle_one_does_not() {
        let now = EpochSecond(130);
        assert!(running(12 * MS).matters(&late(MS), now));
        assert!(!running(2 * MS).matters(&late(MS), now));
        assert!(!running(12 * MS).matters(&late(MS), EpochSecond(160)), "it has been idle for half a minute");
        assert!(running(0).matters(&late(100 * MS), now), "a tenth of a second late is not idle");
    }

    #[test]
    fn idle_thread_stays_idle_when_the_clock_is_set_back() {
        let mut relevance = running(2 * MS);
        (10..90).for_each(|second| ran(&mut relevance, second, 2 * MS));
        assert!(!relevance.matters(&late(MS), EpochSecond(90)));
    }

    #[test]
    fn command_that_wallprof_starts_matters_after_its_exec() {
        let mut relevance = Relevance::of(&ThreadInfo { process: "wallprof".into(), ..info() });
        (100..130).for_each(|second| ran(&mut relevance, second, 500 * MS));
        relevance.rename(&info());
        assert!(relevance.matters(&late(MS), EpochSecond(130)));
    }

    #[test]
    fn waits_of_a_deadlocked_thread_are_no_idleness() {
        let mut relevance = running(0);
        let mut delta = LedgerDelta::new(ThreadKey(1), EpochSecond(130));
        delta.blocked_ns[usize::from(Reason::Lock.code())] = 1_000 * MS;
        relevance.add(&delta);
        assert!(relevance.matters(&late(MS), EpochSecond(130)));
    }

    #[test]
    fn kernel_threads_wallprof_and_young_processes_do_not_matter() {
        let busy = |info: ThreadInfo| {
            let mut relevance = Relevance::of(&info);
            (100..130).for_each(|second| ran(&mut relevance, second, 500 * MS));
            relevance.matters(&late(MS), EpochSecond(130))
        };
        assert!(busy(info()));
        assert!(!busy(ThreadInfo { kernel_thread: true, ..info() }));
        assert!(!busy(ThreadInfo { process: "wallprof".into(), ..info() }));
        assert!(!busy(ThreadInfo { start_boot_ns: 59_500 * MS, ..info() }));
        assert!(
            busy(ThreadInfo { start_boot_ns: 90_000 * MS, ..info() }),
            "by a clock that ran on in suspend"
        );
    }

    #[test]
    fn waits_for_data_are_not_lateness() {
        let wait = |reason| Stall::new(ThreadKey(1), StallReason::Blocked(reason), MonoNs(5), 900 * MS);
        assert!(is_lateness(&wait(Reason::Lock)) && is_lateness(&late(5)));
        assert!(is_lateness(&Stall { voluntary: false, ..wait(Reason::Sleep) }), "overslept");
        for reason in [Reason::Pipe, Reason::Network, Reason::Ipc, Reason::Other] {
            assert!(!is_lateness(&wait(reason)), "{}", reason.name());
        }
        assert!(!is_lateness(&Stall { voluntary: true, ..wait(Reason::Poll) }));
    }
}
