// SPDX-License-Identifier: Apache-2.0
//! Code that was made at run time: jitdump files, in which a compiler writes the bytes of each function.
//!
//! Format: `tools/perf/Documentation/jitdump-specification.txt` of Linux. Code that a compiler moves later
//! (record 1) is known at its first address only.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use crate::format::bytes::{Bytes, lossy, until_nul};

/// "JiTD".
const MAGIC: u32 = 0x4a69_5444;
const HEADER: usize = 40;
const PREFIX: usize = 16;
const LOAD: u32 = 0;
const LOAD_FIELDS: usize = 40;
/// Times are those of the time-stamp counter.
const FLAG_ARCH_TIMESTAMP: u64 = 1;
/// A server that compiles for hours makes some hundred thousand functions.
const MAX_LOADS: usize = 1 << 20;
/// Longer names are cut.
const MAX_NAME: u64 = 4096;

/// One function, from the time at which it was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    /// In ns, or in ticks where the dump says so.
    pub time: u64,
    pub address: u64,
    pub size: u64,
    /// The offset of its bytes in the file.
    pub offset: u64,
    pub name: String,
}

/// The content of a dump.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dump {
    pub loads: Vec<Load>,
    pub in_ticks: bool,
}

impl Dump {
    /// Reads all complete records.
    pub(crate) fn read(file: &File) -> io::Result<Self> {
        let len = file.metadata()?.len();
        let mut input = BufReader::new(file);
        let mut header = [0; HEADER];
        input.read_exact(&mut header)?;
        let mut dump = Dump::default();
        let Some((size, in_ticks)) = header_fields(&header) else { return Ok(dump) };
        dump.in_ticks = in_ticks;
        let mut at = size;
        while dump.loads.len() < MAX_LOADS && at < len {
            input.seek(SeekFrom::Start(at))?;
            match record(&mut input, at, len) {
                Ok(Some((next, load))) => {
                    dump.loads.extend(load);
                    at = next;
                }
                Ok(None) => break,
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
                Err(error) => return Err(error),
            }
        }
        Ok(dump)
    }
}

/// The header's size, and whether times are ticks.
fn header_fields(header: &[u8]) -> Option<(u64, bool)> {
    let mut bytes = Bytes::new(header);
    let (magic, _version, size) = (bytes.u32()?, bytes.u32()?, bytes.u32()?);
    bytes.skip(20)?;
    let flags = bytes.u64()?;
    (magic == MAGIC && size as usize >= HEADER).then_some((size.into(), flags & FLAG_ARCH_TIMESTAMP != 0))
}

/// Reads the record at `at`. Returns the position of the next one, and the function, if it is a load. `None`:
/// it is incomplete.
fn record(input: &mut impl Read, at: u64, len: u64) -> io::Result<Option<(u64, Option<Load>)>> {
    let mut prefix = [0; PREFIX];
    input.read_exact(&mut prefix)?;
    let mut bytes = Bytes::new(&prefix);
    let (Some(kind), Some(size), Some(time)) = (bytes.u32(), bytes.u32(), bytes.u64()) else {
        return Ok(None);
    };
    let next = at + u64::from(size);
    if (size as usize) < PREFIX || next > len {
        return Ok(None);
    }
    if kind != LOAD {
        return Ok(Some((next, None)));
    }
    let mut fields = [0; LOAD_FIELDS];
    input.read_exact(&mut fields)?;
    let available = u64::from(size).saturating_sub((PREFIX + LOAD_FIELDS) as u64);
    Ok(Some((next, load(input, &fields, time, available, next)?)))
}

/// The fields are pid, tid, vma, address, size and number. The name follows, then the code up to `end`.
fn load(
    input: &mut impl Read,
    fields: &[u8],
    time: u64,
    available: u64,
    end: u64,
) -> io::Result<Option<Load>> {
    let mut bytes = Bytes::new(fields);
    bytes.skip(16).unwrap_or_default();
    let (Some(address), Some(size)) = (bytes.u64(), bytes.u64()) else { return Ok(None) };
    if size == 0 || size > available || address.checked_add(size).is_none() {
        return Ok(None);
    }
    let mut name = Vec::new();
    input.take((available - size).min(MAX_NAME)).read_to_end(&mut name)?;
    Ok(Some(Load { time, address, size, offset: end - size, name: lossy(until_nul(&name)) }))
}

/// A dump with its file. Functions are numbered in the order of the file.
#[derive(Debug)]
pub(crate) struct DumpFile {
    pub file: Arc<File>,
    pub loads: Vec<Load>,
}

/// Opens the dump that a process mapped at `path`, if the file's name is that of a dump.
pub(crate) fn open(path: &[u8], root: Option<&Path>) -> Option<(DumpFile, bool)> {
    let path = Path::new(OsStr::from_bytes(path));
    let name = path.file_name()?.as_bytes();
    let pid = name.strip_prefix(b"jit-")?.strip_suffix(b".dump")?;
    if pid.is_empty() || !pid.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let names = path.components().filter(|part| matches!(part, Component::Normal(_)));
    let place = root.map_or_else(|| path.to_owned(), |root| root.join(names.collect::<PathBuf>()));
    if !place.metadata().is_ok_and(|found| found.is_file()) {
        return None;
    }
    let file = Arc::new(File::open(place).ok()?);
    let Dump { loads, in_ticks } = Dump::read(&file).ok()?;
    Some((DumpFile { file, loads }, in_ticks))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use wallprof_intel_pt::generator::record::{JitFunction, jit_dump};

    use super::*;

    fn dump(flags: u64, functions: &[JitFunction<'_>]) -> Vec<u8> {
        jit_dump(7, flags, functions)
    }

    fn read(bytes: &[u8]) -> io::Result<Dump> {
        let mut file = tempfile::tempfile().expect("a scratch file");
        file.write_all(bytes).expect("written");
        file.rewind().expect("at its start");
        Dump::read(&file)
    }

    #[test]
    fn functions_come_with_their_bytes() {
        let bytes = dump(0, &[(10, 0x1000, "first", b"abc"), (20, 0x2000, "second", b"defg")]);
        let dump = read(&bytes).expect("readable");
        let functions: Vec<_> = dump
            .loads
            .iter()
            .map(|load| {
                let code = &bytes[load.offset as usize..(load.offset + load.size) as usize];
                (load.time, load.address, load.name.as_str(), code)
            })
            .collect();
        assert_eq!(functions, [(10, 0x1000, "first", &b"abc"[..]), (20, 0x2000, "second", b"defg")]);
        assert!(!dump.in_ticks && read(&super::tests::dump(1, &[])).expect("readable").in_ticks);
    }

    #[test]
    fn dump_is_found_by_its_name_and_stays_below_the_root() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("tmp")).expect("made");
        std::fs::write(folder.path().join("tmp/jit-7.dump"), dump(1, &[(1, 16, "f", b"x")]))
            .expect("written");
        let opened = |path: &str| open(path.as_bytes(), Some(folder.path()));
        let (found, in_ticks) = opened("/../tmp/jit-7.dump").expect("a dump");
        assert_eq!((found.loads.len(), in_ticks), (1, true));
        for path in ["/tmp/jit-8.dump", "/tmp/jit-x.dump", "/tmp/7.dump", "//anon", ""] {
            assert!(opened(path).is_none(), "{path}");
        }
    }

    #[test]
    fn damaged_dumps_end_at_the_damage() {
        let whole = dump(0, &[(10, 0x1000, "first", b"abc"), (20, 0x2000, "second", b"defg")]);
        for len in HEADER..whole.len() {
            assert!(read(&whole[..len]).expect("readable").loads.len() < 2, "{len}");
        }
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] = 0xff;
            let loads = read(&bytes).map(|dump| dump.loads).unwrap_or_default();
            assert!(loads.iter().all(|load| load.offset + load.size <= bytes.len() as u64), "{at}");
        }
    }
}
