// SPDX-License-Identifier: Apache-2.0
//! The events that perf names the same on every machine: `enum perf_hw_id` and `enum perf_sw_ids` of
//! `include/uapi/linux/perf_event.h`, with the second names that `perf list` gives them.

use super::spec::{PerfEventSpec, Sampling, event_type};

/// One generic event: its name first, then its aliases.
struct Generic {
    names: &'static [&'static str],
    config: u64,
    sampling: Sampling,
}

const HARDWARE: &[Generic] = &[
    counter(&["cycles", "cpu-cycles"], 0),
    counter(&["instructions"], 1),
    counter(&["cache-references"], 2),
    counter(&["cache-misses"], 3),
    counter(&["branches", "branch-instructions"], 4),
    counter(&["branch-misses"], 5),
    counter(&["bus-cycles"], 6),
    counter(&["stalled-cycles-frontend", "idle-cycles-frontend"], 7),
    counter(&["stalled-cycles-backend", "idle-cycles-backend"], 8),
    counter(&["ref-cycles"], 9),
];

const SOFTWARE: &[Generic] = &[
    counter(&["cpu-clock"], 0),
    counter(&["task-clock"], 1),
    every_hit(&["page-faults", "faults"], 2),
    every_hit(&["minor-faults"], 5),
    every_hit(&["major-faults"], 6),
    every_hit(&["context-switches", "cs"], 3),
    every_hit(&["cpu-migrations", "migrations"], 4),
    every_hit(&["alignment-faults"], 7),
    every_hit(&["emulation-faults"], 8),
    every_hit(&["cgroup-switches"], 11),
    every_hit(&["bpf-output"], 10),
    every_hit(&["dummy"], 9),
];

pub(super) fn hardware(name: &str) -> Option<PerfEventSpec> {
    find(HARDWARE, event_type::HARDWARE, name)
}

pub(super) fn software(name: &str) -> Option<PerfEventSpec> {
    find(SOFTWARE, event_type::SOFTWARE, name)
}

pub(super) fn hardware_names() -> impl Iterator<Item = &'static str> {
    HARDWARE.iter().map(|generic| generic.names[0])
}

pub(super) fn software_names() -> impl Iterator<Item = &'static str> {
    SOFTWARE.iter().map(|generic| generic.names[0])
}

/// Every name and alias, for finding near ones.
pub(super) fn all_names() -> impl Iterator<Item = &'static str> {
    HARDWARE.iter().chain(SOFTWARE).flat_map(|generic| generic.names.iter().copied())
}

const fn counter(names: &'static [&'static str], config: u64) -> Generic {
    Generic { names, config, sampling: Sampling::Frequency }
}

const fn every_hit(names: &'static [&'static str], config: u64) -> Generic {
    Generic { names, config, sampling: Sampling::EveryHit }
}

fn find(table: &[Generic], event_type: u32, name: &str) -> Option<PerfEventSpec> {
    let generic = table.iter().find(|generic| generic.names.contains(&name))?;
    Some(PerfEventSpec::new(name, event_type, generic.config, generic.sampling))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aliases_mean_the_same_event() {
        for (one, other) in
            [("cycles", "cpu-cycles"), ("branches", "branch-instructions"), ("faults", "page-faults")]
        {
            let find = |name| hardware(name).or_else(|| software(name)).unwrap();
            assert_eq!(
                (find(one).event_type, find(one).config),
                (find(other).event_type, find(other).config)
            );
        }
    }

    #[test]
    fn no_name_means_two_events() {
        let mut names: Vec<_> = all_names().collect();
        names.sort();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn clocks_are_sampled_and_occurrences_counted() {
        assert_eq!(software("cpu-clock").unwrap().sampling, Sampling::Frequency);
        assert_eq!(software("major-faults").unwrap().sampling, Sampling::EveryHit);
        assert_eq!(software("major-faults").unwrap().config, 6);
    }
}
