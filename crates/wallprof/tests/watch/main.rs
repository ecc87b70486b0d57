//! `wallprof watch` from outside: what Prometheus makes of it, what `ctl` and signals do, what it refuses and survives.
//!
//! They share the truth tests' stage, one at a time and skipped where BPF is not permitted.

// Each test program uses a part of these.
#[allow(dead_code)]
#[path = "../truth/bpf_objects.rs"]
mod bpf_objects;
#[allow(dead_code)]
#[path = "../truth/contract.rs"]
mod contract;
#[allow(dead_code)]
#[path = "../truth/lines.rs"]
mod lines;
#[allow(dead_code)]
#[path = "../truth/proc.rs"]
mod proc;
#[allow(dead_code)]
#[path = "../truth/recorder.rs"]
mod recorder;
#[allow(dead_code)]
#[path = "../truth/scenario.rs"]
mod scenario;
#[path = "../truth/stage.rs"]
mod stage;

mod http;
mod prometheus;
mod watcher;

mod clients;
mod files;
mod killed;
mod lock;
mod orders;
mod quiet;
mod refusals;
mod stuck;
mod targets;
mod timeouts;
