//! Each rule fires on its scenario and on no other.
//!
//! Other programs on the machine are no part of a scenario. What they do to it is true, and is told: a finding that
//! they caused is not held against a rule.

use serde::Deserialize;

use crate::found::{Finding, Found};
use crate::machine::{UNSEEN_NS, busy_ns};
use crate::recorder::Recorder;
use crate::scenario::Scenario;
use crate::stage;
use crate::stripped::stripped;

struct Part {
    scenario: &'static str,
    args: &'static [&'static str],
    rule: Option<&'static str>,
    /// Other sides of the same trouble, which may be seen too.
    also: &'static [&'static str],
    needs: Needs,
}

/// What a machine must have for the trouble to happen at all.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Needs {
    Nothing,
    /// Two threads that run at the same time.
    TwoCpus,
    /// A thread that waits for a CPU again and again: beside many others it may not run often enough to be woken.
    LateReturns,
    /// A disk that keeps an fsync waiting.
    SlowDisk,
    /// A disk that keeps a reader of a cold page waiting.
    SlowReads,
    /// Pages that are served late.
    LatePages,
    /// So many timers that those of one moment take a while.
    ManyTimers,
    /// A control group of the scenario's own, and a CPU.
    Group,
    /// A control group of the scenario's own, whose pages take a while to be freed.
    SlowReclaim,
}

const fn part(scenario: &'static str, rule: &'static str) -> Part {
    Part { scenario, args: &[], rule: Some(rule), also: &[], needs: Needs::Nothing }
}

/// In the build folder: a temporary one may be in memory, where fsync waits for nothing.
const JOURNAL: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/findings-journal");

/// Next to it.
const COLD: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/findings-cold");

/// And a third one, larger than the memory that its writer may have.
const FILLED: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/findings-filled");

const MATRIX: [Part; 17] = [
    // Who lets a lock go wakes the waiter, often on its own CPU, and runs on.
    Part { args: &["-n", "20"], also: &["run-queue"], ..part("lock", "lock-wait") },
    Part { also: &["run-queue"], ..part("allocator", "allocator-lock") },
    // Who asks wakes who answers, often on its own CPU, and loses it before it waits for the answer: where others take
    // it in between, neither covers half of the wait for the lock.
    Part { also: &["run-queue", "preempted", "lock-wait"], ..part("relay", "wake-chain") },
    part("deadlock", "deadlock"),
    // Quotas are looked at once a second. To leave a group takes the kernel a while, in a write to a file.
    Part {
        args: &["-d", "1.5"],
        also: &["disk-wait"],
        needs: Needs::Group,
        ..part("throttle", "cpu-throttling")
    },
    // To free a page is to write it, and others wait for the disk, too.
    Part {
        args: &["-f", FILLED],
        // What the kernel writes back to free memory it locks meanwhile.
        also: &["major-fault", "disk-wait", "kernel-lock"],
        needs: Needs::SlowReclaim,
        ..part("reclaim", "memory-reclaim")
    },
    // The neighbour is woken while the worker runs, and gets its CPU a little later.
    Part { also: &["run-queue"], ..part("preempted", "preempted") },
    Part { needs: Needs::LateReturns, ..part("runqueue", "run-queue") },
    // Who serves the pages wakes the loader on its own CPU.
    Part { also: &["run-queue"], needs: Needs::LatePages, ..part("loader", "lazy-binding") },
    Part { args: &["-f", COLD], needs: Needs::SlowReads, ..part("coldfile", "major-fault") },
    // Who lets the lock go runs on.
    Part { also: &["run-queue", "preempted"], ..part("mapper", "mmap-lock") },
    // Both want the same CPU.
    Part { also: &["run-queue", "preempted"], ..part("onefile", "kernel-lock") },
    Part { args: &["-f", JOURNAL, "-n", "5"], needs: Needs::SlowDisk, ..part("fsync", "disk-wait") },
    // A CPU is interrupted only while the worker runs on it, by the mapper on another.
    Part { needs: Needs::TwoCpus, ..part("shootdown", "tlb-shootdown") },
    // How much of the worker's time its interrupts take is up to the machine: told where it is more than a fiftieth.
    Part { args: &["-d", "1.5"], rule: None, also: &["irq-time"], ..part("barrier", "") },
    Part { needs: Needs::ManyTimers, ..part("timers", "oversleep") },
    Part { rule: None, ..part("sleepers", "") },
];

/// How long a scenario plays.
const PLAY_NS: u64 = 800_000_000;

/// What came of a scenario's play.
struct Played {
    found: Found,
    /// CPU time of other programs meanwhile, the recorder among them.
    others_ns: u64,
    /// What all fsyncs together, and the longest of them, kept the scenario waiting for the disk, by its own clocks.
    syncs_ns: u64,
    longest_sync_ns: u64,
    /// Touches of pages that took as long as a stall, because they had to be read or others had to go, together.
    slow_ns: u64,
    /// How late a thread came back from its sleeps, together.
    late_ns: u64,
    /// Functions bound while their symbols were missing.
    bound: u64,
    /// Sleeps that ended just after the moment of very many timers.
    delayed: u64,
    /// The scenario got no control group.
    refused: bool,
}

#[derive(Debug, Deserialize)]
struct Refused {}

/// What took long, together.
#[derive(Debug, Deserialize)]
struct Toll {
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

/// Fewer timers of one moment are over too soon to be told: each takes some tenths of a microsecond.
const MANY_TIMERS: u64 = 10_000;

#[derive(Debug, Deserialize)]
struct Sync {
    start_ns: u64,
    end_ns: u64,
    cpu_ns: u64,
    queued_ns: u64,
}

impl Sync {
    /// An fsync is several waits, and one that ends in a longer one for a CPU is told as that. So of the blocked time
    /// no more is told otherwise than it waited for a CPU.
    fn for_disk_ns(&self) -> u64 {
        (self.end_ns - self.start_ns).saturating_sub(self.cpu_ns + 2 * self.queued_ns)
    }
}

fn play(program: &str, args: &[&str]) -> Played {
    let mut scenario = Scenario::ready(program, &[&["-d", "0.8"], args].concat());
    let recorder = Recorder::armed(&["-p", &scenario.pid()], &[]);
    let before_ns = busy_ns();
    let truth = scenario.perform();
    let busy_ns = busy_ns() - before_ns;
    let syncs: Vec<u64> = truth.all::<Sync>("fsync").iter().map(Sync::for_disk_ns).collect();
    let own_ns: u64 = truth.lives().iter().map(|life| life.cpu_ns).sum();
    let behind = truth.all::<Behind>("behind").into_iter().filter(|behind| behind.timers >= MANY_TIMERS);
    Played {
        found: Found::in_recording(&recorder.stop()),
        others_ns: busy_ns.saturating_sub(own_ns),
        syncs_ns: syncs.iter().sum(),
        longest_sync_ns: syncs.into_iter().max().unwrap_or(0),
        slow_ns: truth.all::<Toll>("slow_touches").iter().map(|slow| slow.total_ns).sum(),
        late_ns: truth.all::<Toll>("late").iter().map(|late| late.total_ns).sum(),
        refused: !truth.all::<Refused>("refused").is_empty(),
        delayed: behind.map(|behind| behind.count).sum(),
        bound: truth.all::<Bound>("bound").iter().map(|bound| bound.functions).sum(),
    }
}

impl Played {
    /// Whether the machine, not the scenario, explains a finding.
    fn is_the_machines_doing(&self, finding: &Finding) -> bool {
        match finding.rule.as_str() {
            // Others keep a thread waiting for no longer than they run, be it by crowding it onto one CPU with its
            // siblings.
            "preempted" | "run-queue" => {
                finding.total_ns <= (self.others_ns + UNSEEN_NS) * finding.threads.len() as u64
            }
            // A holder that lost its CPU keeps everyone waiting.
            "lock-wait" => finding.title.contains("(preempted") || finding.title.contains("(runnable"),
            // Only `timers` makes timers late. A hypervisor that does not run the machine does, and may tell so.
            "oversleep" | "steal" => true,
            // Only `shootdown` and `barrier` send such interrupts; the timer and devices are the machine's.
            "irq-time" => !finding.title.contains("call_function"),
            _ => false,
        }
    }

    /// Whether the machine has what the part needs.
    fn is_possible(&self, part: &Part) -> bool {
        match part.needs {
            Needs::Nothing => true,
            Needs::TwoCpus => self.others_ns < PLAY_NS / 2,
            Needs::LateReturns => self.late_ns > PLAY_NS / 10,
            // An fsync is several waits, one of which must be long; and all of them a hundredth of the recording.
            Needs::SlowDisk => self.longest_sync_ns > 6_000_000 && self.syncs_ns > PLAY_NS / 25,
            Needs::SlowReads => self.slow_ns > 20_000_000,
            Needs::LatePages => self.bound > 0,
            // Two that are late may be chance to the rule.
            Needs::ManyTimers => self.delayed > 3,
            // Where others want the CPU, too, the quota is not what keeps a thread from it.
            Needs::Group => !self.refused && self.others_ns < PLAY_NS / 2,
            Needs::SlowReclaim => !self.refused && self.slow_ns > 20_000_000,
        }
    }

    /// The finding that the scenario is about; `None` where there need be none.
    fn expected(&self, part: &Part) -> Option<&Finding> {
        let rule = part.rule?;
        let finding = self.found.findings.iter().find(|finding| finding.rule == rule);
        let excused = !self.is_possible(part);
        assert!(finding.is_some() || excused, "{}: no {rule} in {:#?}", part.scenario, self.found.findings);
        finding
    }

    fn assert_fires_alone(&self, part: &Part) {
        self.expected(part);
        for finding in &self.found.findings {
            let rule = finding.rule.as_str();
            assert!(
                part.rule == Some(rule) || part.also.contains(&rule) || self.is_the_machines_doing(finding),
                "{}, while others ran for {} ns: {finding:#?}",
                part.scenario,
                self.others_ns
            );
        }
    }
}

#[test]
fn each_rule_fires_on_its_scenario_and_on_no_other() {
    let Some(_stage) = stage::enter("each_rule_fires_on_its_scenario_and_on_no_other") else { return };
    for part in &MATRIX {
        play(part.scenario, part.args).assert_fires_alone(part);
    }
}

#[test]
fn names_and_symbols_are_no_part_of_a_rule() {
    let Some(_stage) = stage::enter("names_and_symbols_are_no_part_of_a_rule") else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    for part in &MATRIX {
        let program = stripped(part.scenario, folder.path());
        let args = [&["-a", "nobody"], part.args].concat();
        let played = play(program.to_str().expect("a UTF-8 path"), &args);
        played.assert_fires_alone(part);
        if let Some(finding) = played.expected(part) {
            assert!(
                played.found.names(finding).any(|name| name == "nobody"),
                "{}: {finding:#?}",
                part.scenario
            );
        }
    }
}
