// SPDX-License-Identifier: Apache-2.0
//! Opens a recording for a reader: a consistent, read-only view, in whatever state its writer left it.
//!
//! A finished recording is one plain file. One that is being written has `-wal` and `-shm` beside it, and
//! SQLite reads all three without disturbing the writer. The file of a killed writer, or a copy of it, may
//! lack `-shm`, and SQLite would have to write beside it. Such a file is copied to a private folder and
//! recovered there. The folder is removed at once.

use std::fs::{self, DirBuilder};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::time::SystemTime;

use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::error::{Action, Error, Result};
use crate::foreign::{checked, harden};
use crate::header::{self, beside};
use crate::older;

/// A connection in a read transaction: it sees the recording as it is now, for as long as it is open.
pub(crate) fn open(path: &Path) -> Result<Connection> {
    let header = header::read(path)?;
    let side_file_exists = |suffix| beside(path, suffix).exists();
    let in_place = if header.is_wal {
        side_file_exists("-wal") && side_file_exists("-shm")
    } else {
        !side_file_exists("-journal")
    };
    if !in_place {
        return open_private_copy(path);
    }
    match open_in_place(path) {
        Err(error) if needs_to_write(&error) => open_private_copy(path),
        Err(error) => Err(Error::from_sqlite(path, Action::Read, error)),
        Ok(connection) => current(path, connection),
    }
}

/// A checked recording in the shape of the current schema.
fn current(path: &Path, connection: Connection) -> Result<Connection> {
    let connection = checked(path, connection)?;
    older::show(&connection).map_err(|error| Error::from_sqlite(path, Action::Read, error))?;
    connection
        .pragma_update(None, "query_only", true)
        .map_err(|error| Error::from_sqlite(path, Action::Read, error))?;
    Ok(connection)
}

fn open_in_place(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(Duration::from_secs(5))?;
    harden(&connection)?;
    start_reading(&connection)?;
    Ok(connection)
}

fn start_reading(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch("BEGIN")?;
    connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))
}

fn needs_to_write(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly | ErrorCode::PermissionDenied)
    )
}

fn open_private_copy(path: &Path) -> Result<Connection> {
    let folder = PrivateFolder::create().map_err(|source| Error::RecoveryFailed {
        path: path.to_owned(),
        folder: std::env::temp_dir(),
        source,
    })?;
    let copy = folder.path.join("recording");
    copy_all(path, &copy, &folder.path)?;
    let connection = recover(&copy).map_err(|error| Error::from_sqlite(path, Action::Read, error))?;
    current(path, connection)
    // The folder is removed here. The connection keeps its file, which has no name from now on.
}

/// Brings the copy into one file and starts a read transaction.
fn recover(copy: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(copy, flags)?;
    harden(&connection)?;
    connection.pragma_update(None, "synchronous", "OFF")?;
    connection.pragma_update_and_check(None, "journal_mode", "DELETE", |_| Ok(()))?;
    start_reading(&connection)?;
    Ok(connection)
}

/// Copies the file and its side files, all in the same state.
fn copy_all(path: &Path, copy: &Path, folder: &Path) -> Result<()> {
    const ATTEMPTS: usize = 5;
    for _ in 0..ATTEMPTS {
        let before = states(path);
        for suffix in ["", "-wal", "-journal"] {
            copy_one(path, copy, suffix, folder)?;
        }
        if states(path) == before {
            return Ok(());
        }
    }
    Err(Error::InUse { path: path.to_owned() })
}

/// The file itself must exist. Its side files need not.
fn copy_one(path: &Path, copy: &Path, suffix: &str, folder: &Path) -> Result<()> {
    let (from, to) = (beside(path, suffix), beside(copy, suffix));
    let failed = |source| Error::RecoveryFailed { path: path.to_owned(), folder: folder.to_owned(), source };
    match copy_contents(&from, &to) {
        Ok(()) => Ok(()),
        Err(CopyError::From(error)) if error.kind() == io::ErrorKind::NotFound && !suffix.is_empty() => {
            // An earlier attempt may have copied one.
            match fs::remove_file(&to) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
                _ => Ok(()),
            }
        }
        Err(CopyError::From(error)) => Err(Error::from_io(&from, Action::Read, error)),
        Err(CopyError::To(error)) => Err(failed(error)),
    }
}

enum CopyError {
    From(io::Error),
    To(io::Error),
}

/// Copies contents, not permissions: a read-only original must not give a read-only copy.
fn copy_contents(from: &Path, to: &Path) -> std::result::Result<(), CopyError> {
    let mut from = fs::File::open(from).map_err(CopyError::From)?;
    let mut to = fs::File::create(to).map_err(CopyError::To)?;
    io::copy(&mut from, &mut to).map(drop).map_err(CopyError::To)
}

fn states(path: &Path) -> [Option<(u64, SystemTime)>; 2] {
    ["", "-wal"].map(|suffix| {
        let metadata = fs::metadata(beside(path, suffix)).ok()?;
        Some((metadata.len(), metadata.modified().ok()?))
    })
}

/// A folder that no other user can enter. It is removed with its contents.
struct PrivateFolder {
    path: PathBuf,
}

impl PrivateFolder {
    fn create() -> io::Result<Self> {
        let unpredictable = RandomState::new().build_hasher().finish();
        let path = std::env::temp_dir().join(format!("wallprof-{unpredictable:016x}"));
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(PrivateFolder { path })
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        // The recording is readable even if the folder cannot be removed.
        let _ = fs::remove_dir_all(&self.path);
    }
}
