// SPDX-License-Identifier: Apache-2.0
//! The formats of tracepoints: the bytes of each field in the raw data of a sample.
//!
//! The layout is that of `trace.dat`, written by `tools/perf/util/trace-event-info.c`. A format's text is
//! that of `events/SYSTEM/EVENT/format` in tracefs.

use std::collections::HashMap;
use std::io::{self, Read};

use super::bytes::{lossy, until_nul};

const MAGIC: &[u8] = b"\x17\x08\x44tracing";
/// The kernel's longest formats have 30 KiB.
const MAX_FORMAT: u64 = 64 << 10;
/// A kernel has some 2,500 tracepoints.
const MAX_FORMATS: usize = 1 << 14;
const MAX_NAME: usize = 256;

/// Part of a tracepoint's raw data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    offset: usize,
    size: usize,
}

impl Field {
    /// The value of an integer of up to 8 bytes.
    pub(crate) fn integer(self, raw: &[u8]) -> Option<u64> {
        let bytes = self.bytes(raw).filter(|bytes| bytes.len() <= 8)?;
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        Some(u64::from_le_bytes(word))
    }

    pub(crate) fn bytes(self, raw: &[u8]) -> Option<&[u8]> {
        raw.get(self.offset..self.offset.checked_add(self.size)?)
    }
}

/// One tracepoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Format {
    /// `sched:sched_switch`.
    pub name: String,
    /// Kept for the scheduler's tracepoints only; the fields of others are not used.
    fields: HashMap<String, Field>,
}

impl Format {
    pub(crate) fn field(&self, name: &str) -> Option<Field> {
        self.fields.get(name).copied()
    }
}

/// Tracepoints by their number on the recorded machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Formats {
    pub by_id: HashMap<u64, Format>,
}

impl Formats {
    pub(crate) fn read(input: &mut impl Read) -> io::Result<Self> {
        let mut magic = [0; MAGIC.len()];
        input.read_exact(&mut magic)?;
        let _version = name(input)?;
        let [big_endian, _long_size] = array(input)?;
        if magic != MAGIC || big_endian != 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let _page_size = u32_from(input)?;
        // The formats of pages and of event headers: "header_page", "header_event".
        for _ in 0..2 {
            let _name = name(input)?;
            let size = u64_from(input)?;
            skip(input, size)?;
        }
        // The formats of tracers.
        for _ in 0..u32_from(input)? {
            let size = u64_from(input)?;
            skip(input, size)?;
        }
        let mut formats = Formats::default();
        for _ in 0..u32_from(input)? {
            formats.read_system(input)?;
        }
        Ok(formats)
    }

    fn read_system(&mut self, input: &mut impl Read) -> io::Result<()> {
        let system = lossy(&name(input)?);
        for _ in 0..u32_from(input)? {
            let size = u64_from(input)?;
            if size > MAX_FORMAT || self.by_id.len() >= MAX_FORMATS {
                skip(input, size)?;
                continue;
            }
            let mut text = vec![0; size as usize];
            input.read_exact(&mut text)?;
            if let Some((id, format)) = format_from_text(&system, &String::from_utf8_lossy(&text)) {
                self.by_id.insert(id, format);
            }
        }
        Ok(())
    }
}

fn format_from_text(system: &str, text: &str) -> Option<(u64, Format)> {
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
    let id = value("ID:")?.parse().ok()?;
    let name = format!("{system}:{}", value("name:")?);
    let fields =
        if system == "sched" { text.lines().filter_map(field_from_line).collect() } else { HashMap::new() };
    Some((id, Format { name, fields }))
}

/// `field:pid_t prev_pid; offset:24; size:4; signed:1;`, with tabs between the parts.
fn field_from_line(line: &str) -> Option<(String, Field)> {
    let mut parts = line.trim().split(';').map(str::trim);
    let declaration = parts.next()?.strip_prefix("field:")?;
    let word = declaration.split_whitespace().next_back()?;
    let name = word.split('[').next()?.to_owned();
    let number = |part: Option<&str>, key: &str| part?.strip_prefix(key)?.parse().ok();
    let (offset, size) = (number(parts.next(), "offset:")?, number(parts.next(), "size:")?);
    Some((name, Field { offset, size }))
}

/// Bytes up to a NUL, which is consumed.
fn name(input: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut name = Vec::new();
    loop {
        match array(input)? {
            [0] => return Ok(until_nul(&name).to_vec()),
            [_] if name.len() == MAX_NAME => return Err(io::ErrorKind::InvalidData.into()),
            [byte] => name.push(byte),
        }
    }
}

fn array<const N: usize>(input: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn u32_from(input: &mut impl Read) -> io::Result<u32> {
    array(input).map(u32::from_le_bytes)
}

fn u64_from(input: &mut impl Read) -> io::Result<u64> {
    array(input).map(u64::from_le_bytes)
}

fn skip(input: &mut impl Read, size: u64) -> io::Result<()> {
    let skipped = io::copy(&mut input.take(size), &mut io::sink())?;
    if skipped < size { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
}

#[cfg(test)]
pub(crate) mod tests {
    use wallprof_intel_pt::generator::record::{halves, words};

    use super::*;

    const SWITCH: &str = "name: sched_switch\nID: 316\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\n\
        \tfield:char prev_comm[16];\toffset:8;\tsize:16;\tsigned:0;\n\
        \tfield:pid_t prev_pid;\toffset:24;\tsize:4;\tsigned:1;\n\
        \tfield:int prev_prio;\toffset:28;\tsize:4;\tsigned:1;\n\
        \tfield:long prev_state;\toffset:32;\tsize:8;\tsigned:1;\n\
        \tfield:char next_comm[16];\toffset:40;\tsize:16;\tsigned:0;\n\
        \tfield:pid_t next_pid;\toffset:56;\tsize:4;\tsigned:1;\n\
        \tfield:int next_prio;\toffset:60;\tsize:4;\tsigned:1;\n\nprint fmt: \"x\"\n";
    const WAKING: &str = "name: sched_waking\nID: 318\nformat:\n\
        \tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
        \tfield:char comm[16];\toffset:8;\tsize:16;\tsigned:0;\n\
        \tfield:pid_t pid;\toffset:24;\tsize:4;\tsigned:1;\n";

    /// Tracing data with the formats of `sched_switch` (316) and `sched_waking` (318).
    pub(crate) fn tracing_data() -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(b"0.6\0\0\x08\0\x10\0\0");
        for part in [&b"header_page\0"[..], b"header_event\0"] {
            bytes.extend(part);
            bytes.extend(words(&[3]));
            bytes.extend(b"abc");
        }
        bytes.extend(halves(&[0, 1]));
        bytes.extend(b"sched\0");
        bytes.extend(halves(&[2]));
        for text in [SWITCH, WAKING] {
            bytes.extend(words(&[text.len() as u64]));
            bytes.extend(text.as_bytes());
        }
        bytes
    }

    #[test]
    fn fields_are_at_the_offsets_of_the_text() {
        let formats = Formats::read(&mut &tracing_data()[..]).expect("formats");
        let format = &formats.by_id[&316];
        assert_eq!(format.name, "sched:sched_switch");
        let mut raw = vec![0; 64];
        raw[24..28].copy_from_slice(&7u32.to_le_bytes());
        raw[40..45].copy_from_slice(b"bash\0");
        assert_eq!(format.field("prev_pid").and_then(|field| field.integer(&raw)), Some(7));
        assert_eq!(
            format.field("next_comm").and_then(|field| field.bytes(&raw)).map(until_nul),
            Some(&b"bash"[..])
        );
        assert_eq!(format.field("next_comm").and_then(|field| field.integer(&raw)), None);
        assert_eq!(format.field("next_pid").and_then(|field| field.bytes(&raw[..59])), None);
        assert_eq!(format.field("nothing"), None);
    }

    #[test]
    fn damage_is_an_error() {
        let whole = tracing_data();
        for len in 0..whole.len() {
            assert!(Formats::read(&mut &whole[..len]).is_err(), "{len}");
        }
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0xff;
            let _ = Formats::read(&mut &bytes[..]);
        }
    }

    #[test]
    fn huge_offsets_are_refused() {
        let line = "\tfield:int x;\toffset:18446744073709551615;\tsize:4;\tsigned:1;";
        let (_, field) = field_from_line(line).expect("a field");
        assert_eq!(field.integer(&[0; 16]), None);
        assert_eq!(field_from_line("\tfield:int x;\toffset:-4;\tsize:4;"), None);
    }
}
