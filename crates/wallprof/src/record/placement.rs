// SPDX-License-Identifier: Apache-2.0
//! The CPUs on which the recorder itself runs: beside what it records, where there is room.
//!
//! A CPU that is guarded or isolated belongs to others. A process that is bound to some CPUs, or a cgroup
//! with a cpuset, leaves the rest to the recorder. The choice is made once, at the start.

use std::collections::BTreeSet;
use std::path::Path;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use wallprof_meaning::Glob;
use wallprof_probe::cpus::cpus_from_list;
use wallprof_probe::facts::files::Files;

use crate::failure::Failure;
use crate::guarded::Guarded;
use crate::record::options::RecordOptions;
use crate::record::target::{GivenTargets, Target};

type Cpus = BTreeSet<u32>;

/// Threads whose CPUs are read; with more of them, all CPUs count as used.
const MOST_THREADS: usize = 4096;

/// Binds the calling thread, and the threads that it starts from now on.
///
/// # Errors
/// None of the CPUs of `--recorder-cpus` can be used.
pub fn place(options: &RecordOptions, files: &dyn Files) -> Result<(), Failure> {
    if let Some(cpus) = &options.recorder_cpus {
        let listed: Vec<String> = cpus.iter().map(u32::to_string).collect();
        return bind(cpus.iter().copied()).map_err(|error| {
            Failure::failed(format!(
                "cannot run on CPU {} (--recorder-cpus): {error}: give CPUs that are online and in wallprof's \
                 cpuset",
                listed.join(",")
            ))
        });
    }
    // Without them, or on a machine of more than 1,024 CPUs, the scheduler chooses.
    let Ok(own) = sched_getaffinity(None) else { return Ok(()) };
    let own: Cpus = (0..CpuSet::MAX_CPU as u32).filter(|&cpu| own.is_set(cpu as usize)).collect();
    let guarded = options.guarded.clone().or_isolated(files);
    if let Some(cpus) = choose(&own, &guarded, || used(&options.target, &own, files)) {
        // What cannot be had is no reason not to record.
        let _ = bind(cpus.into_iter());
    }
    Ok(())
}

fn bind(cpus: impl Iterator<Item = u32>) -> rustix::io::Result<()> {
    let mut set = CpuSet::new();
    for cpu in cpus {
        if cpu as usize >= CpuSet::MAX_CPU {
            return Err(rustix::io::Errno::INVAL);
        }
        set.set(cpu as usize);
    }
    sched_setaffinity(None, &set)
}

/// Of the CPUs that the recorder may use, those that it should use; `None`: all of them.
fn choose(own: &Cpus, guarded: &Guarded, used: impl FnOnce() -> Cpus) -> Option<Cpus> {
    let guarded: Cpus = guarded.cpus.iter().copied().collect();
    let open: Cpus = own - &guarded;
    if open.is_empty() {
        return None;
    }
    let free = &open - &used();
    let chosen = if free.is_empty() { open } else { free };
    (chosen != *own).then_some(chosen)
}

/// The CPUs on which the targets may run now; all of `own` where that is not known.
fn used(target: &Target, own: &Cpus, files: &dyn Files) -> Cpus {
    let Target::Given(given) = target else { return own.clone() };
    let mut used = Cpus::new();
    let mut left = MOST_THREADS;
    for task in tasks(given, files) {
        let known = left.checked_sub(1).and_then(|next| {
            left = next;
            cpus_from_list(field(&files.read(task.as_ref()).ok()?, "Cpus_allowed_list:")?).ok()
        });
        // A thread that has ended meanwhile is none.
        match known {
            Some(cpus) => used.extend(cpus),
            None if left == 0 => return own.clone(),
            None => {}
        }
        if own.is_subset(&used) {
            return used;
        }
    }
    if let Some(group) = &given.cgroup {
        let list = files.read(&group.join("cpuset.cpus.effective")).ok();
        match list.and_then(|list| cpus_from_list(&list).ok()).filter(|cpus| !cpus.is_empty()) {
            Some(cpus) => used.extend(cpus),
            None => return own.clone(),
        }
    }
    match used.is_empty() {
        // Names that no process has yet.
        true => own.clone(),
        false => used,
    }
}

/// The status files of the targets' threads.
fn tasks<'a>(given: &'a GivenTargets, files: &'a dyn Files) -> impl Iterator<Item = String> + 'a {
    let globs: Vec<Glob> = given.names.iter().filter_map(|name| Glob::new(name).ok()).collect();
    let named = (if globs.is_empty() { Vec::new() } else { ids(Path::new("/proc"), files) })
        .into_iter()
        .filter(move |pid| {
            let name = files.read(format!("/proc/{pid}/comm").as_ref()).unwrap_or_default();
            globs.iter().any(|glob| glob.matches(name.trim_end()))
        });
    let threads_of = |pid: u32| {
        let threads = ids(format!("/proc/{pid}/task").as_ref(), files);
        threads.into_iter().map(move |tid| format!("/proc/{pid}/task/{tid}/status"))
    };
    let single = given.threads.iter().map(|tid| format!("/proc/{tid}/status"));
    given.processes.iter().copied().chain(named).flat_map(threads_of).chain(single)
}

fn ids(folder: &Path, files: &dyn Files) -> Vec<u32> {
    files.list(folder).unwrap_or_default().iter().filter_map(|name| name.parse().ok()).collect()
}

/// The value of a line of /proc/PID/status (proc_pid_status(5)).
fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io;
    use std::path::PathBuf;

    use super::*;

    /// Threads by pid and tid: a name and a list of CPUs. The cgroup /g has a cpuset, /h has none.
    struct Machine(BTreeMap<(u32, u32), (&'static str, &'static str)>);

    impl Files for Machine {
        fn read(&self, path: &Path) -> io::Result<String> {
            let gone = || io::Error::from(io::ErrorKind::NotFound);
            let parts: Vec<&str> = path.iter().skip(1).filter_map(|part| part.to_str()).collect();
            let number = |text: &str| text.parse::<u32>().map_err(|_| gone());
            let of = |pid, tid| self.0.get(&(pid, tid)).ok_or_else(gone);
            match parts[..] {
                ["g", "cpuset.cpus.effective"] => Ok("4-5\n".into()),
                ["proc", pid, "comm"] => Ok(format!("{}\n", of(number(pid)?, number(pid)?)?.0)),
                ["proc", pid, "task", tid, "status"] => {
                    Ok(format!("Name:\tx\nCpus_allowed_list:\t{}\n", of(number(pid)?, number(tid)?)?.1))
                }
                ["proc", tid, "status"] => {
                    let tid = number(tid)?;
                    let (_, found) = self.0.iter().find(|(key, _)| key.1 == tid).ok_or_else(gone)?;
                    Ok(format!("Cpus_allowed_list:\t{}\n", found.1))
                }
                _ => Err(gone()),
            }
        }
        fn list(&self, path: &Path) -> io::Result<Vec<String>> {
            let pid = path.iter().nth(2).and_then(|part| part.to_str()?.parse::<u32>().ok());
            let of_pid = self.0.keys().filter(|key| pid.is_none_or(|pid| key.0 == pid));
            Ok(of_pid.map(|key| if pid.is_some() { key.1.to_string() } else { key.0.to_string() }).collect())
        }
        fn link(&self, _: &Path) -> io::Result<PathBuf> {
            Err(io::ErrorKind::NotFound.into())
        }
        fn exists(&self, _: &Path) -> bool {
            false
        }
    }

    fn machine() -> Machine {
        Machine(BTreeMap::from([
            ((7, 7), ("engine", "0")),
            ((7, 8), ("engine", "1-2")),
            ((9, 9), ("shell", "0-5")),
        ]))
    }

    fn chosen(target: Target, guarded: &[u32]) -> Option<Vec<u32>> {
        let own: Cpus = (0..6).collect();
        let guarded = Guarded { cpus: guarded.to_vec(), ..Guarded::default() };
        let chosen = choose(&own, &guarded, || used(&target, &own, &machine()))?;
        Some(chosen.into_iter().collect())
    }

    #[test]
    fn recorder_runs_beside_what_is_bound() {
        assert_eq!(chosen(Target::processes(&[7]), &[]), Some(vec![3, 4, 5]));
        assert_eq!(chosen(Target::threads(&[8]), &[]), Some(vec![0, 3, 4, 5]));
        assert_eq!(chosen(Target::names(&["eng*"]), &[]), Some(vec![3, 4, 5]));
        assert_eq!(chosen(Target::cgroup("/g"), &[]), Some(vec![0, 1, 2, 3]));
        let all = [Target::System, Target::Command, Target::processes(&[9]), Target::processes(&[7, 9])];
        let unknown = [Target::names(&["none"]), Target::cgroup("/h"), Target::processes(&[99])];
        for target in all.into_iter().chain(unknown) {
            assert_eq!(chosen(target.clone(), &[]), None, "{target:?}");
        }
    }

    #[test]
    fn recorder_does_not_run_on_guarded_cpus() {
        assert_eq!(chosen(Target::System, &[1, 2]), Some(vec![0, 3, 4, 5]));
        assert_eq!(chosen(Target::processes(&[7]), &[4]), Some(vec![3, 5]));
        assert_eq!(chosen(Target::processes(&[7]), &[3, 4, 5]), Some(vec![0, 1, 2]), "they share the rest");
        assert_eq!(chosen(Target::processes(&[7]), &[0, 1, 2, 3, 4, 5]), None, "all are guarded");
    }

    #[test]
    fn thread_is_bound_to_the_cpus_that_are_given() {
        std::thread::spawn(|| {
            let own = sched_getaffinity(None).unwrap();
            let first = (0..CpuSet::MAX_CPU).find(|&cpu| own.is_set(cpu)).unwrap() as u32;
            let of = |cpus: Vec<u32>| RecordOptions {
                recorder_cpus: Some(cpus),
                ..RecordOptions::of(Target::System, "x")
            };
            place(&of(vec![first]), &machine()).unwrap();
            let bound = sched_getaffinity(None).unwrap();
            assert!(bound.count() == 1 && bound.is_set(first as usize));
            let failure = place(&of(vec![1023]), &machine()).unwrap_err();
            assert!(failure.message.starts_with("cannot run on CPU 1023 (--recorder-cpus)"), "{failure:?}");
            assert!(place(&of(vec![70_000]), &machine()).is_err());
        })
        .join()
        .unwrap();
    }
}
