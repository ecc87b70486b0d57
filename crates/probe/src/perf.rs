// SPDX-License-Identifier: Apache-2.0
//! `perf_event_open(2)`: the sampling clock, extra events, and the rings that report mappings.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::events::{PerfEventSpec, Sampling, event_type};

/// `struct perf_event_attr` (include/uapi/linux/perf_event.h), the first 112 bytes: PERF_ATTR_SIZE_VER5.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Attr {
    pub kind: u32,
    pub size: u32,
    pub config: u64,
    pub sample_period_or_freq: u64,
    pub sample_type: u64,
    pub read_format: u64,
    pub flags: u64,
    pub wakeup: u32,
    pub bp_type: u32,
    pub config1: u64,
    pub config2: u64,
    pub branch_sample_type: u64,
    pub sample_regs_user: u64,
    pub sample_stack_user: u32,
    pub clockid: i32,
    pub sample_regs_intr: u64,
    pub aux_watermark: u32,
    pub sample_max_stack: u16,
    pub reserved: u16,
}

const _: () = assert!(size_of::<Attr>() == 112);

impl Attr {
    /// The bytes as the kernel reads them and perf.data contains them.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        // SAFETY: a plain structure of integers without padding, as its size says.
        unsafe { std::slice::from_raw_parts((&raw const *self).cast::<u8>(), size_of::<Attr>()) }.to_vec()
    }
}

/// Bits of `perf_event_attr.flags`.
pub(crate) mod flag {
    pub const DISABLED: u64 = 1;
    pub const INHERIT: u64 = 1 << 1;
    pub const EXCLUDE_USER: u64 = 1 << 4;
    pub const EXCLUDE_KERNEL: u64 = 1 << 5;
    pub const EXCLUDE_HV: u64 = 1 << 6;
    pub const MMAP: u64 = 1 << 8;
    pub const COMM: u64 = 1 << 9;
    pub const FREQ: u64 = 1 << 10;
    pub const ENABLE_ON_EXEC: u64 = 1 << 12;
    pub const TASK: u64 = 1 << 13;
    pub const WATERMARK: u64 = 1 << 14;
    pub const PRECISE_SHIFT: u32 = 15;
    pub const SAMPLE_ID_ALL: u64 = 1 << 18;
    pub const MMAP2: u64 = 1 << 23;
    pub const COMM_EXEC: u64 = 1 << 24;
    pub const USE_CLOCKID: u64 = 1 << 25;
    pub const CONTEXT_SWITCH: u64 = 1 << 26;
    pub const BUILD_ID: u64 = 1 << 34;
    pub const INHERIT_THREAD: u64 = 1 << 35;
}

const FLAG_FD_CLOEXEC: libc::c_ulong = 8;
pub(crate) const SOFTWARE_CPU_CLOCK: u64 = 0;
pub(crate) const SOFTWARE_PAGE_FAULTS: u64 = 2;
pub(crate) const SOFTWARE_PAGE_FAULTS_MINOR: u64 = 5;
pub(crate) const SOFTWARE_PAGE_FAULTS_MAJOR: u64 = 6;
pub(crate) const SOFTWARE_DUMMY: u64 = 9;

/// `_IO('$', N)` of include/uapi/linux/perf_event.h.
const IOC_ENABLE: libc::c_ulong = 0x2400;
const IOC_DISABLE: libc::c_ulong = 0x2401;
const IOC_SET_OUTPUT: libc::c_ulong = 0x2405;
/// `_IOR('$', 7, u64)`.
const IOC_ID: libc::c_ulong = 0x8008_2407;

/// Opens an event for all threads on one CPU.
pub(crate) fn open(attr: &Attr, cpu: u32) -> io::Result<OwnedFd> {
    open_of(attr, -1, cpu)
}

/// Opens an event of one thread on one CPU.
pub(crate) fn open_of_thread(attr: &Attr, tid: u32, cpu: u32) -> io::Result<OwnedFd> {
    open_of(attr, libc::pid_t::try_from(tid).map_err(|_| io::ErrorKind::InvalidInput)?, cpu)
}

/// Starts the event.
pub(crate) fn enable(event: BorrowedFd<'_>) -> io::Result<()> {
    control(event, IOC_ENABLE, 0)
}

pub(crate) fn disable(event: BorrowedFd<'_>) -> io::Result<()> {
    control(event, IOC_DISABLE, 0)
}

/// Lets `event` write its records, and its trace, to the pages of `other`.
pub(crate) fn share_output(event: BorrowedFd<'_>, other: BorrowedFd<'_>) -> io::Result<()> {
    control(event, IOC_SET_OUTPUT, other.as_raw_fd())
}

/// The event's number in its records.
pub(crate) fn id(event: BorrowedFd<'_>) -> io::Result<u64> {
    let mut id = 0u64;
    // SAFETY: the request writes eight bytes to `id`, which lives through the call.
    let done = unsafe { libc::ioctl(event.as_raw_fd(), IOC_ID, &raw mut id) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(id) }
}

fn control(event: BorrowedFd<'_>, request: libc::c_ulong, argument: libc::c_int) -> io::Result<()> {
    // SAFETY: these requests take an integer and no pointer.
    let done = unsafe { libc::ioctl(event.as_raw_fd(), request, argument) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn open_of(attr: &Attr, pid: libc::pid_t, cpu: u32) -> io::Result<OwnedFd> {
    let attr = Attr { size: size_of::<Attr>() as u32, ..*attr };
    // SAFETY: `attr` is a valid perf_event_attr of the size it names; the call keeps no pointer to it.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attr,
            pid,
            cpu as libc::c_int,
            -1 as libc::c_int,
            FLAG_FD_CLOEXEC,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// The clock of the ledger on one CPU.
pub(crate) fn open_clock(cpu: u32, period_ns: u64) -> io::Result<OwnedFd> {
    let attr = Attr {
        kind: event_type::SOFTWARE,
        config: SOFTWARE_CPU_CLOCK,
        sample_period_or_freq: period_ns,
        ..Attr::default()
    };
    open(&attr, cpu)
}

/// A software event that counts each occurrence, on one CPU.
pub(crate) fn open_every_hit(config: u64, cpu: u32) -> io::Result<OwnedFd> {
    let attr = Attr { kind: event_type::SOFTWARE, config, sample_period_or_freq: 1, ..Attr::default() };
    open(&attr, cpu)
}

/// An extra event on one CPU. perf falls back to a looser precision for raw, cache and PMU events; here the
/// event is opened as requested.
pub(crate) fn open_event(spec: &PerfEventSpec, cpu: u32, hz: u32) -> io::Result<OwnedFd> {
    let (period, frequency) = match spec.sampling {
        Sampling::Frequency => (u64::from(hz), flag::FREQ),
        Sampling::EveryHit => (1, 0),
    };
    let excluded = [(spec.exclude_user, flag::EXCLUDE_USER), (spec.exclude_kernel, flag::EXCLUDE_KERNEL)];
    let excluded = excluded.iter().filter(|(set, _)| *set).fold(0, |flags, (_, flag)| flags | flag);
    let hypervisor = if spec.event_type == event_type::HARDWARE { flag::EXCLUDE_HV } else { 0 };
    let attr = Attr {
        kind: spec.event_type,
        config: spec.config,
        config1: spec.config1,
        config2: spec.config2,
        sample_period_or_freq: period,
        flags: frequency | excluded | hypervisor | u64::from(spec.precise) << flag::PRECISE_SHIFT,
        ..Attr::default()
    };
    open(&attr, cpu)
}
