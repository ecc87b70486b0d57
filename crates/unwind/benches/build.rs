// SPDX-License-Identifier: Apache-2.0
//! The speed of building tables: rows of the file in a second, on one core.
//!
//! `cargo bench -p wallprof-unwind --bench build`

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use wallprof_unwind::Table;

const FILES: [(&str, &str); 3] = [
    ("libc", "/lib/x86_64-linux-gnu/libc.so.6"),
    ("libstdc++", "/lib/x86_64-linux-gnu/libstdc++.so.6"),
    ("node", "/usr/bin/node"),
];

#[inline(never)]
fn once_build(image: &[u8]) -> usize {
    Table::from_elf(image).expect("a table").rules().len()
}

fn build(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("unwind");
    for (name, path) in FILES {
        let Ok(image) = std::fs::read(path) else {
            eprintln!("skipped: {path} is not there");
            continue;
        };
        let table = Table::from_elf(&image).expect("a table");
        group.throughput(Throughput::Elements(table.coverage().file_rows));
        group.bench_function(format!("build {name}"), |bencher| {
            bencher.iter(|| once_build(black_box(&image)))
        });
    }
    group.finish();
}

criterion_group!(benches, build);
criterion_main!(benches);
