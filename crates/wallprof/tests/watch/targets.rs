// SPDX-License-Identifier: Apache-2.0
//! Several targets of a watcher: on the command line, or in the file of `--config`.

use std::collections::BTreeSet;
use std::fs;

use wallprof_testkit::machine;
use wallprof_testkit::recorder::report_from;
use wallprof_testkit::scenario::Scenario;

use crate::watcher::Watcher;

/// Options, and the content of the file.
type Given = (Vec<String>, String);

/// A process with its children and a thread of another one. A second family beside them is not watched.
fn assert_watches(given: &dyn Fn(&Scenario, u32) -> Given) {
    let (mut family, mut beside) = (Scenario::ready("family", &[]), Scenario::ready("family", &[]));
    let mut spin = Scenario::ready("spin", &["-d", "0.3"]);
    let wanted = spin.start.workers()[0].clone();
    let (args, config) = given(&family, wanted.tid);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("watch.toml");
    fs::write(&file, config).expect("a configuration");
    let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
    args.extend(["--config", file.to_str().expect("a UTF-8 path")]);
    let watcher = Watcher::start(&args);
    family.run();
    beside.run();
    spin.run();
    let (status, folder) = watcher.stop();
    assert!(status.success(), "the watcher ended with {status}");
    let threads = report_from(&folder.path().join("flight.db")).threads;
    let names: BTreeSet<&str> = threads.iter().map(|thread| thread.comm.as_str()).collect();
    for name in ["family", "breeder", "heir", "forked", "executed", "daemon", "acolyte", &wanted.name] {
        assert!(names.contains(name), "{name}: {threads:#?}");
    }
    assert_eq!(threads.iter().filter(|thread| thread.comm == "daemon").count(), 1, "{threads:#?}");
    let of_spin: Vec<u32> =
        threads.iter().filter(|thread| thread.pid == spin.start.pid).map(|thread| thread.tid).collect();
    assert_eq!(of_spin, [wanted.tid], "{threads:#?}");
}

#[test]
fn a_process_with_its_children_and_a_thread_of_another() {
    let Some(_guard) = machine::reserve("a_process_with_its_children_and_a_thread_of_another") else {
        return;
    };
    assert_watches(&|family, tid| {
        let args = ["-p", &family.pid(), "--children", "-t", &tid.to_string()].map(str::to_owned);
        (args.to_vec(), "all = true\n".to_owned())
    });
}

#[test]
fn configuration_names_the_targets() {
    let Some(_guard) = machine::reserve("configuration_names_the_targets") else { return };
    assert_watches(&|family, tid| {
        (Vec::new(), format!("pid = {}\nchildren = true\ntid = [{tid}]\nname = \"no-such\"\n", family.pid()))
    });
}
