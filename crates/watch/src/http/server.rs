//! Clients and their turns: one thread waits for all of them, one more makes the pages that take long.
//!
//! Neither is the recorder's: it loses nothing to clients but the lock of the metrics while a text is rendered, once a
//! second at most.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::connection::Connection;
use super::listener::Listener;
use super::request::Request;
use super::response::Response;

/// Connections held at a time.
const MOST_CLIENTS: usize = 128;
/// Pages waiting to be made.
const MOST_WAITING: usize = 4;
/// After an error of accept(2), such as too many open files, clients wait this long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// What is served. Called on the thread that serves everyone: it must not take long.
pub trait Site: Send + Sync + 'static {
    fn answer(&self, request: &Request) -> Answer;
}

pub enum Answer {
    Now(Response),
    /// Made on a thread of its own, one after the other.
    Later(Box<dyn FnOnce() -> Response + Send>),
}

/// A page to be made, for the client of this number.
type Work = (u64, Box<dyn FnOnce() -> Response + Send>);

/// Serves until it is dropped.
pub struct Server {
    stop: UnixStream,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// # Errors
    /// No thread or no pair of sockets could be had.
    pub fn start(listeners: Vec<Listener>, site: Arc<dyn Site>) -> io::Result<Self> {
        let (stop, stopped) = UnixStream::pair()?;
        let (wake, woken) = UnixStream::pair()?;
        stopped.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let (work, to_do) = sync_channel(MOST_WAITING);
        let (done, answers) = channel();
        let named = |name: &str| std::thread::Builder::new().name(name.into());
        let maker = named("wallprof-pages").spawn(move || make_pages(&to_do, &done, wake))?;
        let mut doors = Doors {
            listeners,
            site,
            clients: BTreeMap::new(),
            next: 0,
            accept_from: Instant::now(),
            work,
            answers,
            woken,
            stopped,
        };
        let server = named("wallprof-http").spawn(move || doors.serve())?;
        Ok(Server { stop, threads: vec![server, maker] })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.stop.write_all(b"x");
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Ends when nobody can ask any more.
fn make_pages(to_do: &Receiver<Work>, done: &Sender<(u64, Response)>, mut wake: UnixStream) {
    while let Ok((client, make)) = to_do.recv() {
        let response = std::panic::catch_unwind(std::panic::AssertUnwindSafe(make))
            .unwrap_or_else(|_| Response::line(500, "making this page failed"));
        if done.send((client, response)).is_err() || wake.write_all(b"x").is_err() {
            return;
        }
    }
}

/// Everything that the serving thread looks after.
struct Doors {
    listeners: Vec<Listener>,
    site: Arc<dyn Site>,
    clients: BTreeMap<u64, Connection>,
    next: u64,
    accept_from: Instant,
    work: SyncSender<Work>,
    answers: Receiver<(u64, Response)>,
    woken: UnixStream,
    stopped: UnixStream,
}

/// What poll found: the listeners and clients with news.
struct News {
    stopped: bool,
    listeners: Vec<usize>,
    clients: Vec<(u64, PollFlags)>,
}

impl Doors {
    fn serve(&mut self) {
        loop {
            let Ok(news) = self.wait() else { return };
            if news.stopped {
                return;
            }
            let now = Instant::now();
            for index in news.listeners {
                self.accept_all(index, now);
            }
            for (id, ready) in news.clients {
                let request = self.clients.get_mut(&id).and_then(|client| client.proceed(ready, now));
                self.serve_request(id, request, now);
            }
            self.hand_out_pages(now);
            self.clients.values_mut().for_each(|client| client.expire(now));
            self.clients.retain(|_, client| !client.is_closed());
        }
    }

    fn wait(&self) -> io::Result<News> {
        let now = Instant::now();
        let mut polled =
            vec![PollFd::new(&self.stopped, PollFlags::IN), PollFd::new(&self.woken, PollFlags::IN)];
        let accepting = now >= self.accept_from;
        let listening = if accepting { self.listeners.as_slice() } else { &[] };
        polled.extend(listening.iter().map(|listener| PollFd::new(listener, PollFlags::IN)));
        polled.extend(self.clients.values().map(|client| PollFd::new(client, client.interest())));
        let timeout = self.next_deadline(now, accepting).and_then(|time| Timespec::try_from(time).ok());
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut flags = polled.iter().map(PollFd::revents);
        let stopped = flags.next().is_some_and(|flags| !flags.is_empty());
        flags.next();
        let listeners = (0..listening.len()).zip(flags.by_ref()).filter(|(_, flags)| !flags.is_empty());
        let listeners = listeners.map(|(index, _)| index).collect();
        let clients = self.clients.keys().copied().zip(flags).filter(|(_, flags)| !flags.is_empty());
        Ok(News { stopped, listeners, clients: clients.collect() })
    }

    fn next_deadline(&self, now: Instant, accepting: bool) -> Option<Duration> {
        let clients = self.clients.values().map(Connection::deadline);
        let next = clients.chain((!accepting).then_some(self.accept_from)).min();
        next.map(|next| next.saturating_duration_since(now) + Duration::from_millis(1))
    }

    fn accept_all(&mut self, index: usize, now: Instant) {
        loop {
            match self.listeners[index].accept() {
                Ok((stream, client)) => {
                    if self.make_room() {
                        self.clients.insert(self.next, Connection::new(stream, client, now));
                        self.next += 1;
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    if error.kind() != ErrorKind::WouldBlock && error.kind() != ErrorKind::ConnectionAborted {
                        self.accept_from = now + ACCEPT_PAUSE;
                    }
                    return;
                }
            }
        }
    }

    /// Whether one more may come in; whoever waits between two requests goes for it, the longest idle first.
    fn make_room(&mut self) -> bool {
        if self.clients.len() < MOST_CLIENTS {
            return true;
        }
        let idle = self.clients.iter().filter(|(_, client)| client.is_idle());
        let oldest = idle.min_by_key(|(_, client)| client.deadline()).map(|(id, _)| *id);
        oldest.is_some_and(|id| self.clients.remove(&id).is_some())
    }

    /// Answers, and goes on with what the client had sent ahead.
    fn serve_request(&mut self, id: u64, mut request: Option<Request>, now: Instant) {
        while let Some(asked) = request.take() {
            let response = match self.site.answer(&asked) {
                Answer::Now(response) => response,
                Answer::Later(make) => match self.work.try_send((id, make)) {
                    Ok(()) => return,
                    Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                        Response::line(503, "too many pages are being made: try again in a moment")
                    }
                },
            };
            request = self.give(id, response, now);
        }
    }

    fn give(&mut self, id: u64, response: Response, now: Instant) -> Option<Request> {
        let client = self.clients.get_mut(&id)?;
        client.answer(response, now);
        client.next_request(now)
    }

    fn hand_out_pages(&mut self, now: Instant) {
        let mut bytes = [0; 64];
        while matches!(self.woken.read(&mut bytes), Ok(count) if count > 0) {}
        while let Ok((id, response)) = self.answers.try_recv() {
            let next = self.give(id, response, now);
            self.serve_request(id, next, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpStream};
    use std::sync::mpsc;

    use super::*;

    /// Answers `/now` at once, `/later` when told to, anything else not at all well.
    struct Pages {
        gate: std::sync::Mutex<Option<Receiver<()>>>,
    }

    impl Site for Pages {
        fn answer(&self, request: &Request) -> Answer {
            match request.path.as_str() {
                "/now" => Answer::Now(Response::line(200, "now")),
                "/panic" => Answer::Later(Box::new(|| panic!("as told"))),
                "/later" => {
                    let gate = self.gate.lock().expect("unpoisoned").take();
                    Answer::Later(Box::new(move || {
                        gate.map(|gate| gate.recv());
                        Response::line(200, "later")
                    }))
                }
                _ => Answer::Now(Response::line(404, "nothing here")),
            }
        }
    }

    fn server() -> (Server, SocketAddr, mpsc::Sender<()>) {
        let (open, gate) = mpsc::channel();
        let listener = Listener::tcp(([127, 0, 0, 1], 0).into()).expect("a port");
        let address = listener.address().expect("an address");
        let site = Arc::new(Pages { gate: std::sync::Mutex::new(Some(gate)) });
        (Server::start(vec![listener], site).expect("threads"), address, open)
    }

    fn ask(address: SocketAddr, path: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).expect("a server");
        write!(stream, "GET {path} HTTP/1.1\r\nConnection: close\r\n\r\n").expect("sent");
        stream
    }

    fn answer(mut stream: TcpStream) -> String {
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        text
    }

    #[test]
    fn a_page_in_the_making_keeps_nobody_waiting() {
        let (_server, address, open) = server();
        let later = ask(address, "/later");
        assert!(answer(ask(address, "/now")).ends_with("now\n"));
        open.send(()).expect("it waits");
        assert!(answer(later).ends_with("later\n"));
    }

    #[test]
    fn a_page_that_fails_says_so_and_the_next_is_made() {
        let (_server, address, open) = server();
        assert!(answer(ask(address, "/panic")).starts_with("HTTP/1.1 500 "));
        open.send(()).expect("it waits");
        assert!(answer(ask(address, "/later")).ends_with("later\n"));
    }

    #[test]
    fn too_many_pages_are_refused() {
        let (_server, address, open) = server();
        let (answered, answers) = mpsc::channel();
        for _ in 0..MOST_WAITING + 2 {
            let (stream, answered) = (ask(address, "/later"), answered.clone());
            std::thread::spawn(move || answered.send(answer(stream)));
        }
        // While the gate is closed no page is ready: the first answer is a refusal.
        assert!(answers.recv().expect("an answer").starts_with("HTTP/1.1 503 "));
        open.send(()).expect("it waits");
        let made = (0..MOST_WAITING + 1).map(|_| answers.recv().expect("an answer"));
        assert!(made.filter(|text| text.ends_with("later\n")).count() > 0);
    }

    #[test]
    fn more_clients_than_places_are_all_served_in_turn() {
        let (_server, address, _open) = server();
        let mut idle = Vec::new();
        for _ in 0..MOST_CLIENTS + 20 {
            let mut stream = TcpStream::connect(address).expect("a server");
            stream.write_all(b"GET /now HTTP/1.1\r\n\r\n").expect("sent");
            let mut bytes = [0; 1024];
            let count = stream.read(&mut bytes).expect("an answer");
            assert!(bytes[..count].starts_with(b"HTTP/1.1 200 "));
            idle.push(stream);
        }
        assert!(answer(ask(address, "/now")).ends_with("now\n"));
    }

    #[test]
    fn clients_that_say_nothing_do_not_keep_others_out() {
        let (_server, address, _open) = server();
        let _silent: Vec<_> =
            (0..MOST_CLIENTS / 2).map(|_| TcpStream::connect(address).expect("a server")).collect();
        assert!(answer(ask(address, "/now")).ends_with("now\n"));
    }

    #[test]
    fn a_dropped_server_is_gone() {
        let (server, address, _open) = server();
        drop(server);
        assert!(TcpStream::connect(address).is_err());
    }
}
