// SPDX-License-Identifier: Apache-2.0
//! The speed of the reference walker: frames in a second, through stacks that are generated from libc's
//! rules.
//!
//! `cargo bench -p wallprof-unwind --bench walk`

#[path = "../tests/synthetic_stack/mod.rs"]
mod synthetic_stack;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use synthetic_stack::{OneFile, SyntheticStack, Words};
use wallprof_unwind::{Table, walk};

const DEPTH: usize = 40;
const STACKS: usize = 64;

#[inline(never)]
fn once_walk(table: &Table, stacks: &[SyntheticStack], frames: &mut Vec<u64>) {
    for stack in stacks {
        black_box(walk(stack.start, &mut Words(&stack.words), &OneFile(table), 128, frames));
    }
}

fn walks(criterion: &mut Criterion) {
    let image = std::fs::read("/lib/x86_64-linux-gnu/libc.so.6").expect("libc is where Debian has it");
    let table = Table::from_elf(&image).expect("a table");
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 20
    };
    let stacks: Vec<_> =
        (0..STACKS).map(|_| SyntheticStack::new(&table, DEPTH, |_| true, &mut random)).collect();
    let mut group = criterion.benchmark_group("unwind");
    group.throughput(Throughput::Elements((DEPTH * STACKS) as u64));
    group.bench_function("walk", |bencher| {
        let mut frames = Vec::with_capacity(DEPTH);
        bencher.iter(|| once_walk(&table, &stacks, &mut frames));
    });
    group.finish();
}

criterion_group!(benches, walks);
criterion_main!(benches);
