// SPDX-License-Identifier: Apache-2.0
//! The effect of one instruction on control flow, in the trace's terms: no packet, a branch result, or an
//! address.

use iced_x86::{Code as Opcode, Decoder, DecoderOptions, FlowControl, Mnemonic, OpKind};

use crate::code::{Code, SpaceId};
use crate::packet::CodeSize;

/// The longest x86 instruction in bytes.
const LONGEST: usize = 15;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// The address of the next instruction in memory.
    pub next: u64,
    pub flow: Flow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    Next,
    Jump(u64),
    /// Continues there or behind it, by a branch result.
    Branch(u64),
    Call(u64),
    IndirectJump,
    IndirectCall,
    Return,
    Far(Far),
}

/// A transfer to another privilege level or segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Far {
    SystemCall,
    SystemReturn,
    Other,
}

/// The way in which code is read: the space and the processor's mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    pub space: SpaceId,
    pub size: CodeSize,
}

/// The instruction at `address`; `None` without code, or if the bytes are not an instruction.
pub fn decode(code: &impl Code, reading: Reading, address: u64) -> Option<Instruction> {
    let bytes = code.bytes(reading.space.of_address(address), address)?;
    if bytes.len() >= LONGEST {
        return decode_bytes(&bytes[..LONGEST], reading.size, address);
    }
    let mut buffer = [0; LONGEST];
    let mut length = 0;
    while length < LONGEST {
        let at = address.wrapping_add(length as u64);
        let Some(bytes) = code.bytes(reading.space.of_address(at), at).filter(|bytes| !bytes.is_empty())
        else {
            break;
        };
        let taken = bytes.len().min(LONGEST - length);
        buffer[length..length + taken].copy_from_slice(&bytes[..taken]);
        length += taken;
    }
    decode_bytes(&buffer[..length], reading.size, address)
}

fn decode_bytes(bytes: &[u8], size: CodeSize, address: u64) -> Option<Instruction> {
    let bitness = match size {
        CodeSize::Bits16 => 16,
        CodeSize::Bits32 => 32,
        CodeSize::Bits64 => 64,
    };
    let mut decoder = Decoder::with_ip(bitness, bytes, address, DecoderOptions::NONE);
    let instruction = decoder.decode();
    (!instruction.is_invalid())
        .then(|| Instruction { next: instruction.next_ip(), flow: flow_of_instruction(&instruction) })
}

fn flow_of_instruction(instruction: &iced_x86::Instruction) -> Flow {
    match instruction.flow_control() {
        FlowControl::Next | FlowControl::Exception | FlowControl::XbeginXabortXend => Flow::Next,
        FlowControl::UnconditionalBranch if is_near(instruction) => {
            Flow::Jump(instruction.near_branch_target())
        }
        FlowControl::UnconditionalBranch => Flow::Far(Far::Other),
        FlowControl::ConditionalBranch => Flow::Branch(instruction.near_branch_target()),
        FlowControl::IndirectBranch => match instruction.code() {
            Opcode::Jmp_m1616 | Opcode::Jmp_m1632 | Opcode::Jmp_m1664 => Flow::Far(Far::Other),
            _ => Flow::IndirectJump,
        },
        FlowControl::IndirectCall => match instruction.code() {
            Opcode::Call_m1616 | Opcode::Call_m1632 | Opcode::Call_m1664 => Flow::Far(Far::Other),
            _ => Flow::IndirectCall,
        },
        FlowControl::Return if instruction.mnemonic() == Mnemonic::Ret => Flow::Return,
        FlowControl::Return => Flow::Far(Far::SystemReturn),
        FlowControl::Call if is_near(instruction) => match instruction.near_branch_target() {
            // Position-independent code reads its own address this way. The processor does not count it as a
            // call.
            target if target == instruction.next_ip() => Flow::Next,
            target => Flow::Call(target),
        },
        FlowControl::Call => match instruction.mnemonic() {
            Mnemonic::Syscall | Mnemonic::Sysenter => Flow::Far(Far::SystemCall),
            Mnemonic::Call | Mnemonic::Vmlaunch | Mnemonic::Vmresume => Flow::Far(Far::Other),
            _ => Flow::Next,
        },
        FlowControl::Interrupt => match instruction.code() {
            Opcode::Int_imm8 if instruction.immediate8() == 0x80 => Flow::Far(Far::SystemCall),
            _ => Flow::Far(Far::Other),
        },
    }
}

fn is_near(instruction: &iced_x86::Instruction) -> bool {
    matches!(instruction.op0_kind(), OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::Function;

    /// Code at 0x1000, in two pieces that meet.
    struct Pieces(Vec<u8>, usize);

    impl Code for Pieces {
        fn bytes(&self, _: SpaceId, address: u64) -> Option<&[u8]> {
            let offset = usize::try_from(address.checked_sub(0x1000)?).ok()?;
            let end = if offset < self.1 { self.1 } else { self.0.len() };
            self.0.get(offset..end).filter(|bytes| !bytes.is_empty())
        }

        fn function(&self, _: SpaceId, _: u64) -> Option<Function> {
            None
        }
    }

    fn flow(bytes: &[u8]) -> Flow {
        decode_bytes(bytes, CodeSize::Bits64, 0x1000).unwrap().flow
    }

    #[test]
    fn each_kind_of_transfer_has_its_flow() {
        assert_eq!(flow(&[0x90]), Flow::Next);
        assert_eq!(flow(&[0x0f, 0x0b]), Flow::Next, "ud2: the fault is an event of its own");
        assert_eq!(flow(&[0xeb, 0x10]), Flow::Jump(0x1012));
        assert_eq!(flow(&[0x74, 0xfe]), Flow::Branch(0x1000));
        assert_eq!(flow(&[0xe2, 0x00]), Flow::Branch(0x1002), "loop");
        assert_eq!(flow(&[0xe8, 0x10, 0, 0, 0]), Flow::Call(0x1015));
        assert_eq!(flow(&[0xe8, 0, 0, 0, 0]), Flow::Next, "call of the next instruction");
        assert_eq!(flow(&[0xff, 0xe0]), Flow::IndirectJump);
        assert_eq!(flow(&[0xff, 0xd0]), Flow::IndirectCall);
        assert_eq!(flow(&[0x3e, 0xff, 0xe0]), Flow::IndirectJump, "notrack");
        assert_eq!(flow(&[0xc3]), Flow::Return);
        assert_eq!(flow(&[0xf3, 0xc3]), Flow::Return);
        assert_eq!(flow(&[0xc2, 8, 0]), Flow::Return);
        assert_eq!(flow(&[0x0f, 0x05]), Flow::Far(Far::SystemCall));
        assert_eq!(flow(&[0xcd, 0x80]), Flow::Far(Far::SystemCall));
        assert_eq!(flow(&[0xcc]), Flow::Far(Far::Other));
        assert_eq!(flow(&[0x48, 0x0f, 0x07]), Flow::Far(Far::SystemReturn));
        assert_eq!(flow(&[0x48, 0xcf]), Flow::Far(Far::SystemReturn));
        assert_eq!(flow(&[0xff, 0x28]), Flow::Far(Far::Other), "far jump");
        assert_eq!(flow(&[0x0f, 0x01, 0xc3]), Flow::Far(Far::Other), "vmresume");
        assert_eq!(flow(&[0x0f, 0x01, 0xc1]), Flow::Next, "vmcall comes back");
    }

    #[test]
    fn an_instruction_may_cross_from_one_piece_to_the_next() {
        let reading = Reading { space: SpaceId(1), size: CodeSize::Bits64 };
        let code = Pieces(vec![0xe8, 0x10, 0, 0, 0], 2);
        assert_eq!(
            decode(&code, reading, 0x1000),
            Some(Instruction { next: 0x1005, flow: Flow::Call(0x1015) })
        );
        assert_eq!(decode(&Pieces(vec![0xe8, 0x10, 0], 2), reading, 0x1000), None);
        assert_eq!(decode(&code, reading, 0x2000), None);
    }

    #[test]
    fn random_bytes_do_not_panic() {
        let mut state = 1u64;
        for _ in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            for size in [CodeSize::Bits16, CodeSize::Bits32, CodeSize::Bits64] {
                decode_bytes(&state.to_be_bytes(), size, u64::MAX - 3);
            }
        }
    }
}
