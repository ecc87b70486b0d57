//! The command line as scripts see it: exit codes, one sentence on stderr, nothing left behind.
//!
//! Needs no privilege; where it is there, `doctor` and `demo` try the probes.

mod additions;
mod demo;
mod doctor;
mod held;
mod neighbours;
mod program;
mod readers;
mod story;
mod usage;
