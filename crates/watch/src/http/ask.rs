// SPDX-License-Identifier: Apache-2.0
//! The client of the control socket: one request, one answer.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// A running server sends the first bytes of an answer within this time, for every order.
const SILENCE: Duration = Duration::from_secs(2);
/// The status of an answer whose final status comes in its body ([`super::Answer::Order`]).
const PROMISED: u16 = 202;
/// Limit on an answer, which is a few lines.
const MAX_ANSWER: usize = 1 << 20;

/// Sends `METHOD path` with a body and returns the status and the body of the answer. The answer must start within two
/// seconds and be complete within `patience`.
///
/// # Errors
/// No server listens, it does not speak HTTP, or it takes longer (`TimedOut`).
pub fn ask(
    socket: &Path,
    method: &str,
    path: &str,
    body: &str,
    patience: Duration,
) -> io::Result<(u16, String)> {
    let started = Instant::now();
    let mut stream = connected(socket)?;
    stream.set_write_timeout(Some(SILENCE))?;
    // HTTP/1.0: the answer ends with the connection, without chunks.
    let length = body.len();
    write!(stream, "{method} {path} HTTP/1.0\r\nHost: wallprof\r\nContent-Length: {length}\r\n\r\n{body}")?;
    let answer = read(&mut stream, started + patience.min(SILENCE), started + patience)?;
    parse(&String::from_utf8_lossy(&answer)).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Connects without waiting for a server whose backlog is full.
fn connected(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Reads the first bytes until `first`, the rest until `last`.
fn read(stream: &mut UnixStream, first: Instant, last: Instant) -> io::Result<Vec<u8>> {
    let mut answer = Vec::new();
    let mut bytes = [0; 4096];
    loop {
        let until = if answer.is_empty() { first } else { last };
        let rest = until.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(rest))?;
        match stream.read(&mut bytes) {
            Ok(0) => return Ok(answer),
            Ok(_) if answer.len() >= MAX_ANSWER => return Err(io::ErrorKind::InvalidData.into()),
            Ok(count) => answer.extend_from_slice(&bytes[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn parse(answer: &str) -> Option<(u16, String)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let version = head.strip_prefix("HTTP/1.0 ").or_else(|| head.strip_prefix("HTTP/1.1 "))?;
    let status = version.split(' ').next()?.parse().ok()?;
    if status != PROMISED {
        return Some((status, body.to_string()));
    }
    let (status, body) = body.split_once(' ')?;
    Some((status.parse().ok()?, body.to_string()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    const SHORT: Duration = Duration::from_millis(50);

    #[test]
    fn answers_are_read() {
        assert_eq!(parse("HTTP/1.1 404 Not Found\r\na: b\r\n\r\nno\n"), Some((404, "no\n".into())));
        assert_eq!(parse("HTTP/1.0 202 Accepted\r\n\r\n429 later\n"), Some((429, "later\n".into())));
        for garbage in [
            "",
            "HTTP/1.0 202 Accepted\r\n\r\n",
            "HTTP/1.0 202 Accepted\r\n\r\nx y",
            "HTTP/1.1 200 OK\r\n",
            "SSH-2.0\r\n\r\n",
            "HTTP/1.1 x y\r\n\r\n",
        ] {
            assert_eq!(parse(garbage), None, "{garbage}");
        }
    }

    #[test]
    fn missing_server_is_an_error() {
        assert!(ask("/nonexistent/socket".as_ref(), "GET", "/status", "", SHORT).is_err());
    }

    #[test]
    fn server_that_is_silent_or_endless_is_given_up() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).expect("a socket");
        let silent = ask(&path, "GET", "/status", "", SHORT).expect_err("no answer");
        assert!(matches!(silent.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock), "{silent}");
        let endless = std::thread::spawn(move || {
            // The first client is the one that gave up.
            for _ in 0..2 {
                let (mut stream, _) = listener.accept().expect("a client");
                while stream.write_all(&[b'x'; 65_536]).is_ok() {}
            }
        });
        let error = ask(&path, "GET", "/status", "", Duration::from_secs(60)).expect_err("no answer");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        endless.join().expect("both clients are gone");
    }
}
