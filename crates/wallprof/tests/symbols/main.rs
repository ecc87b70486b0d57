//! Names for stripped programs: while recording and importing, and afterwards with `wallprof symbolize`.
//!
//! The tests compile a program, split it as distributions do, and serve its debug file with Debian's
//! debuginfod. Those that record share the truth tests' stage, one at a time and skipped where BPF is not
//! permitted.

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
#[path = "../truth/stage.rs"]
mod stage;

mod program;
mod server;
mod unnamed;

mod afterwards;
mod recorded;
