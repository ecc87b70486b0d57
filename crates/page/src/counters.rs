// SPDX-License-Identifier: Apache-2.0
//! Counters and marks of the page.

use serde::Serialize;
use wallprof_model::ThreadKey;
use wallprof_model::counter::{CounterTrack, Mark};

use crate::columns::Columns;
use crate::names::Names;

/// Limit on all values of all counters.
const MOST_VALUES: usize = 60_000;
const MOST_MARKS: usize = 10_000;
/// The largest number up to which floats hold every integer.
const MOST_INTEGER: f64 = 9_007_199_254_740_991.0;

/// A counter, and where its values are in the columns.
#[derive(Debug, Serialize)]
pub struct CounterHead {
    name: u32,
    /// The index of a thread of its process and 1; 0: it is of the machine.
    thread: u32,
    kind: &'static str,
    unit: &'static str,
    from: usize,
    count: usize,
    /// The value is in `counter_integer`, else in `counter_float`.
    integer: bool,
    value_from: usize,
}

/// What was left out of the counters and marks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// One value of this many was kept, where it is more than 1.
    pub every: usize,
    pub marks: usize,
}

pub fn write(
    tracks: &[CounterTrack],
    start: u64,
    thread: impl Fn(ThreadKey) -> u32,
    names: &mut Names,
    columns: &mut Columns,
) -> (Vec<CounterHead>, LeftOut) {
    let moving: Vec<&CounterTrack> = tracks.iter().filter(|track| track.points.len() > 1).collect();
    let values: usize = moving.iter().map(|track| track.points.len()).sum();
    let every = values.div_ceil(MOST_VALUES).max(1);
    let (mut times, mut integers, mut floats) = (Vec::new(), Vec::new(), Vec::new());
    let mut heads = Vec::new();
    for track in moving {
        let from = times.len();
        let last = track.points.len() - 1;
        let kept = || track.points.iter().enumerate().filter(|(at, _)| at % every == 0 || *at == last);
        times.extend(kept().map(|(_, (at, _))| at.0.saturating_sub(start).cast_signed()));
        let integer = kept().all(|(_, (_, value))| value.fract() == 0.0 && value.abs() <= MOST_INTEGER);
        let value_from = if integer { integers.len() } else { floats.len() };
        for (_, (_, value)) in kept() {
            match integer {
                true => integers.push(*value as i64),
                false => floats.push(*value),
            }
        }
        let counter = &track.counter;
        heads.push(CounterHead {
            name: names.number(&counter.name),
            thread: counter.thread.map_or(0, &thread),
            kind: counter.kind.name(),
            unit: counter.unit.name(),
            from,
            count: times.len() - from,
            integer,
            value_from,
        });
    }
    columns.deltas("counter_time", times.into_iter());
    columns.deltas("counter_integer", integers.into_iter());
    columns.floats("counter_float", floats.into_iter());
    (heads, LeftOut { every, marks: 0 })
}

/// The first marks, in the order of their time. Returns how many were left out.
pub fn write_marks(marks: &[Mark], start: u64, names: &mut Names, columns: &mut Columns) -> usize {
    let kept = &marks[..marks.len().min(MOST_MARKS)];
    let offset = |at: u64| (at.min(i64::MAX as u64) as i64).saturating_sub_unsigned(start);
    columns.deltas("mark_time", kept.iter().map(|mark| offset(mark.at.0)));
    columns.unsigned("mark_duration", kept.iter().map(|mark| mark.duration_ns.unwrap_or(0)));
    columns.unsigned("mark_text", kept.iter().map(|mark| u64::from(names.number(&mark.text))));
    marks.len() - kept.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_model::MonoNs;
    use wallprof_model::counter::{Counter, CounterKind, CounterUnit};

    fn track(name: &str, values: impl Iterator<Item = f64>) -> CounterTrack {
        let counter =
            Counter { name: name.into(), thread: None, kind: CounterKind::Level, unit: CounterUnit::Plain };
        CounterTrack { counter, points: values.zip(10u64..).map(|(value, at)| (MonoNs(at), value)).collect() }
    }

    #[test]
    fn values_are_integers_where_all_of_a_counter_are() {
        let tracks = [track("a", [1.0, 2.0].into_iter()), track("b", [0.5, f64::NAN].into_iter())];
        let (mut names, mut columns) = (Names::default(), Columns::default());
        let (heads, left_out) = write(&tracks, 10, |_| 0, &mut names, &mut columns);
        let places: Vec<_> =
            heads.iter().map(|head| (head.from, head.count, head.integer, head.value_from)).collect();
        assert_eq!(places, [(0, 2, true, 0), (2, 2, false, 0)]);
        assert_eq!(left_out, LeftOut { every: 1, marks: 0 });
    }

    #[test]
    fn many_values_are_thinned_evenly_and_the_last_one_stays() {
        let tracks = [track("a", (0..MOST_VALUES * 3).map(|value| value as f64))];
        let (mut names, mut columns) = (Names::default(), Columns::default());
        let (heads, left_out) = write(&tracks, 10, |_| 0, &mut names, &mut columns);
        assert_eq!((left_out.every, heads[0].count), (3, MOST_VALUES + 1));
    }

    #[test]
    fn marks_beyond_the_limit_are_counted() {
        let mark = |at| Mark { at: MonoNs(at), duration_ns: None, text: "alarm".into() };
        let marks: Vec<Mark> = (0..MOST_MARKS as u64 + 3).map(mark).collect();
        let left = write_marks(&marks, 0, &mut Names::default(), &mut Columns::default());
        assert_eq!(left, 3);
    }
}
