// SPDX-License-Identifier: Apache-2.0
//! The file behind a page fault: the kernel side knows its name, and the process knows its path.
//!
//! Owns the reading of `/proc/PID/maps` (`proc_pid_maps(5)`) for this. Where the process has ended or has
//! another mapping there by now, the fault keeps the name.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};

use wallprof_model::event::{Fault, Mapping};
use wallprof_probe::bpf::fault_facts;
use wallprof_symbols::{Undisturbed, living_thread};

/// A file as one process sees it: pid, device, inode.
type FileKey = (u32, u32, u64);

/// At this number of paths all are forgotten.
const MAX_KNOWN: usize = 4096;
/// The default limit of mappings of a process is lower on all kernels. Reading stops here.
const MAX_LINES: usize = 1 << 20;
/// A path of 4,096 bytes whose every byte is escaped, and the numbers before it.
const MAX_LINE: u64 = 5 * 4096;

/// Paths that were looked up.
#[derive(Default)]
pub struct FaultFiles {
    known: HashMap<FileKey, String>,
}

impl FaultFiles {
    /// Sets the path of the file of a fault in process `pid`. Sets the mapping, too, where the kernel side
    /// could not look at it because the process was changing its mappings.
    pub fn complete(&mut self, pid: u32, facts: &fault_facts, fault: &mut Fault) {
        let unknown = fault.mapping.is_none();
        if !unknown && fault.mapping != Some(Mapping::File) {
            return;
        }
        let key = (pid, facts.device, facts.inode);
        if let Some(path) = self.known.get(&key).filter(|_| !unknown) {
            fault.file = Some(path.clone());
            return;
        }
        let Some(line) = line_at(pid, fault.address) else { return };
        if unknown {
            (fault.mapping, fault.file_offset) = (Some(line.mapping()), line.offset_of(fault.address));
            fault.file = Some(line.path).filter(|_| fault.mapping == Some(Mapping::File));
        } else if line.mapping() == Mapping::File && line.offset_of(fault.address) == fault.file_offset {
            if self.known.len() >= MAX_KNOWN {
                self.known.clear();
            }
            self.known.insert(key, line.path.clone());
            fault.file = Some(line.path);
        }
    }
}

/// One mapping.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    start: u64,
    end: u64,
    offset: u64,
    /// As the kernel writes it. Empty for anonymous memory.
    path: String,
}

impl Line {
    fn mapping(&self) -> Mapping {
        match self.path.as_str() {
            "[heap]" => Mapping::Heap,
            "[stack]" => Mapping::Stack,
            path if path.starts_with('/') => Mapping::File,
            _ => Mapping::Anonymous,
        }
    }

    /// The offset of `address` in the file. `None` where there is no file.
    fn offset_of(&self, address: u64) -> Option<u64> {
        (self.mapping() == Mapping::File).then(|| self.offset.saturating_add(address - self.start))
    }
}

fn line_at(pid: u32, address: u64) -> Option<Line> {
    let maps = File::open(format!("/proc/{}/maps", living_thread(pid))).ok()?;
    find_line(BufReader::new(Undisturbed(maps)), address).ok().flatten()
}

fn find_line(mut reader: impl BufRead, address: u64) -> io::Result<Option<Line>> {
    let mut bytes = Vec::new();
    for _ in 0..MAX_LINES {
        bytes.clear();
        if reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut bytes)? == 0 {
            break;
        }
        let line = line_from_text(&String::from_utf8_lossy(&bytes));
        if let Some(line) = line.filter(|line| (line.start..line.end).contains(&address)) {
            return Ok(Some(line));
        }
    }
    Ok(None)
}

/// `7f0000000000-7f0000001000 r--p 00000000 fe:00 1234     /lib/libc.so.6`; `None` for a line of another form.
fn line_from_text(text: &str) -> Option<Line> {
    let mut fields = text.trim_end_matches('\n').splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let offset = fields.nth(1)?;
    let path = fields.nth(2).unwrap_or_default().trim_start();
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    Some(Line { start: number(start)?, end: number(end)?, offset: number(offset)?, path: path.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
        55d000000000-55d000010000 rw-p 00000000 00:00 0                          [heap]\n\
        7f0000000000-7f0000002000 r--p 00003000 fe:00 1234                       /data/a b.idx\n\
        damaged\n\
        7f0000002000-7f0000003000 rw-p 00000000 00:00 0 \n\
        7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]\n";

    fn at(address: u64) -> Option<Line> {
        find_line(MAPS.as_bytes(), address).expect("text is readable")
    }

    #[test]
    fn mappings_are_found_by_address() {
        let line = at(0x7f00_0000_1010).expect("a file");
        assert_eq!((line.path.as_str(), line.mapping()), ("/data/a b.idx", Mapping::File));
        assert_eq!(line.offset_of(0x7f00_0000_1010), Some(0x4010));
        let kind = |address| at(address).map(|line| (line.mapping(), line.offset_of(address)));
        assert_eq!(kind(0x55d0_0000_ffff), Some((Mapping::Heap, None)));
        assert_eq!(kind(0x7f00_0000_2000), Some((Mapping::Anonymous, None)));
        assert_eq!(kind(0x7ffc_0000_0000), Some((Mapping::Stack, None)));
        assert_eq!(kind(0x7f00_0000_3000), None);
    }

    #[test]
    fn damaged_line_is_none() {
        for text in ["", "-", "1-2", "1-2 r", "x-2 r--p 0 0 0", "1-2 r--p z 0 0", "1-2 r--p"] {
            assert_eq!(line_from_text(text), None, "{text:?}");
        }
        assert!(line_from_text("1-2 r--p 0").is_some_and(|line| line.path.is_empty()));
    }

    #[test]
    fn own_program_has_a_path() {
        let program = std::env::current_exe().expect("the test's own path");
        let address = line_at as fn(u32, u64) -> Option<Line> as usize as u64;
        let mut fault =
            Fault { address, access: None, major: false, mapping: None, file: None, file_offset: None };
        let (mut files, facts) = (FaultFiles::default(), fault_facts::default());
        files.complete(std::process::id(), &facts, &mut fault);
        assert_eq!(fault.mapping, Some(Mapping::File));
        assert_eq!(fault.file.as_deref(), program.to_str());
        // The kernel side's offset has to agree.
        let mut moved = Fault {
            file: Some("name".into()),
            file_offset: fault.file_offset.map(|at| at + 1),
            ..fault.clone()
        };
        files.complete(std::process::id(), &facts, &mut moved);
        assert_eq!(moved.file.as_deref(), Some("name"));
        moved.file_offset = fault.file_offset;
        files.complete(std::process::id(), &facts, &mut moved);
        assert_eq!(moved.file.as_deref(), program.to_str());
    }

    #[test]
    fn name_stays_when_the_process_has_ended() {
        let mut fault = Fault {
            address: 0x1000,
            access: None,
            major: true,
            mapping: Some(Mapping::File),
            file: Some("a.idx".into()),
            file_offset: Some(0),
        };
        FaultFiles::default().complete(u32::MAX, &fault_facts::default(), &mut fault);
        assert_eq!(fault.file.as_deref(), Some("a.idx"));
    }
}
