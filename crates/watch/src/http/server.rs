// SPDX-License-Identifier: Apache-2.0
//! The server: one thread serves all clients, a second one makes the pages that take long.
//!
//! Neither is the recorder's thread. Clients delay it only by the lock of the metrics, while a text is
//! rendered, at most once a second.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Collected, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;

use super::activity::{Activity, Stream};
use super::listener::{Acceptor, Listener};
use super::request::{
    Client, HostNames, MAX_BODY_BYTES, MAX_HEAD_BYTES, Method, Request, request_from_parts,
};
use super::response::{Body, Response, promised};
use super::slots::{Class, Slots};

/// Limit on pages that wait to be made.
const MAX_WAITING: usize = 4;
/// The pause after an error of accept(2), such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// The pages of the server. `answer` runs on the thread that serves all clients: it must not take long.
pub trait Site: Send + Sync + 'static {
    fn answer(&self, request: &Request) -> Answer;
}

pub enum Answer {
    Now(Response),
    /// Made on the thread for pages, one after the other.
    Later(Box<dyn FnOnce() -> Response + Send>),
    /// The same, for [`super::ask`]: the head is sent at once, with status 202, so that the client knows that
    /// the order has arrived. The final status is the first word of the body.
    Order(Box<dyn FnOnce() -> Response + Send>),
}

/// A page to be made, and the channel for it.
type Job = (Box<dyn FnOnce() -> Response + Send>, oneshot::Sender<Response>);

/// A running server; dropping it stops it.
pub struct Server {
    stop: Option<oneshot::Sender<Infallible>>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// `hosts` are the host names for clients over TCP.
    ///
    /// # Errors
    /// A thread or the event loop could not be created.
    pub fn start(listeners: Vec<Listener>, site: Arc<dyn Site>, hosts: HostNames) -> io::Result<Self> {
        let (stop, stopped) = oneshot::channel();
        let (jobs, queue) = sync_channel(MAX_WAITING);
        let named = |name: &str| std::thread::Builder::new().name(name.into());
        let maker = named("wallprof-pages").spawn(move || make_pages(&queue))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let acceptors: Vec<Acceptor> = {
            let _entered = runtime.enter();
            listeners.into_iter().map(Listener::into_acceptor).collect::<io::Result<_>>()?
        };
        let shared = Arc::new(Shared {
            site,
            hosts,
            jobs,
            connections: Mutex::default(),
            deadlines_changed: Notify::new(),
        });
        let server =
            named("wallprof-http").spawn(move || runtime.block_on(serve(acceptors, shared, stopped)))?;
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

/// Ends when the server has stopped.
fn make_pages(queue: &Receiver<Job>) {
    while let Ok((make, made)) = queue.recv() {
        let response = std::panic::catch_unwind(std::panic::AssertUnwindSafe(make))
            .unwrap_or_else(|_| Response::line(500, "making this page failed"));
        // An error means that the client has closed the connection.
        let _ = made.send(response);
    }
}

/// Ends, and closes all connections, when the server is dropped.
async fn serve(acceptors: Vec<Acceptor>, shared: Arc<Shared>, stopped: oneshot::Receiver<Infallible>) {
    for acceptor in acceptors {
        tokio::spawn(accept(acceptor, Arc::clone(&shared)));
    }
    tokio::spawn(expire(Arc::clone(&shared)));
    let _ = stopped.await;
}

async fn accept(acceptor: Acceptor, shared: Arc<Shared>) {
    loop {
        match acceptor.accept().await {
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
                // A deadline moves only with a notification.
                let _ = tokio::time::timeout_at(next.into(), changed).await;
            }
            None => changed.await,
        }
    }
}

/// The state shared by all connections.
pub(super) struct Shared {
    site: Arc<dyn Site>,
    hosts: HostNames,
    jobs: SyncSender<Job>,
    connections: Mutex<Connections>,
    deadlines_changed: Notify,
}

#[derive(Default)]
struct Connections {
    slots: Slots,
    tasks: HashMap<u64, AbortHandle>,
}

impl Connections {
    /// Closes connections that have lost their slots.
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

    /// Changes the slots, closes the connections that lost theirs, and updates the next deadline.
    fn change<Closed: IntoIterator<Item = u64>>(&self, change: impl FnOnce(&mut Slots) -> Closed) {
        let mut connections = self.connections();
        let closed = change(&mut connections.slots);
        connections.close(closed);
        self.deadlines_changed.notify_one();
    }

    fn admit(self: &Arc<Self>, stream: Box<dyn Stream>, class: Class) {
        let mut connections = self.connections();
        let Some(admitted) = connections.slots.admit(class, Instant::now()) else { return };
        connections.close(admitted.instead_of);
        let client = if class == Class::Control { Client::Control } else { Client::Network };
        let task = tokio::spawn(serve_connection(Arc::clone(self), admitted.id, stream, client));
        connections.tasks.insert(admitted.id, task.abort_handle());
        self.deadlines_changed.notify_one();
    }

    fn leave(&self, id: u64) {
        let mut connections = self.connections();
        connections.slots.leave(id);
        connections.tasks.remove(&id);
    }

    fn expire(&self, now: Instant) -> Option<Instant> {
        let mut connections = self.connections();
        let over = connections.slots.expire(now);
        connections.close(over);
        connections.slots.next_deadline()
    }

    pub(super) fn received(&self, id: u64) {
        self.change(|slots| {
            slots.received(id, Instant::now());
            None
        });
    }

    pub(super) fn set_stalled(&self, id: u64, stalled: bool) {
        self.change(|slots| {
            slots.set_stalled(id, stalled, Instant::now());
            None
        });
    }

    async fn answer(
        &self,
        id: u64,
        client: Client,
        request: hyper::Request<Incoming>,
    ) -> Result<hyper::Response<Body>, Infallible> {
        let (parts, body) = request.into_parts();
        let request = match request_from_parts(&parts, client, &self.hosts) {
            // Others have none, or it is ignored.
            Ok(request) if request.method == Method::Post => {
                let body = Limited::new(body, MAX_BODY_BYTES as usize).collect().await;
                let text = |body: Collected<Bytes>| String::from_utf8_lossy(&body.to_bytes()).into_owned();
                body.map(|body| Request { body: text(body), ..request }).map_err(|_| 400)
            }
            request => request,
        };
        self.change(|slots| {
            slots.answering(id, Instant::now());
            None
        });
        let response = match request {
            Err(status) => Response::line(status, "this request cannot be answered").into_http(),
            Ok(request) => self.make(self.site.answer(&request)).await,
        };
        self.change(|slots| slots.served(id, Instant::now()));
        Ok(response)
    }

    async fn make(&self, answer: Answer) -> hyper::Response<Body> {
        let (make, is_order) = match answer {
            Answer::Now(response) => return response.into_http(),
            Answer::Later(make) => (make, false),
            Answer::Order(make) => (make, true),
        };
        let (made, page) = oneshot::channel();
        if self.jobs.try_send((make, made)).is_err() {
            return Response::line(503, "too many pages are being made: try again later").into_http();
        }
        match is_order {
            true => promised(page),
            false => {
                page.await.unwrap_or_else(|_| Response::line(503, "this server is stopping")).into_http()
            }
        }
    }
}

/// One connection from its first byte to its last.
async fn serve_connection(shared: Arc<Shared>, id: u64, stream: Box<dyn Stream>, client: Client) {
    let bytes = TokioIo::new(Activity::new(stream, Arc::clone(&shared), id));
    let service = service_fn(|request| shared.answer(id, client, request));
    // `slots` limits the time of each step, not hyper.
    let mut connection = http1::Builder::new();
    connection
        .half_close(true)
        .title_case_headers(true)
        .header_read_timeout(None)
        .max_buf_size(MAX_HEAD_BYTES);
    // An error is a client that sent no HTTP or closed the connection.
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

    /// Answers `/now` at once, `/later` and `/order` when the gate opens; `/panic` fails.
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
                "/panic" => Answer::Later(Box::new(|| panic!("on request"))),
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
    fn page_in_the_making_delays_no_other_client() {
        let (_server, address, open) = server();
        let later = ask(address, "/later");
        assert!(answer(ask(address, "/now")).ends_with("now\n"));
        open.send(()).expect("it waits");
        assert!(answer(later).ends_with("later\n"));
    }

    #[test]
    fn failed_page_is_status_500_and_the_next_is_made() {
        let (_server, address, open) = server();
        assert!(answer(ask(address, "/panic")).starts_with("HTTP/1.1 500 "));
        open.send(()).expect("it waits");
        assert!(answer(ask(address, "/later")).ends_with("later\n"));
    }

    #[test]
    fn too_many_pages_are_refused() {
        let (_server, address, open) = server();
        let (answered, answers) = mpsc::channel();
        for _ in 0..MAX_WAITING + 2 {
            let (stream, answered) = (ask(address, "/later"), answered.clone());
            std::thread::spawn(move || answered.send(answer(stream)));
        }
        // While the gate is closed no page is ready: the first answer is a refusal.
        assert!(answers.recv().expect("an answer").starts_with("HTTP/1.1 503 "));
        open.send(()).expect("it waits");
        let made = (0..MAX_WAITING + 1).map(|_| answers.recv().expect("an answer"));
        assert!(made.filter(|text| text.ends_with("later\n")).count() > 0);
    }

    #[test]
    fn more_clients_than_slots_are_all_served() {
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
    fn silent_clients_do_not_block_others() {
        let (_server, address, _open) = server();
        let _silent: Vec<_> = (0..64).map(|_| TcpStream::connect(address).expect("a server")).collect();
        assert!(answer(ask(address, "/now")).ends_with("now\n"));
    }

    #[test]
    fn dropped_server_listens_no_more() {
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
    fn slow_connections_block_neither_scrapers_nor_the_socket() {
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
    fn order_is_acknowledged_at_once_and_its_status_is_in_the_body() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("ctl");
        let (open, gate) = mpsc::channel();
        let site = Arc::new(Pages { gate: std::sync::Mutex::new(Some(gate)) });
        let listener = Listener::unix(&socket).expect("a socket");
        let _server = Server::start(vec![listener], site, HostNames::default()).expect("threads");
        let mut acknowledged = UnixStream::connect(&socket).expect("a server");
        acknowledged.write_all(b"POST /order HTTP/1.0\r\n\r\n").expect("sent");
        let mut bytes = [0; 1024];
        let count = acknowledged.read(&mut bytes).expect("a head");
        assert!(
            bytes[..count].starts_with(b"HTTP/1.0 202 "),
            "{:?}",
            String::from_utf8_lossy(&bytes[..count])
        );
        open.send(()).expect("it waits");
        let mut body = String::new();
        acknowledged.read_to_string(&mut body).expect("a body");
        assert!(body.ends_with("429 not now\n"), "{body}");
        let asked = crate::ask(&socket, "POST", "/order", "", Duration::from_secs(60)).expect("an answer");
        assert_eq!(asked, (429, "not now\n".to_string()));
    }

    #[test]
    fn endless_head_is_refused() {
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
