// SPDX-License-Identifier: Apache-2.0
//! The clock of marks: the processor's ticks where the kernel keeps time by them, too, and CLOCK_MONOTONIC
//! elsewhere.

use std::time::Duration;

use wallprof_model::MonoNs;
use wallprof_probe::clock::mono_now;
use wallprof_probe::intel_pt::ticks_now;

/// Numbers of clocks in the shared memory.
const TICKS: u64 = 1;
const MONOTONIC: u64 = 2;

/// Sources of the kernel's time that are the ticks of all processors, which run alike. A kernel that keeps time
/// by kvm-clock does so because they may not: it corrects them for each processor (kvmclock_init() of
/// arch/x86/kernel/kvmclock.c ranks it below `tsc` where the host promises invariant ticks).
const BY_TICKS: [&str; 2] = ["tsc", "hyperv_clocksource_tsc_page"];
const SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

/// The rate of the ticks is measured over at least this long: both readings are exact to some 50 ns.
const LEAST: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug)]
struct Reading {
    ticks: u64,
    mono: u64,
}

#[derive(Debug)]
pub(super) struct MarkClock {
    number: u64,
    first: Reading,
    latest: Reading,
}

impl MarkClock {
    pub fn new() -> Self {
        let source = std::fs::read_to_string(SOURCE).unwrap_or_default();
        let number =
            if cfg!(target_arch = "x86_64") && BY_TICKS.contains(&source.trim()) { TICKS } else { MONOTONIC };
        let first = read();
        MarkClock { number, first, latest: first }
    }

    pub fn number(&self) -> u64 {
        self.number
    }

    /// Reads both clocks. Waits, if this is too soon after the first reading.
    pub fn follow(&mut self) {
        let before = Duration::from_nanos(mono_now().0.saturating_sub(self.first.mono));
        if self.number == TICKS && before < LEAST {
            std::thread::sleep(LEAST.saturating_sub(before));
        }
        self.latest = read();
    }

    /// Length of a tick, ns, shifted by 32 bits.
    pub fn ns_per_tick(&self) -> u64 {
        rate(self.first, self.latest)
    }

    /// The clock's value `after` from now.
    pub fn after(&self, after: Duration) -> u64 {
        let ns = after.as_nanos() as u64;
        if self.number == MONOTONIC {
            return self.latest.mono + ns;
        }
        let ticks = (u128::from(ns) << 32) / u128::from(self.ns_per_tick().max(1));
        self.latest.ticks.saturating_add(u64::try_from(ticks).unwrap_or(u64::MAX))
    }

    /// A time of the clock.
    pub fn mono(&self, time: u64) -> MonoNs {
        if self.number == MONOTONIC {
            return MonoNs(time);
        }
        let distance = i128::from(time) - i128::from(self.latest.ticks);
        let ns = (distance * i128::from(self.ns_per_tick())) >> 32;
        MonoNs(u64::try_from(i128::from(self.latest.mono) + ns).unwrap_or(0))
    }
}

fn rate(first: Reading, latest: Reading) -> u64 {
    let ticks = latest.ticks.saturating_sub(first.ticks);
    let ns = u128::from(latest.mono.saturating_sub(first.mono)) << 32;
    u64::try_from(ns / u128::from(ticks.max(1))).unwrap_or(u64::MAX)
}

/// The tightest of a few tries, since the thread may be preempted in between.
fn read() -> Reading {
    let tries = (0..5).map(|_| {
        let before = ticks_now();
        let mono = mono_now().0;
        let after = ticks_now();
        (
            after.wrapping_sub(before),
            Reading { ticks: before.wrapping_add(after.wrapping_sub(before) / 2), mono },
        )
    });
    tries.min_by_key(|(width, _)| *width).expect("five tries").1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_the_clock_are_those_of_the_kernel() {
        let mut clock = MarkClock::new();
        clock.follow();
        let read = |clock: &MarkClock| if clock.number() == TICKS { ticks_now() } else { mono_now().0 };
        let (before, time, after) = (mono_now().0, read(&clock), mono_now().0);
        let mono = clock.mono(time).0;
        // Readings a twentieth of a second apart are exact to a few microseconds.
        assert!(mono + 20_000 >= before && mono <= after + 20_000, "{before} {mono} {after}");
        let later = clock.mono(clock.after(Duration::from_secs(2))).0;
        assert!(later.abs_diff(clock.latest.mono + 2_000_000_000) < 1_000, "{later}");
    }
}
