// SPDX-License-Identifier: Apache-2.0
//! `doctor` on any machine.

use std::process::Stdio;

use wallprof_testkit::program::{run, wallprof};

#[test]
fn every_missing_feature_has_its_consequence() {
    let output = run(&["doctor"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let blocked = text.lines().any(|line| line.starts_with("NO "));
    assert_eq!(output.status.code(), Some(if blocked { 3 } else { 0 }), "{text}");
    let mut lines = text.lines().peekable();
    assert!(lines.next().unwrap().starts_with("kernel "));
    while let Some(line) = lines.next() {
        if line.starts_with("NO ") || line.starts_with("less ") {
            assert!(
                lines.peek().is_some_and(|next| next.starts_with("     ")),
                "{line} says nothing of its cost"
            );
        }
    }
    assert!(text.contains("permissions") && text.contains("type information"));
}

#[test]
fn without_capabilities_recording_is_refused_with_three() {
    // setpriv is part of every Debian (util-linux). Without root the caller has no capabilities to drop.
    let mut doctor = wallprof(&["doctor"]);
    if rustix::process::geteuid().is_root() {
        doctor = std::process::Command::new("setpriv");
        doctor.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all"]);
        doctor.arg(wallprof_testkit::recorder::binary()).arg("doctor");
    }
    let output = match doctor.stdin(Stdio::null()).output() {
        Ok(output) if !String::from_utf8_lossy(&output.stderr).contains("Permission denied") => output,
        other => {
            let reason = format!("the binary cannot be run as another user here: {other:?}");
            return wallprof_testkit::skip("without_capabilities_recording_is_refused_with_three", &reason);
        }
    };
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(text.contains("cap_bpf and cap_perfmon") && text.contains("setcap"), "{text}");
}
