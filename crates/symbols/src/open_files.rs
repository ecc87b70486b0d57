// SPDX-License-Identifier: Apache-2.0
//! A bounded cache of open files of modules. The least recently used file is closed first.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::sync::Arc;

use rustix::process::{Resource, getrlimit};
use wallprof_model::ModuleId;

/// A quarter of 1,024, the usual soft limit of descriptors.
const MAX_OPEN: u64 = 256;
/// Descriptors for other uses. BPF programs and maps take 170, counters 50, the recording and its journal a
/// few. Where the limit is hardly above this, most files are opened again for each read.
const RESERVED: u64 = 512;
const MIN_OPEN: u64 = 4;

/// Open files by module.
#[derive(Default)]
pub(crate) struct OpenFiles {
    by_module: HashMap<ModuleId, (Arc<File>, u64)>,
    by_use: BTreeMap<u64, ModuleId>,
    clock: u64,
}

impl OpenFiles {
    pub(crate) fn get(&self, id: ModuleId) -> Option<Arc<File>> {
        self.by_module.get(&id).map(|(file, _)| Arc::clone(file))
    }

    /// Keeps `file` open. Closes the least recently used files beyond the limit.
    pub(crate) fn keep(&mut self, id: ModuleId, file: Arc<File>) {
        self.keep_at_most(limit(getrlimit(Resource::Nofile).current), id, file);
    }

    pub(crate) fn close(&mut self, id: ModuleId) {
        if let Some((_, used)) = self.by_module.remove(&id) {
            self.by_use.remove(&used);
        }
    }

    fn keep_at_most(&mut self, limit: usize, id: ModuleId, file: Arc<File>) {
        self.close(id);
        self.clock += 1;
        self.by_module.insert(id, (file, self.clock));
        self.by_use.insert(self.clock, id);
        while self.by_module.len() > limit
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.by_module.remove(&oldest);
        }
    }
}

/// The number of files that stay open in a process with this limit of descriptors.
fn limit(descriptors: Option<u64>) -> usize {
    let left = descriptors.map_or(MAX_OPEN, |descriptors| descriptors.saturating_sub(RESERVED));
    left.clamp(MIN_OPEN, MAX_OPEN) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_leaves_most_descriptors_to_others() {
        assert_eq!(limit(Some(230)), 4);
        assert_eq!(limit(Some(600)), 88);
        assert_eq!([limit(Some(1_024)), limit(Some(1 << 20)), limit(None)], [256; 3]);
    }

    #[test]
    fn least_recently_used_file_is_closed() {
        let mut open = OpenFiles::default();
        let file = Arc::new(File::open("/dev/null").expect("a file"));
        for id in [1, 2, 1, 3] {
            open.keep_at_most(2, ModuleId(id), Arc::clone(&file));
        }
        assert_eq!([1, 2, 3].map(|id| open.get(ModuleId(id)).is_some()), [true, false, true]);
        open.close(ModuleId(1));
        assert!(open.get(ModuleId(1)).is_none());
        assert_eq!((open.by_module.len(), open.by_use.len(), Arc::strong_count(&file)), (1, 1, 2));
    }
}
