//! Asking a watcher over its control socket: one request, one answer.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// A snapshot is written in this time.
const PATIENCE: Duration = Duration::from_secs(90);
/// An answer is a line or a few.
const MAX_ANSWER: u64 = 1 << 20;

/// Sends `METHOD path`; the status of the answer and its body.
///
/// # Errors
/// Nobody is there, or what is there speaks something else.
pub fn ask(socket: &Path, method: &str, path: &str) -> io::Result<(u16, String)> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: wallprof\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut answer)?;
    parse(&String::from_utf8_lossy(&answer)).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn parse(answer: &str) -> Option<(u16, String)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.1 ")?.split(' ').next()?.parse().ok()?;
    Some((status, body.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read() {
        assert_eq!(parse("HTTP/1.1 404 Not Found\r\na: b\r\n\r\nno\n"), Some((404, "no\n".into())));
        for garbage in ["", "HTTP/1.1 200 OK\r\n", "SSH-2.0\r\n\r\n", "HTTP/1.1 x y\r\n\r\n"] {
            assert_eq!(parse(garbage), None, "{garbage}");
        }
    }

    #[test]
    fn nobody_there_is_an_error() {
        assert!(ask("/nonexistent/socket".as_ref(), "GET", "/status").is_err());
    }
}
