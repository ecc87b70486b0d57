//! One client from its first byte to its last: what it sent, what it is owed, and until when it may take.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use super::listener::Stream;
use super::request::{Client, Head, Method, Request, head_from_bytes};
use super::response::Response;

/// A request must be there whole this long after its first byte, or after the client came.
const HEAD_TIME: Duration = Duration::from_secs(5);
/// Scrapers keep their connection for the next scrape.
const IDLE_TIME: Duration = Duration::from_secs(120);
/// An answer must be taken within this time.
const WRITE_TIME: Duration = Duration::from_secs(20);
/// A page that is made must be ready by then.
const WORK_TIME: Duration = Duration::from_secs(60);
/// Bytes read at a time; what a client may have sent ahead is bounded by a request with its body and one of these.
const READ_BYTES: usize = 4096;

enum State {
    /// The client's turn to send.
    Reading,
    /// Its answer is being made.
    Working {
        head_only: bool,
        close: bool,
    },
    Writing {
        head: Vec<u8>,
        body: Arc<[u8]>,
        at: usize,
        close: bool,
    },
    Closed,
}

pub(super) struct Connection {
    stream: Stream,
    client: Client,
    received: Vec<u8>,
    /// Of a body that is passed over.
    skip: usize,
    state: State,
    deadline: Instant,
    /// Between requests: the first to go when room is needed.
    idle: bool,
}

impl Connection {
    pub fn new(stream: Stream, client: Client, now: Instant) -> Self {
        let deadline = now + HEAD_TIME;
        let (received, state) = (Vec::new(), State::Reading);
        Connection { stream, client, received, skip: 0, state, deadline, idle: false }
    }

    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    pub fn is_idle(&self) -> bool {
        self.idle
    }

    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// What to wait for. While an answer is made only its end is of interest, which poll tells by itself.
    pub fn interest(&self) -> PollFlags {
        match self.state {
            State::Reading => PollFlags::IN,
            State::Writing { .. } => PollFlags::OUT,
            State::Working { .. } | State::Closed => PollFlags::empty(),
        }
    }

    /// Closes a connection whose time is over.
    pub fn expire(&mut self, now: Instant) {
        if now >= self.deadline {
            self.state = State::Closed;
        }
    }

    /// Moves on as far as the descriptor allows; a request that came whole is handed out, and waits for its answer.
    pub fn proceed(&mut self, ready: PollFlags, now: Instant) -> Option<Request> {
        match self.state {
            State::Reading if !ready.is_empty() => self.read(now),
            State::Writing { .. } if !ready.is_empty() => {
                self.write(now);
                self.next_request(now)
            }
            State::Working { .. } if ready.intersects(PollFlags::ERR | PollFlags::HUP) => {
                self.state = State::Closed;
                None
            }
            _ => None,
        }
    }

    /// The answer to the request that was handed out.
    pub fn answer(&mut self, response: Response, now: Instant) {
        let State::Working { head_only, close } = self.state else { return };
        self.respond(response, head_only, close, now);
    }

    fn respond(&mut self, response: Response, head_only: bool, close: bool, now: Instant) {
        let head = response.head(close);
        let body = if head_only { Arc::default() } else { response.body };
        self.state = State::Writing { head, body, at: 0, close };
        self.deadline = now + WRITE_TIME;
        self.write(now);
    }

    fn read(&mut self, now: Instant) -> Option<Request> {
        let mut bytes = [0; READ_BYTES];
        match self.stream.read(&mut bytes) {
            Ok(0) => self.state = State::Closed,
            Ok(count) => self.take(&bytes[..count], now),
            Err(error) if is_temporary(error.kind()) => {}
            Err(_) => self.state = State::Closed,
        }
        self.next_request(now)
    }

    fn take(&mut self, bytes: &[u8], now: Instant) {
        let skipped = self.skip.min(bytes.len());
        self.skip -= skipped;
        if self.idle && skipped < bytes.len() {
            self.idle = false;
            self.deadline = now + HEAD_TIME;
        }
        self.received.extend_from_slice(&bytes[skipped..]);
    }

    /// The request that the client had sent ahead.
    pub fn next_request(&mut self, now: Instant) -> Option<Request> {
        if !matches!(self.state, State::Reading) || self.received.is_empty() {
            return None;
        }
        match head_from_bytes(&self.received, self.client) {
            Head::Incomplete => None,
            Head::Refused(status) => {
                self.received.clear();
                self.state = State::Working { head_only: false, close: true };
                self.answer(Response::line(status, "this request cannot be answered"), now);
                None
            }
            Head::Complete { request, bytes } => {
                self.skip = bytes.saturating_sub(self.received.len());
                self.received.drain(..bytes.min(self.received.len()));
                self.idle = false;
                let head_only = request.method == Method::Head;
                self.state = State::Working { head_only, close: request.close };
                self.deadline = now + WORK_TIME;
                Some(request)
            }
        }
    }

    fn write(&mut self, now: Instant) {
        while let State::Writing { head, body, at, close } = &mut self.state {
            let rest = match head.get(*at..) {
                Some(rest) if !rest.is_empty() => rest,
                _ => &body[(*at - head.len()).min(body.len())..],
            };
            if rest.is_empty() {
                self.state = if *close { State::Closed } else { State::Reading };
                self.idle = true;
                self.deadline = now + if self.received.is_empty() { IDLE_TIME } else { HEAD_TIME };
                return;
            }
            match self.stream.write(rest) {
                Ok(count) if count > 0 => *at += count,
                Err(error) if is_temporary(error.kind()) => return,
                _ => self.state = State::Closed,
            }
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

fn is_temporary(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    struct Pair {
        theirs: UnixStream,
        connection: Connection,
        now: Instant,
    }

    fn pair() -> Pair {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        ours.set_nonblocking(true).expect("a socket");
        theirs.set_nonblocking(true).expect("a socket");
        let now = Instant::now();
        Pair { theirs, connection: Connection::new(Stream::Unix(ours), Client::Control, now), now }
    }

    impl Pair {
        fn send(&mut self, bytes: &[u8]) -> Option<Request> {
            self.theirs.write_all(bytes).expect("room");
            self.connection.proceed(PollFlags::IN, self.now)
        }

        fn answer(&mut self, text: &str) {
            self.connection.answer(Response::line(200, text), self.now);
        }

        fn received(&mut self) -> String {
            let mut bytes = vec![0; 65_536];
            let count = self.theirs.read(&mut bytes).unwrap_or(0);
            String::from_utf8_lossy(&bytes[..count]).into_owned()
        }
    }

    #[test]
    fn one_connection_carries_many_requests() {
        let mut pair = pair();
        for _ in 0..3 {
            assert_eq!(pair.send(b"GET /a HTTP/1.1\r\n\r\n").expect("a request").path, "/a");
            pair.answer("yes");
            assert!(pair.received().ends_with("\r\n\r\nyes\n"));
            assert!(pair.connection.is_idle());
        }
    }

    #[test]
    fn requests_sent_at_once_are_answered_one_by_one() {
        let mut pair = pair();
        let two = b"POST /a HTTP/1.1\r\nContent-Length: 3\r\n\r\nxyzGET /b HTTP/1.1\r\n\r\n";
        assert_eq!(pair.send(two).expect("the first").path, "/a");
        pair.answer("one");
        let second = pair.connection.proceed(PollFlags::OUT, pair.now);
        let second = second.or_else(|| pair.connection.next_request(pair.now));
        assert_eq!(second.expect("the second").path, "/b");
    }

    #[test]
    fn a_body_that_comes_late_is_passed_over() {
        let mut pair = pair();
        assert!(pair.send(b"POST /a HTTP/1.1\r\nContent-Length: 5\r\n\r\nx").is_some());
        pair.answer("one");
        assert_eq!(pair.send(b"yzzzGET /b HTTP/1.1\r\n\r\n").expect("the second").path, "/b");
    }

    #[test]
    fn slow_and_half_open_clients_run_out_of_time() {
        let mut pair = pair();
        assert!(pair.send(b"GET / HT").is_none());
        let now = pair.now;
        pair.connection.expire(now + HEAD_TIME - Duration::from_millis(1));
        assert!(!pair.connection.is_closed());
        pair.connection.expire(now + HEAD_TIME);
        assert!(pair.connection.is_closed());
    }

    #[test]
    fn bytes_one_by_one_do_not_buy_time() {
        let mut pair = pair();
        let deadline = pair.connection.deadline();
        for byte in b"GET / HTTP/1.1\r\n" {
            pair.now += Duration::from_millis(100);
            assert!(pair.send(&[*byte]).is_none());
        }
        assert_eq!(pair.connection.deadline(), deadline);
    }

    #[test]
    fn garbage_gets_an_answer_and_the_door() {
        let mut pair = pair();
        assert!(pair.send(b"\x16\x03\x01\x02\r\n\r\n").is_none());
        assert!(pair.received().starts_with("HTTP/1.1 400 "));
        assert!(pair.connection.is_closed());
    }

    #[test]
    fn a_client_that_takes_nothing_is_let_go() {
        let mut pair = pair();
        pair.send(b"GET / HTTP/1.1\r\n\r\n").expect("a request");
        let body: Arc<[u8]> = vec![b'x'; 4 << 20].into();
        pair.connection.answer(Response::new("text/plain", body), pair.now);
        assert!(!pair.connection.is_closed() && !pair.connection.is_idle());
        pair.connection.expire(pair.now + WRITE_TIME);
        assert!(pair.connection.is_closed());
    }

    #[test]
    fn who_asks_for_the_head_gets_no_body() {
        let mut pair = pair();
        pair.send(b"HEAD / HTTP/1.1\r\n\r\n").expect("a request");
        pair.answer("yes");
        let received = pair.received();
        assert!(received.contains("Content-Length: 4") && received.ends_with("\r\n\r\n"));
    }
}
