//! The first hundred bytes of a SQLite file: enough to tell what a file is without opening it as a database.
//!
//! Layout: <https://www.sqlite.org/fileformat2.html#the_database_header>. Reading closes its own file
//! descriptor, which drops a process's POSIX locks on the file: never look at a recording that this same
//! process is writing.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::error::{Action, Error, Result};
use crate::schema::{APPLICATION_ID, SCHEMA};

const HEADER_BYTES: usize = 100;
const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// What a file's beginning says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Empty,
    /// The beginning of a SQLite file, cut off inside its header.
    HeaderCut,
    Foreign,
    Recording(Header),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub schema: u32,
    /// In write-ahead-log mode: still being written, or its writer was killed.
    pub is_wal: bool,
    /// What the file claims to hold, apart from a write-ahead log.
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

/// Looks at a file; errors are the operating system's. Of a FIFO or a device nothing is read, which would be
/// lost to whatever reads it next.
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

/// The file that SQLite keeps beside a database: `-wal`, `-shm` or `-journal`.
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
    fn a_recording_is_known_by_its_application_id() {
        assert_eq!(
            kind_from_bytes(&header(7, APPLICATION_ID)),
            Kind::Recording(Header { schema: 7, is_wal: true, claimed_bytes: 40_960 })
        );
        assert_eq!(kind_from_bytes(&header(1, 0)), Kind::Foreign);
    }

    #[test]
    fn every_shorter_beginning_is_cut_and_nothing_else_is() {
        let bytes = header(1, APPLICATION_ID);
        assert_eq!(kind_from_bytes(&[]), Kind::Empty);
        for length in 1..HEADER_BYTES {
            assert_eq!(kind_from_bytes(&bytes[..length]), Kind::HeaderCut, "{length} bytes");
        }
        assert_eq!(kind_from_bytes(b"SQL dump"), Kind::Foreign);
        assert_eq!(kind_from_bytes(b"PERFILE2"), Kind::Foreign);
    }
}
