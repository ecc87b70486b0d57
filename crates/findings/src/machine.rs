// SPDX-License-Identifier: Apache-2.0
//! Counters of the machine as rules read them: steal time by CPU, and free memory.

use std::collections::BTreeMap;

use wallprof_model::MonoNs;
use wallprof_model::counter::{CounterKind, CounterTrack, CounterUnit};

/// How long before a fault the usual size of the page cache is read.
const BEFORE_NS: u64 = 1_000_000_000;
/// A smaller loss, in bytes, is normal use of files; so is one below a twentieth of the cache.
const LEAST_SHRINKAGE: f64 = 33_554_432.0;

/// Threads that run or can run on a CPU. Values are rounded: 2 is a mean of 1.5 or more, with which no CPU is
/// idle for long. A mean of 1 may be two threads for half of the time.
const CROWD: f64 = 2.0;

/// Counters of the machine over a whole recording.
#[derive(Debug, Default)]
pub(super) struct Machine {
    steal_intervals: BTreeMap<u32, Vec<StealInterval>>,
    /// When every CPU had [`CROWD`] threads or more that ran or could run: disjoint, by time.
    crowded: Vec<(MonoNs, MonoNs)>,
    free: Points,
    available: Points,
    cached: Points,
}

/// Values that hold until the next one, by time.
type Points = Vec<(MonoNs, f64)>;

/// Steal time of a CPU between two readings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StealInterval {
    pub from: MonoNs,
    pub to: MonoNs,
    pub ns: u64,
}

/// Memory at one time, bytes. `None`: no counter has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Memory {
    pub free: u64,
    pub available: Option<u64>,
    /// The bytes that the page cache lost in the second before, if above the limit.
    pub cache_lost: Option<u64>,
}

/// Whether the rules read a counter of the machine.
pub fn reads_counter(name: &str) -> bool {
    matches!(name, "memory.free" | "memory.available" | "memory.cached")
        || stolen_cpu(name).is_some()
        || queued_cpu(name).is_some()
}

/// `cpu3.run_queue`.
fn queued_cpu(name: &str) -> Option<u32> {
    name.strip_prefix("cpu")?.strip_suffix(".run_queue")?.parse().ok()
}

/// `cpu3.steal`.
fn stolen_cpu(name: &str) -> Option<u32> {
    name.strip_prefix("cpu")?.strip_suffix(".steal")?.parse().ok()
}

impl Machine {
    /// The counters of a machine of so many CPUs.
    pub fn new(tracks: &[CounterTrack], cpus: u32) -> Self {
        let mut machine = Machine::default();
        let mut queues = BTreeMap::new();
        for track in tracks.iter().filter(|track| track.counter.thread.is_none()) {
            machine.add(track);
            let is_queue =
                (track.counter.kind, track.counter.unit) == (CounterKind::Level, CounterUnit::Count);
            if let Some(cpu) = queued_cpu(&track.counter.name).filter(|_| is_queue) {
                queues.insert(cpu, &track.points[..]);
            }
        }
        if cpus > 0 && queues.len() == cpus as usize {
            machine.crowded = crowded(&queues.into_values().collect::<Vec<_>>());
        }
        machine
    }

    /// The part of `from..to` in which every CPU had several threads to run, ns. 0 where that is not known.
    pub fn crowded_ns(&self, from: MonoNs, to: MonoNs) -> u64 {
        let first = self.crowded.partition_point(|(_, end)| *end <= from);
        let parts = self.crowded[first..].iter().take_while(|(start, _)| *start < to);
        parts.fold(0, |sum: u64, (start, end)| {
            sum.saturating_add((*end).min(to).0.saturating_sub((*start).max(from).0))
        })
    }

    /// Numbers of the application may have any name; the machine's counters have this kind and unit.
    fn add(&mut self, track: &CounterTrack) {
        let name = track.counter.name.as_str();
        match (track.counter.kind, track.counter.unit) {
            (CounterKind::Sum, CounterUnit::Ns) => {
                if let Some(cpu) = stolen_cpu(name) {
                    self.steal_intervals.insert(cpu, steal_intervals(&track.points));
                }
            }
            (CounterKind::Level, CounterUnit::Bytes) => {
                let place = match name {
                    "memory.free" => &mut self.free,
                    "memory.available" => &mut self.available,
                    "memory.cached" => &mut self.cached,
                    _ => return,
                };
                place.clone_from(&track.points);
            }
            _ => {}
        }
    }

    /// The steal time of a CPU that overlaps `from..to`, each interval with its index among all of that CPU.
    pub fn steal_intervals(
        &self,
        cpu: u32,
        from: MonoNs,
        to: MonoNs,
    ) -> impl Iterator<Item = (usize, &StealInterval)> {
        let all = self.steal_intervals.get(&cpu).map_or(&[][..], Vec::as_slice);
        let first = all.partition_point(|interval| interval.to <= from);
        let rest = all.iter().enumerate().skip(first);
        rest.take_while(move |(_, interval)| interval.from < to)
    }

    pub fn memory_at(&self, at: MonoNs) -> Option<Memory> {
        Some(Memory {
            free: held_at(&self.free, at)? as u64,
            available: held_at(&self.available, at).map(|bytes| bytes as u64),
            cache_lost: self.cache_lost(at),
        })
    }

    fn cache_lost(&self, at: MonoNs) -> Option<u64> {
        let before = held_at(&self.cached, MonoNs(at.0.saturating_sub(BEFORE_NS)))?;
        let lost = before - held_at(&self.cached, at)?;
        (lost >= LEAST_SHRINKAGE.max(before / 20.0)).then_some(lost as u64)
    }
}

impl StealInterval {
    pub fn overlap_ns(&self, from: MonoNs, to: MonoNs) -> u64 {
        self.to.min(to).0.saturating_sub(self.from.max(from).0)
    }
}

/// The times between two readings after which every CPU's value is [`CROWD`] or more. A value is the mean
/// since the reading before it.
fn crowded(queues: &[&[(MonoNs, f64)]]) -> Vec<(MonoNs, MonoNs)> {
    let readings = queues.iter().flat_map(|points| points.iter().map(|(at, _)| *at));
    let mut times: Vec<MonoNs> = readings.collect();
    times.sort_unstable();
    times.dedup();
    let mut next: Vec<usize> = vec![0; queues.len()];
    let mut crowded: Vec<(MonoNs, MonoNs)> = Vec::new();
    for pair in times.windows(2) {
        let (from, to) = (pair[0], pair[1]);
        let is_crowded = queues.iter().zip(&mut next).all(|(points, next)| {
            while points.get(*next).is_some_and(|(at, _)| *at < to) {
                *next += 1;
            }
            // An unchanged value is not written again.
            points.get(*next).or(points.last()).is_some_and(|(_, value)| *value >= CROWD)
        });
        match crowded.last_mut() {
            Some((_, end)) if is_crowded && *end == from => *end = to,
            _ if is_crowded => crowded.push((from, to)),
            _ => {}
        }
    }
    crowded
}

fn steal_intervals(points: &[(MonoNs, f64)]) -> Vec<StealInterval> {
    let steps = points.windows(2).map(|pair| {
        let [(from, before), (to, after)] = [pair[0], pair[1]];
        StealInterval { from, to, ns: (after - before).max(0.0) as u64 }
    });
    steps.filter(|interval| interval.ns > 0 && interval.to > interval.from).collect()
}

fn held_at(points: &[(MonoNs, f64)], at: MonoNs) -> Option<f64> {
    let after = points.partition_point(|(point, _)| *point <= at);
    Some(points[after.checked_sub(1)?].1)
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{memory, run_queue, steal};
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn steal_lies_between_the_readings_that_differ() {
        let track = steal(1, &[(0, 0), (300, 0), (400, 20), (500, 50), (600, 50)]);
        let machine = Machine::new(&[track], 2);
        let found = |from: u64, to: u64| -> Vec<(usize, u64)> {
            let steal_intervals = machine.steal_intervals(1, MonoNs(from * MS), MonoNs(to * MS));
            steal_intervals.map(|(at, interval)| (at, interval.ns / MS)).collect()
        };
        assert_eq!(found(0, 1_000), [(0, 20), (1, 30)]);
        assert_eq!(found(0, 300), []);
        assert_eq!(found(399, 400), [(0, 20)]);
        assert_eq!(found(400, 401), [(1, 30)]);
        assert_eq!(found(500, 9_999), []);
        assert_eq!(machine.steal_intervals(0, MonoNs(0), MonoNs(u64::MAX)).count(), 0);
    }

    #[test]
    fn memory_is_the_last_reading() {
        let tracks =
            [memory("free", &[(100, 40), (2_000, 50)]), memory("cached", &[(100, 900), (1_900, 800)])];
        let machine = Machine::new(&tracks, 2);
        let mib = |mib: u64| mib << 20;
        assert_eq!(machine.memory_at(MonoNs(99 * MS)), None);
        let calm = Memory { free: mib(40), available: None, cache_lost: None };
        assert_eq!(machine.memory_at(MonoNs(1_500 * MS)), Some(calm));
        let shrinking = Memory { free: mib(50), available: None, cache_lost: Some(mib(100)) };
        assert_eq!(machine.memory_at(MonoNs(2_000 * MS)), Some(shrinking));
        assert_eq!(machine.memory_at(MonoNs(2_900 * MS)).and_then(|memory| memory.cache_lost), None);
    }

    #[test]
    fn all_cpus_are_crowded_where_each_has_two_threads_since_its_last_reading() {
        let queues = [
            run_queue(0, &[(100, 2), (500, 2), (600, 1), (900, 3)]),
            run_queue(1, &[(100, 0), (200, 2), (800, 2), (900, 5)]),
        ];
        let machine = |tracks: &[CounterTrack], cpus| Machine::new(tracks, cpus);
        let crowded = |machine: &Machine, from: u64, to: u64| {
            machine.crowded_ns(MonoNs(from * MS), MonoNs(to * MS)) / MS
        };
        let both = machine(&queues, 2);
        assert_eq!(crowded(&both, 0, 1_000), 400 + 300, "from 100 to 500, and from 600 to 900");
        assert_eq!((crowded(&both, 450, 550), crowded(&both, 500, 600), crowded(&both, 0, 150)), (50, 0, 50));
        assert_eq!(crowded(&machine(&queues, 3), 0, 1_000), 0, "a CPU whose queue is not known");
        assert_eq!(crowded(&machine(&queues[..1], 2), 0, 1_000), 0);
    }

    #[test]
    fn numbers_of_the_application_are_not_the_machines() {
        let mut own = steal(1, &[(0, 0), (400, 20)]);
        own.counter.unit = CounterUnit::Plain;
        let mut level = memory("free", &[(0, 9)]);
        level.counter.unit = CounterUnit::Plain;
        let machine = Machine::new(&[own, level], 2);
        assert_eq!(machine.steal_intervals(1, MonoNs(0), MonoNs(u64::MAX)).count(), 0);
        assert_eq!(machine.memory_at(MonoNs(MS)), None);
        assert!(reads_counter("cpu12.steal") && reads_counter("memory.cached"));
        assert!(!reads_counter("steal") && !reads_counter("cpu1.idle") && !reads_counter("cpux.steal"));
    }
}
