// SPDX-License-Identifier: Apache-2.0
//! The events that `record -e` supports on this machine.

use wallprof_probe::events::{Available, EventSources, Tracepoints, available, find_tracefs};
use wallprof_probe::facts::files::Files;

use super::check::Check;

/// One line that names the software events and counts the others.
pub fn check(files: &dyn Files) -> Check {
    let tracefs = find_tracefs(files);
    check_from_available(&available(&EventSources { files, tracefs: tracefs.as_deref() }))
}

fn check_from_available(available: &Available) -> Check {
    let mut parts = vec![available.software.join(", ")];
    let counted = [
        (available.hardware.len() + available.cache.len(), "hardware events by perf's names"),
        (available.pmu.len(), "events of PMUs (pmu/event/)"),
    ];
    parts.extend(
        counted.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")),
    );
    if let Tracepoints::Listed(names) = &available.tracepoints {
        parts.push(format!("{} tracepoints (group:name)", names.len()));
    }
    Check::fine("events for -e", parts.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_available_events_are_counted() {
        let mut events =
            Available { software: vec!["cpu-clock".into(), "faults".into()], ..Available::default() };
        assert_eq!(check_from_available(&events).finding, "cpu-clock, faults");
        events.tracepoints = Tracepoints::Listed(vec!["a:b".into()]);
        events.hardware = vec!["cycles".into()];
        let finding = check_from_available(&events).finding;
        assert_eq!(
            finding,
            "cpu-clock, faults; 1 hardware events by perf's names; 1 tracepoints (group:name)"
        );
    }
}
