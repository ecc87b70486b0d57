// SPDX-License-Identifier: Apache-2.0
//! The control group of a process that read from a disk, or wrote to it, as fast as it may, by the process's
//! counters.

use std::fmt;

use wallprof_model::MonoNs;
use wallprof_model::counter::{CounterKind, CounterTrack, CounterUnit};

use super::case::{Case, mostly};
use super::evidence::Evidence;
use super::limits::{Delays, is_share};
use super::wording;

/// The kernel lets requests go in slices of 100 ms, so that a group that is held back is near its limit, not at
/// it.
const NEAR: f64 = 0.8;
/// Readings further from a stall than this say little about it, ns.
const AROUND_NS: u64 = 500_000_000;

const PREFIX: &str = "cgroup.disk.";
const SECOND_NS: f64 = 1e9;

pub(super) const ADVICE: &str =
    "Raise the limit of the control group (io.max, blkio.throttle), or read and write less.";

/// A group at its limit.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct HeldBack<'t> {
    group: &'t str,
    /// Of the group's container.
    pod: Option<&'t str>,
    disk: &'t str,
    kind: &'t str,
    unit: CounterUnit,
    limit: f64,
}

impl<'t> HeldBack<'t> {
    pub(super) fn in_pod(self, pod_of: impl Fn(&str) -> Option<&'t str>) -> Self {
        HeldBack { pod: pod_of(self.group), ..self }
    }

    fn is_of_reads(&self) -> bool {
        self.kind.starts_with("read")
    }

    /// Whether a wait can be one for this limit: a thread that reads is not held back by what its group may write.
    fn concerns(&self, case: &Case) -> bool {
        let syscall = case.syscall.as_deref().unwrap_or_default();
        let reads = case.fault.is_some()
            || ["read", "pread", "sendfile"].iter().any(|call| syscall.starts_with(call));
        let writes = ["write", "pwrite", "fsync", "fdatasync", "sync", "msync"];
        let writes = writes.iter().any(|call| syscall.starts_with(call));
        if self.is_of_reads() { !writes } else { !reads }
    }
}

/// `its control group /shop/api may write 1.00 MiB a second to the disk 259:0, and did`.
impl fmt::Display for HeldBack<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (group, disk) = (wording::group(self.group, self.pod), self.disk);
        let (verb, preposition) = match self.is_of_reads() {
            true => ("read", "from"),
            false => ("write", "to"),
        };
        let much = match self.unit {
            CounterUnit::Bytes => wording::size(self.limit as u64),
            _ => format!("{} times", self.limit),
        };
        write!(out, "{group} may {verb} {much} a second {preposition} the disk {disk}, and did")
    }
}

/// Whether a counter of a process is one of those that are read here.
pub fn reads_counter(name: &str) -> bool {
    name.starts_with(PREFIX)
}

/// The limit of a control group that was met during most of the waits.
pub(super) fn of_most(cases: &[&Case], evidence: &Evidence) -> Option<String> {
    let held_back_in = |case: &Case| evidence.held_back(case).find(|limit| limit.concerns(case));
    let is_held_back = |case: &&Case| held_back_in(case).is_some();
    let held_back: Vec<&Case> = cases.iter().copied().filter(is_held_back).collect();
    let late_ns = |cases: &[&Case]| Delays::of(cases.iter().map(|case| case.late_ns())).total_ns;
    let are_most = is_share(late_ns(&held_back), 2, late_ns(cases));
    are_most.then(|| mostly(&held_back, |case| Some(held_back_in(case)?.to_string())))?
}

/// The groups that were at a limit between two times.
pub(super) fn held_back(
    tracks: &[CounterTrack],
    from: MonoNs,
    to: MonoNs,
) -> impl Iterator<Item = HeldBack<'_>> {
    let limits = tracks.iter().filter(|track| track.counter.kind == CounterKind::Level);
    limits.filter_map(move |track| {
        let (kind, of) = track.counter.name.strip_prefix(PREFIX)?.split_once(".limit ")?;
        let (disk, group) = of.split_once(' ')?;
        let name = format!("{PREFIX}{kind} {of}");
        let sums = tracks.iter().find(|sums| *sums.counter.name == *name)?;
        let limit = value_at(track, to)?;
        let unit = track.counter.unit;
        (limit > 0.0 && rate(sums, from, to)? >= limit * NEAR).then_some(HeldBack {
            group,
            pod: None,
            disk,
            kind,
            unit,
            limit,
        })
    })
}

/// Per second, between the last reading before and the first one after. A value is emitted when it has changed:
/// before the time it holds until then, and after the last reading it holds on.
fn rate(track: &CounterTrack, from: MonoNs, to: MonoNs) -> Option<f64> {
    let last_before = track.points.partition_point(|(at, _)| *at <= from).checked_sub(1)?;
    let (at, before) = track.points[last_before];
    let since = at.0.max(from.0.saturating_sub(AROUND_NS));
    let after = track.points.partition_point(|(at, _)| *at < to);
    let (until, sum) = track.points.get(after).or(track.points.last())?;
    let until = until.0.max(to.0);
    (until > since).then(|| (sum - before) * SECOND_NS / (until - since) as f64)
}

fn value_at(track: &CounterTrack, time: MonoNs) -> Option<f64> {
    let after = track.points.partition_point(|(at, _)| *at <= time);
    track.points.get(after.saturating_sub(1)).map(|(_, value)| *value)
}

#[cfg(test)]
mod tests {
    use super::super::fixture::disk_limit;
    use super::*;

    const MS: u64 = 1_000_000;

    fn found(written: &[(u64, u64)], from_ms: u64, to_ms: u64) -> Option<String> {
        let tracks = disk_limit("/shop", written, 10);
        let mut held_back = held_back(&tracks, MonoNs(from_ms * MS), MonoNs(to_ms * MS));
        held_back.next().map(|held| held.to_string())
    }

    #[test]
    fn group_that_writes_as_fast_as_it_may_is_held_back() {
        let words = "its control group /shop may write 10.0 MiB a second to the disk 7:0, and did";
        let steady: Vec<(u64, u64)> = (0..20).map(|tenth| (tenth * 100, tenth)).collect();
        assert_eq!(found(&steady, 510, 590).as_deref(), Some(words));
        assert_eq!(found(&[(0, 0), (400, 4), (900, 9)], 420, 880).as_deref(), Some(words), "while it waited");
        let slow: Vec<(u64, u64)> = (0..20).map(|tenth| (tenth * 100, tenth / 2)).collect();
        assert_eq!(found(&slow, 510, 1_190), None);
        assert_eq!(found(&steady, 5_000, 5_100), None, "long after");
        assert_eq!(found(&[], 510, 590), None);
    }

    #[test]
    fn other_counters_are_no_limits() {
        assert!(reads_counter("cgroup.disk.written 7:0 /shop") && !reads_counter("disk.written"));
        let sums = &disk_limit("/shop", &[(0, 0), (100, 9)], 1)[..1];
        assert_eq!(held_back(sums, MonoNs(0), MonoNs(1)).count(), 0);
    }
}
