// SPDX-License-Identifier: Apache-2.0
//! Every event is read as it was emitted.

mod fixture;

use std::collections::BTreeMap;

use fixture::*;
use wallprof_model::event::{
    Access, Awaited, Binding, CrossCallDelta, DelayKind, Fault, InterruptDelta, InterruptKind, KernelDelay,
    LatencyDelta, Lock, Mapping, OwnerSample, Peer, PeerKind, PeerProcess, RanInstead, Role, SampleDelta,
    Stall, Throttled, WaitedFile, Waker, WakerStacks, Weighted,
};
use wallprof_model::histogram::Cell;
use wallprof_model::profile::{BoundAtFirstCall, Overhead, ResolvedStack, Thread, Unwinding};
use wallprof_model::state::Metric;
use wallprof_model::{
    BUSY, ClockAnchor, EpochNs, Event, FrameId, FrameKind, Histogram, LateSample, MonoNs, Reason, Span,
    SpanDelta, SpanSource, SpanStates, StackEnd, StackId, StallKind, StallReason, State, SymbolLine,
    ThreadKey, ThreadRef, TraceIds,
};
use wallprof_recording::{Additions, Recording, StallFilter, Summary, UNKNOWN_REFERENCE};

/// Records the definitions and `events`, and opens the result.
fn recording_of(events: Vec<Event>) -> (Place, Recording, Summary) {
    let place = place();
    let mut recorder = recorder(&place.file());
    take_all(&mut recorder, definitions());
    take_all(&mut recorder, events);
    let summary = recorder.finish(at(2_000_000_000)).unwrap();
    let recording = Recording::open(&place.file()).unwrap();
    (place, recording, summary)
}

fn only_thread(recording: &Recording) -> Thread {
    let threads = recording.threads().unwrap();
    assert_eq!(threads.len(), 1);
    threads.into_iter().next().unwrap()
}

fn all_stalls(recording: &Recording) -> Vec<wallprof_model::profile::StallRecord> {
    let filter = StallFilter { include_voluntary: true, ..StallFilter::default() };
    recording.stalls(&filter).unwrap().collect::<Result<_, _>>().unwrap()
}

fn symbols(stack: &ResolvedStack) -> Vec<Option<&str>> {
    stack.frames.iter().map(|frame| frame.lines[0].symbol.as_deref()).collect()
}

/// With the largest value, which is negative in the file.
fn word() -> wallprof_model::WaitWord {
    let source = wallprof_model::WordSource { symbol: "now_waits_for".into(), module: "/opt/engine".into() };
    wallprof_model::WaitWord { source: source.into(), value: u64::MAX, text: None }
}

fn peer() -> Option<Box<Peer>> {
    Some(Box::new(Peer {
        kind: PeerKind::Tcp,
        awaited: Awaited::Data,
        role: Some(Role::Client),
        asked: Some(false),
        local: "[::1]:40000".parse().ok(),
        remote: "[2001:db8::2]:5432".parse().ok(),
        inode: u64::MAX,
        by_child: true,
        process: Some(PeerProcess { pid: None, comm: "shop".into() }),
    }))
}

#[test]
fn container_and_its_pod_are_columns_of_the_view_and_survive_a_new_name() {
    const ID: &str = "3f4ae1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e";
    let place = place();
    let mut recorder = recorder(&place.file());
    let inside = |key, comm: &str| wallprof_model::ThreadInfo {
        cgroup: Some(format!("/system.slice/docker-{ID}.scope")),
        ..thread(key, comm)
    };
    let pod = "shop/web-1/nginx".parse().map(std::sync::Arc::new).ok();
    let in_pod = wallprof_model::ThreadInfo { pod, ..inside(1, "nginx") };
    for info in [inside(1, "runc"), in_pod.clone(), thread(2, "init")] {
        recorder.take(Event::Thread(info)).unwrap();
    }
    recorder.finish(at(2_000_000_000)).unwrap();
    let connection = rusqlite::Connection::open(place.file()).unwrap();
    let mut rows = connection.prepare("SELECT comm, container, pod FROM threads ORDER BY id").unwrap();
    let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap();
    let found: Vec<(String, Option<String>, Option<String>)> = rows.collect::<Result<_, _>>().unwrap();
    let nginx = ("nginx".into(), Some(ID.into()), Some("shop/web-1/nginx".into()));
    assert_eq!(found, [nginx, ("init".into(), None, None)]);
    let read = Recording::open(&place.file()).unwrap().thread_infos().unwrap();
    assert_eq!(read[0], wallprof_model::ThreadInfo { key: read[0].key, ..in_pod });
}

#[test]
fn facts_about_the_recording() {
    let step = ClockAnchor { mono: at(1_000), epoch: EpochNs(5) };
    let (_place, recording, summary) = recording_of(vec![
        Event::Clock(step),
        Event::EventName { index: 2, name: "cache-misses".into() },
        Event::EventName { index: 0, name: "cycles".into() },
        Event::Loss { reason: "ring_full".into(), count: 2 },
        Event::Loss { reason: "ring_full".into(), count: 3 },
        Event::Overhead { process_cpu_ns: 10, probe_ns: 20, probe_runs: 1, behind_ns: 5, table_bytes: 9 },
        Event::Overhead { process_cpu_ns: 1, probe_ns: 2, probe_runs: 3, behind_ns: 6, table_bytes: 8 },
    ]);
    let info = recording.info().unwrap();
    assert_eq!((info.start, info.end), (START, at(2_000_000_000)));
    assert!(info.ended_cleanly);
    assert_eq!(info.clock.anchors(), [start().clock.unwrap(), step]);
    assert_eq!(
        (info.source.as_str(), info.kernel.as_str(), info.arch.as_str()),
        ("live", "6.18.0", "x86_64")
    );
    assert_eq!((info.cpus, info.hostname.as_str(), info.command.as_str()), (2, "host", "redis-server"));
    assert_eq!(info.labels, [("version".into(), "1.4".into())].into());
    assert_eq!(info.budgets, [("order".into(), 200_000)].into());
    assert_eq!((info.machine_id.as_str(), info.boot_id.as_str()), ("0123", "4567"));
    assert_eq!(info.min_stall_ns, 100_000);
    assert!(info.has_turns);
    assert_eq!(info.events, ["cycles", "", "cache-misses"]);
    assert_eq!(info.losses, BTreeMap::from([("ring_full".into(), 5)]));
    assert_eq!(
        info.overhead,
        Overhead { process_cpu_ns: 11, probe_ns: 22, probe_runs: 4, behind_ns: 11, table_bytes: 9 }
    );
    assert_eq!(summary.losses, info.losses);
    assert_eq!((summary.duration_ns, summary.threads, summary.one_file), (2_000_000_000, 1, true));
}

#[test]
fn thread_has_its_last_names_and_its_lifetime() {
    let renamed = wallprof_model::ThreadInfo { cgroup: None, ..thread(7, "renamed") };
    let (_place, recording, _) = recording_of(vec![
        Event::Thread(renamed.clone()),
        Event::ThreadSeen { thread: ThreadKey(7), from: at(100) },
        Event::ThreadEnd { thread: ThreadKey(7), at: at(900) },
    ]);
    let thread = only_thread(&recording);
    assert_eq!(thread.info, wallprof_model::ThreadInfo { key: ThreadKey(1), ..renamed });
    assert_eq!((thread.start, thread.end), (at(100), at(900)));
}

#[test]
fn thread_ends_with_its_recording() {
    let (_place, recording, _) =
        recording_of(vec![Event::ThreadEnd { thread: ThreadKey(7), at: at(3_000_000_000) }]);
    assert_eq!(only_thread(&recording).end, at(2_000_000_000));
}

#[test]
fn ledger_and_latency_add_up() {
    let full = wallprof_model::event::LedgerDelta {
        wall_ns: 1,
        on_cpu_ns: 2,
        irq_ns: 3,
        fault_minor_ns: 4,
        fault_major_ns: 5,
        fault_on_cpu_ns: 6,
        runnable_ns: 7,
        preempted_ns: 8,
        blocked_ns: std::array::from_fn(|reason| 100 + reason as u64),
        voluntary_switches: 9,
        involuntary_switches: 10,
        user_samples: 11,
        kernel_samples: 12,
        minor_faults: 13,
        major_faults: 14,
        failed_faults: 15,
        traced_user_ns: 16,
        traced_kernel_ns: 17,
        undivided_ns: 18,
        ..ledger(0, 0)
    };
    let latency = |bucket, ns| {
        Event::Latency(LatencyDelta {
            thread: ThreadKey(7),
            metric: Metric::Blocked(Reason::Disk),
            bucket,
            cell: Cell { count: 1, total_ns: ns, max_ns: ns },
        })
    };
    let (_place, recording, _) = recording_of(vec![
        Event::Ledger(full.clone()),
        Event::Ledger(full.clone()),
        Event::Ledger(ledger(1, 50)),
        latency(40, 110),
        latency(40, 115),
        latency(41, 120),
    ]);
    let rows: Vec<_> = recording.ledger(..).unwrap().collect::<Result<_, _>>().unwrap();
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[0].blocked_ns[11], 222);
    assert_eq!((rows[0].wall_ns, rows[0].fault_on_cpu_ns, rows[0].kernel_samples), (2, 12, 24));
    assert_eq!((rows[0].minor_faults, rows[0].major_faults, rows[0].failed_faults), (26, 28, 30));
    let traced = [rows[0].traced_user_ns, rows[0].traced_kernel_ns, rows[0].undivided_ns];
    assert_eq!(traced, [32, 34, 36]);
    assert_eq!(recording.ledger(rows[1].second..).unwrap().count(), 1);
    assert_eq!(recording.ledger(..rows[1].second).unwrap().count(), 1);
    assert_eq!(recording.ledger(..rows[0].second).unwrap().count(), 0);

    let thread = only_thread(&recording);
    assert_eq!((thread.ledger.wall_ns, thread.ledger.on_cpu_ns), (52, 54));
    let mut expected = Histogram::default();
    expected.add_cell(40, Cell { count: 2, total_ns: 225, max_ns: 115 });
    expected.add_cell(41, Cell { count: 1, total_ns: 120, max_ns: 120 });
    assert_eq!(thread.latency, BTreeMap::from([(Metric::Blocked(Reason::Disk), expected)]));
}

#[test]
fn samples_keep_their_stacks_and_wakers() {
    let waker = WakerStacks { thread: Some(ThreadKey(7)), interrupt: false, user: Some(USER), kernel: None };
    let interrupt = WakerStacks { thread: None, interrupt: true, user: None, kernel: Some(KERNEL) };
    let blocked = |waker| SampleDelta {
        what: Weighted::State(State::Blocked(Reason::Lock)),
        kernel: Some(KERNEL),
        waker,
        ..sample(0, 500)
    };
    let event = SampleDelta { what: Weighted::Event(0), user: None, ..sample(0, 3) };
    let (_place, recording, _) = recording_of(vec![
        Event::Sample(sample(0, 10)),
        Event::Sample(sample(0, 30)),
        Event::Sample(blocked(Some(waker.clone()))),
        Event::Sample(blocked(Some(interrupt.clone()))),
        Event::Sample(blocked(None)),
        Event::Sample(event),
        Event::Sample(sample(1, 7)),
    ]);
    let rows: Vec<_> = recording.samples(..).unwrap().collect::<Result<_, _>>().unwrap();
    assert_eq!(rows.len(), 6);
    assert_eq!((rows[0].weight, rows[0].count, rows[0].what), (40, 2, Weighted::State(State::User)));
    let stack = recording.resolve(rows[0].user.unwrap()).unwrap();
    assert_eq!(symbols(&stack), [None, Some("main")]);

    let wakers: Vec<_> = rows.iter().filter_map(|row| row.waker.clone()).collect();
    assert_eq!(wakers.len(), 2);
    assert_eq!((wakers[0].thread, wakers[0].interrupt), (Some(ThreadKey(1)), false));
    assert_eq!(wakers[0].user, rows[0].user);
    assert_eq!((wakers[1].thread, wakers[1].interrupt), (None, true));
    let kernel = recording.resolve(wakers[1].kernel.unwrap()).unwrap();
    assert_eq!(kernel.end, StackEnd::Complete);
    assert_eq!((kernel.frames[0].kind, kernel.frames[0].address), (FrameKind::Kernel, 0xffff_ffff_8100_0000));

    assert_eq!((rows[4].what, rows[4].user, rows[4].weight), (Weighted::Event(0), None, 3));
    assert_eq!(recording.samples(rows[5].second..).unwrap().count(), 1);
}

#[test]
fn frame_has_its_module_and_its_functions() {
    let inlined = SymbolLine { inlined: true, ..line("inner") };
    let (_place, recording, _) = recording_of(vec![
        Event::Symbol { frame: FrameId(1), lines: vec![inlined.clone(), line("outer")] },
        Event::Stall(Box::new(Stall { user: Some(USER), ..stall(0, 10) })),
    ]);
    let stack = all_stalls(&recording)[0].user.clone().unwrap();
    assert_eq!(stack.end, StackEnd::FramePointerEnd);
    let leaf = &stack.frames[0];
    assert_eq!(leaf.module.as_deref(), Some("/usr/bin/server"));
    assert_eq!(leaf.build_id, Some(vec![0xab; 20]));
    assert_eq!(leaf.address, 0x2000);
    assert_eq!(leaf.lines, [inlined, line("outer")]);
    assert_eq!(stack.frames[1].lines, [line("main")]);
}

#[test]
fn symbols_replace_missing_ones_only() {
    let symbol = |lines| Event::Symbol { frame: FrameId(0), lines };
    let (_place, recording, _) = recording_of(vec![
        symbol(vec![line("_ZN4main"), line("x")]),
        symbol(vec![line("main::main")]),
        symbol(vec![SymbolLine::default()]),
        Event::Sample(sample(0, 1)),
    ]);
    let row = recording.samples(..).unwrap().next().unwrap().unwrap();
    assert_eq!(recording.resolve(row.user.unwrap()).unwrap().frames[1].lines, [line("main::main")]);
}

#[test]
fn stall_with_all_facts() {
    let other = ThreadRef { key: None, pid: 4, tid: 5, comm: "stress".into(), title: None };
    let worker = ThreadRef {
        key: Some(ThreadKey(7)),
        pid: 1000,
        tid: 1007,
        comm: "worker".into(),
        title: Some("worker: queue 7".into()),
    };
    let full = Stall {
        syscall: Some("futex".into()),
        cpu: Some(1),
        priority: Some(-1),
        user: Some(USER),
        kernel: Some(KERNEL),
        waker: Some(Waker { thread: Some(worker), user: Some(USER), kernel: None }),
        lock: Some(Lock { address: u64::MAX, owner: Some(other.clone()) }),
        owner_sample: Some(OwnerSample { at: at(700), user: USER }),
        ran_instead: vec![
            RanInstead { thread: other.clone(), ns: 40 },
            RanInstead { thread: ThreadRef { tid: 6, ..other.clone() }, ns: 30 },
        ],
        runnable_ns: 70,
        asked_ns: Some(1_000),
        file: Some(WaitedFile { path: "/data/journal".into(), offset: Some(u64::MAX) }),
        peer: peer(),
        word: Some(word()),
        trace: TraceIds::from_bytes([0xfe; 16], [0x80; 8]),
        ..stall(500, 1_000)
    };
    let symbol = Some("sched_yield".to_string());
    let binding = Binding { stack: USER, depth: 1, symbol: symbol.clone(), library: None };
    let (_place, recording, summary) =
        recording_of(vec![Event::Binding(binding), Event::Stall(Box::new(full))]);
    assert_eq!(summary.stalls, 1);
    let stalls = all_stalls(&recording);
    let got = &stalls[0];
    assert_eq!((got.thread, got.pid, got.tid, &*got.comm), (ThreadKey(1), 1000, 1007, "worker"));
    assert_eq!((got.start, got.end, got.duration_ns()), (at(500), at(1_500), 1_000));
    assert_eq!((got.blocked_ns, got.runnable_ns, got.asked_ns), (1_000, 70, Some(1_000)));
    assert_eq!((got.kind, got.reason), (StallKind::OffCpu, StallReason::Blocked(Reason::Lock)));
    assert_eq!(
        (got.voluntary, got.open, got.syscall.as_deref(), got.cpu),
        (false, false, Some("futex"), Some(1))
    );
    assert_eq!(symbols(got.user.as_ref().unwrap()), [None, Some("main")]);
    assert_eq!(got.kernel.as_ref().unwrap().frames.len(), 1);
    let waker = got.waker.as_ref().unwrap();
    assert_eq!(waker.thread.as_ref().unwrap().key, Some(ThreadKey(1)));
    assert_eq!((waker.user.is_some(), waker.kernel.is_some()), (true, false));
    let lock = got.lock.as_ref().unwrap();
    assert_eq!((lock.address, lock.owner.as_ref()), (u64::MAX, Some(&other)));
    assert_eq!(got.priority, Some(-1));
    let (sampled, stack) = got.owner_sample.as_ref().unwrap();
    assert_eq!((*sampled, symbols(stack)), (at(700), vec![None, Some("main")]));
    assert_eq!(got.file, Some(WaitedFile { path: "/data/journal".into(), offset: Some(u64::MAX) }));
    assert_eq!(got.peer, peer());
    let mut kinds = Vec::new();
    let mut keep = |id, reason, peer: &Peer, timed_out| {
        kinds.push((id, reason, peer.kind, peer.role, peer.asked, timed_out));
    };
    recording.each_peer(&mut keep).unwrap();
    let asked = peer().expect("a peer").asked;
    let timed_out = got.asked_ns.is_some_and(|ns| got.blocked_ns >= ns);
    assert_eq!(kinds, [(got.id, got.reason, PeerKind::Tcp, Some(Role::Client), asked, timed_out)]);
    assert_eq!(got.word, Some(word()));
    assert_eq!(got.trace, TraceIds::from_bytes([0xfe; 16], [0x80; 8]));
    let of_trace =
        |trace: String| StallFilter { trace: Some(trace), include_voluntary: true, ..Default::default() };
    let ids = |filter| recording.stalls(&filter).unwrap().map(|stall| stall.unwrap().id).collect::<Vec<_>>();
    assert_eq!((ids(of_trace("fe".repeat(16))), ids(of_trace("fd".repeat(16)))), (vec![got.id], vec![]));
    assert_eq!(got.binding, Some(BoundAtFirstCall { depth: 1, symbol, library: None }));
    assert_eq!(got.ran_instead, [(other.clone(), 40), (ThreadRef { tid: 6, ..other }, 30)]);
    assert_eq!(recording.stall(got.id).unwrap().as_ref(), Some(got));
    assert_eq!(recording.stall(got.id + 1).unwrap(), None);
    let mut each = Vec::new();
    recording.each_stall(|stall| each.push(stall)).unwrap();
    assert_eq!(each, stalls);
}

#[test]
fn late_stalls_of_a_thread_are_counted_once_however_they_were_read() {
    let voluntary = Stall { voluntary: true, ..stall(3_000, 100) };
    let stalls = [stall(1_000, 100), stall(2_000, 100), voluntary];
    let events = || stalls.iter().map(|stall| Event::Stall(Box::new(stall.clone()))).collect();
    let counts = |recording: &Recording| {
        recording.threads().unwrap().iter().map(|thread| thread.stalls).collect::<Vec<_>>()
    };
    let (_place, untouched, _) = recording_of(events());
    let (_other, read, _) = recording_of(events());
    let mut seen = 0;
    read.each_stall(|_| seen += 1).unwrap();
    assert_eq!((seen, counts(&untouched).iter().sum::<u64>()), (3, 2));
    assert_eq!(counts(&read), counts(&untouched));
    assert_eq!(counts(&read), counts(&read));
}

/// Stalls of every reason, with and without a lock, with timeouts around their lengths.
fn stalls_with_timeouts() -> Vec<Stall> {
    let mut stalls = Vec::new();
    let reasons = (0..=u8::MAX).filter_map(StallReason::from_code);
    for (reason, is_lock) in reasons.flat_map(|reason| [(reason, false), (reason, true)]) {
        for asked_ns in [None, Some(0), Some(40), Some(60), Some(61), Some(100), Some(u64::MAX)] {
            let start_ns = 1_000 * stalls.len() as u64;
            stalls.push(Stall {
                reason,
                asked_ns,
                blocked_ns: 60,
                runnable_ns: 40,
                lock: is_lock.then_some(Lock { address: 16, owner: None }),
                ..stall(start_ns, 100)
            });
        }
    }
    stalls
}

#[test]
fn lateness_is_the_same_in_every_reader() {
    let given = stalls_with_timeouts();
    let events = given.iter().map(|stall| Event::Stall(Box::new(stall.clone())));
    let (place, recording, _) = recording_of(events.collect());
    let expected: Vec<u64> = given.iter().map(Stall::late_ns).collect();
    let late: Vec<u64> = all_stalls(&recording).iter().map(|stall| stall.late_ns()).collect();
    assert_eq!(late, expected);
    let sql = rusqlite::Connection::open(place.file()).unwrap();
    let mut select = sql.prepare("SELECT late_ns FROM stalls ORDER BY start_ns").unwrap();
    let viewed: rusqlite::Result<Vec<i64>> = select.query_map([], |row| row.get(0)).unwrap().collect();
    assert_eq!(viewed.unwrap(), expected.iter().map(|&late_ns| late_ns as i64).collect::<Vec<_>>());
    for least in [40, 60, 100] {
        let filter = StallFilter { min_late_ns: least, include_voluntary: true, ..StallFilter::default() };
        let accepted = recording.stalls(&filter).unwrap().len();
        assert_eq!(accepted, expected.iter().filter(|&&late_ns| late_ns >= least).count(), "{least}");
    }
}

/// Older recordings lack the column `late_ns` of the view. The stored timeouts suffice to compute it.
#[test]
fn recording_without_the_column_has_lateness() {
    let sleep = StallReason::Blocked(Reason::Sleep);
    let slept = |start_ns, asked_ns| Stall { reason: sleep, asked_ns, ..stall(start_ns, 2_060) };
    let events = [slept(0, Some(2_000)), slept(5_000, None)].map(|stall| Event::Stall(Box::new(stall)));
    let (place, recording, _) = recording_of(events.to_vec());
    drop(recording);
    let sql = rusqlite::Connection::open(place.file()).unwrap();
    sql.execute_batch(
        "DROP VIEW faults; DROP VIEW disk_waits; DROP VIEW wait_words; DROP VIEW traced_stalls; DROP VIEW stalls;
         CREATE VIEW stalls AS SELECT id FROM stall",
    )
    .unwrap();
    drop(sql);
    let old = Recording::open(&place.file()).unwrap();
    let late: Vec<u64> = all_stalls(&old).iter().map(|stall| stall.late_ns()).collect();
    assert_eq!(late, [60, 2_060]);
    let filter = StallFilter { min_late_ns: 61, ..StallFilter::default() };
    assert_eq!(old.stalls(&filter).unwrap().len(), 1);
}

#[test]
fn kernel_delays_and_calls_on_other_cpus() {
    let work =
        |kind, start, ns| KernelDelay { thread: ThreadKey(7), kind, start: at(start), end: at(start + ns) };
    let caller = ThreadRef {
        key: Some(ThreadKey(7)),
        pid: 1000,
        tid: 1007,
        comm: "worker".into(),
        title: Some("worker: queue 7".into()),
    };
    let calls = |syscall: Option<&str>, count| {
        let (syscall, function) = (syscall.map(str::to_owned), Some("flush_tlb_func".to_owned()));
        Event::CrossCalls(CrossCallDelta { caller: caller.clone(), syscall, function, count })
    };
    let (_place, recording, _) = recording_of(vec![
        Event::KernelDelay(work(DelayKind::MmapLock, 90, 5)),
        Event::KernelDelay(work(DelayKind::Reclaim, 10, 70)),
        calls(Some("munmap"), 2),
        calls(None, 1),
        calls(Some("munmap"), 3),
    ]);
    let row = |work: KernelDelay| KernelDelay { thread: ThreadKey(1), ..work };
    let expected = [row(work(DelayKind::Reclaim, 10, 70)), row(work(DelayKind::MmapLock, 90, 5))];
    assert_eq!(recording.kernel_delays().unwrap(), expected);
    let found = recording.cross_calls().unwrap();
    let mut found: Vec<_> = found.iter().map(|row| (row.syscall.as_deref(), row.count)).collect();
    found.sort_unstable();
    assert_eq!(found, [(None, 1), (Some("munmap"), 5)]);
    let first = &recording.cross_calls().unwrap()[0];
    assert_eq!((first.caller.key, first.function.as_deref()), (Some(ThreadKey(1)), Some("flush_tlb_func")));
}

#[test]
fn late_samples_come_back_with_the_source_of_their_span() {
    let sample = |thread: u32, source, ns| LateSample {
        thread: ThreadKey(thread),
        source,
        at: at(ns),
        state: State::Kernel,
        ns,
        user: None,
        kernel: None,
    };
    let (busy, code) = (SpanSource::Busy, SpanSource::Code);
    let (place, recording, _) =
        recording_of(vec![Event::Late(sample(7, busy, 40)), Event::Late(sample(7, code, 50))]);
    assert_eq!(recording.late_samples().unwrap(), [sample(1, busy, 40), sample(1, code, 50)]);
    drop(recording);
    // Before marked spans had some, all were of busy periods.
    let file = rusqlite::Connection::open(place.file()).unwrap();
    file.execute_batch("DROP VIEW late_samples; ALTER TABLE late_sample DROP COLUMN source").unwrap();
    drop(file);
    let recording = Recording::open(&place.file()).unwrap();
    assert_eq!(recording.late_samples().unwrap(), [sample(1, busy, 40), sample(1, busy, 50)]);
}

#[test]
fn spans_and_their_sums_come_back() {
    let states = |ns: u64| SpanStates(std::array::from_fn(|at| ns + at as u64));
    let delta = |bucket: u16, count: u64, max_ns: u64| SpanDelta {
        thread: ThreadKey(7),
        source: SpanSource::Busy,
        kind: BUSY.into(),
        bucket,
        count,
        max_ns,
        states: states(max_ns),
    };
    let span = |start: u64, ns: u64| Span {
        thread: ThreadKey(7),
        source: SpanSource::Busy,
        kind: BUSY.into(),
        start: at(start),
        end: at(start + ns),
        states: states(ns),
    };
    let (place, recording, _) = recording_of(vec![
        Event::Spans(Box::new(delta(90, 3, 1_000))),
        Event::Spans(Box::new(delta(20, 1, 25))),
        Event::Spans(Box::new(delta(90, 2, 1_010))),
        Event::Span(Box::new(span(5, 25))),
        Event::Span(Box::new(span(100, 1_010))),
        Event::Span(Box::new(Span { thread: ThreadKey(99), ..span(1, 1) })),
    ]);
    let row = |delta: SpanDelta| SpanDelta { thread: ThreadKey(1), ..delta };
    let mut both = delta(90, 5, 1_010);
    both.states.add(&states(1_000));
    assert_eq!(recording.span_sums().unwrap(), [row(delta(20, 1, 25)), row(both)]);
    let found: Vec<Span> = recording.spans().unwrap().into_iter().map(|(_, span)| span).collect();
    let of_row = |span: Span| Span { thread: ThreadKey(1), ..span };
    assert_eq!(found, [of_row(span(100, 1_010)), of_row(span(5, 25))], "longest first");
    drop(recording);

    let imported = |ns| Span { source: SpanSource::Import, kind: "order".into(), ..of_row(span(7, ns)) };
    for ns in [40, 50] {
        let mut additions = Additions::open(&place.file()).unwrap();
        let sum = SpanDelta { source: SpanSource::Import, ..row(delta(25, 1, ns)) };
        additions.spans("order", &[&imported(ns)], &[sum]).unwrap();
        additions.commit().unwrap();
    }
    let recording = Recording::open(&place.file()).unwrap();
    assert_eq!(recording.spans().unwrap()[1].1, imported(50), "the second import replaces the first");
    assert_eq!(recording.spans().unwrap().len(), 3);
    assert_eq!(recording.span_sums().unwrap().len(), 3);
}

/// Of 120,000.
#[test]
fn of_too_many_spans_each_kind_has_its_longest_and_others() {
    let span = |kind: &str, number: u64, ns: u64| {
        Event::Span(Box::new(Span {
            thread: ThreadKey(7),
            source: SpanSource::Code,
            kind: kind.into(),
            start: at(number),
            end: at(number + ns),
            states: SpanStates::default(),
        }))
    };
    let checks = (0..100).map(|number| span("check", number, 10 + number));
    let orders = (0..120_000).map(|number| span("order", number, 1_000 + number));
    let (_place, recording, _) = recording_of(checks.chain(orders).collect());
    let found: Vec<Span> = recording.spans().unwrap().into_iter().map(|(_, span)| span).collect();
    assert_eq!(found.len(), 100_000);
    assert!(found.is_sorted_by(|one, other| one.duration_ns() >= other.duration_ns()), "longest first");
    let of = |kind: &str| found.iter().filter(|span| *span.kind == *kind).count();
    assert_eq!((of("check"), of("order")), (100, 99_900));
    let of_the_lower_half = found.iter().filter(|span| *span.kind == *"order" && span.duration_ns() < 61_000);
    assert!(of_the_lower_half.count() > 20_000, "for the body of a tail");
    assert_eq!(found[0].duration_ns(), 121_000 - 1);
}

#[test]
fn quotas_that_were_used_up() {
    let throttled = Throttled {
        pid: 1000,
        cgroup: "/shop".into(),
        quota_ns: 20_000_000,
        period_ns: 100_000_000,
        from: at(5),
        to: at(1_005),
        count: 3,
        total_ns: 700,
    };
    let later = Throttled { from: at(1_005), to: at(2_005), total_ns: u64::MAX, ..throttled.clone() };
    let events = [&later, &throttled].map(|event| Event::Throttled(event.clone()));
    let (_place, recording, _) = recording_of(events.to_vec());
    let found = recording.throttled().unwrap();
    assert_eq!(found, [throttled, Throttled { total_ns: 1 << 53, ..later }], "absurd sums are cut");
}

#[test]
fn missing_facts_of_a_stall_stay_absent() {
    let (_place, recording, _) = recording_of(vec![Event::Stall(Box::new(stall(0, 10)))]);
    let got = all_stalls(&recording).remove(0);
    assert_eq!((got.syscall, got.cpu, got.user, got.kernel, got.waker), (None, None, None, None, None));
    assert_eq!((got.binding, got.file), (None, None));
    assert_eq!((got.lock, got.fault, got.asked_ns, got.ran_instead.len()), (None, None, None, 0));
}

#[test]
fn wakeup_by_an_interrupt_differs_from_an_unknown_waker() {
    let waker = Some(Waker { thread: None, user: None, kernel: Some(KERNEL) });
    let (_place, recording, _) = recording_of(vec![Event::Stall(Box::new(Stall { waker, ..stall(0, 10) }))]);
    let got = all_stalls(&recording).remove(0).waker.unwrap();
    assert_eq!((got.thread, got.user.is_some(), got.kernel.is_some()), (None, false, true));
}

#[test]
fn fault_has_its_file() {
    let fault = Fault {
        address: 0x7fff_0000_1000,
        access: Some(Access::Exec),
        major: true,
        mapping: Some(Mapping::File),
        file: Some("/lib/libc.so.6".into()),
        file_offset: Some(u64::MAX),
    };
    let unknown =
        Fault { access: None, mapping: None, file: None, file_offset: None, major: false, ..fault.clone() };
    let of = |fault: &Fault, reason, start| {
        Event::Stall(Box::new(Stall {
            kind: StallKind::Fault,
            reason,
            fault: Some(fault.clone()),
            ..stall(start, 10)
        }))
    };
    let (_place, recording, _) =
        recording_of(vec![of(&fault, StallReason::Major, 5), of(&unknown, StallReason::Minor, 9)]);
    let stalls = all_stalls(&recording);
    assert_eq!(
        (stalls[0].kind, stalls[0].reason, &stalls[0].fault),
        (StallKind::Fault, StallReason::Major, &Some(fault))
    );
    assert_eq!(stalls[1].fault, Some(unknown));
}

#[test]
fn stalls_are_sorted_and_filtered() {
    let voluntary = Stall { voluntary: true, ..stall(5, 100) };
    let (_place, recording, _) = recording_of(
        [stall(50, 10), stall(10, 400), voluntary, stall(30, 20)]
            .map(|stall| Event::Stall(Box::new(stall)))
            .into(),
    );
    let starts = |filter: &StallFilter| -> Vec<u64> {
        recording.stalls(filter).unwrap().map(|stall| stall.unwrap().start.0 - START.0).collect()
    };
    assert_eq!(starts(&StallFilter::default()), [10, 30, 50]);
    assert_eq!(starts(&StallFilter { include_voluntary: true, ..Default::default() }), [5, 10, 30, 50]);
    assert_eq!(starts(&StallFilter { min_late_ns: 20, ..Default::default() }), [10, 30]);
    assert_eq!(starts(&StallFilter { during: Some(at(55)..at(56)), ..Default::default() }), [10, 50]);
    assert_eq!(only_thread(&recording).stalls, 3);
}

#[test]
fn open_stall_is_replaced_by_the_closed_one() {
    let place = place();
    let mut recorder = recorder(&place.file());
    take_all(&mut recorder, definitions());
    let other = ThreadRef { key: None, pid: 4, tid: 5, comm: "stress".into(), title: None };
    let open = Stall {
        open: true,
        ran_instead: vec![RanInstead { thread: other.clone(), ns: 1 }, RanInstead { thread: other, ns: 2 }],
        ..stall(0, 10)
    };
    recorder.take(Event::Stall(Box::new(open.clone()))).unwrap();
    recorder.commit(at(100)).unwrap();
    recorder.take(Event::Stall(Box::new(Stall { end: at(150), ..open }))).unwrap();
    recorder.take(Event::Stall(Box::new(stall(0, 200)))).unwrap();
    recorder.take(Event::Stall(Box::new(stall(300, 20)))).unwrap();
    assert_eq!(recorder.finish(at(400)).unwrap().stalls, 2);
    let stalls = all_stalls(&Recording::open(&place.file()).unwrap());
    assert_eq!(
        stalls.iter().map(|stall| (stall.duration_ns(), stall.open)).collect::<Vec<_>>(),
        [(200, false), (20, false)]
    );
    assert!(stalls[0].ran_instead.is_empty());
}

#[test]
fn interrupts_by_cpu_cause_and_victim() {
    let of = |victim, ns| {
        Event::Interrupt(InterruptDelta {
            cpu: 1,
            kind: InterruptKind::Vector,
            name: "local_timer".into(),
            victim,
            count: 1,
            total_ns: ns,
            max_ns: ns,
        })
    };
    let (_place, recording, _) =
        recording_of(vec![of(None, 5), of(Some(ThreadKey(7)), 10), of(Some(ThreadKey(7)), 30)]);
    let rows = recording.interrupts().unwrap();
    assert_eq!(rows.len(), 2);
    assert_eq!((rows[0].victim, rows[0].total_ns), (None, 5));
    assert_eq!(
        (rows[1].victim, rows[1].count, rows[1].total_ns, rows[1].max_ns),
        (Some(ThreadKey(1)), 2, 40, 30)
    );
    assert_eq!((rows[1].cpu, rows[1].kind, rows[1].name.as_str()), (1, InterruptKind::Vector, "local_timer"));
}

#[test]
fn unwinding_counts_how_often_user_stacks_were_taken() {
    let twice = SampleDelta { count: 2, kernel: Some(KERNEL), ..sample(0, 5) };
    let (_place, recording, _) = recording_of(vec![
        Event::Stack { id: StackId(5), frames: vec![FrameId(0)], end: StackEnd::Complete },
        Event::Sample(twice),
        Event::Sample(SampleDelta { user: Some(StackId(5)), ..sample(0, 5) }),
        Event::Stall(Box::new(Stall { user: Some(USER), ..stall(0, 10) })),
        Event::Stall(Box::new(Stall { kernel: Some(KERNEL), ..stall(0, 10) })),
    ]);
    let expected =
        Unwinding { stacks: 4, complete: 1, incomplete: BTreeMap::from([("frame_pointer_end".into(), 3)]) };
    assert_eq!(recording.info().unwrap().unwinding, expected);
}

#[test]
fn undefined_references_are_counted() {
    let (_place, recording, _) = recording_of(vec![
        Event::ThreadEnd { thread: ThreadKey(99), at: at(1) },
        Event::Ledger(wallprof_model::event::LedgerDelta { thread: ThreadKey(99), ..ledger(0, 1) }),
        Event::Symbol { frame: FrameId(99), lines: vec![] },
        Event::Stack { id: StackId(9), frames: vec![FrameId(0), FrameId(99)], end: StackEnd::Complete },
        Event::Sample(SampleDelta { user: Some(StackId(9)), ..sample(0, 5) }),
        Event::Stall(Box::new(Stall {
            lock: Some(Lock {
                address: 1,
                owner: Some(ThreadRef { key: Some(ThreadKey(99)), tid: 3, ..ThreadRef::default() }),
            }),
            ..stall(0, 10)
        })),
    ]);
    assert_eq!(recording.info().unwrap().losses, BTreeMap::from([(UNKNOWN_REFERENCE.into(), 6)]));
    let row = recording.samples(..).unwrap().next().unwrap().unwrap();
    assert_eq!((row.user, row.weight), (None, 5), "the time stays, without a stack");
    let owner = all_stalls(&recording).remove(0).lock.unwrap().owner.unwrap();
    assert_eq!((owner.key, owner.tid), (None, 3), "what is known of the owner stays");
}

#[test]
fn hostile_names_are_kept() {
    let names = ["a\0b", "line\nbreak", "\u{fffd}\u{1b}[31m", "'; DROP TABLE stall; --", "", "ΩΩΩ"];
    let mut events: Vec<Event> = names
        .iter()
        .enumerate()
        .map(|(index, name)| Event::Thread(thread(100 + index as u32, name)))
        .collect();
    events.push(Event::Symbol { frame: FrameId(1), lines: vec![line(names[0])] });
    events.push(Event::Loss { reason: names[1].into(), count: 1 });
    events.push(Event::Sample(sample(0, 1)));
    events.push(Event::Thread(thread(7, &"x".repeat(1 << 20))));
    let (_place, recording, _) = recording_of(events);
    let threads = recording.threads().unwrap();
    let got: Vec<&str> = threads[1..].iter().map(|thread| thread.info.comm.as_str()).collect();
    assert_eq!(got, names);
    assert_eq!(threads[0].info.comm.len(), 8192, "cut, not refused");
    let row = recording.samples(..).unwrap().next().unwrap().unwrap();
    assert_eq!(symbols(&recording.resolve(row.user.unwrap()).unwrap())[0], Some(names[0]));
    assert_eq!(recording.info().unwrap().losses.get(names[1]), Some(&1));
}

#[test]
fn largest_numbers_neither_panic_nor_wrap() {
    let huge = Stall {
        start: MonoNs(0),
        end: MonoNs(u64::MAX),
        blocked_ns: u64::MAX,
        asked_ns: Some(u64::MAX),
        ..stall(0, 0)
    };
    let backwards = Stall { start: at(10), end: at(5), ..stall(0, 0) };
    let (_place, recording, _) = recording_of(vec![
        Event::Ledger(ledger(0, u64::MAX)),
        Event::Ledger(ledger(0, u64::MAX)),
        Event::Sample(SampleDelta { count: u64::MAX, ..sample(0, u64::MAX) }),
        Event::Sample(SampleDelta { count: u64::MAX, ..sample(0, u64::MAX) }),
        Event::Stall(Box::new(huge)),
        Event::Stall(Box::new(backwards)),
        Event::Loss { reason: "x".into(), count: u64::MAX },
        Event::Loss { reason: "x".into(), count: u64::MAX },
        Event::Clock(ClockAnchor { mono: MonoNs(u64::MAX), epoch: EpochNs(u64::MAX) }),
    ]);
    assert!(only_thread(&recording).ledger.wall_ns >= 1 << 53);
    let stalls = all_stalls(&recording);
    assert_eq!((stalls[0].blocked_ns, stalls[1].duration_ns()), (i64::MAX as u64, 0));
    assert_eq!(recording.info().unwrap().clock.anchors().len(), 2);
}
