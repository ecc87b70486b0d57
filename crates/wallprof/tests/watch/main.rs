// SPDX-License-Identifier: Apache-2.0
//! `wallprof watch` from outside: what Prometheus reads, what `ctl` and signals do, what it refuses and
//! survives.
//!
//! They run one after the other, and are skipped where BPF is not permitted.

mod http;
mod prometheus;
mod watcher;

mod clients;
mod deferred;
mod files;
mod killed;
mod lock;
mod orders;
mod refusals;
mod stuck;
mod tables;
mod targets;
mod timeouts;
