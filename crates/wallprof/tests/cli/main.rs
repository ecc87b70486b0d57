//! The command line as scripts see it: exit codes, one sentence on stderr, nothing left behind.
//!
//! Needs no privilege and loads nothing into the kernel.

mod doctor;
mod held;
mod program;
mod readers;
mod story;
mod usage;
