// SPDX-License-Identifier: Apache-2.0
//! Stalls and the application's events as markers.

use fxprof_processed_profile::{
    CategoryHandle, MarkerFieldFlags, MarkerFieldFormat, MarkerLocations, MarkerTiming, Profile,
    StaticSchemaMarker, StaticSchemaMarkerField, StringHandle,
};
use wallprof_analysis::weights::Frame;
use wallprof_model::StallReason;
use wallprof_model::counter::Mark;
use wallprof_model::profile::{ResolvedStack, StallRecord, WakerRecord};

use super::titles::titled_name;
use super::{Categories, Trace};
use crate::escape::escape;
use crate::export::stall_names::stall_name;

pub(super) fn add_stall(trace: &mut Trace<'_>, stall: &StallRecord) {
    let Some(thread) = trace.threads.get(&stall.thread).copied() else { return };
    if !stall.voluntary {
        trace.activity.add(thread, stall.late_ns());
    }
    let timing = MarkerTiming::Interval(trace.time(stall.start), trace.time(stall.end));
    let marker = StallMarker::new(&mut trace.profile, &trace.categories, stall);
    let marker = trace.profile.add_marker(thread, timing, marker);
    let root_first = |stack: &ResolvedStack| -> Vec<Frame> {
        stack.frames.iter().rev().map(|frame| Frame::Code(frame.clone())).collect()
    };
    let frames: Vec<Frame> =
        [&stall.user, &stall.kernel].into_iter().flatten().flat_map(root_first).collect();
    let stack = trace.stack(thread, frames.iter());
    trace.profile.set_marker_stack(thread, marker, stack);
}

/// The application's events stand on a thread of their own.
pub(super) fn add_mark(trace: &mut Trace<'_>, mark: &Mark) {
    let at = trace.time(mark.at);
    let timing = match mark.duration_ns {
        Some(_) => MarkerTiming::Interval(at, trace.time(mark.end())),
        None => MarkerTiming::Instant(at),
    };
    let thread = trace.machine().events;
    let profile = &mut trace.profile;
    let name = profile.intern_string(&escape(&mark.text));
    profile.add_marker(thread, timing, EventMarker { name });
}

/// A stall. Texts that are not known are empty; an idle wait made no thread late.
struct StallMarker {
    name: StringHandle,
    category: CategoryHandle,
    texts: [StringHandle; TEXTS],
    times_ms: [f64; 2],
}

const TEXTS: usize = 7;

/// Where the viewer shows markers: in its panels and on the thread's track.
const LOCATIONS: MarkerLocations = MarkerLocations::MARKER_CHART
    .union(MarkerLocations::MARKER_TABLE)
    .union(MarkerLocations::TIMELINE_OVERVIEW);

impl StallMarker {
    fn new(profile: &mut Profile, categories: &Categories, stall: &StallRecord) -> Self {
        let owner = stall.lock.as_ref().and_then(|lock| lock.owner.as_ref());
        let ran = |(thread, ns): &(_, u64)| format!("{}: {:.3} ms", titled_name(thread), ms(*ns));
        let ran_instead: Vec<String> = stall.ran_instead.iter().map(ran).collect();
        let texts = [
            stall.reason.name().to_string(),
            stall.waker.as_ref().map(waker).unwrap_or_default(),
            owner.map(titled_name).unwrap_or_default(),
            stall.syscall.as_deref().unwrap_or_default().to_owned(),
            stall.file.as_ref().map(|file| file.path.clone()).unwrap_or_default(),
            ran_instead.join(", "),
            stall.trace.map(|ids| ids.trace_id()).unwrap_or_default(),
        ];
        StallMarker {
            name: profile.intern_string(&stall_name(stall)),
            category: match stall.reason {
                StallReason::Preempted | StallReason::Runnable => categories.no_cpu,
                StallReason::Minor | StallReason::Major => categories.fault,
                StallReason::Blocked(_) if stall.voluntary => categories.idle,
                StallReason::Blocked(_) => categories.blocked,
            },
            texts: texts.map(|text| profile.intern_string(&escape(&text))),
            // JSON has no such number: the viewer shows nothing there.
            times_ms: [if stall.voluntary { f64::NAN } else { ms(stall.late_ns()) }, ms(stall.runnable_ns)],
        }
    }
}

fn waker(waker: &WakerRecord) -> String {
    waker.thread.as_ref().map_or_else(|| "interrupt".into(), titled_name)
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

const fn text(key: &'static str, label: &'static str) -> StaticSchemaMarkerField {
    let (format, flags) = (MarkerFieldFormat::String, MarkerFieldFlags::SEARCHABLE);
    StaticSchemaMarkerField { key, label, format, flags }
}

const fn duration(key: &'static str, label: &'static str) -> StaticSchemaMarkerField {
    let (format, flags) = (MarkerFieldFormat::Duration, MarkerFieldFlags::empty());
    StaticSchemaMarkerField { key, label, format, flags }
}

impl StaticSchemaMarker for StallMarker {
    const UNIQUE_MARKER_TYPE_NAME: &'static str = "Stall";
    const DESCRIPTION: Option<&'static str> = Some("A thread waited for longer than --min-stall.");
    const LOCATIONS: MarkerLocations = LOCATIONS;
    const CHART_LABEL: Option<&'static str> = Some("{marker.name}");
    const TOOLTIP_LABEL: Option<&'static str> = Some("{marker.name}");
    const TABLE_LABEL: Option<&'static str> =
        Some("{marker.data.reason}{marker.data.late ? ', late by ' : ''}{marker.data.late}");
    const FIELDS: &'static [StaticSchemaMarkerField] = &[
        text("reason", "Reason"),
        text("wokenBy", "Woken by"),
        text("lockOwner", "Lock owner"),
        text("syscall", "System call"),
        text("file", "File"),
        text("ranInstead", "Ran instead"),
        text("trace", "Trace"),
        duration("late", "Late by"),
        duration("runnable", "Waited for a CPU"),
    ];

    fn name(&self, _: &mut Profile) -> StringHandle {
        self.name
    }

    fn category(&self, _: &mut Profile) -> CategoryHandle {
        self.category
    }

    fn string_field_value(&self, index: u32) -> StringHandle {
        self.texts[index as usize]
    }

    fn number_field_value(&self, index: u32) -> f64 {
        self.times_ms[index as usize - TEXTS]
    }
}

/// An event of the application.
struct EventMarker {
    name: StringHandle,
}

impl StaticSchemaMarker for EventMarker {
    const UNIQUE_MARKER_TYPE_NAME: &'static str = "Event";
    const LOCATIONS: MarkerLocations = LOCATIONS;
    const FIELDS: &'static [StaticSchemaMarkerField] = &[];

    fn name(&self, _: &mut Profile) -> StringHandle {
        self.name
    }

    fn category(&self, _: &mut Profile) -> CategoryHandle {
        CategoryHandle::OTHER
    }

    fn string_field_value(&self, _: u32) -> StringHandle {
        self.name
    }

    fn number_field_value(&self, _: u32) -> f64 {
        0.0
    }
}
