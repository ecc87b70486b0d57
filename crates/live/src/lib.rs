// SPDX-License-Identifier: Apache-2.0
//! The live source: drives the probes and converts their records into the model's events.
//!
//! Owns the order in which things become known (threads, then stacks, then what refers to them) and the
//! cutting of time into seconds. Owns no file and no BPF.

pub mod accounts;
mod beside;
mod bindings;
mod build_budget;
mod builders;
mod counters;
mod cpu_accounts;
mod descriptors;
mod fault_files;
mod file_locks;
mod follower;
mod guard;
mod interrupts;
mod java;
mod kernel_side;
mod known;
mod large_turn;
mod look;
mod marks;
mod owner_samples;
mod peers;
mod places;
mod pods;
mod probed;
mod quotas;
mod session;
mod span_samples;
mod stacks;
pub mod stalls;
mod threads;
mod thresholds;
mod titles;
mod trampolines;
mod untracked;
mod wait_stacks;
mod waited_files;
mod words;

pub use beside::run_beside_others;
pub use kernel_side::{KernelSide, TakeRow};
pub use look::{Look, Seen};
pub use probed::{MOST_HITS as MOST_SPAN_HITS, SpanKind};
pub use session::{Flushed, Pending, Session, SessionError};
