// SPDX-License-Identifier: Apache-2.0
//! References of open stalls. The rows of open stalls outlive the window, so the rows that they refer to must
//! stay, too.

use std::collections::HashMap;

use crate::ids::Ids;
use crate::intern::{StackTree, Texts};
use crate::pending::StallRow;

/// By the id of the open stall.
#[derive(Default)]
pub(crate) struct Held {
    stalls: HashMap<u64, References>,
}

/// Rows that a stall's row refers to.
struct References {
    thread: u32,
    texts: Vec<u32>,
    mentions: Vec<u32>,
    nodes: Vec<u32>,
}

impl Held {
    /// Keeps the rows that an open stall refers to, and releases those that it referred to before.
    pub fn hold(&mut self, row: &StallRow, ids: &mut Ids, tree: &mut StackTree, texts: &mut Texts) {
        let references = References::of(row);
        ids.threads.hold(references.thread);
        references.texts.iter().for_each(|&text| texts.uses.hold(text));
        references.mentions.iter().for_each(|&mention| ids.mentions.hold(mention));
        references.nodes.iter().for_each(|&node| tree.uses.hold(node));
        self.release(row.id, ids, tree, texts);
        self.stalls.insert(row.id, references);
    }

    /// Called when the stall is closed. Its row is deleted with this generation, and the rows that it refers
    /// to not earlier.
    pub fn release(&mut self, id: u64, ids: &mut Ids, tree: &mut StackTree, texts: &mut Texts) {
        let Some(references) = self.stalls.remove(&id) else { return };
        ids.threads.touch(references.thread);
        ids.threads.release(references.thread);
        for text in references.texts {
            texts.uses.touch(text);
            texts.uses.release(text);
        }
        for mention in references.mentions {
            ids.mentions.touch(mention);
            ids.mentions.release(mention);
        }
        for node in references.nodes {
            tree.uses.touch(node);
            tree.uses.release(node);
        }
    }
}

impl References {
    fn of(row: &StallRow) -> Self {
        let waker = row.stall.waker.as_ref();
        let stacks = [
            row.stall.user,
            row.stall.kernel,
            waker.and_then(|waker| waker.user),
            waker.and_then(|waker| waker.kernel),
            row.stall.owner_sample.map(|sample| sample.user),
        ];
        let file = row.fault.as_ref().and_then(|(_, file)| *file);
        let peer = row.peer.as_ref().map_or([None; 3], |(_, texts)| *texts);
        let ran = row.ran_instead.iter().map(|(mention, _)| *mention);
        References {
            thread: row.stall.thread.0,
            texts: [
                Some(row.comm),
                row.syscall,
                file,
                row.file.map(|(path, _)| path),
                peer[0],
                peer[1],
                peer[2],
                row.word.map(|(symbol, _, _)| symbol),
                row.word.map(|(_, module, _)| module),
            ]
            .into_iter()
            .flatten()
            .collect(),
            mentions: [row.waker, row.lock_owner].into_iter().flatten().chain(ran).collect(),
            // The ids are those of rows at this point.
            nodes: stacks.into_iter().flatten().filter_map(|stack| u32::try_from(stack.0).ok()).collect(),
        }
    }
}
