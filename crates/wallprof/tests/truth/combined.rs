// SPDX-License-Identifier: Apache-2.0
//! Targets of several kinds at once, and `--children`: a thread that any target matches is recorded, and no
//! other.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::process::{Child, Command, Stdio};

use serde::Deserialize;
use wallprof_testkit::contract::{Report, Thread};
use wallprof_testkit::machine;
use wallprof_testkit::recorder::Recorder;
use wallprof_testkit::scenario::program;
use wallprof_testkit::scenario::{Scenario, Truth};

use crate::ledger::{assert_adds_up, thread};
use crate::names::Alias;
use crate::targets::{Group, Parent, tids, writable_root};

/// One process of `family`, by its own clocks.
#[derive(Debug, Deserialize)]
struct Life {
    tid: u32,
    name: String,
    start_ns: u64,
    end_ns: u64,
    cpu_ns: u64,
}

fn lives(truth: &Truth) -> Vec<Life> {
    truth.all("life")
}

fn all_tids(truth: &Truth) -> BTreeSet<u32> {
    truth.start.threads.iter().map(|thread| thread.tid).collect()
}

fn pids(report: &Report) -> BTreeSet<u32> {
    report.threads.iter().map(|thread| thread.pid).collect()
}

/// From its first instruction: recorded before it read its clock, with all of its running time.
fn assert_is_whole(report: &Report, life: &Life, truth: &Truth) {
    let recorded = thread(report, life.tid, &life.name);
    assert_adds_up(recorded);
    assert!(recorded.start_ns < truth.epoch_from_mono(life.start_ns), "{life:?}: {recorded:#?}");
    assert!(recorded.end_ns >= truth.epoch_from_mono(life.end_ns), "{life:?}: {recorded:#?}");
    assert!(recorded.on_cpu_ns >= life.cpu_ns * 99 / 100, "{life:?}: {recorded:#?}");
}

/// Forked, cloned, vforked and executed, by a thread, existing before, orphaned, and their children. Another
/// family with the same names runs beside them, and is not recorded.
#[test]
fn children_are_recorded_however_they_come() {
    let Some(_guard) = machine::reserve("children_are_recorded_however_they_come") else { return };
    let mut scenario = Scenario::ready("family", &[]);
    let mut beside = Scenario::ready("family", &[]);
    let recorder = Recorder::armed(&["-p", &scenario.pid(), "--children"], &[]);
    beside.open_gate();
    let truth = scenario.run();
    let others = beside.run();
    let report = recorder.stop().report();
    let names: BTreeSet<String> = lives(&truth).into_iter().map(|life| life.name).collect();
    let expected = ["acolyte", "cloned", "daemon", "executed", "forked", "grandchild", "heir", "of-thread"];
    assert_eq!(names, expected.map(String::from).into());
    for life in lives(&truth) {
        match life.name.as_str() {
            // It existed before.
            "heir" => assert_adds_up(thread(&report, life.tid, "heir")),
            _ => assert_is_whole(&report, &life, &truth),
        }
    }
    assert!(all_tids(&truth).is_subset(&tids(&report)), "{:#?}", report.threads);
    let mut beside: BTreeSet<u32> = lives(&others).iter().map(|life| life.tid).collect();
    beside.extend(all_tids(&others));
    let recorded = tids(&report);
    assert_eq!(recorded.intersection(&beside).collect::<Vec<_>>(), [&0; 0], "{:#?}", report.threads);
}

#[test]
fn without_the_option_children_are_not_recorded() {
    let Some(_guard) = machine::reserve("without_the_option_children_are_not_recorded") else { return };
    for of_thread in [false, true] {
        let mut scenario = Scenario::ready("family", &[]);
        let breeder = scenario.start.tid("breeder");
        let (option, id) = if of_thread { ("-t", breeder) } else { ("-p", scenario.start.pid) };
        let recorder = Recorder::armed(&[option, &id.to_string()], &[]);
        let truth = scenario.run();
        let report = recorder.stop().report();
        let expected = if of_thread { BTreeSet::from([breeder]) } else { all_tids(&truth) };
        assert_eq!(tids(&report), expected, "{:#?}", report.threads);
    }
}

/// A process, a thread of another one, a name that appears later, and a control group: each is recorded as it
/// would be alone.
#[test]
fn targets_of_all_kinds_at_once() {
    let Some(_guard) = machine::reserve("targets_of_all_kinds_at_once") else { return };
    let root = writable_root("cgroup").or_else(|| writable_root("cgroup2"));
    let Some(root) = root else {
        return wallprof_testkit::skip("targets_of_all_kinds_at_once", "no control group can be made here");
    };
    let group = Group::new(root.join(format!("wallprof-combined-{}", std::process::id())))
        .unwrap_or_else(|| panic!("a control group in {}", root.display()));
    let mut processes = [(); 2].map(|()| Scenario::ready("family", &[]));
    let mut of_threads = Scenario::ready("spin", &["-d", "0.3"]);
    let wanted = of_threads.start.workers()[0].clone();
    let mut inside = Parent::waiting_in(&group.path);
    let feed = Alias::new(&program("spin"), "feedhandler");
    let other = Alias::new(&program("spin"), "other");
    let list = processes.each_ref().map(Scenario::pid).join(",");
    let recorder = Recorder::armed(
        &[
            "-p",
            &list,
            "-t",
            &wanted.tid.to_string(),
            "--name",
            "feed*",
            "--cgroup",
            &group.path.display().to_string(),
        ],
        &[],
    );
    let truths = processes.each_mut().map(Scenario::run);
    let of_threads = of_threads.run();
    inside.go();
    let within = inside.truth();
    let named = feed.run(&["-d", "0.2"]);
    other.run(&["-d", "0.1"]);
    let report = recorder.stop().report();
    let mut expected: BTreeSet<u32> = truths.iter().flat_map(all_tids).collect();
    expected.extend(all_tids(&named));
    expected.extend(all_tids(&within));
    expected.extend([wanted.tid, inside.child.id()]);
    assert_eq!(tids(&report), expected, "{:#?}", report.threads);
    for life in [&of_threads, &within, &named].into_iter().flat_map(Truth::lives) {
        if expected.contains(&life.tid) {
            let recorded = thread(&report, life.tid, &life.name);
            assert_adds_up(recorded);
            assert!(recorded.on_cpu_ns >= life.cpu_ns * 99 / 100, "{life:?}: {recorded:#?}");
        }
    }
}

/// A shell that reads a line and then becomes the scenario `spin`.
struct Becoming {
    child: Child,
}

impl Becoming {
    fn start(name: &Alias) -> Self {
        let script = format!("read go; exec '{}' -d 0.2", program("spin").display());
        let child = Command::new(&name.path)
            .args(["-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell starts");
        Becoming { child }
    }

    fn become_it(mut self) -> Truth {
        writeln!(self.child.stdin.take().expect("a piped stdin")).expect("the shell reads");
        let output = self.child.wait_with_output().expect("the shell is waited for");
        Truth::from_output(&String::from_utf8(output.stdout).expect("UTF-8 from the scenario"))
    }
}

/// A process that no longer has the name stays where another target matches it. Its twin, which only had the
/// name, leaves the recording.
#[test]
fn exec_to_another_name_ends_a_recording_by_name() {
    let Some(_guard) = machine::reserve("exec_to_another_name_ends_a_recording_by_name") else {
        return;
    };
    let shell = Alias::new(std::path::Path::new("/bin/sh"), "caterpillar");
    let (given, named) = (Becoming::start(&shell), Becoming::start(&shell));
    let pid = given.child.id().to_string();
    let recorder = Recorder::armed(&["-p", &pid, "--name", "caterpillar"], &[]);
    let stays = given.become_it();
    let leaves = named.become_it();
    let report = recorder.stop().report();
    assert_eq!(pids(&report), BTreeSet::from([stays.start.pid, leaves.start.pid]));
    for life in stays.lives() {
        let recorded = thread(&report, life.tid, &life.name);
        assert_adds_up(recorded);
        assert!(recorded.on_cpu_ns >= life.cpu_ns * 99 / 100, "{life:?}: {recorded:#?}");
    }
    let of_leaving: Vec<&Thread> =
        report.threads.iter().filter(|thread| thread.pid == leaves.start.pid).collect();
    let [before] = of_leaving[..] else { panic!("{of_leaving:#?}") };
    assert!(before.end_ns <= leaves.epoch_from_mono(leaves.lives()[0].start_ns), "{before:#?}");
}

/// The given process ends long before its children.
#[test]
fn with_children_a_recording_ends_with_the_last_of_them() {
    let Some(_guard) = machine::reserve("with_children_a_recording_ends_with_the_last_of_them") else {
        return;
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let gate = folder.path().join("gate");
    let truth = folder.path().join("truth");
    assert!(Command::new("mkfifo").arg(&gate).status().is_ok_and(|status| status.success()));
    let script = format!(
        "read go; (read go < '{}'; exec '{}' -d 0.2 > '{}') &",
        gate.display(),
        program("spin").display(),
        truth.display()
    );
    let mut parent =
        Command::new("sh").args(["-c", &script]).stdin(Stdio::piped()).spawn().expect("a shell starts");
    let recorder = Recorder::armed(&["-p", &parent.id().to_string(), "--children"], &[]);
    writeln!(parent.stdin.take().expect("a piped stdin")).expect("the shell reads");
    parent.wait().expect("the parent is waited for");
    fs::write(&gate, "go\n").expect("the orphan reads");
    let (status, recording) = recorder.wait();
    assert!(status.success(), "the recorder ended with {status}");
    let truth = Truth::from_output(&fs::read_to_string(&truth).expect("the scenario has ended"));
    let report = recording.report();
    for life in truth.lives() {
        let recorded = thread(&report, life.tid, &life.name);
        assert_adds_up(recorded);
        assert!(recorded.on_cpu_ns >= life.cpu_ns * 99 / 100, "{life:?}: {recorded:#?}");
    }
}

/// A missing pid and a missing tid are named, and nothing is recorded.
#[test]
fn of_several_targets_the_missing_one_is_named() {
    if !machine::may_record("of_several_targets_the_missing_one_is_named") {
        return;
    }
    let own = std::process::id().to_string();
    for (args, missing) in [
        (["-p", &own, "-t", "4194304", "--name", "x"], "no thread 4194304"),
        (["-p", "4194304", "-t", &own, "--name", "x"], "no process 4194304"),
        (["-p", &own, "--name", "x", "--cgroup", "/no/such/group"], "no cgroup /no/such/group"),
    ] {
        let output =
            wallprof_testkit::recorder::wallprof().arg("record").args(args).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(missing) && said.lines().count() == 1, "{said}");
    }
}
