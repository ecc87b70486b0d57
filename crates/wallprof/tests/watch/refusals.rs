// SPDX-License-Identifier: Apache-2.0
//! Arguments with which a watcher does not start, and its messages.

use std::net::TcpListener;
use std::process::{Command, Output};

use wallprof_testkit::machine;
use wallprof_testkit::recorder::wallprof;

use crate::watcher::Watcher;

fn refusal(output: &Output, code: i32) -> String {
    let said = String::from_utf8(output.stderr.clone()).expect("UTF-8");
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert_eq!(said.lines().count(), 1, "one sentence: {said}");
    said
}

#[test]
fn port_in_use_is_reported_before_anything_is_loaded() {
    if !machine::may_record("port_in_use_is_reported_before_anything_is_loaded") {
        return;
    }
    let taken = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let said = refusal(&Watcher::refused(&["-a", "--listen", &address]), 1);
    assert!(said.contains(&address) && said.contains("another program"), "{said}");
}

#[test]
fn wrong_usage_is_named() {
    for (args, named) in [
        (&["-a", "--threshold", "50"][..], "--threshold"),
        (&["-a", "--severity", "loud"], "--severity"),
        (&["-a", "--config", "/no/such.toml"], "/no/such.toml"),
        (&["-a", "--arm-at", "08:00"], "--arm-at"),
        (&[], "-p PID"),
    ] {
        let said = refusal(&Watcher::refused(args), 2);
        assert!(said.contains(named), "{said}");
    }
}

#[test]
fn a_wrong_configuration_is_named_by_line_and_field() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("watch.toml");
    std::fs::write(&path, "keep = \"10m\"\n\nmax-cpu = \"a lot\"\n").expect("a configuration");
    let said = refusal(&Watcher::refused(&["-a", "--config", path.to_str().expect("UTF-8")]), 2);
    assert!(said.contains("watch.toml, line 3: max-cpu: "), "{said}");
}

#[test]
fn without_permission_it_names_the_capabilities() {
    if !machine::may_record("without_permission_it_names_the_capabilities") {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let output = Command::new("setpriv")
        .args(["--bounding-set", "-bpf,-perfmon,-sys_admin", "--inh-caps", "-bpf,-perfmon,-sys_admin"])
        .arg(wallprof().get_program())
        .args(["watch", "-a", "--listen", "127.0.0.1:0", "--socket"])
        .arg(folder.path().join("ctl.sock"))
        .output()
        .expect("setpriv runs");
    let said = refusal(&output, 3);
    assert!(said.contains("cap_bpf") && said.contains("cap_perfmon"), "{said}");
}

#[test]
fn missing_watcher_is_reported() {
    let output = wallprof().args(["ctl", "status", "--socket", "/no/such.sock"]).output();
    let said = refusal(&output.expect("the wallprof binary runs"), 1);
    assert!(said.contains("/no/such.sock"), "{said}");
}
