// SPDX-License-Identifier: Apache-2.0
//! The effect of one instruction on the stack pointer and on saved registers, and its successors.

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};

/// A register that frames save and later frames need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Saved {
    Fp,
    Bx,
    Other,
}

/// Amounts are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    None,
    Push(Saved),
    Pop(Saved),
    /// sp decreases by this amount.
    Grow(i32),
    /// sp has an unknown value.
    LoseSp,
    /// rbp = sp + this amount.
    FrameFromSp(i32),
    /// sp = rbp + this amount.
    SpFromFrame(i32),
    /// sp = rbp; pop rbp.
    Leave,
    /// rbp has another value.
    WriteFp,
    /// The register is stored at sp + this amount.
    Store(Saved, i32),
    /// The register is loaded from sp + this amount.
    Load(Saved, i32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    Next,
    Call,
    Jump(u64),
    Branch(u64),
    IndirectJump,
    Return,
    /// Execution does not continue after it.
    Stop,
    /// No instruction starts there.
    NoCode,
}

impl Flow {
    /// The code after it is reached from elsewhere.
    pub(super) fn is_last(self) -> bool {
        matches!(self, Flow::Jump(_) | Flow::IndirectJump | Flow::Return | Flow::Stop | Flow::NoCode)
    }
}

/// Marks of the outermost frame, of the signal trampoline, and of functions' starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// xor %ebp,%ebp
    ClearsFp,
    /// mov $15,%eax: `rt_sigreturn`'s number
    SigreturnNumber,
    SystemCall,
    Halt,
    /// Padding before something aligned.
    Pads,
    /// endbr64
    Lands,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub address: u64,
    pub len: u8,
    pub effect: Effect,
    pub flow: Flow,
    pub mark: Option<Mark>,
    /// The function that it calls.
    pub called: Option<u64>,
    /// A function starts there.
    pub starts: bool,
}

impl Found {
    /// A byte that starts no instruction.
    fn nothing(address: u64) -> Found {
        Found {
            address,
            len: 1,
            effect: Effect::None,
            flow: Flow::NoCode,
            mark: None,
            called: None,
            starts: false,
        }
    }
}

/// The instructions of some code, in order. Invalid bytes stop execution.
pub(super) struct Instructions<'c> {
    decoder: Decoder<'c>,
    instruction: Instruction,
}

impl<'c> Instructions<'c> {
    pub(super) fn new(code: &'c [u8], address: u64) -> Self {
        let decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
        Instructions { decoder, instruction: Instruction::default() }
    }
}

impl Iterator for Instructions<'_> {
    type Item = Found;

    fn next(&mut self) -> Option<Found> {
        if !self.decoder.can_decode() {
            return None;
        }
        let (address, position) = (self.decoder.ip(), self.decoder.position());
        self.decoder.decode_out(&mut self.instruction);
        let instruction = &self.instruction;
        if instruction.is_invalid() {
            // The next byte may start one.
            self.decoder.set_position(position + 1).ok()?;
            self.decoder.set_ip(address + 1);
            return Some(Found::nothing(address));
        }
        let called = (instruction.code() == Code::Call_rel32_64).then(|| instruction.near_branch_target());
        Some(Found {
            address,
            len: instruction.len() as u8,
            effect: effect(instruction),
            flow: flow(instruction),
            mark: mark(instruction),
            called,
            starts: false,
        })
    }
}

fn flow(instruction: &Instruction) -> Flow {
    match instruction.flow_control() {
        FlowControl::Next => Flow::Next,
        FlowControl::Call | FlowControl::IndirectCall if instruction.mnemonic() != Mnemonic::Syscall => {
            Flow::Call
        }
        FlowControl::Call | FlowControl::IndirectCall => Flow::Next,
        FlowControl::UnconditionalBranch => Flow::Jump(instruction.near_branch_target()),
        FlowControl::ConditionalBranch | FlowControl::XbeginXabortXend => {
            Flow::Branch(instruction.near_branch_target())
        }
        FlowControl::IndirectBranch => Flow::IndirectJump,
        FlowControl::Return => Flow::Return,
        FlowControl::Interrupt | FlowControl::Exception => Flow::Stop,
    }
}

fn mark(instruction: &Instruction) -> Option<Mark> {
    match instruction.code() {
        Code::Xor_r32_rm32 | Code::Xor_rm32_r32 | Code::Xor_r64_rm64 | Code::Xor_rm64_r64
            if instruction.op0_register().full_register() == Register::RBP
                && instruction.op1_register() == instruction.op0_register() =>
        {
            Some(Mark::ClearsFp)
        }
        Code::Mov_r32_imm32 | Code::Mov_rm64_imm32 | Code::Mov_rm32_imm32
            if instruction.op0_register().full_register() == Register::RAX
                && instruction.immediate(1) == 15 =>
        {
            Some(Mark::SigreturnNumber)
        }
        Code::Syscall => Some(Mark::SystemCall),
        Code::Hlt => Some(Mark::Halt),
        Code::Endbr64 => Some(Mark::Lands),
        _ if matches!(instruction.mnemonic(), Mnemonic::Nop | Mnemonic::Int3) => Some(Mark::Pads),
        _ => None,
    }
}

fn effect(instruction: &Instruction) -> Effect {
    use Mnemonic::{Add, And, Call, Cmp, Enter, Lea, Leave, Mov, Pop, Push, Ret, Sub, Syscall, Test};
    match instruction.mnemonic() {
        // A call's push is undone when it returns. The effect of a return is its caller's.
        Call | Cmp | Ret | Syscall | Test => Effect::None,
        Push => match instruction.op0_kind() {
            OpKind::Register => Effect::Push(saved(instruction.op0_register())),
            _ => Effect::Push(Saved::Other),
        },
        Pop if is_sp(instruction.op0_register()) => Effect::LoseSp,
        Pop => Effect::Pop(saved(instruction.op0_register())),
        Leave => Effect::Leave,
        Enter => Effect::LoseSp,
        Add | Sub if is_sp(instruction.op0_register()) => match immediate(instruction) {
            Some(amount) if instruction.mnemonic() == Sub => Effect::Grow(amount),
            Some(amount) => Effect::Grow(amount.wrapping_neg()),
            None => Effect::LoseSp,
        },
        And if is_sp(instruction.op0_register()) => Effect::LoseSp,
        Lea => lea(instruction),
        Mov => moved(instruction),
        _ => other(instruction),
    }
}

fn lea(instruction: &Instruction) -> Effect {
    let to = instruction.op0_register();
    let plain = instruction.memory_index() == Register::None;
    let offset = i32::try_from(instruction.memory_displacement64() as i64).ok().filter(|_| plain);
    match (is_sp(to), is_fp(to), instruction.memory_base(), offset) {
        (true, _, Register::RSP, Some(offset)) => Effect::Grow(offset.wrapping_neg()),
        (true, _, Register::RBP, Some(offset)) => Effect::SpFromFrame(offset),
        (true, ..) => Effect::LoseSp,
        (_, true, Register::RSP, Some(offset)) => Effect::FrameFromSp(offset),
        (_, true, ..) => Effect::WriteFp,
        _ => Effect::None,
    }
}

fn moved(instruction: &Instruction) -> Effect {
    let (to, from) = (instruction.op0_register(), instruction.op1_register());
    let of_sp = |instruction: &Instruction| {
        let plain =
            instruction.memory_base() == Register::RSP && instruction.memory_index() == Register::None;
        i32::try_from(instruction.memory_displacement64() as i64).ok().filter(|&offset| plain && offset >= 0)
    };
    match (instruction.op0_kind(), instruction.op1_kind()) {
        (OpKind::Register, OpKind::Register) => match (to, from) {
            (Register::RBP, Register::RSP) => Effect::FrameFromSp(0),
            (Register::RSP, Register::RBP) => Effect::SpFromFrame(0),
            _ => other(instruction),
        },
        (OpKind::Memory, OpKind::Register) if matches!(from, Register::RBP | Register::RBX) => {
            of_sp(instruction).map_or(Effect::None, |offset| Effect::Store(saved(from), offset))
        }
        (OpKind::Register, OpKind::Memory) if matches!(to, Register::RBP | Register::RBX) => {
            of_sp(instruction).map_or_else(|| other(instruction), |offset| Effect::Load(saved(to), offset))
        }
        _ => other(instruction),
    }
}

/// Instructions without a meaning of their own here. Only the registers that they write matter.
fn other(instruction: &Instruction) -> Effect {
    let written = instruction.op0_kind() == OpKind::Register;
    let exchanged = instruction.mnemonic() == Mnemonic::Xchg && instruction.op1_kind() == OpKind::Register;
    let writes = |is: fn(Register) -> bool| {
        written && is(instruction.op0_register()) || exchanged && is(instruction.op1_register())
    };
    if writes(is_sp) {
        Effect::LoseSp
    } else if writes(is_fp) {
        Effect::WriteFp
    } else if instruction.stack_pointer_increment() != 0 {
        // pushf and similar ones.
        Effect::Grow(instruction.stack_pointer_increment().wrapping_neg())
    } else {
        Effect::None
    }
}

fn immediate(instruction: &Instruction) -> Option<i32> {
    let is_immediate = matches!(instruction.op1_kind(), OpKind::Immediate8to64 | OpKind::Immediate32to64);
    i32::try_from(if is_immediate { instruction.immediate(1) as i64 } else { return None }).ok()
}

fn saved(register: Register) -> Saved {
    match register {
        Register::RBP => Saved::Fp,
        Register::RBX => Saved::Bx,
        _ => Saved::Other,
    }
}

fn is_sp(register: Register) -> bool {
    register.full_register() == Register::RSP
}

fn is_fp(register: Register) -> bool {
    register.full_register() == Register::RBP
}
