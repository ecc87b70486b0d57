//! A small recording made by hand: `engine` waits for a lock that `housekeeper` holds while it compacts,
//! is preempted by a neighbour, and `journal` waits for the disk.

use std::collections::BTreeMap;
use std::sync::Arc;

use wallprof_analysis::StallDigest;
use wallprof_analysis::counters::CounterMove;
use wallprof_analysis::rules::{Collector, Surroundings, findings};
use wallprof_model::event::{Access, Fault, InterruptKind, LedgerDelta, Mapping};
use wallprof_model::profile::*;
use wallprof_model::*;
use wallprof_views::Surroundings as Beside;

pub const MILLI: u64 = 1_000_000;
pub const SECOND: u64 = 1_000 * MILLI;
const START: u64 = 7_000 * SECOND;
const PID: u32 = 4242;
const LOCK: StallReason = StallReason::Blocked(Reason::Lock);

/// Everything that a view reads.
pub struct Story {
    pub info: RecordingInfo,
    pub threads: Vec<Thread>,
    pub interrupts: Vec<InterruptRow>,
    pub intrusions: Vec<IntrusionRow>,
    pub folded: Vec<FoldedStalls>,
    pub stalls: Vec<StallRecord>,
    pub marks: Vec<Mark>,
    /// Counters that moved in every stall; `None`: it has no counters.
    pub moves: Option<Vec<CounterMove>>,
}

impl Story {
    pub fn digest(&self) -> StallDigest {
        let mut digest = StallDigest::new(5);
        self.stalls.iter().for_each(|stall| digest.add(stall));
        digest
    }

    pub fn surroundings(&self) -> Beside {
        Beside { counters: self.moves.clone(), marks: self.marks.clone() }
    }

    pub fn findings(&self) -> Vec<Finding> {
        let mut collector = Collector::default();
        self.stalls.iter().for_each(|stall| collector.add(stall));
        findings(&collector.finish(&Surroundings {
            min_stall_ns: self.info.min_stall_ns,
            threads: &self.threads,
            interrupts: &self.interrupts,
            ..Surroundings::default()
        }))
    }
}

pub fn lock_story() -> Story {
    Story {
        info: info("matchd"),
        threads: vec![engine(), housekeeper(), journal()],
        interrupts: interrupts(),
        intrusions: intrusions(),
        folded: vec![FoldedStalls {
            thread: ThreadKey(1),
            reason: LOCK,
            voluntary: false,
            count: 120,
            total_ns: 14 * MILLI,
            max_ns: 140_000,
        }],
        stalls: stalls(),
        marks: vec![],
        moves: None,
    }
}

/// The lock story with the application's own alarms, while memory ran short.
pub fn noted_story() -> Story {
    let mut story = lock_story();
    let at = story.stalls[0].start;
    let mark = |ns: i64, duration_ns, text: &str| Mark {
        at: MonoNs(at.0.saturating_add_signed(ns)),
        duration_ns,
        text: text.into(),
    };
    story.marks = vec![
        mark(-3_000_000_000, None, "start of trading"),
        mark(-12_000_000, Some(250 * MILLI), "gap alarm, feed \u{1b}[31mA"),
        mark(2_000_000, None, "order 7 late"),
    ];
    let moved = |name: &str, kind, unit, [before, now, after]: [f64; 3]| CounterMove {
        name: name.into(),
        kind,
        unit,
        before,
        at: now,
        after: Some(after),
        weight: 1.0,
    };
    story.moves = Some(vec![
        moved("udp 239.1.1.1:4000 queue", CounterKind::Level, CounterUnit::Bytes, [0.0, 212_992.0, 0.0]),
        moved("faults.major", CounterKind::Sum, CounterUnit::Count, [0.0, 60.0, 0.5]),
        moved("pressure.memory.some", CounterKind::Sum, CounterUnit::Ns, [1e6, 4.2e8, 1e6]),
    ]);
    story
}

/// The lock story among 300 threads of other processes, most of them idle.
pub fn system_story() -> Story {
    let mut story = lock_story();
    story.info = info("all of md-07");
    for number in 0..300u32 {
        let tid = 10_000 + number;
        let mut thread = thread(100 + number, tid, tid - number % 4, &format!("worker-{number}"), "server");
        thread.ledger.blocked_ns[usize::from(Reason::Wait.code())] = 10 * SECOND;
        if number % 10 == 0 {
            run(&mut thread.ledger, u64::from(number + 1) * MILLI, (3, 1));
            thread.ledger.runnable_ns = u64::from(number) * 10_000;
        }
        settle(&mut thread.ledger, 0);
        story.threads.push(thread);
    }
    story
}

/// Two threads that wait for each other's lock until the end.
pub fn deadlock_story() -> Story {
    let mut story = lock_story();
    story.stalls = [(1u32, "left", 4301, "right", 4302), (2, "right", 4302, "left", 4301)]
        .map(|(id, comm, tid, other, other_tid)| StallRecord {
            open: true,
            end: MonoNs(START + 10 * SECOND),
            blocked_ns: 9 * SECOND,
            runnable_ns: 0,
            lock: Some(LockRecord {
                address: 0x5000 + u64::from(id),
                owner: Some(thread_ref(Some(3 - id), other_tid, other)),
            }),
            waker: None,
            cpu: None,
            comm: comm.into(),
            thread: ThreadKey(id),
            tid,
            ..stall(u64::from(id), 1_000 * MILLI, 0, LOCK)
        })
        .into();
    story.info.ended_cleanly = false;
    story
}

fn info(command: &str) -> RecordingInfo {
    let start = MonoNs(START);
    RecordingInfo {
        start,
        end: MonoNs(START + 10 * SECOND),
        // 2026-11-21 08:00:09.331 UTC.
        clock: ClockMap::new(vec![ClockAnchor { mono: start, epoch: EpochNs(1_795_248_009_331 * MILLI) }]),
        source: "live".into(),
        kernel: "6.18.2".into(),
        arch: "x86_64".into(),
        cpus: 2,
        hostname: "md-07".into(),
        machine_id: "5c2f".into(),
        boot_id: "aa31".into(),
        command: command.into(),
        min_stall_ns: 100_000,
        ended_cleanly: true,
        events: vec![],
        losses: BTreeMap::from([
            ("stalls_ring_full".into(), 12),
            ("quantum\x1b_flux".into(), 3),
            ("stalls_folded".into(), 120),
            ("map_full".into(), 0),
        ]),
        overhead: Overhead {
            process_cpu_ns: 31 * MILLI,
            probe_ns: 12 * MILLI,
            probe_runs: 40_123,
            table_bytes: 5 << 20,
        },
        unwinding: Unwinding {
            stacks: 1_234,
            complete: 0,
            incomplete: BTreeMap::from([("frame_pointer_end".into(), 1_200), ("truncated".into(), 34)]),
        },
        call_resolution_ns: None,
    }
}

fn thread(key: u32, tid: u32, pid: u32, comm: &str, process: &str) -> Thread {
    let mut ledger = LedgerDelta::new(ThreadKey(key), EpochSecond(0));
    ledger.wall_ns = 10 * SECOND;
    Thread {
        info: ThreadInfo {
            key: ThreadKey(key),
            tid,
            pid,
            ns_tid: tid,
            ns_pid: pid,
            start_boot_ns: 6_000 * SECOND,
            comm: comm.into(),
            process: process.into(),
            cgroup: Some("/system.slice/matchd.service".into()),
            kernel_thread: false,
        },
        start: MonoNs(START),
        end: MonoNs(START + 10 * SECOND),
        ledger,
        latency: BTreeMap::new(),
        stalls: 0,
    }
}

fn run(ledger: &mut LedgerDelta, on_cpu_ns: u64, (user, kernel): (u64, u64)) {
    ledger.on_cpu_ns = on_cpu_ns;
    (ledger.user_samples, ledger.kernel_samples) = (user, kernel);
}

/// Gives what is left of the wall time, but `unaccounted_ns`, to the first blocked reason that has any.
fn settle(ledger: &mut LedgerDelta, unaccounted_ns: u64) {
    let rest = ledger.on_cpu_ns
        + ledger.runnable_ns
        + ledger.preempted_ns
        + ledger.fault_minor_ns
        + ledger.fault_major_ns
        - ledger.fault_on_cpu_ns
        + unaccounted_ns;
    let largest = ledger.blocked_ns.iter().copied().max().unwrap_or(0);
    let others: u64 = ledger.blocked_ns.iter().sum::<u64>() - largest;
    if let Some(blocked) = ledger.blocked_ns.iter_mut().find(|ns| **ns == largest) {
        *blocked = ledger.wall_ns - rest - others;
    }
}

fn engine() -> Thread {
    let mut thread = thread(1, 4243, PID, "engine", "matchd");
    thread.stalls = 7;
    let ledger = &mut thread.ledger;
    run(ledger, 6_480 * MILLI, (598, 31));
    ledger.irq_ns = 4_200_000;
    ledger.fault_minor_ns = 310_000;
    ledger.fault_major_ns = 6 * MILLI;
    ledger.fault_on_cpu_ns = 400_000;
    ledger.runnable_ns = 2_300_000;
    ledger.preempted_ns = 12_700_000;
    ledger.blocked_ns[usize::from(Reason::Lock.code())] = 62_100_000;
    ledger.blocked_ns[usize::from(Reason::Poll.code())] = 3_000 * MILLI;
    ledger.voluntary_switches = 12_345;
    ledger.involuntary_switches = 23;
    settle(ledger, 3_210);
    let run_queue = histogram(&[(12_000, 9_000), (48_000, 120), (4_200_000, 3)]);
    thread.latency.insert(Metric::RunQueue, run_queue);
    thread
        .latency
        .insert(Metric::OffCpu, histogram(&[(18_000, 9_000), (140_000, 90), (890_000, 36), (3_210_000, 1)]));
    let lock = histogram(&[(4_000, 210), (890_000, 36), (3_190_000, 1)]);
    thread.latency.insert(Metric::Blocked(Reason::Lock), lock);
    thread.latency.insert(Metric::Blocked(Reason::Poll), histogram(&[(330_000, 8_700)]));
    thread
}

fn housekeeper() -> Thread {
    let mut thread = thread(2, 4244, PID, "housekeeper", "matchd");
    let ledger = &mut thread.ledger;
    run(ledger, 1_020 * MILLI, (90, 11));
    ledger.irq_ns = 610_000;
    ledger.runnable_ns = 800_000;
    ledger.blocked_ns[usize::from(Reason::Sleep.code())] = 1;
    ledger.involuntary_switches = 4;
    settle(ledger, 0);
    thread.latency.insert(Metric::Blocked(Reason::Sleep), histogram(&[(99_000_000, 90)]));
    thread
}

fn journal() -> Thread {
    let mut thread = thread(3, 4245, PID, "journal", "matchd");
    thread.stalls = 1;
    let ledger = &mut thread.ledger;
    run(ledger, 120 * MILLI, (2, 9));
    ledger.blocked_ns[usize::from(Reason::Disk.code())] = 41 * MILLI;
    ledger.blocked_ns[usize::from(Reason::Wait.code())] = SECOND;
    settle(ledger, 0);
    thread
}

fn histogram(values: &[(u64, u64)]) -> Histogram {
    let mut histogram = Histogram::default();
    for &(ns, count) in values {
        (0..count).for_each(|_| histogram.record(ns));
    }
    histogram
}

fn interrupts() -> Vec<InterruptRow> {
    let row = |cpu, kind, name: &str, victim: Option<u32>, count, total_ns| InterruptRow {
        cpu,
        kind,
        name: name.into(),
        victim: victim.map(ThreadKey),
        count,
        total_ns,
        max_ns: 3 * total_ns / count,
    };
    vec![
        row(0, InterruptKind::Vector, "local_timer", Some(1), 900, 2_900_000),
        row(1, InterruptKind::Vector, "local_timer", None, 1_100, 3_100_000),
        row(1, InterruptKind::Softirq, "net_rx", Some(1), 210, 1_300_000),
        row(0, InterruptKind::Irq, "virtio0-input.0", Some(2), 48, 610_000),
    ]
}

/// CPU 1 is kept for `engine`.
fn intrusions() -> Vec<IntrusionRow> {
    let row = |kind, what: &str, thread: Option<(u32, &str)>, count, total_ns| IntrusionRow {
        cpu: 1,
        kind,
        what: what.into(),
        thread: thread.map(|(tid, comm)| ThreadRef { key: None, pid: tid, tid, comm: comm.into() }),
        allowed: thread.is_some_and(|(_, comm)| comm == "engine"),
        count,
        total_ns,
        max_ns: 2 * total_ns / count,
    };
    vec![
        row(IntrusionKind::Task, "", Some((4243, "engine")), 40, 8_100_000_000),
        row(IntrusionKind::Task, "", Some((977, "backup")), 12, 31_000_000),
        row(IntrusionKind::KernelThread, "", Some((23, "kworker/1:1")), 3, 120_000),
        row(IntrusionKind::Timer, "local_timer", None, 1_100, 3_100_000),
        row(IntrusionKind::Vector, "call_function", None, 5, 21_000),
        row(IntrusionKind::Ipi, "flush_tlb_func", Some((4242, "reader")), 5, 0),
        row(IntrusionKind::Probe, "wallprof", None, 2_310, 1_900_000),
    ]
}

fn frame(kind: FrameKind, module: &str, address: u64, lines: Vec<SymbolLine>) -> Arc<ResolvedFrame> {
    let build_id = (kind == FrameKind::Native).then(|| vec![0x5f, 0x0a, module.len() as u8]);
    Arc::new(ResolvedFrame { kind, module: Some(module.into()), build_id, address, lines })
}

fn line(symbol: &str, offset: u64, source: Option<(&str, u32)>) -> SymbolLine {
    SymbolLine {
        symbol: Some(symbol.into()),
        offset: Some(offset),
        file: source.map(|(file, _)| file.into()),
        line: source.map(|(_, line)| line),
        inlined: false,
    }
}

const LIBC: &str = "/usr/lib/x86_64-linux-gnu/libc.so.6";
const MATCHD: &str = "/opt/match/bin/matchd";

fn user_stack(libc: &[&str], program: &[(&str, u32)]) -> ResolvedStack {
    let mut frames: Vec<_> = libc
        .iter()
        .enumerate()
        .map(|(at, symbol)| {
            frame(FrameKind::Native, LIBC, 0x8_9d20 + 64 * at as u64, vec![line(symbol, 0x1d, None)])
        })
        .collect();
    for (at, (symbol, number)) in program.iter().enumerate() {
        let source = Some(("/src/matchd/src/book.cc", *number));
        let mut lines = vec![line(symbol, 0x9c, source)];
        if at == 0 && libc.iter().any(|symbol| symbol.contains("mutex")) {
            let guard = line(
                "std::lock_guard<std::mutex>::lock_guard(std::mutex&)",
                0,
                Some(("/usr/include/c++/12/bits/std_mutex.h", 229)),
            );
            lines.insert(0, SymbolLine { offset: None, inlined: true, ..guard });
        }
        frames.push(frame(FrameKind::Native, MATCHD, 0x4_0120 + 256 * at as u64, lines));
    }
    ResolvedStack { frames, end: StackEnd::FramePointerEnd }
}

fn kernel_stack(symbols: &[&str]) -> ResolvedStack {
    let frames = symbols.iter().enumerate().map(|(at, symbol)| {
        frame(
            FrameKind::Kernel,
            "[kernel]",
            0xffff_ffff_8110_0000 + 512 * at as u64,
            vec![line(symbol, 0x2e, None)],
        )
    });
    ResolvedStack { frames: frames.collect(), end: StackEnd::Complete }
}

fn thread_ref(key: Option<u32>, tid: u32, comm: &str) -> ThreadRef {
    ThreadRef { key: key.map(ThreadKey), pid: PID, tid, comm: comm.into() }
}

fn stall(id: u64, at_ns: u64, duration_ns: u64, reason: StallReason) -> StallRecord {
    StallRecord {
        pid: PID,
        tid: 4243,
        comm: "engine".into(),
        voluntary: false,
        blocked_ns: duration_ns,
        runnable_ns: 0,
        syscall: Some("futex".into()),
        cpu: Some(1),
        user: Some(user_stack(
            &["__lll_lock_wait", "pthread_mutex_lock"],
            &[
                ("Book::release_order(Order const&)", 118),
                ("Engine::handle_tick(Tick const&)", 61),
                ("main", 20),
            ],
        )),
        kernel: Some(kernel_stack(&[
            "__schedule",
            "schedule",
            "futex_wait_queue",
            "futex_wait",
            "do_futex",
            "do_syscall_64",
        ])),
        ..StallRecord::new(id, ThreadKey(1), reason, MonoNs(START + at_ns), duration_ns)
    }
}

fn lock_stall(id: u64, at_ns: u64, blocked_ns: u64, runnable_ns: u64) -> StallRecord {
    let user = user_stack(
        &["pthread_mutex_unlock"],
        &[("Book::compact()", 310), ("Housekeeper::run()", 44), ("main", 33)],
    );
    let kernel = kernel_stack(&["try_to_wake_up", "wake_up_q", "futex_wake", "do_futex", "do_syscall_64"]);
    StallRecord {
        end: MonoNs(START + at_ns + blocked_ns + runnable_ns),
        blocked_ns,
        runnable_ns,
        waker: Some(WakerRecord {
            thread: Some(thread_ref(Some(2), 4244, "housekeeper")),
            user: Some(user),
            kernel: Some(kernel),
        }),
        lock: Some(LockRecord {
            address: 0x55d0_c0a0_1040,
            owner: Some(thread_ref(Some(2), 4244, "housekeeper")),
        }),
        ..stall(id, at_ns, 0, LOCK)
    }
}

fn preempted_stall(id: u64, at_ns: u64, ns: u64) -> StallRecord {
    StallRecord {
        blocked_ns: 0,
        runnable_ns: ns,
        syscall: None,
        user: Some(user_stack(&[], &[("Book::match(Order const&)", 77), ("main", 20)])),
        kernel: Some(kernel_stack(&[
            "__schedule",
            "preempt_schedule_irq",
            "asm_sysvec_apic_timer_interrupt",
        ])),
        ran_instead: vec![
            (thread_ref(None, 911, "stress-ng-cpu"), ns / 10 * 8),
            (ThreadRef { key: None, pid: 17, tid: 17, comm: "kworker/1:2".into() }, ns / 10),
        ],
        ..stall(id, at_ns, ns, StallReason::Preempted)
    }
}

fn stalls() -> Vec<StallRecord> {
    vec![
        lock_stall(3, 900 * MILLI, 870_000, 20_000),
        preempted_stall(4, 1_400 * MILLI, 4_200_000),
        lock_stall(7, 1_900 * MILLI, 890_000, 12_000),
        StallRecord { waker: None, ..lock_stall(8, 2_100 * MILLI, 120_000, 9_000) },
        StallRecord {
            thread: ThreadKey(3),
            tid: 4245,
            comm: "journal".into(),
            syscall: Some("fdatasync".into()),
            user: Some(user_stack(&["fdatasync"], &[("Journal::commit()", 90), ("Journal::run()", 41)])),
            kernel: Some(kernel_stack(&[
                "__schedule",
                "schedule",
                "io_schedule",
                "folio_wait_bit_common",
                "ext4_sync_file",
            ])),
            waker: Some(WakerRecord {
                thread: None,
                user: None,
                kernel: Some(kernel_stack(&["try_to_wake_up", "blk_mq_complete_request", "virtblk_done"])),
            }),
            ..stall(11, 2_500 * MILLI, 8_400_000, StallReason::Blocked(Reason::Disk))
        },
        lock_stall(17, 3_000 * MILLI + 42_000, 3_190_000, 20_000),
        StallRecord {
            kind: StallKind::Fault,
            syscall: None,
            kernel: None,
            fault: Some(Fault {
                address: 0x7f10_2233_4000,
                access: Some(Access::Read),
                major: true,
                mapping: Some(Mapping::File),
                file: Some("/opt/match/data/symbols.idx".into()),
                file_offset: Some(0x3_4000),
            }),
            user: Some(user_stack(&[], &[("Symbols::find(std::string_view)", 12), ("main", 20)])),
            ..stall(21, 6_700 * MILLI, 6_000_000, StallReason::Major)
        },
        preempted_stall(22, 7_400 * MILLI, 2_000_000),
        StallRecord {
            asked_ns: Some(MILLI),
            syscall: Some("clock_nanosleep".into()),
            user: Some(user_stack(
                &["clock_nanosleep", "nanosleep"],
                &[("Engine::pace(Tick const&)", 52), ("main", 20)],
            )),
            ..stall(25, 8_000 * MILLI, 3_100_000, StallReason::Blocked(Reason::Sleep))
        },
        StallRecord {
            voluntary: true,
            ..stall(26, 9_000 * MILLI, 400 * MILLI, StallReason::Blocked(Reason::Poll))
        },
    ]
}
