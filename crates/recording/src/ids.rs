//! A source's own numbers and the rows they stand for; what the recorder remembers of what it has written.

use std::collections::{HashMap, HashSet};

use wallprof_model::{CallPathId, FrameId, ModuleId, MonoNs, StackId, StallKind, ThreadKey};

use crate::pending::{MentionRow, SampleWaker};

/// The reason under which events are counted that refer to what was never defined.
pub const UNKNOWN_REFERENCE: &str = "unknown_reference";

#[derive(Default)]
pub(crate) struct Ids {
    pub threads: Rows<ThreadKey>,
    pub modules: Rows<ModuleId>,
    pub frames: Rows<FrameId>,
    /// The node of each stack; nodes are numbered by the tree.
    pub stacks: HashMap<StackId, u32>,
    pub mentions: Rows<MentionRow>,
    pub wakers: Rows<SampleWaker>,
    /// By thread row.
    pub call_paths: Rows<(u32, CallPathId)>,
    /// Frame rows with at least one known symbol.
    pub named_frames: HashSet<u32>,
    /// The open stall of a thread: when it began and its row.
    pub open_stalls: HashMap<(u32, StallKind), (MonoNs, u64)>,
    /// References to unknown ids since this was last taken.
    pub unknown: u64,
}

/// Row numbers, counted from 1, by a key.
pub(crate) struct Rows<K> {
    rows: HashMap<K, u32>,
    used: u32,
}

impl<K> Default for Rows<K> {
    fn default() -> Self {
        Rows { rows: HashMap::new(), used: 0 }
    }
}

impl<K: Copy + Eq + std::hash::Hash> Rows<K> {
    pub fn get(&self, key: K) -> Option<u32> {
        self.rows.get(&key).copied()
    }

    /// A new row for `key`, which from now on means this one.
    pub fn define(&mut self, key: K) -> u32 {
        self.used += 1;
        self.rows.insert(key, self.used);
        self.used
    }

    /// The row of `key`, and whether it is new.
    pub fn get_or_define(&mut self, key: K) -> (u32, bool) {
        match self.get(key) {
            Some(row) => (row, false),
            None => (self.define(key), true),
        }
    }

    pub fn len(&self) -> u32 {
        self.used
    }
}

impl Ids {
    /// The thread's row; an unknown one is counted.
    pub fn thread(&mut self, key: ThreadKey) -> Option<u32> {
        let row = self.threads.get(key);
        self.counted(row)
    }

    pub fn frame(&mut self, id: FrameId) -> Option<u32> {
        let row = self.frames.get(id);
        self.counted(row)
    }

    pub fn module(&mut self, id: Option<ModuleId>) -> Option<u32> {
        let row = self.modules.get(id?);
        self.counted(row)
    }

    pub fn stack(&mut self, id: Option<StackId>) -> Option<u32> {
        let row = self.stacks.get(&id?).copied();
        self.counted(row)
    }

    pub fn call_path(&mut self, thread: u32, id: CallPathId) -> Option<u32> {
        let row = self.call_paths.get((thread, id));
        self.counted(row)
    }

    pub fn optional_thread(&mut self, key: Option<ThreadKey>) -> Option<u32> {
        self.thread(key?)
    }

    fn counted(&mut self, row: Option<u32>) -> Option<u32> {
        self.unknown += u64::from(row.is_none());
        row
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_defined_again_means_the_new_row() {
        let mut rows = Rows::default();
        assert_eq!(rows.define(FrameId(9)), 1);
        assert_eq!(rows.get_or_define(FrameId(9)), (1, false));
        assert_eq!(rows.define(FrameId(9)), 2);
        assert_eq!(rows.get(FrameId(9)), Some(2));
        assert_eq!(rows.len(), 2);
    }

    #[test]
    fn only_what_is_given_and_unknown_is_counted() {
        let mut ids = Ids::default();
        assert_eq!(ids.stack(None), None);
        assert_eq!(ids.unknown, 0);
        assert_eq!(ids.stack(Some(StackId(0))), None);
        assert_eq!(ids.thread(ThreadKey(3)), None);
        assert_eq!(ids.unknown, 2);
    }
}
