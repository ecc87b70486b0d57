//! Clients and their turns: one thread serves all of them, one more makes the pages that take long.
//!
//! Neither is the recorder's: it loses nothing to clients but the lock of the metrics while a text is rendered, once a
//! second at most.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;

use super::activity::{Activity, Stream};
use super::listener::{Door, Listener};
use super::places::{Class, Places};
use super::request::{Client, HostNames, MAX_HEAD_BYTES, Request, request_from_parts};
use super::response::{Body, Response, promised};

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
    /// The same, for [`super::ask`]: the head goes at once, with status 202, so that the client knows that it was heard;
    /// the status that it comes to is the body's first word.
    Order(Box<dyn FnOnce() -> Response + Send>),
}

/// A page to be made, and where it goes.
type Work = (Box<dyn FnOnce() -> Response + Send>, oneshot::Sender<Response>);

/// Serves until it is dropped.
pub struct Server {
    stop: Option<oneshot::Sender<Infallible>>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// `hosts` are the names that clients over TCP may ask for.
    ///
    /// # Errors
    /// No thread or no event loop could be had.
    pub fn start(listeners: Vec<Listener>, site: Arc<dyn Site>, hosts: HostNames) -> io::Result<Self> {
        let (stop, stopped) = oneshot::channel();
        let (work, to_do) = sync_channel(MOST_WAITING);
        let named = |name: &str| std::thread::Builder::new().name(name.into());
        let maker = named("wallprof-pages").spawn(move || make_pages(&to_do))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let doors: Vec<Door> = {
            let _entered = runtime.enter();
            listeners.into_iter().map(Listener::into_door).collect::<io::Result<_>>()?
        };
        let shared = Arc::new(Shared {
            site,
            hosts,
            work,
            connections: Mutex::default(),
            deadlines_changed: Notify::new(),
        });
        let server = named("wallprof-http").spawn(move || runtime.block_on(serve(doors, shared, stopped)))?;
        Ok(Server { stop: Some(stop), threads: vec![server, maker] })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Ends when nobody can ask any more.
fn make_pages(to_do: &Receiver<Work>) {
    while let Ok((make, made)) = to_do.recv() {
        let response = std::panic::catch_unwind(std::panic::AssertUnwindSafe(make))
            .unwrap_or_else(|_| Response::line(500, "making this page failed"));
        // A client that has gone needs no page.
        let _ = made.send(response);
    }
}

/// Ends, with all connections, when the server is dropped.
async fn serve(doors: Vec<Door>, shared: Arc<Shared>, stopped: oneshot::Receiver<Infallible>) {
    for door in doors {
        tokio::spawn(accept(door, Arc::clone(&shared)));
    }
    tokio::spawn(expire(Arc::clone(&shared)));
    let _ = stopped.await;
}

async fn accept(door: Door, shared: Arc<Shared>) {
    loop {
        match door.accept().await {
            Ok((stream, class)) => shared.admit(stream, class),
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// Closes connections whose time is over.
async fn expire(shared: Arc<Shared>) {
    loop {
        let next = shared.expire(Instant::now());
        let changed = shared.deadlines_changed.notified();
        match next {
            Some(next) => {
                // Whatever comes first: a deadline moves only when something changes.
                let _ = tokio::time::timeout_at(next.into(), changed).await;
            }
            None => changed.await,
        }
    }
}

/// What all connections share.
pub(super) struct Shared {
    site: Arc<dyn Site>,
    hosts: HostNames,
    work: SyncSender<Work>,
    connections: Mutex<Connections>,
    deadlines_changed: Notify,
}

#[derive(Default)]
struct Connections {
    places: Places,
    tasks: HashMap<u64, AbortHandle>,
}

impl Connections {
    /// Closes connections that have lost their places.
    fn close(&mut self, ids: impl IntoIterator<Item = u64>) {
        for id in ids {
            if let Some(task) = self.tasks.remove(&id) {
                task.abort();
            }
        }
    }
}

impl Shared {
    fn connections(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the places, closes the connections that have to go, and has deadlines looked at again.
    fn change<Gone: IntoIterator<Item = u64>>(&self, change: impl FnOnce(&mut Places) -> Gone) {
        let mut connections = self.connections();
        let gone = change(&mut connections.places);
        connections.close(gone);
        self.deadlines_changed.notify_one();
    }

    fn admit(self: &Arc<Self>, stream: Box<dyn Stream>, class: Class) {
        let mut connections = self.connections();
        let Some(admitted) = connections.places.admit(class, Instant::now()) else { return };
        connections.close(admitted.instead_of);
        let client = if class == Class::Control { Client::Control } else { Client::Network };
        let task = tokio::spawn(converse(Arc::clone(self), admitted.id, stream, client));
        connections.tasks.insert(admitted.id, task.abort_handle());
        self.deadlines_changed.notify_one();
    }

    fn leave(&self, id: u64) {
        let mut connections = self.connections();
        connections.places.leave(id);
        connections.tasks.remove(&id);
    }

    fn expire(&self, now: Instant) -> Option<Instant> {
        let mut connections = self.connections();
        let over = connections.places.expire(now);
        connections.close(over);
        connections.places.next_deadline()
    }

    pub(super) fn received(&self, id: u64) {
        self.change(|places| {
            places.received(id, Instant::now());
            None
        });
    }

    pub(super) fn takes(&self, id: u64, takes: bool) {
        self.change(|places| {
            places.takes(id, takes, Instant::now());
            None
        });
    }

    async fn answer(
        &self,
        id: u64,
        client: Client,
        request: hyper::Request<Incoming>,
    ) -> Result<hyper::Response<Body>, Infallible> {
        self.change(|places| {
            places.answering(id, Instant::now());
            None
        });
        let (parts, _) = request.into_parts();
        let response = match request_from_parts(&parts, client, &self.hosts) {
            Err(status) => Response::line(status, "this request cannot be answered").into_http(),
            Ok(request) => self.make(self.site.answer(&request)).await,
        };
        self.change(|places| places.served(id, Instant::now()));
        Ok(response)
    }

    async fn make(&self, answer: Answer) -> hyper::Response<Body> {
        let (make, is_order) = match answer {
            Answer::Now(response) => return response.into_http(),
            Answer::Later(make) => (make, false),
            Answer::Order(make) => (make, true),
        };
        let (made, page) = oneshot::channel();
        if self.work.try_send((make, made)).is_err() {
            return Response::line(503, "too many pages are being made: try again in a moment").into_http();
        }
        match is_order {
            true => promised(page),
            false => page.await.unwrap_or_else(|_| Response::line(503, "this server is ending")).into_http(),
        }
    }
}

/// One connection from its first byte to its last.
async fn converse(shared: Arc<Shared>, id: u64, stream: Box<dyn Stream>, client: Client) {
    let bytes = TokioIo::new(Activity::new(stream, Arc::clone(&shared), id));
    let service = service_fn(|request| shared.answer(id, client, request));
    // How long a client may take is for `places` to say.
    let mut connection = http1::Builder::new();
    connection
        .half_close(true)
        .title_case_headers(true)
        .header_read_timeout(None)
        .max_buf_size(MAX_HEAD_BYTES);
    // What a client sends may be anything, and it may go at any time.
    let _ = connection.serve_connection(bytes, service).await;
    shared.leave(id);
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};
    use std::os::unix::net::UnixStream;
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
                "/order" => {
                    let gate = self.gate.lock().expect("unpoisoned").take();
                    Answer::Order(Box::new(move || {
                        gate.map(|gate| gate.recv());
                        Response::line(429, "not now")
                    }))
                }
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
        (Server::start(vec![listener], site, HostNames::default()).expect("threads"), address, open)
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
        for _ in 0..150 {
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
        let _silent: Vec<_> = (0..64).map(|_| TcpStream::connect(address).expect("a server")).collect();
        assert!(answer(ask(address, "/now")).ends_with("now\n"));
    }

    #[test]
    fn a_dropped_server_is_gone() {
        let (server, address, _open) = server();
        drop(server);
        assert!(TcpStream::connect(address).is_err());
    }

    /// Half a request, and then nothing.
    fn slow(address: SocketAddr) -> TcpStream {
        let mut stream = TcpStream::connect(address).expect("a server");
        stream.write_all(b"GET /now HTTP/1.1\r\nHost: ").expect("sent");
        stream
    }

    #[test]
    fn slow_connections_keep_neither_scrapers_nor_the_socket_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("ctl");
        let port = Listener::tcp(([127, 0, 0, 1], 0).into()).expect("a port");
        let address = port.address().expect("an address");
        let listeners = vec![port, Listener::unix(&socket).expect("a socket")];
        let site = Arc::new(Pages { gate: std::sync::Mutex::new(None) });
        let _server = Server::start(listeners, site, HostNames::default()).expect("threads");
        let mut slow_ones = Vec::new();
        for _ in 0..20 {
            slow_ones.extend((0..25).map(|_| slow(address)));
            assert!(answer(ask(address, "/now")).ends_with("now\n"));
            let mut control = UnixStream::connect(&socket).expect("a server");
            control.write_all(b"GET /now HTTP/1.1\r\nConnection: close\r\n\r\n").expect("sent");
            let mut text = String::new();
            control.read_to_string(&mut text).expect("an answer");
            assert!(text.ends_with("now\n"), "{text}");
        }
    }

    #[test]
    fn an_order_is_heard_at_once_and_its_status_comes_with_its_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("ctl");
        let (open, gate) = mpsc::channel();
        let site = Arc::new(Pages { gate: std::sync::Mutex::new(Some(gate)) });
        let listener = Listener::unix(&socket).expect("a socket");
        let _server = Server::start(vec![listener], site, HostNames::default()).expect("threads");
        let mut heard = UnixStream::connect(&socket).expect("a server");
        heard.write_all(b"POST /order HTTP/1.0\r\n\r\n").expect("sent");
        let mut bytes = [0; 1024];
        let count = heard.read(&mut bytes).expect("a head");
        assert!(
            bytes[..count].starts_with(b"HTTP/1.0 202 "),
            "{:?}",
            String::from_utf8_lossy(&bytes[..count])
        );
        open.send(()).expect("it waits");
        let mut body = String::new();
        heard.read_to_string(&mut body).expect("a body");
        assert!(body.ends_with("429 not now\n"), "{body}");
        let asked = crate::ask(&socket, "POST", "/order", Duration::from_secs(60)).expect("an answer");
        assert_eq!(asked, (429, "not now\n".to_string()));
    }

    #[test]
    fn a_head_without_end_is_refused() {
        let (_server, address, _open) = server();
        let mut stream = TcpStream::connect(address).expect("a server");
        // The server may refuse before all of it is sent.
        let _ = write!(stream, "GET /now HTTP/1.1\r\nx: {}", "y".repeat(4 * MAX_HEAD_BYTES));
        let mut text = String::new();
        let _ = stream.read_to_string(&mut text);
        assert!(text.is_empty() || text.starts_with("HTTP/1.1 431 "), "{text}");
    }

    #[test]
    fn one_connection_carries_many_requests_and_heads_have_no_body() {
        let (_server, address, _open) = server();
        let mut stream = TcpStream::connect(address).expect("a server");
        for _ in 0..3 {
            stream.write_all(b"HEAD /now HTTP/1.1\r\n\r\n").expect("sent");
        }
        stream.write_all(b"GET /now HTTP/1.1\r\nConnection: close\r\n\r\n").expect("sent");
        let text = answer(stream);
        assert_eq!(text.matches("HTTP/1.1 200 OK\r\n").count(), 4, "{text}");
        assert_eq!(text.matches("Content-Length: 4\r\n").count(), 4, "{text}");
        assert_eq!(text.matches("now\n").count(), 1, "{text}");
        assert!(text.contains("X-Frame-Options: DENY\r\n") && text.contains("Cache-Control: no-store\r\n"));
    }
}
