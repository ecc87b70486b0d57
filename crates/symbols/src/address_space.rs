// SPDX-License-Identifier: Apache-2.0
//! The executable mappings of a process, sorted and without overlap.
//!
//! Owns no files and no facts about modules. Each mapping carries the number that turns its addresses into
//! ELF virtual addresses.

use wallprof_model::{Frame, FrameKind, ModuleId, Owner};

use crate::mapping_quota::Charge;

/// `vm.max_map_count` allows 65,530 mappings by default.
const MAX_MAPPINGS: usize = 1 << 16;

/// In the address of a frame: the rest is that of an interpreted method (`bpf/include/unwind.h`).
pub const INTERPRETED_METHOD: u64 = 1 << 62;

/// The origin of executable memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// A file: the address plus `bias`, wrapping, is the ELF virtual address.
    Module { id: ModuleId, bias: u64 },
    /// Memory without a file: code that is generated at run time.
    Jit,
}

/// Executable memory `[start, end)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub start: u64,
    pub end: u64,
    pub target: Target,
}

/// The executable mappings of one process image.
#[derive(Clone, Debug, Default)]
pub(crate) struct AddressSpace {
    mappings: Vec<Mapping>,
    charge: Charge,
}

/// Why a mapping is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotKept {
    /// The process has too many.
    TooMany,
    /// The processes of its user have too many.
    OverQuota,
}

impl AddressSpace {
    /// The mappings are charged to this account from now on.
    pub(crate) fn charge_to(&mut self, mut account: Charge) {
        account.force(self.mappings.len());
        self.charge = account;
    }

    /// The owner whom the mappings are charged to.
    pub(crate) fn owner(&self) -> Owner {
        self.charge.owner()
    }

    /// Adds a mapping; it replaces older mappings where they overlap.
    pub(crate) fn map(&mut self, mapping: Mapping) -> Result<(), NotKept> {
        if mapping.start >= mapping.end {
            return Ok(());
        }
        self.unmap(mapping.start, mapping.end);
        let at = self.mappings.partition_point(|known| known.start < mapping.start);
        if self.grow_neighbour(at, mapping) {
            return Ok(());
        }
        if self.mappings.len() >= MAX_MAPPINGS {
            return Err(NotKept::TooMany);
        }
        if !self.charge.set(self.mappings.len() + 1) {
            return Err(NotKept::OverQuota);
        }
        self.mappings.insert(at, mapping);
        Ok(())
    }

    /// Removes the mappings in `[start, end)`; one that reaches out of the range keeps its rest.
    pub(crate) fn unmap(&mut self, start: u64, end: u64) {
        let from = self.mappings.partition_point(|known| known.end <= start);
        let to = self.mappings.partition_point(|known| known.start < end);
        if start >= end || from >= to {
            return;
        }
        let (first, last) = (self.mappings[from], self.mappings[to - 1]);
        let before = Mapping { end: start, ..first };
        let after = Mapping { start: end, ..last };
        let rests = [before, after].into_iter().filter(|rest| rest.start < rest.end);
        self.mappings.splice(from..to, rests);
        // A hole in the middle leaves one more than there were.
        self.charge.force(self.mappings.len());
    }

    /// Whether there is a mapping in `[start, end)`.
    pub(crate) fn overlaps(&self, start: u64, end: u64) -> bool {
        let from = self.mappings.partition_point(|known| known.end <= start);
        start < end && self.mappings.get(from).is_some_and(|known| known.start < end)
    }

    /// The frame of `address`; `None` where no executable mapping is known.
    pub(crate) fn frame(&self, address: u64) -> Option<Frame> {
        if address & INTERPRETED_METHOD != 0 {
            return Some(Frame { kind: FrameKind::Jit, module: None, address });
        }
        let after = self.mappings.partition_point(|known| known.start <= address);
        let mapping = self.mappings[..after].last().filter(|mapping| address < mapping.end)?;
        Some(match mapping.target {
            Target::Module { id, bias } => {
                Frame { kind: FrameKind::Native, module: Some(id), address: address.wrapping_add(bias) }
            }
            Target::Jit => Frame { kind: FrameKind::Jit, module: None, address },
        })
    }

    /// All mappings, ascending.
    pub(crate) fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }

    /// A JIT compiler maps page after page: adjacent memory of the same origin is one mapping.
    fn grow_neighbour(&mut self, at: usize, mapping: Mapping) -> bool {
        let before = self.mappings[..at].last_mut();
        let Some(before) =
            before.filter(|known| known.end == mapping.start && known.target == mapping.target)
        else {
            return false;
        };
        before.end = mapping.end;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping_quota::MappingQuota;
    use proptest::prelude::*;

    fn module(start: u64, end: u64, id: u32) -> Mapping {
        Mapping { start, end, target: Target::Module { id: ModuleId(id), bias: 0u64.wrapping_sub(start) } }
    }

    fn native(id: u32, address: u64) -> Option<Frame> {
        Some(Frame { kind: FrameKind::Native, module: Some(ModuleId(id)), address })
    }

    #[test]
    fn a_later_mapping_covers_an_earlier_one() {
        let mut space = AddressSpace::default();
        space.map(module(0x1000, 0x9000, 1)).expect("kept");
        space.map(module(0x3000, 0x4000, 2)).expect("kept");
        assert_eq!(space.frame(0x2fff), native(1, 0x1fff));
        assert_eq!(space.frame(0x3000), native(2, 0));
        assert_eq!(space.frame(0x8fff), native(1, 0x7fff));
        assert_eq!(space.frame(0x9000), None);
        assert_eq!(space.frame(0xfff), None);
    }

    #[test]
    fn anonymous_memory_is_jit_at_its_own_address() {
        let mut space = AddressSpace::default();
        for page in [0x1000, 0x2000, 0x3000] {
            space.map(Mapping { start: page, end: page + 0x1000, target: Target::Jit }).expect("kept");
        }
        assert_eq!(space.mappings.len(), 1);
        assert_eq!(space.frame(0x2abc), Some(Frame { kind: FrameKind::Jit, module: None, address: 0x2abc }));
    }

    #[test]
    fn mappings_are_bounded() {
        let mut space = AddressSpace::default();
        for index in 0..MAX_MAPPINGS as u64 {
            assert_eq!(space.map(module(index * 2, index * 2 + 1, 1)), Ok(()));
        }
        assert_eq!(space.map(module(u64::MAX - 1, u64::MAX, 1)), Err(NotKept::TooMany));
    }

    #[test]
    fn mappings_of_one_user_are_bounded_over_all_processes() {
        let mut quota = MappingQuota::default();
        let mut space = || {
            let mut space = AddressSpace::default();
            space.charge_to(quota.account(Owner::User(1000)));
            (0..MAX_MAPPINGS as u64).for_each(|index| _ = space.map(module(index * 2, index * 2 + 1, 1)));
            space
        };
        let spaces: Vec<AddressSpace> = (0..5).map(|_| space()).collect();
        let kept: usize = spaces.iter().map(|space| space.mappings().len()).sum();
        assert_eq!(kept, 4 * MAX_MAPPINGS, "the fifth process has none");
        let mut last = spaces[4].clone();
        assert_eq!(last.map(module(1, 2, 1)), Err(NotKept::OverQuota));
        drop(spaces);
        assert_eq!(last.map(module(1, 2, 1)), Ok(()));
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_plain_table(steps in proptest::collection::vec((0u64..64, 0u64..64, 0u32..4), 0..40)) {
            let mut space = AddressSpace::default();
            let mut table = [None; 64];
            for (start, end, id) in steps {
                // Id 0 stands for an unmapping.
                let known = (id > 0).then_some(id);
                let covered = table.iter().take(end as usize).skip(start as usize);
                prop_assert_eq!(space.overlaps(start, end), covered.clone().any(Option::is_some));
                match known {
                    Some(id) => {
                        let target = Target::Module { id: ModuleId(id), bias: 0 };
                        space.map(Mapping { start, end, target }).expect("kept");
                    }
                    None => space.unmap(start, end),
                }
                table.iter_mut().take(end as usize).skip(start as usize).for_each(|slot| *slot = known);
            }
            for (address, slot) in table.iter().enumerate() {
                let frame = space.frame(address as u64);
                prop_assert_eq!(frame.and_then(|frame| frame.module), slot.map(ModuleId));
            }
        }
    }
}
