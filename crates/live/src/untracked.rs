// SPDX-License-Identifier: Apache-2.0
//! The mappings of untracked processes since their exec.
//!
//! With `--name` a process is recorded from its exec on. It may have ended before its first stack is read,
//! when
//! `/proc` no longer shows its mappings. The table is bounded; the oldest entries are removed.

use std::collections::{HashMap, VecDeque};

use wallprof_probe::Mapping;

/// Processes in the table.
const MAX_PROCESSES: usize = 256;
/// Mappings of each process: programs with many libraries have a hundred.
const MAX_MAPPINGS: usize = 256;

/// An untracked process since its exec.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct UntrackedProcess {
    pub mappings: Vec<Mapping>,
    pub has_ended: bool,
}

#[derive(Default)]
pub struct Untracked {
    by_pid: HashMap<u32, UntrackedProcess>,
    /// Pids in the order of their execs. A pid may be in it several times.
    order: VecDeque<u32>,
}

impl Untracked {
    /// Starts an empty list of mappings for the new program of a process.
    pub fn exec(&mut self, pid: u32) {
        self.by_pid.insert(pid, UntrackedProcess::default());
        self.order.push_back(pid);
        while self.order.len() > MAX_PROCESSES {
            if let Some(oldest) = self.order.pop_front()
                && !self.order.contains(&oldest)
            {
                self.by_pid.remove(&oldest);
            }
        }
    }

    pub fn map(&mut self, mapping: Mapping) {
        if let Some(process) = self.by_pid.get_mut(&mapping.pid)
            && process.mappings.len() < MAX_MAPPINGS
        {
            process.mappings.push(mapping);
        }
    }

    pub fn end(&mut self, pid: u32) {
        if let Some(process) = self.by_pid.get_mut(&pid) {
            process.has_ended = true;
        }
    }

    /// Removes a process that is tracked now. `None` if its exec was not seen.
    pub fn take(&mut self, pid: u32) -> Option<UntrackedProcess> {
        self.by_pid.remove(&pid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(pid: u32, start: u64) -> Mapping {
        Mapping { pid, start, len: 1, page_offset: 0, build_id: None, path: vec![] }
    }

    #[test]
    fn mappings_are_kept_since_the_last_exec() {
        let mut untracked = Untracked::default();
        untracked.map(mapping(7, 1));
        assert_eq!(untracked.take(7), None, "its exec was not seen");
        untracked.exec(7);
        untracked.map(mapping(7, 2));
        untracked.exec(7);
        untracked.map(mapping(7, 3));
        untracked.end(7);
        let expected = UntrackedProcess { mappings: vec![mapping(7, 3)], has_ended: true };
        assert_eq!((untracked.take(7), untracked.take(7)), (Some(expected), None));
    }

    #[test]
    fn oldest_processes_are_removed() {
        let mut untracked = Untracked::default();
        (0..10_000).for_each(|pid| untracked.exec(pid));
        (0..10_000).for_each(|start| untracked.map(mapping(9_999, start)));
        assert_eq!((untracked.by_pid.len(), untracked.order.len()), (MAX_PROCESSES, MAX_PROCESSES));
        assert_eq!(untracked.take(9_999).unwrap().mappings.len(), MAX_MAPPINGS);
        (0..10_000).for_each(|_| untracked.exec(1));
        assert_eq!(untracked.by_pid.len(), 1);
    }
}
