// SPDX-License-Identifier: Apache-2.0
//! `wallprof diff`, `runs` and `check` as users run them: on files that cannot be compared, on recordings written
//! for the purpose, and on the lock scenario, recorded for real.

mod lock;
mod program;
mod refusals;
mod runs;
mod written;
