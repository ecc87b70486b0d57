// SPDX-License-Identifier: Apache-2.0
//! The ids that a recorder of bounded size reports to its source as deleted from the file.

use crate::stack::{FrameId, ModuleId, StackId};
use crate::thread::ThreadKey;

/// Ids that are no longer defined: a source that uses one of them again defines it again. An id that was
/// defined again in the meantime is not among them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forgotten {
    /// Threads, which [`crate::Event::Thread`] defines.
    pub threads: Vec<ThreadKey>,
    /// Stacks, which [`crate::Event::Stack`] defines.
    pub stacks: Vec<StackId>,
    /// Frames, which [`crate::Event::Frame`] defines. Their symbols are deleted, too.
    pub frames: Vec<FrameId>,
    /// Modules, which [`crate::Event::Module`] defines.
    pub modules: Vec<ModuleId>,
}

impl Forgotten {
    /// Whether no id was deleted: the source has nothing to define again.
    pub fn is_empty(&self) -> bool {
        let Forgotten { threads, stacks, frames, modules } = self;
        threads.is_empty() && stacks.is_empty() && frames.is_empty() && modules.is_empty()
    }
}
