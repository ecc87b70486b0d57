//! Which numbers the stalls of the last commits have in the file: for those who point at stalls from
//! elsewhere.

use std::collections::HashMap;

use wallprof_model::ThreadKey;
use wallprof_model::event::Stall;
use wallprof_model::profile::KeptStall;

/// Stalls remembered until somebody asks; later ones are not.
const MOST: usize = 8192;

/// Stalls that were kept, and the threads of those that may be.
#[derive(Default)]
pub(crate) struct KeptStalls {
    threads: HashMap<u32, ThreadKey>,
    stalls: Vec<KeptStall>,
}

impl KeptStalls {
    /// A stall of the source's thread, which is row `row` in the file, may be kept.
    pub fn expect(&mut self, row: u32, thread: ThreadKey) {
        self.threads.insert(row, thread);
    }

    /// This one is, under number `id`; its thread is a row.
    pub fn add(&mut self, id: u64, stall: &Stall) {
        let Some(thread) = self.threads.get(&stall.thread.0).filter(|_| self.stalls.len() < MOST) else {
            return;
        };
        let Stall { kind, start, end, .. } = *stall;
        self.stalls.push(KeptStall { id, thread: *thread, kind, start, end });
    }

    pub fn take(&mut self) -> Vec<KeptStall> {
        self.threads.clear();
        std::mem::take(&mut self.stalls)
    }
}
