// SPDX-License-Identifier: Apache-2.0
//! Runs the programs of unwind entries: DWARF 5, section 6.4.2, over the four registers that have roles.
//!
//! Instructions about other registers are skipped, so that rows that differ only in those are one row.

use crate::bytes::Bytes;
use crate::coverage::Unencodable;
use crate::elf::Machine;
use crate::entries::{Cie, Fde, Section};
use crate::expression::Expression;
use crate::rule::{Rule, RuleKind};

/// Limit on remembered states. Compilers remember one at a time, and nested ones are rare.
const MAX_REMEMBERED: usize = 32;

/// The offset of `uc_mcontext`'s sp in a signal trampoline. A signal frame with this CFA is the kernel's.
const SIGNAL_SP: i64 = 160;

/// The definition of the CFA.
#[derive(Clone, Copy, Debug, Default)]
enum Cfa<'s> {
    #[default]
    Unknown,
    Register {
        register: u64,
        offset: i64,
    },
    Expression(&'s [u8]),
}

/// The place of the caller's value of a register.
#[derive(Clone, Copy, Debug, Default)]
enum Saved<'s> {
    /// Not mentioned, or the same value.
    #[default]
    Unchanged,
    Undefined,
    /// In memory at CFA + this.
    At(i64),
    /// It is CFA + this.
    Is(i64),
    /// In the register in which `vfork` keeps it on x86_64, and calls leave it on aarch64.
    InLink,
    /// In memory, at the address of an expression.
    AtExpression(&'s [u8]),
    /// In another register, or computed.
    Elsewhere,
}

/// One row of a program.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct State<'s> {
    cfa: Cfa<'s>,
    ra: Saved<'s>,
    fp: Saved<'s>,
    bx: Saved<'s>,
    sp: Saved<'s>,
}

/// The program has an instruction that does not exist or is misused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadInstruction;

/// The environment of a program.
#[derive(Clone, Copy)]
pub(crate) struct Machinery<'e, 'a> {
    pub machine: Machine,
    pub section: &'e Section<'e, 'a>,
}

/// The state of a run.
struct Run<'r, 'e, 'a> {
    machinery: Machinery<'e, 'a>,
    cie: &'r Cie,
    initial: State<'e>,
    state: State<'e>,
    remembered: &'r mut Vec<State<'e>>,
    /// The start of the current row.
    location: u64,
}

impl<'e, 'a> Machinery<'e, 'a> {
    /// The row of every function's first byte, by the CIE's program.
    pub(crate) fn initial(
        self,
        cie: &Cie,
        remembered: &mut Vec<State<'e>>,
    ) -> Result<State<'e>, BadInstruction> {
        remembered.clear();
        let empty = State::default();
        let mut run = Run { machinery: self, cie, initial: empty, state: empty, remembered, location: 0 };
        let mut bytes = Bytes::at(&self.section.bytes[..cie.program.end], cie.program.start);
        while !bytes.is_empty() {
            run.instruction(&mut bytes).ok_or(BadInstruction)?;
        }
        Ok(run.state)
    }

    /// Emits to `row` each range of the function up to `end` and its rule, ascending and without gaps.
    pub(crate) fn rows(
        self,
        (cie, initial): (&Cie, &State<'e>),
        fde: &Fde,
        end: u64,
        remembered: &mut Vec<State<'e>>,
        mut row: impl FnMut(u64, u64, Result<Rule, Unencodable>),
    ) {
        remembered.clear();
        let (initial, state) = (*initial, *initial);
        let mut run = Run { machinery: self, cie, initial, state, remembered, location: fde.start };
        let mut bytes = Bytes::at(&self.section.bytes[..fde.program.end], fde.program.start);
        let mut start = fde.start;
        while !bytes.is_empty() && start < end {
            if run.instruction(&mut bytes).is_none() || run.location < start {
                row(start, end, Err(Unencodable::Instruction));
                return;
            }
            // Instructions that move the location do not change the state.
            if run.location > start {
                row(start, run.location.min(end), run.state.rule(self.machine, cie));
                start = run.location;
            }
        }
        if start < end {
            row(start, end, run.state.rule(self.machine, cie));
        }
    }
}

impl<'e> Run<'_, 'e, '_> {
    #[inline]
    fn instruction(&mut self, bytes: &mut Bytes<'e>) -> Option<()> {
        let code = bytes.u8()?;
        let low = u64::from(code & 0x3f);
        match code >> 6 {
            1 => self.advance(low)?,
            2 => {
                let offset = self.factored(bytes.uleb()?)?;
                self.save(low, Saved::At(offset));
            }
            3 => self.restore(low),
            _ => self.extended(code, bytes)?,
        }
        Some(())
    }

    fn extended(&mut self, code: u8, bytes: &mut Bytes<'e>) -> Option<()> {
        match code {
            0x00 => {}
            0x01 => self.location = self.cie.encoding.read(bytes, &self.machinery.section.bases)?,
            0x02 => {
                let delta = bytes.u8()?.into();
                self.advance(delta)?;
            }
            0x03 => {
                let delta = bytes.u16()?.into();
                self.advance(delta)?;
            }
            0x04 => {
                let delta = bytes.u32()?.into();
                self.advance(delta)?;
            }
            0x0a => self.remember()?,
            0x0b => self.state = self.remembered.pop()?,
            0x0c..=0x0f | 0x12 | 0x13 => self.define_cfa(code, bytes)?,
            // aarch64: the return address is signed from here on. The walker must know the bits of the
            // signature.
            0x2c | 0x2d if self.machinery.machine == Machine::Aarch64 => {}
            0x2e => _ = bytes.uleb()?,
            _ => self.save_extended(code, bytes)?,
        }
        Some(())
    }

    fn define_cfa(&mut self, code: u8, bytes: &mut Bytes<'e>) -> Option<()> {
        let current = match self.state.cfa {
            Cfa::Register { register, offset } => Some((register, offset)),
            _ => None,
        };
        let (register, offset) = match code {
            0x0c => (bytes.uleb()?, signed(bytes.uleb()?)?),
            0x0d => (bytes.uleb()?, current?.1),
            0x0e => (current?.0, signed(bytes.uleb()?)?),
            0x12 => (bytes.uleb()?, self.factored_signed(bytes.sleb()?)?),
            0x13 => (current?.0, self.factored_signed(bytes.sleb()?)?),
            _ => {
                self.state.cfa = Cfa::Expression(block(bytes)?);
                return Some(());
            }
        };
        self.state.cfa = Cfa::Register { register, offset };
        Some(())
    }

    fn save_extended(&mut self, code: u8, bytes: &mut Bytes<'e>) -> Option<()> {
        // All other instructions name a register first.
        if !matches!(code, 0x05..=0x09 | 0x10 | 0x11 | 0x14..=0x16 | 0x2f) {
            return None;
        }
        let register = bytes.uleb()?;
        let saved = match code {
            0x05 => Saved::At(self.factored(bytes.uleb()?)?),
            0x06 => {
                self.restore(register);
                return Some(());
            }
            0x07 => Saved::Undefined,
            0x08 => Saved::Unchanged,
            0x09 => {
                let other = bytes.uleb()?;
                match self.role(register) {
                    _ if other == register => Saved::Unchanged,
                    Some(Role::Ra) if other == self.machinery.machine.link() => Saved::InLink,
                    _ => Saved::Elsewhere,
                }
            }
            0x10 => Saved::AtExpression(block(bytes)?),
            0x11 => Saved::At(self.factored_signed(bytes.sleb()?)?),
            0x14 => Saved::Is(self.factored(bytes.uleb()?)?),
            0x15 => Saved::Is(self.factored_signed(bytes.sleb()?)?),
            0x16 => {
                block(bytes)?;
                Saved::Elsewhere
            }
            _ => Saved::At(self.factored(bytes.uleb()?)?.checked_neg()?),
        };
        self.save(register, saved);
        Some(())
    }

    fn advance(&mut self, delta: u64) -> Option<()> {
        self.location = self.location.checked_add(delta.checked_mul(self.cie.code_factor)?)?;
        Some(())
    }

    fn remember(&mut self) -> Option<()> {
        if self.remembered.len() == MAX_REMEMBERED {
            return None;
        }
        self.remembered.push(self.state);
        Some(())
    }

    fn restore(&mut self, register: u64) {
        let initial = self.initial;
        let saved = match self.role(register) {
            Some(Role::Ra) => initial.ra,
            Some(Role::Fp) => initial.fp,
            Some(Role::Bx) => initial.bx,
            Some(Role::Sp) => initial.sp,
            None => return,
        };
        self.save(register, saved);
    }

    fn save(&mut self, register: u64, saved: Saved<'e>) {
        match self.role(register) {
            Some(Role::Ra) => self.state.ra = saved,
            Some(Role::Fp) => self.state.fp = saved,
            Some(Role::Bx) => self.state.bx = saved,
            Some(Role::Sp) => self.state.sp = saved,
            None => {}
        }
    }

    fn role(&self, register: u64) -> Option<Role> {
        let machine = self.machinery.machine;
        match register {
            _ if register == self.cie.return_register => Some(Role::Ra),
            _ if register == machine.fp() => Some(Role::Fp),
            _ if register == machine.sp() => Some(Role::Sp),
            _ if Some(register) == machine.bx() => Some(Role::Bx),
            _ => None,
        }
    }

    fn factored(&self, offset: u64) -> Option<i64> {
        self.factored_signed(signed(offset)?)
    }

    fn factored_signed(&self, offset: i64) -> Option<i64> {
        offset.checked_mul(self.cie.data_factor)
    }
}

/// The role of a register.
enum Role {
    Ra,
    Fp,
    Bx,
    Sp,
}

/// A place that a rule can express.
enum Place {
    Unchanged,
    /// In the register of [`crate::Registers::link`].
    Link,
    /// Words from the CFA.
    Cfa(i16),
    /// Words from fp.
    Fp(i16),
}

impl State<'_> {
    fn rule(&self, machine: Machine, cie: &Cie) -> Result<Rule, Unencodable> {
        if let Saved::Undefined = self.ra {
            return Ok(Rule::END);
        }
        if cie.signal && self.is_kernel_signal_frame(machine) {
            return Ok(Rule::SIGNAL);
        }
        if !matches!(self.sp, Saved::Unchanged | Saved::Is(0)) {
            return Err(Unencodable::StackPointer);
        }
        let mut rule = self.cfa_rule(machine)?;
        match self.place(self.ra, machine).ok_or(Unencodable::ReturnAddress)? {
            Place::Link => rule.flags |= Rule::RA_IN_REGISTER,
            Place::Cfa(words) => rule.ra = words,
            Place::Unchanged if machine == Machine::Aarch64 => rule.flags |= Rule::RA_IN_REGISTER,
            Place::Unchanged | Place::Fp(_) => return Err(Unencodable::ReturnAddress),
        }
        let fp = self.place(self.fp, machine).ok_or(Unencodable::FramePointer)?.unless_popped(rule);
        let bx = self.place(self.bx, machine).ok_or(Unencodable::Bx)?.unless_popped(rule);
        rule.fp = fp.words(Rule::FP_AT_FP, &mut rule.flags).ok_or(Unencodable::FramePointer)?;
        rule.bx = bx.words(Rule::BX_AT_FP, &mut rule.flags).ok_or(Unencodable::Bx)?;
        Ok(rule)
    }

    /// glibc describes the frame of x86_64 register by register. The kernel's vDSO on aarch64 only marks it.
    fn is_kernel_signal_frame(&self, machine: Machine) -> bool {
        match (machine, self.cfa) {
            (Machine::Aarch64, _) => true,
            (Machine::X86_64, Cfa::Expression(expression)) => {
                let sp_of_context =
                    Expression::Loaded { register: machine.sp(), offset: SIGNAL_SP, addend: 0 };
                Expression::recognise(expression) == Some(sp_of_context)
            }
            (Machine::X86_64, _) => false,
        }
    }

    fn cfa_rule(&self, machine: Machine) -> Result<Rule, Unencodable> {
        let expression = match self.cfa {
            Cfa::Unknown => return Err(Unencodable::CfaExpression),
            Cfa::Register { register, offset } => Expression::Sum { register, offset },
            Cfa::Expression(bytes) => Expression::recognise(bytes).ok_or(Unencodable::CfaExpression)?,
        };
        let (kind, offset, addend) = match expression {
            Expression::Sum { register, offset } => {
                (base_kind(machine, register).ok_or(Unencodable::CfaRegister)?, offset, 0)
            }
            Expression::Loaded { register, offset, addend } if register == machine.sp() => {
                (RuleKind::SpDeref, offset, addend)
            }
            Expression::Loaded { register, offset, addend } if register == machine.fp() => {
                (RuleKind::FpDeref, offset, addend)
            }
            Expression::Plt { register, offset, threshold }
                if register == machine.sp() && machine == Machine::X86_64 =>
            {
                (RuleKind::Plt, offset, threshold.into())
            }
            _ => return Err(Unencodable::CfaRegister),
        };
        let cfa_offset = i32::try_from(offset).map_err(|_| Unencodable::CfaOffset)?;
        let addend = i16::try_from(addend).map_err(|_| Unencodable::CfaOffset)?;
        Ok(Rule { kind, cfa_offset, addend, ..Rule::default() })
    }

    /// `None`: no rule can express the row.
    fn place(&self, saved: Saved, machine: Machine) -> Option<Place> {
        match saved {
            Saved::Unchanged => Some(Place::Unchanged),
            Saved::InLink => Some(Place::Link),
            Saved::At(offset) => words(offset).map(Place::Cfa),
            Saved::AtExpression(expression) => self.place_of_expression(expression, machine),
            Saved::Undefined | Saved::Is(_) | Saved::Elsewhere => None,
        }
    }

    /// A place relative to the CFA's own register can be made relative to the CFA.
    fn place_of_expression(&self, expression: &[u8], machine: Machine) -> Option<Place> {
        let Expression::Sum { register, offset } = Expression::recognise(expression)? else { return None };
        match self.cfa {
            Cfa::Register { register: base, offset: cfa } if base == register => {
                words(offset.checked_sub(cfa)?).map(Place::Cfa)
            }
            _ if register == machine.fp() => words(offset).map(Place::Fp),
            _ => None,
        }
    }
}

impl Place {
    /// Entries still give the place of a saved register after it has been popped. Places below sp are
    /// therefore dropped. They are in half of the rows of libc, and in no row where the register is first
    /// saved. Without them there are fewer rules.
    fn unless_popped(self, cfa: Rule) -> Place {
        match self {
            Place::Cfa(words)
                if cfa.kind == RuleKind::Sp && i64::from(cfa.cfa_offset) + i64::from(words) * 8 < 0 =>
            {
                Place::Unchanged
            }
            place => place,
        }
    }

    /// The field of the rule. `flag` is set in `flags` if it is relative to fp. A register that is saved at
    /// the CFA itself would look like an unchanged one, but none is.
    fn words(&self, flag: u8, flags: &mut u8) -> Option<i16> {
        match *self {
            Place::Unchanged => Some(0),
            Place::Link => None,
            Place::Cfa(words) => (words != 0).then_some(words),
            Place::Fp(words) => {
                *flags |= flag;
                Some(words)
            }
        }
    }
}

fn base_kind(machine: Machine, register: u64) -> Option<RuleKind> {
    match register {
        _ if register == machine.sp() => Some(RuleKind::Sp),
        _ if register == machine.fp() => Some(RuleKind::Fp),
        _ if Some(register) == machine.bx() => Some(RuleKind::Bx),
        _ if Some(register) == machine.r10() => Some(RuleKind::R10),
        _ => None,
    }
}

fn words(offset: i64) -> Option<i16> {
    if offset % 8 == 0 { i16::try_from(offset / 8).ok() } else { None }
}

fn signed(value: u64) -> Option<i64> {
    i64::try_from(value).ok()
}

fn block<'e>(bytes: &mut Bytes<'e>) -> Option<&'e [u8]> {
    let len = bytes.uleb()?;
    bytes.take(len)
}
