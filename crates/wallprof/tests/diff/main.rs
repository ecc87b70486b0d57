//! `wallprof diff` as users run it: on files that cannot be compared, on recordings written for the purpose,
//! and on the lock scenario, recorded for real.

mod lock;
mod program;
mod refusals;
mod written;
