// SPDX-License-Identifier: Apache-2.0
//! The texts above the boxes of a flame graph, and the parts of the recording that are not in the picture.

use wallprof_analysis::weights::{Side, Tree, View};
use wallprof_model::profile::RecordingInfo;

use super::Flame;
use super::footer::footer;
use super::words::shown_weight;
use crate::boxes::Caption;
use crate::style::Style;
use crate::timestamps::Timestamps;
use crate::units::{counted, time};

/// Characters of a name in a title.
const LONGEST_NAME: usize = 60;

pub(super) fn of(flame: &Flame<'_>, tree: &Tree) -> Caption {
    let footer = footer(flame.weights, &notes(flame, tree));
    Caption { title: title(flame), lines: vec![subtitle(flame)], footer }
}

fn short(name: &str) -> String {
    match name.char_indices().nth(LONGEST_NAME) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

fn title(flame: &Flame<'_>) -> String {
    let what = match &flame.weights.view {
        View::Wall => "Wall time".into(),
        View::OnCpu => "Time on CPU".into(),
        View::OffCpu => "Time off CPU".into(),
        View::Faults => "Page faults".into(),
        View::Wakers => "Blocked time and who ended it".into(),
        View::Calls => "Calls".into(),
        View::Event(event) => format!("Counts of {}", short(event)),
    };
    match flame.info.command.as_str() {
        "" => what,
        command => format!("{what}: {}", short(command)),
    }
}

fn subtitle(flame: &Flame<'_>) -> String {
    let mut parts = vec![when(flame), threads(flame)];
    parts.extend(match flame.side {
        Side::Both => None,
        Side::User => Some("user frames only".into()),
        Side::Kernel => Some("kernel frames only".into()),
    });
    if !flame.info.hostname.is_empty() {
        parts.push(format!("host {}", short(&flame.info.hostname)));
    }
    parts.join(" · ")
}

fn when(flame: &Flame<'_>) -> String {
    let timestamps = Timestamps::new(flame.info, flame.zone);
    let range = &flame.range;
    let lasted = time(range.end.0.saturating_sub(range.start.0), &Style::plain());
    match timestamps.date(range.start) {
        Some(date) => format!("{lasted} from {} on {date}", timestamps.time(range.start)),
        None => format!("{lasted} from {}", timestamps.time(range.start)),
    }
}

fn threads(flame: &Flame<'_>) -> String {
    let number = counted(flame.weights.threads.len() as u64, "thread", "threads");
    match flame.thread_glob {
        Some(glob) => format!("{number} named {}", short(glob)),
        None => number,
    }
}

fn notes(flame: &Flame<'_>, tree: &Tree) -> Vec<String> {
    let mut notes = Vec::new();
    if tree.left_out > 0 {
        let (boxes, are) = (counted(tree.left_out as u64, "frame", "frames"), are(tree.left_out));
        notes.push(format!("{boxes} under {} {are} not drawn.", share_of_one_in(tree.one_in)));
    }
    if flame.weights.left_out_ns > 0 {
        let ns = shown_weight(flame.weights.left_out_ns, true);
        notes.push(format!("{ns} of blocked time are left out: the waker is not known."));
    }
    if !flame.info.ended_cleanly {
        notes.push(RecordingInfo::NO_END.into());
    }
    notes
}

fn are(number: usize) -> &'static str {
    if number == 1 { "is" } else { "are" }
}

/// `0.001 %` for one in 100,000.
fn share_of_one_in(one_in: u64) -> String {
    format!("{} %", 100.0 / one_in.max(1) as f64)
}
