// SPDX-License-Identifier: Apache-2.0
//! The parts of titles. Names of the recorded programs stand in them unchanged: views escape the whole
//! sentence.

use std::collections::BTreeSet;
use std::sync::Arc;

use wallprof_analysis::duration::text_from_ns;
use wallprof_analysis::recurrence::Recurrence;
use wallprof_meaning::short_name;
use wallprof_meaning::site::{Site, base_name};
use wallprof_model::{StallReason, ThreadKey, container_from_cgroup, short_container};

use super::case::{Case, Party, mostly};
use super::evidence::{Evidence, ThreadTotals};
use super::limits::Delays;

/// `870 µs`, `62.1 ms`, `1.21 s`. A view without Unicode writes `us`.
pub(super) fn time(ns: u64) -> String {
    text_from_ns(ns, "µs")
}

/// `512 KiB`, `34.1 MiB`, `1.21 GiB`.
pub(super) fn size(bytes: u64) -> String {
    let bytes = bytes as f64;
    let (value, unit) = match bytes {
        ..1_048_576.0 => (bytes / 1_024.0, "KiB"),
        ..1_073_741_824.0 => (bytes / 1_048_576.0, "MiB"),
        _ => (bytes / 1_073_741_824.0, "GiB"),
    };
    format!("{} {unit}", three_digits(value))
}

fn three_digits(value: f64) -> String {
    match value {
        ..10.0 => format!("{value:.2}"),
        ..100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// `for 3.19 ms`, or `47 times, 62.1 ms in all, up to 3.19 ms`.
pub(super) fn delays(delays: &Delays) -> String {
    match delays.count {
        1 => format!("for {}", time(delays.total_ns)),
        count => format!("{count} times, {} in all, up to {}", time(delays.total_ns), time(delays.max_ns)),
    }
}

/// `55 %`.
pub(super) fn percent(part: u64, whole: u64) -> String {
    format!("{:.0} %", part as f64 * 100.0 / whole.max(1) as f64)
}

/// `engine of matchd`, `4 threads of matchd named worker`, `engine and 2 other threads of matchd`,
/// `12 postgres processes`.
pub(super) fn who(cases: &[&Case], evidence: &Evidence) -> String {
    let threads: BTreeSet<_> = cases.iter().map(|case| case.thread).collect();
    let pids: BTreeSet<_> = cases.iter().map(|case| case.pid).collect();
    let names: BTreeSet<&str> = cases.iter().map(|case| &*case.comm).collect();
    let most = mostly(cases, |case| Some(case.comm.clone())).unwrap_or_default();
    let process = mostly(cases, |case| Some(evidence.thread(case.thread)?.process.clone()));
    let counts = Counts { threads: threads.len(), processes: pids.len(), names: names.len() };
    let who = counts.who(&most, process.as_deref());
    match container(&threads, evidence) {
        Some(container) => format!("{who} in container {container}"),
        None => who,
    }
}

/// The container of all these threads, where others are recorded, too.
fn container<'e>(threads: &BTreeSet<ThreadKey>, evidence: &'e Evidence) -> Option<&'e str> {
    let first = evidence.container(*threads.first()?)?;
    let is_one = threads.iter().all(|thread| evidence.container(*thread) == Some(first));
    (is_one && evidence.is_of_several_containers()).then_some(first)
}

/// `its control group /shop/api`, `its container 0123456789ab`, and by the pod of that: `its container shop/web-1/nginx`.
pub(super) fn group(path: &str, pod: Option<&str>) -> String {
    match (pod, container_from_cgroup(path)) {
        (Some(pod), _) => format!("its container {pod}"),
        (None, Some(container)) => format!("its container {}", short_container(&container)),
        (None, None) => format!("its control group {path}"),
    }
}

/// As [`who`], of threads of one program.
pub(super) fn threads(threads: &[&ThreadTotals]) -> String {
    let pids: BTreeSet<_> = threads.iter().map(|thread| thread.pid).collect();
    let names: BTreeSet<&str> = threads.iter().map(|thread| &*thread.comm).collect();
    let counts = Counts { threads: threads.len(), processes: pids.len(), names: names.len() };
    let first = threads.first();
    counts.who(first.map_or("", |thread| &thread.comm), first.map(|thread| &*thread.process))
}

struct Counts {
    threads: usize,
    processes: usize,
    /// Distinct names of threads.
    names: usize,
}

impl Counts {
    /// `most` is the name of most of them, `process` that of their processes.
    fn who(&self, most: &str, process: Option<&str>) -> String {
        let of = process.filter(|process| *process != most).unwrap_or_default();
        let name = shown(most);
        let others = match self.threads {
            0..=2 => "another thread".to_owned(),
            threads => format!("{} other threads", threads - 1),
        };
        if self.processes > 1 {
            let processes = format!("{} {} processes", self.processes, if of.is_empty() { name } else { of });
            return match (self.names, of.is_empty()) {
                (1, true) if self.threads == self.processes => processes,
                (1, true) => format!("{} threads of {processes}", self.threads),
                (1, false) => format!("{} threads named {name} of {processes}", self.threads),
                _ => format!("{name} and {others} of {processes}"),
            };
        }
        let of = of_process(of);
        match (self.threads, self.names) {
            (0 | 1, _) => format!("{name}{of}"),
            (count, 1) => format!("{count} threads{of} named {name}"),
            _ => format!("{name} and {others}{of}"),
        }
    }
}

/// `a`, `a and b`, `a, b and c`.
pub(super) fn list(parts: &[String]) -> String {
    match parts.split_last() {
        None => String::new(),
        Some((last, [])) => last.clone(),
        Some((last, parts)) => format!("{} and {last}", parts.join(", ")),
    }
}

/// `recur every 1.000 s, within 20 ms of the full second`.
pub(super) fn recurrence(found: &Recurrence) -> String {
    let ms = |ns: u64| format!("{} ms", ns / 1_000_000);
    let period = found.period_ns.map(|ns| match ns {
        ..999_500_000 => format!("every {:.1} ms", ns as f64 / 1e6),
        _ => format!("every {:.3} s", ns as f64 / 1e9),
    });
    let second = found.second.map(|second| match second.after_ns {
        0 => format!("within {} of the full second", ms(second.within_ns)),
        after_ns => format!("{} after the full second, within {}", ms(after_ns), ms(second.within_ns)),
    });
    let parts: Vec<String> = period.into_iter().chain(second).collect();
    format!("recur {}", parts.join(", "))
}

/// A thread's or process's name, which may be empty.
pub(super) fn shown(name: &str) -> &str {
    if name.is_empty() { "(unnamed)" } else { name }
}

pub(super) fn name(party: &Party) -> String {
    shown(&party.comm).to_owned()
}

/// `housekeeper`, or `postgres 27699` where it is of another process than `pid`.
pub(super) fn party(party: &Party, pid: u32) -> String {
    if party.pid == pid { name(party) } else { format!("{} {}", name(party), party.pid) }
}

/// As [`party`], and `worker 4712` where the waiting thread has the same name.
pub(super) fn other(party: &Party, waiter: &Case) -> String {
    let is_namesake = party.pid == waiter.pid && party.comm == waiter.comm && party.tid != 0;
    if is_namesake { format!("{} {}", name(party), party.tid) } else { self::party(party, waiter.pid) }
}

/// As [`other`], with what another process called itself: `postgres 27699 (app shop [local] idle)`.
pub(super) fn titled(party: &Party, title: Option<&str>, waiter: &Case) -> String {
    let named = other(party, waiter);
    let Some(title) = title.filter(|_| party.pid != waiter.pid) else { return named };
    let own = title.strip_prefix(&*party.comm).map(|rest| rest.trim_start_matches([':', ' ']));
    match own.unwrap_or(title) {
        "" => named,
        title => format!("{named} ({title})"),
    }
}

/// `sleep`, `poll, for pgbench 27695`: what an interval was, and the other process that ended it.
pub(super) fn wait(case: &Case) -> String {
    let what = what(case).to_owned();
    let by = case.waker.as_ref().and_then(|waker| waker.by.as_ref());
    let is_other = |by: &&Party| match case.reason {
        StallReason::Blocked(reason) => by.pid != case.pid && !by.only_passes_on(reason),
        _ => false,
    };
    match by.filter(is_other) {
        Some(by) => format!("{what}, for {}", party(by, case.pid)),
        None => what,
    }
}

/// `row lock`, `poll`: what the wait means, else the kernel's word for it.
pub(super) fn what(case: &Case) -> &str {
    case.meaning.as_ref().map_or(reason(case.reason), |meaning| &meaning.name)
}

/// `lock`, `major fault`.
pub(super) fn reason(reason: StallReason) -> &'static str {
    match reason {
        StallReason::Minor => "minor fault",
        StallReason::Major => "major fault",
        other => other.name(),
    }
}

/// ` in take_registry_lock (called by format_error)`; empty where it is not known.
pub(super) fn place(site: Option<&Arc<Site>>) -> String {
    let Some(site) = site else { return String::new() };
    let mut functions = site.functions.iter().map(|function| short_name(function));
    match (functions.next(), functions.next()) {
        (Some(inner), Some(outer)) => format!(" in {inner} (called by {outer})"),
        (Some(inner), None) => format!(" in {inner}"),
        (None, _) => String::new(),
    }
}

/// ` in take_registry_lock`: the innermost function alone.
pub(super) fn spot(site: Option<&Arc<Site>>) -> String {
    let function = site.and_then(|site| site.functions.first());
    function.map(|function| format!(" in {}", short_name(function))).unwrap_or_default()
}

/// ` on journal`, ` on journal and 2 other files`; nothing where none is known.
pub(super) fn files(cases: &[&Case]) -> String {
    let Some(most) = mostly(cases, |case| case.read_file().cloned()) else { return String::new() };
    let all: BTreeSet<_> = cases.iter().filter_map(|case| case.read_file()).collect();
    let others = match all.len() {
        1 => String::new(),
        2 => " and another file".into(),
        count => format!(" and {} other files", count - 1),
    };
    format!(" on {}{others}", base_name(&most))
}

fn of_process(process: &str) -> String {
    if process.is_empty() { String::new() } else { format!(" of {process}") }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Fixture, lock_case};
    use super::*;
    use crate::case::Case;

    #[test]
    fn times_keep_three_digits() {
        for (ns, text) in [
            (50_000, "50.0 µs"),
            (870_000, "870 µs"),
            (62_149_000, "62.1 ms"),
            (870_400_000, "870 ms"),
            (1_214_000_000, "1.21 s"),
            (3_600_000_000_000, "3,600 s"),
        ] {
            assert_eq!(time(ns), text);
        }
    }

    #[test]
    fn sizes_keep_three_digits() {
        for (bytes, text) in [
            (0, "0.00 KiB"),
            (524_288, "512 KiB"),
            (35_756_442, "34.1 MiB"),
            (1_299_227_607, "1.21 GiB"),
            (1 << 40, "1024 GiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn threads_are_counted_and_named() {
        let mut fixture = Fixture::new();
        for (id, thread) in [(1, 1), (2, 1), (3, 2), (4, 3)] {
            fixture.stall(lock_case(id, thread, 9, 1_000_000));
        }
        let evidence = fixture.evidence();
        let written = |ids: &[u64]| {
            let cases: Vec<&Case> = evidence.cases().filter(|case| ids.contains(&case.id)).collect();
            who(&cases, &evidence)
        };
        assert_eq!(written(&[1, 2]), "thread-1 of app");
        assert_eq!(written(&[1, 2, 3]), "thread-1 and another thread of app");
        assert_eq!(written(&[1, 2, 3, 4]), "thread-1 and 2 other threads of app");
        assert_eq!(written(&[]), "(unnamed)");
    }

    #[test]
    fn processes_of_one_name_are_counted() {
        let who = |threads, processes, names, most: &str, process| {
            Counts { threads, processes, names }.who(most, process)
        };
        assert_eq!(who(12, 12, 1, "postgres", Some("postgres")), "12 postgres processes");
        assert_eq!(who(24, 12, 1, "node", Some("node")), "24 threads of 12 node processes");
        assert_eq!(who(24, 12, 1, "worker", Some("java")), "24 threads named worker of 12 java processes");
        assert_eq!(who(3, 2, 2, "worker", Some("java")), "worker and 2 other threads of 2 java processes");
        assert_eq!(who(2, 2, 1, "sh", None), "2 sh processes", "none of them is recorded");
    }

    #[test]
    fn one_time_has_no_sum() {
        assert_eq!(delays(&Delays::of([3_190_000])), "for 3.19 ms");
        assert_eq!(delays(&Delays::of([1_000_000, 3_000_000])), "2 times, 4.00 ms in all, up to 3.00 ms");
        assert_eq!(percent(1, 0), "100 %");
    }
}
