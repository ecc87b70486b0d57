// SPDX-License-Identifier: Apache-2.0
//! The cost of building a table, and of evaluating the same entries with gimli: time and peak memory. Each measurement
//! needs a process of its own, because the peak is the process's.
//!
//! `cargo run --release -p wallprof-unwind --example compare_with_gimli -- table|gimli-rows|gimli-table FILE`

use std::collections::HashMap;
use std::time::Instant;

use gimli::{
    BaseAddresses, CfaRule, EhFrame, LittleEndian, RegisterRule, UnwindContext, UnwindSection,
    UnwindTableRow, X86_64,
};
use object::{Object, ObjectSection};
use wallprof_unwind::Table;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [way, path] = arguments.as_slice() else { panic!("usage: table|gimli-rows|gimli-table FILE") };
    let image = std::fs::read(path).expect("a readable file");
    let before = peak_bytes();
    let started = Instant::now();
    let (rows, rules) = match way.as_str() {
        "table" => {
            let table = Table::from_elf(&image).expect("a table");
            (table.coverage().file_rows, table.rules().len())
        }
        "gimli-rows" => evaluate(&image, |_| ()),
        _ => {
            let (mut numbers, mut table) = (HashMap::new(), Vec::new());
            let (rows, _) = evaluate(&image, |row| {
                let next = numbers.len() as u32;
                let number = *numbers.entry(rule_of(row)).or_insert(next);
                table.push((row.start_address() as u32, number));
            });
            table.sort_unstable();
            (rows, numbers.len())
        }
    };
    let ms = started.elapsed().as_secs_f64() * 1e3;
    let mib = (peak_bytes() - before) as f64 / f64::from(1 << 20);
    println!("{way} {path}: {rows} rows, {rules} rules, {ms:.1} ms, {mib:.1} MiB beyond the image");
}

/// Returns the number of rows.
fn evaluate(image: &[u8], mut each: impl FnMut(&UnwindTableRow<usize>)) -> (u64, usize) {
    let file = object::File::parse(image).expect("an ELF file");
    let section = file.section_by_name(".eh_frame").expect("unwind information");
    let eh_frame = EhFrame::new(section.data().expect("its bytes"), LittleEndian);
    let text = file.section_by_name(".text").map_or(0, |text| text.address());
    let bases = BaseAddresses::default().set_eh_frame(section.address()).set_text(text);
    let (mut entries, mut context, mut rows) = (eh_frame.entries(&bases), UnwindContext::new(), 0);
    let mut cies = HashMap::new();
    while let Some(entry) = entries.next().expect("readable entries") {
        let gimli::CieOrFde::Fde(partial) = entry else { continue };
        let fde = partial.parse(|section, bases, offset| {
            cies.entry(offset.0).or_insert_with(|| section.cie_from_offset(bases, offset)).clone()
        });
        let fde = fde.expect("a readable entry");
        let mut table = fde.rows(&eh_frame, &bases, &mut context).expect("a program");
        while let Some(row) = table.next_row().expect("a row") {
            rows += 1;
            each(row);
        }
    }
    (rows, 0)
}

/// The parts of a row that a rule has: the frame's address, rbp, rbx and the return address.
fn rule_of(row: &UnwindTableRow<usize>) -> [i64; 4] {
    let cfa = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => i64::from(register.0) << 48 ^ offset,
        CfaRule::Expression(_) => -1,
    };
    let at = |register| match row.register(register) {
        Some(RegisterRule::Offset(offset)) => offset,
        Some(_) => i64::MAX,
        None => i64::MIN,
    };
    [cfa, at(X86_64::RBP), at(X86_64::RBX), at(X86_64::RA)]
}

/// The peak of the process's memory so far.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc is mounted");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("the kernel reports it");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}
