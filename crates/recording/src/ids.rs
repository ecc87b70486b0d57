// SPDX-License-Identifier: Apache-2.0
//! The ids of a source and their rows, and other state of the recorder about rows that it has written.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;

use wallprof_model::{
    CallPathId, CounterKey, FrameId, Loss, ModuleId, MonoNs, StackId, StallKind, ThreadKey,
};

use crate::pending::{MentionRow, SampleWaker};
use crate::uses::Uses;

/// The loss under which references to undefined ids are counted.
pub const UNKNOWN_REFERENCE: &str = Loss::UnknownReference.name();

pub(crate) struct Ids {
    pub threads: Rows<ThreadKey, ThreadTexts>,
    /// With the text of its path.
    pub modules: Rows<ModuleId, Option<NonZeroU32>>,
    pub frames: Rows<FrameId, FrameNeeds>,
    pub stacks: StackNodes,
    pub mentions: Rows<MentionRow>,
    pub wakers: Rows<SampleWaker>,
    pub counters: Rows<CounterKey>,
    /// The counters of each thread row, which are deleted with it.
    pub counters_of: HashMap<u32, Vec<CounterKey>>,
    /// By thread row.
    pub call_paths: Rows<(u32, CallPathId)>,
    /// Rows of the texts of a binding, by the node of its stack.
    pub bindings: HashMap<u32, Vec<u32>>,
    /// Frame rows with at least one known symbol.
    pub named_frames: HashSet<u32>,
    /// The start and the row of the open stall of a thread.
    pub open_stalls: HashMap<(u32, StallKind), (MonoNs, u64)>,
    /// References to undefined ids since the last commit.
    pub unknown: u64,
}

/// Rows of the texts of a thread: its own name, its process's name, its control group, its container, the pod of that.
pub(crate) type ThreadTexts = [Option<NonZeroU32>; 5];

/// The rows that a frame's row needs.
#[derive(Default)]
pub(crate) struct FrameNeeds {
    pub module: Option<u32>,
    /// The texts of its lines.
    pub texts: Box<[u32]>,
}

/// Row numbers by a key, counted from 1. `N` names the rows that a row needs.
pub(crate) struct Rows<K, N = ()> {
    rows: HashMap<K, u32>,
    used: u32,
    uses: Uses<u32, (K, N)>,
}

impl<K: Copy + Eq + std::hash::Hash, N: Default> Rows<K, N> {
    fn new(counted: bool) -> Self {
        Rows { rows: HashMap::new(), used: 0, uses: Uses::new(counted) }
    }

    /// The row of `key`. This counts as a use.
    pub fn get(&mut self, key: K) -> Option<u32> {
        let row = self.rows.get(&key).copied()?;
        self.uses.touch(row);
        Some(row)
    }

    /// Gives `key` a new row, which replaces an earlier one.
    pub fn define(&mut self, key: K) -> u32 {
        self.used += 1;
        self.rows.insert(key, self.used);
        self.uses.define(self.used, (key, N::default()));
        self.used
    }

    /// The row of `key`, and whether it is new.
    pub fn get_or_define(&mut self, key: K) -> (u32, bool) {
        match self.get(key) {
            Some(row) => (row, false),
            None => (self.define(key), true),
        }
    }

    /// Forgets the row of `key`, which is deleted with another row.
    pub fn undefine(&mut self, key: K) {
        self.rows.remove(&key);
    }

    /// The number of keys and of counted rows.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.rows.len() + self.uses.len()
    }

    /// The number of rows so far.
    pub fn defined(&self) -> u32 {
        self.used
    }

    /// The rows that `row` needs, if uses are counted.
    pub fn needs_mut(&mut self, row: u32) -> Option<&mut N> {
        self.uses.data_mut(row).map(|(_, needs)| needs)
    }

    pub fn hold(&mut self, row: u32) {
        self.uses.hold(row);
    }

    pub fn release(&mut self, row: u32) {
        self.uses.release(row);
    }

    /// Counts a use of a row that was not looked up by its key.
    pub fn touch(&mut self, row: u32) {
        self.uses.touch(row);
    }

    pub fn set_generation(&mut self, now: u32) {
        self.uses.set_generation(now);
    }

    pub fn idle(&mut self, expired: u32, limit: usize) -> Vec<u32> {
        self.uses.idle(expired, limit)
    }

    /// Removes a row. Returns the rows that it needs, and its key unless the key has a newer row.
    pub fn remove(&mut self, row: u32) -> Option<(Option<K>, N)> {
        let (key, needs) = self.uses.remove(row)?;
        let is_current = self.rows.get(&key) == Some(&row);
        if is_current {
            self.rows.remove(&key);
        }
        Some((is_current.then_some(key), needs))
    }
}

/// The node of each stack id of the source. The tree numbers the nodes.
pub(crate) struct StackNodes {
    nodes: HashMap<StackId, u32>,
    uses: Uses<StackId, ()>,
}

impl StackNodes {
    fn new(counted: bool) -> Self {
        StackNodes { nodes: HashMap::new(), uses: Uses::new(counted) }
    }

    pub fn get(&mut self, id: StackId) -> Option<u32> {
        let node = self.nodes.get(&id).copied()?;
        self.uses.touch(id);
        Some(node)
    }

    /// Returns the earlier node of the id.
    pub fn define(&mut self, id: StackId, node: u32) -> Option<u32> {
        self.uses.define(id, ());
        self.nodes.insert(id, node)
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.nodes.len() + self.uses.len()
    }

    pub fn set_generation(&mut self, now: u32) {
        self.uses.set_generation(now);
    }

    pub fn idle(&mut self, expired: u32, limit: usize) -> Vec<StackId> {
        self.uses.idle(expired, limit)
    }

    /// Returns the node of the id.
    pub fn remove(&mut self, id: StackId) -> Option<u32> {
        self.uses.remove(id);
        self.nodes.remove(&id)
    }
}

impl Ids {
    /// With `counted`, unused rows can be found and removed.
    pub fn new(counted: bool) -> Self {
        Ids {
            threads: Rows::new(counted),
            modules: Rows::new(counted),
            frames: Rows::new(counted),
            stacks: StackNodes::new(counted),
            mentions: Rows::new(counted),
            wakers: Rows::new(counted),
            counters: Rows::new(false),
            counters_of: HashMap::new(),
            call_paths: Rows::new(false),
            bindings: HashMap::new(),
            named_frames: HashSet::new(),
            open_stalls: HashMap::new(),
            unknown: 0,
        }
    }

    pub fn set_generation(&mut self, now: u32) {
        self.threads.set_generation(now);
        self.modules.set_generation(now);
        self.frames.set_generation(now);
        self.stacks.set_generation(now);
        self.mentions.set_generation(now);
        self.wakers.set_generation(now);
    }

    /// The row of a thread. Undefined ids are counted.
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
        let row = self.stacks.get(id?);
        self.counted(row)
    }

    pub fn call_path(&mut self, thread: u32, id: CallPathId) -> Option<u32> {
        let row = self.call_paths.get((thread, id));
        self.counted(row)
    }

    pub fn counter(&mut self, key: CounterKey) -> Option<u32> {
        let row = self.counters.get(key);
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
    fn redefined_id_has_the_new_row() {
        let mut rows: Rows<FrameId> = Rows::new(false);
        assert_eq!(rows.define(FrameId(9)), 1);
        assert_eq!(rows.get_or_define(FrameId(9)), (1, false));
        assert_eq!(rows.define(FrameId(9)), 2);
        assert_eq!(rows.get(FrameId(9)), Some(2));
        assert_eq!(rows.defined(), 2);
    }

    #[test]
    fn only_undefined_ids_are_counted() {
        let mut ids = Ids::new(false);
        assert_eq!(ids.stack(None), None);
        assert_eq!(ids.unknown, 0);
        assert_eq!(ids.stack(Some(StackId(0))), None);
        assert_eq!(ids.thread(ThreadKey(3)), None);
        assert_eq!(ids.unknown, 2);
    }

    #[test]
    fn removed_row_keeps_a_key_that_has_a_newer_row() {
        let mut rows: Rows<FrameId> = Rows::new(true);
        let (old, new) = (rows.define(FrameId(9)), rows.define(FrameId(9)));
        assert_eq!(rows.remove(old), Some((None, ())));
        assert_eq!(rows.get(FrameId(9)), Some(new));
        assert_eq!(rows.remove(new), Some((Some(FrameId(9)), ())));
        assert_eq!((rows.get(FrameId(9)), rows.define(FrameId(9))), (None, 3), "numbers are not reused");
    }

    #[test]
    fn redefined_stack_returns_its_earlier_node() {
        let mut stacks = StackNodes::new(true);
        assert_eq!(stacks.define(StackId(1), 70), None);
        assert_eq!(stacks.define(StackId(1), 71), Some(70));
        assert_eq!(stacks.remove(StackId(1)), Some(71));
        assert_eq!(stacks.get(StackId(1)), None);
    }
}
