// SPDX-License-Identifier: Apache-2.0
//! `wallprof watch` as a child process, and its pages.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use wallprof_testkit::contract::Stall;
use wallprof_testkit::lines::{Lines, TIMEOUT};
use wallprof_testkit::recorder::{is_crash, wallprof};
use wallprof_testkit::{assert_always, keep};

use crate::http;

/// A watcher that serves. Killed when dropped.
pub struct Watcher {
    child: Child,
    stderr: Lines,
    pub address: SocketAddr,
    pub folder: TempDir,
}

impl Watcher {
    /// Starts `wallprof watch ARGS` on a free port, with all of its files in a folder of its own.
    pub fn start(args: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        Self::start_in(folder, args)
    }

    pub fn start_in(folder: TempDir, args: &[&str]) -> Self {
        let mut child =
            command(&folder, args).stderr(Stdio::piped()).spawn().expect("the wallprof binary runs");
        let mut stderr = Lines::from_pipe("the watcher", child.stderr.take().expect("a piped stderr"));
        let serves = stderr.find(|line| line.contains("/metrics"));
        assert_always!(serves.is_some(), "the watcher ended: {:#?}", stderr.seen());
        let serves = serves.expect("asserted");
        let address = serves.split("http://").nth(1).and_then(|rest| rest.strip_suffix("/metrics"));
        let address = address.and_then(|address| address.parse().ok()).expect("an address");
        let mut watcher = Watcher { child, stderr, address, folder };
        watcher.said("armed");
        watcher
    }

    /// The result of a watcher that does not start.
    pub fn refused(args: &[&str]) -> Output {
        let folder = tempfile::tempdir().expect("a temporary folder");
        command(&folder, args).stderr(Stdio::piped()).output().expect("the wallprof binary runs")
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a message on stderr.
    pub fn said(&mut self, what: &str) -> String {
        let said = self.stderr.find(|line| line.contains(what));
        assert_always!(said.is_some(), "the watcher ended without `{what}`: {:#?}", self.stderr.seen());
        said.expect("asserted")
    }

    pub fn recording(&self) -> PathBuf {
        self.folder.path().join("flight.db")
    }

    pub fn metrics(&self) -> String {
        let answer = http::get(self.address, "/metrics");
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.body
    }

    /// The sum of a metric's lines that have all these labels.
    pub fn value(&self, metric: &str, labels: &[&str]) -> f64 {
        value(&self.metrics(), metric, labels)
    }

    /// Requests the metrics now and then until `enough` holds.
    pub fn metrics_until(&self, enough: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let text = self.metrics();
            if enough(&text) {
                return text;
            }
            assert!(Instant::now() < deadline, "not in time: {text}");
            std::thread::park_timeout(std::time::Duration::from_millis(200));
        }
    }

    /// `wallprof ctl ORDER`.
    pub fn ctl(&self, order: &str) -> Output {
        let socket = self.folder.path().join("ctl.sock");
        wallprof().args(["ctl", order, "--socket"]).arg(socket).output().expect("the wallprof binary runs")
    }

    pub fn stalls(&self, args: &[&str]) -> Vec<Stall> {
        let output = wallprof().arg("stalls").arg(self.recording()).arg("--json").args(args).output();
        let output = output.expect("the wallprof binary runs");
        assert_always!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        text.lines().map(|line| serde_json::from_str(line).expect("a stall")).collect()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the watcher takes a signal");
    }

    /// Ends it as systemd does. Its folder stays as long as the returned value.
    pub fn stop(mut self) -> (ExitStatus, TempDir) {
        self.signal(Signal::TERM);
        self.wait()
    }

    pub fn kill(mut self) -> (ExitStatus, TempDir) {
        self.signal(Signal::KILL);
        self.wait()
    }

    fn wait(&mut self) -> (ExitStatus, TempDir) {
        let status = self.child.wait().expect("the watcher is waited for");
        assert_always!(!is_crash(status), "the watcher ended with {status}: {:#?}", self.stderr.seen());
        let other = tempfile::tempdir().expect("a temporary folder");
        (status, std::mem::replace(&mut self.folder, other))
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if self.recording().exists() {
            keep::if_failing(&self.recording());
        }
    }
}

fn command(folder: &TempDir, args: &[&str]) -> Command {
    let mut command = wallprof();
    command.arg("watch").args(args);
    if !args.contains(&"--listen") {
        command.args(["--listen", "127.0.0.1:0"]);
    }
    command.arg("--socket").arg(folder.path().join("ctl.sock"));
    command.arg("--output").arg(folder.path().join("flight.db"));
    command.stdout(Stdio::null());
    command
}

/// The sum of a metric's lines that have all these labels.
pub fn value(text: &str, metric: &str, labels: &[&str]) -> f64 {
    let lines = text.lines().filter(|line| {
        line.strip_prefix(metric).is_some_and(|rest| rest.starts_with(['{', ' ']))
            && labels.iter().all(|label| line.contains(label))
    });
    lines.map(number).sum()
}

/// The number of a line, before its exemplar.
fn number(line: &str) -> f64 {
    let before = line.split(" # ").next().unwrap_or(line);
    before
        .rsplit(' ')
        .next()
        .and_then(|number| number.parse().ok())
        .unwrap_or_else(|| panic!("a number in {line}"))
}
