// SPDX-License-Identifier: Apache-2.0
//! Interrupt time by CPU, interrupt and victim.

use rusqlite::Result as SqlResult;
use wallprof_model::ThreadKey;
use wallprof_model::event::InterruptKind;
use wallprof_model::profile::InterruptRow;

use crate::reader::Reader;
use crate::row::{named, nonzero, unsigned};

pub(crate) fn read(reader: &Reader) -> SqlResult<Vec<InterruptRow>> {
    reader.collect(
        "SELECT cpu, kind, name, victim, sum(count) AS count, sum(total_ns) AS total_ns, max(max_ns) AS max_ns
         FROM interrupt GROUP BY cpu, kind, name, victim ORDER BY cpu, kind, name, victim",
        |row| {
            Ok(InterruptRow {
                cpu: row.get("cpu")?,
                kind: named(row, "kind", InterruptKind::from_name)?,
                name: reader.text_to_keep(row.get("name")?)?.unwrap_or_default(),
                victim: nonzero(row, "victim")?.map(ThreadKey),
                count: unsigned(row, "count")?,
                total_ns: unsigned(row, "total_ns")?,
                max_ns: unsigned(row, "max_ns")?,
            })
        },
    )
}
