//! The perf.data format as it stands in a file or a stream: bytes → records, samples, facts about the host.
//!
//! Knows nothing of what they mean. Sources: `perf_event_open(2)`,
//! `tools/perf/Documentation/perf.data-file-format.txt`, `tools/perf/util/header.c`.

pub(crate) mod attr;
pub(crate) mod bytes;
pub(crate) mod facts;
pub(crate) mod filters;
pub(crate) mod header;
pub(crate) mod record;
pub(crate) mod records;
pub(crate) mod sample;
pub(crate) mod trace;
pub(crate) mod tracing;
mod unpack;
