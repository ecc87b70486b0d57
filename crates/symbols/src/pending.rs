// SPDX-License-Identifier: Apache-2.0
//! Frames without a name yet, by module: resolving them in batches is cheap, one by one it is expensive.

use std::collections::BTreeMap;

use wallprof_model::{Frame, FrameId, FrameKind, ModuleId};

/// Where a batch of frames is resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// By kernel symbols.
    Kernel,
    /// By the module's file and its debug files.
    Module(ModuleId),
}

/// Frames of one origin, in the order they came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Where all of these frames are resolved.
    pub origin: Origin,
    /// The frames' numbers.
    pub ids: Vec<FrameId>,
    /// One for each id.
    pub addresses: Vec<u64>,
}

/// Collects new frames until they are resolved.
#[derive(Clone, Debug, Default)]
pub struct PendingFrames {
    by_origin: BTreeMap<Origin, Vec<(FrameId, u64)>>,
}

impl PendingFrames {
    /// Adds a new frame. One that belongs neither to a file nor to the kernel is left out: it cannot be
    /// resolved.
    pub fn push(&mut self, id: FrameId, frame: Frame) {
        let origin = match (frame.kind, frame.module) {
            (FrameKind::Kernel, _) => Origin::Kernel,
            (_, Some(module)) => Origin::Module(module),
            (_, None) => return,
        };
        self.by_origin.entry(origin).or_default().push((id, frame.address));
    }

    /// The modules of pending frames.
    pub fn modules(&self) -> impl Iterator<Item = ModuleId> + '_ {
        self.by_origin.keys().filter_map(|origin| match origin {
            Origin::Module(id) => Some(*id),
            Origin::Kernel => None,
        })
    }

    /// Adds a batch's frames again, to be resolved once more.
    pub fn put_back(&mut self, batch: Batch) {
        let frames = batch.ids.into_iter().zip(batch.addresses);
        self.by_origin.entry(batch.origin).or_default().extend(frames);
    }

    /// Removes the frames for which `gone` is true.
    pub fn forget(&mut self, gone: impl Fn(FrameId) -> bool) {
        self.by_origin.retain(|_, frames| {
            frames.retain(|(id, _)| !gone(*id));
            !frames.is_empty()
        });
    }

    /// Takes one origin's frames: the kernel's first, then module by module.
    pub fn take_batch(&mut self) -> Option<Batch> {
        let (origin, frames) = self.by_origin.pop_first()?;
        let (ids, addresses) = frames.into_iter().unzip();
        Some(Batch { origin, ids, addresses })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_frames_are_not_in_a_batch() {
        let mut pending = PendingFrames::default();
        for id in 0..3 {
            pending.push(FrameId(id), Frame { kind: FrameKind::Kernel, module: None, address: 8 });
        }
        pending.forget(|id| id != FrameId(1));
        assert_eq!(pending.take_batch().map(|batch| batch.ids), Some(vec![FrameId(1)]));
        pending.push(FrameId(4), Frame { kind: FrameKind::Kernel, module: None, address: 8 });
        pending.forget(|_| true);
        assert_eq!(pending.take_batch(), None);
    }

    #[test]
    fn frames_come_back_by_origin() {
        let mut pending = PendingFrames::default();
        let module = |id| Some(ModuleId(id));
        let frames = [
            (FrameKind::Native, module(2), 20),
            (FrameKind::Kernel, None, 30),
            (FrameKind::Jit, None, 40),
            (FrameKind::Native, module(1), 50),
            (FrameKind::Native, module(2), 60),
            (FrameKind::Native, None, 70),
        ];
        for (index, (kind, module, address)) in frames.into_iter().enumerate() {
            pending.push(FrameId(index as u32), Frame { kind, module, address });
        }
        let batch = |origin, ids: &[u32], addresses: &[u64]| {
            let ids = ids.iter().copied().map(FrameId).collect();
            Some(Batch { origin, ids, addresses: addresses.to_vec() })
        };
        let kernel = pending.take_batch();
        assert_eq!(kernel, batch(Origin::Kernel, &[1], &[30]));
        pending.put_back(kernel.unwrap());
        assert_eq!(pending.take_batch(), batch(Origin::Kernel, &[1], &[30]));
        assert_eq!(pending.take_batch(), batch(Origin::Module(ModuleId(1)), &[3], &[50]));
        assert_eq!(pending.take_batch(), batch(Origin::Module(ModuleId(2)), &[0, 4], &[20, 60]));
        assert_eq!(pending.take_batch(), None);
    }
}
