// SPDX-License-Identifier: Apache-2.0
//! The stalls of a recording one by one, oldest first. Memory holds 16 bytes for each stall that the filter
//! accepts. The records themselves are read on demand.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use rusqlite::{CachedStatement, OptionalExtension, Result as SqlResult, Row, Rows};
use wallprof_model::event::{Access, Awaited, Fault, Mapping, Peer, PeerKind, PeerProcess, Role, WaitedFile};
use wallprof_model::profile::{BoundAtFirstCall, LockRecord, ResolvedStack, StallRecord, WakerRecord};
use wallprof_model::{
    FastMap, Lateness, Meaning, MonoNs, StackId, StallKind, StallReason, ThreadKey, ThreadRef, TraceIds,
    WaitWord, WordSource,
};

use crate::error::Result;
use crate::reader::{LateStalls, Reader};
use crate::row::{bits, coded, columns, optional_bits, optional_unsigned, unsigned};
use crate::schema::flag;

columns! {
    /// The columns that a filter needs.
    mod head {
        ID = "stall.id",
        THREAD = "stall.thread",
        REASON_CODE = "reason_code",
        FLAGS = "flags",
        START_NS = "start_ns",
        DURATION_NS = "duration_ns",
        BLOCKED_NS = "blocked_ns",
        ASKED_NS = "asked_ns",
        LOCK_ADDRESS = "lock_address",
        USER_STACK = "user_stack",
        KERNEL_STACK = "kernel_stack",
    }
}

columns! {
    /// The other columns of a stall.
    mod rest from head::END {
        RUNNABLE_NS = "runnable_ns",
        COMM = "stall.comm",
        SYSCALL = "syscall",
        CPU = "cpu",
        PRIORITY = "priority",
        WAKER = "waker",
        WAKER_USER_STACK = "waker_user_stack",
        WAKER_KERNEL_STACK = "waker_kernel_stack",
        LOCK_OWNER = "lock_owner",
    }
}

// What other tables have of a stall. Positions count from the first column of each table.

columns! {
    mod binding { DEPTH = "binding.depth", SYMBOL = "binding.symbol", LIBRARY = "binding.library" }
}

columns! {
    mod file { PATH = "stall_file.path", OFFSET = "stall_file.offset" }
}

columns! {
    mod peer {
        KIND = "stall_peer.kind",
        AWAITED = "stall_peer.awaited",
        ROLE = "stall_peer.role",
        ASKED = "stall_peer.asked",
        LOCAL = "stall_peer.local",
        REMOTE = "stall_peer.remote",
        INODE = "stall_peer.inode",
        BY_CHILD = "stall_peer.by_child",
        PID = "stall_peer.pid",
        COMM = "stall_peer.comm",
    }
}

columns! {
    mod word { SYMBOL = "stall_word.symbol", MODULE = "stall_word.module", VALUE = "stall_word.value" }
}

columns! {
    mod trace { TRACE_ID = "stall_trace.trace_id", SPAN_ID = "stall_trace.span_id" }
}

columns! {
    mod owner { AT_NS = "stall_owner.sampled_ns", STACK = "stall_owner.owner_stack" }
}

columns! {
    mod fault {
        ADDRESS = "address",
        ACCESS = "access",
        MAJOR = "major",
        FILE = "file",
        FILE_OFFSET = "file_offset",
        MAPPING = "mapping",
    }
}

columns! {
    mod ran { MENTION = "mention", NS = "ns" }
}

/// Selects the stalls to read. The default accepts every stall that is not voluntary.
#[derive(Clone, Debug, Default)]
pub struct StallFilter {
    pub kind: Option<StallKind>,
    pub reason: Option<StallReason>,
    /// The least lateness, as of [`StallRecord::late_ns`].
    pub min_late_ns: u64,
    pub threads: Option<HashSet<ThreadKey>>,
    /// Stalls that overlap this range.
    pub during: Option<Range<MonoNs>>,
    /// Accepts voluntary stalls, too.
    pub include_voluntary: bool,
    /// Only waits for a lock: one with an address, one of the kernel whose owner is known, and what means one.
    pub for_locks: bool,
    /// Only stalls of threads that worked for the trace with this id, as of [`TraceIds::trace_id`].
    pub trace: Option<String>,
}

/// The part of a stall that a filter needs.
struct Head {
    id: i64,
    thread: ThreadKey,
    reason: StallReason,
    flags: i64,
    start: MonoNs,
    lateness: Lateness,
    user: Option<u32>,
    kernel: Option<u32>,
    meaning: Option<Arc<Meaning>>,
}

impl Head {
    /// A wait with a meaning is voluntary if the thread is idle in it; one without is as the recorder
    /// classified it. The recorder alone knows by how much a timeout may be overslept: the slack of timers is
    /// not in the file. So a wait for a voluntary reason that it took for a late one stays that.
    fn is_voluntary(&self) -> bool {
        let recorded = self.flags & flag::VOLUNTARY != 0;
        match &self.meaning {
            Some(meaning) => meaning.idle && (recorded || !self.blocked_voluntarily()),
            None => recorded,
        }
    }

    fn blocked_voluntarily(&self) -> bool {
        matches!(self.reason, StallReason::Blocked(reason) if reason.is_voluntary())
    }

    /// With its meaning, which can make a wait with a timeout one for a lock.
    fn with_meaning(mut self, reader: &Reader) -> Self {
        let Some(meanings) = reader.meanings() else { return self };
        let is_wait = match self.reason {
            StallReason::Blocked(_) => true,
            // A time slice of a wait means what the wait means, even if it waited for a CPU for longer.
            StallReason::Runnable => meanings.wait_of(self.id.cast_unsigned()).is_some(),
            _ => false,
        };
        if is_wait {
            let stack = |node: Option<u32>| node.map(|node| StackId(u64::from(node)));
            let meaning =
                meanings.of_stall(self.id.cast_unsigned(), self.thread, stack(self.user), stack(self.kernel));
            self.meaning = meaning.filter(|_| self.flags & flag::FAULT == 0).cloned();
            self.lateness.is_lock |= self.meaning.as_ref().is_some_and(|meaning| !meaning.idle);
        }
        self
    }
}

impl StallFilter {
    fn accepts(&self, head: &Head) -> bool {
        let end = MonoNs(head.start.0.saturating_add(head.lateness.duration_ns));
        self.kind.is_none_or(|kind| kind == kind_from_flags(head.flags))
            && self.reason.is_none_or(|reason| reason == head.reason)
            && head.lateness.late_ns() >= self.min_late_ns
            && self.threads.as_ref().is_none_or(|threads| threads.contains(&head.thread))
            && self.during.as_ref().is_none_or(|range| head.start < range.end && end > range.start)
            && (self.include_voluntary || !head.is_voluntary())
            && (!self.for_locks || head.lateness.is_lock)
    }
}

/// Stalls in the order of their start.
pub struct Stalls<'r> {
    reader: &'r Reader,
    record: CachedStatement<'r>,
    details: Details<'r>,
    ids: std::vec::IntoIter<(MonoNs, i64)>,
    most: u64,
}

/// Reads single stalls: a row with what other tables have of it, and those of which a stall can have several or
/// hardly one has any.
struct Details<'r> {
    reader: &'r Reader,
    ran_instead: CachedStatement<'r>,
    fault: CachedStatement<'r>,
}

impl<'r> Stalls<'r> {
    pub(crate) fn new(reader: &'r Reader, filter: &StallFilter) -> SqlResult<Self> {
        let mut ids = Vec::new();
        let of_trace = filter.trace.as_deref().map(|trace| stalls_of_trace(reader, trace)).transpose()?;
        each_head(reader, |head| {
            let is_of_trace = of_trace.as_ref().is_none_or(|stalls| stalls.contains(&head.id));
            if is_of_trace && filter.accepts(&head) {
                ids.push((head.start, head.id));
            }
        })?;
        ids.sort_unstable();
        Self::with_ids(reader, ids)
    }

    pub(crate) fn one(reader: &'r Reader, id: u64) -> SqlResult<Self> {
        let id = i64::try_from(id).unwrap_or(0);
        let found: i64 = reader
            .connection()
            .prepare_cached("SELECT count(*) FROM stall WHERE id = ?")?
            .query_row([id], |row| row.get(0))?;
        Self::with_ids(reader, if found == 1 { vec![(MonoNs(0), id)] } else { vec![] })
    }

    fn with_ids(reader: &'r Reader, ids: Vec<(MonoNs, i64)>) -> SqlResult<Self> {
        Ok(Stalls {
            reader,
            record: reader.connection().prepare_cached(&format!("{} WHERE stall.id = ?", select_whole()))?,
            details: Details::new(reader)?,
            most: ids.len() as u64,
            ids: ids.into_iter(),
        })
    }

    fn read(&mut self, id: i64) -> SqlResult<StallRecord> {
        self.record.query_row([id], |row| self.details.read(row))
    }
}

impl<'r> Details<'r> {
    fn new(reader: &'r Reader) -> SqlResult<Self> {
        let connection = reader.connection();
        Ok(Details {
            reader,
            ran_instead: connection.prepare_cached(&format!(
                "SELECT {} FROM stall_ran WHERE stall = ? ORDER BY position",
                ran::LIST
            ))?,
            fault: connection
                .prepare_cached(&format!("SELECT {} FROM stall_fault WHERE stall = ?", fault::LIST))?,
        })
    }

    /// The stall of a row of [`select_whole`].
    fn read(&mut self, row: &Row<'_>) -> SqlResult<StallRecord> {
        let reader = self.reader;
        let id: i64 = row.get(head::ID)?;
        let (mut record, flags) = record_from_row(reader, id, row)?;
        let (binding_at, file_at) = (rest::END, rest::END + binding::END);
        let peer_at = file_at + file::END;
        let word_at = peer_at + peer::END;
        record.binding = binding_from_row(reader, row, binding_at)?;
        record.file = file_from_row(reader, row, file_at)?;
        record.peer = peer_from_row(reader, row, peer_at)?;
        record.word = word_from_row(reader, id.cast_unsigned(), row, word_at)?;
        record.owner_sample = owner_sample_from_row(reader, row, word_at + word::END)?;
        record.trace = trace_from_row(row, word_at + word::END + owner::END)?;
        if flags & flag::RAN_INSTEAD != 0 {
            let ran = self.ran_instead.query_map([id], |row| ran_from_row(reader, row, 0));
            record.ran_instead = ran.and_then(Iterator::collect)?;
        }
        if record.kind == StallKind::Fault {
            record.fault = self.fault.query_row([id], |row| fault_from_row(reader, row, 0)).optional()?;
        }
        Ok(record)
    }
}

impl Iterator for Stalls<'_> {
    type Item = Result<StallRecord>;

    fn next(&mut self) -> Option<Self::Item> {
        self.reader.read_row("stalls", self.most - self.ids.len() as u64, self.most);
        let (_, id) = self.ids.next()?;
        Some(self.read(id).map_err(|error| self.reader.failed(error)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.ids.size_hint()
    }
}

impl ExactSizeIterator for Stalls<'_> {}

/// Calls `found` for each stall in the order of their ids, and counts the late ones on the way.
///
/// Each table is read once, from its first row to its last: seven searches for each of a million stalls took a fifth
/// of a report.
pub(crate) fn each(reader: &Reader, mut found: impl FnMut(StallRecord)) -> SqlResult<()> {
    let beside = |table: &str, columns: &str| {
        reader.connection().prepare(&format!("SELECT stall, {columns} FROM {table} ORDER BY stall"))
    };
    let mut files = beside("stall_file", file::LIST)?;
    let mut peers = beside("stall_peer", peer::LIST)?;
    let mut words = beside("stall_word", word::LIST)?;
    let mut owners = beside("stall_owner", owner::LIST)?;
    let mut traces = beside("stall_trace", trace::LIST)?;
    let mut faults = beside("stall_fault", fault::LIST)?;
    let mut ran = reader
        .connection()
        .prepare(&format!("SELECT stall, {} FROM stall_ran ORDER BY stall, position", ran::LIST))?;
    let mut files = Beside::new(files.query([])?, |row| file_from_row(reader, row, 1));
    let mut peers = Beside::new(peers.query([])?, |row| peer_from_row(reader, row, 1));
    let mut words = Beside::new(words.query([])?, |row| word_from_row(reader, unsigned(row, 0)?, row, 1));
    let mut traces = Beside::new(traces.query([])?, |row| trace_from_row(row, 1));
    let mut owners = Beside::new(owners.query([])?, |row| owner_sample_from_row(reader, row, 1));
    let mut faults = Beside::new(faults.query([])?, |row| fault_from_row(reader, row, 1));
    let mut ran = Beside::new(ran.query([])?, |row| ran_from_row(reader, row, 1));
    let bindings = all_bindings(reader)?;
    let sql = format!("SELECT {}, {} FROM stall ORDER BY stall.id", head::LIST, rest::LIST);
    let mut statement = reader.connection().prepare(&sql)?;
    let mut rows = statement.query([])?;
    let mut late = LateStalls::default();
    let most = reader.most_stalls()?;
    for at in 0.. {
        let Some(row) = rows.next()? else { break };
        reader.read_row("stalls", at, most);
        let id: i64 = row.get(head::ID)?;
        let (mut stall, flags) = record_from_row(reader, id, row)?;
        let user: Option<u32> = row.get(head::USER_STACK)?;
        stall.binding = user.and_then(|user| bindings.get(&user)).cloned();
        stall.file = files.of(id)?.flatten();
        stall.peer = peers.of(id)?.flatten();
        stall.word = words.of(id)?.flatten();
        stall.owner_sample = owners.of(id)?.flatten();
        stall.trace = traces.of(id)?.flatten();
        if flags & flag::RAN_INSTEAD != 0 {
            while let Some(one) = ran.of(id)? {
                stall.ran_instead.push(one);
            }
        }
        if stall.kind == StallKind::Fault {
            stall.fault = faults.of(id)?;
        }
        if !stall.voluntary {
            *late.entry(stall.thread).or_default() += 1;
        }
        found(stall);
    }
    reader.keep_late_stalls(late);
    Ok(())
}

/// The rows of a table in the order of their stalls, which are in the first column, read beside the stalls.
struct Beside<'s, T, R> {
    rows: Rows<'s>,
    read: R,
    /// The row that was read last and not yet taken, with its stall.
    next: Option<(i64, T)>,
    /// A statement that is asked for a row after its last one starts again.
    has_ended: bool,
}

impl<'s, T, R: Fn(&Row<'_>) -> SqlResult<T>> Beside<'s, T, R> {
    fn new(rows: Rows<'s>, read: R) -> Self {
        Beside { rows, read, next: None, has_ended: false }
    }

    /// Takes the next row of a stall. Stalls are asked for in their order.
    fn of(&mut self, stall: i64) -> SqlResult<Option<T>> {
        while !self.has_ended && self.next.as_ref().is_none_or(|(at, _)| *at < stall) {
            self.next = None;
            match self.rows.next()? {
                // Of a part of a recording, most rows are of stalls before and behind it.
                Some(row) if row.get::<_, i64>(0)? < stall => {}
                Some(row) => self.next = Some((row.get(0)?, (self.read)(row)?)),
                None => self.has_ended = true,
            }
        }
        Ok(self.next.take_if(|(at, _)| *at == stall).map(|(_, row)| row))
    }
}

/// What the stacks of stalls bound at first calls, by stack.
fn all_bindings(reader: &Reader) -> SqlResult<FastMap<u32, BoundAtFirstCall>> {
    let sql = format!("SELECT stack, {} FROM binding", binding::LIST);
    let mut statement = reader.connection().prepare(&sql)?;
    let mut rows = statement.query([])?;
    let mut bindings = FastMap::default();
    while let Some(row) = rows.next()? {
        if let Some(found) = binding_from_row(reader, row, 1)? {
            bindings.insert(row.get(0)?, found);
        }
    }
    Ok(bindings)
}

/// Each thread's stalls that are not voluntary.
pub(crate) fn late_by_thread(reader: &Reader) -> SqlResult<LateStalls> {
    let mut late = LateStalls::default();
    each_head(reader, |head| {
        if !head.is_voluntary() {
            *late.entry(head.thread).or_default() += 1;
        }
    })?;
    Ok(late)
}

/// All columns of stalls, with those of other tables in the order in which [`Details::read`] takes them.
fn select_whole() -> String {
    format!(
        "SELECT {} FROM stall LEFT JOIN binding ON binding.stack = user_stack
             LEFT JOIN stall_file ON stall_file.stall = stall.id
             LEFT JOIN stall_peer ON stall_peer.stall = stall.id
             LEFT JOIN stall_word ON stall_word.stall = stall.id
             LEFT JOIN stall_owner ON stall_owner.stall = stall.id
             LEFT JOIN stall_trace ON stall_trace.stall = stall.id",
        [head::LIST, rest::LIST, binding::LIST, file::LIST, peer::LIST, word::LIST, owner::LIST, trace::LIST]
            .join(", ")
    )
}

fn each_head(reader: &Reader, mut found: impl FnMut(Head)) -> SqlResult<()> {
    let mut heads = reader.connection().prepare(&format!("SELECT {} FROM stall", head::LIST))?;
    let mut rows = heads.query([])?;
    while let Some(row) = rows.next()? {
        found(head_from_row(row)?.with_meaning(reader));
    }
    Ok(())
}

fn stalls_of_trace(reader: &Reader, trace: &str) -> SqlResult<HashSet<i64>> {
    let mut found = reader.connection().prepare("SELECT stall FROM stall_trace WHERE trace_id = ?")?;
    found.query_map([trace], |row| row.get(0))?.collect()
}

fn kind_from_flags(flags: i64) -> StallKind {
    if flags & flag::FAULT == 0 { StallKind::OffCpu } else { StallKind::Fault }
}

/// From a row that starts with the columns of `head`.
fn head_from_row(row: &Row<'_>) -> SqlResult<Head> {
    let reason = coded(row, head::REASON_CODE, StallReason::from_code)?;
    Ok(Head {
        id: row.get(head::ID)?,
        thread: ThreadKey(row.get(head::THREAD)?),
        reason,
        flags: row.get(head::FLAGS)?,
        start: MonoNs(unsigned(row, head::START_NS)?),
        lateness: Lateness {
            duration_ns: unsigned(row, head::DURATION_NS)?,
            blocked_ns: unsigned(row, head::BLOCKED_NS)?,
            asked_ns: optional_unsigned(row, head::ASKED_NS)?,
            reason,
            is_lock: optional_bits(row, head::LOCK_ADDRESS)?.is_some(),
        },
        user: row.get(head::USER_STACK)?,
        kernel: row.get(head::KERNEL_STACK)?,
        meaning: None,
    })
}

/// A record without the columns of other tables, and its flags.
fn record_from_row(reader: &Reader, id: i64, row: &Row<'_>) -> SqlResult<(StallRecord, i64)> {
    let head = head_from_row(row)?.with_meaning(reader);
    let (pid, tid) = reader.process_and_thread(head.thread)?;
    let record = StallRecord {
        id: id as u64,
        thread: head.thread,
        pid,
        tid,
        comm: reader.shared_text(row.get(rest::COMM)?)?.unwrap_or_default(),
        kind: kind_from_flags(head.flags),
        reason: head.reason,
        voluntary: head.is_voluntary(),
        open: head.flags & flag::OPEN != 0,
        start: head.start,
        end: MonoNs(head.start.0.saturating_add(head.lateness.duration_ns)),
        blocked_ns: head.lateness.blocked_ns,
        runnable_ns: unsigned(row, rest::RUNNABLE_NS)?,
        syscall: reader.shared_text(row.get(rest::SYSCALL)?)?,
        cpu: row.get(rest::CPU)?,
        priority: row.get(rest::PRIORITY)?,
        user: reader.optional_stack(head.user)?,
        kernel: reader.optional_stack(head.kernel)?,
        waker: waker_from_row(reader, head.flags, row)?,
        lock: lock_from_row(reader, row)?,
        owner_sample: None,
        ran_instead: Vec::new(),
        fault: None,
        asked_ns: head.lateness.asked_ns,
        binding: None,
        file: None,
        peer: None,
        word: None,
        trace: None,
        wait_id: reader.meanings().and_then(|meanings| meanings.wait_of(id.cast_unsigned())),
        meaning: head.meaning,
    };
    Ok((record, head.flags))
}

fn waker_from_row(reader: &Reader, flags: i64, row: &Row<'_>) -> SqlResult<Option<WakerRecord>> {
    let thread: Option<u32> = row.get(rest::WAKER)?;
    if thread.is_none() && flags & flag::WOKEN_BY_INTERRUPT == 0 {
        return Ok(None);
    }
    Ok(Some(WakerRecord {
        thread: thread.map(|mention| reader.mention(mention)).transpose()?,
        user: reader.optional_stack(row.get(rest::WAKER_USER_STACK)?)?,
        kernel: reader.optional_stack(row.get(rest::WAKER_KERNEL_STACK)?)?,
    }))
}

// Of these rows, the columns of the table begin at `first`.

fn ran_from_row(reader: &Reader, row: &Row<'_>, first: usize) -> SqlResult<(ThreadRef, u64)> {
    Ok((reader.mention(row.get(first + ran::MENTION)?)?, unsigned(row, first + ran::NS)?))
}

fn fault_from_row(reader: &Reader, row: &Row<'_>, first: usize) -> SqlResult<Fault> {
    let access: Option<String> = row.get(first + fault::ACCESS)?;
    let mapping: Option<String> = row.get(first + fault::MAPPING)?;
    Ok(Fault {
        address: bits(row, first + fault::ADDRESS)?,
        access: access.and_then(|name| Access::from_name(&name)),
        major: row.get(first + fault::MAJOR)?,
        mapping: mapping.and_then(|name| Mapping::from_name(&name)),
        file: reader.text(row.get(first + fault::FILE)?)?,
        file_offset: optional_bits(row, first + fault::FILE_OFFSET)?,
    })
}

fn binding_from_row(reader: &Reader, row: &Row<'_>, first: usize) -> SqlResult<Option<BoundAtFirstCall>> {
    let Some(depth) = row.get::<_, Option<u32>>(first + binding::DEPTH)? else { return Ok(None) };
    let text = |column| reader.text(row.get(first + column)?);
    let (symbol, library) = (text(binding::SYMBOL)?, text(binding::LIBRARY)?);
    Ok(Some(BoundAtFirstCall { depth: depth as usize, symbol, library }))
}

fn file_from_row(reader: &Reader, row: &Row<'_>, first: usize) -> SqlResult<Option<WaitedFile>> {
    let offset = optional_bits(row, first + file::OFFSET)?;
    Ok(reader.text(row.get(first + file::PATH)?)?.map(|path| WaitedFile { path, offset }))
}

fn peer_from_row(reader: &Reader, row: &Row<'_>, first: usize) -> SqlResult<Option<Box<Peer>>> {
    let named = |column| Ok::<_, rusqlite::Error>(row.get_ref(first + column)?.as_str_or_null()?);
    let kind = named(peer::KIND)?.and_then(PeerKind::from_name);
    let awaited = named(peer::AWAITED)?.and_then(Awaited::from_name);
    let (Some(kind), Some(awaited)) = (kind, awaited) else { return Ok(None) };
    let address = |column| {
        let text = reader.text(row.get(first + column)?)?;
        Ok::<_, rusqlite::Error>(text.and_then(|text| text.parse().ok()))
    };
    let process = reader.text(row.get(first + peer::COMM)?)?;
    let pid = row.get(first + peer::PID)?;
    Ok(Some(Box::new(Peer {
        kind,
        awaited,
        role: named(peer::ROLE)?.and_then(Role::from_name),
        asked: row.get(first + peer::ASKED)?,
        local: address(peer::LOCAL)?,
        remote: address(peer::REMOTE)?,
        inode: optional_bits(row, first + peer::INODE)?.unwrap_or_default(),
        by_child: row.get::<_, Option<bool>>(first + peer::BY_CHILD)?.unwrap_or_default(),
        process: process.map(|comm| PeerProcess { pid, comm }),
    })))
}

fn word_from_row(reader: &Reader, stall: u64, row: &Row<'_>, first: usize) -> SqlResult<Option<WaitWord>> {
    let Some(value) = optional_bits(row, first + word::VALUE)? else { return Ok(None) };
    let symbol = reader.text(row.get(first + word::SYMBOL)?)?.unwrap_or_default();
    let module = reader.text(row.get(first + word::MODULE)?)?.unwrap_or_default();
    let text = reader.meanings().and_then(|meanings| meanings.word_text(stall)).cloned();
    Ok(Some(WaitWord { source: Arc::new(WordSource { symbol, module }), value, text }))
}

fn trace_from_row(row: &Row<'_>, first: usize) -> SqlResult<Option<TraceIds>> {
    let text = |column| Ok::<_, rusqlite::Error>(row.get_ref(first + column)?.as_str_or_null()?);
    let ids = text(trace::TRACE_ID)?.zip(text(trace::SPAN_ID)?);
    Ok(ids.and_then(|(trace, span)| TraceIds::from_hex(trace, span)))
}

fn lock_from_row(reader: &Reader, row: &Row<'_>) -> SqlResult<Option<LockRecord>> {
    let Some(address) = optional_bits(row, head::LOCK_ADDRESS)? else { return Ok(None) };
    let owner: Option<u32> = row.get(rest::LOCK_OWNER)?;
    let owner = owner.map(|mention| reader.mention(mention)).transpose()?;
    Ok(Some(LockRecord { address, owner }))
}

fn owner_sample_from_row(
    reader: &Reader,
    row: &Row<'_>,
    first: usize,
) -> SqlResult<Option<(MonoNs, ResolvedStack)>> {
    let Some(at) = optional_unsigned(row, first + owner::AT_NS)? else { return Ok(None) };
    let stack = reader.optional_stack(row.get(first + owner::STACK)?)?;
    Ok(stack.map(|stack| (MonoNs(at), stack)))
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
            user: None,
            kernel: None,
            meaning: None,
        }
    }

    #[test]
    fn default_filter_refuses_only_voluntary_stalls() {
        let filter = StallFilter::default();
        assert!(filter.accepts(&head(0, 0, 0)));
        assert!(!filter.accepts(&head(0, 0, flag::VOLUNTARY)));
        let all = StallFilter { include_voluntary: true, ..filter };
        assert!(all.accepts(&head(0, 0, flag::VOLUNTARY)));
    }

    #[test]
    fn meaning_decides_what_is_voluntary() {
        let head = |idle, reason, asked_ns, flags| {
            let mut head = head(0, 100, flags);
            head.reason = StallReason::Blocked(reason);
            let (name, source) = ("lock".into(), wallprof_model::MeaningSource::Wakers);
            head.meaning = Some(Arc::new(Meaning { name, software: None, idle, holder: true, source }));
            head.lateness.reason = StallReason::Blocked(reason);
            head.lateness.asked_ns = asked_ns;
            head.lateness.is_lock = !idle;
            head
        };
        assert!(!head(false, Reason::Poll, None, flag::VOLUNTARY).is_voluntary());
        assert!(head(true, Reason::Pipe, None, 0).is_voluntary());
        assert!(head(true, Reason::Poll, Some(99), flag::VOLUNTARY).is_voluntary(), "late by its slack");
        assert!(!head(true, Reason::Poll, Some(40), 0).is_voluntary(), "overslept");
        assert_eq!(head(false, Reason::Wait, Some(40), 0).lateness.late_ns(), 100, "a timeout of a lock");
    }

    #[test]
    fn range_accepts_overlapping_stalls() {
        let filter = StallFilter { during: Some(MonoNs(100)..MonoNs(200)), ..StallFilter::default() };
        for (start, duration_ns, expected) in
            [(0, 100, false), (0, 101, true), (150, 1, true), (199, 900, true), (200, 5, false)]
        {
            assert_eq!(filter.accepts(&head(start, duration_ns, 0)), expected, "{start} + {duration_ns}");
        }
    }

    #[test]
    fn each_condition_can_refuse_a_stall() {
        let refusing = [
            StallFilter { kind: Some(StallKind::Fault), ..StallFilter::default() },
            StallFilter { reason: Some(StallReason::Preempted), ..StallFilter::default() },
            StallFilter { min_late_ns: 11, ..StallFilter::default() },
            StallFilter { for_locks: true, ..StallFilter::default() },
            StallFilter { threads: Some(HashSet::from([ThreadKey(4)])), ..StallFilter::default() },
        ];
        let mut stall = head(0, 10, 0);
        stall.lateness.is_lock = false;
        assert!(StallFilter::default().accepts(&stall));
        for filter in refusing {
            assert!(!filter.accepts(&stall), "{filter:?}");
        }
    }
}
