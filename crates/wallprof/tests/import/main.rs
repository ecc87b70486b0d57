// SPDX-License-Identifier: Apache-2.0
//! `wallprof import` of files that perf records here: the same samples, threads and stacks as perf's own
//! reader prints.
//!
//! Skipped if perf does not work. With WALLPROF_REQUIRE_BPF=1 that is a failure, if perf is installed.

mod agreement;
mod collected;
mod perf;
