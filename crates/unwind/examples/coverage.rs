// SPDX-License-Identifier: Apache-2.0
//! Prints the coverage of the tables of files, their inexpressible code, the time of building them, and their
//! size.
//!
//! `cargo run --release -p wallprof-unwind --example coverage -- FILE…`

use std::time::Instant;

use wallprof_unwind::{Coverage, RuleKind, Table, Unencodable};

fn main() {
    for path in std::env::args().skip(1) {
        match std::fs::read(&path) {
            Err(error) => println!("{path}: {error}"),
            Ok(image) => report(&path, &image),
        }
    }
}

fn report(path: &str, image: &[u8]) {
    let started = Instant::now();
    let table = match Table::from_elf(image) {
        Ok(table) => table,
        Err(error) => return println!("{path} {error}"),
    };
    let seconds = started.elapsed().as_secs_f64();
    let coverage = table.coverage();
    println!(
        "{path}: {} entries, {} rows of the file, {} kept, {} rules, {} bytes, {:.2} bytes a row; {:.1} ms, {:.1} M rows/s",
        coverage.entries,
        coverage.file_rows,
        coverage.rows,
        table.rules().len(),
        coverage.bytes,
        coverage.bytes as f64 / coverage.rows as f64,
        seconds * 1e3,
        coverage.file_rows as f64 / seconds / 1e6,
    );
    println!(
        "  {} damaged, {} overlapping, {} outside; {:.4} % not encodable",
        coverage.damaged,
        coverage.overlapping,
        coverage.outside,
        coverage.unencodable_share() * 100.0
    );
    tell_code(coverage);
}

fn tell_code(coverage: &Coverage) {
    for kind in RuleKind::ALL {
        println!("    {kind:?}: {} bytes", coverage.code(kind));
    }
    for reason in Unencodable::ALL {
        let share = coverage.unencodable(reason);
        if share.rows > 0 {
            println!("      {}: {} rows, {} bytes", reason.name(), share.rows, share.code);
        }
    }
}
