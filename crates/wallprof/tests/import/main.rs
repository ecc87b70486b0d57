//! `wallprof import` on what perf records here: the same samples, threads and stacks as perf's own reader shows.
//!
//! Skipped where perf does not work; a failure then with WALLPROF_REQUIRE_BPF=1, where it is installed.

mod agreement;
mod collected;
mod perf;
