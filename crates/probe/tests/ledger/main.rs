// SPDX-License-Identifier: Apache-2.0
//! The ledger of the kernel side, without a kernel: the programs of `bpf/` are compiled for the host, run by
//! timelines, and compared with the timelines. `timeline.rs` describes the notation.

mod defects;
mod kernel;
mod loops;
mod probed;
mod random;
mod timeline;
mod traced;
mod traps;
