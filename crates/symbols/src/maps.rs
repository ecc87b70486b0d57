// SPDX-License-Identifier: Apache-2.0
//! Lines of `/proc/PID/maps` (`proc_pid_maps(5)`), executable ones only.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::ffi::OsStringExt;

use crate::living_thread::living_thread;
use crate::undisturbed::Undisturbed;

/// Kernels allow a process no more mappings by default; reading stops here.
const MAX_LINES: usize = 1 << 20;
/// A path of 4,096 bytes whose every byte is escaped, and the numbers before it.
const MAX_LINE: u64 = 5 * 4096;

/// One executable mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapsLine {
    /// The first address.
    pub start: u64,
    /// The address after the last one.
    pub end: u64,
    /// Where the mapping starts in the file, in bytes.
    pub file_offset: u64,
    /// Of the file's device, as the kernel writes it: `fe:00`.
    device: String,
    /// 0 for anonymous memory.
    pub inode: u64,
    /// As the kernel writes it; empty for anonymous memory.
    pub path: OsString,
}

impl MapsLine {
    /// Whether both lines map the same file by the same name.
    pub(crate) fn has_same_file(&self, other: &MapsLine) -> bool {
        (self.inode, &self.device, &self.path) == (other.inode, &other.device, &other.path)
    }

    /// Memory of no file, not the kernel's own.
    fn is_anonymous(&self) -> bool {
        self.inode == 0 && (self.path.is_empty() || self.path.as_encoded_bytes().starts_with(b"[anon"))
    }

    /// The offset in the file of an address in the file's mapping, or after it.
    fn offset_at(&self, address: u64) -> u64 {
        self.file_offset.saturating_add(address.saturating_sub(self.start))
    }
}

/// The executable mappings of a living process, by address. Program text that was moved to anonymous memory, for
/// the sake of huge pages, is the file between whose parts it lies.
pub fn executable_maps(pid: u32) -> io::Result<Vec<MapsLine>> {
    let maps = File::open(format!("/proc/{}/maps", living_thread(pid)))?;
    read_executable(BufReader::new(Undisturbed(maps)))
}

fn read_executable(mut reader: impl BufRead) -> io::Result<Vec<MapsLine>> {
    let mut maps = Vec::new();
    let mut line = Vec::new();
    let mut gap = Gap::default();
    for _ in 0..MAX_LINES {
        line.clear();
        if reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)? == 0 {
            break;
        }
        let Some((line, executable)) = mapping_from_line(line.strip_suffix(b"\n").unwrap_or(&line)) else {
            continue;
        };
        gap.close(&line, &mut maps);
        if executable {
            gap.text.extend(line.is_anonymous().then_some(maps.len()));
            maps.push(line);
        }
    }
    Ok(maps)
}

/// Anonymous mappings that follow a part of a file without a space.
#[derive(Default)]
struct Gap {
    before: Option<MapsLine>,
    end: u64,
    /// The executable ones among them.
    text: Vec<usize>,
}

impl Gap {
    /// Takes the next mapping. Where it is the part of the same file that belongs there, so is what lies between.
    fn close(&mut self, next: &MapsLine, maps: &mut [MapsLine]) {
        let follows = next.start == self.end;
        self.end = next.end;
        if follows && next.is_anonymous() {
            return;
        }
        let text = std::mem::take(&mut self.text);
        if let Some(before) = &self.before
            && follows
            && before.has_same_file(next)
            && before.offset_at(next.start) == next.file_offset
        {
            for at in text {
                let line = &mut maps[at];
                let (start, end) = (line.start, line.end);
                *line = MapsLine { start, end, file_offset: before.offset_at(start), ..before.clone() };
            }
        }
        self.before = (!next.is_anonymous()).then(|| next.clone());
    }
}

/// A mapping and whether it is executable; `None` for a line of another form.
fn mapping_from_line(line: &[u8]) -> Option<(MapsLine, bool)> {
    let mut fields = line.splitn(6, |&byte| byte == b' ');
    let mut text = || std::str::from_utf8(fields.next()?).ok();
    let (start, end) = text()?.split_once('-')?;
    let permissions = text()?;
    let file_offset = text()?;
    let device = text()?;
    let inode = text()?;
    let path = fields.next().unwrap_or_default();
    let padding = path.iter().take_while(|&&byte| byte == b' ').count();
    let executable = permissions.as_bytes().get(2) == Some(&b'x');
    let line = MapsLine {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        file_offset: u64::from_str_radix(file_offset, 16).ok()?,
        device: device.to_owned(),
        inode: inode.parse().ok()?,
        path: OsString::from_vec(path[padding..].to_vec()),
    };
    Some((line, executable))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn executable_lines_are_read_and_others_are_not() {
        let text = b"55d0-55e0 r--p 00000000 fe:00 12   /usr/bin/cat\n\
            55e0-55f0 r-xp 00002000 fe:00 12                         /opt/my app/x (deleted)\n\
            7f00-7f10 rwxp 00000000 00:00 0 \n\
            7f20-7f30 r-xp 00000000 00:00 0                          [vdso]\n\
            garbage\n";
        let maps = read_executable(text.as_slice()).expect("readable");
        let line = |start, end, file_offset, inode, path: &str| {
            let device = if inode == 0 { "00:00" } else { "fe:00" };
            MapsLine { start, end, file_offset, device: device.into(), inode, path: path.into() }
        };
        assert_eq!(
            maps,
            [
                line(0x55e0, 0x55f0, 0x2000, 12, "/opt/my app/x (deleted)"),
                line(0x7f00, 0x7f10, 0, 0, ""),
                line(0x7f20, 0x7f30, 0, 0, "[vdso]"),
            ]
        );
    }

    #[test]
    fn anonymous_text_between_two_parts_of_a_file_is_that_file() {
        let read = |text: &str| -> Vec<(u64, u64, String)> {
            let maps = read_executable(text.as_bytes()).expect("readable");
            maps.iter()
                .map(|line| (line.start, line.file_offset, line.path.to_string_lossy().into_owned()))
                .collect()
        };
        let text = "1000-2000 r--p 00000000 fe:00 12 /x\n2000-3000 r-xp 00001000 fe:00 12 /x\n\
            3000-5000 r-xp 00000000 00:00 0 \n5000-6000 r-xp 00004000 fe:00 12 /x\n\
            6000-7000 rw-p 00005000 fe:00 12 /x\n7000-8000 r-xp 00000000 00:00 0 \n";
        let own = |start: u64| (start, start - 0x1000, "/x".to_string());
        let jit = |start: u64| (start, 0, String::new());
        assert_eq!(read(text), [own(0x2000), own(0x3000), own(0x5000), jit(0x7000)]);
        let all = "1000-2000 r--p 00000000 fe:00 12 /x\n2000-3000 r-xp 00000000 00:00 0 [anon:text]\n\
            3000-4000 r-xp 00000000 00:00 0 \n4000-5000 r--p 00003000 fe:00 12 /x\n";
        assert_eq!(read(all), [own(0x2000), own(0x3000)]);
        let others = [("fe:00 13 /y", "00004000"), ("fe:00 12 /x", "00003000")];
        for (file, offset) in others {
            let after = format!("5000-6000 r--p {offset} {file}\n");
            let text = text.replace("5000-6000 r-xp 00004000 fe:00 12 /x\n", &after);
            assert_eq!(read(&text)[1], jit(0x3000), "another file, or another part of it");
        }
        assert_eq!(read(&text.replace("5000-6000", "5800-6000"))[1], jit(0x3000), "a space between");
    }

    #[test]
    fn lines_of_one_file_have_its_device_inode_and_path() {
        let text = b"1000-2000 r-xp 00000000 fe:00 12 /x\n2000-3000 r-xp 00001000 fe:00 12 /x\n\
            3000-4000 r-xp 00000000 fe:01 12 /x\n4000-5000 r-xp 00000000 fe:01 13 /x\n\
            5000-6000 r-xp 00000000 fe:01 13 /y\n";
        let maps = read_executable(text.as_slice()).expect("readable");
        let same: Vec<bool> = maps.windows(2).map(|pair| pair[0].has_same_file(&pair[1])).collect();
        assert_eq!(same, [true, false, false, false]);
    }

    #[test]
    fn the_own_process_executes_its_binary() {
        let exe = std::fs::read_link("/proc/self/exe").expect("the test's own binary");
        let maps = executable_maps(std::process::id()).expect("readable");
        assert!(maps.iter().any(|line| line.path == exe));
    }

    proptest! {
        #[test]
        fn any_line_is_harmless(line in proptest::collection::vec(any::<u8>(), 0..200), tail in "[0-9a-f -]{0,80}") {
            let _ = mapping_from_line(&line);
            let _ = mapping_from_line(tail.as_bytes());
        }
    }
}
