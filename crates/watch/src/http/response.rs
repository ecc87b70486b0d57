//! An answer: status, type and bytes, and the head they travel under.

use std::sync::Arc;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    pub content_type: &'static str,
    pub body: Arc<[u8]>,
}

impl Response {
    pub fn new(content_type: &'static str, body: impl Into<Arc<[u8]>>) -> Self {
        Response { status: 200, content_type, body: body.into() }
    }

    /// One line of text.
    pub fn line(status: u16, text: impl std::fmt::Display) -> Self {
        let body = format!("{text}\n").into_bytes().into();
        Response { status, content_type: "text/plain; charset=utf-8", body }
    }

    /// The head with the empty line that ends it. Nothing here is to be kept by caches, framed by other sites or run.
    pub fn head(&self, close: bool) -> Vec<u8> {
        let connection = if close { "close" } else { "keep-alive" };
        format!(
            "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: {connection}\r\n\
             Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nX-Frame-Options: DENY\r\n\r\n",
            self.status,
            phrase(self.status),
            self.content_type,
            self.body.len(),
        )
        .into_bytes()
    }
}

fn phrase(status: u16) -> &'static str {
    match status {
        200 => "OK",
        202 => "Accepted",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        413 => "Content Too Large",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        505 => "HTTP Version Not Supported",
        _ => "Internal Server Error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_says_how_long_the_body_is() {
        let head = String::from_utf8(Response::line(404, "not here").head(true)).expect("text");
        assert!(head.starts_with("HTTP/1.1 404 Not Found\r\n") && head.ends_with("\r\n\r\n"));
        assert!(head.contains("Content-Length: 9\r\n") && head.contains("Connection: close\r\n"));
    }
}
