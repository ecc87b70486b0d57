// SPDX-License-Identifier: Apache-2.0
//! Running time by the second. The trace shows how much was user code and how much was the kernel; records
//! show how long the thread ran. Both clocks agree up to some microseconds, so an excess in one second
//! belongs to the next one.
//!
//! Without switches the times on a CPU are not known. The thread then ran at least as long as the trace shows
//! its code; all other time stays unaccounted.

use std::collections::{BTreeMap, HashMap};

use wallprof_model::event::LedgerDelta;
use wallprof_model::{EpochSecond, ThreadKey};

/// The limit of seconds of all threads together, some 60 bytes each. Beyond it time is added to the nearest
/// known second.
const MAX_SECONDS: usize = 1 << 19;

/// A thread's time in the trace, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traced {
    pub user: u64,
    pub kernel: u64,
    /// In the kernel, or off the CPU if switches are not known.
    pub entered: u64,
}

impl Traced {
    /// The part of it in the first `passed` of `len` ns.
    pub(crate) fn share(self, passed: u64, len: u64) -> Traced {
        let part = |ns: u64| (u128::from(ns) * u128::from(passed) / u128::from(len.max(1))) as u64;
        Traced { user: part(self.user), kernel: part(self.kernel), entered: part(self.entered) }
    }

    /// The difference to `earlier`, which is a part of it.
    pub(crate) fn since(self, earlier: Traced) -> Traced {
        Traced {
            user: self.user.saturating_sub(earlier.user),
            kernel: self.kernel.saturating_sub(earlier.kernel),
            entered: self.entered.saturating_sub(earlier.entered),
        }
    }

    fn add(&mut self, other: Traced) {
        self.user = self.user.saturating_add(other.user);
        self.kernel = self.kernel.saturating_add(other.kernel);
        self.entered = self.entered.saturating_add(other.entered);
    }
}

/// One second of a thread.
#[derive(Clone, Copy, Debug, Default)]
struct Second {
    /// By its records: time on a CPU, and time of unknown state.
    on_cpu: u64,
    unknown: u64,
    traced: Traced,
}

/// Threads by the second.
#[derive(Debug, Default)]
pub(crate) struct Running {
    threads: HashMap<ThreadKey, BTreeMap<EpochSecond, Second>>,
    count: usize,
}

impl Running {
    /// Adds a thread's time according to records.
    pub(crate) fn lived(&mut self, delta: &LedgerDelta) {
        let blocked = delta.blocked_ns.iter().fold(0u64, |sum, ns| sum.saturating_add(*ns));
        let off_cpu = blocked.saturating_add(delta.runnable_ns).saturating_add(delta.preempted_ns);
        let known = delta.on_cpu_ns.saturating_add(off_cpu);
        let second = self.second(delta.thread, delta.second);
        second.on_cpu = second.on_cpu.saturating_add(delta.on_cpu_ns);
        second.unknown = second.unknown.saturating_add(delta.wall_ns.saturating_sub(known));
    }

    /// Adds a thread's time according to the trace.
    pub(crate) fn ran(&mut self, thread: ThreadKey, second: EpochSecond, traced: Traced) {
        self.second(thread, second).traced.add(traced);
    }

    fn second(&mut self, thread: ThreadKey, second: EpochSecond) -> &mut Second {
        let seconds = self.threads.entry(thread).or_default();
        let is_known = seconds.is_empty() || self.count < MAX_SECONDS || seconds.contains_key(&second);
        let near = || seconds.range(..=second).next_back().or(seconds.iter().next()).map(|known| *known.0);
        let second = if is_known { second } else { near().unwrap_or(second) };
        self.count += usize::from(!seconds.contains_key(&second));
        seconds.entry(second).or_default()
    }

    /// The threads' running time, divided into user and kernel. `is_sampled`: samples divide the rest.
    pub(crate) fn finish(self, is_sampled: impl Fn(ThreadKey) -> bool) -> Vec<LedgerDelta> {
        let mut threads: Vec<_> = self.threads.into_iter().collect();
        threads.sort_unstable_by_key(|(thread, _)| *thread);
        let mut out = Vec::new();
        for (thread, seconds) in threads {
            let mut left = Traced::default();
            let is_sampled = is_sampled(thread);
            for (second, spent) in seconds {
                let delta = divided(LedgerDelta::new(thread, second), spent, &mut left, is_sampled);
                if delta != LedgerDelta::new(thread, second) {
                    out.push(delta);
                }
            }
        }
        out
    }
}

/// `left`: user and kernel time that exceeded the running time of earlier seconds.
fn divided(mut delta: LedgerDelta, spent: Second, left: &mut Traced, is_sampled: bool) -> LedgerDelta {
    left.add(Traced { entered: 0, ..spent.traced });
    let (mut on_cpu, mut unknown) = (spent.on_cpu, spent.unknown);
    delta.traced_user_ns = take(&mut left.user, &mut on_cpu);
    delta.traced_kernel_ns = take(&mut left.kernel, &mut on_cpu);
    delta.traced_kernel_ns += take(&mut { spent.traced.entered }, &mut on_cpu);
    delta.undivided_ns = if is_sampled { 0 } else { on_cpu };
    // Code ran in time of unknown state: the thread was on a CPU.
    let (user, kernel) = (take(&mut left.user, &mut unknown), take(&mut left.kernel, &mut unknown));
    delta.traced_user_ns += user;
    delta.traced_kernel_ns += kernel;
    delta.on_cpu_ns = user + kernel;
    delta
}

/// Moves as much as both have.
fn take(from: &mut u64, available: &mut u64) -> u64 {
    let ns = (*from).min(*available);
    *from -= ns;
    *available -= ns;
    ns
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const THREAD: ThreadKey = ThreadKey(3);

    fn second(second: u32, wall_ns: u64, on_cpu_ns: u64) -> LedgerDelta {
        LedgerDelta { wall_ns, on_cpu_ns, ..LedgerDelta::new(THREAD, EpochSecond(second)) }
    }

    /// Added on-CPU time, user time, kernel time and undivided time, by second.
    fn finished(running: Running, is_sampled: bool) -> Vec<(u32, [u64; 4])> {
        let numbers = |delta: &LedgerDelta| {
            [delta.on_cpu_ns, delta.traced_user_ns, delta.traced_kernel_ns, delta.undivided_ns]
        };
        running.finish(|_| is_sampled).iter().map(|delta| (delta.second.0, numbers(delta))).collect()
    }

    #[test]
    fn trace_divides_running_time() {
        let running = || {
            let mut running = Running::default();
            running.lived(&second(1, 1_000, 900));
            running.ran(THREAD, EpochSecond(1), Traced { user: 500, kernel: 20, entered: 300 });
            running
        };
        assert_eq!(finished(running(), false), [(1, [0, 500, 320, 80])]);
        assert_eq!(finished(running(), true), [(1, [0, 500, 320, 0])], "samples divide the rest");
    }

    #[test]
    fn without_switches_thread_ran_when_its_code_was_traced() {
        let mut running = Running::default();
        running.lived(&second(1, 1_000_000, 0));
        running.ran(THREAD, EpochSecond(1), Traced { user: 750, kernel: 5, entered: 900_000 });
        assert_eq!(finished(running, false), [(1, [755, 750, 5, 0])]);
    }

    #[test]
    fn small_clock_differences_lose_no_time() {
        let mut running = Running::default();
        (1..4).for_each(|at| running.lived(&second(at, 1_000, 1_000)));
        running.ran(THREAD, EpochSecond(1), Traced { user: 1_010, kernel: 30, entered: 7 });
        running.ran(THREAD, EpochSecond(2), Traced { user: 970, kernel: 0, entered: 0 });
        let expected = [(1, [0, 1_000, 0, 0]), (2, [0, 980, 20, 0]), (3, [0, 0, 10, 990])];
        assert_eq!(finished(running, false), expected);
    }

    #[test]
    fn untraced_threads_run_undivided() {
        let mut running = Running::default();
        running.lived(&second(1, 1_000, 400));
        assert_eq!(finished(running, false), [(1, [0, 0, 0, 400])]);
    }

    #[test]
    fn seconds_are_bounded() {
        let mut running = Running { count: MAX_SECONDS - 2, ..Running::default() };
        (5..100).for_each(|at| running.lived(&second(at, 10, 10)));
        running.ran(THREAD, EpochSecond(3), Traced { user: 1, ..Traced::default() });
        let other = LedgerDelta { thread: ThreadKey(4), ..second(7, 10, 10) };
        running.lived(&other);
        assert_eq!(running.threads.values().map(BTreeMap::len).collect::<Vec<_>>().iter().sum::<usize>(), 3);
        let sum: u64 = running.finish(|_| false).iter().map(|delta| delta.undivided_ns).sum();
        assert_eq!(sum, 96 * 10 - 1);
    }

    proptest! {
        #[test]
        fn divided_time_is_at_most_recorded_time(
            seconds in
                proptest::collection::vec((0u32..9, 0u64..1_000, 0u64..1_000, any::<[u16; 3]>()), 1..40),
        ) {
            let mut running = Running::default();
            let (mut wall, mut on_cpu) = (0, 0);
            for (at, ran, rested, traced) in seconds {
                running.lived(&second(at, ran + rested, ran));
                (wall, on_cpu) = (wall + ran + rested, on_cpu + ran);
                let [user, kernel, entered] = traced.map(|ns| u64::from(ns) / 64);
                running.ran(THREAD, EpochSecond(at), Traced { user, kernel, entered });
            }
            let deltas = running.finish(|_| false);
            let more: u64 = deltas.iter().map(|delta| delta.on_cpu_ns).sum();
            let divided: u64 = deltas
                .iter()
                .map(|delta| delta.traced_user_ns + delta.traced_kernel_ns + delta.undivided_ns)
                .sum();
            prop_assert_eq!(divided, on_cpu + more);
            prop_assert!(divided <= wall);
        }
    }
}
