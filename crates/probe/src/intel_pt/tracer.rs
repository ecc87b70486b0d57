// SPDX-License-Identifier: Apache-2.0
//! Traces of threads or of CPUs under way: an event of each thread on each CPU, whose records and trace all
//! go to that CPU's pages.
//!
//! The same event reports switches, mappings, and threads that start and end, so that nothing must be matched
//! later.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use wallprof_model::EpochNs;

use super::aux::{Aux, Piece};
use crate::clock;
use crate::perf::{self, Attr, flag};
use crate::ring::{Ring, TickNumbers};

/// Pages of records: 1 MiB holds some twenty thousand switches, which a busy CPU makes in a fifth of a
/// second.
const DATA_PAGES: usize = 256;
/// When the kernel has no memory for a buffer of the wanted size, smaller ones are tried down to this.
const SMALLEST_BUFFER: u64 = 128 << 10;
/// Thread, time, CPU and event, with which every record ends. The first bit, addresses, is for perf, which
/// prints none of a trace without it.
const SAMPLE_TYPE: u64 = 1 | 1 << 1 | 1 << 2 | 1 << 7 | 1 << 16;

/// The traced threads or CPUs, and the size of the buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEvent {
    /// `perf_event_attr.type` and `config`.
    pub kind: u32,
    pub config: u64,
    /// The size of each CPU's buffer, a power of two; 0: there is no trace, only records.
    pub buffer_bytes: u64,
    /// Buffers keep the end of a trace, which is read once, at the end.
    pub keeps_last: bool,
}

/// The traced threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceTargets {
    /// All threads on the CPUs.
    Everything,
    /// These threads only.
    Threads(Vec<u32>),
    /// These threads, and those that they create from now on in the same process.
    Processes(Vec<u32>),
    /// These threads, and all threads and processes that they start from now on.
    Trees(Vec<u32>),
    /// The thread that is about to execute a program, from then on, with all its threads and children.
    Command(u32),
}

/// One part of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traced<'a> {
    /// A record with its header, as perf_event_open(2) lays it out.
    Record(&'a [u8]),
    Trace {
        cpu: u32,
        piece: Piece<'a>,
    },
}

/// Why there is no trace.
#[derive(Debug)]
pub enum OpenError {
    /// Every thread to be traced has ended.
    NoThreadLeft,
    Event {
        cpu: u32,
        error: io::Error,
    },
    /// The kernel gives no buffer, however small.
    Buffer {
        cpu: u32,
        error: io::Error,
    },
}

impl OpenError {
    /// Whether the kernel or missing permissions prevent the trace, rather than a wrong request.
    pub fn is_refusal(&self) -> bool {
        let refuses = |error: &io::Error| {
            let number = error.raw_os_error();
            matches!(
                number,
                Some(libc::EACCES | libc::EPERM | libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV)
            )
        };
        match self {
            OpenError::NoThreadLeft => false,
            OpenError::Event { error, .. } | OpenError::Buffer { error, .. } => refuses(error),
        }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::NoThreadLeft => write!(f, "every thread to be traced has ended: record while it runs"),
            OpenError::Event { cpu, error } => {
                let advice = match error.raw_os_error() {
                    Some(libc::EBUSY) => "another program uses Intel PT, end that first",
                    Some(libc::EMFILE | libc::ENFILE) => {
                        "too many files are open, name fewer threads or CPUs"
                    }
                    Some(libc::EACCES | libc::EPERM) => "CAP_PERFMON is needed, run with sudo",
                    _ => "run `wallprof doctor`",
                };
                write!(f, "Intel PT cannot be used on CPU {cpu} ({error}): {advice}")
            }
            OpenError::Buffer { cpu, error } => write!(
                f,
                "the kernel gives no buffer for the trace of CPU {cpu} ({error}): give a smaller \
                 --trace-buffer, or CAP_IPC_LOCK"
            ),
        }
    }
}

impl std::error::Error for OpenError {}

/// Traces under way.
pub struct Tracer {
    attr: Attr,
    cpus: Vec<CpuTrace>,
}

/// The events and buffers of one CPU.
struct CpuTrace {
    cpu: u32,
    /// All events write to the pages of the first one.
    events: Vec<OwnedFd>,
    ring: Ring,
    aux: Option<Aux>,
    buffer_bytes: u64,
}

impl Tracer {
    /// Opens everything, disabled.
    pub fn open(event: &TraceEvent, targets: &TraceTargets, cpus: &[u32]) -> Result<Tracer, OpenError> {
        let attr = attr(event, targets);
        let cpus = cpus.iter().filter_map(|&cpu| CpuTrace::open(&attr, event, targets, cpu).transpose());
        let cpus = cpus.collect::<Result<Vec<_>, _>>()?;
        if cpus.is_empty() {
            return Err(OpenError::NoThreadLeft);
        }
        Ok(Tracer { attr, cpus })
    }

    /// Starts tracing. A command that is about to start is traced from its start without this.
    pub fn enable(&self) -> io::Result<()> {
        self.cpus.iter().try_for_each(CpuTrace::enable)
    }

    pub fn disable(&self) -> io::Result<()> {
        let events = self.cpus.iter().flat_map(|cpu| &cpu.events);
        events.map(AsFd::as_fd).try_for_each(perf::disable)
    }

    /// Passes on the data since the last call.
    pub fn read<E>(&mut self, take: &mut dyn FnMut(Traced<'_>) -> Result<(), E>) -> Result<(), E> {
        self.cpus.iter_mut().try_for_each(|cpu| cpu.read(take))
    }

    /// Passes on the rest of the buffers, after `disable`.
    pub fn read_last<E>(&mut self, take: &mut dyn FnMut(Traced<'_>) -> Result<(), E>) -> Result<(), E> {
        self.cpus.iter().try_for_each(|CpuTrace { cpu, ring, aux, .. }| match aux {
            Some(aux) => aux.read_last(ring, |piece| take(Traced::Trace { cpu: *cpu, piece })),
            None => Ok(()),
        })
    }

    /// The `perf_event_attr` of all events, as the kernel got it.
    pub fn attr(&self) -> Vec<u8> {
        self.attr.bytes()
    }

    /// The numbers of all events in their records.
    pub fn ids(&self) -> io::Result<Vec<u64>> {
        self.cpus.iter().flat_map(|cpu| &cpu.events).map(|event| perf::id(event.as_fd())).collect()
    }

    /// The conversion of a trace's ticks to times of records; `None` where the kernel does not provide it.
    pub fn tick_numbers(&self) -> Option<TickNumbers> {
        self.cpus.first()?.ring.tick_numbers()
    }

    /// The smallest buffer: the kernel may not have had memory for larger ones.
    pub fn buffer_bytes(&self) -> u64 {
        self.cpus.iter().map(|cpu| cpu.buffer_bytes).min().unwrap_or(0)
    }
}

impl CpuTrace {
    /// `None`: there is no such CPU, or no thread to trace on it.
    fn open(
        attr: &Attr,
        event: &TraceEvent,
        targets: &TraceTargets,
        cpu: u32,
    ) -> Result<Option<Self>, OpenError> {
        let events = open_events(attr, targets, cpu).map_err(|error| OpenError::Event { cpu, error })?;
        let Some(first) = events.first() else { return Ok(None) };
        let no_buffer = |error| OpenError::Buffer { cpu, error };
        let ring = Ring::map(first, DATA_PAGES).map_err(no_buffer)?;
        let aux = map_aux(first, &ring, event).map_err(no_buffer)?;
        for other in &events[1..] {
            perf::share_output(other.as_fd(), first.as_fd()).map_err(no_buffer)?;
        }
        let (aux, buffer_bytes) = aux.map_or((None, 0), |(aux, bytes)| (Some(aux), bytes));
        Ok(Some(CpuTrace { cpu, events, ring, aux, buffer_bytes }))
    }

    fn enable(&self) -> io::Result<()> {
        self.events.iter().map(AsFd::as_fd).try_for_each(perf::enable)
    }

    fn read<E>(&mut self, take: &mut dyn FnMut(Traced<'_>) -> Result<(), E>) -> Result<(), E> {
        let cpu = self.cpu;
        if let Some(aux) = &self.aux
            && aux.read(&self.ring, |piece| take(Traced::Trace { cpu, piece }))?
        {
            // The kernel stops an event that finds a full buffer. Enabling does nothing to an event that
            // runs, and cannot restart one that has ended.
            let _ = self.enable();
        }
        self.ring.read(|record| take(Traced::Record(record)))
    }
}

/// A power of two of bytes: the wanted size if the kernel has memory for it.
fn map_aux(event: &OwnedFd, ring: &Ring, wanted: &TraceEvent) -> io::Result<Option<(Aux, u64)>> {
    let mut bytes = wanted.buffer_bytes;
    while bytes > 0 {
        match Aux::map(event, ring, bytes, wanted.keeps_last) {
            Ok(aux) => return Ok(Some((aux, bytes))),
            Err(error) if bytes <= SMALLEST_BUFFER => return Err(error),
            Err(_) => bytes /= 2,
        }
    }
    Ok(None)
}

/// Threads that have ended meanwhile, and CPUs that are offline, have no events.
fn open_events(attr: &Attr, targets: &TraceTargets, cpu: u32) -> io::Result<Vec<OwnedFd>> {
    let opened: Vec<io::Result<OwnedFd>> = match targets {
        TraceTargets::Everything => vec![perf::open(attr, cpu)],
        TraceTargets::Threads(tids) | TraceTargets::Processes(tids) | TraceTargets::Trees(tids) => {
            tids.iter().map(|&tid| perf::open_of_thread(attr, tid, cpu)).collect()
        }
        TraceTargets::Command(tid) => vec![perf::open_of_thread(attr, *tid, cpu)],
    };
    let is_there = |event: &io::Result<OwnedFd>| {
        let number = event.as_ref().err().and_then(io::Error::raw_os_error);
        // ENODEV: the CPU has gone offline since it was listed.
        !matches!(number, Some(libc::ESRCH | libc::ENODEV))
    };
    opened.into_iter().filter(is_there).collect()
}

fn attr(event: &TraceEvent, targets: &TraceTargets) -> Attr {
    const SIDE_BAND: u64 = flag::MMAP
        | flag::MMAP2
        | flag::COMM
        | flag::COMM_EXEC
        | flag::TASK
        | flag::CONTEXT_SWITCH
        | flag::SAMPLE_ID_ALL;
    let follows = match targets {
        TraceTargets::Everything | TraceTargets::Threads(_) => 0,
        TraceTargets::Processes(_) => flag::INHERIT | flag::INHERIT_THREAD,
        TraceTargets::Trees(_) => flag::INHERIT,
        TraceTargets::Command(_) => flag::INHERIT | flag::ENABLE_ON_EXEC,
    };
    Attr {
        kind: event.kind,
        size: size_of::<Attr>() as u32,
        config: event.config,
        sample_period_or_freq: 1,
        sample_type: SAMPLE_TYPE,
        flags: flag::DISABLED | flag::EXCLUDE_KERNEL | flag::EXCLUDE_HV | SIDE_BAND | follows,
        ..Attr::default()
    }
}

/// The time-stamp counter, in which traces count time; 0 on processors without one.
pub fn ticks_now() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instruction, and Linux lets programs use it.
    unsafe {
        core::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    0
}

/// The time-stamp counter and the time of day, read together.
pub fn anchor_in_ticks() -> (u64, EpochNs) {
    let before = ticks_now();
    let epoch = clock::anchor().epoch;
    (before + (ticks_now() - before) / 2, epoch)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::process::Command;

    use super::*;
    use crate::cpus;
    use crate::events::event_type;

    const COMM: u32 = 3;
    const EXIT: u32 = 4;
    const FORK: u32 = 7;
    const MMAP2: u32 = 10;
    const SWITCH: u32 = 14;

    /// An event with the same records as a trace's, on machines without the hardware.
    const RECORDS_ONLY: TraceEvent = TraceEvent {
        kind: event_type::SOFTWARE,
        config: perf::SOFTWARE_DUMMY,
        buffer_bytes: 0,
        keeps_last: false,
    };

    fn kinds(tracer: &mut Tracer) -> Vec<u32> {
        let mut kinds = Vec::new();
        let read: Result<(), Infallible> = tracer.read(&mut |traced| {
            if let Traced::Record(record) = traced {
                kinds.push(u32::from_le_bytes(record[..4].try_into().expect("four bytes")));
            }
            Ok(())
        });
        let Ok(()) = read;
        kinds
    }

    #[test]
    fn a_command_is_followed_with_its_children() {
        let tid = own_tid();
        let mut tracer =
            Tracer::open(&RECORDS_ONLY, &TraceTargets::Command(tid), &cpus::online()).expect("permitted");
        tracer.enable().expect("enabled");
        assert!(Command::new("true").status().expect("it runs").success());
        tracer.disable().expect("disabled");
        let kinds = kinds(&mut tracer);
        for wanted in [FORK, COMM, MMAP2, EXIT, SWITCH] {
            assert!(kinds.contains(&wanted), "{wanted} in {kinds:?}");
        }
        assert_eq!(tracer.ids().expect("numbered").len(), cpus::online().len());
    }

    #[test]
    fn threads_that_have_ended_are_an_error() {
        let gone = TraceTargets::Threads(vec![4_194_304]);
        let error = Tracer::open(&RECORDS_ONLY, &gone, &cpus::online()).err().expect("no thread");
        assert!(matches!(error, OpenError::NoThreadLeft) && !error.is_refusal());
    }

    #[test]
    fn missing_hardware_is_a_refusal() {
        let event = TraceEvent { kind: 0x7fff, ..RECORDS_ONLY };
        let error = Tracer::open(&event, &TraceTargets::Command(own_tid()), &[0]).err();
        let error = error.expect("no such PMU");
        assert!(error.is_refusal() && error.to_string().contains("CPU 0"), "{error}");
    }

    #[test]
    fn event_reports_what_an_import_needs() {
        let flags = |targets| attr(&RECORDS_ONLY, &targets).flags;
        let everything = flags(TraceTargets::Everything);
        for bit in [0, 5, 8, 9, 13, 18, 23, 24, 26] {
            assert!(everything & 1 << bit != 0, "bit {bit}");
        }
        assert_eq!(everything & (flag::INHERIT | flag::ENABLE_ON_EXEC), 0);
        assert_eq!(flags(TraceTargets::Threads(vec![1])), everything);
        assert_eq!(flags(TraceTargets::Processes(vec![1])), everything | 1 << 1 | 1 << 35);
        assert_eq!(flags(TraceTargets::Trees(vec![1])), everything | 1 << 1);
        assert_eq!(flags(TraceTargets::Command(1)), everything | 1 << 1 | 1 << 12);
        let bytes = attr(&RECORDS_ONLY, &TraceTargets::Everything).bytes();
        assert_eq!((bytes.len(), &bytes[..8]), (112, &[1, 0, 0, 0, 112, 0, 0, 0][..]));
    }

    #[test]
    fn ticks_and_times_of_day_are_read_together() {
        let (first, second) = (anchor_in_ticks(), anchor_in_ticks());
        assert!(second.0 >= first.0 && second.1.0 >= first.1.0);
    }

    /// The calling thread.
    fn own_tid() -> u32 {
        // SAFETY: the call has no arguments and cannot fail.
        unsafe { libc::gettid() }.cast_unsigned()
    }
}
