// SPDX-License-Identifier: Apache-2.0
//! `wallprof flame` and `wallprof export` as users run them: on a recording written for the purpose, on
//! impossible files and options, and on the lock scenario, recorded for real.

mod fixture;

mod anonymous;
mod choices;
mod lock;
mod refusals;
mod tables;
