// SPDX-License-Identifier: Apache-2.0
//! The request that is answered, and whether a page of another site sent it. Pure.

use std::net::{Ipv4Addr, Ipv6Addr};

use hyper::header::{CONTENT_LENGTH, HOST, HeaderMap, HeaderName, ORIGIN, TRANSFER_ENCODING};
use hyper::http::request::Parts;

/// Limit on the head of a request.
pub const MAX_HEAD_BYTES: usize = 8 * 1024;
/// Limit on the body of a request.
pub const MAX_BODY_BYTES: u64 = 64 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Get,
    Head,
    Post,
}

/// The kind of client, by its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// Over TCP: any client that reaches the port.
    Network,
    /// Over the control socket, whose permissions allow the client.
    Control,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub client: Client,
    pub method: Method,
    /// Without the query.
    pub path: String,
    /// Sent by a page of another site, or to a host name that this server does not have (DNS rebinding). A
    /// browser lets such a page send the request and, with such a name, read the answer.
    pub foreign: bool,
    /// Of a POST.
    pub body: String,
}

/// The names of this server, besides `localhost` and every IP address. A page of another site can make its
/// own host name resolve to this machine, but not an address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostNames(Vec<String>);

impl HostNames {
    pub fn new(names: impl IntoIterator<Item = String>) -> Self {
        HostNames(names.into_iter().collect())
    }

    /// Whether a `Host` header, with or without a port, names this server.
    fn has(&self, host: &str) -> bool {
        let name = without_port(host);
        let is_address = name.parse::<Ipv4Addr>().is_ok()
            || name
                .strip_prefix('[')
                .and_then(|rest| rest.strip_suffix(']'))
                .is_some_and(|inside| inside.parse::<Ipv6Addr>().is_ok());
        is_address
            || name.eq_ignore_ascii_case("localhost")
            || self.0.iter().any(|known| known.eq_ignore_ascii_case(name))
    }
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// The request, or the status of a refusal.
pub(super) fn request_from_parts(parts: &Parts, client: Client, hosts: &HostNames) -> Result<Request, u16> {
    let method = match parts.method {
        hyper::Method::GET => Method::Get,
        hyper::Method::HEAD => Method::Head,
        hyper::Method::POST => Method::Post,
        _ => return Err(501),
    };
    let headers = &parts.headers;
    if headers.contains_key(TRANSFER_ENCODING) {
        return Err(501);
    }
    if text(headers, &CONTENT_LENGTH)?
        .is_some_and(|length| !length.parse().is_ok_and(|n: u64| n <= MAX_BODY_BYTES))
    {
        return Err(413);
    }
    let named = parts.uri.authority().map(|authority| authority.as_str());
    let foreign = client == Client::Network && is_foreign(headers, named, hosts)?;
    Ok(Request { client, method, path: parts.uri.path().to_owned(), foreign, body: String::new() })
}

fn is_foreign(headers: &HeaderMap, named: Option<&str>, hosts: &HostNames) -> Result<bool, u16> {
    let host = text(headers, &HOST)?;
    // A request without a host name does not come from a browser.
    if host.into_iter().chain(named).any(|host| !hosts.has(host)) {
        return Ok(true);
    }
    let site = HeaderName::from_static("sec-fetch-site");
    if text(headers, &site)?.is_some_and(|site| site.eq_ignore_ascii_case("cross-site")) {
        return Ok(true);
    }
    let origin = text(headers, &ORIGIN)?;
    Ok(origin.is_some_and(|origin| origin.strip_prefix("http://") != host.or(named)))
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, u16> {
    headers.get(name).map(|value| value.to_str().map_err(|_| 400)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(client: Client, method: &str, target: &str, headers: &[(&str, &str)]) -> Result<Request, u16> {
        let mut builder = hyper::Request::builder().method(method).uri(target);
        for (name, value) in headers {
            builder = builder.header(*name, *value);
        }
        let (parts, ()) = builder.body(()).expect("a request").into_parts();
        request_from_parts(&parts, client, &HostNames::new(["db1.example".to_string()]))
    }

    fn foreign(headers: &[(&str, &str)]) -> bool {
        asked(Client::Network, "POST", "/snapshot", headers).expect("a request").foreign
    }

    #[test]
    fn requests_are_read() {
        let scrape = asked(Client::Network, "GET", "/metrics?x=1", &[("Host", "127.0.0.1:9101")]).unwrap();
        assert_eq!((scrape.method, scrape.path.as_str(), scrape.foreign), (Method::Get, "/metrics", false));
        assert_eq!(asked(Client::Network, "DELETE", "/", &[]), Err(501));
        assert_eq!(asked(Client::Network, "POST", "/", &[("Content-Length", "70000")]), Err(413));
        assert_eq!(asked(Client::Network, "POST", "/", &[("Transfer-Encoding", "chunked")]), Err(501));
    }

    #[test]
    fn names_of_this_server_and_addresses_are_served() {
        for host in [
            "localhost",
            "LOCALHOST:9101",
            "127.0.0.1",
            "127.9.9.9:80",
            "[::1]:9101",
            "[fe80::1]",
            "192.0.2.7:9101",
            "db1.example",
            "DB1.example:9101",
        ] {
            assert!(!foreign(&[("Host", host)]), "{host}");
        }
        assert!(!foreign(&[]), "HTTP/1.0");
    }

    #[test]
    fn other_names_are_foreign() {
        for host in
            ["evil.example", "evil.example:9101", "127.0.0.1.evil.example", "[::1", "", "localhost.evil"]
        {
            assert!(foreign(&[("Host", host)]), "{host}");
        }
        let rebound = asked(Client::Network, "GET", "http://evil.example/metrics", &[("Host", "127.0.0.1")]);
        assert!(rebound.unwrap().foreign);
        let control = asked(Client::Control, "POST", "/arm", &[("Host", "wallprof")]).unwrap();
        assert!(!control.foreign, "the socket's permissions allow it");
    }

    #[test]
    fn pages_of_other_sites_are_foreign() {
        let from = |header: (&str, &str)| foreign(&[("Host", "127.0.0.1:1"), header]);
        assert!(from(("Origin", "http://evil")) && from(("Origin", "null")));
        assert!(from(("Origin", "https://127.0.0.1:1")), "another scheme than this server's");
        assert!(from(("Sec-Fetch-Site", "cross-site")));
        assert!(!from(("Origin", "http://127.0.0.1:1")) && !from(("Sec-Fetch-Site", "same-origin")));
    }
}
