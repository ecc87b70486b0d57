// SPDX-License-Identifier: Apache-2.0
//! The file of a new recording: its permitted place, its owner, and its contents before the first event.
//!
//! It is made under a temporary name and renamed when it is whole, so that no file without a schema ever has
//! the recording's name.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, params};
use wallprof_model::{MAX_LABELS, MAX_SPAN_BUDGETS};

use crate::error::{Action, Error, Result};
use crate::header::{self, Kind, beside};
use crate::place::{PlaceError, output_place};
use crate::schema::{self, SCHEMA};
use crate::start::RecordingStart;

const SIDE_FILES: [&str; 3] = ["-wal", "-shm", "-journal"];

/// Creates the file and returns its path with symbolic links resolved. It is in write-ahead-log mode.
pub(crate) fn create(path: &Path, start: &RecordingStart) -> Result<PathBuf> {
    let path = place(path)?;
    check_replaceable(&path)?;
    let temporary = temporary_name(&path);
    let failed = |error| Error::from_io(&path, Action::Write, error);
    remove_with_side_files(&temporary).map_err(failed)?;
    create_private(&temporary).map_err(failed)?;
    let result = fill(&temporary, start)
        .map_err(|source| Error::from_sqlite(&path, Action::Write, source))
        .and_then(|()| {
            let replaced = if start.retention.is_some() { set_aside(&path) } else { Ok(()) };
            replaced.and_then(|()| put_in_place(&temporary, &path)).map_err(failed)
        });
    if result.is_err() {
        // The first error explains more than an error of the cleanup.
        let _ = remove_with_side_files(&temporary);
    }
    result.map(|()| path)
}

fn place(path: &Path) -> Result<PathBuf> {
    output_place(path).map_err(|error| match error {
        PlaceError::NoFile | PlaceError::DanglingLink => Error::ForeignFile { path: path.to_owned() },
        PlaceError::LinkOfAnotherUser { link } => Error::LinkOfAnotherUser { link },
        PlaceError::Io(error) => Error::from_io(path, Action::Write, error),
    })
}

/// Refuses to replace anything but an empty file, or a recording that no process is writing.
fn check_replaceable(path: &Path) -> Result<()> {
    let metadata = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::from_io(path, Action::Write, error)),
        Ok(metadata) => metadata,
    };
    if !metadata.is_file() {
        return Err(Error::ForeignFile { path: path.to_owned() });
    }
    match header::kind_of_file(path).map_err(|error| Error::from_io(path, Action::Write, error))? {
        Kind::Foreign | Kind::HeaderCut => Err(Error::ForeignFile { path: path.to_owned() }),
        Kind::Recording(header) if header.is_wal && is_in_use(path) => {
            Err(Error::InUse { path: path.to_owned() })
        }
        Kind::Empty | Kind::Recording(_) => Ok(()),
    }
}

/// Every connection to a database in write-ahead-log mode holds a shared lock for as long as it is open.
pub(crate) fn is_in_use(path: &Path) -> bool {
    let attempt = || {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        connection.busy_timeout(Duration::ZERO)?;
        connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
        connection.execute_batch("BEGIN EXCLUSIVE")
    };
    let refused: Option<ErrorCode> =
        attempt().err().and_then(|error: rusqlite::Error| error.sqlite_error_code());
    matches!(refused, Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

fn temporary_name(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".new");
    path.with_file_name(name)
}

pub(crate) fn remove_with_side_files(path: &Path) -> io::Result<()> {
    for file in [path.to_owned()].into_iter().chain(SIDE_FILES.map(|suffix| beside(path, suffix))) {
        match fs::remove_file(file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Creates an empty file that only its owner can read: the caller, or the user who called sudo. SQLite gives
/// the files that it creates beside the database the same owner and mode.
fn create_private(path: &Path) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    if file.metadata()?.uid() == 0
        && let (Some(uid), Some(gid)) =
            (number_from_environment("SUDO_UID"), number_from_environment("SUDO_GID"))
    {
        // Without CAP_CHOWN the file stays root's. A recording that the user must copy is better than none.
        let _ = std::os::unix::fs::fchown(&file, Some(uid), Some(gid));
    }
    Ok(())
}

fn number_from_environment(name: &str) -> Option<u32> {
    std::env::var(name).ok()?.parse().ok()
}

fn fill(path: &Path, start: &RecordingStart) -> rusqlite::Result<()> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let mut connection = Connection::open_with_flags(path, flags)?;
    connection.pragma_update(None, "page_size", 4096)?;
    connection.pragma_update(None, "synchronous", "OFF")?;
    let transaction = connection.transaction()?;
    schema::create(&transaction)?;
    insert_start(&transaction, start)?;
    transaction.commit()?;
    connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
    connection.close().map_err(|(_, error)| error)
}

fn insert_start(to: &Connection, start: &RecordingStart) -> rusqlite::Result<()> {
    let known = |text: &str| (!text.is_empty()).then(|| crate::intern::clipped(text).to_owned());
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    to.execute(
        "INSERT INTO recording (id, schema, start_ns, last_ns, source, kernel, arch, cpus, hostname,
             machine_id,
             boot_id, command, min_stall_ns, sample_period_ns, has_turns, writer)
         VALUES (1, ?1, ?2, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
        params![
            SCHEMA,
            number(start.start.0),
            crate::intern::clipped(&start.source),
            known(&start.kernel),
            known(&start.arch),
            (start.cpus > 0).then_some(start.cpus),
            known(&start.hostname),
            known(&start.machine_id),
            known(&start.boot_id),
            known(&start.command),
            number(start.min_stall_ns),
            start.sample_period_ns.map(number),
            start.has_turns,
            concat!("wallprof ", env!("CARGO_PKG_VERSION")),
        ],
    )?;
    to.execute(
        "INSERT INTO overhead (flush_second, process_cpu_ns, probe_ns, probe_runs, behind_ns, table_bytes)
         VALUES (0, 0, 0, 0, 0, 0)",
        [],
    )?;
    for (key, value) in start.labels.iter().take(MAX_LABELS) {
        to.execute("INSERT INTO label (key, value) VALUES (?, ?)", [key, crate::intern::clipped(value)])?;
    }
    for (kind, ns) in start.budgets.iter().take(MAX_SPAN_BUDGETS) {
        let row = params![crate::intern::clipped(kind), number(*ns)];
        to.execute("INSERT INTO span_budget (kind, ns) VALUES (?, ?)", row)?;
    }
    if let Some(clock) = start.clock {
        let row = [number(clock.mono.0), number(clock.epoch.0)];
        to.execute("INSERT INTO clock (mono_ns, epoch_ns) VALUES (?, ?)", row)?;
    }
    Ok(())
}

/// Renames an earlier recording with its side files, and replaces the one that was renamed before. The
/// recording that a bounded one replaces may show why its writer had to be restarted. The side files have a
/// killed writer's last seconds.
fn set_aside(path: &Path) -> io::Result<()> {
    if !matches!(header::kind_of_file(path), Ok(Kind::Recording(_))) {
        return Ok(());
    }
    let old = beside(path, ".old");
    remove_with_side_files(&old)?;
    fs::rename(path, &old)?;
    for suffix in SIDE_FILES {
        match fs::rename(beside(path, suffix), beside(&old, suffix)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Gives the whole new file its name. The side files of an earlier recording are removed first, because
/// SQLite would use them for the new one.
fn put_in_place(temporary: &Path, path: &Path) -> io::Result<()> {
    remove_with_side_files(path)?;
    fs::rename(temporary, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn create_in(folder: &Path, name: &str) -> Result<PathBuf> {
        create(&folder.join(name), &RecordingStart::default())
    }

    #[test]
    fn new_file_is_private_and_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = create_in(folder.path(), "a.db").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(matches!(header::kind_of_file(&path).unwrap(), Kind::Recording(header) if header.is_wal));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn earlier_recording_and_empty_file_are_replaced() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.db"), "").unwrap();
        let path = create_in(folder.path(), "a.db").unwrap();
        fs::write(beside(&path, "-wal"), "of the earlier one").unwrap();
        create_in(folder.path(), "a.db").unwrap();
        assert!(!beside(&path, "-wal").exists());
    }

    #[test]
    fn bounded_recording_keeps_the_earlier_one() {
        let folder = tempfile::tempdir().unwrap();
        let retention = Some(crate::Retention { keep_ns: 1, keep_bytes: 1 });
        let start =
            |command: &str| RecordingStart { command: command.into(), retention, ..Default::default() };
        let path = folder.path().join("a.db");
        let command_of = |path: &Path| -> String {
            let connection = Connection::open(path).unwrap();
            connection.query_row("SELECT command FROM recording", [], |row| row.get(0)).unwrap()
        };
        create(&path, &start("first")).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no recording existed before");
        for (command, before) in [("second", "first"), ("third", "second")] {
            fs::write(beside(&path, "-wal"), "of the earlier one").unwrap();
            create(&path, &start(command)).unwrap();
            let old = beside(&path, ".old");
            assert_eq!(fs::read_to_string(beside(&old, "-wal")).unwrap(), "of the earlier one");
            assert_eq!((command_of(&path).as_str(), command_of(&old).as_str()), (command, before));
        }
    }

    #[test]
    fn foreign_files_are_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let foreign = Connection::open(folder.path().join("other.db")).unwrap();
        foreign.execute_batch("CREATE TABLE precious (x)").unwrap();
        drop(foreign);
        fs::write(folder.path().join("notes.txt"), "precious").unwrap();
        fs::create_dir(folder.path().join("folder")).unwrap();
        std::os::unix::fs::symlink("nowhere", folder.path().join("dangling")).unwrap();
        for name in ["other.db", "notes.txt", "folder", "dangling", ".."] {
            let error = create_in(folder.path(), name).unwrap_err();
            assert!(matches!(error, Error::ForeignFile { .. }), "{name}: {error}");
        }
        assert_eq!(fs::read_to_string(folder.path().join("notes.txt")).unwrap(), "precious");
    }

    #[test]
    fn symbolic_link_is_followed_to_its_recording() {
        let folder = tempfile::tempdir().unwrap();
        let path = create_in(folder.path(), "a.db").unwrap();
        std::os::unix::fs::symlink(&path, folder.path().join("link.db")).unwrap();
        assert_eq!(create_in(folder.path(), "link.db").unwrap(), path);
        assert!(fs::symlink_metadata(folder.path().join("link.db")).unwrap().is_symlink());
    }

    #[test]
    fn missing_folder_is_named() {
        let error = create(Path::new("/nonexistent/a.db"), &RecordingStart::default()).unwrap_err();
        assert!(matches!(error, Error::DirectoryMissing { .. }), "{error}");
    }
}
