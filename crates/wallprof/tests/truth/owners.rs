//! The owner of a lock is read where the lock says it, and never from data beside another lock.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::Value;

use wallprof_testkit::machine;
use wallprof_testkit::program::run;
use wallprof_testkit::recorder::Recorder;
use wallprof_testkit::scenario::{Scenario, Truth};

#[derive(Debug, Deserialize)]
struct Stuck {
    tid: u32,
    kind: String,
    wants: String,
    /// 0: no memory says it.
    owner: u32,
}

/// The address of the lock for which each thread waits, and the tid of its owner.
type Locks = HashMap<u32, (Option<String>, Option<u32>)>;

fn assert_owners_are_true(truth: &Truth, seen: &Locks, way: &str) {
    for stuck in truth.all::<Stuck>("stuck") {
        let owner = Some(stuck.owner).filter(|tid| *tid != 0);
        let found = seen.get(&stuck.tid).unwrap_or_else(|| panic!("{way}: a lock of {stuck:?} in {seen:?}"));
        assert_eq!(found, &(Some(stuck.wants), owner), "{way}: {}", stuck.kind);
    }
}

/// What `wallprof stacks` sees.
fn at_one_look(pid: &str) -> Locks {
    let output = run(&["stacks", "--json", "-p", pid]);
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let threads = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("an object"));
    let waiting = threads.filter(|thread| !thread["lock"].is_null()).map(|thread| {
        let lock = &thread["lock"];
        let owner = lock["owner"]["tid"].as_u64().map(|tid| tid as u32);
        (thread["tid"].as_u64().expect("a tid") as u32, (lock["address"].as_str().map(str::to_owned), owner))
    });
    waiting.collect()
}

/// The owners that are read at the switch, those that are read while the waits are open, and those of a look.
#[test]
fn owners_are_those_that_the_locks_name() {
    let Some(_guard) = machine::reserve("owners_are_those_that_the_locks_name") else { return };
    let mut scenario = Scenario::ready("owners", &[]);
    let pid = scenario.pid();
    let meanwhile = Recorder::armed(&["-p", &pid, "--name", "waiter"], &[]);
    let truth = scenario.run();
    let recorders = [("switch", meanwhile), ("open", Recorder::armed(&["-p", &pid], &[]))];
    assert_owners_are_true(&truth, &at_one_look(&pid), "stacks");
    for (way, recorder) in recorders {
        let stalls = recorder.stop().stalls(&["--all"]);
        let waits = stalls.iter().filter(|stall| stall.open && stall.comm == "waiter");
        let locks = waits.filter_map(|stall| Some((stall.tid, stall.lock.as_ref()?)));
        let seen: Locks = locks
            .map(|(tid, lock)| (tid, (lock.address.clone(), lock.owner.as_ref().map(|owner| owner.tid))))
            .collect();
        assert_owners_are_true(&truth, &seen, way);
    }
}
