// SPDX-License-Identifier: Apache-2.0
//! Deletes from a bounded recording: first rows outside its window, then the rows that only those referred
//! to.
//!
//! Each step is one transaction and examines a bounded number of rows. Memory is updated after the
//! transaction, so that an error leaves file and memory as they were.

use rusqlite::{Connection, Result, params};
use wallprof_model::{Forgotten, StackId};

use crate::ids::Ids;
use crate::intern::{StackTree, Texts};
use crate::retention::Outdated;

/// Rows of one kind that are examined in one step.
const AT_ONCE: usize = 8_192;

/// Deletes outdated rows. Returns the number of deleted stalls.
pub(crate) fn delete_rows(from: &Connection, outdated: &Outdated) -> Result<u64> {
    for &second in &outdated.seconds {
        for table in ["bucket WHERE second", "sample WHERE second"] {
            from.prepare_cached(&format!("DELETE FROM {table} = ?"))?.execute([second])?;
        }
        for table in [
            "latency_cell",
            "interrupt",
            "intrusion",
            "kernel_delay",
            "cross_call",
            "throttled",
            "span_cell",
            "span",
            "late_sample",
            "folded",
            "loss",
            "overhead",
        ] {
            from.prepare_cached(&format!("DELETE FROM {table} WHERE flush_second = ?"))?.execute([second])?;
        }
    }
    let mut stalls = 0;
    for range in &outdated.stalls {
        let ends = [range.start, range.end].map(|id| i64::try_from(id).unwrap_or(i64::MAX));
        stalls += from.prepare_cached("DELETE FROM stall WHERE id >= ? AND id < ?")?.execute(ends)?;
        for table in [
            "stall_fault",
            "stall_file",
            "stall_word",
            "stall_trace",
            "stall_peer",
            "stall_owner",
            "stall_ran",
            "stall_meaning",
        ] {
            from.prepare_cached(&format!("DELETE FROM {table} WHERE stall >= ? AND stall < ?"))?
                .execute(ends)?;
        }
    }
    let start = i64::try_from(outdated.start.0).unwrap_or(i64::MAX);
    if outdated.counters {
        // A value holds until the next one, so the last one before the window stays.
        from.prepare_cached(
            "DELETE FROM counter WHERE mono_ns < (SELECT max(mono_ns) FROM counter AS held
                 WHERE held.series = counter.series AND held.mono_ns <= ?)",
        )?
        .execute([start])?;
    }
    from.prepare_cached("DELETE FROM mark WHERE mono_ns < ?")?.execute([start])?;
    // The first times of day of the window are computed from the last reading before it.
    from.prepare_cached(
        "DELETE FROM clock WHERE mono_ns < (SELECT max(mono_ns) FROM clock WHERE mono_ns <= ?)",
    )?
    .execute([start])?;
    from.prepare_cached("UPDATE recording SET start_ns = ?")?.execute([start])?;
    Ok(stalls as u64)
}

/// Rows that no other row refers to any more.
#[derive(Default)]
pub(crate) struct Unused {
    threads: Vec<u32>,
    mentions: Vec<u32>,
    wakers: Vec<u32>,
    stacks: Vec<StackId>,
    nodes: Vec<u32>,
    frames: Vec<u32>,
    modules: Vec<u32>,
    texts: Vec<u32>,
}

impl Unused {
    /// Finds some of the rows that no generation after `expired` used.
    pub fn find(expired: u32, ids: &mut Ids, tree: &mut StackTree, texts: &mut Texts) -> Unused {
        Unused {
            threads: ids.threads.idle(expired, AT_ONCE),
            mentions: ids.mentions.idle(expired, AT_ONCE),
            wakers: ids.wakers.idle(expired, AT_ONCE),
            stacks: ids.stacks.idle(expired, AT_ONCE),
            nodes: tree.uses.idle(expired, AT_ONCE),
            frames: ids.frames.idle(expired, AT_ONCE),
            modules: ids.modules.idle(expired, AT_ONCE),
            texts: texts.uses.idle(expired, AT_ONCE),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.stacks.is_empty() && self.rows().iter().all(|(_, rows)| rows.is_empty())
    }

    pub fn delete(&self, from: &Connection) -> Result<()> {
        for (sql, rows) in self.rows() {
            let mut delete = from.prepare_cached(sql)?;
            for row in rows {
                delete.execute(params![row])?;
            }
        }
        Ok(())
    }

    fn rows(&self) -> [(&'static str, &[u32]); 11] {
        [
            (
                "DELETE FROM counter WHERE series IN (SELECT id FROM counter_series WHERE thread = ?)",
                &self.threads,
            ),
            ("DELETE FROM counter_series WHERE thread = ?", &self.threads),
            ("DELETE FROM thread WHERE id = ?", &self.threads),
            ("DELETE FROM mention WHERE id = ?", &self.mentions),
            ("DELETE FROM sample_waker WHERE id = ?", &self.wakers),
            ("DELETE FROM node WHERE id = ?", &self.nodes),
            ("DELETE FROM binding WHERE stack = ?", &self.nodes),
            ("DELETE FROM frame WHERE id = ?", &self.frames),
            ("DELETE FROM line WHERE frame = ?", &self.frames),
            ("DELETE FROM module WHERE id = ?", &self.modules),
            ("DELETE FROM text WHERE id = ?", &self.texts),
        ]
    }

    /// Called after the deletion: releases what the rows needed, and reports the ids of the source that are
    /// now undefined.
    pub fn forget(self, ids: &mut Ids, tree: &mut StackTree, texts: &mut Texts, forgotten: &mut Forgotten) {
        for row in self.threads {
            for key in ids.counters_of.remove(&row).unwrap_or_default() {
                ids.counters.undefine(key);
            }
            if let Some((key, names)) = ids.threads.remove(row) {
                forgotten.threads.extend(key);
                names.iter().flatten().for_each(|text| texts.uses.release(text.get()));
            }
        }
        for row in self.mentions {
            if let Some((Some(mention), ())) = ids.mentions.remove(row) {
                texts.uses.release(mention.comm);
                mention.title.iter().for_each(|&title| texts.uses.release(title));
                mention.thread.iter().for_each(|&thread| ids.threads.release(thread));
            }
        }
        for row in self.wakers {
            if let Some((Some(waker), ())) = ids.wakers.remove(row) {
                waker.thread.iter().for_each(|&thread| ids.threads.release(thread));
                [waker.user, waker.kernel].iter().flatten().for_each(|&node| tree.uses.release(node));
            }
        }
        for id in self.stacks {
            if let Some(node) = ids.stacks.remove(id) {
                tree.uses.release(node);
                forgotten.stacks.push(id);
            }
        }
        for node in self.nodes {
            if let Some(frame) = tree.remove(node) {
                ids.frames.release(frame);
            }
            let names = ids.bindings.remove(&node).unwrap_or_default();
            names.iter().for_each(|&text| texts.uses.release(text));
        }
        for row in self.frames {
            ids.named_frames.remove(&row);
            if let Some((key, needs)) = ids.frames.remove(row) {
                forgotten.frames.extend(key);
                needs.module.iter().for_each(|&module| ids.modules.release(module));
                needs.texts.iter().for_each(|&text| texts.uses.release(text));
            }
        }
        for row in self.modules {
            if let Some((key, path)) = ids.modules.remove(row) {
                forgotten.modules.extend(key);
                path.iter().for_each(|path| texts.uses.release(path.get()));
            }
        }
        self.texts.into_iter().for_each(|text| texts.remove(text));
    }
}
