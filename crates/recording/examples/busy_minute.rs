// SPDX-License-Identifier: Apache-2.0
//! Records an invented minute of a busy machine and prints its cost: time for each kind of row, bytes in the
//! file, and the time to read everything.
//!
//! `cargo run --release -p wallprof-recording --example busy_minute [FILE] [unlimited [STALLS_A_SECOND]]`

use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use wallprof_model::event::{
    LatencyDelta, LedgerDelta, RanInstead, SampleDelta, Stall, Waker, WakerStacks, Weighted,
};
use wallprof_model::histogram::{Cell, bucket_from_ns};
use wallprof_model::state::Metric;
use wallprof_model::{
    ClockAnchor, EpochNs, EpochSecond, Event, Frame, FrameId, FrameKind, Module, ModuleId, MonoNs, Reason,
    StackEnd, StackId, StallKind, StallReason, State, SymbolLine, ThreadInfo, ThreadKey, ThreadRef,
};
use wallprof_recording::{Recorder, Recording, RecordingStart, Result, SizeBudget, StallFilter};

const SECONDS: u64 = 60;
const THREADS: u32 = 400;
const FRAMES: u32 = 20_000;
const STACKS: u64 = 15_000;
const SAMPLES_A_SECOND: u64 = 2_500;
static STALLS_A_SECOND: LazyLock<u64> =
    LazyLock::new(|| std::env::args().nth(3).and_then(|stalls| stalls.parse().ok()).unwrap_or(5_000));
const NS: u64 = 1_000_000_000;

fn main() -> Result<()> {
    let path = std::env::args_os().nth(1).map_or_else(|| "busy-minute.db".into(), PathBuf::from);
    let is_unlimited = std::env::args_os().nth(2).is_some_and(|word| word == "unlimited");
    write(&path, if is_unlimited { SizeBudget::UNLIMITED } else { SizeBudget::default() })?;
    sizes(&path);
    read(&path)
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

    fn thread(&mut self) -> ThreadKey {
        ThreadKey(self.below(u64::from(THREADS)) as u32)
    }

    /// A few stacks are frequent, most are rare.
    fn stack(&mut self) -> Option<StackId> {
        let limit = 1 + self.below(STACKS);
        Some(StackId(self.below(limit)))
    }
}

fn write(path: &Path, budget: SizeBudget) -> Result<()> {
    let noise = &mut Noise(88_172_645_463_325_252);
    let mut recorder = Recorder::create(path, &RecordingStart { budget, ..start() })?;
    time("definitions", u64::from(FRAMES) + STACKS, || {
        define(&mut recorder, noise)?;
        recorder.commit(MonoNs(0))
    })?;
    let mut spent = [Duration::ZERO; 4];
    for second in 0..SECONDS {
        let now = MonoNs((second + 1) * NS);
        type Make = fn(&mut Noise, u64) -> Vec<Event>;
        for (kind, make) in [ledgers as Make, latencies, samples, stalls].into_iter().enumerate() {
            let events = make(noise, second);
            let started = Instant::now();
            for event in events {
                recorder.take(event)?;
            }
            recorder.commit(now)?;
            spent[kind] += started.elapsed();
        }
    }
    let rows = [u64::from(THREADS), u64::from(THREADS) * 3, SAMPLES_A_SECOND, *STALLS_A_SECOND];
    for ((name, spent), rows) in ["ledger", "latency", "sample", "stall"].into_iter().zip(spent).zip(rows) {
        say(name, SECONDS * rows, spent);
    }
    let summary = time("finish", 1, || recorder.finish(MonoNs(SECONDS * NS)))?;
    println!("{summary:?}");
    Ok(())
}

fn start() -> RecordingStart {
    let epoch = EpochNs(1_800_000_000 * NS);
    RecordingStart {
        clock: Some(ClockAnchor { mono: MonoNs(0), epoch }),
        source: "live".into(),
        cpus: 2,
        ..RecordingStart::default()
    }
}

fn define(recorder: &mut Recorder, noise: &mut Noise) -> Result<()> {
    for key in 0..THREADS {
        recorder.take(Event::Thread(thread(key)))?;
    }
    recorder.take(Event::Module {
        id: ModuleId(0),
        module: Module {
            path: "/usr/lib/x86_64-linux-gnu/libserver.so.1".into(),
            build_id: Some(vec![7; 20]),
        },
    })?;
    for id in 0..FRAMES {
        let frame = Frame { kind: FrameKind::Native, module: Some(ModuleId(0)), address: u64::from(id) * 64 };
        recorder.take(Event::Frame { id: FrameId(id), frame })?;
        recorder.take(Event::Symbol { frame: FrameId(id), lines: vec![line(id)] })?;
    }
    for id in 0..STACKS {
        let mut frames = stack_frames(noise);
        frames.reverse();
        recorder.take(Event::Stack { id: StackId(id), frames, end: StackEnd::FramePointerEnd })?;
    }
    Ok(())
}

/// A path down a call tree in which every other function calls one of two: many stacks share outer frames,
/// few share leaves. Outermost first.
fn stack_frames(noise: &mut Noise) -> Vec<FrameId> {
    let mut at = 1u32;
    let mut frames = Vec::new();
    for depth in 0..28u32 {
        let choice = if depth.is_multiple_of(2) { noise.below(2) as u32 } else { 0 };
        at = at.wrapping_mul(2_654_435_761).wrapping_add(depth + choice) % FRAMES;
        frames.push(FrameId(at));
    }
    frames
}

fn thread(key: u32) -> ThreadInfo {
    ThreadInfo {
        ns_tid: key,
        ns_pid: key / 8,
        start_boot_ns: u64::from(key) * NS,
        cgroup: Some("/system.slice/server.service".into()),
        ..ThreadInfo::new(
            ThreadKey(key),
            (10_000 + key / 8, "server"),
            (10_000 + key, format!("worker-{key}")),
        )
    }
}

fn line(id: u32) -> SymbolLine {
    SymbolLine {
        symbol: Some(format!("server::component_{}::Handler::operation_{id}", id % 97)),
        offset: Some(u64::from(id % 500)),
        file: Some(format!("src/component_{}/handler.cc", id % 97)),
        line: Some(id % 3000),
        inlined: false,
    }
}

fn second_of(second: u64) -> EpochSecond {
    EpochSecond(1_800_000_000 + second as u32)
}

fn ledgers(noise: &mut Noise, second: u64) -> Vec<Event> {
    (0..THREADS)
        .map(|key| {
            let on_cpu_ns = noise.below(5_000_000);
            let mut delta = LedgerDelta::new(ThreadKey(key), second_of(second));
            (delta.wall_ns, delta.on_cpu_ns, delta.irq_ns) = (NS, on_cpu_ns, on_cpu_ns / 50);
            (delta.runnable_ns, delta.voluntary_switches) = (noise.below(900_000), noise.below(300));
            delta.blocked_ns[usize::from(key % 6 != 0)] = NS - on_cpu_ns;
            Event::Ledger(delta)
        })
        .collect()
}

fn latencies(noise: &mut Noise, _second: u64) -> Vec<Event> {
    (0..THREADS * 3)
        .map(|index| {
            let ns = 1 + noise.below(1_000_000);
            Event::Latency(LatencyDelta {
                thread: ThreadKey(index / 3),
                metric: [Metric::OffCpu, Metric::RunQueue, Metric::Blocked(Reason::Wait)][index as usize % 3],
                bucket: bucket_from_ns(ns),
                cell: Cell { count: 1, total_ns: ns, max_ns: ns },
            })
        })
        .collect()
}

fn samples(noise: &mut Noise, second: u64) -> Vec<Event> {
    (0..SAMPLES_A_SECOND)
        .map(|index| {
            let is_on_cpu = index % 12 == 0;
            let waker = WakerStacks {
                thread: Some(ThreadKey(noise.below(20) as u32)),
                interrupt: false,
                user: Some(StackId(noise.below(40))),
                kernel: None,
            };
            Event::Sample(SampleDelta {
                thread: noise.thread(),
                second: second_of(second),
                what: Weighted::State(if is_on_cpu { State::User } else { State::Blocked(Reason::Wait) }),
                user: noise.stack(),
                kernel: noise.stack(),
                waker: (!is_on_cpu).then_some(waker),
                weight: noise.below(20_000_000),
                count: 1 + noise.below(3),
            })
        })
        .collect()
}

fn stalls(noise: &mut Noise, second: u64) -> Vec<Event> {
    (0..*STALLS_A_SECOND).map(|index| Event::Stall(Box::new(stall(noise, second, index)))).collect()
}

fn stall(noise: &mut Noise, second: u64, index: u64) -> Stall {
    let thread = noise.thread();
    let start = MonoNs(second * NS + index * (NS / *STALLS_A_SECOND));
    let blocked_ns = 100_000 + noise.below(3_000_000);
    let runnable_ns = if index.is_multiple_of(2) { noise.below(200_000) } else { 0 };
    let another = ThreadKey(noise.below(20) as u32);
    let mention = ThreadRef {
        key: Some(another),
        pid: 10_000,
        tid: 10_000 + another.0,
        comm: format!("worker-{}", another.0),
        title: None,
    };
    let ran_instead = match runnable_ns {
        0 => vec![],
        ns => vec![RanInstead { thread: mention.clone(), ns }],
    };
    Stall {
        thread,
        comm: format!("worker-{}", thread.0),
        kind: StallKind::OffCpu,
        reason: StallReason::Blocked(if index.is_multiple_of(3) { Reason::Lock } else { Reason::Wait }),
        voluntary: !index.is_multiple_of(3),
        start,
        end: MonoNs(start.0 + blocked_ns + runnable_ns),
        open: false,
        blocked_ns,
        runnable_ns,
        syscall: Some("futex".into()),
        cpu: Some((index % 2) as u32),
        priority: Some(120),
        user: noise.stack(),
        kernel: noise.stack(),
        waker: Some(Waker { thread: Some(mention), user: noise.stack(), kernel: None }),
        lock: None,
        owner_sample: None,
        ran_instead,
        fault: None,
        asked_ns: None,
        file: None,
        peer: None,
        word: None,
        trace: None,
        meaning: None,
    }
}

fn read(path: &Path) -> Result<()> {
    let recording = time("open", 1, || Recording::open(path))?;
    let info = time("info", 1, || recording.info())?;
    println!("{:?} {:?}", info.losses, info.unwinding);
    time("threads", 1, || recording.threads())?;
    let filter = StallFilter { include_voluntary: true, ..StallFilter::default() };
    let count = recording.stalls(&filter)?.len() as u64;
    time("read stalls", count, || recording.stalls(&filter)?.try_for_each(|stall| stall.map(drop)))?;
    let count = recording.samples(..)?.count() as u64;
    time("read samples", count, || recording.samples(..)?.try_for_each(|row| row.map(drop)))
}

fn time<T>(name: &str, rows: u64, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let started = Instant::now();
    let result = work()?;
    say(name, rows, started.elapsed());
    Ok(result)
}

fn say(name: &str, rows: u64, spent: Duration) {
    let each_us = spent.as_secs_f64() * 1e6 / rows.max(1) as f64;
    println!("{name:13} {rows:8} rows {:9.1} ms {each_us:9.2} us a row", spent.as_secs_f64() * 1e3);
}

fn sizes(path: &Path) {
    let connection = rusqlite::Connection::open(path).expect("the file that was just written");
    let query =
        "SELECT name, sum(pgsize), sum(ncell), sum(unused) FROM dbstat GROUP BY name ORDER BY 2 DESC LIMIT 9";
    // A build of SQLite of its own has it; that of the workspace does without, for its size.
    let Ok(mut sizes) = connection.prepare(query) else { return };
    let rows = sizes.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)));
    for (name, bytes, rows, unused) in rows.expect("dbstat").flatten() {
        let (name, bytes, rows, unused): (String, i64, i64, i64) = (name, bytes, rows, unused);
        println!("{name:13} {bytes:9} bytes {rows:8} rows {unused:8} unused");
    }
}
