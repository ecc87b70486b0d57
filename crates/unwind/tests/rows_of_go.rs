// SPDX-License-Identifier: Apache-2.0
//! Tables of Go programs agree with the unwind entries that Go's linker writes for debuggers, as far as both
//! describe the same: the CFA.

use gimli::{BaseAddresses, CfaRule, DebugFrame, LittleEndian, UnwindContext, UnwindSection};
use object::{Object, ObjectSection};
use std::path::{Path, PathBuf};
use std::process::Command;
use wallprof_unwind::{Rule, RuleKind, Table};

#[test]
fn a_program_at_a_fixed_address() {
    compare("a_program_at_a_fixed_address", "exe");
}

#[test]
fn a_position_independent_program() {
    compare("a_position_independent_program", "pie");
}

fn compare(test: &str, mode: &str) {
    let Some(program) = program(mode) else {
        return wallprof_testkit::skip(test, "go is not installed");
    };
    let image = std::fs::read(&program).expect("it was built");
    let table = Table::from_elf(&image).expect("it has a function table");
    let (rows, uncovered) = compare_with_debug_frame(&image, &table);
    assert!(rows > 10_000, "only {rows} rows were compared");
    assert!(uncovered * 100 < rows, "{uncovered} of {rows} rows are left to frame pointers");
    assert!(table.coverage().unencodable_share() < 1e-4, "{:?}", table.coverage());
}

/// The number of rows that agree, and of those that the table leaves to frame pointers.
fn compare_with_debug_frame(image: &[u8], table: &Table) -> (u64, u64) {
    let file = object::File::parse(image).expect("an ELF file");
    let section = file.section_by_name(".debug_frame").expect("Go writes it");
    let mut debug_frame = DebugFrame::new(section.data().expect("not compressed"), LittleEndian);
    debug_frame.set_address_size(8);
    let bases = BaseAddresses::default();
    let mut entries = debug_frame.entries(&bases);
    let mut context = UnwindContext::new();
    let (mut compared, mut uncovered) = (0, 0);
    while let Some(entry) = entries.next().expect("readable entries") {
        let gimli::CieOrFde::Fde(partial) = entry else { continue };
        let fde = partial.parse(DebugFrame::cie_from_offset).expect("a readable entry");
        let mut rows = fde.rows(&debug_frame, &bases, &mut context).expect("a program");
        while let Some(row) = rows.next_row().expect("a row") {
            let CfaRule::RegisterAndOffset { register: gimli::X86_64::RSP, offset } = *row.cfa() else {
                panic!("Go counts from rsp: {row:?}");
            };
            // The trampoline follows, and its first byte is the one before it.
            for address in [row.start_address(), row.end_address().saturating_sub(2)] {
                if address < row.start_address() {
                    continue;
                }
                let rule = table.rule_at(address);
                match rule.kind {
                    RuleKind::Sp => assert_eq!(i64::from(rule.cfa_offset), offset, "{address:#x}: {row:?}"),
                    RuleKind::Uncovered => uncovered += 1,
                    // On the other stack rsp does not help.
                    RuleKind::Fp if rule.flags & Rule::ANY_STACK != 0 => {}
                    RuleKind::End | RuleKind::Signal | RuleKind::Unsupported => {}
                    kind => panic!("{kind:?} at {address:#x}"),
                }
                compared += 1;
            }
        }
    }
    (compared, uncovered)
}

/// A program that prints a line. `None` without a Go toolchain.
fn program(mode: &str) -> Option<PathBuf> {
    Command::new("go").arg("version").output().ok().filter(|output| output.status.success())?;
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("go-{mode}"));
    std::fs::create_dir_all(&folder).expect("a scratch folder");
    let source = folder.join("main.go");
    std::fs::write(&source, "package main\n\nimport \"fmt\"\n\nfunc main() { fmt.Println(\"hello\") }\n")
        .expect("a source file");
    let program = folder.join("hello");
    let status = Command::new("go")
        .args(["build", "-ldflags=-compressdwarf=false", "-buildmode", mode, "-o"])
        .arg(&program)
        .arg(&source)
        .current_dir(&folder)
        .status();
    assert!(status.is_ok_and(|status| status.success()), "go builds it");
    Some(program)
}
