// SPDX-License-Identifier: Apache-2.0
//! A generated program: functions of random instructions, as machine code and as the effect of each
//! instruction.

use std::ops::Range;

use super::random::Random;
use crate::code::{Code, Function, FunctionId, SpaceId};

/// The effect of an instruction. Targets are addresses of instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Plain,
    /// Continues at the target or behind it. `guard`: the next instruction is a call or a similar one.
    Branch {
        target: u64,
        guard: bool,
    },
    Jump {
        target: u64,
    },
    Call {
        target: u64,
    },
    CallAny,
    /// Jumps to any of the function's labels.
    Switch,
    /// Jumps to another function, as its last instruction.
    TailAny,
    Return,
    SystemCall,
    /// Jumps to the landing of a function on the stack.
    LongJump,
    /// The same by a return.
    Throw,
    /// From the kernel to the interrupted code, or behind the system call.
    SystemReturn,
}

#[derive(Clone, Copy, Debug)]
pub struct Instruction {
    pub address: u64,
    pub length: u64,
    pub effect: Effect,
}

#[derive(Clone, Debug)]
pub struct GeneratedFunction {
    pub start: u64,
    pub end: u64,
    pub instructions: Vec<Instruction>,
    /// The targets of long jumps, exceptions and switch statements.
    pub labels: Vec<u64>,
    /// An entry of the procedure linkage table, which only jumps to a function.
    pub is_stub: bool,
}

/// The program, mapped at one place in the one space [`Program::SPACE`].
#[derive(Clone, Debug)]
pub struct Program {
    /// The address of its first byte.
    pub base: u64,
    /// Its machine code.
    pub code: Vec<u8>,
    /// Its functions, by address.
    pub functions: Vec<GeneratedFunction>,
    /// The kernel that it calls, if that is traced. It is a program of its own, whose first function takes
    /// system calls and whose last one takes interrupts.
    pub kernel: Option<Box<Program>>,
    /// The traced addresses; none: all.
    pub traced: Vec<Range<u64>>,
    /// For each offset of the code: the function around it and its instruction there, counted from 1; 0 for
    /// none.
    places: Vec<(u32, u32)>,
}

/// The first number of kernel functions.
const FIRST_OF_KERNEL: usize = FunctionId::FIRST_OF_KERNEL.0 as usize - 1;
const KERNEL_BASE: u64 = 0xffff_ffff_8100_0000;

impl Program {
    /// The address space of user code.
    pub const SPACE: SpaceId = SpaceId(1);

    /// A random program with this number of functions.
    pub fn generate(random: &mut Random, functions: usize) -> Program {
        let base = if random.per_mille(500) { 0x40_1000 } else { 0x7f12_3456_7000 };
        let plans: Vec<Vec<Plan>> = (0..functions).map(|index| plan(random, index, functions)).collect();
        Program::assembled(base, &plans)
    }

    /// Adds a kernel with this number of functions.
    pub fn with_kernel(mut self, random: &mut Random, functions: usize) -> Program {
        let plans: Vec<Vec<Plan>> =
            (0..functions).map(|index| kernel_plan(random, index, functions)).collect();
        self.kernel = Some(Box::new(Program::assembled(KERNEL_BASE, &plans)));
        self
    }

    fn assembled(base: u64, plans: &[Vec<Plan>]) -> Program {
        let starts = starts(base, plans);
        let mut program = Program {
            base,
            code: Vec::new(),
            functions: Vec::new(),
            kernel: None,
            traced: Vec::new(),
            places: Vec::new(),
        };
        for (plan, &start) in plans.iter().zip(&starts) {
            program.code.resize((start - base) as usize, 0xcc);
            program.assemble(plan, start, &starts);
        }
        program.code.resize(program.code.len() + 16, 0xcc);
        program.number_places();
        program
    }

    fn number_places(&mut self) {
        self.places = vec![(0, 0); self.code.len()];
        for (index, function) in self.functions.iter().enumerate() {
            for offset in function.start..function.end {
                self.places[(offset - self.base) as usize].0 = index as u32 + 1;
            }
            for (number, instruction) in function.instructions.iter().enumerate() {
                self.places[(instruction.address - self.base) as usize].1 = number as u32 + 1;
            }
        }
    }

    fn place(&self, address: u64) -> Option<(u32, u32)> {
        self.places.get(usize::try_from(address.checked_sub(self.base)?).ok()?).copied()
    }

    /// The number of the function around `address`.
    pub fn function_at(&self, address: u64) -> Option<usize> {
        if is_in_kernel(self, address) {
            return Some(FIRST_OF_KERNEL + self.kernel.as_ref()?.function_at(address)?);
        }
        Some(self.place(address)?.0.checked_sub(1)? as usize)
    }

    /// The function with this number.
    pub fn numbered(&self, function: usize) -> &GeneratedFunction {
        match (function.checked_sub(FIRST_OF_KERNEL), &self.kernel) {
            (Some(number), Some(kernel)) => &kernel.functions[number],
            _ => &self.functions[function],
        }
    }

    /// The numbers of the functions that one at `address` may call.
    pub fn callable_from(&self, address: u64) -> Range<usize> {
        match &self.kernel {
            Some(kernel) if is_in_kernel(self, address) => {
                FIRST_OF_KERNEL + 1..FIRST_OF_KERNEL + kernel.functions.len() - 1
            }
            _ => 1..self.functions.len(),
        }
    }

    /// The kernel's entries of system calls and of interrupts.
    pub fn kernel_entries(&self) -> Option<(u64, u64)> {
        let functions = &self.kernel.as_ref()?.functions;
        Some((functions.first()?.start, functions.last()?.start))
    }

    /// The instruction at `address`.
    pub fn instruction_at(&self, address: u64) -> Option<Instruction> {
        if is_in_kernel(self, address) {
            return self.kernel.as_ref()?.instruction_at(address);
        }
        let (function, number) = self.place(address)?;
        Some(self.functions[function.checked_sub(1)? as usize].instructions[number.checked_sub(1)? as usize])
    }

    /// Whether code at `address` is traced.
    pub fn is_traced(&self, address: u64) -> bool {
        self.traced.is_empty() || self.traced.iter().any(|range| range.contains(&address))
    }

    /// The id of a function in events.
    pub fn id(function: usize) -> FunctionId {
        FunctionId(function as u32 + 1)
    }

    fn assemble(&mut self, plan: &[Plan], start: u64, starts: &[u64]) {
        let addresses = addresses(plan, start);
        let mut function = GeneratedFunction {
            start,
            end: *addresses.last().expect("an end"),
            instructions: Vec::new(),
            labels: Vec::new(),
            is_stub: plan.len() == 1,
        };
        for (index, planned) in plan.iter().enumerate() {
            let (address, next) = (addresses[index], addresses[index + 1]);
            let effect = planned.effect(&addresses, starts);
            planned.encode(&mut self.code, next, effect);
            function.instructions.push(Instruction { address, length: next - address, effect });
            if *planned == Plan::Label {
                function.labels.push(address);
            }
        }
        self.functions.push(function);
    }
}

impl Code for Program {
    fn bytes(&self, space: SpaceId, address: u64) -> Option<&[u8]> {
        let image = match space {
            SpaceId::KERNEL => self.kernel.as_ref()?,
            Program::SPACE => self,
            _ => return None,
        };
        let offset = usize::try_from(address.checked_sub(image.base)?).ok()?;
        image.code.get(offset..).filter(|bytes| !bytes.is_empty())
    }

    fn function(&self, space: SpaceId, address: u64) -> Option<Function> {
        let is_known = space == Program::SPACE || space == SpaceId::KERNEL;
        let function = self.function_at(address).filter(|_| is_known)?;
        Some(Function { id: Program::id(function), entry: self.numbered(function).start })
    }

    fn is_filtered(&self) -> bool {
        !self.traced.is_empty()
    }

    fn is_left_out(&self, _: SpaceId, address: u64) -> bool {
        !self.is_traced(address)
    }
}

/// Whether `address` is one of the kernel of `program`, which may be that kernel itself.
fn is_in_kernel(program: &Program, address: u64) -> bool {
    address >> 63 != 0 && program.base >> 63 == 0
}

/// An instruction without an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    Plain(u8),
    Label,
    /// To the instruction with this index.
    Branch {
        to: usize,
        guard: bool,
        short: bool,
    },
    Jump {
        to: usize,
    },
    Call {
        function: usize,
    },
    CallAny,
    Switch,
    Tail {
        function: usize,
    },
    TailAny,
    Return,
    SystemCall,
    LongJump,
    Throw,
    SystemReturn,
    InterruptReturn,
}

/// The longest first. None of them has an effect.
const PLAIN: [&[u8]; 4] =
    [&[0x0f, 0x1f, 0x44, 0x00, 0x00], &[0x48, 0x89, 0xc3], &[0x90], &[0xb8, 0x01, 0x00, 0x00, 0x00]];

impl Plan {
    fn length(self) -> u64 {
        match self {
            Plan::Plain(kind) => PLAIN[usize::from(kind)].len() as u64,
            Plan::Label | Plan::Return | Plan::Throw => 1,
            Plan::Branch { short: false, .. } => 6,
            Plan::Jump { .. } | Plan::Call { .. } | Plan::Tail { .. } => 5,
            Plan::SystemReturn => 3,
            _ => 2,
        }
    }

    fn effect(self, addresses: &[u64], starts: &[u64]) -> Effect {
        match self {
            Plan::Plain(_) | Plan::Label => Effect::Plain,
            Plan::Branch { to, guard, .. } => Effect::Branch { target: addresses[to], guard },
            Plan::Jump { to } => Effect::Jump { target: addresses[to] },
            Plan::Call { function } => Effect::Call { target: starts[function] },
            Plan::Tail { function } => Effect::Jump { target: starts[function] },
            Plan::CallAny => Effect::CallAny,
            Plan::Switch => Effect::Switch,
            Plan::TailAny => Effect::TailAny,
            Plan::Return => Effect::Return,
            Plan::SystemCall => Effect::SystemCall,
            Plan::LongJump => Effect::LongJump,
            Plan::Throw => Effect::Throw,
            Plan::SystemReturn | Plan::InterruptReturn => Effect::SystemReturn,
        }
    }

    fn encode(self, code: &mut Vec<u8>, next: u64, effect: Effect) {
        match (self, effect) {
            (Plan::Plain(kind), _) => code.extend(PLAIN[usize::from(kind)]),
            (Plan::Label, _) => code.push(0x90),
            (Plan::SystemReturn, _) => code.extend([0x48, 0x0f, 0x07]),
            (Plan::InterruptReturn, _) => code.extend([0x48, 0xcf]),
            (Plan::Branch { short: true, .. }, Effect::Branch { target, .. }) => {
                code.extend([0x75, target.wrapping_sub(next) as u8]);
            }
            (_, Effect::Branch { target, .. }) => relative(code, &[0x0f, 0x84], target, next),
            (_, Effect::Jump { target }) => relative(code, &[0xe9], target, next),
            (_, Effect::Call { target }) => relative(code, &[0xe8], target, next),
            (_, Effect::CallAny) => code.extend([0xff, 0xd0]),
            (_, Effect::Switch | Effect::TailAny | Effect::LongJump) => code.extend([0xff, 0xe0]),
            (_, Effect::SystemCall) => code.extend([0x0f, 0x05]),
            (_, Effect::Return | Effect::Throw | Effect::Plain | Effect::SystemReturn) => code.push(0xc3),
        }
    }
}

fn relative(code: &mut Vec<u8>, opcode: &[u8], target: u64, next: u64) {
    code.extend(opcode);
    code.extend((target.wrapping_sub(next) as u32).to_le_bytes());
}

fn addresses(plan: &[Plan], start: u64) -> Vec<u64> {
    let mut addresses = vec![start];
    for planned in plan {
        addresses.push(addresses.last().expect("a start") + planned.length());
    }
    addresses
}

fn starts(base: u64, plans: &[Vec<Plan>]) -> Vec<u64> {
    let mut at = base;
    let mut starts = Vec::new();
    for plan in plans {
        starts.push(at);
        at = (addresses(plan, at).last().expect("an end") + 15) & !15;
    }
    starts
}

/// The body of a function. The first one never returns; the last few are stubs.
fn plan(random: &mut Random, index: usize, functions: usize) -> Vec<Plan> {
    if index > 1 && index + functions / 5 >= functions {
        return vec![Plan::TailAny];
    }
    let mut plan = vec![Plan::Plain(random.below(4) as u8)];
    if index == 0 {
        plan.extend([Plan::Branch { to: 3, guard: true, short: true }, Plan::CallAny, Plan::Plain(2)]);
    }
    for _ in 0..1 + random.below(10) {
        piece(random, &mut plan, functions);
    }
    match random.below(10) {
        _ if index == 0 => {
            plan.extend([Plan::Branch { to: 0, guard: false, short: false }, Plan::Jump { to: 0 }])
        }
        0 if index + 1 < functions => {
            plan.push(Plan::Tail { function: index + 1 + random.below(functions - index - 1) });
        }
        1 => plan.push(Plan::TailAny),
        _ => plan.push(Plan::Return),
    }
    plan
}

/// The body of a function of the kernel, without system calls, long jumps and exceptions.
fn kernel_plan(random: &mut Random, index: usize, functions: usize) -> Vec<Plan> {
    let is_handler = index + 1 == functions;
    let mut plan = plan(random, if is_handler { 1 } else { index }, functions - 1);
    for planned in &mut plan {
        if matches!(planned, Plan::SystemCall | Plan::LongJump | Plan::Throw) {
            *planned = Plan::Plain(2);
        }
    }
    if is_handler || index == 0 {
        plan.pop();
        plan.push(if is_handler { Plan::InterruptReturn } else { Plan::SystemReturn });
    }
    plan
}

fn piece(random: &mut Random, plan: &mut Vec<Plan>, functions: usize) {
    let here = plan.len();
    let guarded = |plan: &mut Vec<Plan>, effect| {
        plan.extend([Plan::Branch { to: here + 2, guard: true, short: true }, effect]);
    };
    match random.below(12) {
        0 | 1 => plan.push(Plan::Plain(random.below(4) as u8)),
        2 => plan.extend([
            Plan::Branch { to: here + 3, guard: false, short: true },
            Plan::Plain(0),
            Plan::Plain(2),
            Plan::Label,
        ]),
        3 => {
            let to = random.below(here);
            // A guarded instruction is reached through its guard.
            let guarded = to > 0 && matches!(plan[to - 1], Plan::Branch { guard: true, .. });
            plan.push(Plan::Branch { to: to - usize::from(guarded), guard: false, short: false });
        }
        4..=6 => guarded(plan, Plan::Call { function: 1 + random.below(functions - 1) }),
        7 => guarded(plan, Plan::CallAny),
        8 => plan.extend([Plan::Jump { to: here + 2 }, Plan::Plain(1), Plan::Label]),
        9 => plan.push(Plan::SystemCall),
        10 => guarded(plan, if random.per_mille(500) { Plan::LongJump } else { Plan::Throw }),
        // A call is not followed by a label, whose address would be that of a return.
        _ => plan.extend([
            Plan::Plain(2),
            Plan::Label,
            Plan::Branch { to: here + 4, guard: false, short: true },
            Plan::Switch,
        ]),
    }
}
