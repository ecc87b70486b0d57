//! The stack tests: each records a scenario of which every stack is known, with the real binary and as users do,
//! and compares whole stacks: complete, nothing missing inside, everything in order.
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
#[allow(dead_code)]
#[path = "../truth/scenario.rs"]
mod scenario;
#[path = "../truth/stage.rs"]
mod stage;

mod expected;
mod taken;

mod chain;
mod images;
mod loader;
mod node;
mod shapes;
mod threads;
