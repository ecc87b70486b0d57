// SPDX-License-Identifier: Apache-2.0
//! Effects of the kernel on threads: delays on their behalf, functions called on other CPUs, CPU quotas that
//! were used up.

use rusqlite::Result as SqlResult;
use wallprof_model::event::DelayKind;
use wallprof_model::profile::{CrossCallRow, KernelDelayRow, ThrottledRow};
use wallprof_model::{MonoNs, ThreadKey};

use crate::reader::Reader;
use crate::row::{named, nonzero, unsigned};

/// Oldest first.
pub(crate) fn delays(reader: &Reader) -> SqlResult<Vec<KernelDelayRow>> {
    let sql = "SELECT thread, kind, start_ns, duration_ns FROM kernel_delay ORDER BY start_ns, thread, kind";
    reader.collect(sql, |row| {
        let (start, duration_ns) = (unsigned(row, "start_ns")?, unsigned(row, "duration_ns")?);
        Ok(KernelDelayRow {
            thread: ThreadKey(row.get("thread")?),
            kind: named(row, "kind", DelayKind::from_name)?,
            start: MonoNs(start),
            end: MonoNs(start.saturating_add(duration_ns)),
        })
    })
}

/// By caller.
pub(crate) fn cross_calls(reader: &Reader) -> SqlResult<Vec<CrossCallRow>> {
    let sql = "SELECT caller, syscall, function, sum(count) AS count FROM cross_call
         GROUP BY caller, syscall, function ORDER BY caller, syscall, function";
    reader.collect(sql, |row| {
        Ok(CrossCallRow {
            caller: reader.mention_to_keep(row.get("caller")?)?,
            syscall: reader.text_to_keep(nonzero(row, "syscall")?)?,
            function: reader.text_to_keep(nonzero(row, "function")?)?,
            count: unsigned(row, "count")?,
        })
    })
}

/// By the start of the interval.
pub(crate) fn throttled(reader: &Reader) -> SqlResult<Vec<ThrottledRow>> {
    let sql = "SELECT pid, cgroup, quota_ns, period_ns, from_ns, to_ns, count, total_ns FROM throttled
         ORDER BY from_ns, pid, cgroup";
    reader.collect(sql, |row| {
        Ok(ThrottledRow {
            pid: row.get("pid")?,
            cgroup: reader.text_to_keep(row.get("cgroup")?)?.unwrap_or_default(),
            quota_ns: unsigned(row, "quota_ns")?,
            period_ns: unsigned(row, "period_ns")?,
            from: MonoNs(unsigned(row, "from_ns")?),
            to: MonoNs(unsigned(row, "to_ns")?),
            count: unsigned(row, "count")?,
            total_ns: unsigned(row, "total_ns")?,
        })
    })
}
