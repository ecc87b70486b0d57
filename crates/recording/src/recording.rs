//! The reader: what a recording says, in the values of the profile. Thread keys and stack ids are the
//! file's row ids. Every method sees the recording as it was when it was opened.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::ops::RangeBounds;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::{Connection, Result as SqlResult, Row};
use wallprof_model::event::{InterruptKind, WorkKind};
use wallprof_model::profile::{
    CrossCallRow, FoldedStalls, InterruptRow, IntrusionRow, KernelWorkRow, LedgerRow, RecordingInfo,
    ResolvedFrame, ResolvedStack, SampleRow, StallRecord, Thread, ThrottledRow,
};
use wallprof_model::{
    EpochSecond, IntrusionKind, Mark, MonoNs, StackEnd, StackId, StallReason, ThreadCalls, ThreadKey,
    ThreadRef,
};

use crate::counters::{self, Counters};
use crate::error::{Action, Error, Result};
use crate::intrusions;
use crate::row::{decoded, nonzero, unsigned};
use crate::seconds::Seconds;
use crate::snapshot;
use crate::stacks::Stacks;
use crate::stalls::{StallFilter, Stalls};
use crate::{calls, info, threads};

pub struct Recording {
    path: PathBuf,
    connection: Connection,
    stacks: Stacks,
    mentions: RefCell<HashMap<u32, ThreadRef>>,
    /// Process and thread ids by thread row.
    tids: OnceCell<HashMap<ThreadKey, (u32, u32)>>,
}

impl Recording {
    /// Opens a recording to read: a finished one, one that is being written, or what a killed writer left.
    /// Not one that this same process is writing.
    pub fn open(path: &Path) -> Result<Recording> {
        Ok(Recording {
            path: path.to_owned(),
            connection: snapshot::open(path)?,
            stacks: Stacks::default(),
            mentions: RefCell::default(),
            tids: OnceCell::new(),
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn info(&self) -> Result<RecordingInfo> {
        info::read(self).map_err(|error| self.failed(error))
    }

    /// The threads in the order in which they were first seen. Of more than 100,000 those that lived longest
    /// are listed, and the last one, [`ThreadKey::OTHERS`], is the sum of the others.
    pub fn threads(&self) -> Result<Vec<Thread>> {
        threads::read(self).map_err(|error| self.failed(error))
    }

    /// The stalls that `filter` accepts, oldest first.
    pub fn stalls(&self, filter: &StallFilter) -> Result<Stalls<'_>> {
        Stalls::new(self, filter).map_err(|error| self.failed(error))
    }

    pub fn stall(&self, id: u64) -> Result<Option<StallRecord>> {
        Stalls::one(self, id).map_err(|error| self.failed(error))?.next().transpose()
    }

    /// The buckets of these seconds, ordered by second and thread.
    pub fn ledger(&self, seconds: impl RangeBounds<EpochSecond>) -> Result<Seconds<'_, LedgerRow>> {
        Seconds::of_ledger(self, seconds).map_err(|error| self.failed(error))
    }

    /// The samples of these seconds, ordered by second and thread.
    pub fn samples(&self, seconds: impl RangeBounds<EpochSecond>) -> Result<Seconds<'_, SampleRow>> {
        Seconds::of_samples(self, seconds).map_err(|error| self.failed(error))
    }

    /// The frames of a stack that a sample of this recording names.
    ///
    /// # Errors
    /// All stacks that were asked for have more functions than one reader keeps.
    pub fn resolve(&self, stack: StackId) -> Result<ResolvedStack> {
        let node = u32::try_from(stack.0).unwrap_or(0);
        self.stacks.resolve_to_keep(&self.connection, node).map_err(|error| self.failed(error))
    }

    pub fn interrupts(&self) -> Result<Vec<InterruptRow>> {
        self.collect(
            "SELECT cpu, kind, name, victim, sum(count), sum(total_ns), max(max_ns) FROM interrupt
             GROUP BY cpu, kind, name, victim ORDER BY cpu, kind, name, victim",
            |row| {
                let kind: String = row.get(1)?;
                Ok(InterruptRow {
                    cpu: row.get(0)?,
                    kind: decoded(1, 0, InterruptKind::from_name(&kind))?,
                    name: self.text_to_keep(row.get(2)?)?.unwrap_or_default(),
                    victim: nonzero(row, 3)?.map(ThreadKey),
                    count: unsigned(row, 4)?,
                    total_ns: unsigned(row, 5)?,
                    max_ns: unsigned(row, 6)?,
                })
            },
        )
        .map_err(|error| self.failed(error))
    }

    /// What was on guarded CPUs; none in a recording without any.
    pub fn intrusions(&self) -> Result<Vec<IntrusionRow>> {
        self.read_intrusions().map_err(|error| self.failed(error))
    }

    fn read_intrusions(&self) -> SqlResult<Vec<IntrusionRow>> {
        // Recordings of the first days do not know of them.
        if !self.connection.table_exists(None, "intrusion")? {
            return Ok(Vec::new());
        }
        let rows = self.collect(
            "SELECT cpu, kind, what, mention, allowed, sum(count), sum(total_ns), max(max_ns) FROM intrusion
             GROUP BY cpu, kind, what, mention, allowed ORDER BY cpu, kind, what, mention, allowed",
            |row| {
                let kind: String = row.get(1)?;
                let mention: Option<u32> = nonzero(row, 3)?;
                Ok(IntrusionRow {
                    cpu: row.get(0)?,
                    kind: decoded(1, 0, IntrusionKind::from_name(&kind))?,
                    what: self.text_to_keep(nonzero(row, 2)?)?.unwrap_or_default(),
                    thread: mention.map(|mention| self.mention_to_keep(mention)).transpose()?,
                    allowed: row.get(4)?,
                    count: unsigned(row, 5)?,
                    total_ns: unsigned(row, 6)?,
                    max_ns: unsigned(row, 7)?,
                })
            },
        )?;
        Ok(intrusions::merged(rows))
    }

    /// Stretches of the kernel's work for threads, oldest first.
    pub fn kernel_work(&self) -> Result<Vec<KernelWorkRow>> {
        let sql =
            "SELECT thread, kind, start_ns, duration_ns FROM kernel_work ORDER BY start_ns, thread, kind";
        self.collect(sql, |row| {
            let kind: String = row.get(1)?;
            let (start, duration_ns) = (unsigned(row, 2)?, unsigned(row, 3)?);
            Ok(KernelWorkRow {
                thread: ThreadKey(row.get(0)?),
                kind: decoded(1, 0, WorkKind::from_name(&kind))?,
                start: MonoNs(start),
                end: MonoNs(start.saturating_add(duration_ns)),
            })
        })
        .map_err(|error| self.failed(error))
    }

    /// Functions called on other CPUs, by caller.
    pub fn cross_calls(&self) -> Result<Vec<CrossCallRow>> {
        let sql = "SELECT caller, syscall, function, sum(count) FROM cross_call
             GROUP BY caller, syscall, function ORDER BY caller, syscall, function";
        self.collect(sql, |row| {
            Ok(CrossCallRow {
                caller: self.mention_to_keep(row.get(0)?)?,
                syscall: self.text_to_keep(nonzero(row, 1)?)?,
                function: self.text_to_keep(nonzero(row, 2)?)?,
                count: unsigned(row, 3)?,
            })
        })
        .map_err(|error| self.failed(error))
    }

    /// When control groups of recorded processes had used up their CPU quotas.
    pub fn throttled(&self) -> Result<Vec<ThrottledRow>> {
        let sql = "SELECT pid, cgroup, quota_ns, period_ns, from_ns, to_ns, count, total_ns FROM throttled
             ORDER BY from_ns, pid, cgroup";
        self.collect(sql, |row| {
            Ok(ThrottledRow {
                pid: row.get(0)?,
                cgroup: self.text_to_keep(row.get(1)?)?.unwrap_or_default(),
                quota_ns: unsigned(row, 2)?,
                period_ns: unsigned(row, 3)?,
                from: MonoNs(unsigned(row, 4)?),
                to: MonoNs(unsigned(row, 5)?),
                count: unsigned(row, 6)?,
                total_ns: unsigned(row, 7)?,
            })
        })
        .map_err(|error| self.failed(error))
    }

    /// The stalls that the size budget folded into counts.
    pub fn folded(&self) -> Result<Vec<FoldedStalls>> {
        self.collect(
            "SELECT thread, reason_code, voluntary, sum(count), sum(total_ns), max(max_ns) FROM folded
             GROUP BY thread, reason_code, voluntary ORDER BY thread, reason_code, voluntary",
            |row| {
                let code: u8 = row.get(1)?;
                Ok(FoldedStalls {
                    thread: ThreadKey(row.get(0)?),
                    reason: decoded(1, code, StallReason::from_code(code))?,
                    voluntary: row.get(2)?,
                    count: unsigned(row, 3)?,
                    total_ns: unsigned(row, 4)?,
                    max_ns: unsigned(row, 5)?,
                })
            },
        )
        .map_err(|error| self.failed(error))
    }

    /// The threads whose calls are known, in the order in which they were first seen.
    pub fn threads_with_calls(&self) -> Result<Vec<ThreadKey>> {
        calls::threads(self).map_err(|error| self.failed(error))
    }

    /// All call paths of a thread; none for one whose calls are not known.
    pub fn calls(&self, thread: ThreadKey) -> Result<ThreadCalls> {
        calls::read(self, thread).map_err(|error| self.failed(error))
    }

    pub fn counters(&self) -> Result<Counters<'_>> {
        Counters::new(self).map_err(|error| self.failed(error))
    }

    /// What was noted, oldest first.
    pub fn marks(&self) -> Result<Vec<Mark>> {
        counters::marks(self).map_err(|error| self.failed(error))
    }

    pub(crate) fn collect<T>(
        &self,
        sql: &str,
        from_row: impl FnMut(&Row<'_>) -> SqlResult<T>,
    ) -> SqlResult<Vec<T>> {
        self.connection.prepare(sql)?.query_map([], from_row)?.collect()
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(crate) fn failed(&self, error: rusqlite::Error) -> Error {
        Error::from_sqlite(&self.path, Action::Read, error)
    }

    pub(crate) fn text(&self, id: Option<u32>) -> SqlResult<Option<String>> {
        self.stacks.optional_text(&self.connection, id)
    }

    /// A text that its reader keeps, as one of a million rows may.
    pub(crate) fn text_to_keep(&self, id: Option<u32>) -> SqlResult<Option<String>> {
        self.stacks.text_to_keep(&self.connection, id)
    }

    pub(crate) fn frame(&self, id: u32) -> SqlResult<Arc<ResolvedFrame>> {
        self.stacks.frame(&self.connection, id)
    }

    pub(crate) fn stack_end(&self, node: u32) -> SqlResult<StackEnd> {
        self.stacks.end(&self.connection, node)
    }

    fn stack(&self, node: u32) -> SqlResult<ResolvedStack> {
        self.stacks.resolve(&self.connection, node)
    }

    pub(crate) fn optional_stack(&self, node: Option<u32>) -> SqlResult<Option<ResolvedStack>> {
        node.map(|node| self.stack(node)).transpose()
    }

    pub(crate) fn mention(&self, id: u32) -> SqlResult<ThreadRef> {
        if let Some(mention) = self.mentions.borrow().get(&id) {
            return Ok(mention.clone());
        }
        let mut find =
            self.connection.prepare_cached("SELECT thread, pid, tid, comm FROM mention WHERE id = ?")?;
        let mention = find.query_row([id], |row| {
            Ok(ThreadRef {
                key: row.get::<_, Option<u32>>(0)?.map(ThreadKey),
                pid: row.get(1)?,
                tid: row.get(2)?,
                comm: self.text_to_keep(row.get(3)?)?.unwrap_or_default(),
            })
        })?;
        self.mentions.borrow_mut().insert(id, mention.clone());
        Ok(mention)
    }

    /// A thread's names that a row keeps.
    fn mention_to_keep(&self, id: u32) -> SqlResult<ThreadRef> {
        let mention = self.mention(id)?;
        self.stacks.bounds.text(mention.comm.len())?;
        Ok(mention)
    }

    /// The pid and tid of a thread row.
    pub(crate) fn process_and_thread(&self, key: ThreadKey) -> SqlResult<(u32, u32)> {
        if self.tids.get().is_none() {
            let rows = self.collect("SELECT id, pid, tid FROM thread", |row| {
                Ok((ThreadKey(row.get(0)?), (row.get(1)?, row.get(2)?)))
            })?;
            self.tids.get_or_init(|| rows.into_iter().collect());
        }
        let known = self.tids.get().and_then(|tids| tids.get(&key)).copied();
        decoded(0, key.0, known)
    }
}
