//! The reader: what a recording says, in the values of the profile. Thread keys and stack ids are the
//! file's row ids. Every method sees the recording as it was when it was opened.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::ops::{Bound, RangeBounds};
use std::path::{Path, PathBuf};

use rusqlite::{Connection, Result as SqlResult, Row};
use wallprof_model::event::{InterruptKind, LedgerDelta, WakerStacks, Weighted};
use wallprof_model::histogram::{self, Cell};
use wallprof_model::profile::{
    FoldedStalls, InterruptRow, LedgerRow, Overhead, RecordingInfo, ResolvedStack, SampleRow, StallRecord,
    Thread, Unwinding,
};
use wallprof_model::state::{Metric, State};
use wallprof_model::{
    ClockAnchor, ClockMap, EpochNs, EpochSecond, Histogram, MonoNs, StackEnd, StackId, StallReason,
    ThreadInfo, ThreadKey, ThreadRef,
};

use crate::error::{Action, Error, Result};
use crate::pending::{add_ledger, ledger_numbers_mut};
use crate::row::{decoded, nonzero, optional_unsigned, unsigned};
use crate::schema::{FIRST_EVENT, flag};
use crate::snapshot;
use crate::stacks::Stacks;
use crate::stalls::{StallFilter, Stalls};

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
        self.read_info().map_err(|error| self.failed(error))
    }

    /// All threads in the order in which they were first seen.
    pub fn threads(&self) -> Result<Vec<Thread>> {
        self.read_threads().map_err(|error| self.failed(error))
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
        self.seconds("bucket", seconds, read_ledger)
    }

    /// The samples of these seconds, ordered by second and thread.
    pub fn samples(&self, seconds: impl RangeBounds<EpochSecond>) -> Result<Seconds<'_, SampleRow>> {
        self.seconds("sample", seconds, read_samples)
    }

    /// The frames of a stack that a sample of this recording names.
    pub fn resolve(&self, stack: StackId) -> Result<ResolvedStack> {
        self.stack(u32::try_from(stack.0).unwrap_or(0)).map_err(|error| self.failed(error))
    }

    pub fn interrupts(&self) -> Result<Vec<InterruptRow>> {
        self.collect(
            "SELECT cpu, kind, name, victim, count, total_ns, max_ns FROM interrupt ORDER BY cpu, kind, name, victim",
            |row| {
                let kind: String = row.get(1)?;
                Ok(InterruptRow {
                    cpu: row.get(0)?,
                    kind: decoded(1, 0, InterruptKind::from_name(&kind))?,
                    name: self.text(row.get(2)?)?.unwrap_or_default(),
                    victim: nonzero(row, 3)?.map(ThreadKey),
                    count: unsigned(row, 4)?,
                    total_ns: unsigned(row, 5)?,
                    max_ns: unsigned(row, 6)?,
                })
            },
        )
        .map_err(|error| self.failed(error))
    }

    /// The stalls that the size budget folded into counts.
    pub fn folded(&self) -> Result<Vec<FoldedStalls>> {
        self.collect(
            "SELECT thread, reason_code, voluntary, count, total_ns, max_ns FROM folded
             ORDER BY thread, reason_code, voluntary",
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

    fn read_info(&self) -> SqlResult<RecordingInfo> {
        let mut info = self.connection.query_row(
            "SELECT start_ns, coalesce(end_ns, last_ns), end_ns IS NOT NULL, source, kernel, arch, cpus, hostname,
                 machine_id, boot_id, command, min_stall_ns FROM recording",
            [],
            info_from_row,
        )?;
        info.clock = ClockMap::new(self.collect("SELECT mono_ns, epoch_ns FROM clock", |row| {
            Ok(ClockAnchor { mono: MonoNs(unsigned(row, 0)?), epoch: EpochNs(unsigned(row, 1)?) })
        })?);
        info.events = self.event_names()?;
        info.losses = self
            .collect("SELECT reason, count FROM loss", |row| Ok((row.get(0)?, unsigned(row, 1)?)))?
            .into_iter()
            .collect();
        info.overhead = self.connection.query_row(
            "SELECT process_cpu_ns, probe_ns, probe_runs FROM overhead",
            [],
            |row| {
                Ok(Overhead {
                    process_cpu_ns: unsigned(row, 0)?,
                    probe_ns: unsigned(row, 1)?,
                    probe_runs: unsigned(row, 2)?,
                })
            },
        )?;
        info.unwinding = self.unwinding()?;
        Ok(info)
    }

    fn event_names(&self) -> SqlResult<Vec<String>> {
        let rows: Vec<(u16, String)> =
            self.collect("SELECT id, name FROM event ORDER BY id", |row| Ok((row.get(0)?, row.get(1)?)))?;
        let mut names = Vec::new();
        for (index, name) in rows {
            names.resize(usize::from(index), String::new());
            names.push(name);
        }
        Ok(names)
    }

    /// Counted by how often each user stack was taken: by samples, and by stalls.
    fn unwinding(&self) -> SqlResult<Unwinding> {
        let mut unwinding = Unwinding::default();
        for query in [
            "SELECT user_stack, count FROM sample WHERE user_stack <> 0",
            "SELECT user_stack, 1 FROM stall WHERE user_stack IS NOT NULL",
        ] {
            let mut statement = self.connection.prepare(query)?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                let end = self.stacks.end(&self.connection, row.get(0)?)?;
                add_stacks(&mut unwinding, end, unsigned(row, 1)?);
            }
        }
        Ok(unwinding)
    }

    fn read_threads(&self) -> SqlResult<Vec<Thread>> {
        let (start, end) = self.connection.query_row(
            "SELECT start_ns, coalesce(end_ns, last_ns) FROM recording",
            [],
            |row| Ok((MonoNs(unsigned(row, 0)?), MonoNs(unsigned(row, 1)?))),
        )?;
        let mut threads: BTreeMap<ThreadKey, Thread> = self
            .collect(
                "SELECT id, tid, pid, ns_tid, ns_pid, start_boot_ns, comm, process, cgroup, kernel_thread, start_ns,
                     end_ns FROM thread",
                |row| self.thread_from_row(row, start, end),
            )?
            .into_iter()
            .map(|thread| (thread.info.key, thread))
            .collect();
        self.add_ledgers(&mut threads)?;
        self.add_latencies(&mut threads)?;
        self.add_stall_counts(&mut threads)?;
        Ok(threads.into_values().collect())
    }

    fn thread_from_row(&self, row: &Row<'_>, start: MonoNs, end: MonoNs) -> SqlResult<Thread> {
        let key = ThreadKey(row.get(0)?);
        let own_end = optional_unsigned(row, 11)?.map_or(end, MonoNs);
        Ok(Thread {
            info: ThreadInfo {
                key,
                tid: row.get(1)?,
                pid: row.get(2)?,
                ns_tid: row.get(3)?,
                ns_pid: row.get(4)?,
                start_boot_ns: unsigned(row, 5)?,
                comm: self.text(row.get(6)?)?.unwrap_or_default(),
                process: self.text(row.get(7)?)?.unwrap_or_default(),
                cgroup: self.text(row.get(8)?)?,
                kernel_thread: row.get(9)?,
            },
            start: optional_unsigned(row, 10)?.map_or(start, MonoNs),
            end: own_end.min(end),
            ledger: LedgerDelta::new(key, EpochSecond(0)),
            latency: BTreeMap::new(),
            stalls: 0,
        })
    }

    fn add_ledgers(&self, threads: &mut BTreeMap<ThreadKey, Thread>) -> SqlResult<()> {
        let mut statement = self.connection.prepare("SELECT * FROM bucket")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let bucket = ledger_from_row(row)?;
            if let Some(thread) = threads.get_mut(&bucket.thread) {
                add_ledger(&mut thread.ledger, &bucket);
            }
        }
        Ok(())
    }

    fn add_latencies(&self, threads: &mut BTreeMap<ThreadKey, Thread>) -> SqlResult<()> {
        let mut statement = self
            .connection
            .prepare("SELECT thread, metric_code, bucket, count, total_ns, max_ns FROM latency_cell")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let (metric, bucket, cell) = latency_from_row(row)?;
            if let Some(thread) = threads.get_mut(&ThreadKey(row.get(0)?)) {
                let histogram: &mut Histogram = thread.latency.entry(metric).or_default();
                histogram.add_cell(bucket, cell);
            }
        }
        Ok(())
    }

    fn add_stall_counts(&self, threads: &mut BTreeMap<ThreadKey, Thread>) -> SqlResult<()> {
        let mut statement = self.connection.prepare("SELECT thread FROM stall WHERE flags & ? = 0")?;
        let mut rows = statement.query([flag::VOLUNTARY])?;
        while let Some(row) = rows.next()? {
            if let Some(thread) = threads.get_mut(&ThreadKey(row.get(0)?)) {
                thread.stalls += 1;
            }
        }
        Ok(())
    }

    fn seconds<T>(
        &self,
        table: &str,
        range: impl RangeBounds<EpochSecond>,
        load: fn(&Connection, EpochSecond) -> SqlResult<Vec<T>>,
    ) -> Result<Seconds<'_, T>> {
        let (first, last) = inclusive(range);
        // Seconds lead the key: this steps from one to the next without reading what is between.
        let sql = format!(
            "WITH RECURSIVE present (second) AS (
                 SELECT min(second) FROM {table} WHERE second >= ?1
                 UNION ALL
                 SELECT (SELECT min(second) FROM {table} WHERE second > present.second) FROM present
                 WHERE present.second <= ?2
             ) SELECT second FROM present WHERE second <= ?2"
        );
        let seconds: SqlResult<Vec<u32>> = self
            .connection
            .prepare(&sql)
            .and_then(|mut statement| statement.query_map([first, last], |row| row.get(0))?.collect());
        let seconds = seconds.map_err(|error| self.failed(error))?;
        Ok(Seconds { recording: self, seconds: seconds.into_iter(), rows: Vec::new().into_iter(), load })
    }

    fn collect<T>(&self, sql: &str, from_row: impl FnMut(&Row<'_>) -> SqlResult<T>) -> SqlResult<Vec<T>> {
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
                comm: self.text(row.get(3)?)?.unwrap_or_default(),
            })
        })?;
        self.mentions.borrow_mut().insert(id, mention.clone());
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

/// Rows of some seconds, loaded a second at a time.
pub struct Seconds<'r, T> {
    recording: &'r Recording,
    seconds: std::vec::IntoIter<u32>,
    rows: std::vec::IntoIter<T>,
    load: fn(&Connection, EpochSecond) -> SqlResult<Vec<T>>,
}

impl<T> Iterator for Seconds<'_, T> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(row) = self.rows.next() {
                return Some(Ok(row));
            }
            let second = EpochSecond(self.seconds.next()?);
            match (self.load)(&self.recording.connection, second) {
                Ok(rows) => self.rows = rows.into_iter(),
                Err(error) => return Some(Err(self.recording.failed(error))),
            }
        }
    }
}

/// The first and the last second of a range; an empty range ends before it begins.
fn inclusive(range: impl RangeBounds<EpochSecond>) -> (i64, i64) {
    let first = match range.start_bound() {
        Bound::Included(second) => i64::from(second.0),
        Bound::Excluded(second) => i64::from(second.0) + 1,
        Bound::Unbounded => 0,
    };
    let last = match range.end_bound() {
        Bound::Included(second) => i64::from(second.0),
        Bound::Excluded(second) => i64::from(second.0) - 1,
        Bound::Unbounded => i64::from(u32::MAX),
    };
    (first, last)
}

fn read_ledger(connection: &Connection, second: EpochSecond) -> SqlResult<Vec<LedgerRow>> {
    connection
        .prepare_cached("SELECT * FROM bucket WHERE second = ? ORDER BY thread")?
        .query_map([second.0], ledger_from_row)?
        .collect()
}

fn read_samples(connection: &Connection, second: EpochSecond) -> SqlResult<Vec<SampleRow>> {
    connection
        .prepare_cached(
            "SELECT sample.thread, what, sample.user_stack, sample.kernel_stack, weight, count,
                 sample_waker.id IS NOT NULL, sample_waker.thread, interrupt, sample_waker.user_stack,
                 sample_waker.kernel_stack
             FROM sample LEFT JOIN sample_waker ON sample_waker.id = sample.waker
             WHERE second = ? ORDER BY sample.thread, what, sample.user_stack, sample.kernel_stack, sample.waker",
        )?
        .query_map([second.0], |row| sample_from_row(row, second))?
        .collect()
}

fn ledger_from_row(row: &Row<'_>) -> SqlResult<LedgerDelta> {
    let mut delta = LedgerDelta::new(ThreadKey(row.get(1)?), EpochSecond(row.get(0)?));
    for (index, number) in ledger_numbers_mut(&mut delta).into_iter().enumerate() {
        *number = unsigned(row, index + 2)?;
    }
    Ok(delta)
}

fn sample_from_row(row: &Row<'_>, second: EpochSecond) -> SqlResult<SampleRow> {
    let stack = |id: Option<u32>| id.map(|id| StackId(u64::from(id)));
    let waker = if row.get(6)? {
        Some(WakerStacks {
            thread: row.get::<_, Option<u32>>(7)?.map(ThreadKey),
            interrupt: row.get(8)?,
            user: stack(row.get(9)?),
            kernel: stack(row.get(10)?),
        })
    } else {
        None
    };
    let what: i64 = row.get(1)?;
    Ok(SampleRow {
        thread: ThreadKey(row.get(0)?),
        second,
        what: decoded(1, what, weighted_from_code(what))?,
        user: stack(nonzero(row, 2)?),
        kernel: stack(nonzero(row, 3)?),
        waker,
        weight: unsigned(row, 4)?,
        count: unsigned(row, 5)?,
    })
}

fn weighted_from_code(code: i64) -> Option<Weighted> {
    if code >= FIRST_EVENT {
        return u16::try_from(code - FIRST_EVENT).ok().map(Weighted::Event);
    }
    State::from_code(u8::try_from(code).ok()?).map(Weighted::State)
}

fn latency_from_row(row: &Row<'_>) -> SqlResult<(Metric, u16, Cell)> {
    let code: u8 = row.get(1)?;
    let bucket: u16 = row.get(2)?;
    let cell = Cell { count: unsigned(row, 3)?, total_ns: unsigned(row, 4)?, max_ns: unsigned(row, 5)? };
    let bucket = decoded(2, bucket, (bucket < histogram::BUCKETS).then_some(bucket))?;
    Ok((decoded(1, code, Metric::from_code(code))?, bucket, cell))
}

fn info_from_row(row: &Row<'_>) -> SqlResult<RecordingInfo> {
    let text = |column| Ok::<_, rusqlite::Error>(row.get::<_, Option<String>>(column)?.unwrap_or_default());
    Ok(RecordingInfo {
        start: MonoNs(unsigned(row, 0)?),
        end: MonoNs(unsigned(row, 1)?),
        ended_cleanly: row.get(2)?,
        source: text(3)?,
        kernel: text(4)?,
        arch: text(5)?,
        cpus: row.get::<_, Option<u32>>(6)?.unwrap_or(0),
        hostname: text(7)?,
        machine_id: text(8)?,
        boot_id: text(9)?,
        command: text(10)?,
        min_stall_ns: unsigned(row, 11)?,
        ..RecordingInfo::default()
    })
}

fn add_stacks(unwinding: &mut Unwinding, end: StackEnd, count: u64) {
    unwinding.stacks = unwinding.stacks.saturating_add(count);
    let part = match end {
        StackEnd::Complete => &mut unwinding.complete,
        _ => unwinding.incomplete.entry(end.name().to_owned()).or_default(),
    };
    *part = part.saturating_add(count);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_seconds() {
        assert_eq!(inclusive(..), (0, i64::from(u32::MAX)));
        assert_eq!(inclusive(EpochSecond(5)..EpochSecond(7)), (5, 6));
        assert_eq!(inclusive(EpochSecond(5)..=EpochSecond(7)), (5, 7));
        assert_eq!(inclusive(EpochSecond(0)..EpochSecond(0)), (0, -1));
    }

    #[test]
    fn codes_of_samples() {
        assert_eq!(weighted_from_code(6), Some(Weighted::State(State::Preempted)));
        assert_eq!(weighted_from_code(256 + 9), Some(Weighted::Event(9)));
        for wrong in [-1, 7, 255, 256 + 65_536, i64::MAX] {
            assert_eq!(weighted_from_code(wrong), None, "{wrong}");
        }
    }
}
