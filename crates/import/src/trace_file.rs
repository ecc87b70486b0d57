// SPDX-License-Identifier: Apache-2.0
//! Writes the perf.data of `wallprof record --intel-pt`, for wallprof and for perf: records of the kernel and
//! traces of the processor, unchanged. So one decoder reads all traces.
//!
//! Layouts: as in `format`; `tools/perf/Documentation/perf.data-file-format.txt` for the file as a whole.

use std::io::{self, Seek, SeekFrom, Write};

use wallprof_intel_pt::TimeConv;

use crate::format::facts::feature;
use crate::format::header::{FILE_HEADER, MAGIC};
use crate::format::record::{kind, misc};
use crate::format::trace::INTEL_PT;

/// The sample id of synthesised records: no thread, no time.
const NO_SAMPLE_ID: [u8; 32] = [0; 32];
/// perf pads texts to a multiple of this.
const TEXT_UNIT: usize = 64;
/// The thread of a CPU's trace.
const NO_THREAD: u32 = u32::MAX;

/// The recorded events. All of them have the same attr.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceEvents {
    /// The `perf_event_attr` that was given to the kernel.
    pub attr: Vec<u8>,
    /// Their ids in records.
    pub ids: Vec<u64>,
}

/// Parameters of the trace. Bits are those of the event's `config`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceFacts {
    /// `perf_event_attr.type` of its events.
    pub pmu: u32,
    /// `None`: times of the trace cannot be compared with those of records.
    pub time_conv: Option<TimeConv>,
    pub time_stamps: u64,
    pub no_return_compression: u64,
    pub mtc: u64,
    pub mtc_period: u64,
    pub cycles: u64,
    /// The ratio of the time-stamp counter to the crystal's clock.
    pub tsc_to_crystal: (u32, u32),
    pub max_non_turbo_ratio: u32,
    /// Each buffer was read once, and holds the end of its trace.
    pub is_snapshot: bool,
    /// Switches are recorded for whole CPUs, not for single threads.
    pub of_cpus: bool,
}

/// The recorded machine. Empty texts are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineFacts {
    pub hostname: String,
    pub kernel: String,
    pub arch: String,
    pub cpus: u32,
    /// The words of the command that made the recording.
    pub command_line: Vec<String>,
    /// A time of records, and the time of day at that time; ns.
    pub clock: Option<(u64, u64)>,
}

/// Executable memory that was mapped before the recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundMapping<'a> {
    pub start: u64,
    pub len: u64,
    pub file_offset: u64,
    pub inode: u64,
    pub path: &'a [u8],
}

/// A file that is being written.
#[derive(Debug)]
pub struct TraceFile<W> {
    out: W,
    attr_len: usize,
    ids: usize,
}

impl<W: Write + Seek> TraceFile<W> {
    /// Starts a file. `out` is empty.
    pub fn create(out: W, events: &TraceEvents, facts: &TraceFacts) -> io::Result<Self> {
        let mut file = TraceFile { out, attr_len: events.attr.len(), ids: events.ids.len() };
        let header = file.header(0);
        file.out.write_all(&header)?;
        file.out.write_all(&words(&events.ids))?;
        file.out.write_all(&events.attr)?;
        file.out.write_all(&words(&[FILE_HEADER as u64, 8 * events.ids.len() as u64]))?;
        file.out.write_all(&record(kind::AUXTRACE_INFO, 0, &words(&trace_info(facts))))?;
        Ok(file)
    }

    /// Writes a record of the kernel, with its header.
    pub fn record(&mut self, record: &[u8]) -> io::Result<()> {
        self.out.write_all(record)
    }

    /// Writes a part of a CPU's trace, `offset` bytes behind its start, read at `ticks`.
    pub fn trace(&mut self, cpu: u32, offset: u64, parts: [&[u8]; 2], ticks: u64) -> io::Result<()> {
        let size: u64 = parts.iter().map(|part| part.len() as u64).sum();
        let padding = size.next_multiple_of(8) - size;
        let target = [cpu, NO_THREAD, cpu, 0].into_iter().flat_map(u32::to_le_bytes);
        let body: Vec<u8> = words(&[size + padding, offset, ticks]).into_iter().chain(target).collect();
        self.out.write_all(&record(kind::AUXTRACE, 0, &body))?;
        parts.iter().try_for_each(|part| self.out.write_all(part))?;
        self.out.write_all(&[0; 8][..padding as usize])
    }

    /// Ends a round: all records in the buffers of all CPUs were written.
    pub fn finish_round(&mut self) -> io::Result<()> {
        self.out.write_all(&record(kind::FINISHED_ROUND, 0, &[]))
    }

    /// Writes a thread that existed before the recording. `comm` is cut to the kernel's limit of names.
    pub fn found_thread(&mut self, pid: u32, tid: u32, comm: &[u8]) -> io::Result<()> {
        let mut body = ids(pid, tid);
        body.extend(&comm[..comm.len().min(15)]);
        body.resize((body.len() + 1).next_multiple_of(8), 0);
        body.extend(NO_SAMPLE_ID);
        self.out.write_all(&record(kind::COMM, 0, &body))
    }

    /// Writes memory of a process that existed before the recording. Paths longer than Linux allows are left
    /// out.
    pub fn found_mapping(&mut self, pid: u32, mapping: &FoundMapping<'_>) -> io::Result<()> {
        const READ_AND_EXECUTE: u32 = 1 | 4;
        const PRIVATE: u32 = 2;
        const LONGEST_PATH: usize = 4096;
        if mapping.path.len() > LONGEST_PATH {
            return Ok(());
        }
        let mut body = ids(pid, pid);
        body.extend(words(&[mapping.start, mapping.len, mapping.file_offset, 0, mapping.inode, 0]));
        body.extend(ids(READ_AND_EXECUTE, PRIVATE));
        body.extend(mapping.path);
        body.resize((body.len() + 1).next_multiple_of(8), 0);
        body.extend(NO_SAMPLE_ID);
        self.out.write_all(&record(kind::MMAP2, misc::USER, &body))
    }

    /// Bytes written so far.
    pub fn written(&mut self) -> io::Result<u64> {
        self.out.stream_position()
    }

    /// Completes the file.
    pub fn finish(mut self, machine: &MachineFacts) -> io::Result<W> {
        let end = self.out.stream_position()?;
        let features = features(machine);
        let mut at = end + 16 * features.len() as u64;
        for (_, content) in &features {
            self.out.write_all(&words(&[at, content.len() as u64]))?;
            at += content.len() as u64;
        }
        features.iter().try_for_each(|(_, content)| self.out.write_all(content))?;
        let mut header = self.header(end - self.data_at());
        let bits = features.iter().fold(0u64, |bits, (number, _)| bits | 1 << number);
        header[FILE_HEADER - 32..FILE_HEADER - 24].copy_from_slice(&bits.to_le_bytes());
        self.out.seek(SeekFrom::Start(0))?;
        self.out.write_all(&header)?;
        self.out.seek(SeekFrom::End(0))?;
        self.out.flush()?;
        Ok(self.out)
    }

    /// The file's header. Its feature bits are at its end, and zero until features are written.
    fn header(&self, size: u64) -> Vec<u8> {
        let entry = self.attr_len as u64 + 16;
        let attrs_at = FILE_HEADER as u64 + 8 * self.ids as u64;
        let mut header = MAGIC.to_vec();
        header.extend(words(&[FILE_HEADER as u64, entry, attrs_at, entry, self.data_at(), size, 0, 0]));
        header.resize(FILE_HEADER, 0);
        header
    }

    fn data_at(&self) -> u64 {
        (FILE_HEADER + 8 * self.ids + self.attr_len + 16) as u64
    }
}

fn trace_info(facts: &TraceFacts) -> [u64; 19] {
    /// `have_sched_switch` of perf: records of threads, or of CPUs.
    const SWITCHES_OF_THREADS: u64 = 2;
    const SWITCHES_OF_CPUS: u64 = 3;
    let time = facts.time_conv.unwrap_or(TimeConv { shift: 0, mult: 0, zero: 0 });
    let (numerator, denominator) = facts.tsc_to_crystal;
    [
        INTEL_PT.into(),
        facts.pmu.into(),
        time.shift.into(),
        time.mult,
        time.zero,
        facts.time_conv.is_some().into(),
        facts.time_stamps,
        facts.no_return_compression,
        if facts.of_cpus { SWITCHES_OF_CPUS } else { SWITCHES_OF_THREADS },
        facts.is_snapshot.into(),
        // A buffer belongs to a CPU, even if single threads are traced.
        1,
        facts.mtc,
        facts.mtc_period,
        numerator.into(),
        denominator.into(),
        facts.cycles,
        facts.max_non_turbo_ratio.into(),
        // No address filters, no event filters.
        0,
        0,
    ]
}

/// In the order of their numbers, as perf reads them.
fn features(machine: &MachineFacts) -> Vec<(u32, Vec<u8>)> {
    let texts = [
        (feature::HOSTNAME, &machine.hostname),
        (feature::OSRELEASE, &machine.kernel),
        (feature::ARCH, &machine.arch),
    ];
    let texts = texts.into_iter().filter(|(_, content)| !content.is_empty());
    let mut features: Vec<_> = texts.map(|(number, content)| (number, text(content))).collect();
    features.push((feature::CPUS, ids(machine.cpus, machine.cpus)));
    let mut command_line = (machine.command_line.len() as u32).to_le_bytes().to_vec();
    machine.command_line.iter().for_each(|word| command_line.extend(text(word)));
    features.push((feature::COMMAND_LINE, command_line));
    // An empty index of pieces. Readers find the pieces among the records.
    features.push((feature::AUXTRACE, words(&[0])));
    if let Some((clock_ns, epoch_ns)) = machine.clock {
        const VERSION: u32 = 1;
        /// None of the clocks that programs can read: the scheduler's own.
        const NO_CLOCK: u32 = u32::MAX;
        features.push((feature::CLOCK_DATA, [ids(VERSION, NO_CLOCK), words(&[epoch_ns, clock_ns])].concat()));
    }
    features
}

fn text(text: &str) -> Vec<u8> {
    let padded = (text.len() + 1).next_multiple_of(TEXT_UNIT);
    let mut bytes = (padded as u32).to_le_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes.resize(4 + padded, 0);
    bytes
}

fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
    let size = (body.len() + 8) as u16;
    [&kind.to_le_bytes()[..], &misc.to_le_bytes(), &size.to_le_bytes(), body].concat()
}

fn ids(first: u32, second: u32) -> Vec<u8> {
    [first.to_le_bytes(), second.to_le_bytes()].concat()
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}
