// SPDX-License-Identifier: Apache-2.0
//! The effect of views, threads, sides and times.

use wallprof_testkit::program::{run, wallprof};

use crate::fixture::{Fixture, MILLI, SECOND};

const KERNEL: &str = "[kernel+0xffffffff81000000]_[k]";

#[test]
fn the_wall_view_shows_all_of_the_time() {
    let fixture = Fixture::new();
    let lines = fixture.folded(&[]);
    assert_eq!(
        lines,
        [
            format!("engine;[unsampled];[preempted] {}", 400 * MILLI),
            format!("engine;main;tick;{KERNEL};[kernel] {}", 400 * MILLI),
            format!("engine;main;tick;[user] {}", 1_200 * MILLI),
            format!("engine;main;tick;take_lock;{KERNEL};[blocked:lock] {}", 2 * SECOND),
            format!("stuck;main;wait_forever;[blocked:lock] {}", 4 * SECOND),
        ],
        "a thread that never wakes has its stack too"
    );
}

#[test]
fn views_threads_and_sides_choose() {
    let fixture = Fixture::new();
    let locking = format!("engine;main;tick;take_lock;{KERNEL};[blocked:lock] {}", 2 * SECOND);
    let engine = ["--thread", "eng*"];
    let off_cpu = fixture.folded(&[&engine[..], &["--view", "off-cpu"]].concat());
    assert_eq!(off_cpu, [format!("engine;[unsampled];[preempted] {}", 400 * MILLI), locking]);
    let on_cpu = fixture.folded(&["--view", "on-cpu", "--kernel"]);
    assert_eq!(
        on_cpu,
        [format!("engine;{KERNEL};[kernel] {}", 400 * MILLI), format!("engine;[user] {}", 1_200 * MILLI)]
    );
    let wakers = fixture.folded(&["--view", "wakers", "--user"]);
    assert_eq!(
        wakers,
        [format!("engine;main;tick;take_lock;[blocked:lock];[woken by];release;main;stuck {}", 2 * SECOND)]
    );
    assert_eq!(fixture.folded(&["--view", "event:cs"]), ["engine;main;tick 28"]);
}

#[test]
fn a_range_shows_the_part_of_a_wait_that_lies_in_it() {
    let fixture = Fixture::new();
    let locking = |arguments: &[&str]| -> Vec<String> {
        let lines = fixture.folded(&[&["--thread", "engine", "--view", "off-cpu"], arguments].concat());
        lines.into_iter().filter(|line| line.contains("[blocked:lock]")).collect()
    };
    let line = |ns| vec![format!("engine;main;tick;take_lock;{KERNEL};[blocked:lock] {ns}")];
    // The wait that ends in the third second has no sample in the second one, where half of it lies.
    assert_eq!(locking(&["--from", "08:00:01.2", "--to", "08:00:01.9"]), line(500 * MILLI));
    assert_eq!(locking(&["--from", "08:00:01", "--to", "2026-11-21T08:00:02Z"]), line(500 * MILLI));
    assert_eq!(locking(&["--from", "+2s"]), line(SECOND));
    assert_eq!(locking(&["--to", "+1ms"]), line(500 * MILLI));
    assert_eq!(locking(&["--from", "1795248000", "--to", "1795248004"]), line(2 * SECOND));
    let stuck = fixture.folded(&["--thread", "stuck", "--from", "+2s", "--to", "+3s"]);
    assert_eq!(stuck, [format!("stuck;main;wait_forever;[blocked:lock] {SECOND}")]);
}

#[test]
fn more_than_was_asked_for_is_said() {
    let fixture = Fixture::new();
    let said = |times: &[&str]| {
        let output = wallprof(&["flame", "fixture.db", "-o", "-"])
            .args(times)
            .current_dir(&fixture.folder)
            .output()
            .unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let sentence = said(&["--from", "08:00:01.2", "--to", "08:00:01.9"]);
    assert!(sentence.contains("08:00:01.000 to 08:00:02.000, more than"), "{sentence}");
    assert!(said(&["--to", "+1ms"]).contains("08:00:00.000 to 08:00:01.000"));
    for exact in [&[][..], &["--from", "+1s"], &["--from", "08:00:01", "--to", "08:00:02"], &["--to", "+9s"]]
    {
        assert_eq!(said(exact), "", "{exact:?}");
    }
}

#[test]
fn the_picture_has_a_default_name() {
    let fixture = Fixture::new();
    let output = wallprof(&["flame", "fixture.db"]).current_dir(&fixture.folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout.is_empty());
    let svg = std::fs::read_to_string(fixture.folder.path().join("wallprof.svg")).unwrap();
    assert!(svg.contains("take_lock (2.00 s, 25.00 %)"), "{svg}");
    assert!(svg.contains("4.00 s from 08:00:00.000000 on 2026-11-21 UTC · 2 threads"), "{svg}");
    assert_eq!(fixture.output(&["flame"]), svg.into_bytes(), "- is the same on stdout");
}

#[test]
fn each_export_has_its_format() {
    let fixture = Fixture::new();
    let folded = String::from_utf8(fixture.output(&["export", "--to", "folded"])).unwrap();
    assert_eq!(folded.lines().collect::<Vec<_>>(), fixture.folded(&[]));
    let speedscope: serde_json::Value =
        serde_json::from_slice(&fixture.output(&["export", "--to", "speedscope"])).unwrap();
    assert_eq!(speedscope["profiles"][0]["endValue"], 4 * SECOND);
    assert_eq!(fixture.output(&["export", "--to", "pprof"])[..2], [0x1f, 0x8b], "gzipped");
}

/// Texts are plain bytes in the file.
#[test]
fn timeline_has_the_selected_threads_and_stacks() {
    let fixture = Fixture::new();
    for format in ["perfetto", "firefox"] {
        let has = |options: &[&str], text: &str| {
            let file = fixture.output(&[&["export", "--to", format], options].concat());
            file.windows(text.len()).any(|window| window == text.as_bytes())
        };
        for (options, present, absent) in [
            (&[][..], &["engine", "stuck", "take_lock", "wait_forever", "_[k]"][..], &["no such"][..]),
            (&["--thread", "stuck"], &["stuck", "wait_forever"], &["take_lock", "engine"]),
            (&["--user"], &["take_lock"], &["_[k]"]),
            (&["--kernel"], &["_[k]"], &["take_lock", "wait_forever"]),
        ] {
            assert!(present.iter().all(|text| has(options, text)), "{format}, {options:?}: {present:?}");
            assert!(!absent.iter().any(|text| has(options, text)), "{format}, {options:?}: {absent:?}");
        }
    }
}

#[test]
fn the_same_recording_gives_the_same_bytes() {
    let fixture = Fixture::new();
    for arguments in [
        &["flame"][..],
        &["flame", "--view", "wakers"],
        &["export", "--to", "folded"],
        &["export", "--to", "speedscope"],
        &["export", "--to", "pprof"],
        &["export", "--to", "perfetto"],
        &["export", "--to", "firefox"],
    ] {
        assert!(fixture.output(arguments) == fixture.output(arguments), "{arguments:?}");
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let fixture = Fixture::new();
    let mut child = wallprof(&["export", "--to", "folded", fixture.path(), "-o", "-"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
    assert!(run(&["flame", "--help"]).status.success());
}
