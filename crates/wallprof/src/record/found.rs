// SPDX-License-Identifier: Apache-2.0
//! Processes that exist before a trace starts: their threads, and the code that they have mapped.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use wallprof_symbols::{MapsLine, executable_maps};

use super::target::{GivenTargets, Target};

/// A living process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    /// tids with their names.
    pub threads: Vec<(u32, Vec<u8>)>,
    pub maps: Vec<MapsLine>,
}

/// The processes of the target. Those that end while they are read are left out.
pub fn processes(target: &Target) -> impl Iterator<Item = Process> {
    pids(target).into_iter().filter_map(process)
}

/// The threads of a process, including those that start while they are listed.
pub fn threads(pid: u32) -> Vec<u32> {
    let mut known = Vec::new();
    loop {
        let now = numbers(&format!("/proc/{pid}/task"));
        if now == known {
            return now;
        }
        known = now;
    }
}

fn pids(target: &Target) -> Vec<u32> {
    match target {
        Target::System => numbers("/proc"),
        Target::Given(given) if !given.can_end() => numbers("/proc"),
        Target::Given(given) => {
            let of_threads = given.threads.iter().filter_map(|&tid| process_of(tid));
            let pids: BTreeSet<u32> = started_by(given).into_iter().chain(of_threads).collect();
            pids.into_iter().collect()
        }
        // The trace itself contains its mappings, from the exec on.
        Target::Command => Vec::new(),
    }
}

/// The given processes and, with `--children`, those that they have started so far.
pub fn started_by(given: &GivenTargets) -> Vec<u32> {
    let mut found = given.processes.clone();
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    if given.with_children {
        for pid in numbers("/proc") {
            children.entry(parent_of(pid).unwrap_or_default()).or_default().push(pid);
        }
    }
    let mut at = 0;
    while let Some(parent) = found.get(at) {
        // A child that is itself a target is already in the list.
        found.extend(
            children.remove(parent).unwrap_or_default().iter().filter(|pid| !given.processes.contains(pid)),
        );
        at += 1;
    }
    found
}

/// The numeric names in a folder, in ascending order.
fn numbers(folder: &str) -> Vec<u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut numbers: Vec<u32> =
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}

fn process_of(tid: u32) -> Option<u32> {
    status_number(tid, "Tgid:")
}

fn parent_of(pid: u32) -> Option<u32> {
    status_number(pid, "PPid:")
}

fn status_number(tid: u32, field: &str) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix(field))?.trim().parse().ok()
}

/// `None` for kernel threads, which have no user code to trace.
fn process(pid: u32) -> Option<Process> {
    let maps = executable_maps(pid).ok().filter(|maps| !maps.is_empty())?;
    let named = |tid: u32| {
        let mut comm = fs::read(format!("/proc/{pid}/task/{tid}/comm")).ok()?;
        comm.truncate(comm.len().saturating_sub(1));
        Some((tid, comm))
    };
    let threads = threads(pid).into_iter().filter_map(named).collect();
    Some(Process { pid, threads, maps })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_is_found_with_its_threads_and_its_program() {
        let pid = std::process::id();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("to be found".into()).spawn(move || {
            let _ = ready.send(());
            let _ = stopped.recv();
        });
        is_ready.recv().unwrap();
        let found: Vec<Process> = processes(&Target::processes(&[pid])).collect();
        assert_eq!((found.len(), found[0].pid), (1, pid));
        assert!(found[0].threads.iter().any(|(_, comm)| comm == b"to be found"), "{:?}", found[0].threads);
        let program = std::env::current_exe().unwrap();
        assert!(found[0].maps.iter().any(|line| line.path == program));
        let by_thread: Vec<Process> = processes(&Target::threads(&[pid])).collect();
        assert_eq!(by_thread[0].pid, pid);
        drop(stop);
        thread.unwrap().join().unwrap();
    }

    #[test]
    fn children_are_found_with_their_parents() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "cat; true"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let own = std::process::id();
        let given = |with_children| GivenTargets {
            processes: vec![own, child.id()],
            with_children,
            ..GivenTargets::default()
        };
        assert_eq!(started_by(&given(false)), [own, child.id()]);
        let found = started_by(&given(true));
        assert_eq!(found.iter().filter(|pid| **pid == child.id()).count(), 1, "{found:?}");
        assert_eq!(found[..2], [own, child.id()]);
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn ended_process_is_left_out() {
        assert_eq!(processes(&Target::processes(&[4_194_305])).count(), 0);
        assert!(threads(4_194_305).is_empty());
        assert!(processes(&Target::System).any(|process| process.pid == std::process::id()));
    }
}
