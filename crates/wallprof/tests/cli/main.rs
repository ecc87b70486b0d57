// SPDX-License-Identifier: Apache-2.0
//! The command line as scripts see it: exit codes, one sentence on stderr, nothing left behind.
//!
//! Needs no privilege. Where it has it, `doctor` and `demo` try the probes.

mod additions;
mod containers;
mod demo;
mod doctor;
mod fixture;
mod frozen;
mod held;
mod neighbours;
mod promises;
mod readers;
mod refusals;
mod usage;
