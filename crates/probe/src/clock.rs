// SPDX-License-Identifier: Apache-2.0
//! Reading the clocks of the kernel side.

use wallprof_model::{ClockAnchor, EpochNs, MonoNs};

/// The limit of any 64-bit Linux (`PID_MAX_LIMIT` in linux/threads.h). Clock ids are shifted pids: those of 0
/// and of some larger numbers would be the caller's own clocks.
const MAX_PID: libc::pid_t = 1 << 22;

/// CPU time of another process: that of all its threads, including those that have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessClock(libc::clockid_t);

fn try_read(clock: libc::clockid_t) -> Option<u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec to write to; a clock that does not exist is refused.
    let answer = unsafe { libc::clock_gettime(clock, &raw mut time) };
    (answer == 0).then(|| time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// 0 for a clock that does not exist on every Linux.
fn read(clock: libc::clockid_t) -> u64 {
    try_read(clock).unwrap_or(0)
}

pub fn mono_now() -> MonoNs {
    MonoNs(read(libc::CLOCK_MONOTONIC))
}

/// Both clocks at one timestamp: the tightest of a few tries, since the thread may be preempted in between.
pub fn anchor() -> ClockAnchor {
    let tries = (0..5).map(|_| {
        let before = read(libc::CLOCK_MONOTONIC);
        let epoch = read(libc::CLOCK_REALTIME);
        let after = read(libc::CLOCK_MONOTONIC);
        (after - before, ClockAnchor { mono: MonoNs(before + (after - before) / 2), epoch: EpochNs(epoch) })
    });
    tries.min_by_key(|(width, _)| *width).expect("five tries").1
}

/// CPU time this process has used so far, ns.
pub fn process_cpu_ns() -> u64 {
    read(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// CPU time the calling thread has used so far, ns.
pub fn thread_cpu_ns() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

impl ProcessClock {
    /// The clock of the process with this number in the calling thread's PID namespace; `None` when there is
    /// none.
    pub fn of(pid: u32) -> Option<Self> {
        let pid = libc::pid_t::try_from(pid).ok().filter(|pid| (1..=MAX_PID).contains(pid))?;
        let mut clock = 0;
        // SAFETY: `clock` is one clock id, which the call may write.
        let answer = unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) };
        (answer == 0).then_some(ProcessClock(clock))
    }

    /// The CPU time so far, ns, up to the last time that one of its threads left a CPU or had a tick there.
    /// Needs no privilege. `None` when the process is gone; a process that reuses its number is read in its
    /// place.
    pub fn ns(self) -> Option<u64> {
        try_read(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn clock_of_a_process_exists_while_it_lives() {
        let own = ProcessClock::of(std::process::id()).expect("this process");
        let (before, now, after) = (process_cpu_ns(), own.ns(), process_cpu_ns());
        assert!(now.is_some_and(|now| (before..=after).contains(&now)), "{before} {now:?} {after}");

        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let theirs = ProcessClock::of(child.id()).expect("it waits for input");
        assert!(theirs != own && theirs.ns().is_some());
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(theirs.ns(), None, "it is gone");
    }

    #[test]
    fn numbers_of_no_process_have_no_clock() {
        for pid in [0, 1 << 29, i32::MAX as u32, 1 << 31, u32::MAX] {
            assert_eq!(ProcessClock::of(pid), None, "{pid}");
        }
    }

    #[test]
    fn anchors_agree_with_each_other() {
        let (first, second) = (anchor(), anchor());
        let mono = second.mono.0 - first.mono.0;
        let epoch = second.epoch.0 - first.epoch.0;
        assert!(mono.abs_diff(epoch) < 50_000_000, "{mono} against {epoch}");
    }
}
