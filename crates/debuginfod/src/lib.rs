//! Debug files from debuginfod servers: asked for by build id on a thread of their own, and kept in the
//! cache that elfutils and gdb use.
//!
//! [`Settings`] are read from the environment that `debuginfod-find(1)` describes. [`Downloads`] takes
//! build ids and never makes its caller wait, unless asked to for a bounded time. What a server sends is
//! foreign: it is bounded in bytes and time, and kept only if it has the build id that was asked for. The
//! one home of HTTP and TLS.

mod cache;
mod certificates;
mod downloads;
mod limits;
mod server;
mod settings;

pub use downloads::{Downloads, Outcome};
pub use limits::Limits;
pub use settings::Settings;
