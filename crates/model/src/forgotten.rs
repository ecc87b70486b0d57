//! What a recorder of bounded size tells its source: these are no longer in the file.

use crate::stack::{FrameId, ModuleId, StackId};
use crate::thread::ThreadKey;

/// Ids that mean nothing any more: a source that meets one of these again defines it again. An id that was defined
/// anew in the meantime is not among them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forgotten {
    pub threads: Vec<ThreadKey>,
    pub stacks: Vec<StackId>,
    pub frames: Vec<FrameId>,
    pub modules: Vec<ModuleId>,
}

impl Forgotten {
    pub fn is_empty(&self) -> bool {
        let Forgotten { threads, stacks, frames, modules } = self;
        threads.is_empty() && stacks.is_empty() && frames.is_empty() && modules.is_empty()
    }
}
