// SPDX-License-Identifier: Apache-2.0
//! `--container` of the readers: threads in containers, and what only they did.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;
use wallprof_testkit::program::{refused, wallprof};

use crate::fixture;

/// Of four threads: the first is in this container, the second in another one, of a pod, the others in none.
const FIRST: &str = "aaaa";
const SECOND: &str = "bbbb";
const POD: &str = "shop/web-1/nginx";

fn recording() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fixture.db");
    let in_container = |start: &str, pod| Some((format!("/docker/{start}{}", "0".repeat(60)), pod));
    fixture::write_in(&path, 4, |number| match number {
        0 => in_container(FIRST, None),
        1 => in_container(SECOND, Some(POD)),
        _ => None,
    });
    (folder, path)
}

fn output(arguments: &[&str]) -> String {
    let output = wallprof(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&output(arguments)).unwrap()
}

fn with<'a>(container: Option<&'a str>, arguments: &[&'a str]) -> Vec<&'a str> {
    let option = container.map(|glob| ["--container", glob]);
    arguments.iter().copied().chain(option.into_iter().flatten()).collect()
}

fn tids(threads: &Value) -> Vec<u64> {
    threads.as_array().unwrap().iter().map(|thread| thread["tid"].as_u64().unwrap()).collect()
}

#[test]
fn report_is_of_the_threads_in_the_container() {
    let (_folder, path) = recording();
    let report = |container| json(&with(container, &["report", "--json", path.to_str().unwrap()]));
    let stalls = |report: &Value| report["threads"][0]["stalls"].as_u64().unwrap();
    assert_eq!(tids(&report(None)["threads"]), [100, 101, 102, 103]);
    let first = report(Some("aaaa*"));
    assert_eq!((tids(&first["threads"]), stalls(&first)), (vec![100], 1));
    assert_eq!(tids(&report(Some("*"))["threads"]), [100, 101], "others are in no container");
    let findings = |report: &Value| report["findings"].to_string();
    assert!(findings(&report(None)).contains("4 times"), "{}", findings(&report(None)));
    assert!(!findings(&first).contains("4 times"), "{}", findings(&first));
    let text = |container| output(&with(container, &["report", path.to_str().unwrap()]));
    assert!(text(None).contains("8.00 ms") && !text(Some("bbbb*")).contains("8.00 ms"));
}

#[test]
fn container_is_named_by_its_pod() {
    let (_folder, path) = recording();
    let file = path.to_str().unwrap();
    let report = json(&["report", "--json", file, "--container", "shop/*"]);
    assert_eq!(tids(&report["threads"]), [101]);
    let in_report = &report["threads"][0];
    let stall = json(&["stalls", "--json", file, "--container", "*/web-1/*"]);
    for named in [in_report, &stall] {
        assert_eq!(named["pod"], POD);
        assert!(named["container"].as_str().unwrap().starts_with(SECOND), "its id: {named}");
    }
    let other = json(&["stalls", "--json", file, "--container", "aaaa*"]);
    assert_eq!(other["pod"], Value::Null);
    let facts = |container| output(&["stalls", "--each", file, "--container", container]);
    let names =
        |text: &str, name: &str| text.lines().any(|line| line.split_whitespace().eq(["container", name]));
    assert!(names(&facts("bbbb*"), POD) && names(&facts("aaaa*"), "aaaa00000000"), "{}", facts("*"));
    let refused = refused(&["report", file, "--container", "shop/web-2/*"], 1);
    assert!(refused.contains(POD), "{refused}");
}

#[test]
fn blame_is_of_the_waiting_in_the_container() {
    let (_folder, path) = recording();
    let waiting_ns = |container| {
        let blame = json(&with(container, &["blame", "--json", path.to_str().unwrap()]));
        blame["edges"].as_array().unwrap().iter().map(|edge| edge["ns"].as_u64().unwrap()).sum::<u64>()
    };
    assert_eq!(
        [None, Some("aaaa*"), Some("bbbb*"), Some("*")].map(waiting_ns),
        [8, 5, 1, 6].map(|ms| ms * 1_000_000)
    );
}

#[test]
fn diff_is_of_the_threads_in_the_container() {
    let (_folder, path) = recording();
    let file = path.to_str().unwrap();
    let threads = |container| {
        let diff = json(&with(container, &["diff", "--json", file, file]));
        diff["threads"][0]["a_threads"].as_u64().unwrap()
    };
    assert_eq!([None, Some("aaaa*"), Some("*")].map(threads), [4, 1, 2]);
}

#[test]
fn tail_is_of_the_spans_of_the_container() {
    let (folder, path) = recording();
    let spans = folder.path().join("spans.csv");
    let rows = |tid: u32, count: u64| {
        (0..count).map(move |at| {
            let start = 1_795_248_000_000_000_000 + at * 1_000_000;
            format!("{start},{},{tid},order\n", start + 500_000)
        })
    };
    fs::write(&spans, rows(100, 5).chain(rows(101, 3)).chain(rows(102, 2)).collect::<String>()).unwrap();
    let file = path.to_str().unwrap();
    output(&["import", "--spans", spans.to_str().unwrap(), file]);
    let count = |container| json(&with(container, &["tail", "--json", file]))["kinds"][0]["count"].as_u64();
    assert_eq!([None, Some("aaaa*"), Some("*")].map(count), [Some(10), Some(5), Some(8)]);
}

#[test]
fn container_without_threads_is_a_sentence() {
    let (folder, path) = recording();
    let outside = folder.path().join("outside.db");
    fixture::write(&outside, 2);
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let (file, outside) = (text(&path), text(&outside));
    for command in [&["report"][..], &["blame"], &["tail"], &["diff", &file]] {
        let sentence = refused(&[command, &[&outside, "--container", "*"]].concat(), 1);
        assert!(sentence.contains("omit --container"), "{sentence}");
        let sentence = refused(&[command, &[&file, "--container", "cccc*"]].concat(), 1);
        assert!(sentence.contains("in a container `cccc*`: there are aaaa0"), "{sentence}");
        let sentence = refused(&[command, &[&file, "--container", "[a"]].concat(), 2);
        assert!(sentence.contains("--container: "), "{sentence}");
    }
}

#[test]
fn container_is_refused_where_it_selects_nothing() {
    let (_folder, path) = recording();
    let file = path.to_str().unwrap();
    for arguments in [&["report", file, "-o", "x.html"][..], &["blame", file, "--what-if", "disk=-50%"]] {
        let sentence = refused(&[arguments, &["--container", "*"]].concat(), 2);
        assert!(sentence.contains("--container"), "{sentence}");
    }
}
