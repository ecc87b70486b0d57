//! The stalls that are waits, or time slices of one that waited for a CPU for longer, in the form in which the search for meanings reads them: without names, so that
//! a million takes about a second.

use rusqlite::{Result as SqlResult, Row};
use wallprof_model::{MonoNs, StackId, StallReason, ThreadKey, WaitRow};

use crate::reader::Reader;
use crate::row::{coded, columns, optional_unsigned, unsigned};
use crate::schema::flag;

columns! {
    mod wait {
        ID = "stall.id",
        THREAD = "stall.thread",
        REASON_CODE = "reason_code",
        FLAGS = "flags",
        START_NS = "stall.start_ns",
        DURATION_NS = "duration_ns",
        BLOCKED_NS = "blocked_ns",
        ASKED_NS = "asked_ns",
        USER_STACK = "user_stack",
        KERNEL_STACK = "kernel_stack",
        WAKER = "waker",
    }
}

pub(crate) fn each(reader: &Reader, mut found: impl FnMut(WaitRow)) -> SqlResult<()> {
    let sql = format!("SELECT {} FROM stall WHERE flags & ? = 0", wait::LIST);
    let mut statement = reader.connection().prepare(&sql)?;
    let mut rows = statement.query([flag::FAULT])?;
    while let Some(row) = rows.next()? {
        let wait = from_row(reader, row)?;
        let is_found = match wait.reason {
            StallReason::Blocked(_) => true,
            // A wait that was blocked for less time than it then waited for a CPU.
            StallReason::Runnable => wait.asked_ns.is_some() && wait.blocked_ns > 0,
            _ => false,
        };
        if is_found {
            found(wait);
        }
    }
    Ok(())
}

fn from_row(reader: &Reader, row: &Row<'_>) -> SqlResult<WaitRow> {
    let stack =
        |column| Ok::<_, rusqlite::Error>(row.get::<_, Option<u32>>(column)?.map(u64::from).map(StackId));
    let start = unsigned(row, wait::START_NS)?;
    let flags: i64 = row.get(wait::FLAGS)?;
    let mention: Option<u32> = row.get(wait::WAKER)?;
    Ok(WaitRow {
        id: unsigned(row, wait::ID)?,
        thread: ThreadKey(row.get(wait::THREAD)?),
        reason: coded(row, wait::REASON_CODE, StallReason::from_code)?,
        start: MonoNs(start),
        end: MonoNs(start.saturating_add(unsigned(row, wait::DURATION_NS)?)),
        blocked_ns: unsigned(row, wait::BLOCKED_NS)?,
        asked_ns: optional_unsigned(row, wait::ASKED_NS)?,
        open: flags & flag::OPEN != 0,
        user: stack(wait::USER_STACK)?,
        kernel: stack(wait::KERNEL_STACK)?,
        waker: mention.map(|mention| reader.mention_key(mention)).transpose()?.flatten(),
    })
}
