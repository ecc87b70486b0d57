// SPDX-License-Identifier: Apache-2.0
//! A generated trace as perf.data, as `perf record -e intel_pt//u` writes it (perf.data-file-format.txt and
//! perf-intel-pt(1) in the kernel's tree): the trace of one thread, or of one CPU with its switches.

use std::io::{self, Cursor, Seek, SeekFrom, Write};
use std::ops::Range;

use super::elf::CODE_OFFSET;
use super::encoder::{Settings, TSC_CTC};
use super::machine::Generated;
use super::program::Program;
use super::record::{halves, pair, record, text, words};
use crate::schedule::{Departure, Switch, ThreadId};
use crate::time_conv::TimeConv;

/// Ticks to ns of the recordings: 2.5 GHz.
pub const TIME_CONV: TimeConv = TimeConv { shift: 31, mult: 858_993_459, zero: 0 };

/// The process of all threads; thread `n` has tid `PID + n - 1`.
pub const PID: u32 = 5000;

const PT_TYPE: u32 = 8;
const SAMPLE_TYPE: u64 = 0x1_0087; // ip, tid, time, cpu, identifier
const ID: u64 = 101;

const MMAP: u32 = 1;
const COMM: u32 = 3;
const FORK: u32 = 7;
const MMAP2: u32 = 10;
const AUX: u32 = 11;
const ITRACE_START: u32 = 12;
const SWITCH_CPU_WIDE: u32 = 15;
const FINISHED_ROUND: u32 = 68;
const AUXTRACE_INFO: u32 = 70;
const AUXTRACE: u32 = 71;
const TIME_CONV_RECORD: u32 = 79;

/// The mode of the processor in a record's header.
const OF_KERNEL: u16 = 1;

/// An attr with the place of its ids.
const ATTR_SIZE: u64 = 144;

/// The size of the file's header and the lists of ids behind it.
const ATTRS_AT: u64 = 120;

/// Bytes of trace in one record, as perf's own buffers are a few MiB.
const PIECE: usize = 4 << 20;

impl Generated {
    /// The recording as perf.data. `image` is the path of the program in it.
    pub fn to_perf_data(&self, image: &str) -> Vec<u8> {
        self.written(image).expect("writing to memory succeeds")
    }

    fn written(&self, image: &str) -> io::Result<Vec<u8>> {
        let switches: Vec<Switch> = self.schedule.switches().collect();
        let threads = switches.iter().map(|switch| switch.thread.0).max().unwrap_or(1);
        let mut file =
            PerfDataWriter::new(Cursor::new(Vec::new()), &self.program, self.settings, threads, image)?;
        if switches.len() > 1 {
            file.switches(&switches)?;
        }
        file.trace(&self.trace, self.end)?;
        Ok(file.finish(self.end)?.into_inner())
    }
}

/// Writes perf.data as the trace is generated. With one thread it is the trace of that thread, with several
/// that of a CPU.
#[derive(Debug)]
pub struct PerfDataWriter<W> {
    out: W,
    settings: Settings,
    threads: u32,
    last_thread: ThreadId,
    /// Bytes of trace in the file.
    traced: u64,
    /// Bytes that do not fill a piece yet.
    pending: Vec<u8>,
}

impl<W: Write + Seek> PerfDataWriter<W> {
    /// Writes all but the trace and the switches. `image` is the path of the program's ELF file.
    pub fn new(out: W, program: &Program, settings: Settings, threads: u32, image: &str) -> io::Result<Self> {
        let last_thread = ThreadId::NONE;
        let mut file = PerfDataWriter { out, settings, threads, last_thread, traced: 0, pending: Vec::new() };
        file.out.write_all(&file.header(0))?;
        let attrs = [file.trace_attr(program.kernel.is_some()), side_band_attr()].concat();
        file.out.write_all(&attrs)?;
        let records = file.preamble(program, image);
        file.out.write_all(&records)?;
        Ok(file)
    }

    /// A round of perf: each switch is recorded by both threads, out and in.
    pub fn switches(&mut self, switches: &[Switch]) -> io::Result<()> {
        const OUT: u16 = 0x2000;
        const PREEMPTED: u16 = 0x4000;
        for &Switch { ticks, thread, departure, .. } in switches {
            let how = if departure == Departure::Preempted { OUT | PREEMPTED } else { OUT };
            let (from, to) = (tid(self.last_thread), tid(thread));
            self.out.write_all(&side_band(SWITCH_CPU_WIDE, how, ids(process(to), to), from, ticks - 1))?;
            self.out.write_all(&side_band(SWITCH_CPU_WIDE, 0, ids(process(from), from), to, ticks))?;
            self.last_thread = thread;
        }
        self.out.write_all(&record(FINISHED_ROUND, 0, &[]))
    }

    /// The next bytes of the trace, read from the processor's buffer at `ticks`.
    pub fn trace(&mut self, bytes: &[u8], ticks: u64) -> io::Result<()> {
        let mut pending = std::mem::take(&mut self.pending);
        pending.extend(bytes);
        self.pending = pending.split_off(pending.len() / PIECE * PIECE);
        pending.chunks(PIECE).try_for_each(|piece| self.piece(piece, ticks))
    }

    /// Writes the rest and the sizes. Returns the output.
    pub fn finish(mut self, ticks: u64) -> io::Result<W> {
        let mut rest = std::mem::take(&mut self.pending);
        if !rest.is_empty() {
            rest.resize(rest.len().next_multiple_of(8), 0);
            self.piece(&rest, ticks)?;
        }
        let end = self.out.stream_position()?;
        self.out.write_all(&words(&[end + 16, 8, 0]))?; // the one feature, AUXTRACE, has an empty index
        self.out.seek(SeekFrom::Start(0))?;
        let header = self.header(end - ATTRS_AT - 2 * ATTR_SIZE);
        self.out.write_all(&header)?;
        self.out.seek(SeekFrom::End(0))?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn piece(&mut self, piece: &[u8], ticks: u64) -> io::Result<()> {
        let size = piece.len() as u64;
        let target = if self.is_cpu_wide() { 0 } else { PID };
        self.out.write_all(&side_band(AUX, 0, words(&[self.traced, size, 0]), target, ticks))?;
        let (tid, cpu) = if self.is_cpu_wide() { (u32::MAX, 0) } else { (PID, u32::MAX) };
        let body = words(&[size, self.traced, ticks, u64::from(tid) << 32, u64::from(cpu)]);
        self.out.write_all(&record(AUXTRACE, 0, &body))?;
        self.traced += size;
        self.out.write_all(piece)
    }

    fn header(&self, size: u64) -> Vec<u8> {
        let attrs = 2 * ATTR_SIZE;
        let mut header = b"PERFILE2".to_vec();
        header.extend(words(&[104, ATTR_SIZE, ATTRS_AT, attrs, ATTRS_AT + attrs, size, 0, 0]));
        header.extend(words(&[1 << 18, 0, 0, 0]));
        header.extend(words(&[1, ID]));
        header
    }

    fn is_cpu_wide(&self) -> bool {
        self.threads > 1
    }

    fn config(&self) -> u64 {
        let settings = &self.settings;
        let mtc = settings.mtc_shift.map_or(0, |shift| 1 << 9 | u64::from(shift) << 14);
        let cycles = if settings.cycles { 2 } else { 0 };
        let no_compression = if settings.return_compression { 0 } else { 1 << 11 };
        1 | cycles | mtc | 1 << 10 | no_compression | 1 << 13
    }

    fn trace_attr(&self, with_kernel: bool) -> Vec<u8> {
        // disabled, exclude_kernel, exclude_hv, sample_id_all
        let exclude_kernel = if with_kernel { 0 } else { 1 << 5 };
        attr(PT_TYPE, self.config(), 1 | exclude_kernel | 1 << 6 | 1 << 18, 104)
    }

    fn preamble(&self, program: &Program, image: &str) -> Vec<u8> {
        let mut records = record(TIME_CONV_RECORD, 0, &words(&[31, TIME_CONV.mult, 0, 0, 0, 1]));
        records.extend(record(AUXTRACE_INFO, 0, &self.trace_info(&filters(program, image))));
        if let Some(kernel) = &program.kernel {
            records.extend(side_band(MMAP, OF_KERNEL, kernel_mapping(kernel), 0, 0));
        }
        let mut comm = ids(PID, PID);
        comm.extend(b"target\0\0");
        records.extend(side_band(COMM, 0x2000, comm, PID, 0));
        records.extend(side_band(MMAP2, 2, mapping(program, image), PID, 0));
        for thread in 1..self.threads {
            records.extend(side_band(FORK, 0, fork_body(thread), PID, 0));
        }
        if !self.is_cpu_wide() {
            records.extend(side_band(ITRACE_START, 0, ids(PID, PID), PID, 0));
        }
        records
    }

    fn trace_info(&self, filters: &str) -> Vec<u8> {
        let mut info = [0; 18];
        info[..9].copy_from_slice(&[1, u64::from(PT_TYPE), 31, TIME_CONV.mult, 0, 1, 1 << 10, 1 << 11, 0]);
        info[8] = if self.is_cpu_wide() { 3 } else { 0 };
        info[10] = u64::from(self.is_cpu_wide());
        let (numerator, denominator) = TSC_CTC;
        info[11..15].copy_from_slice(&[1 << 9, 0xf << 14, u64::from(numerator), u64::from(denominator)]);
        info[15] = 2;
        info[16] = u64::from(self.settings.max_non_turbo_ratio);
        info[17] = filters.len() as u64;
        let mut info = words(&info);
        info.extend(filters.as_bytes());
        // A NUL ends the text. The bytes behind it describe the processor's event trace.
        info.resize((info.len() + 1).next_multiple_of(8), 0);
        info
    }
}

/// The traced ranges, as `perf record --filter` writes them: offsets in the program's file, addresses of the
/// kernel.
fn filters(program: &Program, image: &str) -> String {
    let filter = |range: &Range<u64>| {
        let size = range.end - range.start;
        match range.start >> 63 {
            0 => format!("filter {:#x}/{size:#x}@{image}", CODE_OFFSET + range.start - program.base),
            _ => format!("filter {:#x}/{size:#x}", range.start),
        }
    };
    program.traced.iter().map(filter).collect::<Vec<_>>().join(",")
}

/// The kernel's code, as perf reads it from /proc/kallsyms.
fn kernel_mapping(kernel: &Program) -> Vec<u8> {
    const NO_PROCESS: u32 = u32::MAX;
    let mut mapping = ids(NO_PROCESS, 0);
    let length = (kernel.code.len() as u64).next_multiple_of(0x1000);
    mapping.extend(words(&[kernel.base, length, kernel.base]));
    mapping.extend(text(b"[kernel.kallsyms]_text"));
    mapping
}

fn mapping(program: &Program, image: &str) -> Vec<u8> {
    let mut mapping = ids(PID, PID);
    let length = (program.code.len() as u64).next_multiple_of(0x1000);
    mapping.extend(words(&[program.base, length, CODE_OFFSET, 1 << 32 | 8, 1, 0, 2 << 32 | 5]));
    mapping.extend(text(image.as_bytes()));
    mapping
}

/// A record with its sample id: thread and time.
fn side_band(kind: u32, misc: u16, mut body: Vec<u8>, tid: u32, ticks: u64) -> Vec<u8> {
    body.extend(ids(process(tid), tid));
    body.extend(words(&[TIME_CONV.ns_from_ticks(ticks), 0, ID]));
    record(kind, misc, &body)
}

fn fork_body(thread: u32) -> Vec<u8> {
    halves(&[PID, PID, PID + thread, PID, 0, 0])
}

fn tid(thread: ThreadId) -> u32 {
    if thread == ThreadId::NONE { 0 } else { PID + thread.0 - 1 }
}

fn process(tid: u32) -> u32 {
    if tid == 0 { 0 } else { PID }
}

fn ids(pid: u32, tid: u32) -> Vec<u8> {
    halves(&[pid, tid])
}

/// The attr of the event of mappings and switches.
fn side_band_attr() -> Vec<u8> {
    const SOFTWARE: u32 = 1;
    const DUMMY: u64 = 9;
    // mmap, comm, task, sample_id_all, mmap2, comm_exec, context_switch, exclude_kernel
    let flags = 1 << 5 | 1 << 8 | 1 << 9 | 1 << 13 | 1 << 18 | 1 << 23 | 1 << 24 | 1 << 26;
    attr(SOFTWARE, DUMMY, flags, 112)
}

fn attr(kind: u32, config: u64, flags: u64, ids_at: u64) -> Vec<u8> {
    const WITH_IDS: u64 = 4;
    let size = ATTR_SIZE - 16;
    let fields =
        [(0, pair(kind, size as u32)), (8, config), (16, 1), (24, SAMPLE_TYPE), (32, WITH_IDS), (40, flags)];
    let mut attr = super::record::attr(size as usize, &fields);
    attr.extend(words(&[ids_at, 8]));
    attr
}
