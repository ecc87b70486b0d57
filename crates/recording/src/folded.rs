// SPDX-License-Identifier: Apache-2.0
//! The stalls that the size budget folded into counts.

use rusqlite::Result as SqlResult;
use wallprof_model::profile::FoldedStalls;
use wallprof_model::{StallReason, ThreadKey};

use crate::reader::Reader;
use crate::row::{coded, unsigned};

pub(crate) fn read(reader: &Reader) -> SqlResult<Vec<FoldedStalls>> {
    reader.collect(
        "SELECT thread, reason_code, voluntary, sum(count) AS count, sum(total_ns) AS total_ns,
             max(max_ns) AS max_ns
         FROM folded GROUP BY thread, reason_code, voluntary ORDER BY thread, reason_code, voluntary",
        |row| {
            Ok(FoldedStalls {
                thread: ThreadKey(row.get("thread")?),
                reason: coded(row, "reason_code", StallReason::from_code)?,
                voluntary: row.get("voluntary")?,
                count: unsigned(row, "count")?,
                total_ns: unsigned(row, "total_ns")?,
                max_ns: unsigned(row, "max_ns")?,
            })
        },
    )
}
