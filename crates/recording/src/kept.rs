// SPDX-License-Identifier: Apache-2.0
//! The numbers that the stalls of the last commits have in the file, for other parts of the program that
//! refer to stalls.

use std::collections::HashMap;

use wallprof_model::ThreadKey;
use wallprof_model::event::Stall;
use wallprof_model::profile::KeptStall;

/// Limit on the stalls between two calls of [`KeptStalls::take`]. Later ones are left out.
const MOST: usize = 8192;

/// Kept stalls, and the threads of stalls that are not judged yet.
#[derive(Default)]
pub(crate) struct KeptStalls {
    threads: HashMap<u32, ThreadKey>,
    stalls: Vec<KeptStall>,
}

impl KeptStalls {
    /// Called for a stall that is not judged yet. `row` is the row of the source's thread.
    pub fn expect(&mut self, row: u32, thread: ThreadKey) {
        self.threads.insert(row, thread);
    }

    /// Called for a stall that is kept under number `id`. Its thread is a row.
    pub fn add(&mut self, id: u64, stall: &Stall) {
        let Some(thread) = self.threads.get(&stall.thread.0).filter(|_| self.stalls.len() < MOST) else {
            return;
        };
        let Stall { kind, start, end, trace, .. } = *stall;
        self.stalls.push(KeptStall { id, thread: *thread, kind, start, end, trace });
    }

    pub fn take(&mut self) -> Vec<KeptStall> {
        self.threads.clear();
        std::mem::take(&mut self.stalls)
    }
}
