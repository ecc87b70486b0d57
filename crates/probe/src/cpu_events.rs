// SPDX-License-Identifier: Apache-2.0
//! The events that are attached on each CPU: the ends of page faults, the sampling clock, and extra events.
//!
//! A CPU that goes offline loses its events for good (kernel/events/core.c, perf_event_exit_cpu). When it is
//! back they are opened again. The kernel side counts how often each CPU has gone offline. So a CPU that went
//! and came back between two checks is noticed, and one whose clock is late because the host does not run it
//! is not taken for gone.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use libbpf_rs::{Link, PerfEventOpts, ProgramMut};

use crate::bpf::WallprofSkel;
use crate::error::ProbeError;
use crate::events::PerfEventSpec;
use crate::plan::ProbeOptions;
use crate::{cpus, perf};

/// The programs that are attached here.
pub(crate) const PROGRAMS: [&str; 6] =
    ["on_fault_minor", "on_fault_major", "on_fault_started", "on_clock", "on_event", "on_tracepoint"];

/// The events of each CPU.
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
    /// Tracepoint events, which run on every CPU whichever one they were opened on.
    tracepoints: Vec<Link>,
}

/// The links of a CPU: dropping them detaches its programs.
struct Attached {
    _links: Vec<Link>,
    /// How often the CPU had gone offline before.
    departures: u32,
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

    /// Detaches from CPUs that are gone, and attaches to those that came or came back. Returns how many came:
    /// earlier events there are in no sample.
    pub fn follow(&mut self, skeleton: &WallprofSkel<'static>, online: &[u32]) -> Result<usize, ProbeError> {
        self.by_cpu
            .retain(|cpu, attached| attached.is_alive(online.contains(cpu), departures(skeleton, *cpu)));
        let new: Vec<u32> = online.iter().copied().filter(|cpu| !self.by_cpu.contains_key(cpu)).collect();
        for &cpu in &new {
            self.attach_to(skeleton, cpu)?;
        }
        Ok(new.iter().filter(|cpu| self.by_cpu.contains_key(cpu)).count())
    }

    fn attach_to(&mut self, skeleton: &WallprofSkel<'static>, cpu: u32) -> Result<(), ProbeError> {
        let mut links = Vec::new();
        // Read first: the CPU may go while its events are opened.
        let departures = departures(skeleton, cpu);
        match self.plan.attach(skeleton, cpu, &mut links) {
            // It went offline again.
            Err(ProbeError::EventNotOpened { error, .. }) if is_offline(&error) => return Ok(()),
            attached => attached?,
        }
        self.by_cpu.insert(cpu, Attached { _links: links, departures });
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
    /// Whether its events are still open: the CPU has not gone offline since.
    fn is_alive(&self, is_online: bool, departures: u32) -> bool {
        is_online && departures == self.departures
    }
}

/// How often the CPU has gone offline since the probes were attached.
fn departures(skeleton: &WallprofSkel<'static>, cpu: u32) -> u32 {
    let counts = skeleton.maps.bss_data.as_deref().map(|bss| &bss.cpu_departures);
    counts.and_then(|counts| counts.get(cpu as usize)).copied().unwrap_or(0)
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
            (&progs.on_fault_started, perf::SOFTWARE_PAGE_FAULTS, "page-faults"),
        ];
        for (program, config, name) in faults.into_iter().filter(|(program, ..)| program.autoload()) {
            let event = perf::open_every_hit(config, cpu).map_err(|error| not_opened(name, cpu, error))?;
            links.push(link(program, event, 0)?);
        }
        if !self.samples(cpu) {
            return Ok(());
        }
        if self.sample_hz > 0 {
            let clock = perf::open_clock(cpu, clock_period_ns(self.sample_hz));
            let clock = clock.map_err(|error| not_opened("cpu-clock", cpu, error))?;
            links.push(link(&progs.on_clock, clock, 0)?);
        }
        for (index, spec) in self.events.iter().enumerate().filter(|(_, spec)| !spec.is_tracepoint()) {
            let event = perf::open_event(spec, cpu, self.sample_hz);
            let event = event.map_err(|error| not_opened(&spec.name, cpu, error))?;
            links.push(link(&progs.on_event, event, index as u64)?);
        }
        Ok(())
    }
}

/// ns between two ticks of the sampling clock. Without one, 1 s.
pub(crate) fn clock_period_ns(hz: u32) -> u64 {
    1_000_000_000 / u64::from(hz.max(1))
}

/// Whether an event can be opened here: asked before anything is loaded for it.
pub fn try_event(spec: &PerfEventSpec, hz: u32) -> Result<(), ProbeError> {
    let cpu = cpus::online()[0];
    perf::open_event(spec, cpu, hz).map(drop).map_err(|error| not_opened(&spec.name, cpu, error))
}

fn is_offline(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENODEV)
}

fn not_opened(event: &str, cpu: u32, error: io::Error) -> ProbeError {
    ProbeError::event_not_opened(event, cpu, error)
}

fn link(program: &ProgramMut<'_>, event: OwnedFd, cookie: u64) -> Result<Link, ProbeError> {
    let options = PerfEventOpts { cookie, ..Default::default() };
    let link = program.attach_perf_event_with_opts(event.as_raw_fd(), options);
    let link = link.map_err(|error| ProbeError::not_attached(program, &error))?;
    // libbpf's link now owns the descriptor and closes it.
    std::mem::forget(event);
    Ok(link)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_live_until_their_cpu_goes() {
        let attached = Attached { _links: Vec::new(), departures: 3 };
        assert!(attached.is_alive(true, 3), "however late its clock is");
        assert!(!attached.is_alive(true, 4), "it went and came back between two looks");
        assert!(!attached.is_alive(false, 3) && !attached.is_alive(false, 4));
    }
}
