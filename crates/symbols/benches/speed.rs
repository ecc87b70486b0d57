// SPDX-License-Identifier: Apache-2.0
//! The cost of normalising and resolving, in time and in anonymous memory, on this process and its libc.
//!
//! `cargo bench -p wallprof-symbols`; with libc's debug symbols installed it shows what they cost.

use std::hint::black_box;
use std::time::Instant;

use wallprof_symbols::{
    FrameTable, KernelSymbols, ProcessKey, Processes, Resolver, ResolverOptions, SYSTEM_DEBUG_DIR,
};

/// Anonymous memory of this process in KiB.
fn anonymous_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("readable");
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).expect("RssAnon");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
}

/// The executable part of libc in this process.
fn libc_range() -> (u64, u64) {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("readable");
    let line = maps.lines().find(|line| line.contains("libc.so") && line.contains("r-xp")).expect("libc");
    let (start, end) = line.split_once(' ').and_then(|(range, _)| range.split_once('-')).expect("a range");
    let bound = |text| u64::from_str_radix(text, 16).expect("an address");
    (bound(start), bound(end))
}

fn main() {
    let before = anonymous_kib();
    let started = Instant::now();
    let kernel = KernelSymbols::load();
    println!(
        "kallsyms: {:?}, {:?} functions, {:?} KiB; process {} KiB more",
        started.elapsed(),
        kernel.as_ref().map(KernelSymbols::len).ok(),
        kernel.as_ref().map(|table| table.memory() / 1024).ok(),
        anonymous_kib().saturating_sub(before)
    );

    let (start, end) = libc_range();
    let addresses: Vec<u64> = (0..1000).map(|index| start + (end - start) / 1000 * index).collect();
    let own = ProcessKey { pid: std::process::id(), generation: 0 };
    let mut processes = Processes::default();
    let started = Instant::now();
    processes.scan(own).expect("readable");
    println!("scan: {:?}", started.elapsed());

    let mut frames = Vec::new();
    let mut table = FrameTable::default();
    let rounds = 1000;
    let started = Instant::now();
    for _ in 0..rounds {
        for stack in addresses.chunks(25) {
            frames.clear();
            processes.normalise_user(own, stack, &mut frames);
            black_box(&frames);
        }
    }
    let normalise = started.elapsed() / (rounds * 1000);
    let started = Instant::now();
    for _ in 0..rounds {
        for &frame in &frames {
            black_box(table.frame_id(frame));
        }
    }
    println!("normalise: {normalise:?} a frame; number: {:?} a frame", started.elapsed() / (rounds * 25));

    frames.clear();
    for &address in &addresses {
        processes.normalise_user(own, &[address], &mut frames);
    }
    let vaddrs: Vec<u64> = frames.iter().map(|frame| frame.address).collect();
    let file = processes.module_file(frames[0].module.expect("libc")).expect("known");
    for debug_dirs in [vec![], vec![SYSTEM_DEBUG_DIR.into()]] {
        let what = if debug_dirs.is_empty() { "dynamic symbols" } else { "debug information" };
        let mut resolver = Resolver::new(ResolverOptions { debug_dirs, ..ResolverOptions::default() });
        let before = anonymous_kib();
        let started = Instant::now();
        let lines = resolver.resolve(&file, &vaddrs);
        let named = lines.iter().flatten().filter(|line| line.symbol.is_some()).count();
        println!(
            "resolve 1000 of libc, {what}: {:?}, {named} names; {} KiB more while parsed",
            started.elapsed(),
            anonymous_kib().saturating_sub(before)
        );
        let started = Instant::now();
        black_box(resolver.resolve(&file, &vaddrs[..10]));
        println!("  10 more: {:?}", started.elapsed());
        resolver.forget();
        drop(lines);
        println!("  {} KiB more after forgetting", anonymous_kib().saturating_sub(before));
        let started = Instant::now();
        black_box(resolver.resolve(&file, &vaddrs[..10]));
        println!("  10 from the start: {:?}", started.elapsed());
        resolver.forget();
    }
}
