// SPDX-License-Identifier: Apache-2.0
//! The probes of `--span`, which are uprobes: at each place that one names, threads trap into the kernel.

use std::io;

use libbpf_rs::{Link, MapCore, MapFlags, ProgramMut, UprobeOpts};

use crate::bpf::{WallprofSkel, constants as c, record_from_bytes};
use crate::error::ProbeError;
use crate::plan::{CodePlace, MAX_SPAN_PROBES, ProbeOptions, SpanProbes, Targets};

/// The programs that are attached here.
pub(crate) const PROGRAMS: [&str; 2] = ["on_span_start", "on_span_end"];

/// The links by number of `--span`: dropping them removes the probes.
pub(crate) struct AttachedSpans(Vec<Vec<Link>>);

impl AttachedSpans {
    pub fn attach(skeleton: &WallprofSkel<'static>, options: &ProbeOptions) -> Result<Self, ProbeError> {
        let pids = processes(&options.targets);
        let (begin, end) = (&skeleton.progs.on_span_start, &skeleton.progs.on_span_end);
        let attach_all = |(number, span): (u64, &SpanProbes)| {
            let mut links = Vec::new();
            // Ends first: the start of a span would have none.
            for (program, places) in [(end, &span.ends), (begin, &span.begins)] {
                for place in places {
                    for pid in &pids {
                        links.push(link(program, *pid, number, span, *place)?);
                    }
                }
            }
            Ok(links)
        };
        let spans = (0..).zip(options.spans.iter().take(MAX_SPAN_PROBES));
        Ok(AttachedSpans(spans.map(attach_all).collect::<Result<_, ProbeError>>()?))
    }

    /// Removes the probes of one `--span`.
    pub fn remove(&mut self, number: usize) {
        if let Some(links) = self.0.get_mut(number) {
            // Starts first: a span would have no end.
            while links.pop().is_some() {}
        }
    }

    /// By number of `--span`: how often its probes were hit so far, by any thread.
    pub fn hits(&self, skeleton: &WallprofSkel<'static>) -> Result<Vec<u64>, ProbeError> {
        let hits_of = |number: u32| {
            let counts = skeleton.maps.span_probe_hits.lookup_percpu(&number.to_ne_bytes(), MapFlags::ANY);
            let counts =
                counts.map_err(|error| ProbeError::reading("span probes", io::Error::other(error)))?;
            Ok(counts.iter().flatten().filter_map(|bytes| record_from_bytes::<u64>(bytes)).sum())
        };
        (0..self.0.len() as u32).map(hits_of).collect()
    }
}

/// The processes for which the probes are set: no others trap. -1 is all, where processes come and go.
fn processes(targets: &Targets) -> Vec<i32> {
    match targets {
        Targets::Given(set)
            if !set.with_children
                && set.threads.is_empty()
                && set.cgroup.is_none()
                && set.names.is_empty() =>
        {
            set.processes.iter().map(|pid| pid.cast_signed()).collect()
        }
        Targets::Everything | Targets::Command(_) | Targets::Given(_) => vec![-1],
    }
}

fn link(
    program: &ProgramMut<'_>,
    pid: i32,
    number: u64,
    span: &SpanProbes,
    place: CodePlace,
) -> Result<Link, ProbeError> {
    let call = if span.is_call { c::SPAN_PROBE_CALL } else { 0 };
    let condition = place.condition.map_or(0, |condition| {
        c::SPAN_PROBE_CONDITION | u64::from(condition & 15) << c::SPAN_PROBE_CONDITION_SHIFT
    });
    let options = UprobeOpts {
        cookie: number | call | condition,
        ref_ctr_offset: place.semaphore.unwrap_or(0) as usize,
        ..UprobeOpts::default()
    };
    let link = program.attach_uprobe_with_opts(pid, &span.path, place.offset as usize, options);
    link.map_err(|error| ProbeError::SpanNotProbed {
        option: span.option.clone(),
        offset: place.offset,
        reason: error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::TargetSet;

    #[test]
    fn processes_that_come_and_go_are_probed_by_file_alone() {
        let set = TargetSet { processes: vec![7, 9], ..TargetSet::default() };
        assert_eq!(processes(&Targets::Given(set.clone())), [7, 9]);
        let with_children = TargetSet { with_children: true, ..set.clone() };
        assert_eq!(processes(&Targets::Given(with_children)), [-1]);
        assert_eq!(processes(&Targets::Given(TargetSet { threads: vec![8], ..set })), [-1]);
        assert_eq!(processes(&Targets::Everything), [-1]);
        assert_eq!(processes(&Targets::Command(7)), [-1]);
    }
}
