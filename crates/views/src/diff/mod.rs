// SPDX-License-Identifier: Apache-2.0
//! Two recordings side by side: as text, as JSON and as a differential flame graph. All times are nanoseconds
//! per second of wall time. Also the slow and the other spans of one recording, in nanoseconds a span.

mod amount;
mod calls;
mod colour;
mod json;
mod picture;
mod spans;
mod svg;
mod text;

pub use calls::calls_diff_svg;
pub(crate) use json::DiffJson;
pub use json::diff_json;
pub use spans::tail_svg;
pub use svg::diff_svg;
pub use text::{DiffRows, diff_text};

use wallprof_analysis::diff::{Comparison, Group, KindChange};
use wallprof_model::profile::RecordingInfo;

use crate::style::Style;

/// Everything a diff shows.
#[derive(Clone, Copy, Debug)]
pub struct Diff<'a> {
    pub a: DiffSide<'a>,
    pub b: DiffSide<'a>,
    pub comparison: &'a Comparison,
    /// The kinds of spans that both have.
    pub kinds: &'a [KindChange],
}

impl Diff<'_> {
    /// Nothing differs beyond noise.
    fn has_no_news(&self) -> bool {
        self.comparison.has_no_news() && !self.kinds.iter().any(KindChange::is_news)
    }
}

/// One of the two recordings.
#[derive(Clone, Copy, Debug)]
pub struct DiffSide<'a> {
    /// As the user named it.
    pub file: &'a str,
    pub info: &'a RecordingInfo,
}

/// `engine of lock`, or `lock` for threads named like their process.
fn group_name(group: &Group, style: &Style) -> String {
    let thread = style.comm(&group.thread);
    if group.thread == group.process {
        return thread.into_owned();
    }
    format!("{thread} of {}", style.comm(&group.process))
}
