// SPDX-License-Identifier: Apache-2.0
//! Stacks as rows of frame numbers, each distinct one once.

use std::collections::HashMap;
use std::sync::Arc;

use wallprof_model::profile::ResolvedStack;

use super::frame::{FrameId, Frames};

/// The number of a path in a [`Paths`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct PathId(u32);

impl PathId {
    /// No frames at all.
    pub const EMPTY: PathId = PathId(0);
}

/// Distinct paths, root first.
pub(super) struct Paths {
    paths: Vec<Arc<[FrameId]>>,
    numbers: HashMap<Arc<[FrameId]>, PathId>,
}

impl Paths {
    pub fn new() -> Self {
        let empty: Arc<[FrameId]> = Arc::new([]);
        Paths { paths: vec![Arc::clone(&empty)], numbers: HashMap::from([(empty, PathId::EMPTY)]) }
    }

    pub fn add(&mut self, stack: &ResolvedStack, frames: &mut Frames) -> PathId {
        let path: Arc<[FrameId]> = stack.frames.iter().rev().map(|frame| frames.code(frame)).collect();
        *self.numbers.entry(path).or_insert_with_key(|path| {
            self.paths.push(Arc::clone(path));
            PathId((self.paths.len() - 1) as u32)
        })
    }

    /// Root first.
    pub fn get(&self, id: PathId) -> &[FrameId] {
        &self.paths[id.0 as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::fixture::{code, stack};

    #[test]
    fn equal_stacks_are_one_path_root_first() {
        let (leaf, main) = (code(&["leaf"]), code(&["main"]));
        let (mut paths, mut frames) = (Paths::new(), Frames::default());
        let first = paths.add(&stack(&[&leaf, &main]), &mut frames);
        assert_eq!(paths.add(&stack(&[&leaf, &main]), &mut frames), first);
        assert_eq!(paths.get(first), [frames.code(&main), frames.code(&leaf)]);
        assert_eq!(paths.add(&stack(&[]), &mut frames), PathId::EMPTY);
    }
}
