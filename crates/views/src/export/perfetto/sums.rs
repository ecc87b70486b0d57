// SPDX-License-Identifier: Apache-2.0
//! The ledger as counters: the time of each second that a thread spent in a state.

use std::collections::HashMap;
use std::io;

use wallprof_model::profile::{LedgerRow, RecordingInfo};
use wallprof_model::{EpochNs, MonoNs, Reason, State, ThreadKey};

use super::messages::{EventType, TrackEvent, UNIT_TIME_NS};
use super::sequence::Sequence;
use super::tracks::Tracks;

const SECOND_NS: u64 = 1_000_000_000;

#[derive(Default)]
pub(super) struct Sums {
    counters: HashMap<(ThreadKey, usize), Counter>,
}

#[derive(Clone, Copy)]
struct Counter {
    track: u64,
    value: u64,
    second: u32,
}

impl Sums {
    /// Rows come in the order of their seconds.
    pub fn add(
        &mut self,
        out: &mut Sequence<'_>,
        tracks: &mut Tracks,
        info: &RecordingInfo,
        row: &LedgerRow,
    ) -> io::Result<()> {
        let Some(parent) = tracks.thread(row.thread) else { return Ok(()) };
        for (index, (name, value)) in states(row).into_iter().enumerate() {
            let key = (row.thread, index);
            let mut counter = match self.counters.get(&key) {
                Some(known) => *known,
                None if value == 0 => continue,
                None => {
                    let track = tracks.new_counter(out, Some(parent), name, Some(UNIT_TIME_NS))?;
                    Counter { track, value: 0, second: row.second.0 }
                }
            };
            let gap = counter.second.saturating_add(1);
            if counter.value != 0 && gap < row.second.0 {
                emit(out, info, counter.track, gap, 0)?;
                counter.value = 0;
            }
            if counter.value != value {
                emit(out, info, counter.track, row.second.0, value)?;
            }
            self.counters.insert(key, Counter { value, second: row.second.0, ..counter });
        }
        Ok(())
    }

    /// Ends the counters after their last second.
    pub fn finish(&self, out: &mut Sequence<'_>, info: &RecordingInfo) -> io::Result<()> {
        let mut open: Vec<_> = self.counters.values().filter(|counter| counter.value != 0).collect();
        open.sort_unstable_by_key(|counter| counter.track);
        open.into_iter()
            .try_for_each(|counter| emit(out, info, counter.track, counter.second.saturating_add(1), 0))
    }
}

/// The exact sums. Running time is not divided into user and kernel: a second has too few samples for that.
fn states(row: &LedgerRow) -> Vec<(String, u64)> {
    let fixed = [
        ("on CPU".to_string(), row.on_cpu_ns),
        (State::Runnable.label(), row.runnable_ns),
        (State::Preempted.label(), row.preempted_ns),
        (State::FaultMinor.label(), row.fault_minor_ns),
        (State::FaultMajor.label(), row.fault_major_ns),
    ];
    let blocked = Reason::ALL
        .into_iter()
        .map(|reason| (State::Blocked(reason).label(), row.blocked_ns[usize::from(reason.code())]));
    fixed.into_iter().chain(blocked).collect()
}

fn emit(out: &mut Sequence<'_>, info: &RecordingInfo, track: u64, second: u32, value: u64) -> io::Result<()> {
    let start = info.clock.mono_from_epoch(EpochNs(u64::from(second).saturating_mul(SECOND_NS)));
    let at = MonoNs(start.0.clamp(info.start.0, info.end.0.max(info.start.0)));
    let value = i64::try_from(value).unwrap_or(i64::MAX);
    out.event(at, TrackEvent { counter_value: Some(value), ..TrackEvent::on(track, EventType::Counter) })
}
