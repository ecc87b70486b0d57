// SPDX-License-Identifier: Apache-2.0
//! The records of a file or stream, one after the other, in constant memory.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, Take};

use super::bytes::Bytes;
use super::record::{RawRecord, kind};
use super::trace::TracePiece;
use super::tracing::Formats;
use super::unpack::Unpacker;

/// Larger than any record, so that a record usually comes in one read.
const BUFFER: usize = 256 << 10;
const HEADER: usize = 8;

/// Why no more records can be read.
#[derive(Debug)]
pub(crate) enum ReadError {
    Io(io::Error),
    /// The input ends inside a record, or before the end that its header gives.
    Truncated,
    /// A record's size is smaller than its header, so the start of the next one is not known.
    Damaged,
    /// Compressed records do not decompress.
    Packed,
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => ReadError::Truncated,
            _ => ReadError::Io(error),
        }
    }
}

/// The next item of the input.
#[derive(Debug)]
pub(crate) enum Item<'a> {
    Record(RawRecord<'a>),
    /// The formats of tracepoints, which follow their record.
    Formats(Formats),
    /// Part of a hardware trace. Its bytes, which follow the record, were skipped.
    Trace(Passed),
}

/// Bytes of the input that were skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Passed {
    pub piece: TracePiece,
    /// Their position, counted from the first record.
    pub position: u64,
    /// Bytes that should follow the record, but the input ends before. The size of `piece` does not include
    /// them.
    pub missing: u64,
}

/// The location of the next record.
enum Place {
    /// In `body`.
    Plain {
        kind: u32,
        misc: u16,
    },
    Passed(Passed),
    /// The first bytes of the decompressed ones.
    Unpacked {
        size: usize,
    },
}

/// Reads records.
pub(crate) struct Records<R> {
    input: Take<BufReader<R>>,
    limit: Option<u64>,
    body: Vec<u8>,
    unpacker: Option<Unpacker>,
    /// Bytes of the returned record among the decompressed ones.
    used: usize,
    pass: Pass<R>,
    /// The input ended inside a hardware trace.
    is_cut: bool,
}

/// Skips the given number of bytes; returns how many there were.
type Pass<R> = fn(&mut BufReader<R>, u64) -> io::Result<u64>;

impl Records<File> {
    /// As [`Records::new`], but skipped bytes are not read.
    pub(crate) fn of_file(file: File, limit: Option<u64>) -> Self {
        Records { pass: seek_over, ..Records::new(file, limit) }
    }
}

fn seek_over(input: &mut BufReader<File>, count: u64) -> io::Result<u64> {
    let here = input.stream_position()?;
    let left = input.get_ref().metadata()?.len().saturating_sub(here);
    let count = count.min(left);
    input.seek_relative(i64::try_from(count).unwrap_or(i64::MAX))?;
    Ok(count)
}

fn read_over<R: Read>(input: &mut BufReader<R>, count: u64) -> io::Result<u64> {
    io::copy(&mut input.take(count), &mut io::sink())
}

impl<R: Read> Records<R> {
    /// `limit`: the size of all records, where the header gives it.
    pub(crate) fn new(input: R, limit: Option<u64>) -> Self {
        let input = BufReader::with_capacity(BUFFER, input).take(limit.unwrap_or(u64::MAX));
        Records { input, limit, body: Vec::new(), unpacker: None, used: 0, pass: read_over, is_cut: false }
    }

    /// Bytes read so far.
    pub(crate) fn position(&self) -> u64 {
        self.limit.unwrap_or(u64::MAX) - self.input.limit()
    }

    /// `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<Item<'_>>, ReadError> {
        if let Some(unpacker) = &mut self.unpacker {
            unpacker.consume(std::mem::take(&mut self.used));
        }
        let Some(place) = self.find()? else { return Ok(None) };
        match place {
            Place::Plain { kind: kind::TRACING_DATA, .. } => Ok(Some(Item::Formats(self.formats()?))),
            Place::Passed(passed) => Ok(Some(Item::Trace(passed))),
            Place::Plain { kind, misc } => Ok(Some(Item::Record(RawRecord { kind, misc, body: &self.body }))),
            Place::Unpacked { size } => {
                self.used = size;
                let unpacker = self.unpacker.as_mut().ok_or(ReadError::Damaged)?;
                let bytes = unpacker.peek(size).map_err(|_| ReadError::Packed)?.ok_or(ReadError::Damaged)?;
                let mut header = Bytes::new(bytes);
                let (kind, misc) = header_fields(&mut header).ok_or(ReadError::Damaged)?;
                Ok(Some(Item::Record(RawRecord { kind, misc, body: &bytes[HEADER..] })))
            }
        }
    }

    fn find(&mut self) -> Result<Option<Place>, ReadError> {
        loop {
            if let Some(size) = self.unpacked_record()? {
                return Ok(Some(Place::Unpacked { size }));
            }
            if self.is_cut {
                return Err(ReadError::Truncated);
            }
            let Some((kind, misc)) = self.read_record()? else { return self.end().map(|()| None) };
            match kind {
                kind::COMPRESSED => self.unpack(0)?,
                kind::COMPRESSED2 => self.unpack(8)?,
                kind::AUXTRACE => return self.pass_trace().map(Some),
                _ => return Ok(Some(Place::Plain { kind, misc })),
            }
        }
    }

    /// The size of the next decompressed record, if it is complete.
    fn unpacked_record(&mut self) -> Result<Option<usize>, ReadError> {
        let Some(unpacker) = &mut self.unpacker else { return Ok(None) };
        let Some(header) = unpacker.peek(HEADER).map_err(|_| ReadError::Packed)? else { return Ok(None) };
        let size = usize::from(u16::from_le_bytes([header[6], header[7]]));
        if size < HEADER {
            return Err(ReadError::Damaged);
        }
        Ok(unpacker.peek(size).map_err(|_| ReadError::Packed)?.map(|_| size))
    }

    /// Reads a record into `body`. `None` if the input ends between records.
    fn read_record(&mut self) -> Result<Option<(u32, u16)>, ReadError> {
        let mut header = [0; HEADER];
        let count = read_up_to(&mut self.input, &mut header)?;
        if count == 0 {
            return Ok(None);
        }
        let mut fields = Bytes::new(&header[..count]);
        let (kind, misc) = header_fields(&mut fields).ok_or(ReadError::Truncated)?;
        let size = usize::from(fields.u16().ok_or(ReadError::Truncated)?);
        self.body.resize(size.checked_sub(HEADER).ok_or(ReadError::Damaged)?, 0);
        self.input.read_exact(&mut self.body)?;
        Ok(Some((kind, misc)))
    }

    /// Decompresses the body of a record. The later of the two kinds starts with its own size.
    fn unpack(&mut self, size_field: usize) -> Result<(), ReadError> {
        let mut packed = Bytes::new(&self.body);
        if size_field > 0 {
            let size = packed.u64().ok_or(ReadError::Damaged)?;
            packed = Bytes::new(packed.take_u64(size).ok_or(ReadError::Damaged)?);
        }
        let unpacker = match &mut self.unpacker {
            Some(unpacker) => unpacker,
            none => none.insert(Unpacker::new().map_err(|_| ReadError::Packed)?),
        };
        unpacker.feed(packed.take(packed.len()).unwrap_or_default());
        Ok(())
    }

    /// Skips the hardware trace behind its record, as far as the input goes.
    fn pass_trace(&mut self) -> Result<Place, ReadError> {
        let mut piece = TracePiece::read(&self.body).ok_or(ReadError::Damaged)?;
        let position = self.position();
        let available = self.input.limit();
        let passed = (self.pass)(self.input.get_mut(), piece.size.min(available))?;
        self.input.set_limit(available - passed);
        let missing = piece.size - passed;
        (self.is_cut, piece.size) = (missing > 0, passed);
        Ok(Place::Passed(Passed { piece, position, missing }))
    }

    /// Formats that cannot be read count as empty.
    fn formats(&mut self) -> Result<Formats, ReadError> {
        let size = Bytes::new(&self.body).u32().ok_or(ReadError::Damaged)?;
        let mut payload = (&mut self.input).take(size.into());
        let formats = Formats::read(&mut payload);
        io::copy(&mut payload, &mut io::sink())?;
        if payload.limit() > 0 { Err(ReadError::Truncated) } else { Ok(formats.unwrap_or_default()) }
    }

    /// Whether the input may end here.
    fn end(&self) -> Result<(), ReadError> {
        let early = self.limit.is_some() && self.input.limit() > 0;
        let inside = self.unpacker.as_ref().is_some_and(Unpacker::has_rest);
        if early || inside { Err(ReadError::Truncated) } else { Ok(()) }
    }
}

fn header_fields(bytes: &mut Bytes<'_>) -> Option<(u32, u16)> {
    Some((bytes.u32()?, bytes.u16()?))
}

/// Fills the buffer as far as the input goes.
pub(crate) fn read_up_to(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut count = 0;
    while count < buffer.len() {
        match input.read(&mut buffer[count..]) {
            Ok(0) => break,
            Ok(read) => count += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use wallprof_intel_pt::generator::record::{halves, record as with_misc, words};

    use super::*;

    fn record(kind: u32, body: &[u8]) -> Vec<u8> {
        with_misc(kind, 7, body)
    }

    type Found = Vec<(u32, Vec<u8>)>;

    /// Kinds and bodies of all records, and the error that ended reading.
    fn all(bytes: &[u8], limit: Option<u64>) -> (Found, Result<(), String>) {
        let mut records = Records::new(bytes, limit);
        let mut found = Vec::new();
        loop {
            match records.next() {
                Ok(Some(Item::Record(record))) => found.push((record.kind, record.body.to_vec())),
                Ok(Some(Item::Formats(_))) => found.push((kind::TRACING_DATA, Vec::new())),
                Ok(Some(Item::Trace(passed))) => {
                    let place = [passed.position, passed.piece.size, passed.missing];
                    found.push((kind::AUXTRACE, words(&place)));
                }
                Ok(None) => return (found, Ok(())),
                Err(error) => return (found, Err(format!("{error:?}"))),
            }
        }
    }

    #[test]
    fn plain_records_are_returned_unchanged() {
        let bytes = [record(3, b"abcdefgh"), record(68, b"")].concat();
        assert_eq!(all(&bytes, None), (vec![(3, b"abcdefgh".to_vec()), (68, vec![])], Ok(())));
        assert_eq!(all(&bytes, Some(16)).0.len(), 1, "bytes behind the data are not a record");
    }

    #[test]
    fn truncation_anywhere_is_noticed() {
        let bytes = [record(3, b"abcdefgh"), record(4, b"ijkl")].concat();
        for len in 0..bytes.len() {
            let (found, end) = all(&bytes[..len], Some(bytes.len() as u64));
            assert_eq!((found.len(), end), (usize::from(len >= 16), Err("Truncated".into())), "{len}");
        }
    }

    #[test]
    fn record_shorter_than_its_header_is_damage() {
        let mut bytes = record(3, b"");
        bytes[6] = 7;
        assert_eq!(all(&bytes, None), (vec![], Err("Damaged".into())));
    }

    #[test]
    fn compressed_records_may_divide_records_anywhere() {
        let inner: Vec<u8> = (1..200u32).flat_map(|at| record(9, &vec![at as u8; at as usize])).collect();
        let packed = zstd::stream::encode_all(&inner[..], 3).expect("packed");
        let bytes: Vec<u8> = packed.chunks(11).flat_map(|piece| record(kind::COMPRESSED, piece)).collect();
        let (found, end) = all(&bytes, None);
        assert_eq!((found.len(), end), (199, Ok(())));
        assert!(found.iter().enumerate().all(|(index, (_, body))| body.len() == index + 1));
        let sized = |piece: &[u8]| {
            record(kind::COMPRESSED2, &[&words(&[piece.len() as u64])[..], piece, &[0; 3]].concat())
        };
        let bytes: Vec<u8> = packed.chunks(100).flat_map(sized).collect();
        assert_eq!(all(&bytes, None).0, found);
        assert_eq!(all(&bytes[..bytes.len() - 150], None).1, Err("Truncated".into()));
    }

    #[test]
    fn traces_are_skipped() {
        let mut body = [0; 40];
        body[0] = 5;
        let mut trace = record(kind::AUXTRACE, &body);
        trace.extend(b"trace");
        let bytes = [trace.clone(), record(4, b"x")].concat();
        let place = |size: u64, missing: u64| (kind::AUXTRACE, words(&[48, size, missing]));
        let expected = vec![place(5, 0), (4, b"x".to_vec())];
        assert_eq!(all(&bytes, None), (expected, Ok(())));
        // If the input ends inside a trace, the part that is there counts.
        let cut = (vec![place(4, 1)], Err("Truncated".into()));
        assert_eq!(all(&trace[..trace.len() - 1], None), cut);
        assert_eq!(all(&trace, Some(trace.len() as u64 - 1)), cut);
        assert_eq!(all(&trace[..48], None), (vec![place(0, 5)], Err("Truncated".into())));
    }

    #[test]
    fn traces_in_a_file_are_skipped_without_reading() {
        let mut body = [0; 40];
        body[..8].copy_from_slice(&(1u64 << 40).to_le_bytes());
        let bytes = [record(kind::AUXTRACE, &body), vec![0; 100]].concat();
        let mut file = tempfile::tempfile().expect("a scratch file");
        std::io::Write::write_all(&mut file, &bytes).expect("written");
        file.rewind().expect("at its start");
        let mut records = Records::of_file(file, None);
        let found = records.next();
        let Ok(Some(Item::Trace(Passed { piece, missing, .. }))) = found else { panic!("{found:?}") };
        assert_eq!((piece.size, missing), (100, (1 << 40) - 100));
        assert!(matches!(records.next(), Err(ReadError::Truncated)));
    }

    #[test]
    fn unreadable_formats_do_not_hide_later_records() {
        let mut bytes = record(kind::TRACING_DATA, &halves(&[8]));
        bytes.extend(b"rubbish!");
        bytes.extend(record(4, b""));
        assert_eq!(all(&bytes, None), (vec![(kind::TRACING_DATA, vec![]), (4, vec![])], Ok(())));
    }
}
