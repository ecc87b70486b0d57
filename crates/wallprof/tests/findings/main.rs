//! The matrix: each rule fires on its scenario and on no other, under any thread name, with and without symbols; and a
//! busy, healthy program has no findings that blame it.
//!
//! They share the truth tests' stage, one at a time and skipped where BPF is not permitted.

// Each test program uses a part of these.
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
#[path = "../truth/redis_server.rs"]
mod redis_server;
#[allow(dead_code)]
#[path = "../truth/scenario.rs"]
mod scenario;
#[path = "../truth/stage.rs"]
mod stage;

mod found;
mod machine;
mod stripped;

mod healthy;
mod lazy;
mod matrix;
mod throttled;
