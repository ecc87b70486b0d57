// SPDX-License-Identifier: Apache-2.0
//! Defects planted in `bpf/`, one at a time: the timelines find each. Tests that find none test nothing.

use std::fs;
use std::path::{Path, PathBuf};

use crate::kernel::{bpf_folder, compile};
use crate::random::wrong_timeline;
use crate::timeline::Outcome;
use crate::traps::{CHECKS, pictures};

/// What it is, the file, and the code that it replaces. The code occurs once in the file.
type Defect = (&'static str, &'static str, &'static str, &'static str);

const DEFECTS: [Defect; 33] = [
    (
        "an interrupt counts the pause that it is under way in",
        "irq.bpf.c",
        "cpu->interrupt[0].entered < armed_at",
        "false",
    ),
    (
        "a wait for a CPU that begins in a pause is running time",
        "switch_in.h",
        "t->activity == ACTIVITY_RUNNING && likely(t->since >= armed_at)",
        "t->activity == ACTIVITY_RUNNING",
    ),
    ("a fault of before a pause goes on", "thread_state.h", "        t->faulting = 0;", "        ;"),
    ("running time at a second's end is lost", "ledger.h", "t->ledger.on_cpu += to - from;", ";"),
    ("preempted time at a second's end is lost", "ledger.h", "t->ledger.preempted += to - from;", ";"),
    ("a second's end charges twice", "ledger.h", "    t->since = to;\n", ""),
    (
        "a wakeup before the charged time splits it",
        "ledger.h",
        "        if (wake < from)\n            wake = from;\n",
        "",
    ),
    (
        "a wakeup after the charged time splits it",
        "ledger.h",
        "        if (wake > to)\n            wake = to;\n",
        "",
    ),
    (
        "time after a wakeup is blocked",
        "ledger.h",
        "wake = t->wake_ns > t->run_ns ? t->wake_ns : to;",
        "wake = to;",
    ),
    (
        "an old wakeup counts",
        "ledger.h",
        "wake = t->wake_ns > t->run_ns ? t->wake_ns : to;",
        "wake = t->wake_ns ? t->wake_ns : to;",
    ),
    (
        "a new thread's wait is running time",
        "ledger.h",
        "    case ACTIVITY_NEW:\n        t->ledger.runnable",
        "    case ACTIVITY_NEW:\n        t->ledger.on_cpu",
    ),
    (
        "blocked time has the wrong reason",
        "ledger.h",
        "blocked[t->reason] += rest - runnable;",
        "blocked[0] += rest - runnable;",
    ),
    (
        "blocked time is lost",
        "ledger.h",
        "blocked[t->reason] += rest - runnable;",
        "blocked[t->reason] += 0;",
    ),
    (
        "time that ran early is charged twice",
        "ledger.h",
        "blocked[lender] -= taken;",
        "blocked[lender] -= 0;",
    ),
    (
        "time that ran early is taken from the wrong state",
        "ledger.h",
        "            t->ledger.runnable -= taken;",
        "            t->ledger.preempted -= taken;",
    ),
    (
        "more is taken from a wait than it lasted",
        "ledger.h",
        "excess < t->borrowable ? excess : t->borrowable",
        "excess",
    ),
    (
        "time that ran early is lost",
        "ledger.h",
        "t->ledger.on_cpu += wall + taken;",
        "t->ledger.on_cpu += wall;",
    ),
    ("time that ran early keeps its stack", "ledger.h", "t->carried[carrier] -= taken;", ";"),
    (
        "time that is taken back from a stack is forgotten",
        "interval.h",
        "|| ns <= 0)\n        return 0;",
        "|| ns <= 0) {\n        if (t && state < SLEEPS + 2)\n            t->carried[state] = 0;\n        return 0;\n    }",
    ),
    (
        "steal time is waiting",
        "ledger.h",
        "(u64)(wall - ran) > SWITCH_LAG_NS",
        "(u64)(wall - ran) > ~0ULL - 1",
    ),
    ("time after the scheduler's reading is lost", "ledger.h", "t->since += ran;", "t->since = now;"),
    ("a wait for a CPU is longer than the wait", "ledger.h", "waited < rest ? waited : rest", "waited"),
    ("a wait ends at its wakeup", "ledger.h", "    t->ledger.runnable += runnable;\n", ""),
    (
        "preempted time is waiting for a CPU",
        "ledger.h",
        "            t->ledger.preempted += rest;",
        "            t->ledger.runnable += rest;",
    ),
    (
        "time before a migration is lost",
        "ledger.h",
        "    u64 rest = now - t->since;\n",
        "    u64 rest = now - (t->moved_ns > t->since ? t->moved_ns : t->since);\n",
    ),
    (
        "a wait in a fault stays in the first fault state",
        "ledger.h",
        "        t->fault.unsettled += rest - runnable;",
        "        ;",
    ),
    (
        "the next run takes time that was not blocked",
        "ledger.h",
        "    t->borrowable = rest - runnable;",
        "    t->borrowable = rest;",
    ),
    ("an interrupt in a fault is counted twice", "fault_time.h", "    ns -= interrupted;\n", ""),
    (
        "a second's end is counted from its next event",
        "seconds.h",
        "charge_until(t, end - offset);",
        "charge_until(t, now);",
    ),
    (
        "all stacks of a fault are in the state at its end",
        "fault_time.h",
        "    t->fault.earlier = total > t->fault.unsettled ? total - t->fault.unsettled : 0;\n",
        "    t->fault.earlier = total & 0;\n",
    ),
    ("a fault that fails has no stack", "fault_time.h", "    carry_fault(t);\n", ""),
    (
        "a new thread's wait has the stacks of a preemption",
        "switch_in.h",
        "u32 waited_in = interval->is_new ? CARRIED_RUNNABLE : CARRIED_PREEMPTED;",
        "u32 waited_in = CARRIED_PREEMPTED;",
    ),
    (
        "a first event closes no second",
        "switch_out.h",
        "        /* What it did in a second that is over counts there. */\n        roll_slow(t, now);\n",
        "",
    ),
];

/// Random timelines that are tried where no picture finds the defect.
const RANDOM_CASES: u32 = 40;

/// `bpf/` with the defect.
fn planted(number: usize, (what, file, code, replacement): Defect) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("planted_{number}"));
    for part in ["", "include"] {
        fs::create_dir_all(folder.join(part)).expect("the test's folder is writable");
        for entry in fs::read_dir(bpf_folder().join(part)).expect("bpf/").flatten() {
            if entry.path().is_file() {
                fs::copy(entry.path(), folder.join(part).join(entry.file_name())).expect("a copy");
            }
        }
    }
    let path = folder.join(file);
    let text = fs::read_to_string(&path).expect("a header");
    assert_eq!(text.matches(code).count(), 1, "{what}: {file} has this code once:\n{code}");
    fs::write(&path, text.replace(code, replacement)).expect("the test's folder is writable");
    folder
}

/// The names of the timelines and checks that find it.
fn found_by(number: usize, defect: Defect) -> Vec<&'static str> {
    let program = compile(&planted(number, defect), &format!("defect_{number}"), "-O0");
    let is_wrong =
        |outcome: Result<Outcome, String>| outcome.and_then(|outcome| outcome.check_states()).is_err();
    let pictures = pictures().into_iter().filter(|(_, timeline)| is_wrong(Outcome::of(&program, timeline)));
    let checks = CHECKS.iter().filter(|(_, check)| check(&program).is_err());
    let mut names: Vec<&str> = pictures.map(|(name, _)| name).chain(checks.map(|(name, _)| *name)).collect();
    if names.is_empty() && wrong_timeline(&program, RANDOM_CASES, 0).is_some() {
        names.push("random timelines");
    }
    names
}

#[test]
fn each_planted_defect_is_found() {
    let next = std::sync::atomic::AtomicUsize::new(0);
    let table = std::sync::Mutex::new(vec![Vec::new(); DEFECTS.len()]);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    let Some(defect) = DEFECTS.get(number) else { break };
                    let names = found_by(number, *defect);
                    table.lock().expect("no panic")[number] = names;
                }
            });
        }
    });
    let table = table.into_inner().expect("no panic");
    for ((what, file, ..), names) in DEFECTS.iter().zip(&table) {
        let first = names[..names.len().min(3)].join(", ");
        println!("{file}: {what}: found by {}, as {first}", names.len());
    }
    let unseen =
        DEFECTS.iter().zip(&table).filter(|(_, names)| names.is_empty()).map(|((what, ..), _)| *what);
    assert_eq!(unseen.collect::<Vec<_>>(), Vec::<&str>::new(), "no timeline finds these");
}
