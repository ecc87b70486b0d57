// SPDX-License-Identifier: Apache-2.0
//! The first hundred bytes of a SQLite file. They identify a file without opening it as a database.
//!
//! Layout: <https://www.sqlite.org/fileformat2.html#the_database_header>. Reading closes a file descriptor,
//! which drops the POSIX locks of the process on the file. So a process must not read the header of a
//! recording that it is writing.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::error::{Action, Error, Result};
use crate::schema::{APPLICATION_ID, SCHEMA};

const HEADER_BYTES: usize = 100;
const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// The kind of a file, by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Empty,
    /// A SQLite file that is cut inside its header.
    HeaderCut,
    Foreign,
    Recording(Header),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub schema: u32,
    /// In write-ahead-log mode: it is being written, or its writer was killed.
    pub is_wal: bool,
    /// The size that the header gives, without a write-ahead log.
    pub claimed_bytes: u64,
}

pub(crate) fn kind_from_bytes(bytes: &[u8]) -> Kind {
    if bytes.is_empty() {
        return Kind::Empty;
    }
    let magic = &bytes[..bytes.len().min(MAGIC.len())];
    if !MAGIC.starts_with(magic) {
        return Kind::Foreign;
    }
    if bytes.len() < HEADER_BYTES {
        return Kind::HeaderCut;
    }
    let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    if word(68) != APPLICATION_ID {
        return Kind::Foreign;
    }
    let page_bytes = match u16::from_be_bytes([bytes[16], bytes[17]]) {
        1 => 65_536,
        bytes => u64::from(bytes),
    };
    Kind::Recording(Header {
        schema: word(60),
        is_wal: bytes[18] == 2,
        claimed_bytes: page_bytes * u64::from(word(28)),
    })
}

/// The kind of a file. Errors are those of the operating system. Nothing is read from a FIFO or a device,
/// because its reader would lose these bytes.
pub(crate) fn kind_of_file(path: &Path) -> io::Result<Kind> {
    let file = File::options().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path)?;
    if !file.metadata()?.is_file() {
        return Ok(Kind::Foreign);
    }
    let mut bytes = Vec::with_capacity(HEADER_BYTES);
    file.take(HEADER_BYTES as u64).read_to_end(&mut bytes)?;
    Ok(kind_from_bytes(&bytes))
}

/// The header of a file that this version can read.
pub(crate) fn read(path: &Path) -> Result<Header> {
    let metadata = std::fs::metadata(path).map_err(|error| Error::from_io(path, Action::Read, error))?;
    let path = path.to_owned();
    if !metadata.is_file() {
        return Err(Error::NotARecording { path });
    }
    match kind_of_file(&path).map_err(|error| Error::from_io(&path, Action::Read, error))? {
        Kind::Empty => Err(Error::Empty { path }),
        Kind::Foreign => Err(Error::NotARecording { path }),
        Kind::HeaderCut => {
            Err(Error::Truncated { path, has_bytes: metadata.len(), needs_bytes: HEADER_BYTES as u64 })
        }
        Kind::Recording(header) if header.schema > SCHEMA => {
            Err(Error::NewerSchema { path, found: header.schema, known: SCHEMA })
        }
        Kind::Recording(header) if !header.is_wal && metadata.len() < header.claimed_bytes => {
            Err(Error::Truncated { path, has_bytes: metadata.len(), needs_bytes: header.claimed_bytes })
        }
        Kind::Recording(header) => Ok(header),
    }
}

/// The path of a file that SQLite keeps beside a database: `-wal`, `-shm` or `-journal`.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(schema: u32, application: u32) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[..16].copy_from_slice(MAGIC);
        bytes[16..18].copy_from_slice(&4096u16.to_be_bytes());
        bytes[18] = 2;
        bytes[28..32].copy_from_slice(&10u32.to_be_bytes());
        bytes[60..64].copy_from_slice(&schema.to_be_bytes());
        bytes[68..72].copy_from_slice(&application.to_be_bytes());
        bytes
    }

    #[test]
    fn application_id_identifies_a_recording() {
        assert_eq!(
            kind_from_bytes(&header(7, APPLICATION_ID)),
            Kind::Recording(Header { schema: 7, is_wal: true, claimed_bytes: 40_960 })
        );
        assert_eq!(kind_from_bytes(&header(1, 0)), Kind::Foreign);
    }

    #[test]
    fn shorter_headers_are_cut_and_other_files_foreign() {
        let bytes = header(1, APPLICATION_ID);
        assert_eq!(kind_from_bytes(&[]), Kind::Empty);
        for length in 1..HEADER_BYTES {
            assert_eq!(kind_from_bytes(&bytes[..length]), Kind::HeaderCut, "{length} bytes");
        }
        assert_eq!(kind_from_bytes(b"SQL dump"), Kind::Foreign);
        assert_eq!(kind_from_bytes(b"PERFILE2"), Kind::Foreign);
    }
}
