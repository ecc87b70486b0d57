// SPDX-License-Identifier: Apache-2.0
//! Where a function ends: its returns, and the jumps by which it hands over to another function.
//!
//! The code is decoded from start to end, and no path through it is followed: each instruction in the
//! function counts. The code comes as bytes; this file reads no ELF structure.

use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};

use super::{MAX_ENDS, SiteProblem};

/// How many instructions before an indirect jump may load its target from a table.
const TABLE_DISTANCE: usize = 8;

/// Bytes of a function's code. The address is an ELF virtual address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part<'a> {
    pub address: u64,
    pub code: &'a [u8],
}

/// An instruction that ends the function. See [`super::ProbeSite::condition`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub address: u64,
    pub condition: Option<u8>,
}

/// The ends of a function, in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ends {
    pub ends: Vec<End>,
    /// See [`super::ProbeSites::unclear_ends`].
    pub unclear: Vec<u64>,
}

/// An instruction after which execution may continue elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transfer {
    Return,
    Jump {
        target: u64,
        condition: Option<u8>,
    },
    /// `loop` and `jrcxz`: the flags do not say whether they jump.
    CountedJump {
        target: u64,
    },
    Call {
        target: u64,
    },
    /// By an address from a fixed slot, as the linker fills it.
    SlotJump,
    /// To an address that is no entry of a jump table.
    IndirectJump,
}

/// The ends of the function whose entry begins the first part. The other parts are those with its name and
/// `.cold`.
///
/// GCC moves blocks of a function to such a part and jumps to them. Clang makes functions of them, under the
/// same names, and calls them: a called part is another function.
pub(super) fn ends(parts: &[Part<'_>]) -> Result<Ends, SiteProblem> {
    let mut decoded = Vec::new();
    for part in parts {
        decoded.push((range(part), transfers(part)?));
    }
    let all: Vec<Transfer> = decoded.iter().flat_map(|(_, found)| found).map(|&(_, found)| found).collect();
    let entry = parts.first().map(|part| part.address);
    decoded.retain(|(range, _)| Some(range.start) == entry || belongs(range, &all));
    let is_inside = |target: u64| decoded.iter().any(|(range, _)| range.contains(&target));
    let mut ends = Ends::default();
    for &(address, transfer) in decoded.iter().flat_map(|(_, transfers)| transfers) {
        match transfer {
            Transfer::Return | Transfer::SlotJump => ends.ends.push(End { address, condition: None }),
            Transfer::Jump { target, condition } if !is_inside(target) => {
                ends.ends.push(End { address, condition });
            }
            Transfer::CountedJump { target } if !is_inside(target) => ends.unclear.push(address),
            Transfer::IndirectJump => ends.unclear.push(address),
            Transfer::Jump { .. } | Transfer::CountedJump { .. } | Transfer::Call { .. } => {}
        }
    }
    ends.ends.sort_unstable_by_key(|end| end.address);
    ends.ends.dedup_by_key(|end| end.address);
    ends.unclear.sort_unstable();
    ends.unclear.dedup();
    match ends.ends.len() {
        0 if ends.unclear.is_empty() => Err(SiteProblem::NoEnd),
        0 => Err(SiteProblem::OnlyUnclearEnds),
        count if count > MAX_ENDS => Err(SiteProblem::TooManyEnds { count }),
        _ if ends.ends.iter().any(|end| Some(end.address) == entry) => Err(SiteProblem::OneInstruction),
        _ => Ok(ends),
    }
}

fn range(part: &Part<'_>) -> Range<u64> {
    part.address..part.address.saturating_add(part.code.len() as u64)
}

/// Whether a cold part is one of the function's own.
fn belongs(part: &Range<u64>, transfers: &[Transfer]) -> bool {
    let is_entered = transfers
        .iter()
        .any(|transfer| matches!(transfer, Transfer::Jump { target, .. } if part.contains(target)));
    let is_called = transfers
        .iter()
        .any(|transfer| matches!(transfer, Transfer::Call { target } if *target == part.start));
    is_entered || !is_called
}

/// The transfers in one part, each with its address.
fn transfers(part: &Part<'_>) -> Result<Vec<(u64, Transfer)>, SiteProblem> {
    let mut decoder = Decoder::with_ip(64, part.code, part.address, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    let mut loads = [Register::None; TABLE_DISTANCE];
    let mut found = Vec::new();
    for number in 0.. {
        if !decoder.can_decode() {
            break;
        }
        let address = decoder.ip();
        decoder.decode_out(&mut instruction);
        if instruction.is_invalid() {
            return Err(SiteProblem::NotCode { address });
        }
        if let Some(transfer) = transfer(&instruction, &loads) {
            found.push((address, transfer));
        }
        if let Some(overwritten) = overwritten_register(&instruction) {
            loads.iter_mut().filter(|load| **load == overwritten).for_each(|load| *load = Register::None);
        }
        loads[number % TABLE_DISTANCE] = table_register(&instruction);
    }
    Ok(found)
}

/// `loads`: the registers that the instructions before this one loaded from a table.
fn transfer(instruction: &Instruction, loads: &[Register]) -> Option<Transfer> {
    let target = is_near(instruction).then(|| instruction.near_branch_target());
    match instruction.flow_control() {
        FlowControl::Return => Some(Transfer::Return),
        FlowControl::UnconditionalBranch => Some(Transfer::Jump { target: target?, condition: None }),
        FlowControl::ConditionalBranch => {
            let target = target?;
            Some(match condition(instruction) {
                Some(condition) => Transfer::Jump { target, condition: Some(condition) },
                None => Transfer::CountedJump { target },
            })
        }
        FlowControl::Call => Some(Transfer::Call { target: target? }),
        FlowControl::IndirectBranch if is_table_jump(instruction, loads) => None,
        FlowControl::IndirectBranch if instruction.is_ip_rel_memory_operand() => Some(Transfer::SlotJump),
        FlowControl::IndirectBranch => Some(Transfer::IndirectJump),
        FlowControl::Next
        | FlowControl::IndirectCall
        | FlowControl::Interrupt
        | FlowControl::XbeginXabortXend
        | FlowControl::Exception => None,
    }
}

fn is_near(instruction: &Instruction) -> bool {
    matches!(instruction.op0_kind(), OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64)
}

/// The condition of a `jcc` in the encoding of its opcode, `tttn`.
fn condition(instruction: &Instruction) -> Option<u8> {
    let is_counted = matches!(
        instruction.mnemonic(),
        Mnemonic::Loop
            | Mnemonic::Loope
            | Mnemonic::Loopne
            | Mnemonic::Jcxz
            | Mnemonic::Jecxz
            | Mnemonic::Jrcxz
    );
    // iced-x86 numbers the conditions in the order of their encodings, from 1 on; 0 is none.
    (instruction.condition_code() as u8).checked_sub(1).filter(|_| !is_counted)
}

/// Whether an indirect jump takes its target from a jump table. Compilers mark such jumps with the prefix
/// `notrack` where the program supports control-flow enforcement (Intel SDM, volume 1, chapter 17).
fn is_table_jump(instruction: &Instruction, loads: &[Register]) -> bool {
    let has_index = instruction.op0_kind() == OpKind::Memory && instruction.memory_index() != Register::None;
    let is_loaded = instruction.op0_kind() == OpKind::Register && loads.contains(&instruction.op0_register());
    // `notrack` is the byte of prefix `ds`.
    instruction.segment_prefix() == Register::DS || has_index || is_loaded
}

/// The register that holds an entry of a table after this instruction: it was loaded with an index, or was
/// added to the address of the table.
fn table_register(instruction: &Instruction) -> Register {
    if instruction.op0_kind() != OpKind::Register {
        return Register::None;
    }
    let is_move = matches!(instruction.mnemonic(), Mnemonic::Mov | Mnemonic::Movsxd | Mnemonic::Movzx);
    let is_loaded =
        is_move && instruction.op1_kind() == OpKind::Memory && instruction.memory_index() != Register::None;
    let is_added = instruction.mnemonic() == Mnemonic::Add
        && instruction.op0_register().is_gpr64()
        && instruction.op1_kind() != OpKind::Immediate8to64;
    if is_loaded || is_added { instruction.op0_register().full_register() } else { Register::None }
}

/// The register that has another value after this instruction, whatever it held before.
fn overwritten_register(instruction: &Instruction) -> Option<Register> {
    let is_write = matches!(
        instruction.mnemonic(),
        Mnemonic::Mov | Mnemonic::Movsxd | Mnemonic::Movzx | Mnemonic::Lea | Mnemonic::Pop
    );
    let is_register = instruction.op0_kind() == OpKind::Register;
    (is_write && is_register).then(|| instruction.op0_register().full_register())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn found(parts: &[(u64, &[u8])]) -> Result<Ends, SiteProblem> {
        let parts: Vec<Part<'_>> = parts.iter().map(|&(address, code)| Part { address, code }).collect();
        ends(&parts)
    }

    fn addresses(code: &[u8]) -> Vec<u64> {
        let found = found(&[(0x1000, code)]).expect("ends");
        assert!(found.unclear.is_empty(), "{code:x?}");
        found.ends.iter().map(|end| end.address).collect()
    }

    #[test]
    fn each_return_is_an_end() {
        // test edi,edi; je +1; ret; nop; rep ret
        assert_eq!(addresses(&[0x85, 0xff, 0x74, 0x01, 0xc3, 0x90, 0xf3, 0xc3]), [0x1004, 0x1006]);
        // endbr64; ret 8
        assert_eq!(addresses(&[0xf3, 0x0f, 0x1e, 0xfa, 0xc2, 8, 0]), [0x1004]);
    }

    #[test]
    fn jump_out_is_an_end_and_jump_inside_is_none() {
        // nop; jmp 0x1000 (a loop); jmp 0x2000
        assert_eq!(addresses(&[0x90, 0xeb, 0xfd, 0xe9, 0xf8, 0x0f, 0, 0]), [0x1003]);
        // nop; jmp to the byte behind the function
        assert_eq!(addresses(&[0x90, 0xeb, 0x00]), [0x1001]);
    }

    #[test]
    fn conditional_jump_out_has_its_condition() {
        // cmp edi,esi; jl 0x2000; ret
        let found = found(&[(0x1000, &[0x39, 0xf7, 0x0f, 0x8c, 0xf8, 0x0f, 0, 0, 0xc3])]).expect("ends");
        let end = |address, condition| End { address, condition };
        assert_eq!(found.ends, [end(0x1002, Some(0xc)), end(0x1008, None)]);
        for opcode in 0x70..=0x7f {
            let found = super::tests::found(&[(0x1000, &[0x90, opcode, 0x70, 0xc3])]).expect("ends");
            assert_eq!(found.ends[0], end(0x1001, Some(opcode & 0xf)), "{opcode:x}");
        }
        // jrcxz out; ret
        let counted = super::tests::found(&[(0x1000, &[0x90, 0xe3, 0x70, 0xc3])]).expect("ends");
        assert_eq!((counted.ends, counted.unclear), (vec![end(0x1003, None)], vec![0x1001]));
    }

    #[test]
    fn cold_part_belongs_unless_it_is_called() {
        let cold: (u64, &[u8]) = (0x2000, &[0x90, 0xc3]);
        let ends_with = |code: &[u8]| {
            let found = found(&[(0x1000, code), cold]).expect("ends");
            found.ends.iter().map(|end| end.address).collect::<Vec<_>>()
        };
        // je 0x2000; ret
        assert_eq!(ends_with(&[0x0f, 0x84, 0xfa, 0x0f, 0, 0, 0xc3]), [0x1006, 0x2001]);
        // call 0x2000; ret
        assert_eq!(ends_with(&[0xe8, 0xfb, 0x0f, 0, 0, 0xc3]), [0x1005]);
        // Nothing leads there: by a jump table.
        assert_eq!(ends_with(&[0x90, 0xc3]), [0x1001, 0x2001]);
    }

    #[test]
    fn indirect_jump_is_unclear_unless_it_uses_a_table_or_a_slot() {
        let kinds = |code: &[u8]| {
            let found = found(&[(0x1000, &[code, &[0xc3]].concat())]).expect("ends");
            (found.ends.len() - 1, found.unclear.len())
        };
        // movsxd rax,[rdx+rax*4]; add rax,rdx; jmp rax
        assert_eq!(kinds(&[0x48, 0x63, 0x04, 0x82, 0x48, 0x01, 0xd0, 0xff, 0xe0]), (0, 0));
        // nop; jmp [rax*8+0x400000]
        assert_eq!(kinds(&[0x90, 0xff, 0x24, 0xc5, 0, 0, 0x40, 0]), (0, 0));
        // nop; notrack jmp rax
        assert_eq!(kinds(&[0x90, 0x3e, 0xff, 0xe0]), (0, 0));
        // nop; jmp [rip+0x1000]
        assert_eq!(kinds(&[0x90, 0xff, 0x25, 0, 0x10, 0, 0]), (1, 0));
        // mov rax,[rdi]; jmp [rax+16]
        assert_eq!(kinds(&[0x48, 0x8b, 0x07, 0xff, 0x60, 0x10]), (0, 1));
        // add rax,rdx; mov rax,[rdi]; jmp rax
        assert_eq!(kinds(&[0x48, 0x01, 0xd0, 0x48, 0x8b, 0x07, 0xff, 0xe0]), (0, 1));
        // add edx,1; jmp rdx
        assert_eq!(kinds(&[0x83, 0xc2, 0x01, 0xff, 0xe2]), (0, 1));
        // nop; jmp rsi
        assert_eq!(kinds(&[0x90, 0xff, 0xe6]), (0, 1));
    }

    #[test]
    fn function_without_a_usable_end_is_an_error() {
        assert!(matches!(found(&[(0x1000, &[0x90, 0xeb, 0xfd])]), Err(SiteProblem::NoEnd)));
        assert!(matches!(found(&[(0x1000, &[0xe8, 0, 0, 0, 0, 0x0f, 0x0b])]), Err(SiteProblem::NoEnd)));
        assert!(matches!(found(&[(0x1000, &[0x90, 0xff, 0xe6])]), Err(SiteProblem::OnlyUnclearEnds)));
        assert!(matches!(found(&[(0x1000, &[0xc3])]), Err(SiteProblem::OneInstruction)));
        assert!(matches!(
            found(&[(0x1000, &[0x90, 0x06, 0xc3])]),
            Err(SiteProblem::NotCode { address: 0x1001 })
        ));
        assert!(matches!(
            found(&[(0x1000, &[0x90, 0xe9, 0])]),
            Err(SiteProblem::NotCode { address: 0x1001 })
        ));
        let returns = [&[0x90][..], &[0xc3; MAX_ENDS]].concat();
        assert_eq!(addresses(&returns).len(), MAX_ENDS);
        let more = [&returns[..], &[0xc3]].concat();
        assert!(matches!(found(&[(0x1000, &more)]), Err(SiteProblem::TooManyEnds { count: 257 })));
    }

    proptest! {
        #[test]
        fn any_code_is_harmless(code in proptest::collection::vec(any::<u8>(), 0..200), address in any::<u64>()) {
            let _ = found(&[(address, &code), (address.wrapping_add(50), &code)]);
            let _ = found(&[]);
        }
    }
}
