// SPDX-License-Identifier: Apache-2.0
//! One way to find the caller of a frame, in the layout of `bpf/include/unwind.h`.

/// The computation of the CFA. The numbers are those of `enum rule_kind`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum RuleKind {
    /// No unwind entry. Only the frame pointer can serve.
    #[default]
    Uncovered = 0,
    /// CFA = sp + `cfa_offset`.
    Sp = 1,
    /// CFA = fp + `cfa_offset`.
    Fp = 2,
    /// CFA = bx + `cfa_offset`.
    Bx = 3,
    /// CFA = r10 + `cfa_offset`. r10 is known in an interrupted frame only.
    R10 = 4,
    /// CFA = \*(sp + `cfa_offset`) + `addend`.
    SpDeref = 5,
    /// CFA = \*(fp + `cfa_offset`) + `addend`.
    FpDeref = 6,
    /// CFA = sp + `cfa_offset` + 8 if ip & 15 >= `addend`: an entry of a procedure linkage table.
    Plt = 7,
    /// Every register is in the ucontext at sp.
    Signal = 8,
    /// The outermost frame.
    End = 9,
    /// Rows cannot express the entry.
    Unsupported = 10,
}

impl RuleKind {
    /// The number of kinds.
    pub const COUNT: usize = 11;

    /// All kinds, by their numbers.
    pub const ALL: [RuleKind; RuleKind::COUNT] = [
        RuleKind::Uncovered,
        RuleKind::Sp,
        RuleKind::Fp,
        RuleKind::Bx,
        RuleKind::R10,
        RuleKind::SpDeref,
        RuleKind::FpDeref,
        RuleKind::Plt,
        RuleKind::Signal,
        RuleKind::End,
        RuleKind::Unsupported,
    ];
}

/// One distinct way to find a caller. A word has 8 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rule {
    /// The computation of the CFA.
    pub kind: RuleKind,
    /// `FP_AT_FP`, `BX_AT_FP`, `RA_IN_REGISTER`, `ANY_STACK`, `RA_AT_FP`.
    pub flags: u8,
    /// Bytes.
    pub addend: i16,
    /// Bytes.
    pub cfa_offset: i32,
    /// Words from the CFA to the return address, with `RA_AT_FP` from fp. -1 on x86_64.
    pub ra: i16,
    /// Words from the CFA to the saved fp. 0: unchanged. With `FP_AT_FP`, words from fp, and 0 is an ordinary
    /// place.
    pub fp: i16,
    /// Words from the CFA to the saved bx. 0: unchanged. With `BX_AT_FP`, words from fp, and 0 is an ordinary
    /// place.
    pub bx: i16,
}

impl Rule {
    /// The saved fp is at fp + 8 * `fp`.
    pub const FP_AT_FP: u8 = 1;
    /// The saved bx is at fp + 8 * `bx`.
    pub const BX_AT_FP: u8 = 2;
    /// The return address is in a register: [`crate::Registers::link`].
    pub const RA_IN_REGISTER: u8 = 4;
    /// The caller's frame is on another stack, so that its sp may be below the callee's.
    pub const ANY_STACK: u8 = 8;
    /// The return address is at fp + 8 * `ra`.
    pub const RA_AT_FP: u8 = 16;

    /// The rule of code without unwind entries.
    pub const UNCOVERED: Rule = Rule::of(RuleKind::Uncovered);
    /// The rule of a signal trampoline.
    pub const SIGNAL: Rule = Rule::of(RuleKind::Signal);
    /// The rule of outermost frames.
    pub const END: Rule = Rule::of(RuleKind::End);
    /// The rule of code whose entry rows cannot express.
    pub const UNSUPPORTED: Rule = Rule::of(RuleKind::Unsupported);

    /// The rule of a function's first instruction on x86_64.
    pub const RETURN_ADDRESS_ON_TOP: Rule = Rule { cfa_offset: 8, ra: -1, ..Rule::of(RuleKind::Sp) };

    const fn of(kind: RuleKind) -> Self {
        Rule { kind, flags: 0, addend: 0, cfa_offset: 0, ra: 0, fp: 0, bx: 0 }
    }

    /// `struct unwind_rule`, little endian.
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[0] = self.kind as u8;
        bytes[1] = self.flags;
        bytes[2..4].copy_from_slice(&self.addend.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.cfa_offset.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.ra.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.fp.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.bx.to_le_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_has_the_layout_of_the_header() {
        let rule = Rule {
            kind: RuleKind::FpDeref,
            flags: Rule::FP_AT_FP | Rule::BX_AT_FP,
            addend: -2,
            cfa_offset: -8,
            ra: -1,
            fp: 0x0102,
            bx: -5,
        };
        assert_eq!(
            rule.to_bytes(),
            [6, 3, 0xfe, 0xff, 0xf8, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 1, 0xfb, 0xff, 0, 0]
        );
    }

    /// The header declares these numbers. This test reads it.
    #[test]
    fn numbers_are_those_of_the_header() {
        let header = include_str!("../../../bpf/include/unwind.h");
        let number = |name: &str| -> u64 {
            let at = header.find(&format!("    {name} = ")).unwrap_or_else(|| panic!("{name} is declared"));
            let value = header[at..].split(['=', ',']).nth(1).expect("a value");
            value.trim().parse().expect("a number")
        };
        let kinds = [
            "UNCOVERED",
            "SP",
            "FP",
            "BX",
            "R10",
            "SP_DEREF",
            "FP_DEREF",
            "PLT",
            "SIGNAL",
            "END",
            "UNSUPPORTED",
        ];
        for (kind, name) in RuleKind::ALL.into_iter().zip(kinds) {
            assert_eq!(number(&format!("RULE_{name}")), kind as u64, "{name}");
        }
        assert_eq!(number("RULE_FP_AT_FP"), u64::from(Rule::FP_AT_FP));
        assert_eq!(number("RULE_BX_AT_FP"), u64::from(Rule::BX_AT_FP));
        assert_eq!(number("RULE_RA_IN_REGISTER"), u64::from(Rule::RA_IN_REGISTER));
        assert_eq!(number("RULE_ANY_STACK"), u64::from(Rule::ANY_STACK));
        assert_eq!(number("RULE_RA_AT_FP"), u64::from(Rule::RA_AT_FP));
    }
}
