// SPDX-License-Identifier: Apache-2.0
//! Records other than samples: changes of threads and mappings, and events of the recording itself.
//!
//! Layouts: `perf_event_open(2)` for the kernel's records,
//! `tools/perf/Documentation/perf.data-file-format.txt` for perf's own, whose numbers start at 64.

use super::bytes::{Bytes, lossy, until_nul};
use super::trace::{Filled, TraceInfo, filter_text};

/// Record types.
pub(crate) mod kind {
    pub const MMAP: u32 = 1;
    pub const LOST: u32 = 2;
    pub const COMM: u32 = 3;
    pub const EXIT: u32 = 4;
    pub const THROTTLE: u32 = 5;
    pub const FORK: u32 = 7;
    pub const SAMPLE: u32 = 9;
    pub const MMAP2: u32 = 10;
    pub const AUX: u32 = 11;
    pub const ITRACE_START: u32 = 12;
    pub const LOST_SAMPLES: u32 = 13;
    pub const SWITCH: u32 = 14;
    pub const SWITCH_CPU_WIDE: u32 = 15;
    pub const CALLCHAIN_DEFERRED: u32 = 22;
    /// From here on records are perf's own, and have no time.
    pub const FIRST_OF_PERF: u32 = 64;
    pub const HEADER_ATTR: u32 = 64;
    pub const TRACING_DATA: u32 = 66;
    pub const BUILD_ID: u32 = 67;
    pub const FINISHED_ROUND: u32 = 68;
    pub const ID_INDEX: u32 = 69;
    pub const AUXTRACE_INFO: u32 = 70;
    pub const AUXTRACE: u32 = 71;
    pub const EVENT_UPDATE: u32 = 78;
    pub const TIME_CONV: u32 = 79;
    pub const FEATURE: u32 = 80;
    pub const COMPRESSED: u32 = 81;
    pub const COMPRESSED2: u32 = 83;
}

/// Bits of a record's `misc`. The meaning of several depends on the record type.
pub(crate) mod misc {
    pub const CPU_MODE: u16 = 7;
    pub const KERNEL: u16 = 1;
    pub const USER: u16 = 2;
    pub const GUEST_KERNEL: u16 = 4;
    pub const GUEST_USER: u16 = 5;
    pub const MMAP_DATA: u16 = 1 << 13;
    pub const COMM_EXEC: u16 = 1 << 13;
    pub const FORK_EXEC: u16 = 1 << 13;
    pub const SWITCH_OUT: u16 = 1 << 13;
    pub const SWITCH_OUT_PREEMPT: u16 = 1 << 14;
    pub const MMAP_BUILD_ID: u16 = 1 << 14;
    pub const EXACT_IP: u16 = 1 << 14;
    pub const BUILD_ID_SIZE: u16 = 1 << 15;
}

/// `PERF_EVENT_UPDATE__NAME`.
const UPDATE_NAME: u64 = 2;
/// SHA-1.
const BUILD_ID_LEN: usize = 20;

/// A record as it is in the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawRecord<'a> {
    pub kind: u32,
    pub misc: u16,
    /// The bytes behind the header of 8 bytes.
    pub body: &'a [u8],
}

/// A memory mapping as it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapping<'a> {
    pub pid: u32,
    pub tid: u32,
    pub start: u64,
    pub len: u64,
    pub file_offset: u64,
    pub path: &'a [u8],
    /// Present if the record says that it has one. Linux 6.18 also says so if only another recording asked
    /// for it; the field holds an inode then.
    pub build_id: Option<&'a [u8]>,
    /// Meaningful where there is no build id.
    pub inode: Option<u64>,
    pub executable: bool,
    pub kernel: bool,
}

/// The content of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Record<'a> {
    Mapping(Mapping<'a>),
    Comm {
        pid: u32,
        tid: u32,
        comm: &'a [u8],
        exec: bool,
    },
    Fork {
        pid: u32,
        parent_pid: u32,
        tid: u32,
        parent_tid: u32,
        /// Written for a process that existed before the recording. Records of its own list its memory.
        found: bool,
    },
    Exit {
        pid: u32,
        tid: u32,
    },
    /// The thread is in the sample id.
    Switch {
        out: bool,
        preempted: bool,
        /// Pid and tid of the next thread, or of the previous one. Present only in recordings of whole CPUs.
        other: Option<(u32, u32)>,
    },
    /// A hardware trace of this thread starts: the thread runs.
    TraceStart {
        pid: u32,
        tid: u32,
    },
    /// Records that the kernel dropped, because perf did not read the buffer in time.
    Lost(u64),
    LostSamples(u64),
    /// The kernel suspended sampling, because it took too much time.
    Throttled,
    /// The kernel wrote part of a hardware trace.
    Aux(Filled),
    /// The user part of stacks that were recorded without it.
    DeferredCallchain,
    FinishedRound,
    EventName {
        id: u64,
        name: &'a [u8],
    },
    BuildId {
        path: &'a [u8],
        build_id: &'a [u8],
    },
    IntelPt {
        info: TraceInfo,
        /// The recording's address filters as text.
        filters: &'a [u8],
    },
    OtherTrace,
}

impl<'a> Record<'a> {
    /// `Ok(None)`: a type of no interest. `Err`: shorter than its type must be.
    pub(crate) fn read(raw: RawRecord<'a>) -> Result<Option<Self>, Malformed> {
        let bytes = Bytes::new(raw.body);
        let read = match raw.kind {
            kind::MMAP => mmap(bytes, raw.misc),
            kind::MMAP2 => mmap2(bytes, raw.misc),
            kind::COMM => comm(bytes, raw.misc),
            kind::FORK => fork(bytes, raw.misc),
            kind::EXIT => exit(bytes),
            kind::LOST => lost(bytes),
            kind::LOST_SAMPLES => lost_samples(bytes),
            kind::THROTTLE => Some(Record::Throttled),
            kind::SWITCH => Some(switch(raw.misc, None)),
            kind::SWITCH_CPU_WIDE => pair(bytes).map(|other| switch(raw.misc, Some(other))),
            kind::AUX => Filled::read(bytes).map(Record::Aux),
            kind::ITRACE_START => pair(bytes).map(|(pid, tid)| Record::TraceStart { pid, tid }),
            kind::CALLCHAIN_DEFERRED => Some(Record::DeferredCallchain),
            kind::FINISHED_ROUND => Some(Record::FinishedRound),
            kind::BUILD_ID => build_id(bytes, raw.misc),
            kind::AUXTRACE_INFO => {
                let filters = filter_text(raw.body);
                let record = |info| Record::IntelPt { info, filters };
                TraceInfo::read(raw.body).map(|info| info.map_or(Record::OtherTrace, record))
            }
            kind::EVENT_UPDATE => return event_update(bytes).ok_or(Malformed),
            _ => return Ok(None),
        };
        read.map(Some).ok_or(Malformed)
    }
}

/// A record is shorter than its type requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

fn mmap<'a>(mut bytes: Bytes<'a>, misc: u16) -> Option<Record<'a>> {
    let (pid, tid) = (bytes.u32()?, bytes.u32()?);
    let (start, len, file_offset) = (bytes.u64()?, bytes.u64()?, bytes.u64()?);
    Some(Record::Mapping(Mapping {
        pid,
        tid,
        start,
        len,
        file_offset,
        path: bytes.c_string(),
        build_id: None,
        inode: None,
        executable: misc & misc::MMAP_DATA == 0,
        kernel: misc & misc::CPU_MODE == misc::KERNEL,
    }))
}

fn mmap2<'a>(mut bytes: Bytes<'a>, misc: u16) -> Option<Record<'a>> {
    const PROT_EXEC: u32 = 4;
    let (pid, tid) = (bytes.u32()?, bytes.u32()?);
    let (start, len, file_offset) = (bytes.u64()?, bytes.u64()?, bytes.u64()?);
    let file = bytes.take(24)?;
    let build_id = if misc & misc::MMAP_BUILD_ID != 0 { mapped_build_id(file) } else { None };
    let inode = Bytes::new(&file[8..]).u64().filter(|inode| *inode != 0);
    let (protection, _flags) = (bytes.u32()?, bytes.u32()?);
    Some(Record::Mapping(Mapping {
        pid,
        tid,
        start,
        len,
        file_offset,
        path: bytes.c_string(),
        build_id,
        inode,
        // perf writes mappings of processes that ran before the recording. Those may lack a protection.
        executable: protection & PROT_EXEC != 0 || protection == 0 && misc & misc::MMAP_DATA == 0,
        kernel: misc & misc::CPU_MODE == misc::KERNEL,
    }))
}

/// A length, three zeros, and the build id.
fn mapped_build_id(file: &[u8]) -> Option<&[u8]> {
    let (len, zeros) = (usize::from(*file.first()?), file.get(1..4)?);
    let build_id = file.get(4..4 + len)?;
    (len > 0 && zeros == [0; 3]).then_some(build_id)
}

fn comm<'a>(mut bytes: Bytes<'a>, misc: u16) -> Option<Record<'a>> {
    let (pid, tid) = (bytes.u32()?, bytes.u32()?);
    Some(Record::Comm { pid, tid, comm: bytes.c_string(), exec: misc & misc::COMM_EXEC != 0 })
}

fn fork<'a>(mut bytes: Bytes<'a>, misc: u16) -> Option<Record<'a>> {
    let (pid, parent_pid, tid, parent_tid) = (bytes.u32()?, bytes.u32()?, bytes.u32()?, bytes.u32()?);
    let _time = bytes.u64()?;
    Some(Record::Fork { pid, parent_pid, tid, parent_tid, found: misc & misc::FORK_EXEC != 0 })
}

fn exit(mut bytes: Bytes<'_>) -> Option<Record<'_>> {
    let (pid, _parent_pid, tid) = (bytes.u32()?, bytes.u32()?, bytes.u32()?);
    Some(Record::Exit { pid, tid })
}

fn lost(mut bytes: Bytes<'_>) -> Option<Record<'_>> {
    let _id = bytes.u64()?;
    Some(Record::Lost(bytes.u64()?))
}

fn lost_samples(mut bytes: Bytes<'_>) -> Option<Record<'_>> {
    Some(Record::LostSamples(bytes.u64()?))
}

/// Reads the entries of a file's table of build ids, too.
pub(crate) fn build_id(mut bytes: Bytes<'_>, misc: u16) -> Option<Record<'_>> {
    let _pid = bytes.u32()?;
    let field = bytes.take(24)?;
    let size = if misc & misc::BUILD_ID_SIZE != 0 { usize::from(field[BUILD_ID_LEN]) } else { BUILD_ID_LEN };
    Some(Record::BuildId { path: bytes.c_string(), build_id: &field[..size.min(BUILD_ID_LEN)] })
}

fn switch<'a>(misc: u16, other: Option<(u32, u32)>) -> Record<'a> {
    let (out, preempted) = (misc & misc::SWITCH_OUT != 0, misc & misc::SWITCH_OUT_PREEMPT != 0);
    Record::Switch { out, preempted, other }
}

/// A pid and a tid.
fn pair(mut bytes: Bytes<'_>) -> Option<(u32, u32)> {
    Some((bytes.u32()?, bytes.u32()?))
}

#[allow(clippy::option_option)]
fn event_update(mut bytes: Bytes<'_>) -> Option<Option<Record<'_>>> {
    let (what, id) = (bytes.u64()?, bytes.u64()?);
    Some((what == UPDATE_NAME).then(|| Record::EventName { id, name: bytes.c_string() }))
}

/// An attr and its event numbers, from the record that announces an event in a stream.
pub(crate) fn attr_record(body: &[u8]) -> Option<(&[u8], Vec<u64>)> {
    let size = Bytes::new(body.get(4..)?).u32()?;
    let mut bytes = Bytes::new(body);
    // The first kernels wrote the size 0.
    let attr = bytes.take(if size == 0 { super::attr::FIRST_SIZE } else { size } as usize)?;
    let ids = bytes.u64s(bytes.len() as u64 / 8)?.collect();
    Some((attr, ids))
}

/// The name of a thread. The kernel's limit is 15 bytes, but a file may hold any length.
pub(crate) fn comm_from_bytes(bytes: &[u8]) -> String {
    const MAX_COMM: usize = 64;
    let bytes = until_nul(bytes);
    lossy(&bytes[..bytes.len().min(MAX_COMM)])
}

#[cfg(test)]
mod tests {
    use wallprof_intel_pt::generator::record::words;

    use super::*;

    fn read(kind: u32, misc: u16, body: &[u8]) -> Result<Option<Record<'_>>, Malformed> {
        Record::read(RawRecord { kind, misc, body })
    }

    #[test]
    fn mappings_carry_a_build_id_or_an_inode() {
        let mut body = words(&[7 << 32 | 5, 0x1000, 0x2000, 0x3000, 1, 42, 9, 5]);
        body.extend(b"/bin/x\0\0");
        let Ok(Some(Record::Mapping(plain))) = read(kind::MMAP2, misc::USER, &body) else {
            panic!("{body:?}")
        };
        assert_eq!((plain.pid, plain.tid, plain.start, plain.len), (5, 7, 0x1000, 0x2000));
        assert_eq!((plain.inode, plain.build_id, plain.path), (Some(42), None, &b"/bin/x"[..]));
        assert!(plain.executable && !plain.kernel);
        body[32] = 4;
        let Ok(Some(Record::Mapping(named))) = read(kind::MMAP2, misc::MMAP_BUILD_ID, &body) else {
            panic!("{body:?}")
        };
        assert_eq!(named.build_id.map(<[u8]>::len), Some(4));
        body[32] = 254;
        let Ok(Some(Record::Mapping(device))) = read(kind::MMAP2, misc::MMAP_BUILD_ID, &body) else {
            panic!("{body:?}")
        };
        assert_eq!((device.inode, device.build_id), (Some(42), None), "a device number is not a length");
    }

    #[test]
    fn data_mappings_are_not_code() {
        let mut body = words(&[5, 0x1000, 0x2000, 0]);
        body.extend(b"//anon\0\0");
        for (misc, executable) in [(misc::USER, true), (misc::USER | misc::MMAP_DATA, false)] {
            let Ok(Some(Record::Mapping(mapping))) = read(kind::MMAP, misc, &body) else { panic!() };
            assert_eq!(mapping.executable, executable);
        }
    }

    #[test]
    fn meaning_of_misc_bits_depends_on_the_record() {
        assert_eq!(
            read(kind::SWITCH, misc::SWITCH_OUT | misc::SWITCH_OUT_PREEMPT, &[]),
            Ok(Some(Record::Switch { out: true, preempted: true, other: None }))
        );
        let body = [&words(&[3 << 32 | 3])[..], b"sh\0"].concat();
        assert_eq!(
            read(kind::COMM, misc::COMM_EXEC, &body),
            Ok(Some(Record::Comm { pid: 3, tid: 3, comm: b"sh", exec: true }))
        );
        let next = read(kind::SWITCH_CPU_WIDE, misc::SWITCH_OUT, &body);
        assert_eq!(next, Ok(Some(Record::Switch { out: true, preempted: false, other: Some((3, 3)) })));
    }

    #[test]
    fn short_records_are_malformed_and_unknown_types_are_ignored() {
        for kind in [1, 2, 3, 4, 7, 10, 11, 12, 13, 15, 67, 70, 78] {
            assert_eq!(read(kind, 0, &[1, 2, 3]), Err(Malformed), "{kind}");
        }
        assert_eq!(read(17, 0, &[]), Ok(None));
        assert_eq!(read(u32::MAX, 0, &[1]), Ok(None));
    }

    #[test]
    fn attrs_of_streams_end_where_their_ids_begin() {
        let mut body = wallprof_intel_pt::generator::record::attr(72, &[(8, 3)]);
        body.extend(words(&[10, 11]));
        let (attr, ids) = attr_record(&body).expect("an attr");
        assert_eq!((attr.len(), ids), (72, vec![10, 11]));
        body[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(attr_record(&body).is_none());
    }
}
