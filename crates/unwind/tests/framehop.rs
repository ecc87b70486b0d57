// SPDX-License-Identifier: Apache-2.0
//! The walker agrees with framehop on stacks that are generated from the rules of libc.

mod synthetic_stack;

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, FrameAddress, Module, Unwinder};
use gimli::{BaseAddresses, CieOrFde, EhFrame, LittleEndian, UnwindSection};
use object::{Object, ObjectSection};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::LazyLock;
use synthetic_stack::{BIAS, OneFile, SyntheticStack, Words};
use wallprof_model::StackEnd;
use wallprof_unwind::{Registers, Table, walk};

const LIBC: &str = "/lib/x86_64-linux-gnu/libc.so.6";

static IMAGE: LazyLock<Vec<u8>> = LazyLock::new(|| std::fs::read(LIBC).expect("libc is where Debian has it"));
static TABLE: LazyLock<Table> = LazyLock::new(|| Table::from_elf(&IMAGE).expect("libc has unwind entries"));

/// The code of libc's functions, by gimli. Tables cover some code without entries, too.
static ENTRIES: LazyLock<BTreeMap<u64, u64>> = LazyLock::new(|| {
    let file = object::File::parse(&**IMAGE).expect("an ELF file");
    let section = file.section_by_name(".eh_frame").expect("libc has entries");
    let eh_frame = EhFrame::new(section.data().expect("its bytes"), LittleEndian);
    let bases = BaseAddresses::default().set_eh_frame(section.address());
    let mut entries = eh_frame.entries(&bases);
    let mut ranges = BTreeMap::new();
    while let Some(entry) = entries.next().expect("readable entries") {
        if let CieOrFde::Fde(partial) = entry {
            let fde = partial.parse(EhFrame::cie_from_offset).expect("a readable entry");
            ranges.insert(fde.initial_address(), fde.end_address());
        }
    }
    ranges
});

fn has_entry(address: u64) -> bool {
    ENTRIES.range(..=address).next_back().is_some_and(|(_, end)| address < *end)
}

fn frames_of_framehop(start: Registers, words: &[u64]) -> Vec<u64> {
    let file = object::File::parse(&**IMAGE).expect("an ELF file");
    let section = |name: &str| {
        let section = file.section_by_name(name)?;
        let address = section.address();
        Some((address..address + section.size(), section.data().ok()?))
    };
    let ((text_svma, text), (frames_svma, frames)) =
        section(".text").zip(section(".eh_frame")).expect("both");
    let (header_svma, header) = section(".eh_frame_hdr").expect("its index");
    let sections = ExplicitModuleSectionInfo {
        text_svma: Some(text_svma),
        text: Some(text),
        eh_frame_svma: Some(frames_svma),
        eh_frame: Some(frames),
        eh_frame_hdr_svma: Some(header_svma),
        eh_frame_hdr: Some(header),
        ..Default::default()
    };
    let mut unwinder: UnwinderX86_64<&[u8]> = UnwinderX86_64::new();
    unwinder.add_module(Module::new("libc".into(), BIAS..BIAS + IMAGE.len() as u64, BIAS, sections));
    let mut cache: CacheX86_64 = CacheX86_64::new();
    let mut read = |address| Words(words).at(address).ok_or(());
    let registers = UnwindRegsX86_64::new(start.ip, start.sp, start.fp);
    let mut iter = unwinder.iter_frames(start.ip, registers, &mut cache, &mut read);
    let mut found = Vec::new();
    while let Ok(Some(frame)) = iter.next() {
        found.push(match frame {
            FrameAddress::InstructionPointer(address) => address,
            FrameAddress::ReturnAddress(address) => address.get(),
        });
    }
    found
}

proptest! {
    #[test]
    fn stacks_along_libcs_rules(depth in 1usize..100, numbers in proptest::collection::vec(any::<u64>(), 64)) {
        // splitmix64 over the numbers of proptest, so that a stack may use any amount.
        let mut state = numbers.iter().fold(0u64, |sum, number| sum.rotate_left(7) ^ number);
        let stack = SyntheticStack::new(&TABLE, depth, has_entry, || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed ^ (mixed >> 27)
        });
        let mut frames = Vec::new();
        let end = walk(stack.start, &mut Words(&stack.words), &OneFile(&TABLE), 128, &mut frames);
        prop_assert_eq!(&frames, &stack.frames);
        // A single frame is at an arbitrary instruction.
        if depth > 1 {
            prop_assert_eq!(end, StackEnd::Complete);
            prop_assert_eq!(frames_of_framehop(stack.start, &stack.words), frames);
        }
    }
}
