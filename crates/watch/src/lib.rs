//! What the always-on monitor says and obeys, apart from recording: events become metrics, metrics become text, a
//! small HTTP server hands the text out; configuration, control, the hours in which to be armed, and the budget.
//!
//! Owns no probes and no recording: events come in, answers go out.

mod budget;
mod config;
mod exposition;
mod http;
mod metrics;
mod notify;
mod open;
mod openmetrics;
mod page;
mod quiet;
mod schedule;
mod series;
mod severity;

pub use budget::{Budget, Pace};
pub use config::{Config, ConfigError, Entry};
pub use exposition::Exposition;
pub use http::{
    Answer, Client, HostNames, ListenError, Listener, MAX_HEAD_BYTES, Method, Request, Response, Server,
    Site, ask,
};
pub use metrics::{Metrics, NAMES};
pub use notify::{Notice, Notifier};
pub use openmetrics::CONTENT_TYPE;
pub use page::{Page, page};
pub use quiet::{Activity, Quiet};
pub use schedule::{Hours, HoursError, Schedule};
pub use series::OTHERS;
pub use severity::{Severities, SeverityError};
