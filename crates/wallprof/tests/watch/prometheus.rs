// SPDX-License-Identifier: Apache-2.0
//! The real Prometheus, scraping one address, and its query API.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use wallprof_testkit::lines::{Lines, TIMEOUT};

use crate::http;

/// Killed when dropped.
pub struct Prometheus {
    child: Child,
    address: SocketAddr,
    _log: Lines,
    _folder: TempDir,
}

impl Prometheus {
    /// `None` where it is not installed.
    pub fn scraping(target: SocketAddr) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let config = folder.path().join("prometheus.yml");
        let text = format!(
            "global: {{ scrape_interval: 1s }}\nscrape_configs:\n  - job_name: wallprof\n    static_configs: [ {{ targets: [ '{target}' ] }} ]\n"
        );
        fs::write(&config, text).expect("a configuration");
        let address = free_address();
        let mut child = Command::new("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .arg("--enable-feature=exemplar-storage")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .ok()?;
        let mut log = Lines::from_pipe("Prometheus", child.stderr.take().expect("a piped stderr"));
        let ready = log.find(|line| line.contains("Server is ready to receive web requests"));
        assert!(ready.is_some(), "Prometheus ended: {:#?}", log.seen());
        Some(Prometheus { child, address, _log: log, _folder: folder })
    }

    /// The value of an expression; 0 for an empty result.
    pub fn value(&self, expression: &str) -> f64 {
        let data = self.ask(&format!("/api/v1/query?query={}", encoded(expression)));
        let results = data["result"].as_array().cloned().unwrap_or_default();
        assert!(results.len() <= 1, "{expression}: {results:?}");
        let text = results.first().and_then(|result| result["value"][1].as_str());
        text.map_or(0.0, |text| text.parse().expect("a number"))
    }

    /// Waits until an expression has at least this value.
    pub fn wait_for(&self, expression: &str, least: f64) {
        let deadline = Instant::now() + TIMEOUT;
        while self.value(expression) < least {
            assert!(
                Instant::now() < deadline,
                "{expression} is {} after {TIMEOUT:?}",
                self.value(expression)
            );
            std::thread::park_timeout(Duration::from_millis(200));
        }
    }

    /// The exemplars of a series: their labels and values.
    pub fn exemplars(&self, series: &str) -> Vec<(Value, f64)> {
        let data =
            self.ask(&format!("/api/v1/query_exemplars?query={}&start=0&end=9999999999", encoded(series)));
        let series = data.as_array().cloned().unwrap_or_default();
        let exemplars =
            series.iter().flat_map(|one| one["exemplars"].as_array().cloned().unwrap_or_default());
        let value = |exemplar: &Value| exemplar["value"].as_str().and_then(|text| text.parse().ok());
        exemplars.map(|one| (one["labels"].clone(), value(&one).expect("a value"))).collect()
    }

    fn ask(&self, path: &str) -> Value {
        let answer = http::get(self.address, path);
        let mut json: Value = serde_json::from_str(&answer.body).expect("JSON");
        assert_eq!(json["status"], "success", "{path}: {}", answer.body);
        json["data"].take()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// No other process takes the port in between: the kernel hands out others.
fn free_address() -> SocketAddr {
    TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr()).expect("a free port")
}

fn encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' => char::from(byte).to_string(),
            other => format!("%{other:02X}"),
        })
        .collect()
}
