// SPDX-License-Identifier: Apache-2.0
//! A Redis server and its benchmark.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use tempfile::TempDir;

use crate::lines::TIMEOUT;
use crate::stored;

/// A server of the test's own, on a socket in a temporary directory, which saves nothing. Killed when
/// dropped.
pub struct Redis {
    /// `None` in a stored run.
    child: Option<Child>,
    folder: TempDir,
}

impl Redis {
    /// `None` where Redis is not installed.
    pub fn start() -> Option<Self> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        if stored::is_replayed() {
            return Some(Redis { child: None, folder });
        }
        let child = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--daemonize", "no"])
            .args(["--enable-debug-command", "yes"])
            .arg("--unixsocket")
            .arg(folder.path().join("socket"))
            .arg("--dir")
            .arg(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        match child {
            Ok(child) => Some(Redis { child: Some(child), folder }.wait_until_it_listens()),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => panic!("redis-server does not start: {error}"),
        }
    }

    /// 0 in a stored run.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    fn wait_until_it_listens(self) -> Self {
        let deadline = Instant::now() + TIMEOUT;
        while !self.benchmark(1) {
            assert!(Instant::now() < deadline, "redis-server does not listen");
        }
        self
    }

    /// Keeps the server from everything else for 5 ms.
    pub fn debug_sleep(&self) -> bool {
        let mut client = Command::new("redis-cli");
        client.arg("-s").arg(self.socket()).args(["DEBUG", "SLEEP", "0.005"]);
        client.stdin(Stdio::null()).output().is_ok_and(|output| output.stdout == b"OK\n")
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// Whether that many requests of each kind were answered.
    pub fn benchmark(&self, requests: u32) -> bool {
        if self.child.is_none() {
            return true;
        }
        let status = Command::new("redis-benchmark")
            .arg("-s")
            .arg(self.socket())
            .args(["-t", "set,get,lpush,lrange_100", "-c", "8", "-q", "-n", &requests.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        status.is_ok_and(|status| status.success())
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
