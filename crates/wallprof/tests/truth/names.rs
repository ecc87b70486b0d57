// SPDX-License-Identifier: Apache-2.0
//! `record --name`: each process or thread that gets such a name is recorded from then on.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use wallprof_testkit::contract::Report;
use wallprof_testkit::machine;
use wallprof_testkit::recorder::Recorder;
use wallprof_testkit::scenario::program;
use wallprof_testkit::scenario::{Scenario, Truth};

use crate::ledger::{assert_adds_up, thread};

/// A program under another name, after which the kernel names its process.
pub struct Alias {
    _folder: TempDir,
    pub path: PathBuf,
}

impl Alias {
    pub fn new(program: &Path, name: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join(name);
        symlink(program, &path).expect("a symbolic link");
        Alias { _folder: folder, path }
    }

    pub fn run(&self, args: &[&str]) -> Truth {
        let output = Command::new(&self.path).args(args).output().expect("the program runs");
        assert!(output.status.success(), "{output:?}");
        Truth::from_output(&String::from_utf8(output.stdout).expect("UTF-8 from the scenario"))
    }
}

/// Every thread of that life is in the report with its whole time.
fn assert_is_reported(report: &Report, truth: &Truth, process: &str) {
    let first = thread(report, truth.start.pid, process);
    assert_adds_up(first);
    let born = truth.epoch_from_mono(truth.lives().iter().map(|life| life.start_ns).min().expect("a life"));
    assert!(first.start_ns < born, "from its exec on, not from its first thread on: {first:#?}");
    for life in truth.lives() {
        let recorded = thread(report, life.tid, &life.name);
        assert_eq!((recorded.pid, recorded.process.as_str()), (truth.start.pid, process));
        assert_adds_up(recorded);
        assert!(recorded.on_cpu_ns >= life.cpu_ns * 99 / 100, "{life:?}: {recorded:#?}");
        assert!(recorded.wall_ns >= (life.end_ns - life.start_ns) * 99 / 100, "{life:?}: {recorded:#?}");
    }
}

fn pids(report: &Report) -> BTreeSet<u32> {
    report.threads.iter().map(|thread| thread.pid).collect()
}

#[test]
fn both_lives_of_a_program_that_dies_and_starts_again() {
    let Some(_guard) = machine::reserve("both_lives_of_a_program_that_dies_and_starts_again") else { return };
    let feed = Alias::new(&program("spin"), "feedhandler");
    let beside = Alias::new(&program("spin"), "other");
    let recorder = Recorder::armed(&["--name", "feed*", "--name", "no-other"], &[]);
    let lives = [feed.run(&["-d", "0.4"]), feed.run(&["-d", "0.4"])];
    beside.run(&["-d", "0.1"]);
    let report = recorder.stop().report();
    lives.iter().for_each(|truth| assert_is_reported(&report, truth, "feedhandler"));
    assert_eq!(pids(&report), lives.iter().map(|truth| truth.start.pid).collect());
}

#[test]
fn running_program_is_found_by_the_name_of_its_file() {
    let name = "running_program_is_found_by_the_name_of_its_file";
    let Some(_guard) = machine::reserve(name) else { return };
    let mut running = Scenario::ready("spin", &["-d", "0.3", "-t", "user"]);
    let recorder = Recorder::armed(&["--name", "spin"], &[]);
    let before = running.run();
    let later = Alias::new(&program("spin"), "alias").run(&["-d", "0.3"]);
    let report = recorder.stop().report();
    assert_is_reported(&report, &later, "alias");
    assert_eq!(pids(&report), BTreeSet::from([before.start.pid, later.start.pid]));
    for life in before.lives() {
        assert!(thread(&report, life.tid, &life.name).on_cpu_ns >= life.cpu_ns * 99 / 100, "{life:?}");
    }
}

/// The thread names itself after it has started.
#[test]
fn a_threads_name_records_that_thread() {
    let Some(_guard) = machine::reserve("a_threads_name_records_that_thread") else { return };
    let running = Scenario::ready("spin", &["-d", "0.3"]);
    let recorder = Recorder::armed(&["--name", "hal?"], &[]);
    let later = Alias::new(&program("spin"), "host").run(&["-d", "0.3"]);
    let report = recorder.stop().report();
    let mut expected: Vec<u32> = vec![running.start.tid("half"), later.start.tid("half")];
    let mut found: Vec<u32> = report.threads.iter().map(|thread| thread.tid).collect();
    expected.sort();
    found.sort();
    assert_eq!(found, expected, "{:#?}", report.threads);
    let life = later.lives().into_iter().find(|life| life.name == "half").expect("a life");
    let recorded = thread(&report, life.tid, "half");
    assert_adds_up(recorded);
    assert!(recorded.on_cpu_ns >= life.cpu_ns * 99 / 100, "{life:?}: {recorded:#?}");
}

/// `true` lives for a millisecond or less. The second of two threads with one pid is another thread.
#[test]
fn brief_processes_and_reused_pids_are_recorded() {
    let Some(_guard) = machine::reserve("brief_processes_and_reused_pids_are_recorded") else { return };
    let gnat = Alias::new(Path::new("/bin/true"), "gnat");
    let recorder = Recorder::armed(&["--name", "gnat", "--name", "first", "--name", "second"], &[]);
    let runs = (0..20).map(|_| {
        let mut child = Command::new(&gnat.path).spawn().expect("the program runs");
        assert!(child.wait().expect("the child is waited for").success());
        child.id()
    });
    let gnats: BTreeSet<u32> = runs.collect();
    let truth = Alias::new(&program("lifecycle"), "nest").run(&["-n", "1"]);
    let report = recorder.stop().report();
    let recorded = report.threads.iter().filter(|thread| thread.comm == "gnat");
    assert_eq!(recorded.clone().map(|thread| thread.tid).collect::<BTreeSet<_>>(), gnats);
    recorded.for_each(assert_adds_up);
    let named = |name: &str| report.threads.iter().filter(|thread| thread.comm == name).collect::<Vec<_>>();
    let [first] = named("first")[..] else { panic!("{:#?}", named("first")) };
    assert!(truth.start.pid != first.pid, "only the child has the name");
    // Where the kernel lets the scenario set a pid, the second one has the first one's.
    if let [second] = named("second")[..] {
        assert!(second.tid != first.tid || second.start_ns >= first.end_ns, "{first:#?} {second:#?}");
    }
}

#[test]
fn program_that_execs_another_name_leaves_the_recording() {
    let Some(_guard) = machine::reserve("program_that_execs_another_name_leaves_the_recording") else {
        return;
    };
    let shell = Alias::new(Path::new("/bin/sh"), "caterpillar");
    let recorder = Recorder::armed(&["--name", "caterpillar"], &[]);
    let spin = program("spin");
    let script = format!("exec '{}' -d 0.2", spin.display());
    let truth = shell.run(&["-c", &script]);
    let report = recorder.stop().report();
    let [before] = &report.threads[..] else { panic!("{:#?}", report.threads) };
    assert_eq!(before.pid, truth.start.pid);
    assert!(before.end_ns <= truth.epoch_from_mono(truth.lives()[0].start_ns), "{before:#?}");
    assert_adds_up(before);
}

#[test]
fn a_name_that_never_comes() {
    let Some(_guard) = machine::reserve("a_name_that_never_comes") else { return };
    let recorder = Recorder::armed(&["--name", "no such name"], &[]);
    let (status, said) = recorder.interrupt();
    assert_eq!(status.code(), Some(4), "{said:#?}");
    let last = said.last().expect("a sentence");
    assert!(last.contains("no such name") && last.starts_with("wallprof: "), "{said:#?}");
    assert_eq!(said.len(), 2, "that it began, and that nothing came: {said:#?}");
}
