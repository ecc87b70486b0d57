// SPDX-License-Identifier: Apache-2.0
//! Writes pending rows and sums in one transaction.

use rusqlite::{Connection, Result, ToSql, params};
use wallprof_model::histogram::Cell;
use wallprof_model::{CallFrame, Mark, MonoNs};

use crate::file_sums::FileSums;
use crate::intern::clipped;
use crate::ledger;
use crate::pending::{Pending, StallRow};
use crate::schema::flag;
use crate::spans;

/// The progress of a recording with this transaction.
#[derive(Clone, Copy)]
pub(crate) struct Progress {
    pub last: MonoNs,
    /// Set once, when the recording ends.
    pub end: Option<MonoNs>,
    /// Sums without a second of their own are filed under this: a second in a bounded recording, else 0.
    pub flush_second: u32,
}

/// `known`: sums that the file has.
pub(crate) fn write(
    to: &Connection,
    pending: &Pending,
    known: Option<&FileSums>,
    progress: Progress,
) -> Result<()> {
    write_names(to, pending)?;
    write_threads(to, pending)?;
    write_code(to, pending)?;
    write_stacks(to, pending)?;
    write_ledger(to, pending)?;
    write_latency(to, pending, known, progress.flush_second)?;
    write_samples(to, pending)?;
    write_stalls(to, pending)?;
    write_folded(to, pending, progress.flush_second)?;
    write_interrupts(to, pending, progress.flush_second)?;
    write_intrusions(to, pending, progress.flush_second)?;
    write_kernel_delays(to, pending, progress.flush_second)?;
    spans::write(to, pending, known, progress.flush_second)?;
    write_calls(to, pending)?;
    write_counters(to, pending)?;
    write_losses(to, pending, progress.flush_second)?;
    write_progress(to, progress)
}

fn write_names(to: &Connection, pending: &Pending) -> Result<()> {
    let mut clock = to.prepare_cached("INSERT OR REPLACE INTO clock (mono_ns, epoch_ns) VALUES (?, ?)")?;
    for anchor in &pending.clock {
        clock.execute([time(anchor.mono.0), time(anchor.epoch.0)])?;
    }
    let mut text = to.prepare_cached("INSERT INTO text (id, text) VALUES (?, ?)")?;
    for (id, content) in &pending.texts {
        text.execute(params![id, content])?;
    }
    let mut event = to.prepare_cached("INSERT OR REPLACE INTO event (id, name) VALUES (?, ?)")?;
    for (index, name) in &pending.events {
        event.execute(params![index, name])?;
    }
    Ok(())
}

fn write_threads(to: &Connection, pending: &Pending) -> Result<()> {
    let mut names = to.prepare_cached(
        "INSERT INTO thread (id, tid, pid, ns_tid, ns_pid, start_boot_ns, comm, process, cgroup,
             kernel_thread, container, pod)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
         ON CONFLICT (id) DO UPDATE SET tid = excluded.tid, pid = excluded.pid, ns_tid = excluded.ns_tid,
             ns_pid = excluded.ns_pid, start_boot_ns = excluded.start_boot_ns, comm = excluded.comm,
             process = excluded.process, cgroup = excluded.cgroup, kernel_thread = excluded.kernel_thread,
             container = excluded.container, pod = excluded.pod",
    )?;
    let mut span = to.prepare_cached(
        "UPDATE thread SET start_ns = coalesce(?2, start_ns), end_ns = coalesce(?3, end_ns) WHERE id = ?1",
    )?;
    for (id, change) in &pending.threads {
        if let Some(row) = &change.names {
            let (start, comm, process) = (time(row.start_boot_ns), row.comm, row.process);
            names.execute(params![
                id,
                row.tid,
                row.pid,
                row.ns_tid,
                row.ns_pid,
                start,
                comm,
                process,
                row.cgroup,
                row.kernel_thread,
                row.container,
                row.pod
            ])?;
        }
        if change.start.is_some() || change.end.is_some() {
            span.execute(params![id, optional_time(change.start), optional_time(change.end)])?;
        }
    }
    let mut mention = to.prepare_cached(
        "INSERT INTO mention (id, thread, pid, tid, comm, title) VALUES (?, ?, ?, ?, ?, ?)",
    )?;
    for (id, row) in &pending.mentions {
        mention.execute(params![id, row.thread, row.pid, row.tid, row.comm, row.title])?;
    }
    Ok(())
}

fn write_code(to: &Connection, pending: &Pending) -> Result<()> {
    let mut module = to.prepare_cached("INSERT INTO module (id, path, build_id) VALUES (?, ?, ?)")?;
    for row in &pending.modules {
        module.execute(params![row.id, row.path, row.build_id])?;
    }
    let mut missing =
        to.prepare_cached("UPDATE module SET missing_build_id = ?, code_offset = ? WHERE id = ?")?;
    for row in &pending.missing_files {
        missing.execute(params![row.build_id, bits(row.code_offset), row.module])?;
    }
    let mut frame =
        to.prepare_cached("INSERT INTO frame (id, kind_code, module, address) VALUES (?, ?, ?, ?)")?;
    for row in &pending.frames {
        frame.execute(params![row.id, row.frame.kind as u8, row.module, bits(row.frame.address)])?;
    }
    let mut forget = to.prepare_cached("DELETE FROM line WHERE frame = ?")?;
    let mut line = to.prepare_cached(
        "INSERT INTO line (frame, depth, symbol, offset, file, line, inlined) VALUES (?, ?, ?, ?, ?, ?, ?)",
    )?;
    for (frame, rows) in &pending.lines {
        forget.execute([frame])?;
        for (depth, row) in rows.iter().enumerate() {
            let offset = row.offset.map(time);
            line.execute(params![frame, depth as i64, row.symbol, offset, row.file, row.line, row.inlined])?;
        }
    }
    Ok(())
}

fn write_stacks(to: &Connection, pending: &Pending) -> Result<()> {
    let mut node = to.prepare_cached("INSERT INTO node (id, parent, frame, is_stack) VALUES (?, ?, ?, 0)")?;
    for row in &pending.nodes {
        node.execute([row.id, row.parent, row.frame])?;
    }
    let mut mark = to.prepare_cached("UPDATE node SET is_stack = 1 WHERE id = ? AND NOT is_stack")?;
    for id in &pending.stacks {
        mark.execute([id])?;
    }
    let mut binding = to.prepare_cached(
        "INSERT OR REPLACE INTO binding (stack, depth, symbol, library) VALUES (?, ?, ?, ?)",
    )?;
    for (stack, row) in &pending.bindings {
        binding.execute(params![stack, row.depth, row.symbol, row.library])?;
    }
    let mut waker = to.prepare_cached(
        "INSERT INTO sample_waker (id, thread, interrupt, user_stack, kernel_stack) VALUES (?, ?, ?, ?, ?)",
    )?;
    for (id, row) in &pending.wakers {
        waker.execute(params![id, row.thread, row.interrupt, row.user, row.kernel])?;
    }
    Ok(())
}

fn write_ledger(to: &Connection, pending: &Pending) -> Result<()> {
    let mut upsert = to.prepare_cached(ledger::statement_that_adds())?;
    for ((second, thread), delta) in &pending.ledger {
        upsert.raw_bind_parameter(1, second)?;
        upsert.raw_bind_parameter(2, thread)?;
        for (position, number) in (3..).zip(ledger::numbers(delta)) {
            upsert.raw_bind_parameter(position, sum(number))?;
        }
        upsert.raw_execute()?;
    }
    Ok(())
}

fn write_latency(
    to: &Connection,
    pending: &Pending,
    known: Option<&FileSums>,
    flush_second: u32,
) -> Result<()> {
    let mut upsert = to.prepare_cached(
        "INSERT INTO latency_cell (flush_second, thread, metric_code, bucket, count, total_ns, max_ns)
         VALUES (?, ?, ?, ?, ?, ?, ?)
         ON CONFLICT DO UPDATE SET count = count + excluded.count, total_ns = total_ns + excluded.total_ns,
             max_ns = max(max_ns, excluded.max_ns)",
    )?;
    let mut replace = to.prepare_cached(
        "INSERT OR REPLACE INTO latency_cell (flush_second, thread, metric_code, bucket, count, total_ns,
             max_ns)
         VALUES (?, ?, ?, ?, ?, ?, ?)",
    )?;
    for (key, cell) in &pending.latency {
        let sum = known.and_then(|known| known.latency_with(*key, cell));
        let statement = if sum.is_some() { &mut replace } else { &mut upsert };
        let (thread, metric, bucket) = key;
        let [count, total, max] = sum.unwrap_or_else(|| cell_numbers(cell));
        statement.execute(params![flush_second, thread, metric, bucket, count, total, max])?;
    }
    Ok(())
}

fn write_samples(to: &Connection, pending: &Pending) -> Result<()> {
    let mut upsert = to.prepare_cached(
        "INSERT INTO sample (second, thread, state_or_event, user_stack, kernel_stack, waker, weight, count)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?)
         ON CONFLICT DO UPDATE SET weight = weight + excluded.weight, count = count + excluded.count",
    )?;
    for (key, total) in &pending.samples {
        let (weight, count) = (sum(total.weight), sum(total.count));
        upsert.execute(params![
            key.second,
            key.thread,
            key.state_or_event,
            key.user,
            key.kernel,
            key.waker,
            weight,
            count
        ])?;
    }
    Ok(())
}

fn write_stalls(to: &Connection, pending: &Pending) -> Result<()> {
    let mut insert = to.prepare_cached(INSERT_STALL)?;
    let mut fault = to.prepare_cached(
        "INSERT OR REPLACE INTO stall_fault (stall, address, access, major, file, file_offset, mapping)
         VALUES (?, ?, ?, ?, ?, ?, ?)",
    )?;
    let mut file =
        to.prepare_cached("INSERT OR REPLACE INTO stall_file (stall, path, offset) VALUES (?, ?, ?)")?;
    let mut peer = to.prepare_cached(
        "INSERT OR REPLACE INTO stall_peer
         (stall, kind, awaited, role, asked, local, remote, inode, by_child, pid, comm)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )?;
    let mut word = to.prepare_cached(
        "INSERT OR REPLACE INTO stall_word (stall, symbol, module, value) VALUES (?, ?, ?, ?)",
    )?;
    let mut trace =
        to.prepare_cached("INSERT OR REPLACE INTO stall_trace (stall, trace_id, span_id) VALUES (?, ?, ?)")?;
    let mut owner = to.prepare_cached(
        "INSERT OR REPLACE INTO stall_owner (stall, sampled_ns, owner_stack) VALUES (?, ?, ?)",
    )?;
    let mut forget = to.prepare_cached("DELETE FROM stall_ran WHERE stall = ?")?;
    let mut ran =
        to.prepare_cached("INSERT INTO stall_ran (stall, position, mention, ns) VALUES (?, ?, ?, ?)")?;
    for row in &pending.stalls {
        let id = time(row.id);
        insert_stall(&mut insert, id, row)?;
        if let Some((found, path)) = &row.fault {
            let access = found.access.map(|access| access.name());
            let offset = found.file_offset.map(bits);
            let mapping = found.mapping.map(|mapping| mapping.name());
            fault.execute(params![id, bits(found.address), access, found.major, path, offset, mapping])?;
        }
        if let Some((path, offset)) = row.file {
            file.execute(params![id, path, offset.map(bits)])?;
        }
        if let Some((found, [local, remote, comm])) = &row.peer {
            let (kind, awaited) = (found.kind.name(), found.awaited.name());
            let role = found.role.map(|role| role.name());
            let pid = found.process.as_ref().and_then(|process| process.pid);
            let (inode, by_child) = (bits(found.inode), found.by_child);
            peer.execute(params![
                id,
                kind,
                awaited,
                role,
                found.asked,
                local,
                remote,
                inode,
                by_child,
                pid,
                comm
            ])?;
        }
        if let Some((symbol, module, value)) = row.word {
            word.execute(params![id, symbol, module, bits(value)])?;
        }
        if let Some(ids) = row.stall.trace {
            trace.execute(params![id, ids.trace_id(), ids.span_id()])?;
        }
        if let Some(sample) = row.stall.owner_sample {
            owner.execute(params![id, time(sample.at.0), bits(sample.user.0)])?;
        }
        if row.replaces {
            forget.execute([id])?;
        }
        for (position, (mention, ns)) in row.ran_instead.iter().enumerate() {
            ran.execute(params![id, position as i64, mention, time(*ns)])?;
        }
    }
    Ok(())
}

const INSERT_STALL: &str = "INSERT OR REPLACE INTO stall (
    id, thread, comm, reason_code, flags, start_ns, duration_ns, blocked_ns, runnable_ns, asked_ns, syscall, cpu,
    user_stack, kernel_stack, waker, waker_user_stack, waker_kernel_stack, lock_address, lock_owner,
    priority
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";

fn insert_stall(insert: &mut rusqlite::Statement<'_>, id: i64, row: &StallRow) -> Result<()> {
    let stall = &row.stall;
    let waker = stall.waker.as_ref();
    let stack = |id: Option<wallprof_model::StackId>| id.map(|id| time(id.0));
    let columns: [&dyn ToSql; 20] = [
        &id,
        &stall.thread.0,
        &row.comm,
        &stall.reason.code(),
        &flags(row),
        &time(stall.start.0),
        &time(stall.end.0.saturating_sub(stall.start.0)),
        &time(stall.blocked_ns),
        &time(stall.runnable_ns),
        &stall.asked_ns.map(time),
        &row.syscall,
        &stall.cpu,
        &stack(stall.user),
        &stack(stall.kernel),
        &row.waker,
        &stack(waker.and_then(|waker| waker.user)),
        &stack(waker.and_then(|waker| waker.kernel)),
        &stall.lock.as_ref().map(|lock| bits(lock.address)),
        &row.lock_owner,
        &stall.priority,
    ];
    insert.execute(columns).map(drop)
}

fn flags(row: &StallRow) -> i64 {
    let stall = &row.stall;
    let woken_by_interrupt = stall.waker.as_ref().is_some_and(|waker| waker.thread.is_none());
    [
        (stall.voluntary, flag::VOLUNTARY),
        (stall.open, flag::OPEN),
        (stall.kind == wallprof_model::StallKind::Fault, flag::FAULT),
        (!row.ran_instead.is_empty(), flag::RAN_INSTEAD),
        (woken_by_interrupt, flag::WOKEN_BY_INTERRUPT),
    ]
    .into_iter()
    .filter_map(|(is_set, bit)| is_set.then_some(bit))
    .sum()
}

fn write_folded(to: &Connection, pending: &Pending, flush_second: u32) -> Result<()> {
    let mut upsert = to.prepare_cached(
        "INSERT INTO folded (flush_second, thread, reason_code, voluntary, count, total_ns, max_ns)
         VALUES (?, ?, ?, ?, ?, ?, ?)
         ON CONFLICT DO UPDATE SET count = count + excluded.count, total_ns = total_ns + excluded.total_ns,
             max_ns = max(max_ns, excluded.max_ns)",
    )?;
    for ((thread, reason, voluntary), cell) in &pending.folded {
        let [count, total, max] = cell_numbers(cell);
        upsert.execute(params![flush_second, thread, reason, voluntary, count, total, max])?;
    }
    Ok(())
}

fn write_interrupts(to: &Connection, pending: &Pending, flush_second: u32) -> Result<()> {
    let mut upsert = to.prepare_cached(
        "INSERT INTO interrupt (flush_second, cpu, kind, name, victim, count, total_ns, max_ns)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?)
         ON CONFLICT DO UPDATE SET count = count + excluded.count, total_ns = total_ns + excluded.total_ns,
             max_ns = max(max_ns, excluded.max_ns)",
    )?;
    for (key, cell) in &pending.interrupts {
        let [count, total, max] = cell_numbers(cell);
        let kind = key.kind.name();
        upsert.execute(params![flush_second, key.cpu, kind, key.name, key.victim, count, total, max])?;
    }
    Ok(())
}

fn write_intrusions(to: &Connection, pending: &Pending, flush_second: u32) -> Result<()> {
    let mut upsert = to.prepare_cached(
        "INSERT INTO intrusion (flush_second, cpu, kind, what, mention, allowed, count, total_ns, max_ns)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
         ON CONFLICT DO UPDATE SET count = count + excluded.count, total_ns = total_ns + excluded.total_ns,
             max_ns = max(max_ns, excluded.max_ns)",
    )?;
    for (key, cell) in &pending.intrusions {
        let [count, total, max] = cell_numbers(cell);
        let kind = key.kind.name();
        upsert.execute(params![
            flush_second,
            key.cpu,
            kind,
            key.what,
            key.mention,
            key.allowed,
            count,
            total,
            max
        ])?;
    }
    Ok(())
}

fn write_kernel_delays(to: &Connection, pending: &Pending, flush_second: u32) -> Result<()> {
    let mut delay = to.prepare_cached(
        "INSERT OR REPLACE INTO kernel_delay (flush_second, thread, kind, start_ns, duration_ns)
         VALUES (?, ?, ?, ?, ?)",
    )?;
    for row in &pending.kernel_delays {
        let duration_ns = row.end.0.saturating_sub(row.start.0);
        delay.execute(params![
            flush_second,
            row.thread.0,
            row.kind.name(),
            time(row.start.0),
            time(duration_ns)
        ])?;
    }
    let mut upsert = to.prepare_cached(
        "INSERT INTO cross_call (flush_second, caller, syscall, function, count) VALUES (?, ?, ?, ?, ?)
         ON CONFLICT DO UPDATE SET count = count + excluded.count",
    )?;
    for ((caller, syscall, function), count) in &pending.cross_calls {
        upsert.execute(params![flush_second, caller, syscall, function, sum(*count)])?;
    }
    let mut throttled = to.prepare_cached(
        "INSERT OR REPLACE INTO throttled (
             flush_second, pid, cgroup, from_ns, to_ns, quota_ns, period_ns, count, total_ns
         ) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )?;
    for (row, cgroup) in &pending.throttled {
        let [from, until, quota, period] = [row.from.0, row.to.0, row.quota_ns, row.period_ns].map(time);
        let (count, total) = (sum(row.count), sum(row.total_ns));
        throttled.execute(params![
            flush_second,
            row.pid,
            cgroup,
            from,
            until,
            quota,
            period,
            count,
            total
        ])?;
    }
    Ok(())
}

fn write_calls(to: &Connection, pending: &Pending) -> Result<()> {
    let mut upsert = to.prepare_cached(include_str!("../sql/add_to_call_path.sql"))?;
    let mut cell = to.prepare_cached(
        "INSERT INTO call_cell (path, bucket, count, total_ns, max_ns) VALUES (?, ?, ?, ?, ?)
         ON CONFLICT DO UPDATE SET count = count + excluded.count, total_ns = total_ns + excluded.total_ns,
             max_ns = max(max_ns, excluded.max_ns)",
    )?;
    for row in &pending.call_paths {
        let numbers = &row.numbers;
        let (frame, outside) = match row.frame {
            CallFrame::Code(frame) => (Some(frame), None),
            CallFrame::Outside(outside) => (None, Some(outside.code())),
        };
        let [min, max] = [numbers.min_ns, numbers.max_ns].map(|ns| (numbers.calls > 0).then_some(time(ns)));
        upsert.execute(params![
            row.thread,
            row.id,
            row.parent,
            frame,
            outside,
            sum(numbers.calls),
            sum(numbers.incomplete),
            sum(numbers.entered_before),
            sum(numbers.unwound),
            sum(numbers.self_ns),
            sum(numbers.total_ns),
            sum(numbers.complete_ns),
            min,
            max
        ])?;
        for (bucket, found) in numbers.latency.cells() {
            let [count, total, max] = cell_numbers(&found);
            cell.execute(params![row.id, bucket, count, total, max])?;
        }
    }
    if let Some(ns) = pending.call_resolution_ns {
        to.prepare_cached(
            "UPDATE recording SET call_resolution_ns = max(coalesce(call_resolution_ns, 0), ?)",
        )?
        .execute([time(ns)])?;
    }
    Ok(())
}

fn write_counters(to: &Connection, pending: &Pending) -> Result<()> {
    let mut series = to
        .prepare_cached("INSERT INTO counter_series (id, name, thread, kind, unit) VALUES (?, ?, ?, ?, ?)")?;
    for (id, counter) in &pending.counters {
        let thread = counter.thread.map(|thread| thread.0);
        series.execute(params![id, counter.name, thread, counter.kind.name(), counter.unit.name()])?;
    }
    let mut value =
        to.prepare_cached("INSERT OR REPLACE INTO counter (series, mono_ns, value) VALUES (?, ?, ?)")?;
    for (series, at, number) in &pending.counter_values {
        value.execute(params![series, time(at.0), number])?;
    }
    pending.marks.iter().try_for_each(|mark| write_mark(to, mark))
}

pub(crate) fn write_mark(to: &Connection, mark: &Mark) -> Result<()> {
    let row = params![time(mark.at.0), mark.duration_ns.map(time), clipped(&mark.text)];
    to.prepare_cached("INSERT INTO mark (mono_ns, duration_ns, text) VALUES (?, ?, ?)")?
        .execute(row)
        .map(drop)
}

fn write_losses(to: &Connection, pending: &Pending, flush_second: u32) -> Result<()> {
    let mut loss = to.prepare_cached(
        "INSERT INTO loss (flush_second, reason, count) VALUES (?, ?, ?)
             ON CONFLICT DO UPDATE SET count = count + excluded.count",
    )?;
    for (reason, count) in &pending.losses {
        loss.execute(params![flush_second, reason, sum(*count)])?;
    }
    let overhead = &pending.overhead;
    let [cpu, probe, runs] = [overhead.process_cpu_ns, overhead.probe_ns, overhead.probe_runs].map(sum);
    let [behind, tables] = [overhead.behind_ns, overhead.table_bytes].map(sum);
    to.prepare_cached(
        "INSERT INTO overhead (flush_second, process_cpu_ns, probe_ns, probe_runs, behind_ns, table_bytes) \
         VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET \
         process_cpu_ns = process_cpu_ns + excluded.process_cpu_ns, probe_ns = probe_ns + excluded.probe_ns, \
         probe_runs = probe_runs + excluded.probe_runs, behind_ns = behind_ns + excluded.behind_ns, \
         table_bytes = max(table_bytes, excluded.table_bytes)",
    )?
    .execute(params![flush_second, cpu, probe, runs, behind, tables])
    .map(drop)
}

fn write_progress(to: &Connection, progress: Progress) -> Result<()> {
    to.prepare_cached("UPDATE recording SET last_ns = ?, end_ns = ?")?
        .execute(params![time(progress.last.0), optional_time(progress.end)])
        .map(drop)
}

pub(crate) fn cell_numbers(cell: &Cell) -> [i64; 3] {
    [sum(cell.count), sum(cell.total_ns), sum(cell.max_ns)]
}

/// A value that is not added to others. SQLite's integers end at 2^63 - 1, 292 years of nanoseconds.
fn time(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn optional_time(at: Option<MonoNs>) -> Option<i64> {
    at.map(|at| time(at.0))
}

/// A value that is added to a row. It is cut at 2^53, more than a hundred days, so that a thousand absurd
/// values do not overflow the row.
fn sum(value: u64) -> i64 {
    value.min(1 << 53) as i64
}

/// All 64 bits of an address, as a negative number where the highest bit is set.
fn bits(value: u64) -> i64 {
    value as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_beyond_sqlites_range_saturate() {
        assert_eq!(time(u64::MAX), i64::MAX);
        assert_eq!(sum(u64::MAX), 1 << 53);
        assert_eq!(sum(7), 7);
        assert_eq!(bits(u64::MAX), -1);
    }
}
