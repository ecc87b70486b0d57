// SPDX-License-Identifier: Apache-2.0
//! What a process did not receive while it was stalled: its receive queues that grew, and the packets that
//! were dropped, by the counters of its sockets.
//!
//! Counters are read ten times a second. So growth counts between the last reading before a stall and the
//! first one after it, and only for stalls of `LEAST_STALL_NS` or longer.

use std::ops::Range;

use wallprof_model::MonoNs;
use wallprof_model::counter::{CounterKind, CounterTrack};

use crate::counters::{time_around, unusual_peak};

/// In a shorter stall little of what grew between two readings grew meanwhile.
const LEAST_STALL_NS: u64 = 10_000_000;
/// Fewer lost packets in a stall, and fewer connections that come to wait, are usual.
const LEAST_DROPPED: u64 = 2;
const LEAST_CONNECTIONS: u64 = 8;
/// The first reading after a stall comes as soon as this, unless nothing changed.
const SETTLE_NS: u64 = 250_000_000;

/// What was not received during a stall.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backlog {
    /// The queue that grew most.
    pub queue: Option<Queue>,
    pub dropped: u64,
    /// The readings between which it happened.
    pub between: Range<MonoNs>,
}

/// A receive queue that grew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// `udp 10.0.0.1:5000`, `tcp`, or `tcp connections`, which are not accepted yet.
    pub name: String,
    pub is_bytes: bool,
    pub before: u64,
    /// The largest reading.
    pub at: u64,
}

/// A time between two readings in which a socket dropped packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// The readings.
    pub between: Range<MonoNs>,
    /// How many.
    pub packets: u64,
}

/// The times in which the packets of a counter of dropped ones were dropped.
pub fn dropped(track: &CounterTrack) -> Vec<Dropped> {
    let steps = track.points.windows(2).filter_map(|points| {
        let [(start, before), (end, after)] = *points else { return None };
        let packets = (after - before).max(0.0) as u64;
        (packets > 0).then_some(Dropped { between: start..end, packets })
    });
    steps.collect()
}

/// Whether a counter is one of those that are read here.
pub fn reads_counter(name: &str) -> bool {
    queue_name(name).is_some() || is_drops(name)
}

fn queue_name(name: &str) -> Option<String> {
    match name {
        "tcp.queue" => Some("tcp".into()),
        "tcp.backlog" => Some("tcp connections".into()),
        _ => Some(format!("udp {}", name.strip_prefix("udp.queue ")?)),
    }
}

fn is_drops(name: &str) -> bool {
    name == "tcp.drops" || name.starts_with("udp.drops ")
}

/// What a process did not receive during a stall, by its counters. `None`: nothing unusual.
pub fn backlog<'a>(
    tracks: impl IntoIterator<Item = &'a CounterTrack>,
    stall: Range<MonoNs>,
) -> Option<Backlog> {
    if stall.end.0.saturating_sub(stall.start.0) < LEAST_STALL_NS {
        return None;
    }
    let theirs = tracks.into_iter().filter(|track| reads_counter(&track.counter.name));
    let tracks: Vec<CounterTrack> = theirs.map(|track| around(track, &stall)).collect();
    let mut found = Backlog { queue: None, dropped: 0, between: stall.clone() };
    for track in &tracks {
        let [before, after] = readings(track, &stall);
        let is_one = match queue_name(&track.counter.name) {
            None => {
                let dropped = (after.1 - before.1).max(0.0) as u64;
                let is_one = dropped >= LEAST_DROPPED;
                found.dropped += if is_one { dropped } else { 0 };
                is_one
            }
            Some(name) => {
                let at = unusual_peak(track, &stall).filter(|at| *at > before.1);
                let is_bytes = track.counter.name != "tcp.backlog";
                let queue = at.map(|at| Queue { name, is_bytes, before: before.1 as u64, at: at as u64 });
                let queue = queue.filter(|queue| is_bytes || queue.at - queue.before >= LEAST_CONNECTIONS);
                let is_one = queue.is_some();
                found.queue = [found.queue.take(), queue].into_iter().flatten().max_by_key(Queue::grown);
                is_one
            }
        };
        if is_one {
            found.between = found.between.start.min(before.0)..found.between.end.max(after.0);
        }
    }
    (found.queue.is_some() || found.dropped > 0).then_some(found)
}

/// The part of a track that tells what moved, with the last point before it.
fn around(track: &CounterTrack, stall: &Range<MonoNs>) -> CounterTrack {
    let range = time_around(stall.clone());
    let first = track.points.partition_point(|(at, _)| *at <= range.start).saturating_sub(1);
    let last = track.points.partition_point(|(at, _)| *at <= range.end);
    CounterTrack { counter: track.counter.clone(), points: track.points[first..last.max(first)].to_vec() }
}

/// The last reading before a stall and the first one after it. A value that did not change is not read again.
fn readings(track: &CounterTrack, stall: &Range<MonoNs>) -> [(MonoNs, f64); 2] {
    let at = |time: MonoNs| {
        let after = track.points.partition_point(|(at, _)| *at <= time);
        after.checked_sub(1).map(|at| track.points[at])
    };
    let before = at(stall.start).or(track.points.first().copied()).unwrap_or((stall.start, 0.0));
    let settled = MonoNs(stall.end.0.saturating_add(SETTLE_NS));
    let next = track.points.iter().find(|(at, _)| *at >= stall.end && *at <= settled);
    let is_sum = track.counter.kind == CounterKind::Sum;
    let after = next.filter(|_| is_sum).copied().or(at(stall.end)).unwrap_or(before);
    [before, (after.0.max(before.0), after.1)]
}

impl Queue {
    /// Bytes before connections: a queue of connections grows where the same process does not accept.
    fn grown(&self) -> (bool, u64) {
        (self.is_bytes, self.at.saturating_sub(self.before))
    }

    /// `0 B to 208 KiB`.
    fn growth(&self) -> String {
        let value = |value: u64| match value {
            _ if !self.is_bytes => value.to_string(),
            0..1_024 => format!("{value} B"),
            1_024..1_048_576 => format!("{:.0} KiB", value as f64 / 1_024.0),
            _ => format!("{:.1} MiB", value as f64 / 1_048_576.0),
        };
        format!("{} to {}", value(self.before), value(self.at))
    }
}

impl Backlog {
    /// `the receive queue udp 127.0.0.1:4000 grew from 0 B to 208 KiB, and 1371 packets were dropped`.
    pub fn words(&self) -> String {
        let queue = self.queue.as_ref().map(|queue| match queue.is_bytes {
            true => format!("the receive queue {} grew from {}", queue.name, queue.growth()),
            false => format!("the connections to be accepted grew from {}", queue.growth()),
        });
        let dropped = match self.dropped {
            0 => None,
            1 => Some("one packet was dropped".to_owned()),
            count => Some(format!("{count} packets were dropped")),
        };
        queue.into_iter().chain(dropped).collect::<Vec<_>>().join(", and ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_model::Counter;
    use wallprof_model::counter::CounterUnit;

    const MS: u64 = 1_000_000;

    fn track(name: &str, points: &[(u64, f64)]) -> CounterTrack {
        let (kind, unit) = match is_drops(name) {
            true => (CounterKind::Sum, CounterUnit::Count),
            false if name == "tcp.backlog" => (CounterKind::Level, CounterUnit::Count),
            false => (CounterKind::Level, CounterUnit::Bytes),
        };
        let points = points.iter().map(|&(ms, value)| (MonoNs(ms * MS), value)).collect();
        CounterTrack { counter: Counter { name: name.into(), thread: None, kind, unit }, points }
    }

    /// During a stall of 150 ms at 5.02 s.
    fn stalled(tracks: &[CounterTrack]) -> Option<Backlog> {
        backlog(tracks, MonoNs(5_020 * MS)..MonoNs(5_170 * MS))
    }

    #[test]
    fn a_queue_that_grew_and_the_packets_that_were_dropped_are_counted() {
        let tracks = [
            track(
                "udp.queue 10.0.0.1:5000",
                &[(1_000, 0.0), (5_000, 0.0), (5_100, 90_000.0), (5_200, 212_992.0), (5_300, 0.0)],
            ),
            track("udp.drops 10.0.0.1:5000", &[(1_000, 7.0), (5_100, 7.0), (5_200, 44.0), (9_000, 44.0)]),
        ];
        let found = stalled(&tracks).expect("a backlog");
        assert_eq!(
            found.words(),
            "the receive queue udp 10.0.0.1:5000 grew from 0 B to 208 KiB, and 37 packets were dropped"
        );
    }

    #[test]
    fn usual_queues_and_earlier_drops_are_none() {
        let busy: Vec<(u64, f64)> =
            (30..70).map(|tick| (tick * 100, if tick % 2 == 0 { 40_000.0 } else { 0.0 })).collect();
        let tracks = [
            track("udp.queue 10.0.0.1:5000", &busy),
            track("udp.drops 10.0.0.1:5000", &[(1_000, 7.0), (3_000, 7.0), (3_100, 44.0), (9_000, 44.0)]),
            track("memory.free", &[(1_000, 9e9), (5_100, 1e6)]),
        ];
        assert_eq!(stalled(&tracks), None);
    }

    #[test]
    fn one_packet_and_few_connections_are_none() {
        let tracks = [
            track("tcp.drops", &[(1_000, 0.0), (5_000, 0.0), (5_200, 1.0)]),
            track("tcp.backlog", &[(1_000, 0.0), (5_000, 0.0), (5_100, 7.0), (5_200, 0.0)]),
        ];
        assert_eq!(stalled(&tracks), None);
    }

    #[test]
    fn stalls_that_follow_each_other_within_a_second_have_each_their_drops() {
        let queue = (0..20)
            .flat_map(|n| [(4_000 + n * 500, 0.0), (4_120 + n * 500, 130_000.0), (4_200 + n * 500, 0.0)]);
        let drops = (0..20)
            .flat_map(|n| [(4_000 + n * 500, n as f64 * 600.0), (4_200 + n * 500, (n + 1) as f64 * 600.0)]);
        let tracks = [
            track("udp.queue 10.0.0.1:5000", &queue.collect::<Vec<_>>()),
            track("udp.drops 10.0.0.1:5000", &drops.collect::<Vec<_>>()),
        ];
        for start in [5_020, 5_520, 6_020] {
            let found = backlog(&tracks, MonoNs(start * MS)..MonoNs((start + 150) * MS)).expect("a backlog");
            assert_eq!(
                found.words(),
                "the receive queue udp 10.0.0.1:5000 grew from 0 B to 127 KiB, and 600 packets were dropped"
            );
        }
    }

    #[test]
    fn times_of_dropped_packets_are_those_between_two_readings() {
        let drops = [(1_000, 7.0), (3_000, 7.0), (3_100, 44.0), (3_200, 46.0), (9_000, 46.0), (9_100, 0.0)];
        let times = dropped(&track("udp.drops 10.0.0.1:5000", &drops));
        let of = |start: u64, end: u64, packets| Dropped {
            between: MonoNs(start * MS)..MonoNs(end * MS),
            packets,
        };
        assert_eq!(times, [of(3_000, 3_100, 37), of(3_100, 3_200, 2)]);
    }

    #[test]
    fn connections_are_counted_and_short_stalls_say_nothing() {
        let tracks = [track("tcp.backlog", &[(1_000, 0.0), (5_000, 0.0), (5_100, 128.0), (5_200, 0.0)])];
        let words = stalled(&tracks).map(|found| found.words());
        assert_eq!(words.as_deref(), Some("the connections to be accepted grew from 0 to 128"));
        assert_eq!(backlog(&tracks, MonoNs(5_050 * MS)..MonoNs(5_059 * MS)), None);
    }
}
