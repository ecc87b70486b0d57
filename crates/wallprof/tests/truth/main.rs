//! The truth tests: each runs a scenario that logs what it did by its own clock, records it with the real
//! binary, and compares the two measurements.
//!
//! They measure time, so they run one after the other whatever `--test-threads` says. Where BPF is not
//! permitted they say so on stderr and pass, unless `WALLPROF_REQUIRE_BPF=1` turns that into a failure.

mod bpf_objects;
mod contract;
mod lines;
mod load;
mod memory_group;
mod postgres_server;
mod proc;
mod recorder;
mod redis_server;
mod scenario;
mod stage;

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
mod ledger;
mod lifecycle;
mod lock;
mod names;
mod own;
mod pingpong;
mod postgres;
mod preempted;
mod readers;
mod redis;
mod sleepers;
mod spin;
mod storms;
mod targets;
mod timeouts;
mod trouble;
