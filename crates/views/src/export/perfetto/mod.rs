// SPDX-License-Identifier: Apache-2.0
//! Perfetto's trace format, for <https://ui.perfetto.dev>: the protocol buffers of `messages`.
//!
//! A stall is a slice of its thread: its name is its meaning or reason, and its annotations are the columns
//! of `wallprof stalls --json` with both stacks. The part after the wakeup is a slice `runnable` in it, and a
//! flow leads there from the thread that woke it. Perfetto's scheduler tracks need each switch with its CPU,
//! which a recording does not hold: shorter intervals are sums by the second. Those are counters. Stacks with
//! their weights by the second are samples, one after the other.

mod messages;
mod samples;
mod sequence;
mod stall;
mod sums;
mod tracks;

use std::borrow::Cow;
use std::io;

use wallprof_analysis::bins::BinnedStacks;
use wallprof_model::MonoNs;
use wallprof_model::counter::{CounterKind, CounterTrack, CounterUnit, Mark};
use wallprof_model::profile::{LedgerRow, RecordingInfo, StallRecord, Thread};

use self::messages::{DebugAnnotation, EventType, TrackEvent, UNIT_COUNT, UNIT_SIZE_BYTES, UNIT_TIME_NS};
use self::sequence::Sequence;
use self::sums::Sums;
use self::tracks::{Owner, Tracks};
use super::format::{ExportFormat, Rows};
use super::timeline::Timeline;
use crate::escape::escape;

pub(super) const FORMAT: ExportFormat = ExportFormat {
    name: "perfetto",
    about: "A trace for ui.perfetto.dev: stacks by second, and each stall on its thread, with the thread that ended it",
    counts_calls_in_names: false,
    rows: Rows::Timeline(|out, info, threads| Ok(Box::new(Trace::start(Sequence::new(out), info, threads)?))),
};

struct Trace<'a> {
    out: Sequence<'a>,
    info: &'a RecordingInfo,
    tracks: Tracks,
    sums: Sums,
}

impl<'a> Trace<'a> {
    fn start(mut out: Sequence<'a>, info: &'a RecordingInfo, threads: &[Thread]) -> io::Result<Self> {
        let has_time_of_day = !info.clock.anchors().is_empty();
        out.clocks(info.start, has_time_of_day.then(|| info.clock.epoch_from_mono(info.start)))?;
        let mut tracks = Tracks::default();
        threads.iter().try_for_each(|thread| tracks.add_thread(&mut out, thread))?;
        Ok(Trace { out, info, tracks, sums: Sums::default() })
    }
}

impl Timeline for Trace<'_> {
    fn stacks(&mut self, stacks: &BinnedStacks, threads: &[Thread]) -> io::Result<()> {
        samples::write(self, stacks, threads)
    }

    fn stall(&mut self, stall: &StallRecord) -> io::Result<()> {
        stall::write(&mut self.out, &mut self.tracks, stall)
    }

    fn second(&mut self, row: &LedgerRow) -> io::Result<()> {
        self.sums.add(&mut self.out, &mut self.tracks, self.info, row)
    }

    fn counter(&mut self, track: &CounterTrack) -> io::Result<()> {
        let parent = match track.counter.thread.map(|key| self.tracks.process_of(key)) {
            Some(None) => return Ok(()),
            Some(parent) => parent,
            None => None,
        };
        let unit = match track.counter.unit {
            CounterUnit::Plain => None,
            CounterUnit::Count => Some(UNIT_COUNT),
            CounterUnit::Bytes => Some(UNIT_SIZE_BYTES),
            CounterUnit::Ns => Some(UNIT_TIME_NS),
        };
        let name = escape(&track.counter.name);
        let (name, points) = match track.counter.kind {
            CounterKind::Level => (name.into_owned(), Cow::from(&track.points)),
            CounterKind::Sum => (format!("{name}/s"), Cow::from(rates(&track.points))),
        };
        let uuid = self.tracks.new_counter(&mut self.out, parent, name, unit)?;
        points.iter().try_for_each(|(at, value)| {
            let event = TrackEvent::on(uuid, EventType::Counter);
            self.out.event(*at, TrackEvent { double_counter_value: Some(*value), ..event })
        })
    }

    fn mark(&mut self, mark: &Mark) -> io::Result<()> {
        let row = self.tracks.row(&mut self.out, Owner::Marks, (mark.at, mark.end()))?;
        let is_slice = row.is_free && mark.duration_ns.is_some();
        let kind = if is_slice { EventType::SliceBegin } else { EventType::Instant };
        let mut begin = TrackEvent::on(row.track, kind);
        begin.name_iid = Some(self.out.name(&escape(&mark.text)));
        if let Some(duration_ns) = mark.duration_ns {
            let duration = self.out.annotation("duration_ns");
            begin.debug_annotations.push(DebugAnnotation { uint_value: Some(duration_ns), ..duration });
        }
        self.out.event(mark.at, begin)?;
        if is_slice {
            self.out.event(mark.end(), TrackEvent::on(row.track, EventType::SliceEnd))?;
        }
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        self.sums.finish(&mut self.out, self.info)
    }
}

/// A sum's growth per second from each point to the next. A sum that falls has started again.
fn rates(points: &[(MonoNs, f64)]) -> Vec<(MonoNs, f64)> {
    let rate = |pair: &[(MonoNs, f64)]| match pair {
        &[(from, before), (to, after)] if to > from => {
            let seconds = (to.0 - from.0) as f64 / 1e9;
            Some((from, (after - before).max(0.0) / seconds))
        }
        _ => None,
    };
    points.windows(2).filter_map(rate).collect()
}

#[cfg(test)]
mod tests;
