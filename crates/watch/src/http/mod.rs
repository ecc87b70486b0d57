//! A small HTTP/1.1 server for scrapers, browsers and `wallprof ctl`, and the few lines of a client that ctl needs.
//!
//! Written here because what matters is what it refuses: everything that a client can make it hold has a bound, and
//! every wait an end. It serves text that others made; bodies of requests are passed over.

mod ask;
mod connection;
mod listener;
mod request;
mod response;
mod server;

pub use ask::ask;
pub use listener::{ListenError, Listener};
pub use request::{Client, MAX_HEAD_BYTES, Method, Request};
pub use response::Response;
pub use server::{Answer, Server, Site};
