// SPDX-License-Identifier: Apache-2.0
//! An open recording as its readers share it: the connection, and caches of rows to which many others refer.
//!
//! The modules that read one kind of row each stand on this one; [`crate::Recording`] stands on them.

use std::cell::{OnceCell, RefCell};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use rusqlite::{Connection, Result as SqlResult, Row};
use wallprof_model::profile::{RecordingInfo, ResolvedFrame, ResolvedStack, SampleRow};
use wallprof_model::{FastMap, Meanings, MonoNs, StackEnd, ThreadKey, ThreadRef};

use crate::error::{Action, Error, Result};
use crate::part::{self, Part};
use crate::row::{decoded, unsigned};
use crate::snapshot;
use crate::stacks::Stacks;

pub(crate) struct Reader {
    path: PathBuf,
    /// All times where no part is read.
    during: Range<MonoNs>,
    connection: Connection,
    stacks: Stacks,
    mentions: RefCell<FastMap<u32, ThreadRef>>,
    /// Process and thread ids by thread row.
    tids: OnceCell<FastMap<ThreadKey, (u32, u32)>>,
    mention_keys: OnceCell<FastMap<u32, ThreadKey>>,
    meanings: Option<Meanings>,
    progress: Option<Progress>,
    /// The stalls of each thread that are not voluntary, once they were counted.
    late_stalls: RefCell<Option<Rc<LateStalls>>>,
    info: OnceCell<RecordingInfo>,
    yields: OnceCell<Vec<SampleRow>>,
}

/// Is called now and then with the kind of rows that are read, how many were, and of how many.
pub type Progress = fn(&str, u64, u64);

/// Rows between two calls.
const ROWS: u64 = 1024;

pub(crate) type LateStalls = FastMap<ThreadKey, u64>;

impl Reader {
    pub fn open(path: &Path) -> Result<Self> {
        Ok(Self::of(path, snapshot::open(path)?, MonoNs(0)..MonoNs(u64::MAX)))
    }

    pub fn open_part(path: &Path, part: &Part) -> Result<Self> {
        let connection = snapshot::open(path)?;
        part::show(&connection, part).map_err(|error| Error::from_sqlite(path, Action::Read, error))?;
        Ok(Self::of(path, connection, part.during.clone()))
    }

    fn of(path: &Path, connection: Connection, during: Range<MonoNs>) -> Self {
        Reader {
            path: path.to_owned(),
            during,
            connection,
            stacks: Stacks::default(),
            mentions: RefCell::default(),
            tids: OnceCell::new(),
            mention_keys: OnceCell::new(),
            meanings: None,
            progress: None,
            late_stalls: RefCell::default(),
            info: OnceCell::new(),
            yields: OnceCell::new(),
        }
    }

    /// The time that is read.
    pub fn during(&self) -> Range<MonoNs> {
        self.during.clone()
    }

    pub fn set_progress(&mut self, progress: Progress) {
        self.progress = Some(progress);
    }

    /// A row was read, the one with this number.
    pub fn read_row(&self, what: &str, row: u64, of: u64) {
        if let Some(progress) = self.progress.filter(|_| row.is_multiple_of(ROWS)) {
            progress(what, row, of);
        }
    }

    /// A second with all its rows is read, the one with this number.
    pub fn read_second(&self, table: &str, second: u64, of: u64) {
        let what = if table == "bucket" { "sums" } else { "samples" };
        if let Some(progress) = self.progress {
            progress(what, second, of);
        }
    }

    /// The number of stalls, unless the oldest ones in between are gone: then it is less. No row is read.
    pub fn most_stalls(&self) -> SqlResult<u64> {
        let sql = "SELECT ifnull((SELECT max(id) FROM stall) - (SELECT min(id) FROM stall) + 1, 0)";
        self.connection.query_row(sql, [], |row| unsigned(row, 0))
    }

    /// Sets the meanings of the waits. Rows that are read after that have them.
    pub fn set_meanings(&mut self, meanings: Meanings) {
        self.meanings = Some(meanings);
        self.late_stalls = RefCell::default();
    }

    /// The recording as a whole. `read` counts the ends of all stacks, which takes a while.
    pub fn info(&self, read: impl FnOnce() -> SqlResult<RecordingInfo>) -> SqlResult<&RecordingInfo> {
        read_once(&self.info, read)
    }

    /// The time in sched_yield. `read` looks for its stacks among all, and for their samples.
    pub fn yields(&self, read: impl FnOnce() -> SqlResult<Vec<SampleRow>>) -> SqlResult<&[SampleRow]> {
        read_once(&self.yields, read).map(Vec::as_slice)
    }

    /// The number of each thread's stalls that are not voluntary. `count` reads all stalls.
    pub fn late_stalls(&self, count: impl FnOnce() -> SqlResult<LateStalls>) -> SqlResult<Rc<LateStalls>> {
        if let Some(known) = &*self.late_stalls.borrow() {
            return Ok(Rc::clone(known));
        }
        let counts = count()?;
        Ok(self.keep_late_stalls(counts))
    }

    /// For a reader of all stalls, which counts them on the way.
    pub fn keep_late_stalls(&self, counts: LateStalls) -> Rc<LateStalls> {
        Rc::clone(self.late_stalls.borrow_mut().insert(Rc::new(counts)))
    }

    pub fn meanings(&self) -> Option<&Meanings> {
        self.meanings.as_ref()
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// The error of a failed reading, with the path of the recording.
    pub fn failed(&self, error: rusqlite::Error) -> Error {
        Error::from_sqlite(&self.path, Action::Read, error)
    }

    /// All rows of a query without parameters.
    pub fn collect<T>(&self, sql: &str, from_row: impl FnMut(&Row<'_>) -> SqlResult<T>) -> SqlResult<Vec<T>> {
        self.connection.prepare(sql)?.query_map([], from_row)?.collect()
    }

    pub fn text(&self, id: Option<u32>) -> SqlResult<Option<String>> {
        self.stacks.optional_text(&self.connection, id)
    }

    /// A text that all its rows share.
    pub fn shared_text(&self, id: Option<u32>) -> SqlResult<Option<Arc<str>>> {
        id.map(|id| self.stacks.text(&self.connection, id)).transpose()
    }

    /// A text that its reader keeps, as one of a million rows may.
    pub fn text_to_keep(&self, id: Option<u32>) -> SqlResult<Option<String>> {
        self.stacks.text_to_keep(&self.connection, id)
    }

    pub fn frame(&self, id: u32) -> SqlResult<Arc<ResolvedFrame>> {
        self.stacks.frame(&self.connection, id)
    }

    /// A stack of any number of rows that are read one after the other.
    pub fn stack(&self, node: u32) -> SqlResult<ResolvedStack> {
        self.stacks.resolve(&self.connection, node)
    }

    /// As [`Reader::stack`].
    pub fn optional_stack(&self, node: Option<u32>) -> SqlResult<Option<ResolvedStack>> {
        node.map(|node| self.stack(node)).transpose()
    }

    /// A stack that its reader keeps.
    pub fn stack_to_keep(&self, node: u32) -> SqlResult<ResolvedStack> {
        self.stacks.resolve_to_keep(&self.connection, node)
    }

    pub fn stack_end(&self, node: u32) -> SqlResult<StackEnd> {
        self.stacks.end(&self.connection, node)
    }

    pub fn mention(&self, id: u32) -> SqlResult<ThreadRef> {
        if let Some(mention) = self.mentions.borrow().get(&id) {
            return Ok(mention.clone());
        }
        let mut find = self
            .connection
            .prepare_cached("SELECT thread, pid, tid, comm, title FROM mention WHERE id = ?")?;
        let mention = find.query_row([id], |row| {
            Ok(ThreadRef {
                key: row.get::<_, Option<u32>>("thread")?.map(ThreadKey),
                pid: row.get("pid")?,
                tid: row.get("tid")?,
                comm: self.text_to_keep(row.get("comm")?)?.unwrap_or_default(),
                title: self.text_to_keep(row.get("title")?)?.map(Arc::from),
            })
        })?;
        self.mentions.borrow_mut().insert(id, mention.clone());
        Ok(mention)
    }

    /// The thread row that a mention names, if that thread is recorded.
    pub fn mention_key(&self, id: u32) -> SqlResult<Option<ThreadKey>> {
        let keys = read_once(&self.mention_keys, || {
            let sql = "SELECT id, thread FROM mention WHERE thread IS NOT NULL";
            let rows = self.collect(sql, |row| Ok((row.get("id")?, ThreadKey(row.get("thread")?))))?;
            Ok(rows.into_iter().collect())
        })?;
        Ok(keys.get(&id).copied())
    }

    /// A thread's names that a row keeps.
    pub fn mention_to_keep(&self, id: u32) -> SqlResult<ThreadRef> {
        let mention = self.mention(id)?;
        self.stacks.bounds.text(mention.comm.len())?;
        Ok(mention)
    }

    /// The pid and tid of a thread row.
    pub fn process_and_thread(&self, key: ThreadKey) -> SqlResult<(u32, u32)> {
        let tids = read_once(&self.tids, || {
            let rows = self.collect("SELECT id, pid, tid FROM thread", |row| {
                Ok((ThreadKey(row.get("id")?), (row.get("pid")?, row.get("tid")?)))
            })?;
            Ok(rows.into_iter().collect())
        })?;
        decoded(key.0, tids.get(&key).copied())
    }
}

/// The value of a cell, which `read` fills at the first call.
fn read_once<T>(cell: &OnceCell<T>, read: impl FnOnce() -> SqlResult<T>) -> SqlResult<&T> {
    match cell.get() {
        Some(value) => Ok(value),
        None => {
            let value = read()?;
            Ok(cell.get_or_init(|| value))
        }
    }
}
