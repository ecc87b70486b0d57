// SPDX-License-Identifier: Apache-2.0
//! The part of a bounded recording that is in the file, and the deletion of the rest.

use wallprof_model::Forgotten;

use super::Recorder;
use crate::error::Result;
use crate::forget::{self, Unused};
use crate::held::Held;
use crate::retention::{Generations, RETAIN_EVERY, Retention};

/// The part of a bounded recording that is in the file.
pub(super) struct Window {
    pub generations: Generations,
    pub held: Held,
    pub forgotten: Forgotten,
}

impl Window {
    pub fn new(retention: Retention) -> Self {
        Window {
            generations: Generations::new(retention),
            held: Held::default(),
            forgotten: Forgotten::default(),
        }
    }
}

impl Recorder {
    /// Ends a generation and, after some of them, deletes some outdated rows of a bounded recording.
    pub(super) fn retain(&mut self) -> Result<()> {
        let Some(window) = &mut self.window else { return Ok(()) };
        let now = window.generations.next(self.last, self.next_stall);
        self.ids.set_generation(now);
        self.texts.uses.set_generation(now);
        self.tree.uses.set_generation(now);
        if !(now - 1).is_multiple_of(RETAIN_EVERY) {
            return Ok(());
        }
        let used_bytes = self.database.used_bytes();
        let Some(window) = &mut self.window else { return Ok(()) };
        let outdated = window.generations.outdated(self.last, used_bytes);
        // Rows that become unused by this deletion are found with the next commit.
        let expired = window.generations.unused_since();
        let unused = Unused::find(expired, &mut self.ids, &mut self.tree, &mut self.texts);
        if outdated.is_none() && unused.is_empty() {
            return Ok(());
        }
        let stalls = self.database.change(|from| {
            let stalls = outdated.as_ref().map_or(Ok(0), |old| forget::delete_rows(from, old))?;
            unused.delete(from)?;
            Ok(stalls)
        })?;
        self.written.stalls = self.written.stalls.saturating_sub(stalls);
        unused.forget(&mut self.ids, &mut self.tree, &mut self.texts, &mut window.forgotten);
        if let Some(outdated) = &outdated {
            window.generations.remove(outdated);
            self.start = outdated.start;
        }
        Ok(())
    }

    /// The second under which sums of this commit are filed: that of the commit in a bounded recording, else
    /// 0.
    pub(super) fn flush_second(&self) -> u32 {
        if self.window.is_none() {
            return 0;
        }
        let offset = self.clock.map_or(0, |clock| clock.epoch.0.wrapping_sub(clock.mono.0));
        let epoch_ns = self.last.0.saturating_sub(1).wrapping_add(offset);
        u32::try_from(epoch_ns / 1_000_000_000).unwrap_or(u32::MAX)
    }
}
