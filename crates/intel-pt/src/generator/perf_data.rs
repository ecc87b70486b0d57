//! An invented trace as perf.data, the way `perf record -e intel_pt//u` writes it (perf.data-file-format.txt and
//! perf-intel-pt(1) in the kernel's tree): of one thread, or of one CPU with its switches.

use super::elf::{CODE_OFFSET, words};
use super::encoder::TSC_CTC;
use super::machine::Generated;
use crate::schedule::{Departure, Switch, ThreadId};
use crate::time_conv::TimeConv;

/// Ticks to ns of the recordings: 2.5 GHz.
pub const TIME_CONV: TimeConv = TimeConv { shift: 31, mult: 858_993_459, zero: 0 };

/// The process of all threads; thread `n` has tid `PID + n - 1`.
pub const PID: u32 = 5000;

const PT_TYPE: u32 = 8;
const SAMPLE_TYPE: u64 = 0x1_0087; // ip, tid, time, cpu, identifier
const ID: u64 = 101;

const COMM: u32 = 3;
const FORK: u32 = 7;
const MMAP2: u32 = 10;
const ITRACE_START: u32 = 12;
const SWITCH_CPU_WIDE: u32 = 15;
const AUXTRACE_INFO: u32 = 70;
const AUXTRACE: u32 = 71;
const TIME_CONV_RECORD: u32 = 79;

impl Generated {
    /// perf.data, with the program's image said to be at `image`.
    pub fn to_perf_data(&self, image: &str) -> Vec<u8> {
        let mut records = self.records(image);
        let attrs = [self.trace_attr(), side_band_attr()].concat();
        let (ids_at, attrs_at) = (104u64, 120u64);
        let data_at = attrs_at + attrs.len() as u64;
        let mut file = b"PERFILE2".to_vec();
        file.extend(words(&[104, 144, attrs_at, attrs.len() as u64, data_at, records.len() as u64, 0, 0]));
        file.extend(words(&[1 << 18, 0, 0, 0]));
        file.extend(words(&[1, ID]));
        debug_assert_eq!(file.len() as u64, ids_at + 16);
        file.extend(attrs);
        file.append(&mut records);
        file.extend(words(&[0, 0])); // the one feature, AUXTRACE, has no index
        file
    }

    fn is_cpu_wide(&self) -> bool {
        self.schedule.switches().len() > 1
    }

    fn config(&self) -> u64 {
        let settings = &self.settings;
        let mtc = settings.mtc_shift.map_or(0, |shift| 1 << 9 | u64::from(shift) << 14);
        let cycles = if settings.cycles { 2 } else { 0 };
        let no_compression = if settings.return_compression { 0 } else { 1 << 11 };
        1 | cycles | mtc | 1 << 10 | no_compression | 1 << 13
    }

    fn trace_attr(&self) -> Vec<u8> {
        // disabled, exclude_kernel, exclude_hv, sample_id_all
        attr(PT_TYPE, self.config(), 1 | 1 << 5 | 1 << 6 | 1 << 18, 104)
    }

    fn records(&self, image: &str) -> Vec<u8> {
        let mut records = record(TIME_CONV_RECORD, 0, &words(&[31, TIME_CONV.mult, 0, 0, 0, 1]));
        records.extend(record(AUXTRACE_INFO, 0, &words(&self.trace_info())));
        let mut comm = ids(PID, PID);
        comm.extend(b"target\0\0");
        records.extend(self.side_band(COMM, 0x2000, comm, PID, 0));
        records.extend(self.side_band(MMAP2, 2, self.mapping(image), PID, 0));
        for thread in 1..self.threads() {
            records.extend(self.side_band(FORK, 0, fork_body(thread), PID, 0));
        }
        if self.is_cpu_wide() {
            records.extend(self.switches());
        } else {
            records.extend(self.side_band(ITRACE_START, 0, ids(PID, PID), PID, 0));
        }
        records.extend(self.aux_trace());
        records
    }

    fn threads(&self) -> u32 {
        self.schedule.switches().iter().map(|switch| switch.thread.0).max().unwrap_or(1)
    }

    fn trace_info(&self) -> [u64; 19] {
        let mut info = [0; 19];
        info[..9].copy_from_slice(&[1, u64::from(PT_TYPE), 31, TIME_CONV.mult, 0, 1, 1 << 10, 1 << 11, 0]);
        info[8] = if self.is_cpu_wide() { 3 } else { 0 };
        info[10] = u64::from(self.is_cpu_wide());
        let (numerator, denominator) = TSC_CTC;
        info[11..15].copy_from_slice(&[1 << 9, 0xf << 14, u64::from(numerator), u64::from(denominator)]);
        info[15] = 2;
        info[16] = u64::from(self.settings.max_non_turbo_ratio);
        info
    }

    fn mapping(&self, image: &str) -> Vec<u8> {
        let mut mapping = ids(PID, PID);
        let length = (self.program.code.len() as u64).next_multiple_of(0x1000);
        mapping.extend(words(&[self.program.base, length, CODE_OFFSET, 1 << 32 | 8, 1, 0, 2 << 32 | 5]));
        mapping.extend(image.as_bytes());
        mapping.resize((mapping.len() + 1).next_multiple_of(8), 0);
        mapping
    }

    /// Each switch as the two threads see it: out, and in.
    fn switches(&self) -> Vec<u8> {
        const OUT: u16 = 0x2000;
        const PREEMPTED: u16 = 0x4000;
        let mut records = Vec::new();
        let mut last = ThreadId::NOBODY;
        for Switch { ticks, thread, departure, .. } in self.schedule.switches().iter().copied() {
            let how = if departure == Departure::Preempted { OUT | PREEMPTED } else { OUT };
            let (from, to) = (tid(last), tid(thread));
            records.extend(self.side_band(SWITCH_CPU_WIDE, how, ids(process(to), to), from, ticks - 1));
            records.extend(self.side_band(SWITCH_CPU_WIDE, 0, ids(process(from), from), to, ticks));
            last = thread;
        }
        records
    }

    /// A record with the fields that tell it apart in a stream: whose it is, and when.
    fn side_band(&self, kind: u32, misc: u16, mut body: Vec<u8>, tid: u32, ticks: u64) -> Vec<u8> {
        body.extend(ids(process(tid), tid));
        body.extend(words(&[TIME_CONV.ns_from_ticks(ticks), 0, ID]));
        record(kind, misc, &body)
    }

    fn aux_trace(&self) -> Vec<u8> {
        let padding = self.trace.len().next_multiple_of(8) - self.trace.len();
        let cpu_wide = self.is_cpu_wide();
        let (tid, cpu) = if cpu_wide { (u32::MAX, 0) } else { (PID, u32::MAX) };
        let size = (self.trace.len() + padding) as u64;
        let mut body = words(&[size, 0, self.end, u64::from(tid) << 32, u64::from(cpu)]);
        body.truncate(40);
        let mut aux_trace = record(AUXTRACE, 0, &body);
        aux_trace.extend(&self.trace);
        aux_trace.resize(aux_trace.len() + padding, 0);
        aux_trace
    }
}

fn fork_body(thread: u32) -> Vec<u8> {
    let mut fork: Vec<u8> = [PID, PID, PID + thread, PID].into_iter().flat_map(u32::to_le_bytes).collect();
    fork.extend(words(&[0]));
    fork
}

fn tid(thread: ThreadId) -> u32 {
    if thread == ThreadId::NOBODY { 0 } else { PID + thread.0 - 1 }
}

fn process(tid: u32) -> u32 {
    if tid == 0 { 0 } else { PID }
}

fn ids(pid: u32, tid: u32) -> Vec<u8> {
    [pid, tid].into_iter().flat_map(u32::to_le_bytes).collect()
}

/// The event that mappings and switches come with.
fn side_band_attr() -> Vec<u8> {
    const SOFTWARE: u32 = 1;
    const DUMMY: u64 = 9;
    // mmap, comm, task, sample_id_all, mmap2, comm_exec, context_switch, exclude_kernel
    let flags = 1 << 5 | 1 << 8 | 1 << 9 | 1 << 13 | 1 << 18 | 1 << 23 | 1 << 24 | 1 << 26;
    attr(SOFTWARE, DUMMY, flags, 112)
}

fn attr(kind: u32, config: u64, flags: u64, ids_at: u64) -> Vec<u8> {
    const SIZE: u64 = 128;
    const WITH_IDS: u64 = 4;
    let mut attr = words(&[SIZE << 32 | u64::from(kind), config, 1, SAMPLE_TYPE, WITH_IDS, flags]);
    attr.resize(SIZE as usize, 0);
    attr.extend(words(&[ids_at, 8]));
    attr
}

fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
    let mut record = kind.to_le_bytes().to_vec();
    record.extend(misc.to_le_bytes());
    record.extend((body.len() as u16 + 8).to_le_bytes());
    record.extend(body);
    record
}
