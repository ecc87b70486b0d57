// SPDX-License-Identifier: Apache-2.0
//! Debug files from debuginfod servers: a thread requests them by build id and keeps them in the cache that
//! elfutils and gdb use.
//!
//! [`Settings`] are read from the environment variables of `debuginfod-find(1)`. [`Downloads`] takes build ids
//! and does not block, except in its waiting functions, which have a limit. An answer is foreign: it is bounded
//! in bytes and time, and kept only if it has the requested build id. This crate is the one home of HTTP clients
//! and TLS.

mod cache;
mod certificates;
mod downloads;
mod limits;
mod server;
mod settings;

pub use downloads::{Downloads, Outcome};
pub use limits::Limits;
pub use settings::Settings;
