// SPDX-License-Identifier: Apache-2.0
//! Intel PT in perf.data: facts about a trace are collected while records are read. After the last record the
//! trace is decoded and its calls are emitted.
//!
//! The trace stays in its file. It is read in pieces, decoded on all CPUs and dropped. Only a tree of call
//! paths remains for each thread.

mod buffers;
mod code;
mod decoding;
mod filters;
mod frames;
mod image;
mod jit;
mod kernel;
mod reader;
mod running;
mod spaces;
mod spill;
mod switches;
mod waits;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use wallprof_intel_pt::{ClockFacts, Departure, Schedule, SpaceId, ThreadId, TimeConv};
use wallprof_model::{ModuleId, ThreadKey};

use crate::format::filters::parse;
use crate::format::records::Passed;
use crate::format::trace::{Filled, TraceInfo};
use crate::options::TraceLimits;
use buffers::{Buffer, Buffers, Followed};
use decoding::Source;
use filters::Filters;
use jit::DumpFile;
use spaces::{Origin, Region, Spaces};
use spill::Spill;
use switches::Switches;

pub(crate) use code::Programs;
pub(crate) use decoding::{DecodeError, Job, Watcher, decode};
pub(crate) use frames::Frames;
pub(crate) use kernel::{Kernel, kernel_folder};
pub(crate) use running::{Running, Traced};
pub(crate) use waits::{LongWait, Waits};

/// The numbers of a thread in traces and switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ThreadIds {
    tid: u32,
    pid: u32,
}

/// The facts collected about a recording with Intel PT.
#[derive(Default)]
pub(crate) struct IntelPt {
    info: Option<TraceInfo>,
    /// The text of the recording's address filters.
    filters: Vec<u8>,
    /// The paths of mapped files, for the resolution of filters.
    files: HashMap<ModuleId, Vec<u8>>,
    time_conv: Option<TimeConv>,
    buffers: Buffers,
    switches: Switches,
    spaces: Spaces,
    threads: BTreeMap<ThreadId, ThreadIds>,
    ends: HashMap<ThreadId, u64>,
    dumps: Vec<DumpFile>,
    /// Code that will be made, by its time: the process and the memory.
    pending_code: BTreeMap<u64, Vec<(u32, Region)>>,
}

/// Dumps of all processes together.
const MAX_DUMPS: usize = 4096;

/// The decoder's number for a thread. 0 is no thread.
pub(crate) fn thread_id(key: ThreadKey) -> ThreadId {
    ThreadId(key.0.saturating_add(1))
}

pub(crate) fn thread_key(thread: ThreadId) -> ThreadKey {
    ThreadKey(thread.0.saturating_sub(1))
}

impl IntelPt {
    /// Whether the recording says when threads were on a CPU.
    pub(crate) fn has_switches(&self) -> bool {
        self.info.is_some_and(|info| info.has_switches)
    }

    pub(crate) fn describe(&mut self, info: TraceInfo, filters: &[u8]) {
        self.filters = filters.to_vec();
        self.time_conv = info.time_conv.or(self.time_conv);
        self.info = Some(info);
    }

    pub(crate) fn set_time_conv(&mut self, time_conv: TimeConv) {
        self.time_conv = Some(time_conv);
    }

    pub(crate) fn add_piece(&mut self, passed: Passed) {
        self.buffers.add(passed);
    }

    pub(crate) fn filled(&mut self, cpu: Option<u32>, tid: Option<u32>, filled: Filled) {
        self.buffers.filled(cpu, tid, filled);
    }

    /// From `time` on `cpu` runs this thread. `departure`: the way in which the previous thread left.
    pub(crate) fn switch_in(
        &mut self,
        cpu: u32,
        time: u64,
        key: ThreadKey,
        tid: u32,
        pid: u32,
        departure: Departure,
    ) {
        self.advance(time);
        let thread = self.meet(key, tid, pid);
        self.switches.switch(cpu, time, thread, pid, self.spaces.of(pid), departure);
    }

    /// From `time` on `cpu` runs no recorded thread.
    pub(crate) fn switch_out(&mut self, cpu: u32, time: u64, departure: Departure) {
        self.switches.switch(cpu, time, ThreadId::NONE, 0, SpaceId::default(), departure);
    }

    /// A thread that a trace may follow.
    pub(crate) fn meet(&mut self, key: ThreadKey, tid: u32, pid: u32) -> ThreadId {
        let thread = thread_id(key);
        self.threads.insert(thread, ThreadIds { tid, pid });
        thread
    }

    pub(crate) fn end(&mut self, key: ThreadKey, time: u64) {
        self.ends.insert(thread_id(key), time);
    }

    /// The process maps `[start, start + len)` of the file at `path`. `located`: the module, and the
    /// difference between its addresses and ELF virtual ones.
    pub(crate) fn map(
        &mut self,
        pid: u32,
        time: u64,
        (start, len, file_offset): (u64, u64, u64),
        located: Option<(ModuleId, u64)>,
        path: &[u8],
    ) {
        self.advance(time);
        let before = self.spaces.of(pid);
        let end = start.saturating_add(len);
        match located {
            Some((module, bias)) => {
                let to_offset = file_offset.wrapping_sub(start);
                let origin = Origin::Module(module);
                self.files.entry(module).or_insert_with(|| path.to_vec());
                self.spaces.map(pid, Region { start, end, origin, bias, to_offset });
            }
            None => self.spaces.unmap(pid, start, end),
        }
        self.remapped(pid, time, before);
    }

    /// The process maps the file at `path`, which may be a compiler's dump. `has_its_clock`: times of records
    /// are by CLOCK_MONOTONIC, the clock of dumps.
    pub(crate) fn dump(&mut self, pid: u32, path: &[u8], root: Option<&Path>, has_its_clock: bool) {
        if self.dumps.len() >= MAX_DUMPS {
            return;
        }
        let Some((dump, in_ticks)) = jit::open(path, root) else { return };
        let origin = Origin::Dump(self.dumps.len() as u32);
        for load in &dump.loads {
            let time = match (in_ticks, self.time_conv) {
                (true, Some(time_conv)) => time_conv.ns_from_ticks(load.time),
                (false, _) if has_its_clock => load.time,
                _ => 0,
            };
            let (start, end) = (load.address, load.address + load.size);
            let to_offset = load.offset.wrapping_sub(start);
            let region = Region { start, end, origin, bias: to_offset, to_offset };
            self.pending_code.entry(time).or_default().push((pid, region));
        }
        self.dumps.push(dump);
    }

    /// Maps all code that was made up to `time`.
    fn advance(&mut self, time: u64) {
        while let Some(first) = self.pending_code.first_entry().filter(|first| *first.key() <= time) {
            let (time, made) = first.remove_entry();
            for (pid, region) in made {
                let before = self.spaces.of(pid);
                self.spaces.map(pid, region);
                self.remapped(pid, time, before);
            }
        }
    }

    pub(crate) fn fork(&mut self, parent: u32, child: u32, time: u64) {
        self.advance(time);
        let before = self.spaces.of(child);
        self.spaces.fork(parent, child);
        self.remapped(child, time, before);
    }

    pub(crate) fn exec(&mut self, pid: u32, time: u64) {
        self.advance(time);
        let before = self.spaces.of(pid);
        self.spaces.clear(pid);
        self.remapped(pid, time, before);
    }

    fn remapped(&mut self, pid: u32, time: u64, before: SpaceId) {
        let now = self.spaces.of(pid);
        if now != before {
            self.switches.remap(pid, time, now);
        }
    }

    /// Threads that have a buffer of their own, but are in no record.
    pub(crate) fn untracked(&self) -> Vec<u32> {
        let known: HashSet<u32> = self.threads.values().map(|ids| ids.tid).collect();
        let followed = self.buffers.followed_threads();
        followed.into_iter().filter(|tid| !known.contains(tid)).collect()
    }

    pub(crate) fn pieces(&self) -> u64 {
        self.buffers.pieces()
    }

    pub(crate) fn refused_pieces(&self) -> u64 {
        self.buffers.refused()
    }

    pub(crate) fn lost_mappings(&self) -> u64 {
        self.spaces.lost()
    }

    /// Prepares the decoding. `config` is that of the trace's event.
    pub(crate) fn prepared(
        mut self,
        config: impl FnOnce(u32) -> Option<u64>,
        limits: &TraceLimits,
    ) -> Prepared {
        self.advance(u64::MAX);
        let info = self.info.unwrap_or_default();
        let filters = parse(&self.filters).ok().and_then(|filters| Filters::resolved(&filters, &self.files));
        let config = config(info.pmu).unwrap_or_default();
        let time_conv = self.time_conv.unwrap_or(TimeConv::NANOSECONDS);
        let wanted: Option<HashSet<ThreadId>> = (!limits.tids.is_empty()).then(|| {
            let of_tid = |(_, ids): &(&ThreadId, &ThreadIds)| limits.tids.contains(&ids.tid);
            self.threads.iter().filter(of_tid).map(|(&thread, _)| thread).collect()
        });
        let is_wanted = |buffer: &Buffer| match buffer.followed {
            Followed::Cpu(cpu) => limits.cpus.is_empty() || limits.cpus.contains(&cpu),
            Followed::Thread(tid) => limits.tids.is_empty() || limits.tids.contains(&tid),
        };
        let buffers: Vec<Buffer> =
            self.buffers.joined(info.is_snapshot).into_iter().filter(is_wanted).collect();
        let switches = &mut self.switches;
        let mut of_cpus: HashMap<u32, Arc<Schedule>> = HashMap::new();
        let schedules = buffers.iter().map(|buffer| match buffer.followed {
            Followed::Cpu(cpu) => {
                let taken = || Arc::new(switches.take_cpu(cpu, time_conv, wanted.as_ref()));
                Arc::clone(of_cpus.entry(cpu).or_insert_with(taken))
            }
            Followed::Thread(tid) => {
                // Several threads had this number one after the other: the first one is followed.
                let found = self.threads.iter().find(|(_, ids)| ids.tid == tid);
                let (thread, pid) = found.map_or((ThreadId::NONE, 0), |(thread, ids)| (*thread, ids.pid));
                Arc::new(switches.of_thread(thread, pid, time_conv))
            }
        });
        let schedules = schedules.collect();
        let ends = self.ends.iter().map(|(&thread, &time)| (thread, time_conv.ticks_from_ns(time))).collect();
        let pids = self.threads.iter().map(|(&thread, ids)| (thread, ids.pid)).collect();
        Prepared {
            has_all_cpus: limits.cpus.is_empty(),
            unknown_filters: u64::from(filters.is_none()),
            filters: filters.unwrap_or_default(),
            return_compression: config & no_return_compression(&info) == 0,
            resolution_ns: resolution_ns(&info, config, time_conv),
            is_snapshot: info.is_snapshot,
            clock: clock(&info, config),
            time_conv,
            buffers,
            schedules,
            spill: Arc::clone(self.switches.spill()),
            spaces: self.spaces,
            dumps: self.dumps,
            ends,
            pids,
        }
    }
}

/// A recording that is ready to be decoded.
pub(crate) struct Prepared {
    pub time_conv: TimeConv,
    /// All CPUs are decoded, so a thread that is not seen any more is off the CPU.
    pub has_all_cpus: bool,
    pub return_compression: bool,
    pub is_snapshot: bool,
    pub resolution_ns: Option<u64>,
    pub spaces: Spaces,
    pub dumps: Vec<DumpFile>,
    pub filters: Filters,
    /// Number of filter texts that are not understood, or name a file that is not mapped.
    pub unknown_filters: u64,
    /// The ends of threads, in ticks.
    pub ends: HashMap<ThreadId, u64>,
    /// The process of each thread.
    pub pids: HashMap<ThreadId, u32>,
    clock: ClockFacts,
    buffers: Vec<Buffer>,
    schedules: Vec<Arc<Schedule>>,
    spill: Arc<Spill>,
}

impl Prepared {
    pub(crate) fn sources(&self) -> Vec<Source<'_>> {
        let pairs = self.buffers.iter().zip(&self.schedules);
        pairs
            .map(|(buffer, schedule)| Source {
                buffer,
                schedule,
                clock: ClockFacts { reference_ticks: buffer.reference, ..self.clock },
            })
            .collect()
    }

    /// The error at reading switches back, if there was one.
    pub(crate) fn take_error(&self) -> Option<std::io::Error> {
        self.spill.take_error()
    }

    /// Bytes of trace.
    pub(crate) fn size(&self) -> u64 {
        self.buffers.iter().map(Buffer::size).sum()
    }
}

fn no_return_compression(info: &TraceInfo) -> u64 {
    const SINCE_THE_FIRST_PROCESSORS: u64 = 1 << 11;
    if info.no_return_compression == 0 { SINCE_THE_FIRST_PROCESSORS } else { info.no_return_compression }
}

fn clock(info: &TraceInfo, config: u64) -> ClockFacts {
    ClockFacts {
        mtc_shift: field(config, info.mtc_period) as u8,
        tsc_ctc_numerator: info.tsc_ctc_numerator,
        tsc_ctc_denominator: info.tsc_ctc_denominator,
        max_non_turbo_ratio: info.max_non_turbo_ratio,
        reference_ticks: 0,
    }
}

/// The bits `mask` of `config`, shifted down.
fn field(config: u64, mask: u64) -> u64 {
    (config & mask).checked_shr(mask.trailing_zeros()).unwrap_or(0)
}

/// The smallest difference between two times that the trace shows: one cycle, or a group of the crystal's
/// ticks.
fn resolution_ns(info: &TraceInfo, config: u64, time_conv: TimeConv) -> Option<u64> {
    const CYCLE_THRESHOLD: u64 = 0xf << 19;
    let ticks = if info.cycles != 0 && config & info.cycles != 0 {
        match field(config, CYCLE_THRESHOLD) {
            0 => 1,
            threshold => 1u64 << (threshold - 1),
        }
    } else if info.mtc != 0 && config & info.mtc != 0 {
        let period = 1u64 << field(config, info.mtc_period).min(16);
        let ticks = period.saturating_mul(info.tsc_ctc_numerator.into());
        ticks.checked_div(info.tsc_ctc_denominator.into())?
    } else {
        return None;
    };
    Some(time_conv.delta_ns(ticks.saturating_add(1)).max(1))
}

/// The files with the recorded kernel's code and symbols.
pub(crate) struct KernelFiles {
    pub core: Option<PathBuf>,
    pub symbols: Option<PathBuf>,
}

impl KernelFiles {
    /// The files that perf writes beside a recording.
    pub(crate) fn beside(recording: &Path) -> Option<Self> {
        let folder = kernel_folder(recording)?;
        let file = |name| Some(folder.join(name)).filter(|path| path.is_file());
        Some(KernelFiles { core: file("kcore"), symbols: file("kallsyms") })
    }
}

#[cfg(test)]
mod tests {
    use wallprof_intel_pt::generator::record::jit_dump;

    use super::*;

    fn info() -> TraceInfo {
        TraceInfo {
            mtc: 1 << 9,
            mtc_period: 0xf << 14,
            cycles: 2,
            tsc_ctc_numerator: 100,
            tsc_ctc_denominator: 2,
            ..TraceInfo::default()
        }
    }

    #[test]
    fn resolution_is_that_of_the_finest_clock() {
        let conv = TimeConv::NANOSECONDS;
        assert_eq!(resolution_ns(&info(), 2, conv), Some(2));
        assert_eq!(resolution_ns(&info(), 2 | 5 << 19, conv), Some(17));
        assert_eq!(resolution_ns(&info(), 1 << 9 | 3 << 14, conv), Some(401));
        assert_eq!(resolution_ns(&info(), 0, conv), None);
        assert_eq!(resolution_ns(&TraceInfo::default(), u64::MAX, conv), None);
    }

    #[test]
    fn fields_are_read_by_their_mask() {
        assert_eq!(clock(&info(), 3 << 14 | 1).mtc_shift, 3);
        assert_eq!((field(u64::MAX, 0), field(6, 6)), (0, 3));
    }

    #[test]
    fn code_made_over_other_code_gets_a_new_space() {
        let folder = tempfile::tempdir().expect("a folder");
        let loads: [(u64, u64, &str, &[u8]); 3] =
            [(10, 0x9000, "a", b"abcd"), (20, 0xa000, "b", b"efgh"), (30, 0x9002, "c", b"ijkl")];
        std::fs::write(folder.path().join("jit-7.dump"), jit_dump(7, 0, &loads)).expect("written");
        let mut pt = IntelPt::default();
        pt.dump(7, b"/jit-7.dump", Some(folder.path()), true);
        pt.dump(7, b"/jit-8.dump", Some(folder.path()), true);
        pt.switch_in(0, 12, ThreadKey(0), 7, 7, Departure::Unknown);
        let prepared = pt.prepared(|_| None, &TraceLimits::default());
        let first = prepared.spaces.region(SpaceId(1), 0x9003).expect("the first function");
        let last = prepared.spaces.region(SpaceId(2), 0x9003).expect("the last one");
        let function = |region: &Region| {
            let offset = 0x9003u64.wrapping_add(region.to_offset);
            let load = prepared.dumps[0]
                .loads
                .iter()
                .find(|load| offset >= load.offset && offset < load.offset + load.size);
            load.map(|load| load.name.clone())
        };
        assert_eq!([first, last].map(function), [Some("a".into()), Some("c".into())]);
        assert!(prepared.spaces.region(SpaceId(1), 0xa000).is_some(), "an addition changes no space");
    }

    #[test]
    fn memory_changes_with_records() {
        let mut pt = IntelPt::default();
        pt.map(7, 5, (0x1000, 0x1000, 0), Some((ModuleId(0), 0)), b"/a");
        pt.switch_in(0, 6, ThreadKey(0), 7, 7, Departure::Unknown);
        pt.exec(7, 8);
        pt.map(7, 9, (0x1000, 0x1000, 0), Some((ModuleId(1), 0)), b"/b");
        let schedule = pt.switches.take_cpu(0, TimeConv::NANOSECONDS, None);
        let spaces: Vec<_> = schedule.switches().map(|switch| (switch.ticks, switch.space.0)).collect();
        assert_eq!(spaces, [(6, 1), (8, 0), (9, 2)]);
    }
}
