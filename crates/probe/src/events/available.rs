// SPDX-License-Identifier: Apache-2.0
//! The events that `-e` accepts on this machine.

use std::path::Path;

use super::cache::cache_names;
use super::source::has_hardware_counters;
use super::{EventSources, generic, pmu, tracepoint};

/// The events that exist here, by kind, in the form that `-e` takes. A hardware event that the kernel lists
/// need not be one that this CPU model counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Available {
    pub software: Vec<String>,
    /// Empty without a PMU.
    pub hardware: Vec<String>,
    /// Empty without a PMU.
    pub cache: Vec<String>,
    /// `pmu/event/`.
    pub pmu: Vec<String>,
    pub tracepoints: Tracepoints,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Tracepoints {
    #[default]
    TracefsNotMounted,
    NotReadable,
    Listed(Vec<String>),
}

/// Lists everything; reads some thousand small directories where a tracefs is mounted.
pub fn available(sources: &EventSources) -> Available {
    let mut available = Available {
        software: generic::software_names().map(String::from).collect(),
        pmu: pmu::named_events(sources.files),
        tracepoints: tracepoints(sources),
        ..Available::default()
    };
    if has_hardware_counters(sources.files) {
        available.hardware = generic::hardware_names().map(String::from).collect();
        available.cache = cache_names().collect();
    }
    available
}

fn tracepoints(sources: &EventSources) -> Tracepoints {
    let list = |tracefs: &Path| match tracepoint::all(sources.files, tracefs) {
        Ok(names) => Tracepoints::Listed(names),
        Err(_) => Tracepoints::NotReadable,
    };
    sources.tracefs.map_or(Tracepoints::TracefsNotMounted, list)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::parse_event;
    use crate::facts::files::fake::FakeFiles;

    fn bare_metal() -> FakeFiles {
        FakeFiles::new(&[
            ("/sys/bus/event_source/devices/cpu/type", "4"),
            ("/sys/bus/event_source/devices/cpu/format/event", "config:0-7"),
            ("/sys/bus/event_source/devices/cpu/events/mem-loads", "event=0xcd"),
            ("/t/events/sched/sched_switch/id", "316"),
        ])
    }

    #[test]
    fn listed_events_are_accepted() {
        let files = bare_metal();
        let sources = EventSources { files: &files, tracefs: Some(Path::new("/t")) };
        let Available { software, hardware, cache, pmu, tracepoints } = available(&sources);
        assert_eq!(pmu, ["cpu/mem-loads/"]);
        assert_eq!(tracepoints, Tracepoints::Listed(vec!["sched:sched_switch".into()]));
        assert_eq!((software.len(), hardware.len(), cache.len()), (12, 10, 32));
        for name in software.iter().chain(&hardware).chain(&cache).chain(&pmu) {
            assert!(parse_event(name, &sources).is_ok(), "{name}");
        }
    }

    #[test]
    fn a_virtual_machine_without_tracefs_still_has_software_events() {
        let files = FakeFiles::new(&[("/sys/bus/event_source/devices/software/type", "1")]);
        let listed = available(&EventSources { files: &files, tracefs: None });
        assert_eq!(listed.software[0], "cpu-clock");
        assert!(listed.hardware.is_empty() && listed.cache.is_empty());
        assert_eq!(listed.tracepoints, Tracepoints::TracefsNotMounted);
    }

    #[test]
    fn unreadable_and_absent_tracefs_differ() {
        let files = bare_metal().forbid("/t");
        let listed = available(&EventSources { files: &files, tracefs: Some(Path::new("/t")) });
        assert_eq!(listed.tracepoints, Tracepoints::NotReadable);
    }
}
