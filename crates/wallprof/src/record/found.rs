//! Processes that are there before a trace begins: their threads, and the code that they have mapped.

use std::collections::BTreeSet;
use std::fs;

use wallprof_symbols::{MapsLine, executable_maps};

use super::options::Target;

/// A living process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    /// tids with their names.
    pub threads: Vec<(u32, Vec<u8>)>,
    pub maps: Vec<MapsLine>,
}

/// The processes that the target is in; what ends meanwhile is left out.
pub fn processes(target: &Target) -> impl Iterator<Item = Process> {
    pids(target).into_iter().filter_map(process)
}

/// The threads of a process; those that start while they are listed are found as well.
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
        Target::System | Target::Cgroup(_) | Target::Names(_) => numbers("/proc"),
        Target::Processes(pids) => pids.clone(),
        Target::Threads(tids) => {
            let pids: BTreeSet<u32> = tids.iter().filter_map(|&tid| process_of(tid)).collect();
            pids.into_iter().collect()
        }
        // Its program is mapped when it starts.
        Target::Command => Vec::new(),
    }
}

/// The names in a folder that are numbers, in order.
fn numbers(folder: &str) -> Vec<u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut numbers: Vec<u32> =
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}

fn process_of(tid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

/// Threads of the kernel have no memory of their own; the trace is of user code.
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
    fn this_process_is_found_with_its_threads_and_its_program() {
        let pid = std::process::id();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("to be found".into()).spawn(move || {
            let _ = tell.send(());
            let _ = stopped.recv();
        });
        told.recv().unwrap();
        let found: Vec<Process> = processes(&Target::Processes(vec![pid])).collect();
        assert_eq!((found.len(), found[0].pid), (1, pid));
        assert!(found[0].threads.iter().any(|(_, comm)| comm == b"to be found"), "{:?}", found[0].threads);
        let program = std::env::current_exe().unwrap();
        assert!(found[0].maps.iter().any(|line| line.path == program));
        let by_thread: Vec<Process> = processes(&Target::Threads(vec![pid])).collect();
        assert_eq!(by_thread[0].pid, pid);
        drop(stop);
        thread.unwrap().join().unwrap();
    }

    #[test]
    fn who_is_gone_is_left_out() {
        assert_eq!(processes(&Target::Processes(vec![4_194_305])).count(), 0);
        assert!(threads(4_194_305).is_empty());
        assert!(processes(&Target::System).any(|process| process.pid == std::process::id()));
    }
}
