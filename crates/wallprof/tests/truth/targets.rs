// SPDX-License-Identifier: Apache-2.0
//! Exactly the given targets are recorded: threads, CPUs, control groups.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use wallprof_testkit::contract::Report;
use wallprof_testkit::lines::Lines;
use wallprof_testkit::machine;
use wallprof_testkit::recorder::Recorder;
use wallprof_testkit::scenario::program;
use wallprof_testkit::scenario::{Scenario, Truth};

use crate::ledger::{assert_adds_up, thread};

pub fn tids(report: &Report) -> BTreeSet<u32> {
    report.threads.iter().map(|thread| thread.tid).collect()
}

#[test]
fn one_thread_of_several() {
    let Some(_guard) = machine::reserve("one_thread_of_several") else { return };
    let mut scenario = Scenario::ready("spin", &["-d", "1"]);
    let wanted = scenario.start.workers()[0].clone();
    let recorder = Recorder::armed(&["-t", &wanted.tid.to_string()], &[]);
    let truth = scenario.run();
    let report = recorder.stop().report();
    assert_eq!(tids(&report), BTreeSet::from([wanted.tid]));
    let recorded = thread(&report, wanted.tid, &wanted.name);
    assert_adds_up(recorded);
    let life = truth.lives().into_iter().find(|life| life.tid == wanted.tid).expect("a life");
    assert!(recorded.on_cpu_ns >= life.cpu_ns * 99 / 100, "{life:?}: {recorded:#?}");
}

/// The threads are pinned to one CPU: all of their time is on it, and no sample is taken on the other.
#[test]
fn one_cpu_of_several() {
    let Some(_guard) = machine::reserve("one_cpu_of_several") else { return };
    if !machine::may_use_two_cpus() {
        return wallprof_testkit::skip("one_cpu_of_several", "its threads may use one CPU");
    }
    for (cpus, is_theirs) in [("0", true), ("1", false)] {
        let mut scenario = Scenario::ready("pingpong", &["-d", "1", "-c", "0"]);
        let pid = scenario.pid();
        let recorder = Recorder::armed(&["-p", &pid, "-C", cpus], &[]);
        let truth = scenario.run();
        let report = recorder.stop().report();
        for life in truth.lives() {
            let recorded = report.threads.iter().find(|thread| thread.tid == life.tid);
            let on_cpu_ns = recorded.map_or(0, |thread| thread.on_cpu_ns);
            let samples = recorded.map_or(0, |thread| thread.samples);
            if is_theirs {
                assert!(on_cpu_ns >= life.cpu_ns * 99 / 100 && samples > 0, "{life:?}: {recorded:#?}");
            } else {
                // Before it pins itself, at the gate, a thread may have run on any CPU, and then is in the
                // recording.
                assert!(samples == 0, "{life:?}: {recorded:#?}");
            }
        }
    }
}

/// A control group of the test's own. It and its processes are gone when dropped.
pub struct Group {
    pub path: PathBuf,
}

impl Group {
    pub fn new(path: PathBuf) -> Option<Self> {
        fs::create_dir(&path).is_ok().then_some(Group { path })
    }

    fn child(&self) -> Group {
        Group::new(self.path.join("child")).expect("a control group in a control group")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path);
    }
}

/// A shell that starts the scenario as its child when its stdin has a line. Killed when dropped.
pub struct Parent {
    pub child: Child,
    output: Lines,
}

impl Parent {
    pub fn waiting_in(group: &Path) -> Self {
        let script = format!("echo here; read go; '{}' -d 0.4; true", program("spin").display());
        let mut child = Command::new("sh")
            .args(["-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell starts");
        let mut output = Lines::from_pipe("the shell", child.stdout.take().expect("a piped stdout"));
        output.find(|line| line == "here").expect("the shell runs");
        fs::write(group.join("cgroup.procs"), child.id().to_string()).expect("a process enters the group");
        Parent { child, output }
    }

    pub fn go(&mut self) {
        writeln!(self.child.stdin.as_ref().expect("a piped stdin")).expect("the shell reads");
    }

    pub fn truth(&mut self) -> Truth {
        self.output.find(|line| line.starts_with(r#"{"event":"end""#)).expect("an end line");
        self.child.wait().expect("the shell is waited for");
        Truth::from_output(&self.output.seen()[1..].join("\n"))
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Processes in the group, in a group within, and their later children; none beside the group.
fn assert_records_the_group(root: &Path) {
    let group = Group::new(root.join(format!("wallprof-truth-{}", std::process::id())))
        .unwrap_or_else(|| panic!("a control group in {}", root.display()));
    let within = group.child();
    let mut inside = [Parent::waiting_in(&group.path), Parent::waiting_in(&within.path)];
    let mut beside = Parent::waiting_in(root);
    let recorder = Recorder::armed(&["--cgroup", &group.path.display().to_string()], &[]);
    inside.iter_mut().for_each(Parent::go);
    beside.go();
    let mut expected: BTreeSet<u32> = inside.iter().map(|parent| parent.child.id()).collect();
    let truths: Vec<Truth> = inside.iter_mut().map(Parent::truth).collect();
    beside.truth();
    let report = recorder.stop().report();
    expected.extend(truths.iter().flat_map(|truth| &truth.start.threads).map(|thread| thread.tid));
    assert_eq!(tids(&report), expected, "{:#?}", report.threads);
    for life in truths.iter().flat_map(Truth::lives) {
        let recorded = thread(&report, life.tid, &life.name);
        assert_adds_up(recorded);
        assert!(recorded.on_cpu_ns >= life.cpu_ns * 99 / 100, "{life:?}: {recorded:#?}");
    }
}

/// A mounted hierarchy in which this process may make groups.
pub fn writable_root(filesystem: &str) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/mounts").ok()?;
    let of_kind = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (folder, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
        // A cpuset group takes no process before it is given CPUs.
        (kind == filesystem && !options.contains("cpuset")).then(|| PathBuf::from(folder))
    });
    let mut roots: Vec<PathBuf> = of_kind.collect();
    roots.retain(|root| {
        let trial = root.join(format!("wallprof-trial-{}", std::process::id()));
        Group::new(trial).is_some()
    });
    roots.into_iter().next()
}

#[test]
fn a_control_group_of_version_1() {
    let Some(_guard) = machine::reserve("a_control_group_of_version_1") else { return };
    match writable_root("cgroup") {
        Some(root) => assert_records_the_group(&root),
        None => wallprof_testkit::skip("a_control_group_of_version_1", "no cgroup v1 can be made here"),
    }
}

#[test]
fn a_control_group_of_version_2() {
    let Some(_guard) = machine::reserve("a_control_group_of_version_2") else { return };
    match writable_root("cgroup2") {
        Some(root) => assert_records_the_group(&root),
        None => wallprof_testkit::skip("a_control_group_of_version_2", "no cgroup v2 can be made here"),
    }
}

/// A process moves into the group while it is recorded: with all of its threads, and with those of a group
/// within. A process that moved out of it before the recording is not recorded, nor are its children.
fn assert_follows_moves(root: &Path) {
    let group = Group::new(root.join(format!("wallprof-moves-{}", std::process::id())))
        .unwrap_or_else(|| panic!("a control group in {}", root.display()));
    let within = group.child();
    let mut scenario = Scenario::ready("spin", &["-d", "0.3"]);
    let mut left = Parent::waiting_in(&group.path);
    fs::write(root.join("cgroup.procs"), left.child.id().to_string()).expect("a process leaves the group");
    let recorder = Recorder::armed(&["--cgroup", &group.path.display().to_string()], &[]);
    fs::write(within.path.join("cgroup.procs"), scenario.pid()).expect("a process enters the group");
    let truth = scenario.run();
    left.go();
    left.truth();
    let report = recorder.stop().report();
    let expected: BTreeSet<u32> = truth.start.threads.iter().map(|thread| thread.tid).collect();
    assert_eq!(tids(&report), expected, "{:#?}", report.threads);
    for thread in &report.threads {
        assert_adds_up(thread);
    }
    drop(scenario);
}

#[test]
fn a_process_that_moves_into_a_control_group_is_recorded_with_all_its_threads() {
    let name = "a_process_that_moves_into_a_control_group_is_recorded_with_all_its_threads";
    let Some(_guard) = machine::reserve(name) else { return };
    for kind in ["cgroup", "cgroup2"] {
        match writable_root(kind) {
            Some(root) => assert_follows_moves(&root),
            None => wallprof_testkit::skip(name, &format!("no group of kind {kind} can be made here")),
        }
    }
}
