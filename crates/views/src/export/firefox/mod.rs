// SPDX-License-Identifier: Apache-2.0
//! The Firefox Profiler's processed profile format, for <https://profiler.firefox.com>.
//!
//! A sample is a weighted stack of wall time, running or waiting, with its state as the leaf. A recording has the
//! sums of each second and no finer times of them: the samples of a second stand one after the other, and each has
//! the second's share of CPU time. Stalls and the application's events are markers at their own times. Running time is
//! divided into user and kernel time by the samples of each second, as in each format with stacks by the second; a report
//! divides it by all samples of the thread.

mod activity;
mod counters;
mod markers;
mod places;
mod samples;
mod titles;

use std::collections::HashMap;
use std::io::{self, Write};

use fxprof_processed_profile::{
    CategoryColor, CategoryHandle, Frame as Place, FrameFlags, FrameInfo, ProcessHandle, Profile,
    ReferenceTimestamp, SamplingInterval, StackHandle, ThreadHandle, Timestamp, WeightType,
};
use serde_json::Value;
use wallprof_analysis::bins::BinnedStacks;
use wallprof_analysis::weights::{Frame, Function, Mark as MarkFrame, Role};
use wallprof_model::counter::{CounterTrack, Mark};
use wallprof_model::profile::{LedgerRow, RecordingInfo, StallRecord, Thread};
use wallprof_model::{Meaning, MonoNs, State, ThreadKey};

use self::activity::Activity;
use self::places::placed_name;
use self::titles::Titles;
use super::format::{ExportFormat, Rows};
use super::timeline::Timeline;
use crate::escape::escape;
use crate::frame_name::{marked_name, shown_comm};
use crate::json::to_writer;

pub(super) const FORMAT: ExportFormat = ExportFormat {
    name: "firefox",
    about: "A profile for profiler.firefox.com: stacks by second, and each stall on its thread",
    counts_calls_in_names: false,
    rows: Rows::Timeline(|out, info, threads| Ok(Box::new(Trace::start(out, info, threads)))),
};

/// The profile so far: the library writes it as a whole.
struct Trace<'a> {
    out: &'a mut dyn Write,
    start: MonoNs,
    profile: Profile,
    categories: Categories,
    threads: HashMap<ThreadKey, ThreadHandle>,
    /// Of recorded threads.
    processes: HashMap<ThreadKey, ProcessHandle>,
    titles: Titles,
    activity: Activity,
    machine: Option<Machine>,
    /// How each counter is drawn, in their order.
    displays: Vec<Value>,
}

/// What events and counters belong to that are of no recorded process.
#[derive(Clone, Copy)]
struct Machine {
    process: ProcessHandle,
    /// Its only thread.
    events: ThreadHandle,
}

impl<'a> Trace<'a> {
    fn start(out: &'a mut dyn Write, info: &'a RecordingInfo, threads: &[Thread]) -> Self {
        let title = if info.command.is_empty() { "wallprof" } else { &info.command };
        let epoch_ns = info.clock.epoch_from_mono(info.start).0;
        let reference = ReferenceTimestamp::from_millis_since_unix_epoch(epoch_ns as f64 / 1e6);
        let mut profile = Profile::new(title, reference, SamplingInterval::from_millis(1));
        profile.set_symbolicated(true);
        profile.set_os_name(&format!("Linux {}", info.kernel));
        let categories = Categories::new(&mut profile);
        let mut trace = Trace {
            out,
            start: info.start,
            profile,
            categories,
            threads: HashMap::new(),
            processes: HashMap::new(),
            titles: Titles::default(),
            activity: Activity::default(),
            machine: None,
            displays: Vec::new(),
        };
        trace.add_threads(threads);
        trace
    }

    /// A process's own thread comes first, as viewers expect.
    fn add_threads(&mut self, threads: &[Thread]) {
        let mut processes = HashMap::new();
        for thread in threads {
            let info = &thread.info;
            let (start, end) = (self.time(thread.start), self.time(thread.end));
            let profile = &mut self.profile;
            let process = *processes
                .entry(info.pid)
                .or_insert_with(|| profile.add_process(&shown_comm(&info.process), info.pid, start));
            let handle = profile.add_thread(process, info.tid, start, info.pid == info.tid);
            profile.set_thread_name(handle, &shown_comm(&info.comm));
            profile.set_thread_end_time(handle, end);
            profile.set_thread_samples_weight_type(handle, WeightType::TracingMs);
            profile.set_thread_show_markers_in_timeline(handle, true);
            self.threads.insert(info.key, handle);
            self.processes.insert(info.key, process);
        }
    }

    fn machine(&mut self) -> Machine {
        let profile = &mut self.profile;
        *self.machine.get_or_insert_with(|| {
            let start = Timestamp::from_nanos_since_reference(0);
            let process = profile.add_process("events and machine", 0, start);
            let events = profile.add_thread(process, 0, start, true);
            profile.set_thread_name(events, "events and machine");
            profile.set_thread_show_markers_in_timeline(events, true);
            Machine { process, events }
        })
    }

    fn time(&self, at: MonoNs) -> Timestamp {
        Timestamp::from_nanos_since_reference(at.0.saturating_sub(self.start.0))
    }

    /// A stack of frames, root first.
    fn stack<'f>(
        &mut self,
        thread: ThreadHandle,
        frames: impl Iterator<Item = &'f Frame>,
    ) -> Option<StackHandle> {
        let mut places = Vec::new();
        let mut meaning = None;
        for frame in frames {
            if let Frame::Mark(MarkFrame::Meaning(found)) = frame {
                meaning = Some(&**found);
            }
            for function in frame.functions() {
                let category = self.categories.of_function(&function, meaning);
                let name = marked_name(&function);
                let placed = function.line.and_then(|line| Some((line.file.as_deref()?, line.line)));
                let name = match placed {
                    Some((file, line)) => {
                        self.profile.intern_string(&placed_name(&name, &escape(file), line))
                    }
                    None => self.profile.intern_string(&name),
                };
                places.push(FrameInfo {
                    frame: Place::Label(name),
                    category_pair: category.into(),
                    flags: FrameFlags::empty(),
                });
            }
        }
        self.profile.intern_stack_frames(thread, places.into_iter())
    }
}

impl Timeline for Trace<'_> {
    fn stacks(&mut self, stacks: &BinnedStacks, threads: &[Thread]) -> io::Result<()> {
        samples::add(self, stacks, threads);
        Ok(())
    }

    fn stall(&mut self, stall: &StallRecord) -> io::Result<()> {
        markers::add_stall(self, stall);
        self.titles.add(&self.processes, stall);
        Ok(())
    }

    fn second(&mut self, _: &LedgerRow) -> io::Result<()> {
        Ok(())
    }

    fn counter(&mut self, track: &CounterTrack) -> io::Result<()> {
        counters::add(self, track);
        Ok(())
    }

    fn mark(&mut self, mark: &Mark) -> io::Result<()> {
        markers::add_mark(self, mark);
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        let shown = self.activity.shown_first();
        if !shown.is_empty() {
            let events = self.machine.map(|machine| machine.events);
            shown.into_iter().chain(events).for_each(|one| self.profile.add_initial_visible_thread(one));
        }
        self.titles.name_processes(&mut self.profile);
        let mut profile = serde_json::to_value(&self.profile)?;
        places::separate(&mut profile);
        samples::in_milliseconds(&mut profile);
        let counters = profile["counters"].as_array_mut().into_iter().flatten();
        for (counter, display) in counters.zip(std::mem::take(&mut self.displays)) {
            counter["display"] = display;
        }
        to_writer(&mut self.out, &profile)?;
        writeln!(self.out)
    }
}

/// The colours of samples and markers.
struct Categories {
    user: CategoryHandle,
    kernel: CategoryHandle,
    interrupt: CategoryHandle,
    fault: CategoryHandle,
    no_cpu: CategoryHandle,
    blocked: CategoryHandle,
    /// Voluntary waits.
    idle: CategoryHandle,
}

impl Categories {
    fn new(profile: &mut Profile) -> Self {
        let mut add = |name, color| profile.add_category(name, color);
        Categories {
            user: add("User", CategoryColor::Yellow),
            kernel: add("Kernel", CategoryColor::Orange),
            interrupt: add("Interrupt", CategoryColor::Brown),
            fault: add("Page fault", CategoryColor::Purple),
            no_cpu: add("Waiting for a CPU", CategoryColor::Red),
            blocked: add("Blocked", CategoryColor::Blue),
            // The viewer's own name for it, by which it leaves such samples out.
            idle: add("Idle", CategoryColor::Transparent),
        }
    }

    /// A wait is idle by its meaning, and without a meaning by its reason.
    fn of_function(&self, function: &Function<'_>, meaning: Option<&Meaning>) -> CategoryHandle {
        match (function.role, meaning) {
            (Role::User, _) => self.user,
            (Role::Kernel, _) => self.kernel,
            (Role::State(State::Blocked(_)) | Role::Mark, Some(meaning)) => self.of_wait(meaning.idle),
            (Role::State(state), _) => self.of_state(state),
            (Role::Thread | Role::Process | Role::Mark, _) => CategoryHandle::OTHER,
        }
    }

    fn of_state(&self, state: State) -> CategoryHandle {
        match state {
            State::User | State::Cpu => self.user,
            State::Kernel => self.kernel,
            State::Irq => self.interrupt,
            State::FaultMinor | State::FaultMajor => self.fault,
            State::Runnable | State::Preempted => self.no_cpu,
            State::Blocked(reason) => self.of_wait(reason.is_voluntary()),
        }
    }

    fn of_wait(&self, is_idle: bool) -> CategoryHandle {
        if is_idle { self.idle } else { self.blocked }
    }
}

#[cfg(test)]
mod tests;
