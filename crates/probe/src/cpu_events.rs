//! What is attached CPU by CPU: the ends of page faults, the sampling clock, and extra events.
//!
//! A CPU that goes offline takes its events with it for good (kernel/events/core.c, perf_event_exit_cpu): when it is
//! back they are opened again.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use libbpf_rs::{Link, PerfEventOpts, ProgramMut};

use crate::bpf::WallprofSkel;
use crate::error::ProbeError;
use crate::events::PerfEventSpec;
use crate::perf;
use crate::plan::ProbeOptions;
use crate::probes::{RunQueue, not_attached};

/// A sampling clock that has not ticked for so long is that of a CPU that has gone and come back meanwhile.
const STANDS_STILL: Duration = Duration::from_secs(3);

/// What to attach to a CPU.
struct Plan {
    /// `None`: every CPU is sampled.
    sampled: Option<Vec<u32>>,
    sample_hz: u32,
    events: Vec<PerfEventSpec>,
}

/// The events of every CPU that is online.
pub(crate) struct CpuEvents {
    plan: Plan,
    by_cpu: BTreeMap<u32, Attached>,
    /// A tracepoint's programs run on every CPU, whichever event they came with.
    tracepoints: Vec<Link>,
}

/// What holds the programs to a CPU.
struct Attached {
    _links: Vec<Link>,
    /// How often its clock had ticked when it was last seen to.
    looks: u64,
    ticked: Instant,
}

impl CpuEvents {
    /// Attached to all CPUs that are `online`. A fault's ends must be attached before its start.
    pub fn attach(
        skeleton: &WallprofSkel<'static>,
        options: &ProbeOptions,
        online: &[u32],
    ) -> Result<Self, ProbeError> {
        let plan = Plan {
            sampled: options.cpus.clone(),
            sample_hz: options.sample_hz,
            events: options.events.clone(),
        };
        let mut events = CpuEvents { plan, by_cpu: BTreeMap::new(), tracepoints: Vec::new() };
        for &cpu in online {
            events.attach_to(skeleton, cpu)?;
        }
        events.attach_tracepoints(skeleton, online)?;
        Ok(events)
    }

    /// From now on the clocks' ticks are counted.
    pub fn expect_ticks(&mut self) {
        let now = Instant::now();
        self.by_cpu.values_mut().for_each(|attached| attached.ticked = now);
    }

    /// Lets go of CPUs that are gone, and attaches to those that came or came back. `queues` are the run queues by CPU,
    /// whose looks are the clock's ticks. How many CPUs came: what happened on them until now is in no event.
    pub fn follow(
        &mut self,
        skeleton: &WallprofSkel<'static>,
        online: &[u32],
        queues: &[RunQueue],
    ) -> Result<usize, ProbeError> {
        let now = Instant::now();
        let least = STANDS_STILL.max(Duration::from_secs(4) / self.plan.sample_hz.max(1));
        let plan = &self.plan;
        self.by_cpu.retain(|cpu, attached| {
            let looks = queues.get(*cpu as usize).map_or(0, |queue| queue.looks);
            let ticks = !plan.samples(*cpu) || attached.has_ticked(looks, now, least);
            online.contains(cpu) && ticks
        });
        let new: Vec<u32> = online.iter().copied().filter(|cpu| !self.by_cpu.contains_key(cpu)).collect();
        for &cpu in &new {
            self.attach_to(skeleton, cpu)?;
        }
        Ok(new.len())
    }

    fn attach_to(&mut self, skeleton: &WallprofSkel<'static>, cpu: u32) -> Result<(), ProbeError> {
        let mut links = Vec::new();
        match self.plan.attach(skeleton, cpu, &mut links) {
            // It went offline again.
            Err(ProbeError::EventNotOpened { error, .. }) if is_offline(&error) => return Ok(()),
            attached => attached?,
        }
        self.by_cpu.insert(cpu, Attached { _links: links, looks: 0, ticked: Instant::now() });
        Ok(())
    }

    fn attach_tracepoints(
        &mut self,
        skeleton: &WallprofSkel<'static>,
        online: &[u32],
    ) -> Result<(), ProbeError> {
        let Some(&cpu) = online.iter().find(|cpu| self.plan.samples(**cpu)) else { return Ok(()) };
        let program = &skeleton.progs.on_tracepoint;
        for (index, spec) in self.plan.events.iter().enumerate().filter(|(_, spec)| spec.is_tracepoint()) {
            let event = perf::open_event(spec, cpu, self.plan.sample_hz);
            let event = event.map_err(|error| not_opened(&spec.name, cpu, error))?;
            self.tracepoints.push(link(program, event, index as u64)?);
        }
        Ok(())
    }
}

impl Attached {
    /// False when the clock has stood still for `least`.
    fn has_ticked(&mut self, looks: u64, now: Instant, least: Duration) -> bool {
        if looks != self.looks {
            (self.looks, self.ticked) = (looks, now);
        }
        now.duration_since(self.ticked) < least
    }
}

impl Plan {
    fn samples(&self, cpu: u32) -> bool {
        self.sampled.as_ref().is_none_or(|sampled| sampled.contains(&cpu))
    }

    fn attach(
        &self,
        skeleton: &WallprofSkel<'static>,
        cpu: u32,
        links: &mut Vec<Link>,
    ) -> Result<(), ProbeError> {
        let progs = &skeleton.progs;
        let faults = [
            (&progs.on_fault_minor, perf::SOFTWARE_PAGE_FAULTS_MINOR, "minor-faults"),
            (&progs.on_fault_major, perf::SOFTWARE_PAGE_FAULTS_MAJOR, "major-faults"),
            (&progs.on_fault_begun, perf::SOFTWARE_PAGE_FAULTS, "page-faults"),
        ];
        for (program, config, name) in faults.into_iter().filter(|(program, ..)| program.autoload()) {
            let event = perf::open_every_hit(config, cpu).map_err(|error| not_opened(name, cpu, error))?;
            links.push(link(program, event, 0)?);
        }
        if !self.samples(cpu) {
            return Ok(());
        }
        let clock = perf::open_clock(cpu, clock_period_ns(self.sample_hz));
        let clock = clock.map_err(|error| not_opened("cpu-clock", cpu, error))?;
        links.push(link(&progs.on_clock, clock, 0)?);
        for (index, spec) in self.events.iter().enumerate().filter(|(_, spec)| !spec.is_tracepoint()) {
            let event = perf::open_event(spec, cpu, self.sample_hz);
            let event = event.map_err(|error| not_opened(&spec.name, cpu, error))?;
            links.push(link(&progs.on_event, event, index as u64)?);
        }
        Ok(())
    }
}

/// ns between two ticks of the sampling clock.
pub(crate) fn clock_period_ns(hz: u32) -> u64 {
    1_000_000_000 / u64::from(hz.max(1))
}

fn is_offline(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENODEV)
}

fn not_opened(event: &str, cpu: u32, error: io::Error) -> ProbeError {
    ProbeError::EventNotOpened { event: event.into(), cpu, error }
}

fn link(program: &ProgramMut<'_>, event: OwnedFd, cookie: u64) -> Result<Link, ProbeError> {
    let options = PerfEventOpts { cookie, ..Default::default() };
    let link = program.attach_perf_event_with_opts(event.as_raw_fd(), options);
    let link = link.map_err(|error| not_attached(program, &error))?;
    // libbpf's link now owns the descriptor and closes it.
    std::mem::forget(event);
    Ok(link)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_stands_still_is_noticed() {
        let start = Instant::now();
        let mut attached = Attached { _links: Vec::new(), looks: 0, ticked: start };
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(attached.has_ticked(10, at(1), STANDS_STILL));
        assert!(attached.has_ticked(10, at(3), STANDS_STILL), "it may only be late");
        assert!(!attached.has_ticked(10, at(4), STANDS_STILL));
        assert!(attached.has_ticked(11, at(5), STANDS_STILL));
    }
}
