// SPDX-License-Identifier: Apache-2.0
//! ELF images become a table or an error, and a table answers for every address.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wallprof_unwind::{PAGE_STARTS, PAGE_TEXT, RuleKind, Table, Unencodable};

fuzz_target!(|image: &[u8]| {
    let Ok(table) = Table::from_elf(image) else { return };
    for (number, page) in table.pages().enumerate() {
        let Some(words) = page else { continue };
        // The kernel's walker relies on these properties.
        let starts: Vec<usize> = words[..PAGE_STARTS]
            .iter()
            .flat_map(|word| [word & 0xffff, word >> 16])
            .map(|at| at as usize)
            .collect();
        let rows = &words[PAGE_STARTS..];
        assert_eq!(starts[256], rows.len());
        for block in 0..256 {
            let rows = &rows[starts[block]..starts[block + 1]];
            assert_eq!(rows[0] & 0xff, 0);
            assert!(rows.is_sorted_by(|row, next| row & 0xff < next & 0xff));
            assert!(rows.iter().all(|row| ((row >> 8) as usize) < table.rules().len()));
        }
        let start = table.base() + number as u64 * PAGE_TEXT;
        for address in (start..start + PAGE_TEXT).step_by(61) {
            table.rule_at(address);
        }
    }
    for address in [table.base().wrapping_sub(1), u64::MAX] {
        assert_eq!(table.rule_at(address).kind, RuleKind::Uncovered);
    }
    let coverage = table.coverage();
    let code: u64 = RuleKind::ALL.iter().map(|&kind| coverage.code(kind)).sum();
    assert!(code <= image.len() as u64);
    let reasons: u64 = Unencodable::ALL.iter().map(|&reason| coverage.unencodable(reason).code).sum();
    assert_eq!(reasons, coverage.code(RuleKind::Unsupported));
});
