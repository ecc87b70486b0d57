//! Invented recordings for the rules' tests: threads of one process, and stalls one after the other.

use std::collections::BTreeMap;
use std::sync::Arc;

use wallprof_model::event::LedgerDelta;
use wallprof_model::profile::{
    Finding, InterruptRow, IntrusionRow, LockRecord, ResolvedFrame, ResolvedStack, StallRecord, Thread,
    WakerRecord,
};
use wallprof_model::{
    EpochSecond, FrameKind, MonoNs, Reason, StackEnd, StallKind, StallReason, SymbolLine, ThreadInfo,
    ThreadKey, ThreadRef,
};

use super::{Collector, Evidence, findings};

/// Each thread's time.
pub const WALL_NS: u64 = 10_000_000_000;

/// Threads 1 to 9 of the process `app`, named `thread-1` …
pub struct Play {
    pub min_stall_ns: u64,
    pub threads: Vec<Thread>,
    pub interrupts: Vec<InterruptRow>,
    pub intrusions: Vec<IntrusionRow>,
    pub collector: Collector,
}

impl Play {
    pub fn new() -> Self {
        Play {
            min_stall_ns: 100_000,
            threads: (1..10).map(thread).collect(),
            interrupts: Vec::new(),
            intrusions: Vec::new(),
            collector: Collector::default(),
        }
    }

    pub fn stall(&mut self, stall: StallRecord) {
        self.collector.add(&stall);
    }

    pub fn evidence(mut self) -> Evidence {
        self.collector.add_intrusions(&self.intrusions);
        self.collector.finish(self.min_stall_ns, &self.threads, &self.interrupts)
    }

    /// The findings from these stalls.
    pub fn findings(stalls: impl IntoIterator<Item = StallRecord>) -> Vec<Finding> {
        let mut play = Play::new();
        stalls.into_iter().for_each(|stall| play.stall(stall));
        findings(&play.evidence())
    }

    /// The one finding from these stalls.
    pub fn only_finding(stalls: impl IntoIterator<Item = StallRecord>) -> Finding {
        let mut findings = Self::findings(stalls);
        assert_eq!(findings.len(), 1, "{findings:#?}");
        findings.remove(0)
    }
}

fn thread(number: u32) -> Thread {
    let mut ledger = LedgerDelta::new(ThreadKey(number), EpochSecond(0));
    ledger.wall_ns = WALL_NS;
    ledger.on_cpu_ns = WALL_NS / 2;
    let info = ThreadInfo {
        key: ThreadKey(number),
        tid: 100 + number,
        pid: 100,
        ns_tid: 100 + number,
        ns_pid: 100,
        start_boot_ns: 0,
        comm: format!("thread-{number}"),
        process: "app".into(),
        cgroup: None,
        kernel_thread: false,
    };
    Thread { info, start: MonoNs(0), end: MonoNs(WALL_NS), ledger, latency: BTreeMap::new(), stalls: 0 }
}

pub fn thread_ref(number: u32) -> ThreadRef {
    ThreadRef { key: Some(ThreadKey(number)), pid: 100, tid: 100 + number, comm: format!("thread-{number}") }
}

/// A thread that is not recorded.
pub fn stranger(comm: &str) -> ThreadRef {
    ThreadRef { key: None, pid: 900, tid: 901, comm: comm.into() }
}

/// A stack of these functions, leaf first, all of the program `app`.
pub fn stack(symbols: &[&str]) -> ResolvedStack {
    let frame = |symbol: &&str| {
        Arc::new(ResolvedFrame {
            kind: FrameKind::Native,
            module: Some("/opt/app".into()),
            build_id: None,
            address: 0x1234,
            lines: vec![SymbolLine { symbol: Some(symbol.to_string()), ..SymbolLine::default() }],
        })
    };
    ResolvedStack { frames: symbols.iter().map(frame).collect(), end: StackEnd::Complete }
}

/// A wait of thread `thread`, starting at 50 ms times its id.
pub fn case(id: u64, thread: u32, reason: StallReason, ns: u64) -> StallRecord {
    let start = MonoNs(1_000_000_000 + id * 50_000_000);
    let is_blocked = matches!(reason, StallReason::Blocked(_));
    StallRecord {
        id,
        thread: ThreadKey(thread),
        pid: 100,
        tid: 100 + thread,
        comm: format!("thread-{thread}"),
        kind: StallKind::OffCpu,
        reason,
        voluntary: matches!(reason, StallReason::Blocked(reason) if reason.is_voluntary()),
        open: false,
        start,
        end: MonoNs(start.0 + ns),
        blocked_ns: if is_blocked { ns } else { 0 },
        runnable_ns: if is_blocked { 0 } else { ns },
        syscall: None,
        cpu: Some(1),
        user: Some(stack(&["work", "main"])),
        kernel: None,
        waker: None,
        lock: None,
        ran_instead: vec![],
        fault: None,
        asked_ns: None,
    }
}

/// A wait for a lock that `owner` holds and releases.
pub fn lock_case(id: u64, thread: u32, owner: u32, ns: u64) -> StallRecord {
    StallRecord {
        syscall: Some("futex".into()),
        user: Some(stack(&["pthread_mutex_lock", "take_order", "handle_tick"])),
        lock: Some(LockRecord { address: 0x1000, owner: Some(thread_ref(owner)) }),
        waker: Some(woken_by(owner, "release_order")),
        ..case(id, thread, StallReason::Blocked(Reason::Lock), ns)
    }
}

pub fn woken_by(thread: u32, function: &str) -> WakerRecord {
    WakerRecord { thread: Some(thread_ref(thread)), user: Some(stack(&[function, "run"])), kernel: None }
}

/// The same wait, not ended.
pub fn open(stall: StallRecord) -> StallRecord {
    StallRecord { open: true, waker: None, ..stall }
}

/// The same wait at another time, ns after the recording's start.
pub fn at(start_ns: u64, stall: StallRecord) -> StallRecord {
    let length = stall.duration_ns();
    let start = MonoNs(1_000_000_000 + start_ns);
    StallRecord { start, end: MonoNs(start.0 + length), ..stall }
}
