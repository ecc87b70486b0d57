// SPDX-License-Identifier: Apache-2.0
//! Attaching the object's programs to the kernel.
//!
//! The object says how: the section of each program names its attach point. Programs for tracepoints attach
//! by their sections; those of perf events and iterators are attached by the code that opens these. A loaded
//! program that nothing attaches is an error.

use std::ffi::OsStr;

use libbpf_rs::Link;
use libbpf_rs::skel::Skel;

use crate::bpf::WallprofSkel;
use crate::error::ProbeError;

/// A program of the object, and the attach point that its section names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Program<'a> {
    pub name: &'a str,
    pub section: &'a str,
}

/// When a tracepoint's program is attached. The order of the object holds within a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    First,
    AnyTime,
    /// After the events of each CPU.
    Last,
}

/// The tracepoints whose order matters. All others attach at any time.
const ORDER: &[(&str, Phase)] = &[
    // Ends before starts: the start of a delay would have no end.
    ("on_direct_reclaim_end", Phase::First),
    ("on_group_reclaim_end", Phase::First),
    ("on_compaction_end", Phase::First),
    ("on_contention_end", Phase::First),
    // The start of a page fault whose end is not attached yet would count as a failed fault.
    ("on_fault_in_user", Phase::Last),
    ("on_fault_in_kernel", Phase::Last),
];

impl<'a> Program<'a> {
    /// Both are ASCII in this object.
    pub fn new(name: &'a OsStr, section: &'a OsStr) -> Self {
        Program { name: name.to_str().unwrap_or_default(), section: section.to_str().unwrap_or_default() }
    }

    /// The tracepoint that the program attaches to; `None` for programs of perf events and iterators.
    pub fn tracepoint(self) -> Option<&'a str> {
        let (kind, tracepoint) = self.section.split_once('/')?;
        matches!(kind, "tp_btf" | "raw_tp").then_some(tracepoint)
    }

    fn phase(self) -> Phase {
        ORDER.iter().find(|(name, _)| *name == self.name).map_or(Phase::AnyTime, |(_, phase)| *phase)
    }

    /// Whether there is code that attaches the program.
    fn is_attached_by(self, attachers: &[&str]) -> bool {
        self.tracepoint().is_some() || attachers.contains(&self.name)
    }
}

/// The first loaded program that has no attach point: not a tracepoint's, and not among `attachers`.
fn unattached<'a>(loaded: &[Program<'a>], attachers: &[&str]) -> Option<Program<'a>> {
    loaded.iter().copied().find(|program| !program.is_attached_by(attachers))
}

/// Fails if a loaded program would never run. `attachers` are the programs of perf events and iterators.
pub(crate) fn check(skeleton: &WallprofSkel<'_>, attachers: &[&str]) -> Result<(), ProbeError> {
    let loaded = skeleton.object().progs().filter(|program| program.autoload());
    let loaded: Vec<_> = loaded.map(|program| Program::new(program.name(), program.section())).collect();
    match unattached(&loaded, attachers) {
        Some(program) => Err(ProbeError::NotAttached {
            program: program.name.to_owned(),
            reason: format!("it is loaded, and nothing attaches its section {}", program.section),
        }),
        None => Ok(()),
    }
}

/// Attaches the loaded tracepoint programs of one phase. Dropping the links detaches them, so that a killed
/// recorder leaves nothing behind.
pub(crate) fn attach_tracepoints(
    skeleton: &WallprofSkel<'static>,
    phase: Phase,
    links: &mut Vec<Link>,
) -> Result<(), ProbeError> {
    for program in skeleton.object().progs_mut().filter(|program| program.autoload()) {
        let facts = Program::new(program.name(), program.section());
        if facts.tracepoint().is_some() && facts.phase() == phase {
            links.push(program.attach().map_err(|error| ProbeError::not_attached(&program, &error))?);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::tests::programs_of_the_object;
    use crate::{cpu_events, iterators, look, span_probes};

    fn program<'a>(name: &'a str, section: &'a str) -> Program<'a> {
        Program { name, section }
    }

    #[test]
    fn program_without_an_attach_point_is_found() {
        let loaded = [
            program("on_switch", "tp_btf/sched_switch"),
            program("on_cross_call", "raw_tp/csd_queue_cpu"),
            program("on_clock", "perf_event"),
            program("snapshot", "iter/task"),
        ];
        let attachers = ["on_clock", "snapshot"];
        assert_eq!(unattached(&loaded, &attachers), None);
        assert_eq!(unattached(&loaded, &["snapshot"]), Some(loaded[2]), "no code opens its event");
        assert_eq!(unattached(&loaded, &["on_clock"]), Some(loaded[3]), "no code runs the iterator");
        let forgotten = program("on_thing", "kprobe/thing");
        assert_eq!(unattached(&[loaded[0], forgotten], &attachers), Some(forgotten));
    }

    #[test]
    fn each_program_of_the_object_is_attached() {
        let object = programs_of_the_object();
        let programs: Vec<_> = object.iter().map(|(name, section)| program(name, section)).collect();
        let attachers =
            [&cpu_events::PROGRAMS[..], &iterators::PROGRAMS, &span_probes::PROGRAMS, &[look::PROGRAM]]
                .concat();
        assert_eq!(unattached(&programs, &attachers), None);
        let is_known = |name: &&str| programs.iter().any(|program| program.name == *name);
        assert_eq!(attachers.iter().find(|name| !is_known(name)), None, "an attacher of no program");
        assert_eq!(ORDER.iter().find(|(name, _)| !is_known(name)), None, "an order of no program");
    }

    #[test]
    fn each_end_of_a_delay_is_attached_before_its_start() {
        let object = programs_of_the_object();
        let phase = |wanted: &str| {
            let (name, section) = object.iter().find(|(name, _)| name == wanted).expect("a program");
            program(name, section).phase()
        };
        let starts: Vec<_> = object.iter().filter_map(|(name, _)| name.strip_suffix("_begin")).collect();
        assert!(starts.len() >= 4, "{starts:?}");
        for start in starts {
            assert!(phase(&format!("{start}_end")) < phase(&format!("{start}_begin")), "{start}");
        }
    }
}
