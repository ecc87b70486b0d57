//! What processes have mapped since their exec that nobody asked about yet.
//!
//! With `--name` a process is recorded from its exec on and may be gone before its first stack is looked at: by then
//! `/proc` says nothing of it. Bounded: the oldest are forgotten.

use std::collections::{HashMap, VecDeque};

use wallprof_probe::Mapping;

/// Processes that are remembered.
const MAX_PROCESSES: usize = 256;
/// Mappings of each: programs with many libraries have a hundred.
const MAX_MAPPINGS: usize = 256;

/// A process since its exec.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Stranger {
    pub mappings: Vec<Mapping>,
    pub has_ended: bool,
}

#[derive(Default)]
pub struct Strangers {
    by_pid: HashMap<u32, Stranger>,
    /// By the time of their exec; a pid may be in it more than once.
    order: VecDeque<u32>,
}

impl Strangers {
    /// A process has a new program: its memory begins anew.
    pub fn begin(&mut self, pid: u32) {
        self.by_pid.insert(pid, Stranger::default());
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
        if let Some(stranger) = self.by_pid.get_mut(&mapping.pid)
            && stranger.mappings.len() < MAX_MAPPINGS
        {
            stranger.mappings.push(mapping);
        }
    }

    pub fn end(&mut self, pid: u32) {
        if let Some(stranger) = self.by_pid.get_mut(&pid) {
            stranger.has_ended = true;
        }
    }

    /// What is known of a process from its exec on; it is none from now on.
    pub fn meet(&mut self, pid: u32) -> Option<Stranger> {
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
    fn a_process_is_known_from_its_last_exec_on() {
        let mut strangers = Strangers::default();
        strangers.map(mapping(7, 1));
        assert_eq!(strangers.meet(7), None, "its exec was not seen");
        strangers.begin(7);
        strangers.map(mapping(7, 2));
        strangers.begin(7);
        strangers.map(mapping(7, 3));
        strangers.end(7);
        let expected = Stranger { mappings: vec![mapping(7, 3)], has_ended: true };
        assert_eq!((strangers.meet(7), strangers.meet(7)), (Some(expected), None));
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let mut strangers = Strangers::default();
        (0..10_000).for_each(|pid| strangers.begin(pid));
        (0..10_000).for_each(|start| strangers.map(mapping(9_999, start)));
        assert_eq!((strangers.by_pid.len(), strangers.order.len()), (MAX_PROCESSES, MAX_PROCESSES));
        assert_eq!(strangers.meet(9_999).unwrap().mappings.len(), MAX_MAPPINGS);
        (0..10_000).for_each(|_| strangers.begin(1));
        assert_eq!(strangers.by_pid.len(), 1);
    }
}
