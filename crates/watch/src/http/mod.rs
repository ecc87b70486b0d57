//! HTTP for scrapers, browsers and `wallprof ctl`, by hyper, and the few lines of a client that ctl needs.
//!
//! What is here is policy: how many connections each kind of client may hold and which one goes first (`places`), how
//! long each step may take (`activity` notes them), which requests come from a page of another site (`request`). Bodies
//! of requests are not read.

mod activity;
mod ask;
mod listener;
mod places;
mod request;
mod response;
mod server;

pub use ask::ask;
pub use listener::{ListenError, Listener};
pub use request::{Client, HostNames, MAX_HEAD_BYTES, Method, Request};
pub use response::Response;
pub use server::{Answer, Server, Site};
