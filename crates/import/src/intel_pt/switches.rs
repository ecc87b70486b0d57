// SPDX-License-Identifier: Apache-2.0
//! The threads that each CPU ran over time, by records of switches, with the state of their process's memory.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use wallprof_intel_pt::{Departure, Schedule, ScheduleBuilder, SpaceId, Switch, ThreadId, TimeConv};

use super::spill::Spill;

/// One CPU's switches, with times in ns as in the records, and the thread that runs after the last one.
#[derive(Debug)]
struct Cpu {
    changes: ScheduleBuilder,
    thread: ThreadId,
    pid: u32,
}

impl Cpu {
    fn new(spill: &Arc<Spill>) -> Cpu {
        let changes = ScheduleBuilder::on(Arc::clone(spill) as _);
        Cpu { changes, thread: ThreadId::NONE, pid: 0 }
    }
}

/// The switches of all CPUs, and the changes of memory of all processes.
#[derive(Debug, Default)]
pub(crate) struct Switches {
    cpus: HashMap<u32, Cpu>,
    /// Storage of switches beyond the memory limit.
    spill: Arc<Spill>,
    /// The space of each process, from a time on.
    spaces: HashMap<u32, Vec<(u64, SpaceId)>>,
}

impl Switches {
    /// From `time` on `cpu` runs `thread` of the process `pid`. `departure`: the way in which the previous
    /// thread left.
    pub(crate) fn switch(
        &mut self,
        cpu: u32,
        time: u64,
        thread: ThreadId,
        pid: u32,
        space: SpaceId,
        departure: Departure,
    ) {
        let known = self.cpus.entry(cpu).or_insert_with(|| Cpu::new(&self.spill));
        if known.thread == thread {
            return;
        }
        (known.thread, known.pid) = (thread, pid);
        known.changes.add(Switch { ticks: time, thread, space, departure });
    }

    /// From `time` on the process has another space.
    pub(crate) fn remap(&mut self, pid: u32, time: u64, space: SpaceId) {
        self.spaces.entry(pid).or_default().push((time, space));
        for cpu in self.cpus.values_mut().filter(|cpu| cpu.pid == pid && cpu.thread != ThreadId::NONE) {
            let (thread, departure) = (cpu.thread, Departure::Unknown);
            cpu.changes.add(Switch { ticks: time, thread, space, departure });
        }
    }

    /// Takes the schedule of one CPU's trace. Threads that are not `wanted` are replaced by no thread.
    pub(crate) fn take_cpu(
        &mut self,
        cpu: u32,
        conv: TimeConv,
        wanted: Option<&HashSet<ThreadId>>,
    ) -> Schedule {
        let Some(known) = self.cpus.remove(&cpu) else { return Schedule::default() };
        let is_wanted = |thread: &ThreadId| wanted.is_none_or(|wanted| wanted.contains(thread));
        let mut schedule = ScheduleBuilder::on(Arc::clone(&self.spill) as _);
        for change in known.changes.finish().into_switches() {
            let ticks = conv.ticks_from_ns(change.ticks);
            let thread = Some(change.thread).filter(is_wanted).unwrap_or_default();
            schedule.add(Switch { ticks, thread, ..change });
        }
        schedule.finish()
    }

    /// The schedule of a trace that follows one thread, whose memory may change.
    pub(crate) fn of_thread(&self, thread: ThreadId, pid: u32, conv: TimeConv) -> Schedule {
        let changes = self.spaces.get(&pid).map(Vec::as_slice).unwrap_or_default();
        let first = changes.first().map_or(SpaceId::default(), |change| change.1);
        let start = Switch { ticks: 0, thread, space: first, departure: Departure::Unknown };
        let later = changes.iter().skip(1).map(|&(time, space)| Switch {
            ticks: conv.ticks_from_ns(time),
            space,
            ..start
        });
        Schedule::new(std::iter::once(start).chain(later))
    }

    /// The storage of switches.
    pub(crate) fn spill(&self) -> &Arc<Spill> {
        &self.spill
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONV: TimeConv = TimeConv::NANOSECONDS;

    fn listed(schedule: &Schedule) -> Vec<(u64, u32, u32)> {
        schedule.switches().map(|switch| (switch.ticks, switch.thread.0, switch.space.0)).collect()
    }

    fn switches() -> Switches {
        let mut switches = Switches::default();
        switches.remap(70, 5, SpaceId(1));
        switches.switch(0, 10, ThreadId(1), 70, SpaceId(1), Departure::Unknown);
        // Both threads of a switch may report it.
        switches.switch(0, 11, ThreadId(1), 70, SpaceId(1), Departure::Unknown);
        switches.remap(70, 20, SpaceId(2));
        switches.remap(71, 21, SpaceId(3));
        switches.switch(0, 30, ThreadId(2), 71, SpaceId(3), Departure::Preempted);
        switches.switch(0, 40, ThreadId::NONE, 0, SpaceId(0), Departure::Blocked);
        switches.remap(71, 45, SpaceId(4));
        switches
    }

    #[test]
    fn cpu_schedule_has_switches_and_memory_changes() {
        let schedule = switches().take_cpu(0, CONV, None);
        assert_eq!(listed(&schedule), [(10, 1, 1), (20, 1, 2), (30, 2, 3), (40, 0, 0)]);
        let departures: Vec<_> = schedule.switches().map(|switch| switch.departure).collect();
        assert_eq!(departures[2..], [Departure::Preempted, Departure::Blocked]);
        assert_eq!(listed(&switches().take_cpu(9, CONV, None)), []);
    }

    #[test]
    fn threads_that_are_not_wanted_are_left_out() {
        let wanted = HashSet::from([ThreadId(2)]);
        let schedule = switches().take_cpu(0, CONV, Some(&wanted));
        let threads: Vec<_> = listed(&schedule).into_iter().map(|switch| switch.1).collect();
        assert_eq!(threads, [0, 0, 2, 0]);
    }

    #[test]
    fn thread_schedule_has_its_memory_changes() {
        let schedule = switches().of_thread(ThreadId(2), 71, CONV);
        assert_eq!(listed(&schedule), [(0, 2, 3), (45, 2, 4)]);
        assert_eq!(listed(&switches().of_thread(ThreadId(9), 9, CONV)), [(0, 9, 0)]);
    }
}
