// SPDX-License-Identifier: Apache-2.0
//! Makes 100,000 distinct stacks of 30 to 60 frames and says how long each picture and export of them takes.
//!
//! `cargo run --release -p wallprof-views --example many_stacks [FILE.svg]`

use std::io;
use std::sync::Arc;
use std::time::Instant;

use wallprof_analysis::Zone;
use wallprof_analysis::weights::{Frames, Mark, Side, View, WeightedStack, WeightedThread, Weights};
use wallprof_model::profile::{RecordingInfo, ResolvedFrame};
use wallprof_model::{FrameKind, MonoNs, Reason, State, SymbolLine};
use wallprof_views::{Flame, flame_svg, folded, pprof, speedscope};

const STACKS: u64 = 100_000;
const FUNCTIONS: u64 = 20_000;
const THREADS: u64 = 64;

fn main() -> io::Result<()> {
    let weights = weights();
    let frames: usize = weights.stacks.iter().map(|stack| stack.frames.len()).sum();
    println!("{} stacks, {frames} frames", weights.stacks.len());
    let info = RecordingInfo { end: MonoNs(60_000_000_000), ended_cleanly: true, ..RecordingInfo::default() };
    let zone = Zone::utc();
    let range = info.start..info.end;
    let flame =
        Flame { info: &info, weights: &weights, side: Side::Both, range, thread_glob: None, zone: &zone };
    let svg = timed("flame_svg", |out| flame_svg(out, &flame))?;
    timed("folded", |out| folded(out, &weights))?;
    timed("speedscope", |out| speedscope(out, &weights, "many"))?;
    timed("pprof", |out| pprof(out, &weights, &info, info.start, 60_000_000_000))?;
    match std::env::args_os().nth(1) {
        Some(file) => std::fs::write(file, svg),
        None => Ok(()),
    }
}

fn timed(what: &str, write: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    let started = Instant::now();
    write(&mut out)?;
    println!("{what:12} {:7.0} ms, {} bytes", started.elapsed().as_secs_f64() * 1e3, out.len());
    Ok(out)
}

/// Deterministic noise (xorshift64).
struct Noise(u64);

impl Noise {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Near the root few functions are met, further up ever more.
fn weights() -> Weights {
    let mut noise = Noise(88_172_645_463_325_252);
    let mut frames = Frames::default();
    let functions: Vec<_> = (0..FUNCTIONS).map(|number| frames.code(&function(number))).collect();
    let states = [State::User, State::Kernel, State::Preempted, State::Blocked(Reason::Lock)];
    let stacks = (0..STACKS).map(|_| {
        let depth = 30 + noise.below(30);
        let mut row: Vec<_> = (1..=depth)
            .map(|level| functions[noise.below((level * level * 6).min(FUNCTIONS)) as usize])
            .collect();
        let state = states[noise.below(4) as usize];
        row.push(frames.mark(Mark::State(state)));
        let (thread, weight) = (noise.below(THREADS) as usize, 1_000 + noise.below(2_000_000));
        WeightedStack { thread, frames: row, state: Some(state), weight, count: 1 }
    });
    let stacks = stacks.collect();
    Weights { view: View::Wall, threads: threads(), frames, stacks, left_out_ns: 0 }
}

fn threads() -> Vec<WeightedThread> {
    let thread = |number| WeightedThread {
        process: "server".into(),
        comm: format!("worker-{number}"),
        pid: 100,
        tid: 100 + number as u32,
    };
    (0..THREADS).map(thread).collect()
}

fn function(number: u64) -> Arc<ResolvedFrame> {
    let symbol =
        Some(format!("engine::book::Level<Order, {number}>::update(engine::Message const&, unsigned long)"));
    Arc::new(ResolvedFrame {
        kind: if number % 4 == 3 { FrameKind::Kernel } else { FrameKind::Native },
        module: Some("/opt/server".into()),
        build_id: None,
        address: number * 64,
        lines: vec![SymbolLine { symbol, ..SymbolLine::default() }],
    })
}
