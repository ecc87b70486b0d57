// SPDX-License-Identifier: Apache-2.0
//! The cost of one record of the kernel side: a stall with its reason, and a second of a thread.
//!
//! `cargo bench -p wallprof-live --bench records`

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use wallprof_live::accounts::Accounts;
use wallprof_live::stalls::{Lookup, stalls_from_record};
use wallprof_model::{Meaning, Reason, StackId, ThreadRef, WordSource};
use wallprof_probe::bpf::{constants as c, other_thread, stall_record, thread_record};

const MS: u64 = 1_000_000;
const SECOND_NS: u64 = 1_000 * MS;
const THREADS: u32 = 1_000;

/// A session that knows every stack and every thread.
struct Known;

impl Lookup for Known {
    fn stack(&self, id: u64) -> Option<StackId> {
        (id != 0).then_some(StackId(id))
    }

    fn is_interrupt(&self, _id: u64) -> bool {
        false
    }

    fn reference(&self, other: &other_thread) -> ThreadRef {
        ThreadRef { tid: other.tid, pid: other.tgid, ..ThreadRef::default() }
    }

    fn owner(&self, _waiting: u32, ns_tid: u32) -> Option<ThreadRef> {
        Some(ThreadRef { tid: ns_tid, ..ThreadRef::default() })
    }

    fn meaning(&self, _: &stall_record) -> Option<Arc<Meaning>> {
        None
    }

    fn word_source(&self, _: u32) -> Option<Arc<WordSource>> {
        None
    }
}

fn wait() -> stall_record {
    let mut record = stall_record {
        r#type: c::RECORD_STALL as u32,
        key: 7,
        start: SECOND_NS,
        end: SECOND_NS + 3 * MS,
        runnable_ns: MS / 2,
        user_stack: 11,
        kernel_stack: 12,
        waker_user_stack: 13,
        waker_kernel_stack: 14,
        syscall: 202,
        reason: Reason::Lock.code(),
        ..stall_record::default()
    };
    record.comm[..6].copy_from_slice(b"worker");
    record
}

/// A wait for a lock with its owner, its waker and who ran meanwhile; a preemption; a page fault.
fn stalls() -> [stall_record; 3] {
    let mut lock = wait();
    lock.flags = (c::STALL_WOKEN | c::STALL_LOCK | c::STALL_OWNER) as u16;
    (lock.lock_address, lock.lock_owner) = (0x7f00_0000_1000, 9);
    (lock.waker.tid, lock.waker.tgid) = (9, 8);
    lock.rans = 2;
    for (ran, ns) in lock.ran.iter_mut().zip([MS, 2 * MS]) {
        ran.thread.tid = 9;
        ran.ns = ns;
    }
    let mut preempted = wait();
    preempted.flags = c::STALL_PREEMPTED as u16;
    let mut fault = wait();
    fault.flags = c::STALL_FAULT as u16;
    (fault.reason, fault.blocked_ns) = (c::SLEEP_FAULT_MAJOR as u8, 2 * MS);
    (fault.fault.address, fault.fault.mapping) = (0x7f00_0000_2000, c::MAPPING_FILE as u8);
    fault.fault.file_name[..7].copy_from_slice(b"data.db");
    [lock, preempted, fault]
}

#[inline(never)]
fn once_stalls(records: &[stall_record]) -> usize {
    records.iter().map(|record| stalls_from_record(black_box(record), MS / 10, &Known).len()).sum()
}

fn threads(seconds: u64) -> Vec<thread_record> {
    let thread = |key| {
        let mut record = thread_record {
            key,
            tid: key,
            tgid: key - key % 10,
            observed_from: SECOND_NS,
            since: seconds * SECOND_NS,
            run_ns: seconds * SECOND_NS,
            activity: c::ACTIVITY_BLOCKED as u8,
            reason: Reason::Poll.code(),
            ..thread_record::default()
        };
        record.ledger.on_cpu = (seconds - 1) * SECOND_NS;
        record
    };
    (1..=THREADS).map(thread).collect()
}

/// Threads that are emitted up to the second before.
fn known_threads() -> Accounts {
    let mut accounts = Accounts::default();
    flush_second(&mut accounts, &threads(1), 2 * SECOND_NS);
    accounts
}

/// Each thread has had an event since its last delta. Emits what it did up to the end of the second.
#[inline(never)]
fn once_second(accounts: &mut Accounts, records: &[thread_record]) -> usize {
    flush_second(accounts, records, 3 * SECOND_NS)
}

fn flush_second(accounts: &mut Accounts, records: &[thread_record], until: u64) -> usize {
    for record in records {
        accounts.update(record);
    }
    let mut emitted = 0;
    accounts.flush(until, 0, &mut |event| {
        black_box(event);
        emitted += 1;
    });
    emitted
}

fn benches(criterion: &mut Criterion) {
    let records = stalls();
    let mut group = criterion.benchmark_group("live");
    group.throughput(Throughput::Elements(records.len() as u64));
    group.bench_function("stalls", |bencher| bencher.iter(|| once_stalls(&records)));

    let records = threads(2);
    group.throughput(Throughput::Elements(records.len() as u64));
    group.bench_function("second", |bencher| {
        bencher.iter_batched_ref(
            known_threads,
            |accounts| once_second(accounts, &records),
            criterion::BatchSize::SmallInput,
        );
    });
    group.finish();
}

criterion_group!(all, benches);
criterion_main!(all);
