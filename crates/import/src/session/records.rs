// SPDX-License-Identifier: Apache-2.0
//! Records other than samples: mappings, names, starts and ends of threads, switches, losses.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use wallprof_intel_pt::Departure;
use wallprof_model::{Event, Loss, MonoNs, Reason};
use wallprof_symbols::MmapEvent;

use super::Session;
use crate::format::bytes::Bytes;
use crate::format::record::{Mapping, Record, comm_from_bytes};
use crate::format::sample::SampleId;
use crate::machine::{KERNEL, KernelBase};
use crate::threads::Known;
use crate::timeline::{Leave, Stacks};

/// The clock of compilers that dump the code they make.
const CLOCK_MONOTONIC: i32 = 1;

impl Session {
    pub(super) fn take_record(&mut self, time: Option<u64>, id: SampleId, record: Record<'_>) {
        match record {
            Record::Mapping(mapping) => self.mapping(time, mapping),
            Record::Comm { pid, tid, comm, exec } => {
                if exec {
                    self.stacks().processes.clear(pid);
                    if let Some(pt) = &mut self.pt {
                        pt.exec(pid, time.unwrap_or_default());
                    }
                }
                self.threads.name(pid, tid, comm_from_bytes(comm), &mut self.out);
                self.see(time, id.pid, tid);
            }
            Record::Fork { pid, parent_pid, tid, parent_tid, found } => {
                self.threads.fork(pid, tid, parent_pid, parent_tid);
                if !found && time.is_some() && pid != parent_pid {
                    self.stacks().processes.fork(parent_pid, pid);
                    if let Some(pt) = &mut self.pt {
                        pt.fork(parent_pid, pid, time.unwrap_or_default());
                    }
                }
                self.see(time, Some(pid), tid);
            }
            Record::Exit { pid, tid } => self.exit(time, pid, tid),
            Record::Switch { out, preempted, other } => self.switch(time, id, out, preempted, other),
            Record::TraceStart { pid, tid } => self.trace_start(time, id.cpu, Some(pid), tid),
            Record::Lost(count) => self.lose(Loss::PerfLostRecords, count),
            Record::LostSamples(count) => self.lose(Loss::PerfLostSamples, count),
            Record::Throttled => self.lose(Loss::PerfThrottled, 1),
            Record::Aux(filled) => match &mut self.pt {
                Some(pt) => pt.filled(id.cpu, id.tid, filled),
                None => self.lose(Loss::HardwareTraceRecords, 1),
            },
            Record::OtherTrace => self.lose(Loss::HardwareTraceRecords, 1),
            Record::DeferredCallchain => self.lose(Loss::DeferredCallchains, 1),
            Record::FinishedRound
            | Record::EventName { .. }
            | Record::BuildId { .. }
            | Record::IntelPt { .. } => {}
        }
    }

    fn mapping(&mut self, time: Option<u64>, mapping: Mapping<'_>) {
        if mapping.kernel || mapping.pid == u32::MAX {
            if mapping.path.starts_with(KERNEL) {
                self.kernel_base = Some(KernelBase(mapping.start));
            }
            return;
        }
        // `perf inject` adds build ids although no event asked for them. Those have their full length.
        let is_one = |id: &&[u8]| self.events.has_build_ids() || matches!(id.len(), 16 | 20);
        let mapped = mapping.build_id.filter(is_one);
        let inode = if mapped.is_some() { None } else { mapping.inode };
        let build_id = mapped.or_else(|| self.facts.build_id(mapping.path)).map(<[u8]>::to_vec);
        let event = MmapEvent {
            pid: mapping.pid,
            start: mapping.start,
            len: mapping.len,
            file_offset: mapping.file_offset,
            path: OsStr::from_bytes(mapping.path),
            build_id: build_id.as_deref(),
            inode,
            executable: mapping.executable,
        };
        self.stacks().processes.mmap(&event);
        if self.pt.is_some() {
            let located = if event.executable { self.stacks().processes.locate(&event) } else { None };
            let has_its_clock = self.events.clockid() == Some(CLOCK_MONOTONIC);
            if let Some(pt) = &mut self.pt {
                let place = (event.start, event.len, event.file_offset);
                pt.map(event.pid, time.unwrap_or_default(), place, located, mapping.path);
                if event.executable {
                    pt.dump(event.pid, mapping.path, self.options.symfs.as_deref(), has_its_clock);
                }
            }
        }
    }

    /// A record of this thread that does not show its activity.
    fn see(&mut self, time: Option<u64>, pid: Option<u32>, tid: u32) {
        let Some(time) = time else { return };
        self.with_thread(pid, tid, time, time, |known, time, steps| known.timeline.seen(time, steps));
    }

    fn exit(&mut self, time: Option<u64>, pid: u32, tid: u32) {
        if let Some(time) = time {
            self.with_thread(Some(pid), tid, time, time, |known, time, steps| {
                known.timeline.end(time, steps)
            });
            if let Some(known) = self.threads.end(tid) {
                if let Some(pt) = &mut self.pt {
                    pt.end(known.key, time);
                }
                self.end_thread(tid, &known);
            }
        }
        if pid == tid {
            self.stacks().processes.clear(pid);
        }
    }

    /// The thread has ended with its last event so far.
    pub(super) fn end_thread(&mut self, tid: u32, known: &Known) {
        self.threads.set_ended(tid, known);
        self.out.push(Event::ThreadEnd { thread: known.key, at: MonoNs(known.timeline.upto()) });
    }

    /// A record of a switch, in or out. It has no stacks.
    fn switch(
        &mut self,
        time: Option<u64>,
        id: SampleId,
        out: bool,
        preempted: bool,
        other: Option<(u32, u32)>,
    ) {
        let (Some(time), Some(tid)) = (time, id.tid) else { return };
        self.switch_ins_seen |= !out;
        let twice = self.events.switches_twice();
        let key = self.with_thread(id.pid, tid, time, time, |known, time, steps| {
            known.cpu = id.cpu.or(known.cpu);
            let known_already = if out { known.timeline.is_waiting() } else { known.timeline.is_running() };
            let why = if preempted { Leave::Preempted } else { Leave::Blocked(Reason::Other) };
            match out {
                _ if twice && known_already => {}
                true => known.timeline.switch_out(time, why, Stacks::default(), steps),
                false => known.timeline.switch_in(time, steps),
            }
        });
        let Some(cpu) = id.cpu.filter(|_| self.pt.is_some()) else { return };
        let departure = if preempted { Departure::Preempted } else { Departure::Blocked };
        match (out, key) {
            // The next thread has the CPU from here on, a little before its own record.
            (true, _) => {
                let (next_pid, next) = other.unwrap_or_default();
                self.trace_switch(cpu, time, Some(next_pid), next, departure);
            }
            (false, Some(_)) => self.trace_switch(cpu, time, id.pid, tid, Departure::Unknown),
            (false, None) => self.trace_switch(cpu, time, None, 0, Departure::Unknown),
        }
    }

    /// Takes the index of event ids.
    pub(crate) fn id_index(&mut self, body: &[u8]) {
        if let Some(system_wide) = is_system_wide(body) {
            self.system_wide = Some(self.system_wide.unwrap_or(false) || system_wide);
        }
    }
}

/// Whether events were opened for CPUs rather than for threads.
fn is_system_wide(body: &[u8]) -> Option<bool> {
    let mut bytes = Bytes::new(body);
    let count = bytes.u64()?;
    let words: Vec<u64> = bytes.u64s(count.checked_mul(4)?)?.collect();
    // Entries are id, index, CPU and thread.
    Some(words.chunks_exact(4).any(|entry| entry[3] as u32 == u32::MAX && entry[2] as u32 != u32::MAX))
}

#[cfg(test)]
mod tests {
    use wallprof_intel_pt::generator::record::words;

    use super::*;

    #[test]
    fn events_of_cpus_are_system_wide() {
        let index = |entries: &[[u64; 4]]| words(&[&[entries.len() as u64][..], &entries.concat()].concat());
        let no_thread = u64::from(u32::MAX);
        assert_eq!(is_system_wide(&index(&[[5, 0, 0, 77], [6, 1, 1, no_thread]])), Some(true));
        assert_eq!(is_system_wide(&index(&[[5, 0, 0, 77]])), Some(false));
        assert_eq!(is_system_wide(&index(&[[5, 0, 0, 77]])[..20]), None);
    }
}
