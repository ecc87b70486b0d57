// SPDX-License-Identifier: Apache-2.0
//! Counters and marks for readers: the values around a time. Memory holds a few seconds of them, whatever the
//! length of the recording, as long as callers ask for increasing times.

use std::ops::Range;

use rusqlite::{Result as SqlResult, Row};
use wallprof_model::counter::{Counter, CounterKind, CounterTrack, CounterUnit, Mark};
use wallprof_model::{MonoNs, ThreadKey};

use crate::error::Result;
use crate::reader::Reader;
use crate::row::{columns, named, optional_unsigned, unsigned};

columns! {
    mod point { MONO_NS = "mono_ns", VALUE = "value" }
}

/// The time span that is read at once.
const CHUNK_NS: u64 = 10_000_000_000;
/// Limit on counters.
const MAX_COUNTERS: i64 = 4096;
/// Limit on the values of one counter in one span. Ten a second are usual.
const MAX_POINTS: i64 = 65_536;
/// Limit on the values of a whole recording. Beyond it, they are thinned evenly.
const MAX_WHOLE: usize = 1 << 22;
/// The same for one counter: two hours of ten a second.
const MAX_WHOLE_OF_ONE: usize = 1 << 16;
/// Before a part, levels are read from here on.
const BEFORE_A_PART_NS: u64 = 60_000_000_000;
/// Limit on marks.
const MAX_MARKS: i64 = 100_000;

/// The values from a time to another, and the last one before.
const AROUND: &str = "AND mono_ns <= ?3 AND mono_ns >= coalesce(
         (SELECT max(mono_ns) FROM counter WHERE series = ?1 AND mono_ns <= ?2), ?2)
     ORDER BY mono_ns";

fn select() -> String {
    format!("SELECT {} FROM counter WHERE series = ?1", point::LIST)
}

/// The counters of a recording.
pub struct Counters<'r> {
    reader: &'r Reader,
    /// Row and process of each counter. Process 0 stands for the machine.
    series: Vec<(i64, u32)>,
    loaded: Range<u64>,
    tracks: Vec<CounterTrack>,
}

impl<'r> Counters<'r> {
    pub(crate) fn new(reader: &'r Reader) -> SqlResult<Self> {
        // The machine's, and those of the newest processes.
        let sql = format!(
            "SELECT * FROM (
                 SELECT counter_series.id AS id, name, thread, kind, unit, thread.pid AS pid FROM counter_series
                     LEFT JOIN thread ON thread.id = counter_series.thread
                 WHERE counter_series.thread IS NULL OR thread.pid IS NOT NULL
                 ORDER BY thread IS NOT NULL, id DESC LIMIT {MAX_COUNTERS})
             ORDER BY id"
        );
        let rows = reader.collect(&sql, |row| {
            let counter = Counter {
                name: row.get("name")?,
                thread: row.get::<_, Option<u32>>("thread")?.map(ThreadKey),
                kind: named(row, "kind", CounterKind::from_name)?,
                unit: named(row, "unit", CounterUnit::from_name)?,
            };
            Ok(((row.get("id")?, row.get::<_, Option<u32>>("pid")?.unwrap_or(0)), counter))
        })?;
        let (series, counters): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
        let tracks = counters.into_iter().map(|counter| CounterTrack { counter, points: Vec::new() });
        Ok(Counters { reader, series, loaded: 0..0, tracks: tracks.collect() })
    }

    /// Whether the recording has no counters.
    pub fn is_empty(&self) -> bool {
        self.series.is_empty()
    }

    /// The counters of the machine and of process `pid`, with at least their values in `range` and the last
    /// value before it.
    pub fn around(&mut self, pid: u32, range: Range<MonoNs>) -> Result<Vec<&CounterTrack>> {
        let range = range.start.0..range.end.0;
        if !self.series.is_empty() && (range.start < self.loaded.start || range.end > self.loaded.end) {
            let end = range.end.max(range.start.saturating_add(CHUNK_NS));
            self.load(range.start..end).map_err(|error| self.reader.failed(error))?;
        }
        let theirs = |(index, _): &(usize, &CounterTrack)| [0, pid].contains(&self.series[*index].1);
        Ok(self.tracks.iter().enumerate().filter(theirs).map(|(_, track)| track).collect())
    }

    /// Calls `found` for every value in a time, by counter and time. No value is left out, and memory is constant.
    pub fn each_value(
        &self,
        during: Range<MonoNs>,
        mut found: impl FnMut(&Counter, MonoNs, f64),
    ) -> Result<()> {
        self.each(during, &mut found).map_err(|error| self.reader.failed(error))
    }

    fn each(&self, during: Range<MonoNs>, found: &mut dyn FnMut(&Counter, MonoNs, f64)) -> SqlResult<()> {
        let within = "AND mono_ns >= ?2 AND mono_ns < ?3 ORDER BY mono_ns";
        let mut find = self.reader.connection().prepare_cached(&format!("{} {within}", select()))?;
        for ((id, _), track) in self.series.iter().zip(&self.tracks) {
            let parameters = [*id, signed(during.start.0), signed(during.end.0)];
            for point in find.query_map(parameters, point_from_row)? {
                let (at, value) = point?;
                found(&track.counter, at, value);
            }
        }
        Ok(())
    }

    /// The counters of the machine that `is_selected` by name, over the whole recording, or the part of it that is read.
    pub fn whole(&self, is_selected: impl Fn(&str) -> bool) -> Result<Vec<CounterTrack>> {
        self.whole_of(|pid| pid == 0, is_selected)
    }

    /// The same of the counters of processes.
    pub fn whole_of_processes(&self, is_selected: impl Fn(&str) -> bool) -> Result<Vec<CounterTrack>> {
        self.whole_of(|pid| pid != 0, is_selected)
    }

    fn whole_of(
        &self,
        is_owner: impl Fn(u32) -> bool,
        is_selected: impl Fn(&str) -> bool,
    ) -> Result<Vec<CounterTrack>> {
        let all = self.series.iter().zip(&self.tracks);
        let is_wanted = |((_, pid), track): &(&(i64, u32), &CounterTrack)| {
            is_owner(*pid) && is_selected(&track.counter.name)
        };
        let selected: Vec<_> = all.filter(is_wanted).collect();
        let most = (MAX_WHOLE / selected.len().max(1)).min(MAX_WHOLE_OF_ONE);
        let tracks = selected.into_iter().map(|((id, _), track)| {
            let points = self.points(*id, track.counter.kind, most)?;
            Ok(CounterTrack { counter: track.counter.clone(), points })
        });
        tracks.collect::<SqlResult<_>>().map_err(|error| self.reader.failed(error))
    }

    /// All values, or, of more than `most`, every second, every fourth … one. A sum over a part starts with the value that it
    /// had then; a level has values before, which waits that began there are compared with.
    fn points(&self, id: i64, kind: CounterKind, most: usize) -> SqlResult<Vec<(MonoNs, f64)>> {
        let mut during = self.reader.during();
        if kind == CounterKind::Level {
            during.start = MonoNs(during.start.0.saturating_sub(BEFORE_A_PART_NS));
        }
        let mut find = self.reader.connection().prepare_cached(&format!("{} {AROUND}", select()))?;
        let mut points = Vec::new();
        let mut step = 1;
        let rows = find.query_map([id, signed(during.start.0), signed(during.end.0)], point_from_row)?;
        for (at, row) in rows.enumerate() {
            let (time, value) = row?;
            let point = (time.max(during.start), value);
            if at % step != 0 {
                continue;
            }
            if points.len() >= most {
                let mut even = [true, false].into_iter().cycle();
                points.retain(|_| even.next() == Some(true));
                step *= 2;
            }
            if at % step == 0 {
                points.push(point);
            }
        }
        Ok(points)
    }

    fn load(&mut self, range: Range<u64>) -> SqlResult<()> {
        let mut find = self.reader.connection().prepare_cached(&format!("{} {AROUND} LIMIT ?4", select()))?;
        for ((id, _), track) in self.series.iter().zip(&mut self.tracks) {
            let parameters = [*id, signed(range.start), signed(range.end), MAX_POINTS];
            let rows = find.query_map(parameters, point_from_row)?;
            track.points = rows.collect::<SqlResult<_>>()?;
        }
        self.loaded = range;
        Ok(())
    }
}

fn signed(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}

fn point_from_row(row: &Row<'_>) -> SqlResult<(MonoNs, f64)> {
    Ok((MonoNs(unsigned(row, point::MONO_NS)?), row.get(point::VALUE)?))
}

/// All marks, oldest first.
pub(crate) fn marks(reader: &Reader) -> SqlResult<Vec<Mark>> {
    let sql = format!("SELECT mono_ns, duration_ns, text FROM mark ORDER BY mono_ns, id LIMIT {MAX_MARKS}");
    reader.collect(&sql, |row| {
        Ok(Mark {
            at: MonoNs(unsigned(row, "mono_ns")?),
            duration_ns: optional_unsigned(row, "duration_ns")?,
            text: row.get("text")?,
        })
    })
}
