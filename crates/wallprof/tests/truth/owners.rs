// SPDX-License-Identifier: Apache-2.0
//! The owner of a lock is read where the lock says it, and never from data beside another lock.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::Value;

use wallprof_testkit::contract::Stall;
use wallprof_testkit::program::run;
use wallprof_testkit::recorder::Recorder;
use wallprof_testkit::scenario::{Scenario, Truth, program};
use wallprof_testkit::{excuse, machine, skip, stored};

#[derive(Debug, Deserialize)]
struct Stuck {
    tid: u32,
    kind: String,
    /// 0: it is no lock.
    wants: String,
    /// 0: no memory says it.
    owner: u32,
}

/// The reason of each thread's wait, the address of its lock, and the tid of the lock's owner.
type Waits = HashMap<u32, (String, Option<String>, Option<u32>)>;

fn assert_owners_are_true(truth: &Truth, seen: &Waits, way: &str) {
    let all = truth.all::<Stuck>("stuck");
    assert!(all.len() > 20, "{all:?}");
    for stuck in all {
        let owner = Some(stuck.owner).filter(|tid| *tid != 0);
        let lock = Some(stuck.wants.clone()).filter(|address| address != "0");
        let reason = if lock.is_some() { "lock" } else { "wait" };
        let found = seen.get(&stuck.tid).unwrap_or_else(|| panic!("{way}: a wait of {stuck:?} in {seen:?}"));
        assert_eq!(found, &(reason.to_string(), lock, owner), "{way}: {}", stuck.kind);
    }
}

/// What `wallprof stacks` sees.
fn at_one_look(pid: &str) -> Waits {
    let output = run(&["stacks", "--json", "-p", pid]);
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let threads = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("an object"));
    let blocked = threads.filter_map(|thread| {
        let lock = &thread["lock"];
        let wait = (
            thread["reason"].as_str()?.to_owned(),
            lock["address"].as_str().map(str::to_owned),
            lock["owner"]["tid"].as_u64().map(|tid| tid as u32),
        );
        Some((thread["tid"].as_u64()? as u32, wait))
    });
    blocked.collect()
}

/// The owners that are read at the switch, those that are read while the waits are open, and those of a look.
fn assert_locks_of(ready: impl FnOnce() -> Scenario) {
    let mut scenario = ready();
    let pid = scenario.pid();
    let meanwhile = Recorder::armed(&["-p", &pid, "--name", "waiter"], &[]);
    let truth = scenario.run();
    let recorders = [("switch", meanwhile), ("open", Recorder::armed(&["-p", &pid], &[]))];
    assert_owners_are_true(&truth, &at_one_look(&pid), "stacks");
    for (way, recorder) in recorders {
        let stalls = recorder.stop().stalls(&["--all"]);
        let waits = stalls.into_iter().filter(|stall| stall.open && stall.comm == "waiter");
        let seen: Waits = waits
            .map(|stall| {
                let lock = stall.lock.as_ref();
                let address = lock.and_then(|lock| lock.address.clone());
                let owner = lock.and_then(|lock| lock.owner.as_ref()).map(|owner| owner.tid);
                (stall.tid, (stall.reason.clone(), address, owner))
            })
            .collect();
        assert_owners_are_true(&truth, &seen, way);
    }
}

#[test]
fn owners_are_those_that_the_locks_name() {
    let Some(_guard) = machine::reserve("owners_are_those_that_the_locks_name") else { return };
    assert_locks_of(|| Scenario::ready("owners", &[]));
}

/// The words of condition variables have been other ones since glibc 2.41.
#[test]
fn owners_of_glibc_2_41_are_those_that_the_locks_name() {
    let test = "owners_of_glibc_2_41_are_those_that_the_locks_name";
    let Some(_guard) = machine::reserve(test) else { return };
    let Some(scenario) = Scenario::ready_on_trixie("owners", &[]) else {
        return skip(test, "tests/debian/libc.sh could not download the C library of Debian 13");
    };
    assert_locks_of(|| scenario);
}

#[test]
fn owners_of_musl_are_those_that_the_locks_name() {
    let test = "owners_of_musl_are_those_that_the_locks_name";
    let Some(_guard) = machine::reserve(test) else { return };
    if !program("owners-musl").exists() {
        return skip(test, "musl-gcc is not installed: Debian package musl-tools");
    }
    assert_locks_of(|| Scenario::ready("owners-musl", &[]));
}

fn has_kernel_function(stall: &Stall, function: &str) -> bool {
    stall.kernel_stack.iter().flatten().any(|frame| frame.symbol.as_deref() == Some(function))
}

#[test]
fn page_faults_that_wait_for_the_memory_map_name_its_writer() {
    let Some(_run) = stored::run("page_faults_that_wait_for_the_memory_map_name_its_writer") else {
        return;
    };
    let mut scenario = Scenario::ready("mapper", &["-p", "-d", "4"]);
    let recorder = Recorder::armed(&["-p", &scenario.pid()], &[]);
    scenario.run();
    let stalls = recorder.stop().stalls(&["--all", "--thread", "worker"]);
    let faults: Vec<&Stall> = stalls.iter().filter(|stall| stall.kind == "fault").collect();
    let (waits, others): (Vec<&Stall>, Vec<&Stall>) =
        faults.iter().copied().partition(|fault| has_kernel_function(fault, "rwsem_down_read_slowpath"));
    assert!(waits.len() >= 20, "{} of {} page faults waited for the lock", waits.len(), faults.len());
    let owner = |fault: &&Stall| fault.lock.clone().and_then(|lock| lock.owner);
    let hoarders: Vec<_> = waits.iter().filter_map(owner).filter(|owner| owner.comm == "hoarder").collect();
    // The writer can let go after the fault has begun to wait, and before it sleeps.
    assert!(hoarders.len() * 20 >= waits.len() * 19, "{} of {} name it", hoarders.len(), waits.len());
    let inside = hoarders.iter().filter(|owner| owner.user_stack_has("protect_memory")).count();
    assert!(inside * 20 >= hoarders.len() * 19, "{inside} of {} are in protect_memory", hoarders.len());
    let named = others.iter().filter(|fault| fault.lock.is_some()).count();
    assert_eq!(named, 0, "of {} page faults that waited for no lock", others.len());
}

#[derive(Debug, Deserialize)]
struct StuckInKernel {
    pid: u32,
    tid: u32,
    owner: u32,
}

/// Kernels before 6.16 do not keep for which of their own locks a thread sleeps.
fn kernel_keeps_the_lock() -> bool {
    let types = std::fs::read("/sys/kernel/btf/vmlinux").expect("the kernel's types");
    types.windows(9).any(|name| name == b"\0blocker\0")
}

/// What a look and the open waits of a recording say of waits that began before.
#[test]
fn owner_of_a_lock_of_the_kernel_is_named_though_the_wait_began_before() {
    let test = "owner_of_a_lock_of_the_kernel_is_named_though_the_wait_began_before";
    let Some(_guard) = machine::reserve(test) else { return };
    if !kernel_keeps_the_lock() {
        return excuse(test, "the whole test", "this kernel does not keep for which lock a thread sleeps");
    }
    let mut scenario = Scenario::ready("kernel_locks", &[]);
    scenario.open_gate();
    let truth = scenario.finish_stuck();
    let stuck = truth.all::<StuckInKernel>("stuck");
    if stuck.is_empty() {
        return excuse(test, "the whole test", "userfaultfd is not permitted");
    }
    assert_eq!(stuck.len(), 3);
    for StuckInKernel { pid, tid, owner } in &stuck {
        // The holder of importer's lock is in another process.
        let output = run(&["stacks", "--json", "-p", &pid.to_string()]);
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        let threads = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("an object"));
        let threads: HashMap<u64, Value> =
            threads.map(|thread| (thread["tid"].as_u64().expect("a tid"), thread)).collect();
        assert!(threads.values().all(|thread| thread["pid"] == *pid), "holders are no targets: {threads:#?}");
        let thread = &threads[&u64::from(*tid)];
        assert_eq!((&thread["state"], &thread["reason"]), (&"blocked".into(), &"lock".into()), "{thread:#}");
        let lock = &thread["lock"];
        assert!(lock["address"].is_null(), "{lock:#}");
        assert_eq!(lock["owner"]["tid"].as_u64(), Some(u64::from(*owner)), "{thread:#}");
        let stack = lock["owner"]["user_stack"].as_array().expect("a stack");
        assert!(stack.iter().any(|frame| frame["symbol"] == "save_record"), "{lock:#}");
    }
    let pid = scenario.pid();
    let stalls = Recorder::armed(&["-p", &pid], &[]).stop().stalls(&["--all"]);
    for StuckInKernel { tid, owner, .. } in stuck.iter().filter(|stuck| stuck.pid.to_string() == pid) {
        let stall = stalls.iter().find(|stall| stall.tid == *tid && stall.open).expect("an open stall");
        let named = stall.lock.as_ref().and_then(|lock| lock.owner.as_ref()).map(|owner| owner.tid);
        assert_eq!((stall.reason.as_str(), named), ("lock", Some(*owner)), "{stall:#?}");
    }
}
