// SPDX-License-Identifier: Apache-2.0
//! The output for people and programs: reports and stalls as text and as JSON, flame graphs, and exports for
//! other tools.
//!
//! A view takes plain values and writes to an `io::Write`. It opens no file and does not read its
//! environment; [`wallprof_analysis`] computes what it shows. The same values and the same [`Style`] give
//! the same bytes.

mod bar;
mod blame;
mod boxes;
mod diff;
mod escape;
mod export;
mod flame;
mod frame_name;
mod function;
mod functions;
mod json;
mod line;
mod now;
mod page;
mod report;
mod runs;
mod style;
mod surroundings;
mod svg;
mod tail;
mod text;
mod timestamps;
mod units;

pub use blame::{blame_json, blame_svg, blame_text, what_if_text};
pub use diff::{Diff, DiffRows, DiffSide, calls_diff_svg, diff_json, diff_svg, diff_text, tail_svg};
pub use escape::escape;
pub use export::{
    EXPORT_FORMATS, Export, ExportFormat, Rows, Timeline, export_format, folded, pprof, speedscope,
};
pub use flame::{Flame, flame_svg};
pub use functions::{calls_diff_text, functions_text};
pub use json::schema::schema_json;
pub use json::{
    calls_diff_json, labels_json, report_json, report_json_with_functions, stall_json, tail_json,
};
pub use now::{threads_json, threads_text, waits_text};
pub use page::{Page, page_text};
pub use report::Report;
pub use runs::{
    ComparedGroup, ComparedRuns, FoundRun, bmf_json, compared_json, compared_text, runs_json, runs_text,
    trend_svg,
};
pub use style::Style;
pub use surroundings::Surroundings;
pub use tail::{TailText, exemplar_text, name_of as name_of_kind};
pub use text::{StallGroupsText, StallsText, report_text};
