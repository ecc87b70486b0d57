// SPDX-License-Identifier: Apache-2.0
//! The truth tests: each runs a scenario that logs what it did by its own clock, records it with the real
//! binary, and compares the two measurements.
//!
//! They measure time, so they run one after the other whatever `--test-threads` is. Where BPF is not
//! permitted they are skipped, unless `WALLPROF_REQUIRE_BPF=1` turns that into a failure.

mod load;
mod memory_group;
mod postgres_server;

mod busy;
mod bystander;
mod combined;
mod command;
mod containers;
mod counters;
mod deadlock;
mod durability;
mod events;
mod faults;
mod fsync;
mod guard;
mod handover;
mod holders;
mod interrupted;
mod ledger;
mod lifecycle;
mod lock;
mod look;
mod marks;
mod names;
mod own;
mod owners;
mod pingpong;
mod postgres;
mod preempted;
mod probed;
mod readers;
mod redis;
mod sleepers;
mod spans;
mod spin;
mod storms;
mod targets;
mod timeouts;
mod traces;
mod trouble;
mod waits;
mod words;
