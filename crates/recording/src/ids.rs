//! A source's own numbers and the rows they stand for; what the recorder remembers of what it has written.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;

use wallprof_model::{
    CallPathId, CounterKey, FrameId, Loss, ModuleId, MonoNs, StackId, StallKind, ThreadKey,
};

use crate::pending::{MentionRow, SampleWaker};
use crate::uses::Uses;

/// The reason under which events are counted that refer to what was never defined.
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
    /// By thread row.
    pub call_paths: Rows<(u32, CallPathId)>,
    /// Rows of the texts that say what was bound in a stack, by its node.
    pub bindings: HashMap<u32, Vec<u32>>,
    /// Frame rows with at least one known symbol.
    pub named_frames: HashSet<u32>,
    /// The open stall of a thread: when it began and its row.
    pub open_stalls: HashMap<(u32, StallKind), (MonoNs, u64)>,
    /// References to unknown ids since this was last taken.
    pub unknown: u64,
}

/// Rows of the texts that a thread's row names: its own name, its process's, its control group.
pub(crate) type ThreadTexts = [Option<NonZeroU32>; 3];

/// What a frame's row needs.
#[derive(Default)]
pub(crate) struct FrameNeeds {
    pub module: Option<u32>,
    /// The texts that its lines name.
    pub texts: Box<[u32]>,
}

/// Row numbers, counted from 1, by a key. `N` is what a row needs others to be there for.
pub(crate) struct Rows<K, N = ()> {
    rows: HashMap<K, u32>,
    used: u32,
    uses: Uses<u32, (K, N)>,
}

impl<K: Copy + Eq + std::hash::Hash, N: Default> Rows<K, N> {
    fn new(counted: bool) -> Self {
        Rows { rows: HashMap::new(), used: 0, uses: Uses::new(counted) }
    }

    /// The row of `key`, which is in use with this.
    pub fn get(&mut self, key: K) -> Option<u32> {
        let row = self.rows.get(&key).copied()?;
        self.uses.touch(row);
        Some(row)
    }

    /// A new row for `key`, which from now on means this one.
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

    /// How many there have been.
    pub fn defined(&self) -> u32 {
        self.used
    }

    /// What `row` needs, where that is kept.
    pub fn needs_mut(&mut self, row: u32) -> Option<&mut N> {
        self.uses.what_mut(row).map(|(_, needs)| needs)
    }

    pub fn hold(&mut self, row: u32) {
        self.uses.hold(row);
    }

    pub fn release(&mut self, row: u32) {
        self.uses.release(row);
    }

    /// A row that is used although nobody asked for it by its key.
    pub fn touch(&mut self, row: u32) {
        self.uses.touch(row);
    }

    pub fn set_generation(&mut self, now: u32) {
        self.uses.set_generation(now);
    }

    pub fn idle(&mut self, expired: u32, limit: usize) -> Vec<u32> {
        self.uses.idle(expired, limit)
    }

    /// Forgets a row: what it needs, and its key if that meant this row.
    pub fn remove(&mut self, row: u32) -> Option<(Option<K>, N)> {
        let (key, needs) = self.uses.remove(row)?;
        let meant = self.rows.get(&key) == Some(&row);
        if meant {
            self.rows.remove(&key);
        }
        Some((meant.then_some(key), needs))
    }
}

/// The node of each stack that the source has named; nodes are numbered by the tree.
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

    /// The node that it meant before.
    pub fn define(&mut self, id: StackId, node: u32) -> Option<u32> {
        self.uses.define(id, ());
        self.nodes.insert(id, node)
    }

    pub fn set_generation(&mut self, now: u32) {
        self.uses.set_generation(now);
    }

    pub fn idle(&mut self, expired: u32, limit: usize) -> Vec<StackId> {
        self.uses.idle(expired, limit)
    }

    /// The node that it meant.
    pub fn remove(&mut self, id: StackId) -> Option<u32> {
        self.uses.remove(id);
        self.nodes.remove(&id)
    }
}

impl Ids {
    /// `counted`: what is no longer used can be found, and forgotten.
    pub fn new(counted: bool) -> Self {
        Ids {
            threads: Rows::new(counted),
            modules: Rows::new(counted),
            frames: Rows::new(counted),
            stacks: StackNodes::new(counted),
            mentions: Rows::new(counted),
            wakers: Rows::new(counted),
            counters: Rows::new(false),
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
    fn an_id_defined_again_means_the_new_row() {
        let mut rows: Rows<FrameId> = Rows::new(false);
        assert_eq!(rows.define(FrameId(9)), 1);
        assert_eq!(rows.get_or_define(FrameId(9)), (1, false));
        assert_eq!(rows.define(FrameId(9)), 2);
        assert_eq!(rows.get(FrameId(9)), Some(2));
        assert_eq!(rows.defined(), 2);
    }

    #[test]
    fn only_what_is_given_and_unknown_is_counted() {
        let mut ids = Ids::new(false);
        assert_eq!(ids.stack(None), None);
        assert_eq!(ids.unknown, 0);
        assert_eq!(ids.stack(Some(StackId(0))), None);
        assert_eq!(ids.thread(ThreadKey(3)), None);
        assert_eq!(ids.unknown, 2);
    }

    #[test]
    fn a_row_whose_key_means_another_takes_no_key_with_it() {
        let mut rows: Rows<FrameId> = Rows::new(true);
        let (old, new) = (rows.define(FrameId(9)), rows.define(FrameId(9)));
        assert_eq!(rows.remove(old), Some((None, ())));
        assert_eq!(rows.get(FrameId(9)), Some(new));
        assert_eq!(rows.remove(new), Some((Some(FrameId(9)), ())));
        assert_eq!((rows.get(FrameId(9)), rows.define(FrameId(9))), (None, 3), "numbers are not used again");
    }

    #[test]
    fn a_stack_defined_again_tells_what_it_meant() {
        let mut stacks = StackNodes::new(true);
        assert_eq!(stacks.define(StackId(1), 70), None);
        assert_eq!(stacks.define(StackId(1), 71), Some(70));
        assert_eq!(stacks.remove(StackId(1)), Some(71));
        assert_eq!(stacks.get(StackId(1)), None);
    }
}
