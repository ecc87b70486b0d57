// SPDX-License-Identifier: Apache-2.0
//! The stalls that are waits, those for a CPU included, in the form in which the search for meanings reads them:
//! without names, so that a million takes about a second.

use std::collections::HashMap;
use std::sync::Arc;

use rusqlite::{Result as SqlResult, Row};
use wallprof_model::event::{Awaited, Peer, PeerKind, Role};
use wallprof_model::{MonoNs, StackId, StallReason, ThreadKey, WaitRow, WaitWord, WordRow, WordSource};

use crate::reader::Reader;
use crate::row::{bits, coded, columns, optional_unsigned, unsigned};
use crate::schema::flag;

const MOST_SOURCES: usize = 256;

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
    let most = reader.most_stalls()?;
    for at in 0.. {
        let Some(row) = rows.next()? else { break };
        reader.read_row("waits", at, most);
        let wait = from_row(reader, row)?;
        if let StallReason::Blocked(_) | StallReason::Runnable | StallReason::Preempted = wait.reason {
            found(wait);
        }
    }
    Ok(())
}

/// Calls `found` with the word of each stall that has one.
pub(crate) fn each_word(reader: &Reader, mut found: impl FnMut(WordRow)) -> SqlResult<()> {
    let mut statement = reader.connection().prepare("SELECT stall, symbol, module, value FROM stall_word")?;
    let mut rows = statement.query([])?;
    // A recording has few: one for each version of a program. A damaged one may have any number.
    let mut sources: HashMap<(u32, u32), Arc<WordSource>> = HashMap::new();
    while let Some(row) = rows.next()? {
        let (symbol, module) = (row.get("symbol")?, row.get("module")?);
        let source = match sources.get(&(symbol, module)) {
            Some(source) => source.clone(),
            None => {
                let text = |id| Ok::<_, rusqlite::Error>(reader.text(Some(id))?.unwrap_or_default());
                let source = Arc::new(WordSource { symbol: text(symbol)?, module: text(module)? });
                if sources.len() == MOST_SOURCES {
                    sources.clear();
                }
                sources.entry((symbol, module)).or_insert(source).clone()
            }
        };
        let word = WaitWord { source, value: bits(row, "value")?, text: None };
        found(WordRow { stall: unsigned(row, "stall")?, word });
    }
    Ok(())
}

/// Calls `found` with the reason and the other end of each stall that has one, without addresses and processes.
pub(crate) fn each_peer(
    reader: &Reader,
    mut found: impl FnMut(u64, StallReason, &Peer, bool),
) -> SqlResult<()> {
    let sql = "SELECT stall, kind, awaited, role, asked, by_child, inode, reason_code, \
               asked_ns <= blocked_ns AS timed_out FROM stall_peer \
               JOIN stall ON stall.id = stall_peer.stall";
    let mut statement = reader.connection().prepare(sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let named = |column: &str| row.get::<_, Option<String>>(column);
        let kind = named("kind")?.and_then(|name| PeerKind::from_name(&name));
        let awaited = named("awaited")?.and_then(|name| Awaited::from_name(&name));
        let (Some(kind), Some(awaited)) = (kind, awaited) else { continue };
        let peer = Peer {
            kind,
            awaited,
            role: named("role")?.and_then(|name| Role::from_name(&name)),
            asked: row.get("asked")?,
            local: None,
            remote: None,
            inode: bits(row, "inode")?,
            by_child: row.get("by_child")?,
            process: None,
        };
        let reason = coded(row, "reason_code", StallReason::from_code)?;
        let timed_out = row.get::<_, Option<bool>>("timed_out")?.unwrap_or(false);
        found(unsigned(row, "stall")?, reason, &peer, timed_out);
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
