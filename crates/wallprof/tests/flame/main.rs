//! `wallprof flame` and `wallprof export` as users run them: on a recording written for the purpose, on files and
//! options that cannot be, and on the lock scenario, recorded for real.

#[path = "../cli/program.rs"]
mod program;
mod story;

mod anonymous;
mod choices;
mod lock;
mod refusals;
