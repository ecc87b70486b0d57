// SPDX-License-Identifier: Apache-2.0
//! Who waits for whom, as a tree: each thread that others wait for, and its waiters below it.

use std::io::{self, Write};

use wallprof_analysis::now::{WaitNode, Waited, waits_for};
use wallprof_meaning::Site;
use wallprof_model::ThreadNow;

use super::{doing, duration, ink};
use crate::function::site_words;
use crate::line::{Word, write_wrapped};
use crate::style::{Ink, Style};
use crate::text::named;

/// A deep chain stays on the screen.
const MOST_INDENT: usize = 40;

/// Writes the tree; circles first, each marked as a deadlock.
///
/// # Errors
/// The error of `out`; a broken pipe among them.
pub fn waits_text(out: &mut impl Write, threads: &[ThreadNow], style: &Style) -> io::Result<()> {
    let nodes = waits_for(threads);
    if nodes.is_empty() {
        return writeln!(
            out,
            "no thread waits for a lock that says who holds it (those of the kernel do from Linux 6.16 on)"
        );
    }
    let mut blank = false;
    for node in &nodes {
        let is_root = node.depth == 0 && node.circle.is_none();
        if is_root && blank {
            writeln!(out)?;
        }
        blank = true;
        write_node(out, node, style)?;
    }
    Ok(())
}

fn write_node(out: &mut impl Write, node: &WaitNode<'_>, style: &Style) -> io::Result<()> {
    let indent = (2 * node.depth).min(MOST_INDENT);
    let mut words = Vec::new();
    match node.waited {
        Waited::Lock(pid, address) => {
            words.push(Word::strong(format!("lock {address:#x} of process {pid},")));
            words.push(Word::plain("whose holder is not known"));
        }
        Waited::Unseen(holder) => {
            words.push(Word::strong(format!("{},", named(&holder.comm, holder.tid, style))));
            words.push(Word::plain("which was not looked at, holds a lock of the kernel"));
        }
        Waited::Thread(thread) => {
            words.push(Word::strong(named(&thread.comm, thread.tid, style)));
            let lasts = duration(thread.since, style);
            let lasts = lasts.map(|text| format!(", {text}")).unwrap_or_default();
            words.push(Word { text: format!("{}{lasts}", doing(thread, style)), ink: ink(thread) });
            if let Some(site) = Site::of(thread.user.as_ref(), thread.kernel.as_ref()) {
                words.push(Word::plain("in"));
                words.extend(site_words(&site, style));
            }
            if let Some(tid) = node.circle {
                let text = format!("[deadlock: waits for {tid}]");
                words.push(Word { text, ink: Ink::Warning });
            }
        }
    }
    write_wrapped(out, (&" ".repeat(indent), indent), &words, style)
}
