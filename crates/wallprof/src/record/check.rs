// SPDX-License-Identifier: Apache-2.0
//! Checks that targets, CPUs and events exist on this machine, before anything is created.

use std::path::{Path, PathBuf};

use wallprof_probe::cpus::cpus_from_list;
use wallprof_probe::events::{EventError, EventSources, PerfEventSpec, Sampling, parse_event};
use wallprof_probe::facts::cgroups::{Cgroup, cgroup_mounts, find_cgroup};
use wallprof_probe::facts::files::Files;

use super::options::RecordOptions;
use super::target::Target;
use crate::args::CallGraph;
use crate::failure::{Exit, Failure};

/// Refuses processes, threads, cgroups, CPUs and a sampling rate that this machine does not have.
pub fn check_exists(options: &RecordOptions, files: &dyn Files) -> Result<(), Failure> {
    if let Target::Given(given) = &options.target {
        given.processes.iter().try_for_each(|pid| check_process(*pid, files))?;
        given.threads.iter().try_for_each(|tid| check_thread(*tid, files))?;
        given.cgroup.iter().try_for_each(|path| cgroup(path, files).map(drop))?;
    }
    options.cpus.iter().flatten().try_for_each(|cpu| check_cpu(*cpu, files))?;
    check_call_graph(options.call_graph)?;
    check_sample_rate(options.sample_hz, files)
}

/// The cgroup that the user named.
pub fn cgroup(path: &Path, files: &dyn Files) -> Result<Cgroup, Failure> {
    find_cgroup(path, files).ok_or_else(|| {
        let mounts = cgroup_mounts(files);
        let places: Vec<_> = mounts.iter().map(|mount| mount.at.display().to_string()).collect();
        match places.is_empty() {
            true => Failure::unavailable("no cgroup hierarchy is mounted: mount one at /sys/fs/cgroup"),
            false => Failure::failed(format!(
                "there is no cgroup {}: name a directory below {}",
                path.display(),
                places.join(", ")
            )),
        }
    })
}

/// The events of -e. `mount_tracefs` is called if one needs tracefs and none is mounted.
pub fn events(
    options: &RecordOptions,
    files: &dyn Files,
    mut tracefs: Option<PathBuf>,
    mount_tracefs: impl FnOnce() -> Option<PathBuf>,
) -> Result<Vec<PerfEventSpec>, Failure> {
    let mut mount = Some(mount_tracefs);
    let mut specs = Vec::new();
    for event in &options.events {
        let mut parsed = parse_event(event, &EventSources { files, tracefs: tracefs.as_deref() });
        if matches!(parsed, Err(EventError::NeedsTracefs { .. })) {
            tracefs = mount.take().and_then(|mount| mount());
            parsed = parse_event(event, &EventSources { files, tracefs: tracefs.as_deref() });
        }
        let spec = parsed.map_err(failure_from_event)?;
        if options.sample_hz == 0 && spec.sampling == Sampling::Frequency {
            return Err(Failure::usage(format!(
                "-F 0 takes no samples, but -e {event} is sampled: leave it out, or give -F a rate such as 99"
            )));
        }
        specs.push(spec);
    }
    Ok(specs)
}

fn check_process(pid: u32, files: &dyn Files) -> Result<(), Failure> {
    match thread_group(pid, files) {
        None => Err(Failure::failed(format!("there is no process {pid}: `ps -e` lists the running ones"))),
        Some(leader) if leader == pid => Ok(()),
        Some(leader) => Err(Failure::failed(format!(
            "{pid} is a thread of process {leader}: record it with -t {pid}, or its process with -p {leader}"
        ))),
    }
}

fn check_thread(tid: u32, files: &dyn Files) -> Result<(), Failure> {
    match thread_group(tid, files) {
        None => Err(Failure::failed(format!("there is no thread {tid}: `ps -eL` lists the running ones"))),
        Some(_) => Ok(()),
    }
}

/// The process that a thread belongs to; `None` for a number that is no living thread.
fn thread_group(tid: u32, files: &dyn Files) -> Option<u32> {
    let status = files.read(&PathBuf::from(format!("/proc/{tid}/status"))).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

fn check_cpu(cpu: u32, files: &dyn Files) -> Result<(), Failure> {
    let list = files.read(Path::new("/sys/devices/system/cpu/online")).unwrap_or_default();
    let online = cpus_from_list(&list).unwrap_or_default();
    // Where the list cannot be read, attaching to the CPU reports the error.
    match online.is_empty() || online.contains(&cpu) {
        true => Ok(()),
        false => {
            Err(Failure::failed(format!("there is no CPU {cpu} online: this machine has {}", list.trim())))
        }
    }
}

fn check_call_graph(call_graph: CallGraph) -> Result<(), Failure> {
    match call_graph {
        CallGraph::Lbr => Err(Failure::unavailable(
            "call stacks from branch records (--call-graph lbr) are not supported: use --call-graph auto, whose stacks \
             are deeper",
        )),
        CallGraph::Auto | CallGraph::Dwarf | CallGraph::Fp => Ok(()),
    }
}

fn check_sample_rate(hz: u32, files: &dyn Files) -> Result<(), Failure> {
    let path = "/proc/sys/kernel/perf_event_max_sample_rate";
    let limit = files.read(Path::new(path)).ok().and_then(|text| text.trim().parse::<u32>().ok());
    match limit {
        Some(limit) if hz > limit => Err(Failure::failed(format!(
            "-F {hz} is more than this kernel allows: give at most {limit}, or raise {path}"
        ))),
        _ => Ok(()),
    }
}

fn failure_from_event(error: EventError) -> Failure {
    match error.is_unavailable() {
        true => Failure::new(Exit::Unavailable, error),
        false => Failure::usage(error),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io;

    use super::super::target::GivenTargets;
    use super::*;

    struct Machine(BTreeMap<&'static str, &'static str>);

    impl Files for Machine {
        fn read(&self, path: &Path) -> io::Result<String> {
            let text = self.0.get(path.to_str().unwrap());
            text.map(|text| text.to_string()).ok_or_else(|| io::ErrorKind::NotFound.into())
        }

        fn list(&self, _: &Path) -> io::Result<Vec<String>> {
            Err(io::ErrorKind::NotFound.into())
        }

        fn link(&self, _: &Path) -> io::Result<PathBuf> {
            Err(io::ErrorKind::NotFound.into())
        }

        fn exists(&self, path: &Path) -> bool {
            self.0.keys().any(|file| Path::new(file).starts_with(path))
        }
    }

    fn machine() -> Machine {
        Machine(BTreeMap::from([
            ("/proc/10/status", "Name:\tserver\nTgid:\t10\nPid:\t10\n"),
            ("/proc/12/status", "Name:\tworker\nTgid:\t10\nPid:\t12\n"),
            ("/sys/devices/system/cpu/online", "0-1,4\n"),
            ("/proc/sys/kernel/perf_event_max_sample_rate", "10000\n"),
            ("/proc/self/mounts", "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"),
            ("/sys/fs/cgroup/web/cgroup.procs", ""),
            ("/private/events/sched/sched_switch/id", "316"),
        ]))
    }

    fn options(target: Target) -> RecordOptions {
        RecordOptions::of(target, "wallprof.db")
    }

    fn refused(options: RecordOptions) -> String {
        let failure = check_exists(&options, &machine()).unwrap_err();
        assert_eq!(failure.exit, Exit::Failed);
        failure.message
    }

    #[test]
    fn existing_targets_pass() {
        for target in [
            Target::processes(&[10]),
            Target::threads(&[10, 12]),
            Target::cgroup("/web"),
            Target::cgroup("/sys/fs/cgroup/web"),
            Target::System,
            Target::names(&["absent"]),
        ] {
            assert_eq!(check_exists(&options(target.clone()), &machine()), Ok(()), "{target:?}");
        }
    }

    #[test]
    fn missing_target_is_named() {
        assert!(refused(options(Target::processes(&[10, 11]))).starts_with("there is no process 11"));
        assert!(refused(options(Target::threads(&[11]))).starts_with("there is no thread 11"));
        assert!(refused(options(Target::processes(&[12]))).contains("-t 12"));
        assert!(refused(options(Target::cgroup("/db"))).contains("no cgroup /db"));
        let given = |processes: &[u32], threads: &[u32], cgroup: &str| GivenTargets {
            processes: processes.to_vec(),
            threads: threads.to_vec(),
            names: vec!["absent".into()],
            cgroup: Some(cgroup.into()),
            ..GivenTargets::default()
        };
        for (targets, what) in [
            (given(&[11], &[12], "/web"), "no process 11"),
            (given(&[10], &[11], "/web"), "no thread 11"),
            (given(&[10], &[12], "/db"), "no cgroup /db"),
        ] {
            assert!(refused(options(Target::Given(targets))).contains(what), "{what}");
        }
        assert!(
            refused(RecordOptions { cpus: Some(vec![0, 3]), ..options(Target::System) }).contains("no CPU 3")
        );
        assert!(
            refused(RecordOptions { sample_hz: 10_001, ..options(Target::System) }).contains("at most 10000")
        );
    }

    #[test]
    fn sampled_events_need_a_rate() {
        let with = |event: &str| RecordOptions {
            sample_hz: 0,
            events: vec![event.into()],
            ..options(Target::System)
        };
        let given = |event: &str| events(&with(event), &machine(), None, || None);
        assert!(
            given("cpu-clock").unwrap_err().message.starts_with("-F 0 takes no samples, but -e cpu-clock")
        );
        assert_eq!(given("page-faults").unwrap().len(), 1);
    }

    #[test]
    fn tracefs_is_mounted_once_and_only_when_needed() {
        let with = |events: &[&str]| RecordOptions {
            events: events.iter().map(|event| event.to_string()).collect(),
            ..options(Target::System)
        };
        let never = || panic!("no tracepoint was asked for");
        assert_eq!(events(&with(&["cs", "faults:u"]), &machine(), None, never).unwrap().len(), 2);
        let requested = with(&["cs", "sched:sched_switch", "sched:sched_switch:u"]);
        let specs = events(&requested, &machine(), None, || Some("/private".into())).unwrap();
        assert_eq!(specs[2].config, 316);
        let failed = events(&requested, &machine(), None, || None).unwrap_err();
        assert_eq!(failed.exit, Exit::Unavailable);
    }

    #[test]
    fn wrong_event_is_a_usage_error_and_missing_pmu_is_not() {
        let exit = |event: &str| {
            let options = RecordOptions { events: vec![event.into()], ..options(Target::System) };
            events(&options, &machine(), None, || None).unwrap_err().exit
        };
        assert_eq!(exit("page-fautls"), Exit::Usage);
        assert_eq!(exit("cycles"), Exit::Unavailable);
    }
}
