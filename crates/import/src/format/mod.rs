// SPDX-License-Identifier: Apache-2.0
//! The perf.data format of files and streams: bytes become records, samples and facts about the host.
//!
//! The meaning of records is not known here. Sources: `perf_event_open(2)`,
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
