// SPDX-License-Identifier: Apache-2.0
//! The recording: one SQLite file that `record` and `import` write and every view reads. No other crate uses
//! SQLite.
//!
//! [`Recorder`] takes events and writes them. [`Recording`] reads them back as the values of the profile.
//! `docs/recording.md` describes the schema for users. Its tables and views are in `sql/`.

mod additions;
mod bounds;
mod budget;
mod calls;
mod counters;
mod database;
mod error;
mod excerpt;
mod file_sums;
mod findings;
mod folded;
mod foreign;
mod forget;
mod header;
mod held;
mod ids;
mod info;
mod intern;
mod interrupts;
mod intrusions;
mod kept;
mod kernel_activity;
mod ledger;
mod lists;
mod naming;
mod new_file;
mod older;
mod part;
mod pending;
mod place;
mod reader;
mod recorder;
mod recording;
mod retention;
mod row;
mod schema;
mod seconds;
mod snapshot;
mod spans;
mod stacks;
mod stalls;
mod start;
mod summary;
mod threads;
mod uses;
mod waits;
mod write;

pub use additions::{Additions, MAX_METRICS, is_recording};
pub use budget::SizeBudget;
pub use counters::Counters;
pub use error::{Action, Error, Result};
pub use excerpt::write_snapshot;
pub use findings::{BlameRow, Conclusions, GroupNames, StallMeaning, write_findings};
pub use ids::UNKNOWN_REFERENCE;
pub use naming::{KnownName, Naming, Unnameable, UnnamedFrame, UnnamedModule};
pub use part::Part;
pub use place::{PlaceError, output_place};
pub use reader::Progress;
pub use recorder::{Recorder, STALLS_FOLDED};
pub use recording::Recording;
pub use retention::Retention;
pub use schema::{APPLICATION_ID, SCHEMA};
pub use seconds::Seconds;
pub use spans::SpanCell;
pub use stalls::{StallFilter, Stalls};
pub use start::RecordingStart;
pub use summary::Summary;
