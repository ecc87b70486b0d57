//! Reading the clocks of the kernel side.

use wallprof_model::{ClockAnchor, EpochNs, MonoNs};

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec to write to; both clocks exist on every Linux.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

pub fn mono_now() -> MonoNs {
    MonoNs(read(libc::CLOCK_MONOTONIC))
}

/// Both clocks at one moment: the tightest of a few tries, since the thread may be preempted in between.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_agree_with_each_other() {
        let (first, second) = (anchor(), anchor());
        let mono = second.mono.0 - first.mono.0;
        let epoch = second.epoch.0 - first.epoch.0;
        assert!(mono.abs_diff(epoch) < 50_000_000, "{mono} against {epoch}");
    }
}
