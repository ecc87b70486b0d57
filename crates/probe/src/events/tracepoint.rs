// SPDX-License-Identifier: Apache-2.0
//! Tracepoints: `group:name`, whose number is in tracefs.

use std::io;
use std::path::Path;

use super::error::EventError;
use super::nearest::nearest;
use super::source::EventSources;
use super::spec::{PerfEventSpec, Sampling, event_type};
use crate::facts::files::Files;

/// The tracepoint `group:name`.
pub(super) fn tracepoint(
    group: &str,
    name: &str,
    sources: &EventSources,
) -> Result<PerfEventSpec, EventError> {
    let event = format!("{group}:{name}");
    if !is_file_name(group) || !is_file_name(name) {
        return Err(EventError::Malformed { event });
    }
    let Some(tracefs) = sources.tracefs else {
        return Err(EventError::NeedsTracefs { event });
    };
    let events = tracefs.join("events");
    match sources.files.read(&events.join(group).join(name).join("id")) {
        Ok(text) => match text.trim().parse() {
            Ok(id) => Ok(PerfEventSpec::new(&event, event_type::TRACEPOINT, id, Sampling::EveryHit)),
            Err(_) => Err(EventError::UnknownTracepoint { event, near: Vec::new() }),
        },
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Err(EventError::TracefsNotReadable { event })
        }
        Err(_) => {
            Err(EventError::UnknownTracepoint { near: near(sources.files, &events, group, name), event })
        }
    }
}

/// Tracepoints of any group with exactly this name.
pub(super) fn in_any_group(name: &str, sources: &EventSources) -> Vec<String> {
    let Some(tracefs) = sources.tracefs.filter(|_| is_file_name(name)) else {
        return Vec::new();
    };
    let events = tracefs.join("events");
    let groups = sources.files.list(&events).unwrap_or_default();
    let having =
        groups.into_iter().filter(|group| sources.files.exists(&events.join(group).join(name).join("id")));
    having.map(|group| format!("{group}:{name}")).collect()
}

/// Every tracepoint, `group:name`, sorted.
pub(super) fn all(files: &dyn Files, tracefs: &Path) -> io::Result<Vec<String>> {
    let events = tracefs.join("events");
    let mut names = Vec::new();
    for group in files.list(&events)? {
        names.extend(in_group(files, &events, &group));
    }
    Ok(names)
}

fn in_group(files: &dyn Files, events: &Path, group: &str) -> Vec<String> {
    let names = files.list(&events.join(group)).unwrap_or_default();
    // A group's directory also holds the files `enable` and `filter`.
    let names = names.into_iter().filter(|name| files.exists(&events.join(group).join(name).join("id")));
    names.map(|name| format!("{group}:{name}")).collect()
}

fn near(files: &dyn Files, events: &Path, group: &str, name: &str) -> Vec<String> {
    // Most users leave out the prefix that most groups repeat: sched:switch, irq:handler_entry.
    let prefixed = format!("{group}_{name}");
    if files.exists(&events.join(group).join(&prefixed).join("id")) {
        return vec![format!("{group}:{prefixed}")];
    }
    let groups = nearest(group, files.list(events).unwrap_or_default());
    let near_in = |group: String| {
        let names = in_group(files, events, &group);
        let names = names.into_iter().filter_map(|full| Some(full.split_once(':')?.1.to_string()));
        nearest(name, names).into_iter().map(move |name| format!("{group}:{name}"))
    };
    groups.into_iter().flat_map(near_in).collect()
}

/// Only valid names of tracefs files: the name becomes part of a path.
fn is_file_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    !name.is_empty() && name.chars().all(plain) && name != "." && name != ".."
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::files::fake::FakeFiles;

    fn files() -> FakeFiles {
        FakeFiles::new(&[
            ("/t/events/enable", "0"),
            ("/t/events/sched/enable", "0"),
            ("/t/events/sched/sched_switch/id", "316\n"),
            ("/t/events/sched/sched_waking/id", "318\n"),
            ("/t/events/irq/irq_handler_entry/id", "12\n"),
            ("/t/events/broken/broken/id", "what\n"),
        ])
    }

    fn parse(group: &str, name: &str) -> Result<PerfEventSpec, EventError> {
        tracepoint(group, name, &EventSources { files: &files(), tracefs: Some(Path::new("/t")) })
    }

    #[test]
    fn a_tracepoint_has_its_number_and_counts_each_hit() {
        let spec = parse("sched", "sched_switch").unwrap();
        assert_eq!((spec.event_type, spec.config, spec.sampling), (2, 316, Sampling::EveryHit));
        assert_eq!(spec.name, "sched:sched_switch");
    }

    #[test]
    fn a_misspelt_one_suggests_those_that_exist() {
        let near = |group, name| match parse(group, name) {
            Err(EventError::UnknownTracepoint { near, .. }) => near,
            other => panic!("{other:?}"),
        };
        assert_eq!(near("sched", "sched_swich"), ["sched:sched_switch"]);
        assert_eq!(near("shced", "sched_waking"), ["sched:sched_waking"]);
        assert_eq!(near("sched", "switch"), ["sched:sched_switch"]);
        assert_eq!(near("broken", "broken"), [""; 0]);
    }

    #[test]
    fn absent_and_unreadable_tracefs_are_reported() {
        let without = EventSources { files: &files(), tracefs: None };
        let needs = tracepoint("sched", "sched_switch", &without).unwrap_err();
        assert_eq!(needs, EventError::NeedsTracefs { event: "sched:sched_switch".into() });
        let closed = files().forbid("/t");
        let closed = EventSources { files: &closed, tracefs: Some(Path::new("/t")) };
        let forbidden = tracepoint("sched", "sched_switch", &closed).unwrap_err();
        assert_eq!(forbidden, EventError::TracefsNotReadable { event: "sched:sched_switch".into() });
    }

    #[test]
    fn names_cannot_leave_tracefs() {
        for (group, name) in [("..", "x"), ("sched", ".."), ("a/b", "c"), ("", "c"), ("a", ""), ("a", "é")] {
            assert!(matches!(parse(group, name), Err(EventError::Malformed { .. })), "{group}:{name}");
        }
    }

    #[test]
    fn the_group_of_a_bare_name_is_found() {
        let files = files();
        let sources = EventSources { files: &files, tracefs: Some(Path::new("/t")) };
        assert_eq!(in_any_group("sched_waking", &sources), ["sched:sched_waking"]);
        assert_eq!(in_any_group("nothing", &sources), [""; 0]);
        assert_eq!(all(&files, Path::new("/t")).unwrap().len(), 4);
    }
}
