// SPDX-License-Identifier: Apache-2.0
//! The control group of a process whose memory was at its limit, by the process's counters.

use std::fmt;

use wallprof_model::MonoNs;
use wallprof_model::counter::{CounterKind, CounterTrack, CounterUnit};

use super::wording;

/// The kernel frees memory of a group a little before and after the limit is met.
const NEAR: f64 = 0.95;
/// Counters are read ten times a second: the readings around an interval count, too, ns.
const AROUND_NS: u64 = 200_000_000;

const USED: &str = "cgroup.memory ";
const LIMIT: &str = "cgroup.memory.limit ";

/// A group at its limit, bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FullGroup<'t> {
    pub name: &'t str,
    /// Of the group's container.
    pub pod: Option<&'t str>,
    pub used: u64,
    pub limit: u64,
}

/// `its control group /shop/api used 23.9 MiB of its limit of 24.0 MiB`.
impl fmt::Display for FullGroup<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (used, limit) = (wording::size(self.used), wording::size(self.limit));
        write!(out, "{} used {used} of its limit of {limit}", wording::group(self.name, self.pod))
    }
}

/// Whether a counter of a process is one of those that are read here.
pub fn reads_counter(name: &str) -> bool {
    name.starts_with(USED) || name.starts_with(LIMIT)
}

/// The group that was at its limit between two times. `None`: none was, or none has a limit.
pub(super) fn full_group(tracks: &[CounterTrack], from: MonoNs, to: MonoNs) -> Option<FullGroup<'_>> {
    let of_kind = |prefix: &'static str| {
        let is_one = |track: &&CounterTrack| {
            (track.counter.kind, track.counter.unit) == (CounterKind::Level, CounterUnit::Bytes)
        };
        let name = move |track: &'_ CounterTrack| track.counter.name.strip_prefix(prefix).map(str::len);
        tracks.iter().filter(is_one).filter_map(move |track| {
            let len = name(track)?;
            Some((&track.counter.name[track.counter.name.len() - len..], most(track, from, to)?))
        })
    };
    let mut full = of_kind(USED).filter_map(|(name, used)| {
        let (_, limit) = of_kind(LIMIT).find(|(of, _)| *of == name)?;
        (limit > 0.0 && used >= limit * NEAR).then_some(FullGroup {
            name,
            pod: None,
            used: used as u64,
            limit: limit as u64,
        })
    });
    full.next()
}

/// The largest value between two times, and those around them.
fn most(track: &CounterTrack, from: MonoNs, to: MonoNs) -> Option<f64> {
    let (from, to) = (from.0.saturating_sub(AROUND_NS), to.0.saturating_add(AROUND_NS));
    let first = track.points.partition_point(|(at, _)| at.0 <= from).saturating_sub(1);
    let points = track.points[first..].iter().take_while(|(at, _)| at.0 <= to);
    points.map(|(_, value)| *value).max_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::super::fixture::memory_group;
    use super::*;

    const MS: u64 = 1_000_000;

    fn full(used: &[(u64, u64)], from_ms: u64, to_ms: u64) -> Option<u64> {
        let tracks = memory_group("/shop", used, 100);
        let found = full_group(&tracks, MonoNs(from_ms * MS), MonoNs(to_ms * MS))?;
        assert_eq!((found.name, found.limit), ("/shop", 100 << 20));
        Some(found.used >> 20)
    }

    #[test]
    fn group_near_its_limit_is_full() {
        assert_eq!(full(&[(0, 20), (500, 99), (600, 98)], 510, 520), Some(99));
        assert_eq!(full(&[(0, 99)], 3_000, 3_010), Some(99), "a value holds until the next one");
        assert_eq!(full(&[(0, 20), (500, 94)], 510, 520), None);
        assert_eq!(full(&[(0, 99), (100, 20)], 900, 1_000), None, "long before");
        assert_eq!(full(&[(900, 99)], 100, 200), None, "long after");
    }

    #[test]
    fn group_of_a_container_is_the_container() {
        let name = format!("/machine.slice/libpod-{}.scope/container", "d".repeat(64));
        let full = FullGroup { name: &name, pod: None, used: 24 << 20, limit: 24 << 20 };
        assert_eq!(full.to_string(), "its container dddddddddddd used 24.0 MiB of its limit of 24.0 MiB");
        let in_pod = FullGroup { pod: Some("shop/web-1/nginx"), ..full };
        assert!(in_pod.to_string().starts_with("its container shop/web-1/nginx used"), "{in_pod}");
    }

    #[test]
    fn other_counters_are_no_groups() {
        assert!(reads_counter("cgroup.memory /shop") && reads_counter("cgroup.memory.limit /shop"));
        assert!(!reads_counter("resident") && !reads_counter("cgroup.memory"));
        let only_used = &memory_group("/shop", &[(0, 99)], 100)[..1];
        assert_eq!(full_group(only_used, MonoNs(0), MonoNs(1)), None);
    }
}
