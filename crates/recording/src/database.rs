// SPDX-License-Identifier: Apache-2.0
//! The database of a recording while it is written: connection, transactions, and the size of the file.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior};

use crate::error::{Action, Error, Result};

pub(crate) struct Database {
    path: PathBuf,
    connection: Connection,
}

impl Database {
    /// Opens a file that [`crate::new_file`] has made. A bounded recording is written by a monitor, which
    /// must not wait for a busy disk: the kernel decides when its pages are written. After a power cut such a
    /// file may be damaged; after the death of the process it is not.
    pub fn open(path: PathBuf, bounded: bool) -> Result<Self> {
        match connect(&path, bounded) {
            Ok(connection) => Ok(Database { path, connection }),
            Err(error) => Err(Error::from_sqlite(&path, Action::Write, error)),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes changes in one transaction: all of them or, after an error, none.
    pub fn change<T>(&mut self, change: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>) -> Result<T> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate);
        let done = transaction.and_then(|transaction| {
            let result = change(&transaction)?;
            transaction.commit().map(|()| result)
        });
        done.map_err(|error| Error::from_sqlite(&self.path, Action::Write, error))
    }

    pub fn file_bytes(&self) -> u64 {
        self.pages("page_count").saturating_mul(self.pages("page_size"))
    }

    /// The bytes of the file without free pages.
    pub fn used_bytes(&self) -> u64 {
        let used = self.pages("page_count").saturating_sub(self.pages("freelist_count"));
        used.saturating_mul(self.pages("page_size"))
    }

    fn pages(&self, pragma: &str) -> u64 {
        let statement = self.connection.prepare_cached(&format!("PRAGMA {pragma}"));
        let value = statement.and_then(|mut statement| statement.query_row([], |row| row.get::<_, i64>(0)));
        value.ok().and_then(|value| u64::try_from(value).ok()).unwrap_or(0)
    }

    /// Moves the write-ahead log into the file and removes it. This is not possible while another process
    /// reads.
    pub fn leave_one_file(&self) -> bool {
        let mode = self.connection.busy_timeout(Duration::from_millis(500)).and_then(|()| {
            self.connection.pragma_update_and_check(None, "journal_mode", "DELETE", |row| row.get(0))
        });
        mode.is_ok_and(|mode: String| mode == "delete")
    }

    #[cfg(test)]
    pub fn connection(&self) -> &Connection {
        &self.connection
    }
}

fn connect(path: &Path, bounded: bool) -> rusqlite::Result<Connection> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(Duration::from_secs(5))?;
    connection.pragma_update(None, "synchronous", if bounded { "OFF" } else { "NORMAL" })?;
    connection.pragma_update(None, "cache_size", -2048)?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}
