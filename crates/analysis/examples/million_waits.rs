// SPDX-License-Identifier: Apache-2.0
//! Who costs whom in an invented minute of 400 threads and a million waits, and what it costs to find out.
//!
//! `cargo run --release -p wallprof-analysis --example million_waits`

use std::time::Instant;

use wallprof_analysis::blame::{Change, Waits};
use wallprof_model::event::LedgerDelta;
use wallprof_model::profile::{LockRecord, StallRecord, Thread, WakerRecord};
use wallprof_model::{EpochSecond, MonoNs, Reason, StallReason, ThreadInfo, ThreadKey, ThreadRef};

const THREADS: u32 = 400;
const WAITS_A_THREAD: u64 = 2_500;
const MINUTE_NS: u64 = 60_000_000_000;

fn main() {
    let threads: Vec<Thread> = (0..THREADS).map(thread).collect();
    let mut noise = 0x9e37_79b9_7f4a_7c15;
    let step = MINUTE_NS / WAITS_A_THREAD;
    let change: Change = "thread:worker-7=-50%".parse().unwrap_or_else(|error| panic!("{error}"));
    let started = Instant::now();
    let mut waits = Waits::new(&threads);
    // As a recording has them, by time.
    for number in 0..WAITS_A_THREAD {
        (0..THREADS).for_each(|thread| waits.add(&wait(thread, number * step, step, &mut noise)));
    }
    println!("waits made and added: {:?}", started.elapsed());
    let started = Instant::now();
    let what_if = waits.what_if(&change, &[], |_| true);
    println!("what if: {:?}, {} ns of waiting", started.elapsed(), what_if.waiting.after);
    let started = Instant::now();
    let blame = waits.blame(|_| true);
    println!(
        "blame: {:?}, {} edges, {} ns of waiting, {} ns cut",
        started.elapsed(),
        blame.edges.len(),
        blame.waiting_ns,
        blame.cut_ns
    );
}

/// xorshift64
fn below(noise: &mut u64, limit: u64) -> u64 {
    *noise ^= *noise << 13;
    *noise ^= *noise >> 7;
    *noise ^= *noise << 17;
    *noise % limit
}

/// A wait that ends within `step`, for a thread of nearby number: chains of all lengths.
fn wait(thread: u32, start: u64, step: u64, noise: &mut u64) -> StallRecord {
    let start = start + below(noise, step / 4);
    let ns = step / 4 + below(noise, step / 2);
    let waker = below(noise, u64::from(THREADS)) as u32;
    let by = ThreadRef { key: Some(ThreadKey(waker)), tid: waker + 1, ..ThreadRef::default() };
    let lock = LockRecord { address: 0x1000 + u64::from(waker) * 64, owner: Some(by.clone()) };
    let runnable_ns = ns / 20;
    StallRecord {
        tid: thread + 1,
        lock: Some(lock),
        waker: Some(WakerRecord { thread: Some(by), user: None, kernel: None }),
        runnable_ns,
        blocked_ns: ns - runnable_ns,
        ..StallRecord::new(0, ThreadKey(thread), StallReason::Blocked(Reason::Lock), MonoNs(start), ns)
    }
}

fn thread(number: u32) -> Thread {
    let info =
        ThreadInfo::new(ThreadKey(number), (1, "engine"), (number + 1, format!("worker-{}", number % 40)));
    let ledger = LedgerDelta::new(ThreadKey(number), EpochSecond(0));
    Thread { info, start: MonoNs(0), end: MonoNs(MINUTE_NS), ledger, latency: Default::default(), stalls: 0 }
}
