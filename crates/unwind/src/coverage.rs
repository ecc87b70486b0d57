//! What a table covers and what it had to leave out, by kind and reason.

use crate::rule::RuleKind;

/// Why an entry's row is [`RuleKind::Unsupported`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Unencodable {
    /// The CFA counts from a register that has no role here.
    CfaRegister = 0,
    /// The CFA is an expression of another shape than the known ones.
    CfaExpression = 1,
    /// The CFA's offset has more than 32 bits, or its addend more than 16.
    CfaOffset = 2,
    /// The return address lies neither at a multiple of 8 within 256 KiB of the CFA nor in its register.
    ReturnAddress = 3,
    /// The same of the saved fp; or it is in a register, or lost.
    FramePointer = 4,
    /// The same of the saved bx.
    Bx = 5,
    /// The caller's sp is not the CFA.
    StackPointer = 6,
    /// An instruction that is unknown, damaged, or used against its definition.
    Instruction = 7,
    /// The file's common entries are longer than the section they are in.
    Budget = 8,
    /// More distinct rules than a row's 24 bits can name.
    RuleNumbers = 9,
}

impl Unencodable {
    pub const COUNT: usize = 10;

    pub const ALL: [Unencodable; Unencodable::COUNT] = [
        Unencodable::CfaRegister,
        Unencodable::CfaExpression,
        Unencodable::CfaOffset,
        Unencodable::ReturnAddress,
        Unencodable::FramePointer,
        Unencodable::Bx,
        Unencodable::StackPointer,
        Unencodable::Instruction,
        Unencodable::Budget,
        Unencodable::RuleNumbers,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Unencodable::CfaRegister => "cfa_register",
            Unencodable::CfaExpression => "cfa_expression",
            Unencodable::CfaOffset => "cfa_offset",
            Unencodable::ReturnAddress => "return_address",
            Unencodable::FramePointer => "frame_pointer",
            Unencodable::Bx => "bx",
            Unencodable::StackPointer => "stack_pointer",
            Unencodable::Instruction => "instruction",
            Unencodable::Budget => "budget",
            Unencodable::RuleNumbers => "rule_numbers",
        }
    }
}

/// How many rows, and how many bytes of code they cover.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    pub rows: u64,
    pub code: u64,
}

/// The account of one table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Entries (FDEs, functions of Go) that the table is made of.
    pub entries: u64,
    /// Entries that could not be read.
    pub damaged: u64,
    /// Entries of which a part, or all, is also described by another, which was taken.
    pub overlapping: u64,
    /// Entries of addresses that hold no code: linkers leave them behind where they drop functions.
    pub outside: u64,
    /// Rows that the file's entries make.
    pub file_rows: u64,
    /// Rows of the table: where the rule changes.
    pub rows: u64,
    /// Size of pages and rules.
    pub bytes: u64,
    /// Bytes of code whose row had to make place for a neighbour's in a full page.
    pub crowded: u64,
    code: [u64; RuleKind::COUNT],
    unencodable: [Share; Unencodable::COUNT],
}

impl Coverage {
    /// Bytes of executable segments under rules of this kind. Padding, and data among code, is uncovered.
    pub fn code(&self, kind: RuleKind) -> u64 {
        self.code[kind as usize]
    }

    /// What rows cannot express, for this reason.
    pub fn unencodable(&self, reason: Unencodable) -> Share {
        self.unencodable[reason as usize]
    }

    /// The share of all code with entries that rows cannot express, 0 to 1.
    pub fn unencodable_share(&self) -> f64 {
        let covered: u64 = self.code[1..].iter().sum();
        if covered == 0 { 0.0 } else { self.code(RuleKind::Unsupported) as f64 / covered as f64 }
    }

    pub(crate) fn count_code(&mut self, kind: RuleKind, bytes: u64) {
        self.code[kind as usize] += bytes;
    }

    pub(crate) fn count_unencodable(&mut self, reason: Unencodable, bytes: u64) {
        let share = &mut self.unencodable[reason as usize];
        share.rows += 1;
        share.code += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_have_names_of_their_own() {
        let mut names: Vec<&str> = Unencodable::ALL.iter().map(|reason| reason.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Unencodable::COUNT);
        for (index, reason) in Unencodable::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index);
        }
    }

    #[test]
    fn the_share_is_of_code_with_entries() {
        let mut coverage = Coverage::default();
        assert_eq!(coverage.unencodable_share(), 0.0);
        coverage.count_code(RuleKind::Uncovered, 1000);
        coverage.count_code(RuleKind::Sp, 75);
        coverage.count_code(RuleKind::Unsupported, 25);
        assert_eq!(coverage.unencodable_share(), 0.25);
    }
}
