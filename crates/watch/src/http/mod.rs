// SPDX-License-Identifier: Apache-2.0
//! HTTP for scrapers, browsers and `wallprof ctl`, by hyper, and the few lines of a client that ctl needs.
//!
//! This module is policy. `slots` limits the connections of each kind of client, the time of each step, and
//! decides which connection is closed first. `activity` watches the steps. `request` detects requests from
//! pages of other sites. Bodies of requests are not read.

mod activity;
mod ask;
mod listener;
mod request;
mod response;
mod server;
mod slots;

pub use ask::ask;
pub use listener::{ListenError, Listener};
pub use request::{Client, HostNames, MAX_HEAD_BYTES, Method, Request};
pub use response::Response;
pub use server::{Answer, Server, Site};
