// SPDX-License-Identifier: Apache-2.0
//! Statistics of a table: covered code, and code that rows cannot express, by kind and reason.

use crate::rule::RuleKind;

/// The reason for which an entry's row is [`RuleKind::Unsupported`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Unencodable {
    /// The CFA is relative to a register that rules do not have.
    CfaRegister = 0,
    /// The CFA is an expression of another shape than the known ones.
    CfaExpression = 1,
    /// The CFA's offset has more than 32 bits, or its addend more than 16.
    CfaOffset = 2,
    /// The return address is neither at a multiple of 8 within 256 KiB of the CFA nor in its register.
    ReturnAddress = 3,
    /// The same for the saved fp, or fp is in another register, or lost.
    FramePointer = 4,
    /// The same for the saved bx.
    Bx = 5,
    /// The caller's sp is not the CFA.
    StackPointer = 6,
    /// An instruction that is unknown, damaged, or misused.
    Instruction = 7,
    /// The file's CIEs are longer than their section.
    Budget = 8,
    /// The file has more distinct rules than the 24 bits of a row can number.
    RuleNumbers = 9,
}

impl Unencodable {
    /// The number of reasons.
    pub const COUNT: usize = 10;

    /// All reasons, in the order of their discriminants.
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

    /// The reason as one word of lower-case letters and underscores.
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

/// The number of rows, and the bytes of code that they cover.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// The number of rows.
    pub rows: u64,
    /// Bytes of code.
    pub code: u64,
}

/// The statistics of one table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// The entries (FDEs, or functions of Go) behind the table.
    pub entries: u64,
    /// Entries that could not be read.
    pub damaged: u64,
    /// Entries that another one overlaps, in part or wholly, and replaces.
    pub overlapping: u64,
    /// Entries of addresses without code. Linkers leave them behind for functions that they drop.
    pub outside: u64,
    /// The rows of the file's entries.
    pub file_rows: u64,
    /// The rows of the table: one for each change of the rule.
    pub rows: u64,
    /// The size of pages and rules.
    pub bytes: u64,
    /// The bytes of code without a row of their own, because their page was full.
    pub crowded: u64,
    code: [u64; RuleKind::COUNT],
    unencodable: [Share; Unencodable::COUNT],
}

impl Coverage {
    /// The bytes of executable segments under rules of this kind. Padding, and data among code, are
    /// uncovered.
    pub fn code(&self, kind: RuleKind) -> u64 {
        self.code[kind as usize]
    }

    /// The code that rows cannot express for this reason.
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
    fn reasons_have_distinct_names() {
        let mut names: Vec<&str> = Unencodable::ALL.iter().map(|reason| reason.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Unencodable::COUNT);
        for (index, reason) in Unencodable::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index);
        }
    }

    #[test]
    fn share_is_of_code_with_entries() {
        let mut coverage = Coverage::default();
        assert_eq!(coverage.unencodable_share(), 0.0);
        coverage.count_code(RuleKind::Uncovered, 1000);
        coverage.count_code(RuleKind::Sp, 75);
        coverage.count_code(RuleKind::Unsupported, 25);
        assert_eq!(coverage.unencodable_share(), 0.25);
    }
}
