//! The head of a request: from bytes that anyone may have sent to what is asked for.
//!
//! Pure. RFC 9112, as far as a server needs it that looks at no body: a body's length is needed to find the next request.

/// A longer head is refused.
pub const MAX_HEAD_BYTES: usize = 8 * 1024;
/// A longer body is refused; shorter ones are passed over.
const MAX_BODY_BYTES: usize = 64 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Get,
    Head,
    Post,
}

/// Who asks, by the way they came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// Over TCP: anyone who reaches the port.
    Network,
    /// Over the control socket, whose permissions have let them in.
    Control,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub client: Client,
    pub method: Method,
    /// Without the query.
    pub path: String,
    /// Sent by a page of another site, which a browser lets send but not read.
    pub foreign: bool,
    /// The connection ends with the answer.
    pub close: bool,
}

/// What the bytes so far are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Head {
    /// More must come.
    Incomplete,
    /// A request; `bytes` of it, the body included.
    Complete { request: Request, bytes: usize },
    /// No request that is answered: the status to say so with.
    Refused(u16),
}

/// Reads the request that `bytes` begin with.
pub fn head_from_bytes(bytes: &[u8], client: Client) -> Head {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
    let Some(end) = end.filter(|end| *end <= MAX_HEAD_BYTES) else {
        return match bytes.len() > MAX_HEAD_BYTES {
            true => Head::Refused(431),
            false => Head::Incomplete,
        };
    };
    match std::str::from_utf8(&bytes[..end]).map_err(|_| 400).and_then(|text| request(text, client)) {
        Ok((request, body)) => Head::Complete { request, bytes: end + 4 + body },
        Err(status) => Head::Refused(status),
    }
}

/// The request and the length of its body.
fn request(text: &str, client: Client) -> Result<(Request, usize), u16> {
    let mut lines = text.split("\r\n");
    let (method, target, http_1_0) = request_line(lines.next().unwrap_or_default())?;
    let path = target.split(['?', '#']).next().unwrap_or_default().to_string();
    let mut request = Request { client, method, path, foreign: false, close: http_1_0 };
    let (mut body, mut host, mut origin) = (0, None, None);
    for line in lines {
        let (name, value) = line.split_once(':').ok_or(400u16)?;
        let value = value.trim();
        match name.to_ascii_lowercase().as_str() {
            "content-length" => body = body_length(value)?,
            "transfer-encoding" => return Err(501),
            "connection" if value.eq_ignore_ascii_case("close") => request.close = true,
            "host" => host = Some(value),
            "origin" => origin = Some(value),
            "sec-fetch-site" if value.eq_ignore_ascii_case("cross-site") => request.foreign = true,
            _ => {}
        }
    }
    request.foreign |= origin.is_some_and(|origin| origin.split_once("://").map(|(_, host)| host) != host);
    Ok((request, body))
}

fn request_line(line: &str) -> Result<(Method, &str, bool), u16> {
    let mut words = line.split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(400);
    };
    let http_1_0 = match version {
        "HTTP/1.1" => false,
        "HTTP/1.0" => true,
        _ => return Err(505),
    };
    let method = match method {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        "POST" => Method::Post,
        _ => return Err(501),
    };
    match target.starts_with('/') && target.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok((method, target, http_1_0)),
        false => Err(400),
    }
}

fn body_length(value: &str) -> Result<usize, u16> {
    let length: usize = value.parse().map_err(|_| 400u16)?;
    if length <= MAX_BODY_BYTES { Ok(length) } else { Err(413) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn head(text: &str) -> Head {
        head_from_bytes(text.as_bytes(), Client::Network)
    }

    fn complete(text: &str) -> Request {
        match head(text) {
            Head::Complete { request, bytes } => {
                assert_eq!(bytes, text.len());
                request
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn requests_are_read() {
        let scrape = complete("GET /metrics?x=1 HTTP/1.1\r\nHost: a:9101\r\n\r\n");
        assert_eq!((scrape.method, scrape.path.as_str(), scrape.close), (Method::Get, "/metrics", false));
        assert!(complete("GET / HTTP/1.0\r\n\r\n").close);
        assert!(complete("GET / HTTP/1.1\r\nConnection: Close\r\n\r\n").close);
        let posted = complete("POST /snapshot HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc");
        assert_eq!((posted.method, posted.path.as_str()), (Method::Post, "/snapshot"));
    }

    #[test]
    fn pages_of_other_sites_are_foreign() {
        let foreign =
            |header: &str| complete(&format!("POST / HTTP/1.1\r\nHost: a:1\r\n{header}\r\n\r\n")).foreign;
        assert!(foreign("Origin: http://evil") && foreign("Origin: null"));
        assert!(foreign("Sec-Fetch-Site: cross-site"));
        assert!(!foreign("Origin: http://a:1") && !foreign("Sec-Fetch-Site: same-origin"));
    }

    #[test]
    fn garbage_is_refused_by_its_kind() {
        for (text, status) in [
            ("\x16\x03\x01\r\n\r\n", 400),
            ("GET\r\n\r\n", 400),
            ("GET / HTTP/1.1 x\r\n\r\n", 400),
            ("GET metrics HTTP/1.1\r\n\r\n", 400),
            ("GET /\x01 HTTP/1.1\r\n\r\n", 400),
            ("GET / HTTP/2.0\r\n\r\n", 505),
            ("BREW / HTTP/1.1\r\n\r\n", 501),
            ("GET / HTTP/1.1\r\nnonsense\r\n\r\n", 400),
            ("POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
            ("POST / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n", 413),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 501),
        ] {
            assert_eq!(head(text), Head::Refused(status), "{text:?}");
        }
    }

    #[test]
    fn a_head_has_a_bound() {
        let endless = format!("GET / HTTP/1.1\r\nx: {}", "y".repeat(MAX_HEAD_BYTES));
        assert_eq!(head(&endless), Head::Refused(431));
        assert_eq!(head(&format!("{endless}\r\n\r\n")), Head::Refused(431));
        assert_eq!(head("GET / HTTP/1.1\r\n"), Head::Incomplete);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = head_from_bytes(&bytes, Client::Network);
        }

        /// However a request is cut, it is incomplete until its last byte is there.
        #[test]
        fn cuts_do_not_matter(cut in 0usize..34) {
            let text = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n";
            prop_assert_eq!(head_from_bytes(&text[..cut], Client::Network), Head::Incomplete);
        }
    }
}
