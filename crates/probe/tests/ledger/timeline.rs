// SPDX-License-Identifier: Apache-2.0
//! Timelines: what threads do, tick by tick. A timeline gives the events that the kernel side gets, and the
//! ledger that it must have.
//!
//! `name@CPU: RRLLwR..` is a thread (CPU 0 where none is given; `name=TID` where its number matters), one
//! character a tick:
//!
//! | on a CPU | |
//! | --- | --- |
//! | `R` | runs |
//! | `i` | is interrupted |
//! | `h` | is held back by the hypervisor: the scheduler does not count that |
//! | `f` `F` | is in a page fault, minor or major; `j` is interrupted in one |
//! | `x` `y` | is in a page fault that fails, with a signal, or with an error that no event reports |
//!
//! | off the CPU | |
//! | --- | --- |
//! | `P` | is preempted |
//! | `w` | has been woken, and waits for a CPU |
//! | `N` | was created, and waits for its first CPU |
//! | `L` `c` `d` | waits for a lock, a condition variable, a disk |
//! | `p` `s` `m` | waits in poll, in nanosleep, for memory |
//! | `D` `u` | waits in a major or a minor page fault |
//! | `.` | does not exist |
//!
//! Lines below a thread's, with the same ticks:
//!
//! | | |
//! | --- | --- |
//! | `@: 0011` | its CPU |
//! | `=: RRLL` | what the ledger says, where that is not what the thread does |
//! | `$: .xx.` | the ticks that the scheduler counts as running, where they are others |
//! | `!: .-W1` | its events: see [`Thread::marks`] |
//!
//! `armed: ..AAA` is the time of the recording, which pauses where `A`s follow again, `clock: ...+` steps of the wall
//! clock.

use std::fmt::Write;
use std::path::Path;

use crate::kernel::{Record, run};

pub const SECOND_NS: u64 = 1_000_000_000;
/// CLOCK_MONOTONIC when a timeline starts.
const START: u64 = 50 * SECOND_NS;
const EPOCH_OFFSET: u64 = 1_000_000 * SECOND_NS;
/// A step of the wall clock.
const STEP_NS: u64 = 300_000_000;
/// The CPU on which timers wake threads.
const TIMER_CPU: usize = 7;
const CPUS: usize = 8;
const FIRST_TID: i64 = 100;

/// Numbers of `enum sleep` in bpf/include/records.h; below 12 those of `enum reason`.
const FAULT_MINOR: usize = 12;
const FAULT_MAJOR: usize = 13;
const SLEEPS: usize = 14;
/// Numbers of `enum sample_what` there.
const SAMPLE_FAULT: i64 = 3;
const SAMPLE_RUNNABLE: i64 = 5;
const SAMPLE_PREEMPTED: i64 = 6;
const SAMPLE_BLOCKED: i64 = 16;

/// A timeline, and how it is run.
#[derive(Clone)]
pub struct Timeline {
    pub text: String,
    pub tick_ns: u64,
    /// Its start, after that of a second.
    pub from_ns: u64,
    /// Further commands before the first tick; after `at TICK`, before that one.
    pub settings: String,
    /// In place of what the letter of a sleep means.
    pub sleep: Option<Sleep>,
}

/// How a thread sleeps, as the kernel has it.
#[derive(Clone, Copy)]
pub struct Sleep {
    pub state: u32,
    pub flags: u32,
    pub syscall: i32,
}

impl Timeline {
    pub fn new(text: &str) -> Self {
        Timeline { text: text.into(), tick_ns: 1_000_000, from_ns: 0, settings: String::new(), sleep: None }
    }

    pub fn ticks_of(self, tick_ns: u64) -> Self {
        Timeline { tick_ns, ..self }
    }

    pub fn starting_at(self, from_ns: u64) -> Self {
        Timeline { from_ns, ..self }
    }

    pub fn with(self, settings: &str) -> Self {
        Timeline { settings: settings.into(), ..self }
    }
}

struct Thread {
    name: String,
    tid: i64,
    doing: Vec<u8>,
    ledger: Vec<u8>,
    cpus: Vec<usize>,
    /// Whether the scheduler counts the tick as running.
    executes: Vec<bool>,
    /// `-`: the wakeup here is not seen. `W`: one more wakeup is seen here. `1`…: that thread is the waker. `b`:
    /// an interrupt of the first thread is the waker. `<`: only the incoming thread sees the switch. `v`: the
    /// thread gets its CPU unseen.
    marks: Vec<u8>,
}

impl Thread {
    fn at(&self, tick: usize) -> u8 {
        self.doing.get(tick).copied().unwrap_or(b'.')
    }

    fn before(&self, tick: usize) -> u8 {
        tick.checked_sub(1).map_or(b'.', |before| self.at(before))
    }

    fn mark(&self, tick: usize) -> u8 {
        self.marks.get(tick).copied().unwrap_or(b'.')
    }

    fn cpu(&self, tick: usize) -> usize {
        *self.cpus.get(tick).or(self.cpus.last()).unwrap_or(&0)
    }

    /// Ticks before this one that the scheduler counted as running.
    fn executed(&self, tick: usize) -> u64 {
        self.executes.iter().take(tick).filter(|executes| **executes).count() as u64
    }

    /// Ticks before this one that the scheduler counted as waiting for a CPU.
    fn delayed(&self, tick: usize) -> u64 {
        self.doing.iter().take(tick).filter(|doing| matches!(doing, b'w' | b'P' | b'N')).count() as u64
    }
}

fn runs(doing: u8) -> bool {
    matches!(doing, b'R' | b'i' | b'h' | b'f' | b'F' | b'j' | b'x' | b'y')
}

fn faults(doing: u8) -> bool {
    matches!(doing, b'f' | b'F' | b'j' | b'x' | b'y' | b'D' | b'u')
}

fn interrupted(doing: u8) -> bool {
    matches!(doing, b'i' | b'j')
}

/// The number of the sleep.
fn sleep(doing: u8) -> Option<usize> {
    Some(match doing {
        b'L' => 0,
        b'c' => 1,
        b'd' => 2,
        b'p' => 4,
        b's' => 5,
        b'm' => 9,
        b'u' => FAULT_MINOR,
        b'D' => FAULT_MAJOR,
        _ => return None,
    })
}

/// The state of the task, its system call with the arguments that decide, and whether it waits for a disk.
fn sleep_fields(doing: u8) -> (u32, i32, [u64; 2], bool) {
    match doing {
        b'L' => (1, 202, [128, 2], false),
        b'c' => (1, 202, [393, 0], false),
        b'd' => (2, 0, [0, 0], true),
        b'p' => (1, 7, [0, 0], false),
        b's' => (1, 35, [0, 0], false),
        b'D' => (2, -1, [0, 0], true),
        _ => (2, -1, [0, 0], false),
    }
}

struct World {
    tick_ns: u64,
    start: u64,
    threads: Vec<Thread>,
    ticks: usize,
    /// The first tick of the recording, and the first one after it.
    armed: (usize, usize),
    /// Ticks within that time in which the recording pauses.
    paused: Vec<bool>,
    /// Ticks at which the wall clock steps.
    steps: Vec<usize>,
    settings: String,
    sleep: Option<Sleep>,
}

impl World {
    fn new(timeline: &Timeline) -> Self {
        let mut world = World {
            tick_ns: timeline.tick_ns,
            start: START + timeline.from_ns,
            threads: Vec::new(),
            ticks: 0,
            armed: (0, usize::MAX),
            paused: Vec::new(),
            steps: Vec::new(),
            settings: timeline.settings.clone(),
            sleep: timeline.sleep,
        };
        for line in timeline.text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (name, ticks) = line.split_once(':').unwrap_or_else(|| panic!("name: ticks, not {line}"));
            world.add_line(name, ticks.trim().as_bytes());
        }
        world.ticks = world.threads.iter().map(|thread| thread.doing.len()).max().unwrap_or(0);
        world.armed.1 = world.armed.1.min(world.ticks);
        world
    }

    fn add_line(&mut self, name: &str, ticks: &[u8]) {
        let last = self.threads.last_mut();
        match (name, last) {
            ("armed", _) => {
                let is_armed = |tick: &u8| *tick == b'A';
                let first = ticks.iter().position(is_armed).expect("a tick that is armed");
                let last = ticks.iter().rposition(is_armed).expect("the same or a later one");
                self.armed = (first, last + 1);
                self.paused = ticks[..last].iter().map(|tick| !is_armed(tick)).collect();
            }
            ("clock", _) => self.steps = (0..ticks.len()).filter(|tick| ticks[*tick] == b'+').collect(),
            ("@", Some(thread)) => thread.cpus = ticks.iter().map(|cpu| usize::from(cpu - b'0')).collect(),
            ("=", Some(thread)) => thread.ledger = ticks.to_vec(),
            ("$", Some(thread)) => thread.executes = ticks.iter().map(|tick| *tick == b'x').collect(),
            ("!", Some(thread)) => thread.marks = ticks.to_vec(),
            _ => {
                let (name, cpu) = name.split_once('@').unwrap_or((name, "0"));
                let (name, tid) = name.split_once('=').map_or((name, None), |(name, tid)| (name, Some(tid)));
                let cpu = cpu.parse().expect("the number of a CPU");
                let next = FIRST_TID + self.threads.len() as i64;
                self.threads.push(Thread {
                    name: name.into(),
                    tid: tid.map_or(next, |tid| tid.parse().expect("the number of a thread")),
                    doing: ticks.to_vec(),
                    ledger: ticks.to_vec(),
                    cpus: vec![cpu; ticks.len()],
                    executes: ticks.iter().map(|doing| runs(*doing) && *doing != b'h').collect(),
                    marks: Vec::new(),
                });
            }
        }
    }

    fn time(&self, tick: usize) -> u64 {
        self.start + tick as u64 * self.tick_ns
    }

    fn pauses(&self, tick: usize) -> bool {
        tick >= self.armed.0 && self.paused.get(tick).is_some_and(|paused| *paused)
    }

    /// The first tick of the recording, or after its last pause.
    fn armed_last(&self) -> usize {
        (self.armed.0..self.armed.1).rfind(|tick| self.pauses(*tick)).map_or(self.armed.0, |last| last + 1)
    }

    fn epoch_offset(&self, tick: usize) -> u64 {
        EPOCH_OFFSET + self.steps.iter().filter(|step| **step <= tick).count() as u64 * STEP_NS
    }

    /// The commands for host.c.
    fn commands(&self) -> String {
        let mut script = Script { world: self, text: String::new() };
        script.prepare();
        for tick in 0..=self.ticks {
            script.tick(tick);
        }
        script.text
    }
}

struct Script<'a> {
    world: &'a World,
    text: String,
}

impl Script<'_> {
    fn say(&mut self, command: std::fmt::Arguments) {
        self.text.write_fmt(command).expect("memory takes all");
        self.text.push('\n');
    }

    fn prepare(&mut self) {
        let world = self.world;
        for (number, class) in wallprof_probe::reasons::syscall_classes().iter().enumerate() {
            self.say(format_args!("class {number} {class}"));
        }
        self.say(format_args!("set now {}", world.start - SECOND_NS));
        self.say(format_args!("set epoch_offset {EPOCH_OFFSET}\nset emit_seconds 1\nset walk_by_tables 0"));
        for name in ["stall_ns", "min_stall_ns", "stack_ns", "voluntary_stall_ns"] {
            self.say(format_args!("set {name} {}", world.tick_ns));
        }
        for setting in world.settings.lines().filter(|setting| !setting.starts_with("at ")) {
            self.say(format_args!("{setting}"));
        }
        for (index, thread) in world.threads.iter().enumerate() {
            let doing = thread.at(0);
            if doing == b'.' {
                continue;
            }
            self.create(index, 0);
            self.say(format_args!("join {index}"));
            self.sleep_fields(index, doing);
            if runs(doing) {
                self.say(format_args!("set cpu_now {}\ncurrent {index}", thread.cpu(0)));
                self.say(format_args!("field {index} on_cpu 1\nfield {index} state 0"));
            }
        }
    }

    fn create(&mut self, index: usize, tick: usize) {
        let Thread { tid, name, .. } = &self.world.threads[index];
        self.say(format_args!("task {index} {tid} {tid} {name}"));
        self.say(format_args!("field {index} cpu {}", self.world.threads[index].cpu(tick)));
        self.say(format_args!("field {index} faulting_ip 4096"));
    }

    fn sleep_fields(&mut self, index: usize, doing: u8) {
        let is_asleep = sleep(doing).is_some();
        let (mut state, mut syscall, [si, dx], mut in_iowait) =
            if is_asleep { sleep_fields(doing) } else { (0, -1, [0, 0], false) };
        if let Some(other) = self.world.sleep.filter(|_| is_asleep) {
            (state, syscall, in_iowait) = (other.state, other.syscall, false);
            self.say(format_args!("field {index} flags {}", other.flags));
        }
        for (name, value) in [
            ("state", i64::from(state)),
            ("syscall", i64::from(syscall)),
            ("si", si as i64),
            ("dx", dx as i64),
            ("in_iowait", i64::from(in_iowait)),
        ] {
            self.say(format_args!("field {index} {name} {value}"));
        }
    }

    fn tick(&mut self, tick: usize) {
        let world = self.world;
        self.say(format_args!("set now {}", world.time(tick)));
        self.say(format_args!("set epoch_offset {}", world.epoch_offset(tick)));
        let (paused_before, pauses) = (tick > 0 && world.pauses(tick - 1), world.pauses(tick));
        let resumes = paused_before && !pauses;
        if pauses && !paused_before {
            self.say(format_args!("set window 0"));
        }
        if tick == world.armed.0 || resumes {
            self.say(format_args!("set armed_at {}\nset window {}", world.time(tick), u64::MAX >> 1));
        }
        if resumes {
            self.say(format_args!("snapshot"));
        }
        if tick == world.armed.1 {
            // Everything is read at the end of the recording.
            self.say(format_args!("open_waits\nsnapshot\nmaps\nset window 0"));
        }
        for setting in world.settings.lines() {
            if let Some(setting) = setting.strip_prefix(&format!("at {tick} ")) {
                self.say(format_args!("{setting}"));
            }
        }
        if tick == 0 {
            return;
        }
        let threads = 0..world.threads.len();
        threads.clone().for_each(|index| self.end_on_cpu(index, tick));
        threads.clone().for_each(|index| self.wake(index, tick));
        (0..CPUS).for_each(|cpu| self.switch(cpu, tick));
        threads.for_each(|index| self.start_on_cpu(index, tick));
    }

    /// Interrupts and faults that are over.
    fn end_on_cpu(&mut self, index: usize, tick: usize) {
        let thread = &self.world.threads[index];
        let (before, after) = (thread.before(tick), thread.at(tick));
        let cpu = thread.cpu(tick - 1);
        if interrupted(before) && !interrupted(after) {
            self.say(format_args!("set cpu_now {cpu}\nirq_end"));
        }
        if runs(before) && faults(before) && runs(after) && !faults(after) {
            self.end_fault(index, tick - 1);
        }
    }

    fn end_fault(&mut self, index: usize, last: usize) {
        let thread = &self.world.threads[index];
        let cpu = thread.cpu(last + 1);
        let of_fault =
            thread.doing[..=last].iter().rev().take_while(|doing| !matches!(doing, b'R' | b'i' | b'h'));
        let is_major = of_fault.clone().any(|doing| matches!(doing, b'F' | b'D'));
        match thread.at(last) {
            b'x' => self.say(format_args!("set cpu_now {cpu}\nsignal 11")),
            b'y' => self.say(format_args!("field {index} faulting_ip 8192")),
            _ => self.say(format_args!("set cpu_now {cpu}\nfault_end {}", u8::from(is_major))),
        }
    }

    fn wake(&mut self, index: usize, tick: usize) {
        let thread = &self.world.threads[index];
        let (before, after, mark) = (thread.before(tick), thread.at(tick), thread.mark(tick));
        if before == b'.' && after != b'.' {
            self.create(index, tick);
            self.say(format_args!("set every_thread 1\nset cpu_now {TIMER_CPU}\nnew {index} 0"));
        }
        if (sleep(before).is_some() && sleep(after).is_none() && after != b'.' && mark != b'-')
            || mark == b'W'
        {
            self.wakeup(index, tick, mark);
        }
        let (from, to) = (thread.cpu(tick - 1), thread.cpu(tick));
        if from != to && before != b'.' && after != b'.' {
            self.say(format_args!("migrate {index} {to}\nfield {index} cpu {to}"));
        }
    }

    fn wakeup(&mut self, index: usize, tick: usize, mark: u8) {
        let world = self.world;
        let (cpu, by_interrupt) = match mark {
            b'1'..=b'9' => (world.threads[usize::from(mark - b'1')].cpu(tick - 1), false),
            b'b' => (world.threads[0].cpu(tick - 1), true),
            _ => (TIMER_CPU, false),
        };
        if matches!(mark, b'1'..=b'9') {
            let waker = mark - b'1';
            self.say(format_args!("field {waker} syscall 1"));
        }
        self.say(format_args!("set cpu_now {cpu}"));
        if by_interrupt {
            self.say(format_args!("set in_interrupt 1\nirq 1\nwaking {index}\nirq_end\nset in_interrupt 0"));
        } else {
            self.say(format_args!("waking {index}"));
        }
        if !runs(world.threads[index].at(tick)) || !runs(world.threads[index].before(tick)) {
            self.say(format_args!("field {index} state 512"));
        }
    }

    /// The thread that has the CPU in a tick.
    fn on_cpu(&self, cpu: usize, tick: Option<usize>) -> Option<usize> {
        let tick = tick?;
        let mut running = self
            .world
            .threads
            .iter()
            .enumerate()
            .filter(|(_, thread)| runs(thread.at(tick)) && thread.cpu(tick) == cpu);
        let one = running.next();
        assert!(running.next().is_none(), "two threads run on CPU {cpu} in tick {tick}");
        one.map(|(index, _)| index)
    }

    fn switch(&mut self, cpu: usize, tick: usize) {
        let world = self.world;
        let (out, new) = (self.on_cpu(cpu, Some(tick - 1)), self.on_cpu(cpu, Some(tick)));
        if out == new {
            return;
        }
        let idle = -1 - cpu as i64;
        self.say(format_args!("set cpu_now {cpu}"));
        let mut state = 0;
        let mut preempted = 0;
        if let Some(index) = out {
            let thread = &world.threads[index];
            let after = thread.at(tick);
            self.say(format_args!("field {index} executed {}", thread.executed(tick) * world.tick_ns));
            let asleep = if after == b'w' { b's' } else { after };
            self.sleep_fields(index, asleep);
            state =
                sleep(asleep).map_or(0, |_| world.sleep.map_or(sleep_fields(asleep).0, |sleep| sleep.state));
            preempted = u8::from(after == b'P');
            if after == b'.' {
                state = 128;
                self.say(format_args!("exit {index}\nfield {index} state 128"));
            }
            let voluntary = thread.doing[..=tick.min(thread.doing.len() - 1)].windows(2);
            let voluntary =
                voluntary.filter(|pair| runs(pair[0]) && !runs(pair[1]) && pair[1] != b'P').count();
            let voluntary = voluntary + usize::from(after == b'.' && tick == thread.doing.len());
            self.say(format_args!("field {index} nvcsw {voluntary}\nfield {index} on_cpu 0"));
        }
        let next = new.map_or(idle, |index| index as i64);
        let mark = new.map_or(b'.', |index| world.threads[index].mark(tick));
        if mark != b'<' && mark != b'v' {
            self.say(format_args!("out {preempted} {next} {state}"));
        }
        self.say(format_args!("current {next}"));
        if let Some(index) = new {
            let thread = &world.threads[index];
            self.say(format_args!("field {index} delay {}", thread.delayed(tick) * world.tick_ns));
            self.say(format_args!("field {index} on_cpu 1\nfield {index} state 0\nfield {index} cpu {cpu}"));
        }
        if mark != b'v' && !world.settings.contains("stacks_at_switch_out 1") {
            self.say(format_args!("in"));
        }
    }

    /// Interrupts and faults that begin. A fault in which the thread waited may be over at once.
    fn start_on_cpu(&mut self, index: usize, tick: usize) {
        let thread = &self.world.threads[index];
        let (before, after) = (thread.before(tick), thread.at(tick));
        if !runs(after) {
            return;
        }
        let cpu = thread.cpu(tick);
        let waited =
            thread.doing[..tick].iter().rev().take_while(|doing| !runs(**doing) && **doing != b'.').count();
        let was_faulting = tick > waited && faults(thread.at(tick - 1 - waited));
        if waited > 0 && was_faulting && !faults(after) {
            self.end_fault(index, tick - 1);
        }
        if faults(after) && !was_faulting {
            self.say(format_args!("set cpu_now {cpu}\nfield {index} faulting_ip 4096\nfault 65536"));
        }
        if interrupted(after) && !(interrupted(before) && runs(before)) {
            self.say(format_args!("set cpu_now {cpu}\nirq 1"));
        }
    }
}

/// Wall time by state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct States {
    pub on_cpu: i64,
    pub irq: i64,
    pub runnable: i64,
    pub preempted: i64,
    pub fault_on_cpu: i64,
    pub blocked: [i64; SLEEPS],
}

impl States {
    fn of_record(record: &Record, ledger: &str) -> Self {
        let number = |name: &str| record.number(&format!("{ledger}.{name}"));
        States {
            on_cpu: number("on_cpu"),
            irq: number("irq"),
            runnable: number("runnable"),
            preempted: number("preempted"),
            fault_on_cpu: number("fault_on_cpu"),
            blocked: std::array::from_fn(|sleep| number(&format!("blocked.{sleep}"))),
        }
    }

    fn subtract(&mut self, other: &Self) {
        self.on_cpu -= other.on_cpu;
        self.irq -= other.irq;
        self.runnable -= other.runnable;
        self.preempted -= other.preempted;
        self.fault_on_cpu -= other.fault_on_cpu;
        self.blocked.iter_mut().zip(other.blocked).for_each(|(sum, less)| *sum -= less);
    }

    fn add(&mut self, doing: u8, ns: i64) {
        match doing {
            b'.' => {}
            b'P' => self.preempted += ns,
            b'w' | b'N' => self.runnable += ns,
            b'f' | b'F' => {
                self.on_cpu += ns;
                self.fault_on_cpu += ns;
                self.blocked[if doing == b'f' { FAULT_MINOR } else { FAULT_MAJOR }] += ns;
            }
            b'i' | b'j' => {
                self.on_cpu += ns;
                self.irq += ns;
            }
            _ => match sleep(doing) {
                Some(sleep) => self.blocked[sleep] += ns,
                None => self.on_cpu += ns,
            },
        }
    }

    /// The part of `fault_on_cpu` is in `blocked`, and `irq` is a part of `on_cpu`.
    pub fn sum(&self) -> i64 {
        self.on_cpu - self.fault_on_cpu + self.runnable + self.preempted + self.blocked.iter().sum::<i64>()
    }
}

/// What the kernel side says of a timeline.
pub struct Outcome {
    world: World,
    pub records: Vec<Record>,
}

impl Outcome {
    pub fn of(program: &Path, timeline: &Timeline) -> Result<Self, String> {
        let world = World::new(timeline);
        let records = run(program, &world.commands())?;
        Ok(Outcome { world, records })
    }

    pub fn records(&self, kind: &str) -> impl Iterator<Item = &Record> {
        self.records.iter().filter(move |record| record.kind == kind)
    }

    /// The tick of a time.
    pub fn tick(&self, ns: i64) -> i64 {
        (ns - self.world.start as i64) / self.world.tick_ns as i64
    }

    /// The last record of each thread, in the order of the timeline.
    fn threads(&self) -> Vec<(&Thread, Option<&Record>)> {
        let first = |thread: &Thread| thread.doing.iter().position(|doing| *doing != b'.').unwrap_or(0);
        let record = |thread: &Thread| {
            let from = self.world.time(first(thread).max(self.world.armed_last())) as i64;
            self.records.iter().rfind(|record| {
                matches!(record.kind.as_str(), "thread" | "end")
                    && record.number("tid") == thread.tid
                    && record.number("observed_from") == from
            })
        };
        self.world.threads.iter().map(|thread| (thread, record(thread))).collect()
    }

    /// The ledger after the last pause: the rest of the second before a pause is not charged.
    fn after_pause(&self, record: &Record) -> States {
        let of_thread = |other: &&Record| other.text("key") == record.text("key");
        let is_first = |other: &&Record| other.number("observed_from") == record.number("observed_from");
        let paused = self.world.armed_last() > self.world.armed.0;
        let first = self.records("thread").filter(of_thread).find(is_first).filter(|_| paused);
        let mut states = States::of_record(record, "ledger");
        if let Some(first) = first {
            states.subtract(&States::of_record(first, "ledger"));
        }
        states
    }

    /// What the timeline says up to a time.
    fn expected(&self, thread: &Thread, until: i64) -> States {
        let mut states = States::default();
        let end = (self.world.armed.1).min(thread.ledger.len());
        for tick in self.world.armed_last()..end {
            let from = self.world.time(tick) as i64;
            let ns = (until - from).clamp(0, self.world.tick_ns as i64);
            states.add(thread.ledger[tick], ns);
        }
        states
    }

    /// The ledger at the end of the recording: what the record has, and what the thread has done since then.
    fn found(&self, record: &Record) -> States {
        let mut states = self.after_pause(record);
        if record.kind == "end" {
            return states;
        }
        let (since, end) = (record.number("since"), self.world.time(self.world.armed.1) as i64);
        let ns = end - since;
        match record.number("activity") {
            1 => states.on_cpu += ns,
            2 => states.preempted += ns,
            3 => {
                let (woken, ran) = (record.number("wake_ns"), record.number("run_ns"));
                let woken = if woken > ran { woken.clamp(since, end) } else { end };
                states.blocked[record.number("reason") as usize] += woken - since;
                states.runnable += end - woken;
            }
            4 => states.runnable += ns,
            _ => {}
        }
        states
    }

    /// The time of the first thread in minor and in major faults, by its last record.
    pub fn faults(&self) -> Option<[i64; 2]> {
        let states = States::of_record(self.threads().first()?.1?, "ledger");
        Some([states.blocked[FAULT_MINOR], states.blocked[FAULT_MAJOR]])
    }

    /// The ledgers are what the timeline says, at the end and at the end of each second.
    pub fn check_states(&self) -> Result<(), String> {
        for (thread, record) in self.threads() {
            let name = &thread.name;
            let record = record.ok_or_else(|| format!("{name} has no record"))?;
            let end = self.world.time(self.world.armed.1) as i64;
            let (found, expected) = (self.found(record), self.expected(thread, end));
            if found != expected {
                return Err(format!("{name}: {found:?}\ninstead of {expected:?}"));
            }
            let key = record.text("key");
            for second in self.records("second").filter(|second| second.text("key") == key) {
                let boundary = second.number("boundary");
                let (found, expected) =
                    (States::of_record(second, "ledger"), self.expected(thread, boundary));
                let at = self.tick(boundary);
                // An interrupt counts at its end, in the second in which it ends.
                let found = States { irq: expected.irq, ..found };
                if found != expected {
                    return Err(format!("{name} at tick {at}: {found:?}\ninstead of {expected:?}"));
                }
            }
        }
        self.check_partition()
    }

    /// The states of each thread add up to its wall time, at each record, and none is negative.
    pub fn check_partition(&self) -> Result<(), String> {
        for (thread, record) in self.threads() {
            let record = record.ok_or_else(|| format!("{} has no record", thread.name))?;
            let from = record.number("observed_from");
            let states = self.after_pause(record);
            let wall = record.number("since") - from;
            if states.sum() != wall {
                return Err(format!("{}: {} of {wall} ns in {states:?}", thread.name, states.sum()));
            }
            let all = [states.on_cpu, states.irq, states.runnable, states.preempted, states.fault_on_cpu];
            if all.iter().chain(&states.blocked).any(|ns| *ns < 0) {
                return Err(format!("{}: {states:?}", thread.name));
            }
            let key = record.text("key");
            let mut last = i64::MIN;
            for second in self.records("second").filter(|second| second.text("key") == key) {
                let boundary = second.number("boundary");
                let sum = States::of_record(second, "ledger").sum();
                if sum != boundary - from || boundary <= last {
                    return Err(format!("{}: {sum} ns by tick {}", thread.name, self.tick(boundary)));
                }
                last = boundary;
            }
        }
        Ok(())
    }

    /// Time off the CPU and in faults has stacks, or is carried until it has: together they are the ledger's. A
    /// wait that goes on at the end of the recording is left out: a second's end may have charged a part of the wait.
    pub fn check_samples(&self) -> Result<(), String> {
        for (thread, record) in self.threads() {
            let Some(record) = record.filter(|record| record.kind != "end") else { continue };
            if !runs(thread.at(self.world.ticks - 1)) && self.records("second").next().is_some() {
                continue;
            }
            let key = record.text("key");
            let mut of_thread = self.records("carried").filter(|carried| carried.text("key") == key);
            let carried = of_thread.next().ok_or_else(|| format!("{} carries nothing", thread.name))?;
            let stacked = |what: i64, state: usize| {
                let samples = self.records("sample").filter(|sample| sample.text("key") == key);
                let samples = samples.filter(|sample| sample.number("what") == what);
                samples.map(|sample| sample.number("weight")).sum::<i64>()
                    + carried.number(&state.to_string())
            };
            let found = States {
                runnable: stacked(SAMPLE_RUNNABLE, SLEEPS),
                preempted: stacked(SAMPLE_PREEMPTED, SLEEPS + 1),
                blocked: std::array::from_fn(|sleep| match sleep {
                    FAULT_MINOR.. => stacked(SAMPLE_FAULT + (sleep - FAULT_MINOR) as i64, sleep),
                    _ => stacked(SAMPLE_BLOCKED + sleep as i64, sleep),
                }),
                ..States::default()
            };
            let ledger = States { on_cpu: 0, irq: 0, fault_on_cpu: 0, ..States::of_record(record, "ledger") };
            if found != ledger {
                return Err(format!("{} has stacks of {found:?}\ninstead of {ledger:?}", thread.name));
            }
        }
        Ok(())
    }

    /// By how much the running time of each thread differs from the scheduler's, in ns.
    pub fn distance_from_scheduler(&self) -> Vec<(String, i64)> {
        let threads = self.threads().into_iter().filter_map(|(thread, record)| Some((thread, record?)));
        let of = |(thread, record): (&Thread, &Record)| {
            let executed = thread.executed(self.world.ticks) * self.world.tick_ns;
            (thread.name.clone(), self.found(record).on_cpu - executed as i64)
        };
        threads.map(of).collect()
    }

    fn name_of_tid(&self, tid: i64) -> &str {
        self.world.threads.iter().find(|thread| thread.tid == tid).map_or("?", |thread| &thread.name)
    }

    fn name_of_key(&self, key: &str) -> &str {
        let record = self
            .records
            .iter()
            .find(|record| matches!(record.kind.as_str(), "thread" | "end") && record.text("key") == key);
        record.map_or("?", |record| self.name_of_tid(record.number("tid")))
    }

    /// Waits that were emitted, as `thread START..END REASON`, in ticks, and what is known of each.
    pub fn stalls(&self, kind: &str) -> Vec<String> {
        const REASONS: [&str; SLEEPS] = [
            "lock", "wait", "disk", "network", "poll", "sleep", "pipe", "ipc", "child", "memory", "stopped",
            "other", "minor", "major",
        ];
        let show = |stall: &Record| {
            let flags = stall.number("flags");
            let reason = match flags & (1 | 8192) {
                0 => REASONS[stall.number("reason") as usize],
                1 => "preempted",
                _ => "new",
            };
            let (start, end) = (self.tick(stall.number("start")), self.tick(stall.number("end")));
            let mut text = format!("{} {start}..{end} {reason}", self.name_of_key(stall.text("key")));
            let runnable = stall.number("runnable") / self.world.tick_ns as i64;
            if runnable > 0 && flags & 1 == 0 {
                write!(text, " runnable {runnable}").expect("memory takes all");
            }
            match (flags & 2 != 0, stall.number("waker")) {
                (false, _) => {}
                (true, 0) => text += " by an interrupt",
                (true, _) => write!(text, " by {}", stall.text("waker_comm")).expect("memory takes all"),
            }
            for ran in 0..stall.number("rans") {
                let mut ran = stall.text(&format!("ran.{ran}")).split(':');
                let (_, ns, comm) =
                    (ran.next(), ran.next().unwrap_or_default(), ran.next().unwrap_or_default());
                let ticks = ns.parse::<u64>().unwrap_or(0) / self.world.tick_ns;
                write!(text, " behind {comm} {ticks}").expect("memory takes all");
            }
            text
        };
        self.records(kind).map(show).collect()
    }

    /// Losses by number of `enum loss`.
    pub fn losses(&self, reason: i64) -> i64 {
        let counts = self.records("loss").filter(|loss| loss.number("reason") == reason);
        counts.map(|loss| loss.number("count")).sum()
    }
}
