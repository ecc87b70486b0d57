// SPDX-License-Identifier: Apache-2.0
//! Numbers for distinct frames.

use std::collections::{HashMap, HashSet};

use wallprof_model::{Frame, FrameId, FrameKind, ModuleId};

use crate::process::ProcessKey;

/// Half a million distinct frames take 22 MiB here. More than that come only from addresses that are not
/// code.
const MAX_FRAMES: usize = 1 << 19;

/// The kernel uses 57 bits of an address at most, so that no real frame has this one.
const OVERFLOW: Frame = Frame { kind: FrameKind::Jit, module: None, address: u64::MAX };

/// A frame in 16 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct PackedFrame {
    address: [u32; 2],
    /// The module's number plus one, or for run-time code that of its process.
    origin: u32,
    kind: FrameKind,
}

impl From<Frame> for PackedFrame {
    fn from(frame: Frame) -> Self {
        PackedFrame {
            address: [frame.address as u32, (frame.address >> 32) as u32],
            origin: frame.module.map_or(0, |ModuleId(id)| id.wrapping_add(1)),
            kind: frame.kind,
        }
    }
}

/// Gives each distinct frame a number, in the order of their first appearance.
pub struct FrameTable {
    ids: HashMap<PackedFrame, FrameId>,
    /// Processes with run-time code, numbered from 1: one address holds different code in each of them.
    jit_processes: HashMap<ProcessKey, u32>,
    next_jit_process: u32,
    next: u32,
    limit: usize,
    overflowed: u64,
}

impl Default for FrameTable {
    fn default() -> Self {
        Self::with_limit(MAX_FRAMES)
    }
}

impl FrameTable {
    fn with_limit(limit: usize) -> Self {
        let (ids, jit_processes) = (HashMap::new(), HashMap::new());
        FrameTable { ids, jit_processes, next_jit_process: 1, next: 0, limit, overflowed: 0 }
    }

    /// The number of `frame`, and the frame to announce under that number if it is new.
    ///
    /// When the table is full all further frames share one number, announced once as an unknown address;
    /// [`FrameTable::overflowed`] counts them.
    pub fn frame_id(&mut self, frame: Frame) -> (FrameId, Option<Frame>) {
        self.packed_id(frame.into(), frame)
    }

    /// The same for a frame of this process: run-time code at one address is a different frame in each
    /// process.
    pub fn frame_id_in(&mut self, process: ProcessKey, frame: Frame) -> (FrameId, Option<Frame>) {
        let mut packed = PackedFrame::from(frame);
        if frame.kind == FrameKind::Jit {
            let next = &mut self.next_jit_process;
            packed.origin = *self.jit_processes.entry(process).or_insert_with(|| {
                let number = *next;
                *next = next.wrapping_add(1).max(1);
                number
            });
        }
        self.packed_id(packed, frame)
    }

    /// How often a frame was lost because the table was full.
    pub fn overflowed(&self) -> u64 {
        self.overflowed
    }

    /// Removes the frames for which `gone` is true. A frame that is removed and seen again gets a new number.
    pub fn forget(&mut self, gone: impl Fn(FrameId) -> bool) {
        self.ids.retain(|_, id| !gone(*id));
        let jit = self.ids.keys().filter(|frame| frame.kind == FrameKind::Jit);
        let used: HashSet<u32> = jit.map(|frame| frame.origin).collect();
        self.jit_processes.retain(|_, number| used.contains(number));
    }

    fn packed_id(&mut self, packed: PackedFrame, frame: Frame) -> (FrameId, Option<Frame>) {
        if let Some(&id) = self.ids.get(&packed) {
            return (id, None);
        }
        if self.ids.len() + 1 < self.limit {
            return (self.insert(packed), Some(frame));
        }
        self.overflowed += 1;
        match self.ids.get(&OVERFLOW.into()) {
            Some(&id) => (id, None),
            None => (self.insert(OVERFLOW.into()), Some(OVERFLOW)),
        }
    }

    fn insert(&mut self, packed: PackedFrame) -> FrameId {
        let id = FrameId(self.next);
        // Numbers are never reused: a frame that was removed gets another one when it is seen again.
        self.next = self.next.wrapping_add(1);
        self.ids.insert(packed, id);
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: FrameKind, module: Option<u32>, address: u64) -> Frame {
        Frame { kind, module: module.map(ModuleId), address }
    }

    #[test]
    fn removed_frame_gets_a_new_number() {
        let mut table = FrameTable::default();
        let known = frame(FrameKind::Native, Some(1), 16);
        let (first, _) = table.frame_id(known);
        let (other, _) = table.frame_id(frame(FrameKind::Native, Some(1), 32));
        table.forget(|id| id == first);
        let (again, announced) = table.frame_id(known);
        assert!(announced == Some(known) && again != first && again != other);
    }

    #[test]
    fn processes_without_frames_are_forgotten_and_their_numbers_are_not_used_again() {
        let mut table = FrameTable::default();
        let process = |pid| ProcessKey { pid, generation: 0 };
        let jit = frame(FrameKind::Jit, None, 7);
        let ids = [1, 2].map(|pid| table.frame_id_in(process(pid), jit).0);
        table.forget(|id| id == ids[0]);
        assert_eq!(table.jit_processes.len(), 1);
        assert_eq!(table.frame_id_in(process(3), jit).1, Some(jit), "it shares no number with process 2");
        assert_eq!(table.frame_id_in(process(2), jit), (ids[1], None));
    }

    #[test]
    fn modules_with_large_numbers_are_distinct() {
        let mut table = FrameTable::default();
        let ids = [0, 1 << 30, 1 << 31].map(|id| table.frame_id(frame(FrameKind::Native, Some(id), 7)).0);
        assert_eq!(ids, [FrameId(0), FrameId(1), FrameId(2)]);
    }

    #[test]
    fn frames_that_differ_anywhere_have_different_numbers() {
        let frames = [
            frame(FrameKind::Native, None, 1),
            frame(FrameKind::Native, Some(0), 1),
            frame(FrameKind::Native, Some(1), 1),
            frame(FrameKind::Jit, None, 1),
            frame(FrameKind::Kernel, None, 1),
            frame(FrameKind::Kernel, None, 1 << 32),
        ];
        let mut table = FrameTable::default();
        for (index, frame) in frames.into_iter().enumerate() {
            assert_eq!(table.frame_id(frame), (FrameId(index as u32), Some(frame)));
        }
        for (index, frame) in frames.into_iter().enumerate() {
            assert_eq!(table.frame_id(frame), (FrameId(index as u32), None));
        }
    }

    #[test]
    fn run_time_code_is_numbered_by_process() {
        let mut table = FrameTable::default();
        let process = |pid, generation| ProcessKey { pid, generation };
        let (native, jit) = (frame(FrameKind::Native, Some(0), 7), frame(FrameKind::Jit, None, 7));
        let mut id = |process, frame| table.frame_id_in(process, frame).0.0;
        assert_eq!([id(process(1, 0), native), id(process(2, 0), native)], [0, 0]);
        assert_eq!([id(process(1, 0), jit), id(process(2, 0), jit), id(process(1, 1), jit)], [1, 2, 3]);
        assert_eq!([id(process(1, 0), jit), id(process(2, 0), jit)], [1, 2]);
    }

    #[test]
    fn full_table_counts_overflows_and_stops_growing() {
        let mut table = FrameTable::with_limit(3);
        let ids: Vec<_> =
            (0..5).map(|address| table.frame_id(frame(FrameKind::Jit, None, address))).collect();
        assert_eq!(ids[2], (FrameId(2), Some(OVERFLOW)));
        assert_eq!(ids[3..], [(FrameId(2), None), (FrameId(2), None)]);
        assert_eq!(table.frame_id(frame(FrameKind::Jit, None, 1)), (FrameId(1), None));
        assert_eq!((table.overflowed(), table.ids.len()), (3, 3));
    }
}
