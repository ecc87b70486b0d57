// SPDX-License-Identifier: Apache-2.0
//! Errors of a recording's file: facts, each with one sentence for the user.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use wallprof_model::text::is_hidden;

use crate::bounds;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug)]
pub enum Error {
    NotFound {
        path: PathBuf,
    },
    /// The file system does not allow to read or write.
    PermissionDenied {
        path: PathBuf,
        action: Action,
    },
    DirectoryMissing {
        path: PathBuf,
    },
    /// The output path has a file that is not a recording.
    ForeignFile {
        path: PathBuf,
    },
    /// The output path is a symbolic link of another user in a folder that every user may write to.
    LinkOfAnotherUser {
        link: PathBuf,
    },
    /// Another process has the recording open.
    InUse {
        path: PathBuf,
    },
    /// A complete recording is needed, but its recorder or a reader has this one open.
    BeingWritten {
        path: PathBuf,
    },
    DiskFull {
        path: PathBuf,
    },
    NotARecording {
        path: PathBuf,
    },
    Empty {
        path: PathBuf,
    },
    /// The file ends before its contents do.
    Truncated {
        path: PathBuf,
        has_bytes: u64,
        needs_bytes: u64,
    },
    /// The contents are inconsistent.
    Corrupt {
        path: PathBuf,
        detail: String,
    },
    /// It holds more than one reader takes, and more than a recorder writes.
    TooLarge {
        path: PathBuf,
        what: String,
        advice: &'static str,
    },
    NewerSchema {
        path: PathBuf,
        found: u32,
        known: u32,
    },
    /// A snapshot was requested of a time of which no data are kept.
    NothingKept {
        path: PathBuf,
    },
    /// The file of a killed recorder could not be copied to a private place to be recovered there.
    RecoveryFailed {
        path: PathBuf,
        folder: PathBuf,
        source: io::Error,
    },
    Io {
        path: PathBuf,
        action: Action,
        source: io::Error,
    },
    Sqlite {
        path: PathBuf,
        action: Action,
        source: rusqlite::Error,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Read,
    Write,
}

impl Action {
    fn verb(self) -> &'static str {
        match self {
            Action::Read => "read",
            Action::Write => "write",
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NotFound { path } => {
                write!(f, "there is no recording at {}: record one first, or give its path", shown(path))
            }
            Error::PermissionDenied { path, action: Action::Read } => {
                write!(
                    f,
                    "permission denied to read the recording {}: read it as its owner, or make it readable",
                    shown(path)
                )
            }
            Error::PermissionDenied { path, action: Action::Write } => {
                write!(
                    f,
                    "permission denied to write the recording {}: choose a writable folder with -o",
                    shown(path)
                )
            }
            Error::DirectoryMissing { path } => {
                write!(
                    f,
                    "the folder of the recording {} does not exist: create it, or choose another with -o",
                    shown(path)
                )
            }
            Error::ForeignFile { path } => {
                write!(
                    f,
                    "{} exists and is not a wallprof recording: remove it, or choose another file with -o",
                    shown(path)
                )
            }
            Error::LinkOfAnotherUser { link } => write!(
                f,
                "{} is a symbolic link of another user in a folder that everybody may write to: choose another file with -o",
                shown(link)
            ),
            Error::InUse { path } => write!(
                f,
                "the recording {} is in use by another process: end that one, or choose another file with -o",
                shown(path)
            ),
            Error::BeingWritten { path } => write!(
                f,
                "the recording {} is still being written: end its recorder first, or name a snapshot of it",
                shown(path)
            ),
            Error::DiskFull { path } => write!(
                f,
                "no space left for the recording {}: what was recorded until then is kept; free some space, or choose another folder with -o",
                shown(path)
            ),
            Error::NotARecording { path } => {
                write!(
                    f,
                    "{} is not a wallprof recording: give a file that record or import wrote",
                    shown(path)
                )
            }
            Error::Empty { path } => {
                write!(
                    f,
                    "the recording {} is empty: its writer ended before it wrote anything, so record again",
                    shown(path)
                )
            }
            Error::Truncated { path, has_bytes, needs_bytes } => write!(
                f,
                "the recording {} is truncated ({has_bytes} of {needs_bytes} bytes): copy it again from its origin",
                shown(path)
            ),
            Error::Corrupt { path, detail } => {
                write!(
                    f,
                    "the recording {} is damaged ({}): copy it again from its origin",
                    shown(path),
                    escaped(detail)
                )
            }
            Error::TooLarge { path, what, advice } => {
                write!(
                    f,
                    "the recording {} has {what}, which is more than is read at once: {advice}",
                    shown(path)
                )
            }
            Error::NewerSchema { path, found, known } => write!(
                f,
                "{} was written by a newer wallprof (schema {found}, this one reads up to {known}): upgrade wallprof",
                shown(path)
            ),
            Error::NothingKept { path } => write!(
                f,
                "the recording {} holds nothing of the time asked for: ask for a later one, or keep more of it",
                shown(path)
            ),
            Error::RecoveryFailed { path, folder, source } => write!(
                f,
                "the unfinished recording {} could not be recovered in {} ({source}): set TMPDIR to a folder with enough space",
                shown(path),
                shown(folder)
            ),
            Error::Io { path, action, source } => {
                write!(f, "could not {} the recording {}: {source}", action.verb(), shown(path))
            }
            Error::Sqlite { path, action, source } => {
                write!(
                    f,
                    "could not {} the recording {}: {}",
                    action.verb(),
                    shown(path),
                    escaped(&source.to_string())
                )
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::RecoveryFailed { source, .. } | Error::Io { source, .. } => Some(source),
            Error::Sqlite { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl Error {
    pub(crate) fn from_io(path: &Path, action: Action, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::NotFound if action == Action::Read => Error::NotFound { path },
            io::ErrorKind::NotFound => Error::DirectoryMissing { path },
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                Error::PermissionDenied { path, action }
            }
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::DiskFull { path },
            _ => Error::Io { path, action, source },
        }
    }

    pub(crate) fn from_sqlite(path: &Path, action: Action, source: rusqlite::Error) -> Self {
        use rusqlite::ErrorCode;
        let path = path.to_owned();
        if let Some(bound) = bounds::exceeded(&source) {
            return Error::TooLarge { path, what: bound.to_string(), advice: bound.advice() };
        }
        match source.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Error::DiskFull { path },
            Some(ErrorCode::DatabaseCorrupt) => Error::Corrupt { path, detail: source.to_string() },
            Some(ErrorCode::NotADatabase) => Error::NotARecording { path },
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Error::InUse { path },
            Some(ErrorCode::PermissionDenied | ErrorCode::ReadOnly) => {
                Error::PermissionDenied { path, action }
            }
            // While reading, all other errors are values that a recording cannot hold.
            None if action == Action::Read => Error::Corrupt { path, detail: source.to_string() },
            Some(ErrorCode::TooBig) if action == Action::Read => {
                Error::Corrupt { path, detail: "a value is too large".into() }
            }
            _ => Error::Sqlite { path, action, source },
        }
    }
}

/// A path as one line of text, whatever its bytes are.
fn shown(path: &Path) -> String {
    escaped(&path.to_string_lossy())
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if is_hidden(character) {
            out.extend(character.escape_default());
        } else {
            out.push(character);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_schema_error_advises_an_upgrade() {
        let error = Error::NewerSchema { path: "a.db".into(), found: 7, known: 1 };
        assert_eq!(
            error.to_string(),
            "a.db was written by a newer wallprof (schema 7, this one reads up to 1): upgrade wallprof"
        );
    }

    #[test]
    fn hostile_path_stays_on_one_line() {
        let error = Error::NotFound { path: "a\n\u{1b}[31mb".into() };
        assert_eq!(
            error.to_string(),
            "there is no recording at a\\n\\u{1b}[31mb: record one first, or give its path"
        );
    }

    #[test]
    fn errors_of_the_operating_system_are_translated() {
        let of = |kind| Error::from_io(Path::new("x"), Action::Write, io::Error::from(kind));
        assert!(matches!(of(io::ErrorKind::StorageFull), Error::DiskFull { .. }));
        assert!(matches!(of(io::ErrorKind::NotFound), Error::DirectoryMissing { .. }));
        assert!(matches!(of(io::ErrorKind::ReadOnlyFilesystem), Error::PermissionDenied { .. }));
    }
}
