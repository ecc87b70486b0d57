// SPDX-License-Identifier: Apache-2.0
//! Changes of processes from perf's own side-band: executable mappings, execs, forks and exits, as they
//! happen.
//!
//! A dummy software event on each CPU reports them for the whole machine, so `/proc` need not be polled.
//! Records that a full ring drops are counted.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::cpus;
use crate::events::event_type;
use crate::perf::{self, Attr, SOFTWARE_DUMMY, flag};
use crate::ring::Ring;

/// One change of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    Mapping(Mapping),
    /// A new mapping of a process whose mappings are not followed.
    Covered {
        pid: u32,
        start: u64,
        end: u64,
    },
    /// The process replaced its program; its mappings are gone.
    Exec {
        pid: u32,
        /// CLOCK_MONOTONIC, ns.
        time: u64,
    },
    Fork {
        pid: u32,
        parent_pid: u32,
    },
    /// The whole process ended.
    Exit {
        pid: u32,
    },
    Lost {
        count: u64,
    },
    /// The walker met a process whose mappings it does not know.
    Wanted {
        pid: u32,
        exec_id: u32,
        /// CLOCK_MONOTONIC, ns.
        time: u64,
    },
}

/// A new mapping with execute permission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub pid: u32,
    pub start: u64,
    pub len: u64,
    pub page_offset: u64,
    pub build_id: Option<Vec<u8>>,
    pub path: Vec<u8>,
}

/// Data pages of a ring: 256 KiB hold some two thousand mappings.
const DATA_PAGES: usize = 64;

const RECORD_MMAP2: u32 = 10;
const RECORD_LOST: u32 = 2;
const RECORD_COMM: u32 = 3;
const RECORD_EXIT: u32 = 4;
const RECORD_FORK: u32 = 7;
const MISC_COMM_EXEC: u16 = 1 << 13;
const MISC_BUILD_ID: u16 = 1 << 14;
const PROT_EXEC: u32 = 4;
/// PERF_SAMPLE_TIME.
const SAMPLE_TIME: u64 = 1 << 2;

/// The rings of all CPUs.
pub struct Sideband {
    rings: Vec<CpuRing>,
    timed: Vec<(u64, News)>,
}

struct CpuRing {
    event: OwnedFd,
    ring: Ring,
}

impl Sideband {
    pub fn open(cpus: &[u32]) -> io::Result<Self> {
        let rings = cpus.iter().filter_map(|&cpu| CpuRing::open(cpu).transpose_offline());
        Ok(Sideband { rings: rings.collect::<io::Result<_>>()?, timed: Vec::new() })
    }

    /// Other CPUs are online than before: all rings are opened again, since the ring of a CPU that was
    /// offline is dead. Changes meanwhile may be reported twice.
    pub(crate) fn follow_cpus(&mut self) -> io::Result<()> {
        let Some(online) = cpus::read_online() else { return Ok(()) };
        let mut before = std::mem::replace(self, Sideband::open(&online)?);
        before.rings.iter_mut().for_each(|ring| ring.read(&mut self.timed, &|_| true));
        Ok(())
    }

    /// Descriptors that become readable when there are changes.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.rings.iter().map(|ring| ring.event.as_fd())
    }

    /// Takes the changes since the last call, in the order in which they happened: a process that was forked
    /// on one CPU may exec on another. A mapping of a process that is not followed costs little: its file is
    /// left out.
    pub fn read(&mut self, news: &mut VecDeque<News>, is_followed: &dyn Fn(u32) -> bool) {
        for ring in &mut self.rings {
            ring.read(&mut self.timed, is_followed);
        }
        self.timed.sort_by_key(|(time, _)| *time);
        news.extend(self.timed.drain(..).map(|(_, item)| item));
    }
}

/// A CPU that went offline between listing and opening is not an error.
trait TransposeOffline {
    fn transpose_offline(self) -> Option<io::Result<CpuRing>>;
}

impl TransposeOffline for io::Result<CpuRing> {
    fn transpose_offline(self) -> Option<io::Result<CpuRing>> {
        match self {
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => None,
            other => Some(other),
        }
    }
}

impl CpuRing {
    fn open(cpu: u32) -> io::Result<Self> {
        let wanted =
            flag::MMAP | flag::MMAP2 | flag::COMM | flag::COMM_EXEC | flag::TASK | flag::SAMPLE_ID_ALL;
        let attr = Attr {
            kind: event_type::SOFTWARE,
            config: SOFTWARE_DUMMY,
            sample_type: SAMPLE_TIME,
            flags: wanted | flag::WATERMARK | flag::USE_CLOCKID,
            // The default clock differs from CPU to CPU where the time stamp counter is not stable, and an exec would
            // come before the fork.
            clockid: libc::CLOCK_MONOTONIC,
            // Bytes: a waiting thread wakes at the first record.
            wakeup: 1,
            ..Attr::default()
        };
        // Build ids in mapping records: 5.12+.
        let with_build_id = Attr { flags: attr.flags | flag::BUILD_ID, ..attr };
        let event = perf::open(&with_build_id, cpu).or_else(|_| perf::open(&attr, cpu))?;
        let ring = Ring::map(&event, DATA_PAGES)?;
        Ok(CpuRing { event, ring })
    }

    fn read(&mut self, news: &mut Vec<(u64, News)>, is_followed: &dyn Fn(u32) -> bool) {
        let read: Result<(), Infallible> = self.ring.read(|record| {
            // With SAMPLE_TIME alone, every record ends with the time.
            let time = u64_at(record, record.len().saturating_sub(8)).unwrap_or(0);
            news.extend(news_from_record(record, time, is_followed).map(|item| (time, item)));
            Ok(())
        });
        let Ok(()) = read;
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Layouts: perf_event_open(2), "MMAP layout". Records of other kinds, and of threads, are ignored.
fn news_from_record(record: &[u8], time: u64, is_followed: &dyn Fn(u32) -> bool) -> Option<News> {
    let kind = u32_at(record, 0)?;
    let misc = u16::from_le_bytes([*record.get(4)?, *record.get(5)?]);
    match kind {
        RECORD_MMAP2 if is_followed(u32_at(record, 8)?) => {
            mapping_from_record(record, misc).map(News::Mapping)
        }
        RECORD_MMAP2 => covered_from_record(record),
        RECORD_COMM if misc & MISC_COMM_EXEC != 0 => Some(News::Exec { pid: u32_at(record, 8)?, time }),
        RECORD_FORK => {
            let (pid, parent_pid) = (u32_at(record, 8)?, u32_at(record, 12)?);
            (pid != parent_pid).then_some(News::Fork { pid, parent_pid })
        }
        RECORD_EXIT => {
            let (pid, tid) = (u32_at(record, 8)?, u32_at(record, 16)?);
            (pid == tid).then_some(News::Exit { pid })
        }
        RECORD_LOST => Some(News::Lost { count: u64_at(record, 16)? }),
        _ => None,
    }
}

fn is_executable(record: &[u8]) -> Option<bool> {
    Some(u32_at(record, 64)? & PROT_EXEC != 0)
}

fn covered_from_record(record: &[u8]) -> Option<News> {
    let (start, len) = (u64_at(record, 16)?, u64_at(record, 24)?);
    let covered = News::Covered { pid: u32_at(record, 8)?, start, end: start.saturating_add(len) };
    is_executable(record)?.then_some(covered)
}

fn mapping_from_record(record: &[u8], misc: u16) -> Option<Mapping> {
    if !is_executable(record)? {
        return None;
    }
    let path = record.get(72..)?;
    let path = &path[..path.iter().position(|&byte| byte == 0).unwrap_or(path.len())];
    let build_id = (misc & MISC_BUILD_ID != 0).then(|| {
        let size = usize::from(record[40]).min(20);
        record[44..44 + size].to_vec()
    });
    Some(Mapping {
        pid: u32_at(record, 8)?,
        start: u64_at(record, 16)?,
        len: u64_at(record, 24)?,
        page_offset: u64_at(record, 32)?,
        build_id: build_id.filter(|id| !id.is_empty()),
        path: path.to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend(misc.to_le_bytes());
        bytes.extend((8 + body.len() as u16).to_le_bytes());
        bytes.extend(body);
        bytes
    }

    fn mapping_body(protection: u32) -> Vec<u8> {
        let mut body = Vec::new();
        body.extend(7u32.to_le_bytes());
        body.extend(8u32.to_le_bytes());
        for field in [0x1000u64, 0x2000, 0x3000] {
            body.extend(field.to_le_bytes());
        }
        body.extend([4, 0, 0, 0]);
        body.extend([0xaa; 20]);
        body.extend(protection.to_le_bytes());
        body.extend(0u32.to_le_bytes());
        body.extend(b"/lib/x\0\0");
        body
    }

    #[test]
    fn mappings_with_execute_permission_are_reported() {
        let news = news_from_record(&record(RECORD_MMAP2, MISC_BUILD_ID, &mapping_body(5)), 0, &|_| true);
        let Some(News::Mapping(mapping)) = news else { panic!("{news:?}") };
        assert_eq!(
            (mapping.pid, mapping.start, mapping.len, mapping.page_offset),
            (7, 0x1000, 0x2000, 0x3000)
        );
        assert_eq!(mapping.build_id, Some(vec![0xaa; 4]));
        assert_eq!(mapping.path, b"/lib/x");
        assert_eq!(news_from_record(&record(RECORD_MMAP2, 0, &mapping_body(1)), 0, &|_| true), None);
    }

    #[test]
    fn mapping_of_a_process_that_is_not_followed_has_its_range_only() {
        let news = |protection| {
            let record = record(RECORD_MMAP2, MISC_BUILD_ID, &mapping_body(protection));
            news_from_record(&record, 0, &|pid| pid != 7)
        };
        assert_eq!(news(5), Some(News::Covered { pid: 7, start: 0x1000, end: 0x3000 }));
        assert_eq!(news(1), None);
    }

    #[test]
    fn threads_and_short_records_are_no_changes() {
        let mut fork = Vec::new();
        fork.extend([9u32, 9, 10, 9].iter().flat_map(|field| field.to_le_bytes()));
        let news_from_record = |record: &[u8]| super::news_from_record(record, 0, &|_| true);
        assert_eq!(news_from_record(&record(RECORD_FORK, 0, &fork)), None);
        fork[0] = 11;
        assert_eq!(
            news_from_record(&record(RECORD_FORK, 0, &fork)),
            Some(News::Fork { pid: 11, parent_pid: 9 })
        );
        for len in 0..70 {
            let whole = record(RECORD_MMAP2, MISC_BUILD_ID, &mapping_body(5));
            assert_eq!(news_from_record(&whole[..len]), None);
        }
    }
}
