// SPDX-License-Identifier: Apache-2.0
//! jitdump: code loads of a compiler with their times (linux:
//! tools/perf/Documentation/jitdump-specification.txt).
//!
//! Only names are read; the machine code between them is skipped. Code that a compiler moves afterwards
//! (record 1) keeps its name at its first place only.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Seek};
use std::os::unix::ffi::OsStrExt;

use wallprof_model::MonoNs;

use super::Reading;
use super::wanted::{Code, Wanted};

/// Bytes of one dump that are read; a server that dumps for hours writes some hundred MiB.
const MAX_BYTES: u64 = 1 << 30;
const MAX_RECORDS: usize = 1 << 21;
/// Longer names are cut.
const MAX_NAME: u64 = 8192;

/// "JiTD", in the byte order of the writer.
const MAGIC: u32 = 0x4a69_5444;
const HEADER_BYTES: usize = 40;
/// The times are a processor's ticks, not CLOCK_MONOTONIC.
const FLAG_ARCH_TIMESTAMP: u64 = 1;
const PREFIX_BYTES: usize = 16;
const LOAD: u32 = 0;
/// pid, tid, vma, code_addr, code_size, code_index.
const LOAD_BYTES: usize = 40;

/// Whether a mapped file has the name of a jitdump: `…/jit-123.dump`.
pub(super) fn is_dump_path(path: &OsStr) -> bool {
    let path = path.as_bytes();
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    let name = name.strip_suffix(b" (deleted)").unwrap_or(name);
    let pid = name.strip_prefix(b"jit-").and_then(|name| name.strip_suffix(b".dump"));
    pid.is_some_and(|pid| !pid.is_empty() && pid.iter().all(u8::is_ascii_digit))
}

/// Reads a dump from its start up to its last complete record.
pub(super) fn read(mut file: &File, wanted: &mut Wanted) -> io::Result<Reading> {
    file.rewind()?;
    read_records(BufReader::with_capacity(1 << 16, file), wanted)
}

/// An incomplete last record is still being written.
fn read_records(reader: impl BufRead + Seek, wanted: &mut Wanted) -> io::Result<Reading> {
    match Dump::open(reader)?.read(wanted) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(Reading::Whole),
        other => other,
    }
}

struct Dump<R> {
    reader: R,
    has_times: bool,
    /// Bytes read or skipped.
    at: u64,
}

/// The start of every record.
struct Prefix {
    id: u32,
    /// Bytes of the record behind the prefix.
    rest: u64,
    time: u64,
}

impl<R: BufRead + Seek> Dump<R> {
    fn open(mut reader: R) -> io::Result<Self> {
        let mut header = [0; HEADER_BYTES];
        reader.read_exact(&mut header)?;
        let size = u64::from(u32_at(&header, 8));
        if u32_at(&header, 0) != MAGIC || size < HEADER_BYTES as u64 {
            return Err(io::Error::new(ErrorKind::InvalidData, "not a jitdump"));
        }
        let has_times = u64_at(&header, 32) & FLAG_ARCH_TIMESTAMP == 0;
        let mut dump = Dump { reader, has_times, at: HEADER_BYTES as u64 };
        dump.skip(size - HEADER_BYTES as u64)?;
        Ok(dump)
    }

    fn read(&mut self, wanted: &mut Wanted) -> io::Result<Reading> {
        let mut name = Vec::new();
        for _ in 0..MAX_RECORDS {
            let prefix = self.prefix()?;
            if self.at + prefix.rest > MAX_BYTES {
                break;
            }
            if prefix.id != LOAD || prefix.rest < LOAD_BYTES as u64 {
                self.skip(prefix.rest)?;
            } else if !self.load(&prefix, &mut name, wanted)? {
                break;
            }
        }
        Ok(Reading::Cut)
    }

    fn prefix(&mut self) -> io::Result<Prefix> {
        let mut prefix = [0; PREFIX_BYTES];
        self.fill(&mut prefix)?;
        let rest = u64::from(u32_at(&prefix, 4)).checked_sub(PREFIX_BYTES as u64);
        let rest =
            rest.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "a record shorter than its prefix"))?;
        Ok(Prefix { id: u32_at(&prefix, 0), rest, time: u64_at(&prefix, 8) })
    }

    /// False when reading on would give no name.
    fn load(&mut self, prefix: &Prefix, name: &mut Vec<u8>, wanted: &mut Wanted) -> io::Result<bool> {
        let mut load = [0; LOAD_BYTES];
        self.fill(&mut load)?;
        let rest = prefix.rest - LOAD_BYTES as u64;
        name.clear();
        let read = self.reader.by_ref().take(rest.min(MAX_NAME)).read_until(0, name)? as u64;
        self.at += read;
        if name.last() == Some(&0) {
            name.pop();
        }
        self.skip(rest - read)?;
        let since = self.has_times.then_some(MonoNs(prefix.time));
        let code = Code { start: u64_at(&load, 16), size: u64_at(&load, 24), since, name };
        Ok(wanted.see(&code))
    }

    fn fill(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.reader.read_exact(bytes)?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    fn skip(&mut self, bytes: u64) -> io::Result<()> {
        self.reader.seek_relative(bytes.cast_signed())?;
        self.at += bytes;
        Ok(())
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].try_into().map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Cursor;

    fn header(flags: u64) -> Vec<u8> {
        let words = [MAGIC, 1, HEADER_BYTES as u32, 62, 0, 7];
        let mut bytes: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
        bytes.extend([9, flags].into_iter().flat_map(u64::to_le_bytes));
        bytes
    }

    fn record(id: u32, time: u64, body: &[u8]) -> Vec<u8> {
        let size = (PREFIX_BYTES + body.len()) as u32;
        let mut bytes: Vec<u8> = [id, size].into_iter().flat_map(u32::to_le_bytes).collect();
        bytes.extend(time.to_le_bytes());
        bytes.extend(body);
        bytes
    }

    fn load(time: u64, address: u64, size: u64, name: &str) -> Vec<u8> {
        let mut body: Vec<u8> = [7u32, 7].into_iter().flat_map(u32::to_le_bytes).collect();
        body.extend([address, address, size, 1].into_iter().flat_map(u64::to_le_bytes));
        body.extend(name.as_bytes());
        body.push(0);
        body.resize(body.len() + size as usize, 0xcc);
        record(LOAD, time, &body)
    }

    fn named(dump: &[u8], address: u64, first_seen: u64) -> (Option<String>, Option<Reading>) {
        let mut wanted = Wanted::new([(address, MonoNs(first_seen))].into_iter());
        let reading = read_records(Cursor::new(dump), &mut wanted).ok();
        (wanted.take(address, MonoNs(first_seen)).and_then(|line| line.symbol), reading)
    }

    #[test]
    fn loads_are_named_by_address_and_time() {
        let parts = [
            header(0),
            load(10, 0x1000, 64, "first"),
            record(2, 11, &[0; 24]),
            load(20, 0x1020, 64, "second"),
        ];
        let dump = parts.concat();
        let whole = |name: Option<&str>| (name.map(str::to_owned), Some(Reading::Whole));
        assert_eq!(named(&dump, 0x1000, 30), whole(Some("first")));
        assert_eq!(named(&dump, 0x1020, 30), whole(Some("second")));
        assert_eq!(named(&dump, 0x1020, 15), whole(Some("first")));
        assert_eq!(named(&dump, 0x1020, 5), whole(None));
        assert_eq!(named(&dump, 0x1060, 30), whole(None));
    }

    #[test]
    fn dump_with_times_of_another_clock_is_not_used() {
        let dump = [header(FLAG_ARCH_TIMESTAMP), load(u64::MAX, 0x1000, 8, "f")].concat();
        assert_eq!(named(&dump, 0x1000, 5).0.as_deref(), Some("f"));
    }

    #[test]
    fn incomplete_dump_is_read_up_to_its_last_complete_record() {
        let dump = [header(0), load(1, 0x1000, 8, "f"), load(1, 0x2000, 8, "g")].concat();
        for cut in 1..load(1, 0x2000, 8, "g").len() {
            let part = &dump[..dump.len() - cut];
            assert_eq!(named(part, 0x1000, 5), (Some("f".into()), Some(Reading::Whole)));
        }
    }

    #[test]
    fn damaged_dumps_give_nothing() {
        assert_eq!(named(b"", 1, 1), (None, None));
        assert_eq!(named(&[0; 64], 1, 1), (None, None));
        let short = [header(0), record(LOAD, 1, &[])[..4].to_vec(), vec![0; 12]].concat();
        assert_eq!(named(&short, 1, 1), (None, None));
        // A record of 4 GiB in a file of a few bytes, and one that is only a prefix.
        let mut giant = [header(0), load(1, 0x1000, 8, "f"), record(LOAD, 1, &[])].concat();
        let at = giant.len() - PREFIX_BYTES + 4;
        giant[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(named(&giant, 0x1000, 5), (Some("f".into()), Some(Reading::Cut)));
    }

    #[test]
    fn jitdumps_are_identified_by_name() {
        for path in ["/tmp/jit-1.dump", "/root/.debug/jit/x/jit-77.dump (deleted)"] {
            assert!(is_dump_path(OsStr::new(path)), "{path}");
        }
        for path in ["/tmp/jit-.dump", "/tmp/jit-x.dump", "/tmp/a-1.dump", "", "//anon", "/jit-1.dump/x"] {
            assert!(!is_dump_path(OsStr::new(path)), "{path}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_harmless(tail in proptest::collection::vec(any::<u8>(), 0..300)) {
            named(&tail, 1, 1);
            named(&[header(0), tail].concat(), 1, 1);
        }
    }
}
