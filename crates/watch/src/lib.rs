// SPDX-License-Identifier: Apache-2.0
//! The always-on monitor without probes and recording: metrics from events, their text, the HTTP server that
//! serves it, configuration, control, the hours of measuring, and the budget of CPU time.

mod budget;
mod config;
mod durations;
mod exposition;
mod flush_interval;
mod http;
mod idleness;
mod metrics;
mod notify;
mod open;
mod openmetrics;
mod page;
mod schedule;
mod series;
mod severity;

pub use budget::{Budget, Pace};
pub use config::{Config, ConfigError, Entry};
pub use exposition::{Exposition, NAMES};
pub use flush_interval::{Activity, FlushInterval};
pub use http::{
    Answer, Client, HostNames, ListenError, Listener, MAX_HEAD_BYTES, Method, Request, Response, Server,
    Site, ask,
};
pub use metrics::Metrics;
pub use notify::{Notice, Notifier};
pub use openmetrics::CONTENT_TYPE;
pub use page::{Page, page};
pub use schedule::{Hours, HoursError, Schedule};
pub use series::OTHERS;
pub use severity::{Severities, SeverityError};
