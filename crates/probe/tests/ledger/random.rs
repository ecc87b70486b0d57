// SPDX-License-Identifier: Apache-2.0
//! Timelines at random: threads that switch, wake, migrate, are interrupted, fault, start and end on a few CPUs,
//! and a wall clock that steps. The ledger is what the timeline says, at the end of each second and of the
//! recording.

use std::path::Path;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

use crate::kernel::unchanged;
use crate::timeline::{Outcome, Timeline};

const TICKS_A_SECOND: usize = 10;
const CASES: u32 = 400;

/// Choices, one byte each. There is always another one.
struct Choices<'a> {
    bytes: std::iter::Cycle<std::slice::Iter<'a, u8>>,
    asked: usize,
}

impl Choices<'_> {
    /// A number below `limit`.
    fn below(&mut self, limit: usize) -> usize {
        self.asked += 1;
        // Without the number of choices so far, a short list would repeat itself.
        let byte = usize::from(*self.bytes.next().unwrap_or(&0));
        (byte ^ (self.asked / 251 * 37) & 0xff) % limit
    }

    fn one_in(&mut self, limit: usize) -> bool {
        self.below(limit) == 0
    }
}

struct Life {
    doing: Vec<u8>,
    cpu: Vec<usize>,
    /// `f` or `F` while it is in a page fault.
    fault: Option<u8>,
    born: usize,
    is_dead: bool,
}

impl Life {
    fn last(&self) -> u8 {
        self.doing.last().copied().unwrap_or(b'.')
    }

    fn runs(&self) -> bool {
        matches!(self.last(), b'R' | b'i' | b'f' | b'F' | b'j' | b'x')
    }

    /// What a thread that has a CPU does next.
    fn next_on_cpu(&mut self, choices: &mut Choices, may_fault: bool, may_interrupt: bool) -> u8 {
        if let Some(fault) = self.fault {
            return match choices.below(10) {
                0 | 1 => {
                    self.fault = None;
                    b'R'
                }
                2 if may_interrupt => b'j',
                3 | 4 if fault == b'F' => b'D',
                3 => b'u',
                5 => b'P',
                _ => fault,
            };
        }
        match choices.below(24) {
            sleep @ 0..6 => b"Lcdpsm"[sleep],
            6 | 7 => b'P',
            8 => b'i',
            9 if may_fault => b'x',
            fault @ 10..13 if may_fault => {
                let fault = if fault == 10 { b'f' } else { b'F' };
                self.fault = Some(fault);
                fault
            }
            13 if choices.one_in(6) => {
                self.is_dead = true;
                b'.'
            }
            _ => b'R',
        }
    }
}

/// A timeline of these choices.
fn timeline(bytes: &[u8]) -> Timeline {
    let mut choices = Choices { bytes: bytes.iter().cycle(), asked: 0 };
    let (threads, cpus) = (1 + choices.below(4), 1 + choices.below(3));
    let ticks = 15 + choices.below(50);
    let step = choices.one_in(3).then(|| 1 + choices.below(ticks));
    let mut lives: Vec<Life> = (0..threads)
        .map(|index| Life {
            doing: Vec::new(),
            cpu: vec![index % cpus],
            fault: None,
            born: if choices.one_in(2) { 0 } else { choices.below(ticks / 2) },
            is_dead: false,
        })
        .collect();
    for tick in 0..ticks {
        let is_last = tick + 1 == ticks;
        // An interrupt that ends with a second is taken for the fault that it hits, until the next charge.
        let may_interrupt = !(tick + 1).is_multiple_of(TICKS_A_SECOND) && !is_last;
        // After a step of the clock a second can be closed late, with the time of a later fault.
        let may_fault = step.is_none();
        for life in &mut lives {
            let before = life.last();
            let next = match before {
                _ if life.is_dead || tick < life.born => b'.',
                b'.' if tick == 0 => b's',
                b'.' => b'N',
                // Interrupts, faults and signals are over before the end.
                _ if life.runs() && is_last => {
                    life.fault = None;
                    b'R'
                }
                b'x' => b'R',
                b'j' => life.fault.unwrap_or(b'R'),
                _ if life.runs() => life.next_on_cpu(&mut choices, may_fault, may_interrupt),
                b'w' | b'P' | b'N' => before,
                _ if choices.one_in(3) => b'w',
                _ => before,
            };
            life.doing.push(next);
            let moves = tick > 0 && !life.runs() && before != b'.' && choices.one_in(8);
            let cpu = if moves { choices.below(cpus) } else { life.cpu.last().copied().unwrap_or(0) };
            life.cpu.push(cpu);
        }
        (0..cpus).for_each(|cpu| give_cpu(&mut lives, cpu, tick, is_last, &mut choices));
    }
    let mut text = String::new();
    for (index, life) in lives.iter().enumerate() {
        let cpus: String = life.cpu[1..].iter().map(usize::to_string).collect();
        let doing = String::from_utf8_lossy(&life.doing);
        text += &format!("t{index}: {doing}\n @: {cpus}\n =: {}\n", as_known(&life.doing));
    }
    if let Some(step) = step {
        text += &format!("clock: {}+\n", ".".repeat(step));
    }
    Timeline::new(&text).ticks_of(100_000_000)
}

/// A CPU without a thread takes one that waits for it, most times.
fn give_cpu(lives: &mut [Life], cpu: usize, tick: usize, is_last: bool, choices: &mut Choices) {
    let here = |life: &Life| life.cpu.last() == Some(&cpu);
    let is_taken = lives.iter().any(|life| here(life) && life.runs());
    let waits = |life: &Life| {
        // A thread that leaves a CPU in this tick waits for at least one.
        let waited = tick > 0 && !matches!(life.doing[tick - 1], b'R' | b'i' | b'f' | b'F' | b'j' | b'x');
        here(life) && waited && matches!(life.last(), b'w' | b'P' | b'N') && life.doing[tick - 1] != b'.'
    };
    let waiting: Vec<usize> = (0..lives.len()).filter(|index| waits(&lives[*index])).collect();
    if is_taken || waiting.is_empty() || choices.one_in(4) {
        return;
    }
    let life = &mut lives[waiting[choices.below(waiting.len())]];
    let next = match life.fault {
        Some(fault) if !is_last && choices.one_in(2) => fault,
        _ => {
            life.fault = None;
            b'R'
        }
    };
    *life.doing.last_mut().expect("this tick") = next;
}

/// What the ledger says: the start of a major fault is minor where a second ends before it is known.
fn as_known(doing: &[u8]) -> String {
    let mut ledger = doing.to_vec();
    let in_fault = |doing: &u8| matches!(doing, b'F' | b'D' | b'j' | b'P' | b'w');
    let mut start = 0;
    while start < doing.len() {
        if doing[start] != b'F' {
            start += 1;
            continue;
        }
        let len = doing[start..].iter().take_while(|doing| in_fault(doing)).count();
        let known = doing[start..start + len].iter().position(|doing| *doing == b'D');
        // A fault without a wait is known when it ends. One that does not end stays minor.
        let known = if known.is_none() && start + len == doing.len() {
            doing.len()
        } else {
            let known = start + known.unwrap_or(len);
            known - known % TICKS_A_SECOND
        };
        for doing in ledger.iter_mut().take(known).skip(start).filter(|doing| **doing == b'F') {
            *doing = b'f';
        }
        start += len;
    }
    String::from_utf8_lossy(&ledger).into_owned()
}

/// A thread whose running time the scheduler counts from before its switch-ins on, and not up to its
/// switch-outs.
fn beside_the_scheduler(parts: &[(usize, usize, usize, usize, bool)]) -> Timeline {
    let (mut doing, mut executes) = (String::from("RLLwRR"), String::from("x...xx"));
    for (runs, waits, early, late, is_preempted) in parts.iter().copied() {
        let early = early.min(waits);
        // The scheduler has seen the thread run when it takes the CPU from it.
        let late = late.min(runs - 1);
        doing += &if is_preempted { "P" } else { "L" }.repeat(waits);
        executes += &".".repeat(waits - early);
        executes += &"x".repeat(early + runs - late);
        executes += &".".repeat(late);
        doing += &"R".repeat(runs);
    }
    doing += "LLLL";
    executes += "....";
    Timeline::new(&format!("a: {doing}\n$: {executes}")).ticks_of(5_000)
}

fn parts() -> impl Strategy<Value = Vec<(usize, usize, usize, usize, bool)>> {
    proptest::collection::vec((1usize..12, 1usize..12, 0usize..4, 0usize..4, any::<bool>()), 1..12)
}

/// The running time is the scheduler's, to what one switch may leave over, all states add up, and so do the stacks of
/// each.
fn check_beside_the_scheduler(program: &Path, timeline: &Timeline) -> Result<(), String> {
    let outcome = Outcome::of(program, timeline)?;
    outcome.check_partition()?;
    outcome.check_samples()?;
    for (name, distance) in outcome.distance_from_scheduler() {
        if distance.abs() > 20_000 {
            return Err(format!("{name} ran {distance} ns more than the scheduler says"));
        }
    }
    Ok(())
}

fn check_states(program: &Path, timeline: &Timeline) -> Result<(), String> {
    let outcome = Outcome::of(program, timeline)?;
    outcome.check_states()?;
    outcome.check_samples()
}

fn runner(cases: u32, max_shrink_iters: u32) -> TestRunner {
    let config = Config { cases, max_shrink_iters, failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
}

/// The first timeline that a program has wrong, made smaller in some steps.
pub fn wrong_timeline(program: &Path, cases: u32, steps: u32) -> Option<String> {
    let bytes = proptest::collection::vec(any::<u8>(), 40..400);
    let states = runner(cases, steps).run(&bytes, |bytes| {
        let timeline = timeline(&bytes);
        check_states(program, &timeline)
            .map_err(|error| TestCaseError::fail(format!("\n{}\n{error}\n", timeline.text)))
    });
    let beside = runner(cases, steps).run(&parts(), |parts| {
        let timeline = beside_the_scheduler(&parts);
        check_beside_the_scheduler(program, &timeline)
            .map_err(|error| TestCaseError::fail(format!("\n{}\n{error}\n", timeline.text)))
    });
    states.map_err(reason).and(beside.map_err(reason)).err()
}

/// Without the bytes of which the timeline was made.
fn reason<T>(error: TestError<T>) -> String {
    match error {
        TestError::Fail(reason, _) | TestError::Abort(reason) => reason.to_string(),
    }
}

#[test]
fn ledgers_of_random_timelines_are_what_they_say() {
    if let Some(error) = wrong_timeline(unchanged(), CASES, 1_000) {
        panic!("{error}");
    }
}
