//! The stalls of a recording one by one, oldest first. Memory holds 16 bytes for each that the filter
//! accepts; the records themselves are read as they are asked for.

use std::collections::HashSet;
use std::ops::Range;

use rusqlite::{CachedStatement, OptionalExtension, Result as SqlResult, Row};
use wallprof_model::event::{Access, Fault, Mapping, WaitedFile};
use wallprof_model::profile::{BoundAtFirstCall, LockRecord, StallRecord, WakerRecord};
use wallprof_model::{Lateness, MonoNs, StallKind, StallReason, ThreadKey, ThreadRef};

use crate::error::Result;
use crate::recording::Recording;
use crate::row::{bits, decoded, optional_bits, optional_unsigned, unsigned};
use crate::schema::flag;

/// Which stalls to read. The default accepts every stall that is not voluntary.
#[derive(Clone, Debug, Default)]
pub struct StallFilter {
    pub kind: Option<StallKind>,
    pub reason: Option<StallReason>,
    /// The least lateness, as [`StallRecord::late_ns`] says.
    pub min_late_ns: u64,
    pub threads: Option<HashSet<ThreadKey>>,
    /// Stalls that were under way at some moment of this range.
    pub during: Option<Range<MonoNs>>,
    /// Voluntary ones as well.
    pub include_voluntary: bool,
}

/// What a filter looks at.
struct Head {
    id: i64,
    thread: ThreadKey,
    reason: StallReason,
    flags: i64,
    start: MonoNs,
    lateness: Lateness,
}

impl StallFilter {
    fn accepts(&self, head: &Head) -> bool {
        let end = MonoNs(head.start.0.saturating_add(head.lateness.duration_ns));
        self.kind.is_none_or(|kind| kind == kind_from_flags(head.flags))
            && self.reason.is_none_or(|reason| reason == head.reason)
            && head.lateness.late_ns() >= self.min_late_ns
            && self.threads.as_ref().is_none_or(|threads| threads.contains(&head.thread))
            && self.during.as_ref().is_none_or(|range| head.start < range.end && end > range.start)
            && (self.include_voluntary || head.flags & flag::VOLUNTARY == 0)
    }
}

/// Stalls in the order of their start.
pub struct Stalls<'r> {
    recording: &'r Recording,
    record: CachedStatement<'r>,
    ran_instead: CachedStatement<'r>,
    fault: CachedStatement<'r>,
    ids: std::vec::IntoIter<(MonoNs, i64)>,
}

impl<'r> Stalls<'r> {
    pub(crate) fn new(recording: &'r Recording, filter: &StallFilter) -> SqlResult<Self> {
        let connection = recording.connection();
        let mut ids = Vec::new();
        let mut heads = connection.prepare(
            "SELECT id, thread, reason_code, flags, start_ns, duration_ns, blocked_ns, runnable_ns, asked_ns,
                 lock_address IS NOT NULL FROM stall",
        )?;
        let mut rows = heads.query([])?;
        while let Some(row) = rows.next()? {
            let head = head_from_row(row, row.get(9)?)?;
            if filter.accepts(&head) {
                ids.push((head.start, head.id));
            }
        }
        ids.sort_unstable();
        Self::with_ids(recording, ids)
    }

    pub(crate) fn one(recording: &'r Recording, id: u64) -> SqlResult<Self> {
        let id = i64::try_from(id).unwrap_or(0);
        let found: i64 = recording
            .connection()
            .prepare_cached("SELECT count(*) FROM stall WHERE id = ?")?
            .query_row([id], |row| row.get(0))?;
        Self::with_ids(recording, if found == 1 { vec![(MonoNs(0), id)] } else { vec![] })
    }

    fn with_ids(recording: &'r Recording, ids: Vec<(MonoNs, i64)>) -> SqlResult<Self> {
        let connection = recording.connection();
        Ok(Stalls {
            recording,
            record: connection.prepare_cached(
                "SELECT id, thread, reason_code, flags, start_ns, duration_ns, blocked_ns, runnable_ns, asked_ns,
                     comm, syscall, cpu, user_stack, kernel_stack, waker, waker_user_stack, waker_kernel_stack,
                     lock_address, lock_owner, binding.depth, binding.symbol, binding.library, stall_file.path, stall_file.offset
                 FROM stall LEFT JOIN binding ON binding.stack = user_stack LEFT JOIN stall_file ON stall = id
                 WHERE id = ?",
            )?,
            ran_instead: connection
                .prepare_cached("SELECT mention, ns FROM stall_ran WHERE stall = ? ORDER BY position")?,
            fault: connection.prepare_cached(
                "SELECT address, access, major, file, file_offset, mapping FROM stall_fault WHERE stall = ?",
            )?,
            ids: ids.into_iter(),
        })
    }

    fn read(&mut self, id: i64) -> SqlResult<StallRecord> {
        let recording = self.recording;
        let (mut record, flags) = self.record.query_row([id], |row| record_from_row(recording, id, row))?;
        if flags & flag::RAN_INSTEAD != 0 {
            record.ran_instead = self.read_ran_instead(id)?;
        }
        if record.kind == StallKind::Fault {
            record.fault = self.read_fault(id)?;
        }
        Ok(record)
    }

    fn read_ran_instead(&mut self, id: i64) -> SqlResult<Vec<(ThreadRef, u64)>> {
        let recording = self.recording;
        self.ran_instead
            .query_map([id], |row| Ok((recording.mention(row.get(0)?)?, unsigned(row, 1)?)))
            .and_then(Iterator::collect)
    }

    fn read_fault(&mut self, id: i64) -> SqlResult<Option<Fault>> {
        let recording = self.recording;
        let fault = |row: &Row<'_>| {
            let access: Option<String> = row.get(1)?;
            let mapping: Option<String> = row.get(5)?;
            Ok(Fault {
                address: bits(row, 0)?,
                access: access.and_then(|name| Access::from_name(&name)),
                major: row.get(2)?,
                mapping: mapping.and_then(|name| Mapping::from_name(&name)),
                file: recording.text(row.get(3)?)?,
                file_offset: optional_bits(row, 4)?,
            })
        };
        self.fault.query_row([id], fault).optional()
    }
}

impl Iterator for Stalls<'_> {
    type Item = Result<StallRecord>;

    fn next(&mut self) -> Option<Self::Item> {
        let (_, id) = self.ids.next()?;
        Some(self.read(id).map_err(|error| self.recording.failed(error)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.ids.size_hint()
    }
}

impl ExactSizeIterator for Stalls<'_> {}

fn kind_from_flags(flags: i64) -> StallKind {
    if flags & flag::FAULT == 0 { StallKind::OffCpu } else { StallKind::Fault }
}

fn head_from_row(row: &Row<'_>, is_lock: bool) -> SqlResult<Head> {
    let code: u8 = row.get(2)?;
    let reason = decoded(2, code, StallReason::from_code(code))?;
    Ok(Head {
        id: row.get(0)?,
        thread: ThreadKey(row.get(1)?),
        reason,
        flags: row.get(3)?,
        start: MonoNs(unsigned(row, 4)?),
        lateness: Lateness {
            duration_ns: unsigned(row, 5)?,
            blocked_ns: unsigned(row, 6)?,
            asked_ns: optional_unsigned(row, 8)?,
            reason,
            is_lock,
        },
    })
}

/// A record without what other tables hold, and its flags.
fn record_from_row(recording: &Recording, id: i64, row: &Row<'_>) -> SqlResult<(StallRecord, i64)> {
    let lock = lock_from_row(recording, row)?;
    let head = head_from_row(row, lock.is_some())?;
    let (pid, tid) = recording.process_and_thread(head.thread)?;
    let record = StallRecord {
        id: id as u64,
        thread: head.thread,
        pid,
        tid,
        comm: recording.text(row.get(9)?)?.unwrap_or_default(),
        kind: kind_from_flags(head.flags),
        reason: head.reason,
        voluntary: head.flags & flag::VOLUNTARY != 0,
        open: head.flags & flag::OPEN != 0,
        start: head.start,
        end: MonoNs(head.start.0.saturating_add(head.lateness.duration_ns)),
        blocked_ns: head.lateness.blocked_ns,
        runnable_ns: unsigned(row, 7)?,
        syscall: recording.text(row.get(10)?)?,
        cpu: row.get(11)?,
        user: recording.optional_stack(row.get(12)?)?,
        kernel: recording.optional_stack(row.get(13)?)?,
        waker: waker_from_row(recording, head.flags, row)?,
        lock,
        ran_instead: Vec::new(),
        fault: None,
        asked_ns: head.lateness.asked_ns,
        binding: binding_from_row(recording, row)?,
        file: file_from_row(recording, row)?,
    };
    Ok((record, head.flags))
}

fn waker_from_row(recording: &Recording, flags: i64, row: &Row<'_>) -> SqlResult<Option<WakerRecord>> {
    let thread: Option<u32> = row.get(14)?;
    if thread.is_none() && flags & flag::WOKEN_BY_INTERRUPT == 0 {
        return Ok(None);
    }
    Ok(Some(WakerRecord {
        thread: thread.map(|mention| recording.mention(mention)).transpose()?,
        user: recording.optional_stack(row.get(15)?)?,
        kernel: recording.optional_stack(row.get(16)?)?,
    }))
}

fn binding_from_row(recording: &Recording, row: &Row<'_>) -> SqlResult<Option<BoundAtFirstCall>> {
    let Some(depth) = row.get::<_, Option<u32>>(19)? else { return Ok(None) };
    let (symbol, library) = (recording.text(row.get(20)?)?, recording.text(row.get(21)?)?);
    Ok(Some(BoundAtFirstCall { depth: depth as usize, symbol, library }))
}

fn file_from_row(recording: &Recording, row: &Row<'_>) -> SqlResult<Option<WaitedFile>> {
    let offset = optional_bits(row, 23)?;
    Ok(recording.text(row.get(22)?)?.map(|path| WaitedFile { path, offset }))
}

fn lock_from_row(recording: &Recording, row: &Row<'_>) -> SqlResult<Option<LockRecord>> {
    let Some(address) = optional_bits(row, 17)? else { return Ok(None) };
    let owner: Option<u32> = row.get(18)?;
    let owner = owner.map(|mention| recording.mention(mention)).transpose()?;
    Ok(Some(LockRecord { address, owner }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_model::Reason;

    fn head(start: u64, duration_ns: u64, flags: i64) -> Head {
        Head {
            id: 1,
            thread: ThreadKey(3),
            reason: StallReason::Blocked(Reason::Lock),
            flags,
            start: MonoNs(start),
            lateness: Lateness {
                duration_ns,
                blocked_ns: duration_ns,
                asked_ns: None,
                reason: StallReason::Blocked(Reason::Lock),
                is_lock: true,
            },
        }
    }

    #[test]
    fn the_default_leaves_out_only_the_voluntary() {
        let filter = StallFilter::default();
        assert!(filter.accepts(&head(0, 0, 0)));
        assert!(!filter.accepts(&head(0, 0, flag::VOLUNTARY)));
        let all = StallFilter { include_voluntary: true, ..filter };
        assert!(all.accepts(&head(0, 0, flag::VOLUNTARY)));
    }

    #[test]
    fn a_range_accepts_what_overlaps_it() {
        let filter = StallFilter { during: Some(MonoNs(100)..MonoNs(200)), ..StallFilter::default() };
        for (start, duration_ns, expected) in
            [(0, 100, false), (0, 101, true), (150, 1, true), (199, 900, true), (200, 5, false)]
        {
            assert_eq!(filter.accepts(&head(start, duration_ns, 0)), expected, "{start} + {duration_ns}");
        }
    }

    #[test]
    fn each_condition_refuses() {
        let refusing = [
            StallFilter { kind: Some(StallKind::Fault), ..StallFilter::default() },
            StallFilter { reason: Some(StallReason::Preempted), ..StallFilter::default() },
            StallFilter { min_late_ns: 11, ..StallFilter::default() },
            StallFilter { threads: Some(HashSet::from([ThreadKey(4)])), ..StallFilter::default() },
        ];
        for filter in refusing {
            assert!(!filter.accepts(&head(0, 10, 0)), "{filter:?}");
        }
    }
}
