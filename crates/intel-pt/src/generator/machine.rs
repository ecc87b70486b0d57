// SPDX-License-Identifier: Apache-2.0
//! Runs a generated program: threads on one CPU, with random branches, system calls, interrupts, switches,
//! long jumps and exceptions. Its actions go to the encoder, and are recorded as the truth. If both are taken
//! from time to time, it can run for any time.

use super::encoder::{Encoder, Settings};
use super::program::{Effect, Program};
use super::random::Random;
use crate::code::{Code, FunctionId};
use crate::event::{EndCause, Event, EventKind, GapCause};
use crate::replay::Frame;
use crate::schedule::{Departure, Schedule, Switch, ThreadId};

/// The size and the features of the generated program.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The number of functions.
    pub functions: usize,
    /// The number of threads.
    pub threads: usize,
    /// Instructions to run.
    pub instructions: usize,
    /// Whether the processor's buffer overflows now and then.
    pub overflows: bool,
    /// Whether there are long jumps, and returns that go elsewhere than to their calls.
    pub exceptions: bool,
}

/// The part of it that is traced.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tracing {
    /// Ranges of the program's functions. 0 without `kernel_ranges`: all code is traced.
    pub ranges: usize,
    /// Ranges may end within a function, behind one of its jumps.
    pub splits: bool,
    /// The kernel runs, and is traced.
    pub kernel: bool,
    /// Ranges of the kernel's functions.
    pub kernel_ranges: usize,
    /// [`Settings::addressed_ends`].
    pub addressed_ends: bool,
}

/// A trace, and its exact truth.
#[derive(Clone, Debug)]
pub struct Generated {
    /// The traced program.
    pub program: Program,
    /// The settings of the processor.
    pub settings: Settings,
    /// The bytes of the trace.
    pub trace: Vec<u8>,
    /// The threads that ran, by time.
    pub schedule: Schedule,
    /// The true events, as far as packets prove them.
    pub truth: Vec<True>,
    /// The time of the last packet.
    pub end: u64,
}

/// An event, and its effect on the stack of its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct True {
    /// The event.
    pub event: Event,
    /// Its effect on the stack.
    pub change: Change,
    /// The number of open calls behind it, including calls that no trace shows.
    pub depth: usize,
}

/// The effect of an event on a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// None.
    Nothing,
    /// A frame is opened.
    Push(Frame),
    /// This number of frames end.
    Pop(usize),
    /// The topmost frame is replaced, as by a tail call.
    Replace(Frame),
    /// Another thread runs. The event has the departure of the last one.
    Switch(ThreadId),
}

/// Runs a generated program from `seed`.
pub fn generate(seed: u64, plan: Plan) -> Generated {
    let mut machine = Machine::new(seed, plan);
    machine.run(plan.instructions);
    machine.finish()
}

/// Runs a generated program from `seed` on one thread, with a part of it traced.
pub fn generate_traced(seed: u64, plan: Plan, tracing: Tracing) -> Generated {
    let mut machine = Machine::traced(seed, plan, tracing);
    machine.run(plan.instructions);
    machine.finish()
}

const START: u64 = 1_000_000_000;
const MAX_DEPTH: usize = 40;

#[derive(Clone, Debug)]
struct Thread {
    id: ThreadId,
    at: u64,
    /// Return addresses and functions, outermost first.
    stack: Vec<(u64, usize)>,
    started: bool,
}

/// The way in which execution leaves a place.
#[derive(Clone, Copy, Debug)]
enum Exit {
    Jump { indirect: bool },
    Call { return_to: u64, indirect: bool },
    Return,
    SystemCall { return_to: u64 },
    SystemReturn,
    Interrupt,
}

/// A generated program that runs.
#[derive(Clone, Debug)]
pub struct Machine {
    random: Random,
    program: Program,
    settings: Settings,
    plan: Plan,
    encoder: Encoder,
    threads: Vec<Thread>,
    current: usize,
    switches: Vec<Switch>,
    truth: Vec<True>,
    /// The number of true events that packets prove.
    proven: usize,
    overflow_left: usize,
    /// The smallest number of ticks between two switches, and the time from which the next one may happen.
    switch_gap: u64,
    switch_from: u64,
}

impl Machine {
    /// A program and a processor from `seed`, before the first instruction.
    pub fn new(seed: u64, plan: Plan) -> Machine {
        let mut random = Random::new(seed);
        let program = Program::generate(&mut random, plan.functions.max(6));
        let settings = Settings::generate(&mut random);
        Machine::started(random, program, settings, plan)
    }

    /// The same, with `tracing`, one thread and no overflows.
    pub fn traced(seed: u64, plan: Plan, tracing: Tracing) -> Machine {
        let mut random = Random::new(seed);
        let functions = plan.functions.max(6);
        let mut program = Program::generate(&mut random, functions);
        if tracing.kernel {
            program = program.with_kernel(&mut random, functions);
        }
        program.generate_ranges(&mut random, tracing);
        let mut settings = Settings::generate(&mut random);
        settings.addressed_ends = tracing.addressed_ends;
        settings.keeps_returns = random.per_mille(500);
        Machine::started(random, program, settings, Plan { threads: 1, overflows: false, ..plan })
    }

    fn started(random: Random, program: Program, settings: Settings, plan: Plan) -> Machine {
        let entry = program.functions[0].start;
        let thread = |index| Thread {
            id: ThreadId(index as u32 + 1),
            at: entry,
            stack: vec![(0, 0)],
            started: index == 0,
        };
        let mut machine = Machine {
            random,
            settings,
            plan,
            encoder: Encoder::new(settings, START),
            threads: (0..plan.threads.max(1)).map(thread).collect(),
            current: 0,
            switches: Vec::new(),
            truth: Vec::new(),
            proven: 0,
            overflow_left: 0,
            switch_gap: 0,
            switch_from: 0,
            program,
        };
        let first = Switch {
            ticks: START,
            thread: ThreadId(1),
            space: Program::SPACE,
            departure: Departure::Unknown,
        };
        machine.switches.push(first);
        machine.record(EventKind::Switch(first), 0, 0, Change::Switch(ThreadId(1)));
        if machine.program.is_traced(entry) {
            machine.encoder.enable(entry);
            machine.record(EventKind::Start, 0, entry, Change::Push(Frame::Function(FunctionId(1))));
        } else {
            machine.encoder.start();
        }
        machine.proven = machine.truth.len();
        machine
    }

    /// Sets the shortest time of a thread on the CPU; the default is about a microsecond.
    pub fn with_switch_gap(mut self, ticks: u64) -> Machine {
        self.switch_gap = ticks;
        self
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The settings of the processor.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Runs this number of further instructions.
    pub fn run(&mut self, instructions: usize) {
        (0..instructions).for_each(|_| self.step());
    }

    /// The time, in ticks.
    pub fn ticks(&self) -> u64 {
        self.encoder.ticks()
    }

    /// The trace since it was last taken.
    pub fn take_trace(&mut self) -> Vec<u8> {
        self.encoder.take()
    }

    /// The true events since the last call, as far as packets prove them.
    pub fn take_truth(&mut self) -> Vec<True> {
        let unproven = self.truth.split_off(self.proven);
        self.proven = 0;
        std::mem::replace(&mut self.truth, unproven)
    }

    /// The switches since they were last taken.
    pub fn take_switches(&mut self) -> Vec<Switch> {
        std::mem::take(&mut self.switches)
    }

    /// Ends the trace. It does not include parts that were taken before.
    pub fn finish(mut self) -> Generated {
        if self.encoder.is_overflowing() {
            self.recover();
        }
        self.truth.truncate(self.proven);
        let end = self.encoder.ticks();
        Generated {
            program: self.program,
            settings: self.settings,
            trace: self.encoder.finish(),
            schedule: Schedule::new(self.switches),
            truth: self.truth,
            end,
        }
    }

    fn thread(&mut self) -> &mut Thread {
        &mut self.threads[self.current]
    }

    fn at(&self) -> u64 {
        self.threads[self.current].at
    }

    fn record(&mut self, kind: EventKind, from: u64, to: u64, change: Change) {
        let function = self.program.function(Program::SPACE, to);
        let event = Event {
            ticks: self.encoder.ticks(),
            from,
            to,
            function: function.map_or(FunctionId::UNKNOWN, |function| function.id),
            at_entry: function.is_some_and(|function| function.entry == to),
            kind,
        };
        if !self.encoder.is_overflowing() {
            let depth = self.threads[self.current].stack.len();
            self.truth.push(True { event, change, depth });
        }
    }

    fn step(&mut self) {
        let at = self.at();
        if self.encoder.is_enabled() {
            self.step_of_time();
            if !self.encoder.is_empty() && self.random.per_mille(2) && !self.encoder.is_overflowing() {
                return self.interrupt();
            }
        } else {
            let ticks = 1 + self.random.below(100) as u64;
            self.encoder.sleep(ticks);
        }
        let instruction = self.program.instruction_at(at).expect("the machine stays in its program");
        let next = at + instruction.length;
        match instruction.effect {
            Effect::Plain => self.thread().at = next,
            Effect::Branch { target, guard } => self.branch(target, next, guard),
            Effect::Jump { target } => self.jump(target),
            Effect::Call { target } => self.call(target, next, false),
            Effect::CallAny => {
                let target = self.any_function(false);
                self.call(target, next, true);
            }
            Effect::Switch => self.switch_statement(),
            Effect::TailAny => self.tail_any(),
            Effect::Return => self.returned(),
            Effect::SystemCall => self.system_call(next),
            Effect::LongJump => self.land(false),
            Effect::Throw => self.land(true),
            Effect::SystemReturn => self.system_returned(),
        }
    }

    fn step_of_time(&mut self) {
        let cycles = self.random.below(4) as u64;
        self.encoder.pass(cycles);
        self.maybe_overflow();
        let at = self.at();
        self.encoder.maybe_synchronise(at);
    }

    /// All recorded events follow from the packets, after those are written.
    fn prove(&mut self) {
        if !self.encoder.is_overflowing() {
            self.proven = self.truth.len();
        }
    }

    /// Executes a transfer from `at` to `to`, at which the filters may turn tracing on or off. Returns
    /// whether both are traced.
    fn go(&mut self, at: u64, to: u64, exit: Exit) -> bool {
        let was_on = self.encoder.is_enabled();
        let is_traced = self.program.is_traced(to);
        self.thread().at = to;
        match (was_on, is_traced) {
            (true, false) => self.leave_filter(at, to, exit),
            (false, true) => self.enter_filter(to),
            _ => {}
        }
        was_on && is_traced
    }

    fn enter_filter(&mut self, to: u64) {
        self.encoder.enable(to);
        self.record(EventKind::Start, 0, to, Change::Nothing);
        self.prove();
    }

    fn leave_filter(&mut self, at: u64, to: u64, exit: Exit) {
        if matches!(exit, Exit::Return) {
            self.encoder.forget_call();
        }
        let is_direct = matches!(exit, Exit::Jump { indirect: false } | Exit::Call { indirect: false, .. });
        self.encoder.leave(to, is_direct);
        let entry = self.program.function_at(to).map(|function| self.program.numbered(function).start);
        let leaves_function = self.program.function_at(at) != self.program.function_at(to);
        let (cause, return_to) = match exit {
            Exit::Call { return_to, .. } => {
                self.record(EventKind::Call { return_to }, at, to, Change::Nothing);
                (EndCause::Other, 0)
            }
            Exit::Jump { indirect } if leaves_function => {
                self.record(EventKind::Jump { indirect }, at, to, Change::Nothing);
                (if entry == Some(to) { EndCause::Jump } else { EndCause::Other }, 0)
            }
            Exit::Jump { .. } => (EndCause::Other, 0),
            Exit::Return => (EndCause::Return, to),
            Exit::SystemCall { return_to } => (EndCause::SystemCall, return_to),
            Exit::SystemReturn if to >> 63 != 0 => (EndCause::Return, to),
            Exit::SystemReturn => (EndCause::SystemReturn, 0),
            Exit::Interrupt => (EndCause::Interrupt { vector: None }, at),
        };
        self.record(EventKind::End { cause, return_to }, at, 0, Change::Nothing);
        self.prove();
    }

    fn branch(&mut self, target: u64, next: u64, guard: bool) {
        let at = self.at();
        let taken = if guard && !self.may(next) { true } else { self.random.per_mille(500) };
        let to = if taken { target } else { next };
        if self.go(at, to, Exit::Jump { indirect: false }) {
            self.encoder.branch(taken);
            self.prove();
        }
    }

    /// Whether the guarded instruction at `next` can be executed now.
    fn may(&self, next: u64) -> bool {
        match self.program.instruction_at(next).map(|instruction| instruction.effect) {
            Some(Effect::LongJump | Effect::Throw) => self.plan.exceptions && self.landing().is_some(),
            _ => self.threads[self.current].stack.len() < MAX_DEPTH,
        }
    }

    fn jump(&mut self, target: u64) {
        let at = self.at();
        if self.go(at, target, Exit::Jump { indirect: false }) {
            self.record_tail(EventKind::Jump { indirect: false }, at, target);
        }
        self.enter_function(target);
    }

    /// A jump to another function is an event.
    fn record_tail(&mut self, kind: EventKind, at: u64, target: u64) {
        let function = self.program.function_at(target).expect("a target");
        if Some(function) != self.program.function_at(at) {
            self.record(kind, at, target, Change::Replace(Frame::Function(Program::id(function))));
        }
    }

    /// The topmost frame is that of the function at `target`.
    fn enter_function(&mut self, target: u64) {
        let function = self.program.function_at(target).expect("a target");
        self.thread().stack.last_mut().expect("a frame").1 = function;
    }

    fn call(&mut self, target: u64, return_to: u64, indirect: bool) {
        let at = self.at();
        let function = self.program.function_at(target).expect("a target");
        if self.encoder.is_enabled() {
            self.encoder.call(return_to);
        }
        self.thread().stack.push((return_to, function));
        if !self.go(at, target, Exit::Call { return_to, indirect }) {
            return;
        }
        if indirect {
            self.encoder.indirect(target);
        }
        let change = Change::Push(Frame::Function(Program::id(function)));
        self.record(EventKind::Call { return_to }, at, target, change);
        if indirect {
            self.prove();
        }
    }

    fn any_function(&mut self, real: bool) -> u64 {
        let callable = self.program.callable_from(self.at());
        loop {
            let function = callable.start + self.random.below(callable.len());
            let function = self.program.numbered(function);
            if !(real && function.is_stub) {
                return function.start;
            }
        }
    }

    fn switch_statement(&mut self) {
        let at = self.at();
        let function = self.program.function_at(at).expect("a function");
        let labels = self.program.numbered(function).labels.clone();
        let target = labels[self.random.below(labels.len())];
        if self.go(at, target, Exit::Jump { indirect: true }) {
            self.encoder.indirect(target);
            self.prove();
        }
    }

    fn tail_any(&mut self) {
        let at = self.at();
        let own = self.program.function_at(at);
        let target = loop {
            let target = self.any_function(true);
            if self.program.function_at(target) != own {
                break target;
            }
        };
        if self.go(at, target, Exit::Jump { indirect: true }) {
            self.encoder.indirect(target);
            self.record_tail(EventKind::Jump { indirect: true }, at, target);
            self.prove();
        }
        self.enter_function(target);
    }

    fn returned(&mut self) {
        let at = self.at();
        let (to, _) = self.thread().stack.pop().expect("a frame");
        if self.go(at, to, Exit::Return) {
            self.encoder.returned(to);
            self.record(EventKind::Return, at, to, Change::Pop(1));
            self.prove();
        }
    }

    /// The label of the topmost frame of another function, and the number of frames above it.
    fn landing(&self) -> Option<(u64, usize)> {
        let stack = &self.threads[self.current].stack;
        let (top, below) = stack.split_last()?;
        let mut seen = vec![top.1];
        for (skipped, &(_, function)) in below.iter().rev().enumerate() {
            if seen.contains(&function) {
                continue;
            }
            if let Some(&label) = self.program.numbered(function).labels.first() {
                return Some((label, skipped + 1));
            }
            seen.push(function);
        }
        None
    }

    fn land(&mut self, by_return: bool) {
        let at = self.at();
        let (to, frames) = self.landing().expect("the guard has looked");
        let depth = self.thread().stack.len() - frames;
        self.thread().stack.truncate(depth);
        let (kind, exit) = match by_return {
            true => (EventKind::Return, Exit::Return),
            false => (EventKind::Jump { indirect: true }, Exit::Jump { indirect: true }),
        };
        if !self.go(at, to, exit) {
            return;
        }
        if by_return {
            self.encoder.returned(to);
        } else {
            self.encoder.indirect(to);
        }
        self.record(kind, at, to, Change::Pop(frames));
        self.prove();
    }

    fn system_call(&mut self, next: u64) {
        let at = self.at();
        match self.program.kernel_entries() {
            Some((entry, _)) => self.enter_kernel(at, entry, next, Exit::SystemCall { return_to: next }),
            None if self.encoder.is_enabled() => {
                self.encoder.disable();
                self.leave(EndCause::SystemCall, Frame::SystemCall, at, next);
            }
            None => self.thread().at = next,
        }
    }

    fn interrupt(&mut self) {
        let at = self.at();
        if let Some((_, handler)) = self.program.kernel_entries() {
            if self.threads[self.current].stack.len() < MAX_DEPTH {
                self.encoder.interrupted(at);
                self.enter_kernel(at, handler, at, Exit::Interrupt);
            }
            return;
        }
        self.encoder.interrupt(at);
        self.leave(EndCause::Interrupt { vector: None }, Frame::Interrupt, at, at);
    }

    /// Enters the kernel at `entry`, which returns to `return_to`.
    fn enter_kernel(&mut self, at: u64, entry: u64, return_to: u64, exit: Exit) {
        let function = self.program.function_at(entry).expect("a function");
        // The call is open behind a start in the kernel, but not behind an end of tracing.
        let is_traced = self.program.is_traced(entry);
        if is_traced {
            self.thread().stack.push((return_to, function));
        }
        let both_traced = self.go(at, entry, exit);
        if !is_traced {
            self.thread().stack.push((return_to, function));
        }
        if both_traced {
            self.encoder.far(entry);
            let kind = match exit {
                Exit::Interrupt => EventKind::Interrupt { vector: None },
                _ => EventKind::SystemCall { return_to },
            };
            self.record(kind, at, entry, Change::Push(Frame::Function(Program::id(function))));
            self.prove();
        }
    }

    fn system_returned(&mut self) {
        let at = self.at();
        let (to, _) = self.thread().stack.pop().expect("a frame");
        if self.go(at, to, Exit::SystemReturn) {
            self.encoder.far(to);
            self.record(EventKind::SystemReturn, at, to, Change::Pop(1));
            self.prove();
        }
    }

    fn leave(&mut self, cause: EndCause, frame: Frame, at: u64, back_at: u64) {
        self.record(EventKind::End { cause, return_to: back_at }, at, 0, Change::Push(frame));
        self.prove();
        self.thread().at = back_at;
        let away = 50 + self.random.below(5_000) as u64;
        self.encoder.sleep(away);
        let lost = self.encoder.is_overflowing() && !self.recover();
        let may_switch = self.threads.len() > 1 && self.encoder.ticks() >= self.switch_from;
        let switches = if may_switch { self.random.below(3) } else { 0 };
        (0..switches).for_each(|_| self.switch());
        let at = self.at();
        self.encoder.enable(at);
        let new = !std::mem::replace(&mut self.thread().started, true);
        let change = if new { Change::Push(Frame::Function(FunctionId(1))) } else { Change::Pop(1) };
        self.record(if lost { EventKind::Resume } else { EventKind::Start }, 0, at, change);
        self.prove();
    }

    fn switch(&mut self) {
        let next = (self.current + 1 + self.random.below(self.threads.len() - 1)) % self.threads.len();
        let departure = [Departure::Blocked, Departure::Preempted][self.random.below(2)];
        self.encoder.sleep(100);
        self.current = next;
        self.switch_from = self.encoder.ticks().saturating_add(self.switch_gap);
        let thread = self.threads[next].id;
        let switch = Switch { ticks: self.encoder.ticks(), thread, space: Program::SPACE, departure };
        self.switches.push(switch);
        self.record(EventKind::Switch(switch), 0, 0, Change::Switch(thread));
        self.encoder.sleep(100);
    }

    fn maybe_overflow(&mut self) {
        if self.encoder.is_overflowing() {
            self.overflow_left -= 1;
            if self.overflow_left == 0 {
                self.recover();
            }
        } else if self.plan.overflows && self.random.per_mille(1) {
            self.truth.truncate(self.proven);
            self.encoder.overflow();
            self.overflow_left = 1 + self.random.below(200);
        }
    }

    /// Returns whether a synchronisation point was written.
    fn recover(&mut self) -> bool {
        let at = self.at();
        let synchronises = self.encoder.recover(at);
        self.overflow_left = 0;
        self.record(EventKind::Gap(GapCause::Overflow), 0, 0, Change::Nothing);
        if self.encoder.is_enabled() {
            self.record(EventKind::Resume, 0, at, Change::Nothing);
        }
        self.prove();
        synchronises
    }
}
