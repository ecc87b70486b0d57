// SPDX-License-Identifier: Apache-2.0
//! 100,000 different stacks, as a tree, as a flame graph and as folded text.
//!
//! `cargo bench -p wallprof-views --bench stacks`

#[path = "../tests/stacks/mod.rs"]
#[allow(dead_code, reason = "this is a part of it")]
mod stacks;

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use stacks::Stacks;
use wallprof_analysis::Zone;
use wallprof_analysis::weights::{FrameId, Mark, Side, Tree, View, WeightedStack, Weights};
use wallprof_model::profile::{RecordingInfo, ResolvedFrame};
use wallprof_model::{FrameKind, State, SymbolLine};
use wallprof_views::{Flame, flame_svg, folded};

const STACKS: u64 = 100_000;
const FUNCTIONS: u64 = 2_000;
const DEPTH: u64 = 24;
/// As many as `flame` draws.
const MOST_BOXES: usize = 10_000;

fn function(number: u64) -> Arc<ResolvedFrame> {
    let symbol = Some(format!("matching::book::Side<{number}>::level"));
    Arc::new(ResolvedFrame {
        kind: FrameKind::Native,
        module: Some("/opt/matchd".into()),
        build_id: None,
        address: 0x1000 + 16 * number,
        lines: vec![SymbolLine { symbol, ..SymbolLine::default() }],
    })
}

/// Stacks that share their outer frames, as those of real programs do, and differ towards the leaf.
fn weights() -> Weights {
    let mut weights = Stacks::new(View::Wall).weights;
    let functions: Vec<FrameId> =
        (0..FUNCTIONS).map(|number| weights.frames.code(&function(number))).collect();
    let state = State::User;
    let mark = weights.frames.mark(Mark::State(state));
    for number in 0..STACKS {
        let callee =
            |depth: u64| functions[((number >> (DEPTH - depth)) * 31 + depth * 7) as usize % functions.len()];
        let frames = (1..=DEPTH).map(callee).chain([mark]).collect();
        let thread = (number % 2) as usize;
        weights.stacks.push(WeightedStack {
            thread,
            frames,
            state: Some(state),
            weight: 1_000 + number % 77,
            count: 1,
        });
    }
    weights
}

#[inline(never)]
fn once_tree(weights: &Weights) -> u64 {
    Tree::grow(weights, MOST_BOXES).total()
}

#[inline(never)]
fn once_flame(weights: &Weights, info: &RecordingInfo) -> usize {
    let zone = Zone::utc();
    let range = info.start..info.end;
    let mut out = Vec::new();
    flame_svg(&mut out, &Flame { info, weights, side: Side::Both, range, thread_glob: None, zone: &zone })
        .expect("memory takes it");
    out.len()
}

#[inline(never)]
fn once_folded(weights: &Weights) -> usize {
    let mut out = Vec::new();
    folded(&mut out, weights).expect("memory takes it");
    out.len()
}

fn benches(criterion: &mut Criterion) {
    let weights = weights();
    let info = stacks::info();
    let mut group = criterion.benchmark_group("views");
    group.throughput(Throughput::Elements(STACKS)).sample_size(10);
    group.bench_function("tree", |bencher| bencher.iter(|| once_tree(black_box(&weights))));
    group.bench_function("flame", |bencher| bencher.iter(|| once_flame(black_box(&weights), &info)));
    group.bench_function("folded", |bencher| bencher.iter(|| once_folded(black_box(&weights))));
    group.finish();
}

criterion_group!(all, benches);
criterion_main!(all);
