// SPDX-License-Identifier: Apache-2.0
//! Answers of real and of hostile servers: the files that are kept, and that callers do not wait.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use wallprof_debuginfod::{Downloads, Limits, Outcome, Settings};
use wallprof_symbols::{DebugFileServer, build_id_of_path, hex_build_id};

/// Longer than any test; the awaited event happens earlier.
const LONG: Duration = Duration::from_secs(300);

/// A server with one kind of answer, on its own port. Counts connections.
struct Fake {
    url: String,
    asked: Arc<AtomicU64>,
}

impl Fake {
    fn start(answer: impl Fn(&str, TcpStream) + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let asked = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&asked);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                counted.fetch_add(1, Ordering::SeqCst);
                let path = request_path(&stream);
                answer(&path, stream);
            }
        });
        Fake { url, asked }
    }

    /// Sends this body with its length.
    fn serving(body: Vec<u8>) -> Self {
        Fake::start(move |_, mut stream| {
            let head =
                format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            // The client may have closed the connection.
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
        })
    }

    fn with_status(status: &'static str) -> Self {
        Fake::start(move |_, mut stream| {
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            let _ = stream.write_all(answer.as_bytes());
        })
    }
}

fn request_path(stream: &TcpStream) -> String {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let first = lines.next().unwrap_or_default();
    lines.take_while(|line| !line.is_empty()).for_each(drop);
    first.split(' ').nth(1).unwrap_or_default().to_owned()
}

/// An ELF file with a build id: this test itself.
fn own() -> (PathBuf, Vec<u8>) {
    let path = std::env::current_exe().expect("a running program");
    let build_id = build_id_of_path(&path).expect("linkers write build ids");
    (path, build_id)
}

fn settings(cache: &Path, urls: &[&str], limits: Limits) -> Settings {
    let urls = urls.join(" ");
    let variables =
        [("DEBUGINFOD_URLS", urls.as_str()), ("DEBUGINFOD_CACHE_PATH", cache.to_str().expect("text"))];
    let lookup =
        |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).into());
    Settings { limits, ..Settings::from_lookup(&lookup) }
}

fn ask(cache: &Path, urls: &[&str], limits: Limits, build_id: &[u8]) -> Outcome {
    let downloads = Downloads::start(settings(cache, urls, limits)).expect("a thread").expect("servers");
    downloads.want(build_id);
    downloads.want(build_id);
    assert!(downloads.wait(LONG), "{:?}", downloads.outcome());
    downloads.outcome()
}

fn kept(cache: &Path, build_id: &[u8]) -> PathBuf {
    cache.join(hex_build_id(build_id)).join("debuginfo")
}

/// Nothing but control files and empty folders.
fn holds_nothing(cache: &Path) -> bool {
    let folders = std::fs::read_dir(cache).expect("readable").flatten().filter(|entry| entry.path().is_dir());
    folders.into_iter().all(|folder| std::fs::read_dir(folder.path()).expect("readable").count() == 0)
}

#[test]
fn the_file_with_the_build_id_is_kept_and_asked_for_once() {
    let cache = tempfile::tempdir().expect("a scratch folder");
    let (path, build_id) = own();
    let image = std::fs::read(path).expect("readable");
    let server = Fake::serving(image.clone());
    let outcome = ask(cache.path(), &[&server.url], Limits::default(), &build_id);
    assert_eq!((outcome.received, outcome.failed, outcome.bytes), (1, 0, image.len() as u64), "{outcome:?}");
    assert!(std::fs::read(kept(cache.path(), &build_id)).expect("kept") == image);
    let outcome = ask(cache.path(), &[&server.url], Limits::default(), &build_id);
    assert_eq!((outcome.cached, outcome.received), (1, 0));
    assert_eq!(server.asked.load(Ordering::SeqCst), 1);
}

#[test]
fn a_file_with_another_build_id_is_not_kept() {
    let cache = tempfile::tempdir().expect("a scratch folder");
    let (path, _) = own();
    for body in [std::fs::read(path).expect("readable"), b"<html>".to_vec(), Vec::new()] {
        let server = Fake::serving(body);
        let outcome = ask(cache.path(), &[&server.url], Limits::default(), &[1; 20]);
        assert_eq!((outcome.received, outcome.failed), (0, 1), "{outcome:?}");
        assert!(outcome.failures[0].contains("another build id"), "{outcome:?}");
        assert!(holds_nothing(cache.path()));
    }
}

#[test]
fn miss_is_cached_and_not_requested_again() {
    let cache = tempfile::tempdir().expect("a scratch folder");
    let server = Fake::with_status("404 Not Found");
    for _ in 0..2 {
        let outcome = ask(cache.path(), &[&server.url], Limits::default(), &[1; 20]);
        assert_eq!((outcome.missing, outcome.failed), (1, 0), "{outcome:?}");
    }
    assert_eq!(server.asked.load(Ordering::SeqCst), 1);
    let broken = Fake::with_status("500 Internal Server Error");
    let outcome = ask(cache.path(), &[&broken.url], Limits::default(), &[2; 20]);
    assert_eq!((outcome.missing, outcome.failed), (0, 1), "not a miss: {outcome:?}");
    assert!(!kept(cache.path(), &[2; 20]).exists());
}

#[test]
fn an_answer_of_endless_size_is_cut_off() {
    let cache = tempfile::tempdir().expect("a scratch folder");
    let endless = Fake::start(|_, mut stream| {
        let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        let mut piece = b"10000\r\n".to_vec();
        piece.extend([0x7f; 0x10000]);
        piece.extend(b"\r\n");
        // It ends when the client has gone.
        let _ = stream.write_all(head);
        while stream.write_all(&piece).is_ok() {}
    });
    let announced = Fake::start(|_, mut stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\nx");
    });
    let limits = Limits { file_bytes: 1 << 20, ..Limits::default() };
    for server in [&endless, &announced] {
        let outcome = ask(cache.path(), &[&server.url], limits, &[1; 20]);
        assert_eq!(outcome.failures.len(), 1, "{outcome:?}");
        assert!(outcome.failures[0].contains("larger than 1 MiB"), "{outcome:?}");
        assert!(outcome.bytes <= 2 << 20 && holds_nothing(cache.path()));
    }
}

#[test]
fn an_answer_that_ends_early_is_not_kept() {
    let cache = tempfile::tempdir().expect("a scratch folder");
    let (path, build_id) = own();
    let image = std::fs::read(path).expect("readable");
    let server = Fake::start(move |_, mut stream| {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", image.len());
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&image[..image.len() / 2]));
    });
    let outcome = ask(cache.path(), &[&server.url], Limits::default(), &build_id);
    assert_eq!((outcome.received, outcome.failed), (0, 1), "{outcome:?}");
    assert!(holds_nothing(cache.path()));
}

#[test]
fn server_that_never_answers_is_given_up_and_blocks_no_caller() {
    let cache = tempfile::tempdir().expect("a scratch folder");
    let silence = || Fake::start(|_, stream| std::mem::forget(stream));
    let silent = silence();
    let downloads = Downloads::start(settings(cache.path(), &[&silent.url], Limits::default()));
    let downloads = downloads.expect("a thread").expect("servers");
    downloads.want(&[1; 20]);
    assert!(!downloads.wait(Duration::from_millis(1)), "there is no answer");
    assert_eq!(downloads.outcome().open, 1);
    drop(downloads);
    assert!(holds_nothing(cache.path()), "no piece stays behind");

    let silent = silence();
    let limits = Limits { silence: Duration::from_millis(200), ..Limits::default() };
    let downloads = Downloads::start(settings(cache.path(), &[&silent.url], limits));
    let downloads = downloads.expect("a thread").expect("servers");
    [[1; 20], [2; 20], [3; 20]].iter().for_each(|build_id| downloads.want(build_id));
    assert!(downloads.wait(LONG));
    let outcome = downloads.outcome();
    assert_eq!((outcome.failed, outcome.missing, outcome.open), (3, 0, 0), "{outcome:?}");
    assert_eq!(silent.asked.load(Ordering::SeqCst), 1, "asked once, then no more");
}

#[test]
fn next_server_is_asked_after_a_miss_or_a_failure() {
    let cache = tempfile::tempdir().expect("a scratch folder");
    let (path, build_id) = own();
    let dead = {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        format!("http://{}", listener.local_addr().expect("an address"))
    };
    let empty = Fake::with_status("404 Not Found");
    let target = Fake::serving(std::fs::read(path).expect("readable"));
    let place = target.url.clone();
    let elsewhere = Fake::start(move |path, mut stream| {
        let answer = format!("HTTP/1.1 302 Found\r\nLocation: {place}{path}\r\nContent-Length: 0\r\n\r\n");
        let _ = stream.write_all(answer.as_bytes());
    });
    let outcome = ask(cache.path(), &[&dead, &empty.url, &elsewhere.url], Limits::default(), &build_id);
    assert_eq!((outcome.received, outcome.failed), (1, 0), "{outcome:?}");
}

#[test]
fn requests_of_a_run_are_limited() {
    let cache = tempfile::tempdir().expect("a scratch folder");
    let server = Fake::with_status("404 Not Found");
    let limits = Limits { files: 2, ..Limits::default() };
    let downloads = Downloads::start(settings(cache.path(), &[&server.url], limits));
    let downloads = downloads.expect("a thread").expect("servers");
    (1..=4).for_each(|number| downloads.want(&[number; 20]));
    assert!(downloads.wait(LONG));
    let outcome = downloads.outcome();
    assert_eq!((outcome.missing, outcome.failed), (2, 2), "{outcome:?}");
    assert!(outcome.failures[0].contains("limit of requests"), "{outcome:?}");
}

#[test]
fn https_without_certificates_is_left_out_and_named() {
    let cache = tempfile::tempdir().expect("a scratch folder");
    let settings = Settings {
        certificates: Some("/nowhere".into()),
        ..settings(cache.path(), &["https://127.0.0.1:1"], Limits::default())
    };
    let downloads = Downloads::start(settings).expect("a thread").expect("notes");
    assert!(downloads.notes()[0].contains("https servers are left out"), "{:?}", downloads.notes());
    downloads.want(&[1; 20]);
    assert!(downloads.wait(LONG));
    assert_eq!(downloads.outcome().failed, 1);
}

/// openssl's own server of files over TLS, with a certificate of an authority made for it.
struct Secure {
    child: Child,
    port: u16,
}

impl Secure {
    fn start(folder: &Path) -> Self {
        let openssl = |arguments: &[&str]| {
            let output =
                Command::new("openssl").args(arguments).current_dir(folder).output().expect("openssl");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        };
        let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"];
        for (name, subject) in [("authority", "/CN=authority"), ("other", "/CN=other")] {
            let out = [format!("{name}.key"), format!("{name}.pem")];
            openssl(
                &[&["req", "-x509", "-subj", subject, "-keyout", &out[0], "-out", &out[1]], &key[..]]
                    .concat(),
            );
        }
        openssl(
            &[
                &["req", "-x509", "-CA", "authority.pem", "-CAkey", "authority.key"][..],
                &["-subj", "/CN=server"],
                &["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"],
                &["-keyout", "server.key", "-out", "server.pem"],
                &key,
            ]
            .concat(),
        );
        let port =
            TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
        let child = Command::new("openssl")
            .args(["s_server", "-quiet", "-HTTP", "-cert", "server.pem", "-key", "server.key"])
            .args(["-accept", &format!("127.0.0.1:{port}")])
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("openssl");
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            thread::sleep(Duration::from_millis(20));
        }
        Secure { child, port }
    }
}

impl Drop for Secure {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn tls_server_needs_a_trusted_authority() {
    let (cache, served) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let (path, build_id) = own();
    let place = served.path().join("buildid").join(hex_build_id(&build_id));
    std::fs::create_dir_all(&place).expect("folders");
    // `-HTTP` sends files as they are, heads included.
    let image = std::fs::read(path).expect("readable");
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", image.len());
    std::fs::write(place.join("debuginfo"), [head.as_bytes(), &image].concat()).expect("written");
    let server = Secure::start(served.path());
    let url = format!("https://127.0.0.1:{}", server.port);
    for (bundle, received) in [("other.pem", 0), ("authority.pem", 1)] {
        let settings = Settings {
            certificates: Some(served.path().join(bundle)),
            ..settings(cache.path(), &[&url], Limits::default())
        };
        let downloads = Downloads::start(settings).expect("a thread").expect("servers");
        downloads.want(&build_id);
        assert!(downloads.wait(LONG));
        let outcome = downloads.outcome();
        assert_eq!((outcome.received, outcome.failed), (received, 1 - received), "{bundle}: {outcome:?}");
    }
}

/// Debian's server on a folder.
struct Debuginfod {
    child: Child,
    port: u16,
}

impl Debuginfod {
    fn start(folder: &Path) -> Self {
        let port =
            TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
        let child = Command::new("debuginfod")
            .args(["-d", ":memory:", "-p", &port.to_string(), "-F"])
            .arg(folder)
            .env_remove("DEBUGINFOD_URLS")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Debuginfod { child: child.expect("debuginfod: `make test` installs it"), port }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Waits until it has scanned the folder.
    fn await_file(&self, build_id: &[u8]) {
        let request = format!(
            "GET /buildid/{}/debuginfo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            hex_build_id(build_id)
        );
        let answers = || {
            let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
            stream.write_all(request.as_bytes()).ok()?;
            let mut status = [0; 12];
            stream.read_exact(&mut status).ok()?;
            (&status == b"HTTP/1.1 200").then_some(())
        };
        while answers().is_none() {
            thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Debuginfod {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn debians_server_and_client_share_the_cache() {
    let (cache, served) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let (path, build_id) = own();
    std::fs::copy(path, served.path().join("program")).expect("copied");
    let server = Debuginfod::start(served.path());
    server.await_file(&build_id);
    let outcome = ask(cache.path(), &[&server.url()], Limits::default(), &build_id);
    assert_eq!((outcome.received, outcome.failed), (1, 0), "{outcome:?}");
    assert_eq!(ask(cache.path(), &[&server.url()], Limits::default(), &[9; 20]).missing, 1);
    drop(server);
    // elfutils' client finds the file in the cache, without a server.
    let found = Command::new("debuginfod-find")
        .args(["debuginfo", &hex_build_id(&build_id)])
        .env("DEBUGINFOD_URLS", "http://127.0.0.1:1")
        .env("DEBUGINFOD_CACHE_PATH", cache.path())
        .output()
        .expect("debuginfod-find");
    let printed = String::from_utf8_lossy(&found.stdout);
    assert_eq!(Path::new(printed.trim()), kept(cache.path(), &build_id), "{found:?}");
}
