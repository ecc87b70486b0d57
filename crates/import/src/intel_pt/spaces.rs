// SPDX-License-Identifier: Apache-2.0
//! The memory of the recorded processes over time, numbered for the decoder. A new space is made when the
//! content of an address changes; an added mapping keeps the space.

use std::collections::HashMap;

use wallprof_intel_pt::SpaceId;
use wallprof_model::ModuleId;

/// The states of all processes' memory. A compiler that overwrites its code makes a new one each time.
const MAX_SPACES: usize = 1 << 16;
/// Mappings of all spaces together, 40 bytes each.
const MAX_REGIONS: usize = 1 << 21;

/// The origin of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Module(ModuleId),
    /// The dump of a compiler, by its number.
    Dump(u32),
}

/// Executable memory `[start, end)` of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    pub start: u64,
    pub end: u64,
    pub origin: Origin,
    /// The sum with an address is the ELF virtual address; in a dump, the offset in the file.
    pub bias: u64,
    /// The sum with an address is the offset in the file.
    pub to_offset: u64,
}

impl Region {
    /// Whether both assign the same to every address.
    fn agrees(&self, other: &Region) -> bool {
        (self.origin, self.bias, self.to_offset) == (other.origin, other.bias, other.to_offset)
    }
}

/// All spaces, and the current one of each process.
#[derive(Debug)]
pub(crate) struct Spaces {
    /// The first one is empty, and is that of unknown processes.
    all: Vec<Vec<Region>>,
    current: HashMap<u32, SpaceId>,
    regions: usize,
    lost: u64,
}

impl Default for Spaces {
    fn default() -> Self {
        Spaces { all: vec![Vec::new()], current: HashMap::new(), regions: 0, lost: 0 }
    }
}

impl Spaces {
    pub(crate) fn of(&self, pid: u32) -> SpaceId {
        self.current.get(&pid).copied().unwrap_or_default()
    }

    /// The mapping at `address`.
    pub(crate) fn region(&self, space: SpaceId, address: u64) -> Option<&Region> {
        let regions = self.all.get(space.0 as usize)?;
        let after = regions.partition_point(|region| region.start <= address);
        regions[..after].last().filter(|region| address < region.end)
    }

    /// The process maps a file.
    pub(crate) fn map(&mut self, pid: u32, region: Region) {
        if region.start >= region.end || self.regions >= MAX_REGIONS {
            self.lost += u64::from(region.start < region.end);
            return;
        }
        let space = match self.agrees(pid, &region) {
            true => self.current.get(&pid).copied(),
            false => None,
        };
        if let Some(space) = space.or_else(|| self.renew(pid)) {
            let regions = &mut self.all[space.0 as usize];
            let before = regions.len();
            cut(regions, region.start, region.end);
            let at = regions.partition_point(|known| known.start < region.start);
            regions.insert(at, region);
            self.regions = self.regions + regions.len() - before;
        }
    }

    /// The process maps memory of unknown content there.
    pub(crate) fn unmap(&mut self, pid: u32, start: u64, end: u64) {
        let Some(regions) = self.current.get(&pid).map(|space| &self.all[space.0 as usize]) else { return };
        if overlapping(regions, start, end).is_empty() {
            return;
        }
        if let Some(space) = self.renew(pid) {
            cut(&mut self.all[space.0 as usize], start, end);
        }
    }

    /// A child starts with its parent's memory. Later mappings of one do not matter to the other, which does
    /// not run them.
    pub(crate) fn fork(&mut self, parent: u32, child: u32) {
        if parent != child {
            match self.current.get(&parent).copied() {
                Some(space) => self.current.insert(child, space),
                None => self.current.remove(&child),
            };
        }
    }

    /// The process starts again with empty memory.
    pub(crate) fn clear(&mut self, pid: u32) {
        self.current.remove(&pid);
    }

    /// Mappings beyond the limit.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    /// Whether the known content at `region` is the same.
    fn agrees(&self, pid: u32, region: &Region) -> bool {
        let Some(space) = self.current.get(&pid) else { return false };
        let known = overlapping(&self.all[space.0 as usize], region.start, region.end);
        known.iter().all(|known| known.agrees(region))
    }

    /// Makes a new space for the process, with the mappings of its current one.
    fn renew(&mut self, pid: u32) -> Option<SpaceId> {
        let regions = match self.current.get(&pid) {
            Some(space) => self.all[space.0 as usize].clone(),
            None => Vec::new(),
        };
        if self.all.len() >= MAX_SPACES || self.regions + regions.len() > MAX_REGIONS {
            self.lost += 1;
            return None;
        }
        self.regions += regions.len();
        let space = SpaceId(self.all.len() as u32);
        self.all.push(regions);
        self.current.insert(pid, space);
        Some(space)
    }
}

fn overlapping(regions: &[Region], start: u64, end: u64) -> &[Region] {
    let from = regions.partition_point(|region| region.end <= start);
    let to = regions.partition_point(|region| region.start < end);
    regions.get(from..to).unwrap_or_default()
}

/// Removes `[start, end)`.
fn cut(regions: &mut Vec<Region>, start: u64, end: u64) {
    let from = regions.partition_point(|region| region.end <= start);
    let to = regions.partition_point(|region| region.start < end);
    if from >= to {
        return;
    }
    let (first, last) = (regions[from], regions[to - 1]);
    let rests = [Region { end: start, ..first }, Region { start: end, ..last }];
    regions.splice(from..to, rests.into_iter().filter(|rest| rest.start < rest.end));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(start: u64, end: u64, module: u32) -> Region {
        let origin = Origin::Module(ModuleId(module));
        Region { start, end, origin, bias: 0, to_offset: 0u64.wrapping_sub(start) }
    }

    fn module(spaces: &Spaces, space: SpaceId, address: u64) -> Option<u32> {
        spaces.region(space, address).map(|region| match region.origin {
            Origin::Module(module) => module.0,
            Origin::Dump(_) => panic!("no dump is mapped"),
        })
    }

    #[test]
    fn added_mapping_keeps_the_space() {
        let mut spaces = Spaces::default();
        assert_eq!(spaces.of(7), SpaceId(0));
        spaces.map(7, region(0x1000, 0x2000, 1));
        let space = spaces.of(7);
        spaces.map(7, region(0x3000, 0x4000, 2));
        spaces.map(7, region(0x1000, 0x2000, 1));
        assert_eq!(spaces.of(7), space);
        let found = [0xfff, 0x1000, 0x1fff, 0x2000, 0x3800].map(|at| module(&spaces, space, at));
        assert_eq!(found, [None, Some(1), Some(1), None, Some(2)]);
    }

    #[test]
    fn replaced_mapping_makes_a_new_space() {
        let mut spaces = Spaces::default();
        spaces.map(7, region(0x1000, 0x4000, 1));
        let before = spaces.of(7);
        spaces.map(7, region(0x2000, 0x3000, 2));
        let after = spaces.of(7);
        assert_ne!(before, after);
        assert_eq!(module(&spaces, before, 0x2000), Some(1));
        let found = [0x1fff, 0x2000, 0x3000].map(|at| module(&spaces, after, at));
        assert_eq!(found, [Some(1), Some(2), Some(1)]);
        spaces.unmap(7, 0x8000, 0x9000);
        assert_eq!(spaces.of(7), after);
        spaces.unmap(7, 0, 0x9000);
        assert_eq!(module(&spaces, spaces.of(7), 0x2000), None);
        assert_eq!(module(&spaces, after, 0x2000), Some(2));
    }

    #[test]
    fn children_share_until_they_differ() {
        let mut spaces = Spaces::default();
        spaces.map(7, region(0x1000, 0x2000, 1));
        spaces.fork(7, 8);
        assert_eq!(spaces.of(8), spaces.of(7));
        spaces.map(8, region(0x1000, 0x2000, 2));
        let found = [7, 8].map(|pid| module(&spaces, spaces.of(pid), 0x1000));
        assert_eq!(found, [Some(1), Some(2)]);
        spaces.clear(8);
        assert_eq!(spaces.of(8), SpaceId(0));
        spaces.fork(99, 7);
        assert_eq!(spaces.of(7), SpaceId(0), "an unknown parent");
    }

    #[test]
    fn memory_is_bounded() {
        let mut spaces = Spaces::default();
        for turn in 0..MAX_SPACES as u32 + 5 {
            spaces.map(7, region(0x1000, 0x2000, turn));
        }
        assert!(spaces.all.len() <= MAX_SPACES && spaces.lost() > 0);
        spaces.map(7, region(9, 9, 1));
        spaces.map(7, region(u64::MAX, 0, 1));
    }
}
