// SPDX-License-Identifier: Apache-2.0
//! Tables agree with gimli, row by row: on the system's libraries and programs, and on this test itself.

use std::path::{Path, PathBuf};

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EndianSlice, FrameDescriptionEntry, LittleEndian, Operation, Register,
    RegisterRule, UnwindContext, UnwindExpression, UnwindSection, UnwindTableRow, X86_64,
};
use object::{Object, ObjectSection, ObjectSegment, SegmentFlags};
use wallprof_unwind::{Rule, RuleKind, Table, Unencodable};

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// The meaning of a row, in gimli's terms and in ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    Row {
        cfa: Cfa,
        ra: ReturnAddress,
        fp: Place,
        bx: Place,
    },
    Signal,
    End,
    /// No rule can express it.
    Inexpressible,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReturnAddress {
    BelowCfa,
    InRdi,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cfa {
    Plus(u16, i64),
    Loaded(u16, i64, i64),
    Plt(i64, u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Unchanged,
    AtCfa(i64),
    AtFp(i64),
}

#[test]
fn libc() {
    compare_or_skip("libc", Path::new("/lib/x86_64-linux-gnu/libc.so.6"));
}

#[test]
fn the_dynamic_linker() {
    compare_or_skip("the_dynamic_linker", Path::new("/lib64/ld-linux-x86-64.so.2"));
}

#[test]
fn libstdcxx() {
    compare_or_skip("libstdcxx", Path::new("/lib/x86_64-linux-gnu/libstdc++.so.6"));
}

#[test]
fn libcrypto() {
    compare_or_skip("libcrypto", Path::new("/lib/x86_64-linux-gnu/libcrypto.so.3"));
}

#[test]
fn a_rust_program() {
    compare_or_skip("a_rust_program", &std::env::current_exe().expect("this test is a file"));
}

#[test]
fn programs_of_the_system() {
    let mut programs: Vec<PathBuf> = std::fs::read_dir("/usr/bin")
        .expect("programs are there")
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.metadata().is_ok_and(|data| data.is_file() && data.len() < 400_000))
        .collect();
    programs.sort();
    // Every 20th, so that the sample is spread over packages.
    let compared = programs.iter().step_by(20).filter(|path| compare_with_table(path)).count();
    assert!(compared > 3, "only {compared} of {} were ELF files", programs.len());
}

/// Compares a file that has `.eh_frame`. Where the file is not there, `test` is skipped.
fn compare_or_skip(test: &str, path: &Path) {
    if !path.exists() {
        return wallprof_testkit::skip(test, &format!("{} is not there", path.display()));
    }
    assert!(compare_with_table(path), "{} has no .eh_frame", path.display());
}

/// Whether the file can be read and has `.eh_frame`.
fn compare_with_table(path: &Path) -> bool {
    let Ok(image) = std::fs::read(path) else { return false };
    let Ok(file) = object::File::parse(&*image) else { return false };
    let Some(section) = file.section_by_name(".eh_frame") else { return false };
    let table = Table::from_elf(&image).unwrap_or_else(|error| panic!("{} {error}", path.display()));
    let compared = Comparison { path, file: &file, table: &table }.run(&section);
    assert!(compared.rows > 0 && table.coverage().damaged == 0, "{}", path.display());
    assert_eq!(
        compared.inexpressible,
        unencodable(&table),
        "bytes of code no rule expresses: {}",
        path.display()
    );
    eprintln!("{}: {} rows, {} bytes not expressible", path.display(), compared.rows, compared.inexpressible);
    true
}

/// Bytes of code, by the reasons that are counted.
fn unencodable(table: &Table) -> u64 {
    let bytes = Unencodable::ALL.iter().map(|&reason| table.coverage().unencodable(reason).code).sum();
    assert_eq!(table.coverage().code(RuleKind::Unsupported), bytes, "each has one reason");
    bytes
}

#[derive(Default)]
struct Compared {
    rows: u64,
    inexpressible: u64,
}

struct Comparison<'c, 'd> {
    path: &'c Path,
    file: &'c object::File<'d>,
    table: &'c Table,
}

impl Comparison<'_, '_> {
    fn run(&self, section: &object::Section) -> Compared {
        let data = section.data().expect("its bytes");
        let eh_frame = EhFrame::new(data, LittleEndian);
        let bases = BaseAddresses::default().set_eh_frame(section.address());
        let mut entries = eh_frame.entries(&bases);
        let mut context = UnwindContext::new();
        let mut compared = Compared::default();
        while let Some(entry) = entries.next().expect("readable entries") {
            let gimli::CieOrFde::Fde(partial) = entry else { continue };
            let fde = partial.parse(EhFrame::cie_from_offset).expect("a readable entry");
            if fde.len() > 0 && self.is_code(fde.initial_address()) {
                self.entry(&eh_frame, &bases, &fde, &mut context, &mut compared);
            }
        }
        compared
    }

    fn is_code(&self, address: u64) -> bool {
        self.file.segments().any(|segment| {
            matches!(segment.flags(), SegmentFlags::Elf { p_flags, .. } if p_flags.0 & object::elf::PF_X.0 != 0)
                && address.wrapping_sub(segment.address()) < segment.size()
        })
    }

    fn entry(
        &self,
        eh_frame: &EhFrame<Slice>,
        bases: &BaseAddresses,
        fde: &FrameDescriptionEntry<Slice>,
        context: &mut UnwindContext<usize>,
        compared: &mut Compared,
    ) {
        let holds_entry = fde.contains(self.file.entry());
        let signal = fde.cie().is_signal_trampoline();
        let mut rows = fde.rows(eh_frame, bases, context).expect("a program");
        while let Some(row) = rows.next_row().expect("a row") {
            let end = row.end_address().min(fde.end_address());
            if row.start_address() >= end {
                continue;
            }
            let expected = if holds_entry { Meaning::End } else { meaning_of_row(eh_frame, row, signal) };
            for address in [row.start_address(), end - 1] {
                let found = meaning_of_rule(self.table.rule_at(address));
                assert_eq!(found, expected, "{} {address:#x}: {row:?}", self.path.display());
            }
            compared.rows += 1;
            compared.inexpressible +=
                if expected == Meaning::Inexpressible { end - row.start_address() } else { 0 };
        }
    }
}

fn meaning_of_rule(rule: Rule) -> Meaning {
    let (offset, addend) = (i64::from(rule.cfa_offset), i64::from(rule.addend));
    let cfa = match rule.kind {
        RuleKind::Sp => Cfa::Plus(7, offset),
        RuleKind::Fp => Cfa::Plus(6, offset),
        RuleKind::Bx => Cfa::Plus(3, offset),
        RuleKind::R10 => Cfa::Plus(10, offset),
        RuleKind::SpDeref => Cfa::Loaded(7, offset, addend),
        RuleKind::FpDeref => Cfa::Loaded(6, offset, addend),
        RuleKind::Plt => Cfa::Plt(offset, addend as u64),
        RuleKind::Signal => return Meaning::Signal,
        RuleKind::End => return Meaning::End,
        RuleKind::Unsupported => return Meaning::Inexpressible,
        RuleKind::Uncovered => panic!("an entry is there, and no rule"),
    };
    let ra = match (rule.ra, rule.flags & Rule::RA_IN_REGISTER) {
        (-1, 0) => ReturnAddress::BelowCfa,
        (0, Rule::RA_IN_REGISTER) => ReturnAddress::InRdi,
        other => panic!("a return address at {other:?}"),
    };
    let place = |words: i16, at_fp: bool| match (words, at_fp) {
        (0, false) => Place::Unchanged,
        (words, false) => Place::AtCfa(i64::from(words) * 8),
        (words, true) => Place::AtFp(i64::from(words) * 8),
    };
    let fp = place(rule.fp, rule.flags & Rule::FP_AT_FP != 0);
    let bx = place(rule.bx, rule.flags & Rule::BX_AT_FP != 0);
    Meaning::Row { cfa, ra, fp, bx }
}

fn meaning_of_row(eh_frame: &EhFrame<Slice>, row: &UnwindTableRow<usize>, signal: bool) -> Meaning {
    if row.register(X86_64::RA) == Some(RegisterRule::Undefined) {
        return Meaning::End;
    }
    express(eh_frame, row, signal).unwrap_or(Meaning::Inexpressible)
}

fn express(eh_frame: &EhFrame<Slice>, row: &UnwindTableRow<usize>, signal: bool) -> Option<Meaning> {
    let cfa = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => Cfa::Plus(register.0, *offset),
        CfaRule::Expression(expression) => cfa_of_expression(&operations(eh_frame, expression))?,
    };
    if signal && cfa == Cfa::Loaded(7, 160, 0) {
        return Some(Meaning::Signal);
    }
    let known = match cfa {
        Cfa::Plus(register, _) => matches!(register, 3 | 6 | 7 | 10),
        Cfa::Loaded(register, _, _) => matches!(register, 6 | 7),
        Cfa::Plt(..) => true,
    };
    let sp = row.register(X86_64::RSP);
    let sp_is_cfa = matches!(sp, None | Some(RegisterRule::SameValue | RegisterRule::ValOffset(0)));
    if !known || !sp_is_cfa {
        return None;
    }
    let ra = match row.register(X86_64::RA)? {
        RegisterRule::Offset(-8) => ReturnAddress::BelowCfa,
        RegisterRule::Register(X86_64::RDI) => ReturnAddress::InRdi,
        _ => return None,
    };
    let fp = place_of(eh_frame, row, X86_64::RBP, cfa)?;
    let bx = place_of(eh_frame, row, X86_64::RBX, cfa)?;
    Some(Meaning::Row { cfa, ra, fp, bx })
}

fn place_of(
    eh_frame: &EhFrame<Slice>,
    row: &UnwindTableRow<usize>,
    register: Register,
    cfa: Cfa,
) -> Option<Place> {
    let Some(saved) = row.register(register) else { return Some(Place::Unchanged) };
    match saved {
        RegisterRule::SameValue => Some(Place::Unchanged),
        // Below sp: it was popped, and the register has it again.
        RegisterRule::Offset(offset) => match cfa {
            Cfa::Plus(7, cfa) if cfa + offset < 0 && offset % 8 == 0 => Some(Place::Unchanged),
            _ => Some(Place::AtCfa(offset)),
        },
        RegisterRule::Register(same) if same == register => Some(Place::Unchanged),
        RegisterRule::Expression(expression) => match (&operations(eh_frame, &expression)[..], cfa) {
            ([Operation::RegisterOffset { register: own, offset, .. }], Cfa::Plus(base, cfa))
                if own.0 == base =>
            {
                Some(Place::AtCfa(offset - cfa))
            }
            ([Operation::RegisterOffset { register: X86_64::RBP, offset, .. }], _) => {
                Some(Place::AtFp(*offset))
            }
            _ => None,
        },
        _ => None,
    }
}

fn operations<'a>(
    eh_frame: &EhFrame<Slice<'a>>,
    expression: &UnwindExpression<usize>,
) -> Vec<Operation<Slice<'a>>> {
    let encoding = gimli::Encoding { format: gimli::Format::Dwarf32, version: 3, address_size: 8 };
    let mut operations = expression.get(eh_frame).expect("in the section").operations(encoding);
    std::iter::from_fn(|| operations.next().expect("an operation")).collect()
}

/// The shapes of CFA expressions in the documents of the formats, on gimli's operations.
fn cfa_of_expression(operations: &[Operation<Slice>]) -> Option<Cfa> {
    use Operation::{And, Deref, Ge, Plus, PlusConstant, RegisterOffset, Shl, UnsignedConstant};
    match operations {
        [RegisterOffset { register, offset, .. }] => Some(Cfa::Plus(register.0, *offset)),
        [RegisterOffset { register, offset, .. }, Deref { .. }] => Some(Cfa::Loaded(register.0, *offset, 0)),
        [RegisterOffset { register, offset, .. }, Deref { .. }, PlusConstant { value: addend }] => {
            Some(Cfa::Loaded(register.0, *offset, *addend as i64))
        }
        [
            RegisterOffset { register: X86_64::RSP, offset, .. },
            RegisterOffset { register: X86_64::RA, offset: 0, .. },
            UnsignedConstant { value: 15 },
            And,
            UnsignedConstant { value: threshold },
            Ge,
            UnsignedConstant { value: 3 },
            Shl,
            Plus,
        ] => Some(Cfa::Plt(*offset, *threshold)),
        [RegisterOffset { register, offset, .. }, Deref { .. }, UnsignedConstant { value: addend }, Plus] => {
            Some(Cfa::Loaded(register.0, *offset, *addend as i64))
        }
        _ => None,
    }
}
