// SPDX-License-Identifier: Apache-2.0
//! One request to one server: downloads the debug file of a build id.

use std::fmt;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::Instant;

use ureq::http::StatusCode;
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, Error};
use wallprof_symbols::hex_build_id;

use crate::limits::Limits;

const PART: usize = 64 << 10;
/// A server that has sent less than this within `Limits::silence` is too slow, as in elfutils.
const MIN_FIRST_BYTES: u64 = 100 << 10;

/// Why a server's answer is not used.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The server does not have it.
    Missing,
    /// The server is not asked again: it cannot be reached, or does not answer.
    Unreachable(String),
    /// This answer cannot be used; other answers of the server may be sound.
    Unusable(String),
    /// The caller has stopped.
    Stopped,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Missing => write!(f, "the server does not have it"),
            Refusal::Unreachable(why) | Refusal::Unusable(why) => write!(f, "{why}"),
            Refusal::Stopped => write!(f, "stopped"),
        }
    }
}

/// An HTTP client that keeps connections between requests.
pub(crate) struct Client {
    agent: Agent,
    limits: Limits,
}

impl Client {
    pub(crate) fn new(limits: Limits, trusted: Vec<Certificate<'static>>) -> Self {
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::from(trusted))
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .build();
        let agent = Agent::config_builder()
            .user_agent(concat!("wallprof/", env!("CARGO_PKG_VERSION")))
            .http_status_as_error(false)
            .tls_config(tls)
            .max_redirects(5)
            .timeout_resolve(Some(limits.silence))
            .timeout_connect(Some(limits.silence))
            .timeout_recv_response(Some(limits.silence))
            .timeout_per_read(Some(limits.silence))
            .timeout_global(Some(limits.file_time))
            .build();
        Client { agent: agent.into(), limits }
    }

    /// Writes the file into `out`, at most `left` bytes, and adds the bytes that arrive to `received`.
    /// `stopped` is called between two parts.
    pub(crate) fn fetch(
        &self,
        server: &str,
        build_id: &[u8],
        left: u64,
        (out, received): (&mut dyn Write, &mut u64),
        stopped: &dyn Fn() -> bool,
    ) -> Result<(), Refusal> {
        let limit = self.limits.file_bytes.min(left);
        let url = format!("{server}/{}/debuginfo", hex_build_id(build_id));
        let started = Instant::now();
        let request = self.agent.get(&url).header("X-DEBUGINFOD-MAXSIZE", limit.to_string());
        let mut response = request.call().map_err(refusal_from_error)?;
        match response.status() {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND => return Err(Refusal::Missing),
            status => return Err(Refusal::Unusable(format!("the server answers {status}"))),
        }
        if response.body().content_length().is_some_and(|length| length > limit) {
            return Err(too_large(limit));
        }
        let mut body = response.body_mut().as_reader();
        let mut part = vec![0; PART];
        loop {
            if stopped() {
                return Err(Refusal::Stopped);
            }
            let count = body.read(&mut part).map_err(refusal_from_body)?;
            *received += count as u64;
            match count {
                0 => return Ok(()),
                _ if *received > limit => return Err(too_large(limit)),
                _ if *received < MIN_FIRST_BYTES && started.elapsed() > self.limits.silence => {
                    return Err(Refusal::Unreachable("the answer comes too slowly".into()));
                }
                _ => {}
            }
            let written = out.write_all(&part[..count]);
            written.map_err(|error| Refusal::Unusable(format!("it cannot be stored: {error}")))?;
        }
    }
}

fn too_large(limit: u64) -> Refusal {
    Refusal::Unusable(format!("the file is larger than {} MiB", limit >> 20))
}

fn refusal_from_error(error: Error) -> Refusal {
    match error {
        Error::TooManyRedirects | Error::RedirectFailed => Refusal::Unusable(error.to_string()),
        Error::Timeout(_) => Refusal::Unreachable("no answer came in time".into()),
        error => Refusal::Unreachable(error.to_string()),
    }
}

/// An answer that ends early.
fn refusal_from_body(error: io::Error) -> Refusal {
    match error.kind() {
        io::ErrorKind::TimedOut => Refusal::Unreachable("the answer did not end in time".into()),
        _ => Refusal::Unusable(format!("the answer ended early: {error}")),
    }
}
