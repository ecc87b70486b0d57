// SPDX-License-Identifier: Apache-2.0
//! Each rule fires on its scenario and on no other: a test for each part of the matrix and each build.
//!
//! Other programs on the machine are not part of a scenario. A finding with the cause `machine` is true, and does
//! not fail the test. What is not demanded of a scenario on this machine is printed and counted as excused, with
//! the reason.

use serde::Deserialize;
use wallprof_findings::{RULES, rule};
use wallprof_testkit::busy::busy_ns;
use wallprof_testkit::contract::{Cause, Finding};
use wallprof_testkit::recorder::Recorder;
use wallprof_testkit::scenario::Scenario;
use wallprof_testkit::stripped::stripped;
use wallprof_testkit::{excuse, machine, stored};

use crate::found::Found;

struct Part {
    scenario: &'static str,
    args: &'static [&'static str],
    rule: Option<&'static str>,
    /// Rules that see another side of the same problem, and may fire too.
    also: &'static [&'static str],
    /// Rules that see the problem in place of `rule` in some runs.
    instead: &'static [&'static str],
    needs: Needs,
}

/// The feature of the machine without which the problem cannot happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needs {
    Nothing,
    /// Two threads that run at the same time.
    TwoCpus,
    /// A thread that waits for a CPU again and again. Beside many others it may not run often enough to be
    /// woken.
    LateReturns,
    /// A disk that keeps an fsync waiting.
    SlowDisk,
    /// A disk that keeps a reader of a cold page waiting.
    SlowReads,
    /// Pages that are served late.
    LatePages,
    /// So many timers at one time that they take a while.
    ManyTimers,
    /// Calls that wait for the kernel, or for another process, for some milliseconds.
    LongWaits,
    /// A control group of the scenario's own, and a CPU.
    Group,
    /// A control group of version 2 of the scenario's own.
    FrozenGroup,
    /// A control group of the scenario's own, whose pages take a while to be freed.
    SlowReclaim,
}

const fn part(scenario: &'static str, rule: &'static str) -> Part {
    Part { scenario, args: &[], rule: Some(rule), also: &[], instead: &[], needs: Needs::Nothing }
}

/// A scenario without a problem.
const fn healthy(scenario: &'static str) -> Part {
    Part { rule: None, ..part(scenario, "") }
}

impl Part {
    /// Whether the scenario may cause a finding of this rule. Where others fill the machine, `cpu-saturated`
    /// takes the place of waits for a CPU that it causes.
    fn permits(&self, rule: &str) -> bool {
        let names =
            |rule| self.rule == Some(rule) || self.also.contains(&rule) || self.instead.contains(&rule);
        names(rule) || rule == "cpu-saturated" && (names("preempted") || names("run-queue"))
    }
}

// Files in the build folder: a temporary folder may be in memory, where fsync waits for nothing.
const JOURNAL: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/findings-journal");
const COLD: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/findings-cold");
/// Larger than the memory limit of its writer.
const FILLED: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/findings-filled");

/// The parts, and for each one a test of each build: `fires::NAME`, and `stripped::NAME`, where names and symbols
/// are no part of a rule. A part without its tests cannot be written.
macro_rules! matrix {
    ($($name:ident: $part:expr,)*) => {
        const MATRIX: &[Part] = &[$($part),*];

        mod fires {
            use super::*;
            $(#[test]
            fn $name() {
                assert_fires(concat!("fires::", stringify!($name)), &$part);
            })*
        }

        mod stripped {
            use super::*;
            $(#[test]
            fn $name() {
                assert_fires_without_symbols(concat!("stripped::", stringify!($name)), &$part);
            })*
        }
    };
}

matrix! {
    // The thread that releases a lock wakes the waiter, often on its own CPU, and runs on.
    // Where both share a CPU, it gets that CPU only while the housekeeper sleeps, through one half of its
    // sweeps: holder-blocked.
    lock: Part {
        args: &["-n", "20"],
        also: &["run-queue"],
        instead: &["holder-blocked"],
        ..part("lock", "lock-wait")
    },
    // Where others use the CPUs, the holder comes back late from its sleep.
    holder_blocked: Part {
        args: &["-w", "sleep"],
        also: &["run-queue"],
        needs: Needs::TwoCpus,
        ..part("holders", "holder-blocked")
    },
    holder_preempted: Part {
        args: &["-w", "preempted"],
        also: &["preempted", "run-queue", "cpu-saturated"],
        ..part("holders", "holder-preempted")
    },
    inversion: Part {
        args: &["-w", "inversion"],
        also: &["preempted", "run-queue", "cpu-saturated"],
        ..part("holders", "priority-inversion")
    },
    // The thread that releases the lock wakes the next one on its own CPU, where it may take that of one that holds
    // the lock: once, and all others wait.
    convoy: Part {
        args: &["-w", "convoy"],
        also: &["wake-chain", "preempted", "run-queue", "cpu-saturated"],
        ..part("holders", "lock-convoy")
    },
    // Each lock of the chain has a finding of its own kind, too. Where `fourth` has the CPU of `third`, that
    // holder has none after the one before it let go.
    chain: Part {
        args: &["-w", "chain"],
        also: &["wake-chain", "lock-wait", "holder-preempted", "preempted", "run-queue", "cpu-saturated"],
        ..part("holders", "bottleneck")
    },
    // It fills a cache of new memory.
    allocator: Part { also: &["run-queue", "page-faults"], ..part("allocator", "allocator-lock") },
    // The client wakes the server, often on its own CPU, and loses the CPU before it waits for the answer.
    // Where others get it in between, neither covers half of the wait for the lock.
    relay: Part { also: &["run-queue", "preempted", "lock-wait"], ..part("relay", "wake-chain") },
    deadlock: part("deadlock", "deadlock"),
    // The stopper gets its CPU from the worker.
    stopped: Part { args: &["-d", "1.5"], also: &["preempted", "run-queue", "oversleep"], ..part("stops", "stopped") },
    frozen: Part {
        args: &["-d", "1.5", "-w", "freezer"],
        also: &["preempted", "run-queue", "oversleep"],
        needs: Needs::FrozenGroup,
        ..part("stops", "stopped")
    },
    not_stopped: Part { args: &["-w", "none"], ..healthy("stops") },
    // How long a grace period takes depends on what the other CPUs do.
    membarrier: Part { needs: Needs::LongWaits, ..part("kernel_waits", "grace-period") },
    membarrier_expedited: Part { args: &["-q"], ..healthy("kernel_waits") },
    scanner: Part {
        args: &["-k", "scanner"],
        needs: Needs::LongWaits,
        ..part("kernel_waits", "program-wait")
    },
    fast_scanner: Part { args: &["-k", "scanner", "-q"], ..healthy("kernel_waits") },
    seccomp: Part {
        args: &["-k", "seccomp"],
        needs: Needs::LongWaits,
        ..part("kernel_waits", "program-wait")
    },
    fast_supervisor: Part { args: &["-k", "seccomp", "-q"], ..healthy("kernel_waits") },
    fuse: Part { args: &["-k", "fuse"], needs: Needs::LongWaits, ..part("kernel_waits", "program-wait") },
    fast_file_server: Part { args: &["-k", "fuse", "-q"], ..healthy("kernel_waits") },
    // The first touch reads the page, which a process serves.
    store: Part {
        args: &["-k", "store"],
        also: &["program-wait"],
        needs: Needs::LongWaits,
        ..part("kernel_waits", "slow-fault")
    },
    fast_store: Part { args: &["-k", "store", "-q"], ..healthy("kernel_waits") },
    terminal: Part {
        args: &["-k", "terminal"],
        needs: Needs::LongWaits,
        ..part("kernel_waits", "program-wait")
    },
    read_terminal: Part { args: &["-k", "terminal", "-q"], ..healthy("kernel_waits") },
    datagram: Part {
        args: &["-k", "datagram"],
        needs: Needs::LongWaits,
        ..part("kernel_waits", "program-wait")
    },
    read_datagrams: Part { args: &["-k", "datagram", "-q"], ..healthy("kernel_waits") },
    connection: Part {
        args: &["-k", "connection"],
        needs: Needs::LongWaits,
        ..part("kernel_waits", "program-wait")
    },
    quick_listener: Part { args: &["-k", "connection", "-q"], ..healthy("kernel_waits") },
    message: Part {
        args: &["-k", "message"],
        needs: Needs::LongWaits,
        ..part("kernel_waits", "program-wait")
    },
    read_messages: Part { args: &["-k", "message", "-q"], ..healthy("kernel_waits") },
    mqueue: Part {
        args: &["-k", "mqueue"],
        needs: Needs::LongWaits,
        ..part("kernel_waits", "program-wait")
    },
    read_mqueue: Part { args: &["-k", "mqueue", "-q"], ..healthy("kernel_waits") },
    lease: Part {
        args: &["-k", "lease"],
        needs: Needs::LongWaits,
        ..part("kernel_waits", "program-wait")
    },
    quick_lease: Part { args: &["-k", "lease", "-q"], ..healthy("kernel_waits") },
    automount: Part {
        args: &["-k", "automount"],
        needs: Needs::LongWaits,
        ..part("kernel_waits", "program-wait")
    },
    fast_automounter: Part { args: &["-k", "automount", "-q"], ..healthy("kernel_waits") },
    vfork: Part {
        args: &["-k", "vfork"],
        needs: Needs::LongWaits,
        ..part("kernel_waits", "program-wait")
    },
    quick_child: Part { args: &["-k", "vfork", "-q"], ..healthy("kernel_waits") },
    linger: Part { args: &["-k", "linger"], needs: Needs::LongWaits, ..part("kernel_waits", "program-wait") },
    short_linger: Part { args: &["-k", "linger", "-q"], ..healthy("kernel_waits") },
    // It waits for a reader, as a reader of a pipe does for its next input.
    fifo: Part { args: &["-k", "fifo"], ..healthy("kernel_waits") },
    // A reader of the kernel's trace, which waits for the next line.
    trace_reader: Part { args: &["-k", "log"], ..healthy("kernel_waits") },
    // Quotas are read once a second. Leaving a group waits for a grace period.
    throttle: Part {
        args: &["-d", "1.5"],
        also: &["grace-period"],
        needs: Needs::Group,
        ..part("throttle", "cpu-throttling")
    },
    // Freeing a page means writing it, and others wait for the disk, too.
    reclaim: Part {
        args: &["-f", FILLED],
        // The kernel locks what it writes back to free memory; faults on the same file wait for that lock, too.
        also: &["major-fault", "disk-wait", "kernel-lock", "slow-fault"],
        needs: Needs::SlowReclaim,
        ..part("reclaim", "memory-reclaim")
    },
    // Its threads can have every CPU as long as others do not take half of them.
    crowd: Part { also: &["preempted", "run-queue"], needs: Needs::TwoCpus, ..part("crowd", "cpu-saturated") },
    // The neighbour is woken while the worker runs, and gets its CPU a little later.
    preempted: Part { also: &["run-queue"], ..part("preempted", "preempted") },
    runqueue: Part { needs: Needs::LateReturns, ..part("runqueue", "run-queue") },
    // The thread that serves the pages wakes the loader on its own CPU.
    loader: Part { also: &["run-queue"], needs: Needs::LatePages, ..part("loader", "lazy-binding") },
    coldfile: Part { args: &["-f", COLD], needs: Needs::SlowReads, ..part("coldfile", "major-fault") },
    // The thread that releases the lock runs on.
    mapper: Part { also: &["run-queue", "preempted"], ..part("mapper", "mmap-lock") },
    mapper_protect: Part { args: &["-p"], also: &["run-queue", "preempted"], ..part("mapper", "mmap-lock") },
    // Both want the same CPU.
    onefile: Part { also: &["run-queue", "preempted"], ..part("onefile", "kernel-lock") },
    fsync: Part { args: &["-f", JOURNAL, "-n", "5"], needs: Needs::SlowDisk, ..part("fsync", "disk-wait") },
    answer: Part { args: &["-k", "answer"], ..part("ends", "network-wait") },
    parts: Part { args: &["-k", "parts"], ..part("ends", "network-wait") },
    buffer: Part { args: &["-k", "buffer"], ..part("ends", "network-wait") },
    pipe: Part { args: &["-k", "pipe"], ..part("ends", "pipe-wait") },
    // A server between two requests, a connection that is kept, and the output of a child process.
    requests: Part { args: &["-k", "requests"], ..healthy("ends") },
    keepalive: Part { args: &["-k", "keepalive"], ..healthy("ends") },
    child: Part { args: &["-k", "child"], ..healthy("ends") },
    eventloop: Part { args: &["-b", "25000"], ..part("eventloop", "blocked-loop") },
    // Short callbacks, and a worker with long jobs.
    short_callbacks: healthy("eventloop"),
    // A CPU is interrupted only while the worker runs on it, by the mapper on another.
    shootdown: Part { needs: Needs::TwoCpus, ..part("shootdown", "tlb-shootdown") },
    // The share of the worker's time that interrupts take depends on the machine.
    barrier: Part { args: &["-d", "1.5"], also: &["irq-time"], ..healthy("barrier") },
    timers: Part { needs: Needs::ManyTimers, ..part("timers", "oversleep") },
    // The sleeper preempts the worker each time that it sets its timers.
    busy_timers: Part {
        args: &["-b"],
        also: &["preempted", "run-queue", "oversleep"],
        needs: Needs::ManyTimers,
        ..part("timers", "irq-time")
    },
    sleepers: healthy("sleepers"),
}

/// The rules that no part demands, each with the reason.
const NOT_DEMANDED: [(&str, &str); 11] = [
    ("accept-queue", "it needs a server with clients: the case gunicorn-busy of `tests/causes` demands it"),
    ("barrier-wait", "the case openmp-uneven of `tests/causes` demands it"),
    (
        "dropped-packets",
        "it needs a sender that does not wait: the case udp-sleeper of `tests/causes` demands it",
    ),
    (
        "busy-wait",
        "how long a thread may run is the machine's: the case c-yield of `tests/causes` demands it",
    ),
    ("compaction", "how fragmented memory is depends on the whole machine and on its history"),
    (
        "page-faults",
        "how long a fault takes is the machine's: the case c-first-touch of `tests/causes` demands it",
    ),
    ("steal", "the test of an injected /proc/stat demands it"),
    ("over-budget", "it needs spans and a budget: the truth tests of spans demand it"),
    ("short-waits", "how long a disk takes is the machine's: the stored run of it demands it"),
    ("pool-exhausted", "it needs a program with libuv: the case node-pool of `tests/causes` demands it"),
    ("guard-shared", "it needs guarded CPUs: the truth test of `--guard-cpus` demands it"),
];

/// A scenario runs this long.
const RUN_NS: u64 = 800_000_000;

/// The result of one run of a scenario.
struct Run {
    found: Found,
    /// CPU time of other programs meanwhile, the recorder among them.
    others_ns: u64,
    /// The time that the scenario waited for the disk in all fsyncs, and in the longest one, by its own
    /// clocks.
    syncs_ns: u64,
    longest_sync_ns: u64,
    /// The time of page accesses as long as a stall, because the page was read or others were freed first.
    slow_ns: u64,
    /// The sum by which a thread came back late from its sleeps.
    late_ns: u64,
    /// The time in calls of 5 ms or longer that wait for the kernel or another process.
    waited_ns: u64,
    /// Functions bound while their symbols were missing.
    bound: u64,
    /// Sleeps that ended just after very many timers.
    delayed: u64,
    /// The scenario got no control group.
    refused: bool,
}

#[derive(Debug, Deserialize)]
struct Refused {}

/// The sum of what took long.
#[derive(Debug, Deserialize)]
struct Total {
    total_ns: u64,
}

#[derive(Debug, Deserialize)]
struct Bound {
    functions: u64,
}

#[derive(Debug, Deserialize)]
struct Behind {
    timers: u64,
    count: u64,
}

/// Fewer timers at one time are over too soon to be found: each takes some tenths of a microsecond.
const MANY_TIMERS: u64 = 10_000;

#[derive(Debug, Deserialize)]
struct Sync {
    off_ns: u64,
    queued_ns: u64,
}

impl Sync {
    /// An fsync is several waits. One that ends in a longer wait for a CPU counts as the latter. So the
    /// blocked time that counts otherwise is at most the time that it waited for a CPU.
    fn for_disk_ns(&self) -> u64 {
        self.off_ns.saturating_sub(2 * self.queued_ns)
    }
}

fn run(program: &str, args: &[&str]) -> Run {
    let mut scenario = Scenario::ready(program, &[&["-d", "0.8"], args].concat());
    let recorder = Recorder::armed(&["-p", &scenario.pid()], &[]);
    let before_ns = busy_ns();
    let truth = scenario.run();
    let busy_ns = busy_ns() - before_ns;
    let syncs: Vec<u64> = truth.all::<Sync>("fsync").iter().map(Sync::for_disk_ns).collect();
    let own_ns: u64 = truth.lives().iter().map(|life| life.cpu_ns).sum();
    let behind = truth.all::<Behind>("behind").into_iter().filter(|behind| behind.timers >= MANY_TIMERS);
    Run {
        found: Found::in_recording(&recorder.stop()),
        others_ns: busy_ns.saturating_sub(own_ns),
        syncs_ns: syncs.iter().sum(),
        longest_sync_ns: syncs.into_iter().max().unwrap_or(0),
        slow_ns: truth.all::<Total>("slow_touches").iter().map(|slow| slow.total_ns).sum(),
        waited_ns: truth.all::<Total>("waits").iter().map(|waits| waits.total_ns).sum(),
        late_ns: truth.all::<Total>("late").iter().map(|late| late.total_ns).sum(),
        refused: !truth.all::<Refused>("refused").is_empty(),
        delayed: behind.map(|behind| behind.count).sum(),
        bound: truth.all::<Bound>("bound").iter().map(|bound| bound.functions).sum(),
    }
}

impl Run {
    /// Whether the machine has what the part needs.
    fn is_possible(&self, part: &Part) -> bool {
        match part.needs {
            Needs::Nothing => true,
            Needs::TwoCpus => machine::may_use_two_cpus() && self.others_ns < RUN_NS / 2,
            Needs::LateReturns => self.late_ns > RUN_NS / 10,
            // One of the waits of an fsync must be long, and all of them a hundredth of the recording.
            Needs::SlowDisk => self.longest_sync_ns > 6_000_000 && self.syncs_ns > RUN_NS / 25,
            Needs::SlowReads => self.slow_ns > 20_000_000,
            Needs::LongWaits => !self.refused && self.waited_ns > RUN_NS / 10,
            Needs::LatePages => self.bound > 0,
            // The rule takes two late ones for chance.
            Needs::ManyTimers => self.delayed > 3,
            // Where others want the CPU, too, the quota is not the cause of waiting.
            Needs::Group => !self.refused && self.others_ns < RUN_NS / 2,
            Needs::FrozenGroup => !self.refused,
            Needs::SlowReclaim => !self.refused && self.slow_ns > 20_000_000,
        }
    }

    /// The finding that the scenario is about. `None` where this machine excuses it.
    fn expected(&self, test: &str, part: &Part) -> Option<&Finding> {
        let rule = part.rule?;
        let stands_for = |finding: &Finding| match finding.rule.as_str() {
            // The rule takes the place of these two.
            "cpu-saturated" => matches!(rule, "preempted" | "run-queue"),
            // The machine took the holder's CPU: the rule goes before these three.
            "holder-preempted" if finding.cause == Cause::Machine => {
                matches!(rule, "lock-wait" | "holder-blocked" | "lock-convoy")
            }
            instead => part.instead.contains(&instead),
        };
        let finding = self.found.findings.iter().find(|finding| finding.rule == rule);
        // Where others fill the machine, too, the finding is about the machine.
        let finding = finding.or_else(|| self.found.findings.iter().find(|finding| stands_for(finding)));
        let excused = !stored::is_in_use() && !self.is_possible(part);
        if excused && finding.is_none() {
            excuse(test, &format!("{rule} in {}", part.scenario), &format!("it needs {:?}", part.needs));
        }
        assert!(finding.is_some() || excused, "{}: no {rule} in {:#?}", part.scenario, self.found.findings);
        finding
    }

    /// Returns the finding that the scenario is about.
    fn assert_fires_alone(&self, test: &str, part: &Part) -> Option<&Finding> {
        let expected = self.expected(test, part);
        for finding in &self.found.findings {
            assert!(
                part.permits(&finding.rule) || finding.cause == Cause::Machine,
                "{}, while others ran for {} ns: {finding:#?}",
                part.scenario,
                self.others_ns
            );
        }
        expected
    }
}

#[test]
fn each_rule_is_demanded_by_a_scenario_or_has_a_reason_not_to_be() {
    for rule in RULES.iter().map(|rule| rule.name) {
        let is_demanded = MATRIX.iter().any(|part| part.rule == Some(rule));
        let reason = NOT_DEMANDED.iter().find(|(name, _)| *name == rule).map(|(_, reason)| *reason);
        assert!(
            is_demanded != reason.is_some(),
            "{rule}: demanded {is_demanded}, reason not to be {reason:?}"
        );
    }
    let named = MATRIX.iter().flat_map(|part| part.rule.iter().chain(part.also).chain(part.instead));
    for name in named.chain(NOT_DEMANDED.iter().map(|(name, _)| name)) {
        assert!(rule(name).is_some(), "no rule is named {name}");
    }
}

fn assert_fires(test: &str, part: &Part) {
    let Some(_run) = stored::run_in_full(test) else { return };
    run(part.scenario, part.args).assert_fires_alone(test, part);
}

fn assert_fires_without_symbols(test: &str, part: &Part) {
    let Some(_run) = stored::run(test) else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = stripped(part.scenario, folder.path());
    let args = [&["-a", "nobody"], part.args].concat();
    let run = run(program.to_str().expect("a UTF-8 path"), &args);
    if let Some(finding) = run.assert_fires_alone(test, part) {
        assert!(run.found.names(finding).any(|name| name == "nobody"), "{}: {finding:#?}", part.scenario);
    }
}
