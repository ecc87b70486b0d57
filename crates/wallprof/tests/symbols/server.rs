// SPDX-License-Identifier: Apache-2.0
//! Debian's debuginfod on a folder, and a server that never answers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

pub struct Debuginfod {
    child: Child,
    port: u16,
}

impl Debuginfod {
    /// Returns when it serves the file with this build id.
    pub fn serving(folder: &Path, hex: &str) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port");
        let child = Command::new("debuginfod")
            .args(["-d", ":memory:", "-p", &free.port().to_string(), "-F"])
            .arg(folder)
            .env_remove("DEBUGINFOD_URLS")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let child = child.expect("debuginfod: `make test` installs it");
        let server = Debuginfod { child, port: free.port() };
        while server.status(hex).as_deref() != Some("200") {
            thread::sleep(Duration::from_millis(50));
        }
        server
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn status(&self, hex: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        let request =
            format!("GET /buildid/{hex}/debuginfo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).ok()?;
        let mut status = [0; 12];
        stream.read_exact(&mut status).ok()?;
        Some(String::from_utf8_lossy(&status[9..]).into_owned())
    }
}

impl Drop for Debuginfod {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Takes requests and answers none.
pub struct Silent {
    pub url: String,
    /// The requested paths.
    pub requests: Receiver<String>,
}

impl Silent {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let (sender, requests) = channel();
        thread::spawn(move || {
            let mut kept = Vec::new();
            for stream in listener.incoming().flatten() {
                let first = BufReader::new(&stream).lines().next();
                let _ = sender.send(first.and_then(Result::ok).unwrap_or_default());
                kept.push(stream);
            }
        });
        Silent { url, requests }
    }
}
