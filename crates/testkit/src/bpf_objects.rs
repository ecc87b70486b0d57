// SPDX-License-Identifier: Apache-2.0
//! The BPF programs and maps that a process has loaded, and whether they are still there without it.

use std::collections::BTreeSet;
use std::fs;
use std::time::Instant;

use libbpf_rs::query::{MapInfoIter, ProgInfoIter};

use crate::assert_always;
use crate::lines::TIMEOUT;

/// By the kernel's ids, which are not used again soon.
#[derive(Debug, Default)]
pub struct BpfObjects {
    programs: BTreeSet<u32>,
    maps: BTreeSet<u32>,
}

impl BpfObjects {
    /// Those that the process holds by a file descriptor.
    pub fn of_process(pid: u32) -> Self {
        let mut objects = BpfObjects::default();
        let descriptors = fs::read_dir(format!("/proc/{pid}/fdinfo")).expect("the process lives");
        for descriptor in descriptors.flatten() {
            let Ok(info) = fs::read_to_string(descriptor.path()) else { continue };
            objects.programs.extend(info.lines().filter_map(|line| id(line, "prog_id:")));
            objects.maps.extend(info.lines().filter_map(|line| id(line, "map_id:")));
        }
        objects
    }

    pub fn has_programs_and_maps(&self) -> bool {
        !self.programs.is_empty() && !self.maps.is_empty()
    }

    /// Returns when the kernel has freed all of them, which it does some time after the last reference.
    pub fn wait_until_gone(&self) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let left = self.still_there();
            if left.programs.is_empty() && left.maps.is_empty() {
                return;
            }
            assert_always!(Instant::now() < deadline, "left in the kernel: {left:?}");
            std::thread::yield_now();
        }
    }

    fn still_there(&self) -> BpfObjects {
        let programs: BTreeSet<u32> = ProgInfoIter::default().map(|program| program.id).collect();
        let maps: BTreeSet<u32> = MapInfoIter::default().map(|map| map.id).collect();
        BpfObjects {
            programs: self.programs.intersection(&programs).copied().collect(),
            maps: self.maps.intersection(&maps).copied().collect(),
        }
    }
}

fn id(line: &str, field: &str) -> Option<u32> {
    line.strip_prefix(field)?.trim().parse().ok()
}
