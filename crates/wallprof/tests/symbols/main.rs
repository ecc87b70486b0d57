// SPDX-License-Identifier: Apache-2.0
//! Names for stripped programs: while recording and importing, and afterwards with `wallprof symbolize`.
//!
//! The tests compile a program, split it as distributions do, and serve its debug file with Debian's
//! debuginfod. Those that record run one after the other, and are skipped where BPF is not permitted.

mod program;
mod server;
mod unnamed;

mod afterwards;
mod recorded;
