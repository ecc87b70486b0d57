// SPDX-License-Identifier: Apache-2.0
//! `major-fault`: threads touched memory that was not present, and waited for the kernel to read it from a
//! file or from swap. Reports the file and the offset, how much memory was free at the slowest fault, and
//! whether memory was being reclaimed then: pages that are in memory today may be evicted tomorrow where the
//! page cache is under pressure.
//!
//! One finding a program and file. Time spent waiting for a CPU in such a fault belongs to `run-queue`.
//!
//! False positives: the first seconds of a program, when it touches its code and data for the first time;
//! programs that read through memory on purpose (databases that map their files).

use std::sync::Arc;

use wallprof_meaning::site::base_name;
use wallprof_model::event::DelayKind;

use super::case::{Case, grouped};
use super::conclusion::{Charged, Conclusion, Problem};
use super::disk_limit;
use super::evidence::Evidence;
use super::spec::{Cause, EvidenceKind, Reported, RuleSpec, Topic};
use super::wording;

pub(super) const RULE: RuleSpec = RuleSpec {
    name: "major-fault",
    topic: Some(Topic::Waits),
    excludes: &[Topic::Waits],
    cause: Cause::Program,
    evidence: EvidenceKind::Stalls,
    find,
};

const FILE_ADVICE: &str = "Keep the file's pages in memory where they are needed at once: mlock(2) or mlockall(2), or \
    MAP_POPULATE and MADV_POPULATE_READ before; read ahead of the need (MADV_WILLNEED) where all of it does not fit.";
const SWAP_ADVICE: &str = "Keep this memory from being swapped out: mlock(2) or mlockall(2), a lower vm.swappiness, \
    memory.swap.max=0 for its cgroup, or more memory.";

const SHORTAGE_ADVICE: &str =
    " Memory was short: more of it, or less taken by others, keeps pages in the cache.";

/// Memory that is freed this long before or after a fault shows that memory was short when the page was
/// evicted.
const NEARBY_NS: u64 = 1_000_000_000;

fn find<'e>(evidence: &'e Evidence, reported: &Reported) -> Vec<Conclusion<'e>> {
    let is_major = |case: &&Case| case.is_major() && !case.is_read_by_a_process() && !reported.has(case);
    let files = grouped(evidence.cases().filter(is_major), |case| (evidence.program(case), file(case)));
    files.into_values().filter_map(|cases| conclude(cases, evidence)).collect()
}

fn file(case: &Case) -> Option<Arc<str>> {
    case.fault.as_ref()?.file.clone()
}

fn conclude<'e>(cases: Vec<&'e Case>, evidence: &Evidence) -> Option<Conclusion<'e>> {
    let problem = Problem::unusual(Charged::over(cases, Case::without_run_queue_ns), evidence)?;
    let delays = problem.delays;
    let worst = problem.cases.iter().max_by_key(|case| case.without_run_queue_ns())?;
    let shortage = shortage(worst, evidence);
    let limit = disk_limit::of_most(&problem.cases, evidence);
    let advice = match limit {
        Some(_) => disk_limit::ADVICE,
        None if file(worst).is_some() => FILE_ADVICE,
        None => SWAP_ADVICE,
    };
    let advice = [advice, shortage.as_ref().map_or("", |_| SHORTAGE_ADVICE)].concat();
    let title = format!(
        "{} waited for {}{} {}{}{}.",
        wording::who(&problem.cases, evidence),
        page(worst),
        wording::place(problem.site().as_ref()),
        wording::delays(&delays),
        limit.map(|limit| format!(": {limit}")).unwrap_or_default(),
        memory(worst, shortage, evidence)
    );
    Some(problem.conclude(title, advice))
}

/// `pages of /data/prices.idx (the slowest at 0x2000)`.
fn page(worst: &Case) -> String {
    let Some(file) = file(worst) else { return "memory that had been swapped out".into() };
    let offset = worst.fault.as_ref().and_then(|fault| fault.offset);
    let place = offset.map(|at| format!(" (the slowest at {at:#x})")).unwrap_or_default();
    format!("pages of {} to be read from disk{place}", base_name(&file))
}

/// `; when the slowest began, 1.21 GiB of memory were free (20.1 GiB available), and threads had to free
/// memory`.
fn memory(worst: &Case, shortage: Option<String>, evidence: &Evidence) -> String {
    let free = evidence.machine().memory_at(worst.start).map(|memory| {
        let available = memory.available.map(|bytes| format!(" ({} available)", wording::size(bytes)));
        format!("{} of memory were free{}", wording::size(memory.free), available.unwrap_or_default())
    });
    let known: Vec<String> = free.into_iter().chain(shortage).collect();
    match known.is_empty() {
        true => String::new(),
        false => format!("; when the slowest began, {}", known.join(", and ")),
    }
}

/// The sign that pages were evicted because memory was short.
fn shortage(worst: &Case, evidence: &Evidence) -> Option<String> {
    if let Some(group) = evidence.full_memory_group(worst) {
        return Some(group.to_string());
    }
    if is_reclaimed(worst, evidence) {
        return Some("threads had to free memory".into());
    }
    let lost = evidence.machine().memory_at(worst.start)?.cache_lost?;
    Some(format!("the page cache had lost {} within a second", wording::size(lost)))
}

/// Whether a recorded thread had to free memory at about that time.
fn is_reclaimed(worst: &Case, evidence: &Evidence) -> bool {
    let (from, to) = (worst.start.0.saturating_sub(NEARBY_NS), worst.end.0.saturating_add(NEARBY_NS));
    let mut reclaims = evidence.kernel_delays().iter().filter(|delay| delay.kind == DelayKind::Reclaim);
    reclaims.any(|delay| delay.start.0 < to && delay.end.0 > from)
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::super::fixture::{Fixture, at, delay_in, disk_limit, fault, memory, memory_group};
    use super::*;
    use wallprof_model::StallReason;
    use wallprof_model::counter::CounterTrack;
    use wallprof_model::event::{Fault, Mapping};
    use wallprof_model::profile::{BoundAtFirstCall, Finding, StallRecord};

    const MS: u64 = 1_000_000;

    #[test]
    fn title_names_the_file_and_the_offset() {
        let found = Fixture::only_finding((1..=6).map(|id| fault(id, 1, true, id * MS)));
        assert_eq!(
            found.title,
            "thread-1 of app waited for pages of prices.idx to be read from disk (the slowest at 0x2008) in work \
             (called by main) 6 times, 21.0 ms in all, up to 6.00 ms."
        );
        assert_eq!((found.rule.as_str(), found.count), (RULE.name, 6));
        assert!(found.advice.contains("MAP_POPULATE") && found.advice.contains("mlock"));
    }

    #[test]
    fn control_group_at_its_limit_is_named() {
        let mut fixture = Fixture::new();
        fixture.process_counters = memory_group("/shop", &[(0, 24)], 24);
        fixture.stall(fault(1, 1, true, 6 * MS));
        let found = findings(&fixture.evidence()).remove(0);
        let group =
            "; when the slowest began, its control group /shop used 24.0 MiB of its limit of 24.0 MiB.";
        assert!(found.title.ends_with(group), "{}", found.title);
    }

    #[test]
    fn limit_of_writes_is_not_named() {
        let mut fixture = Fixture::new();
        let written: Vec<(u64, u64)> = (0..100).map(|tenth| (tenth * 100, tenth)).collect();
        fixture.process_counters = disk_limit("/shop", &written, 10);
        fixture.stall(at(500 * MS, fault(1, 1, true, 6 * MS)));
        let found = findings(&fixture.evidence()).remove(0);
        assert!(found.title.ends_with(" for 6.00 ms."), "{}", found.title);
        let mut fixture = Fixture::new();
        fixture.process_counters = disk_limit("/shop", &written, 10);
        for counter in &mut fixture.process_counters {
            counter.counter.name = counter.counter.name.replace("written", "read");
        }
        fixture.stall(at(500 * MS, fault(1, 1, true, 6 * MS)));
        let found = findings(&fixture.evidence()).remove(0);
        let limit = ": its control group /shop may read 10.0 MiB a second from the disk 7:0, and did.";
        assert!(found.title.ends_with(limit), "{}", found.title);
    }

    /// A fault of 6 ms at 3 s, beside these counters; a thread frees memory `reclaim_ms` after its start.
    fn beside(counters: Vec<CounterTrack>, reclaim_ms: Option<u64>) -> Finding {
        let mut fixture = Fixture::new();
        let stall = at(2_000 * MS, fault(1, 1, true, 6 * MS));
        fixture.counters = counters;
        fixture
            .kernel_delays
            .extend(reclaim_ms.map(|ms| delay_in(&stall, DelayKind::Reclaim, ms * MS, (ms + 1) * MS)));
        fixture.stall(stall);
        findings(&fixture.evidence()).remove(0)
    }

    #[test]
    fn title_has_the_free_memory() {
        let counters =
            || vec![memory("free", &[(2_900, 300), (3_100, 9)]), memory("available", &[(2_900, 2_048)])];
        let found = beside(counters(), None);
        assert!(
            found.title.ends_with(
                " for 6.00 ms; when the slowest began, 300 MiB of memory were free (2.00 GiB available)."
            ),
            "{}",
            found.title
        );
        assert!(!found.advice.contains("Memory was short"), "{}", found.advice);
        assert!(beside(vec![], None).title.ends_with(" for 6.00 ms."));
    }

    #[test]
    fn title_reports_memory_reclaim() {
        let free = || memory("free", &[(2_900, 300)]);
        let shrinking = beside(vec![free(), memory("cached", &[(1_000, 900), (2_950, 700)])], None);
        assert!(
            shrinking.title.ends_with(
                "300 MiB of memory were free, and the page cache had lost 200 MiB within a second."
            ),
            "{}",
            shrinking.title
        );
        assert_eq!(shrinking.rule, RULE.name);
        let direct = beside(vec![free()], Some(500));
        assert!(direct.title.ends_with("were free, and threads had to free memory."), "{}", direct.title);
        let unknown = beside(vec![], Some(500));
        assert!(
            unknown.title.ends_with("; when the slowest began, threads had to free memory."),
            "{}",
            unknown.title
        );
        for found in [shrinking, direct, unknown] {
            assert!(found.advice.contains("Memory was short"), "{}", found.advice);
        }
        let calm = beside(vec![free(), memory("cached", &[(1_000, 900), (2_950, 890)])], Some(1_500));
        assert!(calm.title.ends_with("300 MiB of memory were free."), "{}", calm.title);
    }

    #[test]
    fn memory_without_a_file_was_swapped_out() {
        let swapped = |id| {
            let stall = fault(id, 1, true, 2 * MS);
            let page = stall.fault.clone().expect("a fault");
            let page = Fault { file: None, file_offset: None, mapping: Some(Mapping::Anonymous), ..page };
            StallRecord { fault: Some(page), ..stall }
        };
        let found = Fixture::only_finding((1..=3).map(swapped));
        assert!(
            found.title.contains("waited for memory that had been swapped out in work"),
            "{}",
            found.title
        );
        assert!(found.advice.contains("swappiness"));
    }

    #[test]
    fn minor_faults_short_ones_and_waits_for_a_cpu_are_none() {
        assert_eq!(Fixture::findings((1..=9).map(|id| fault(id, 1, false, 9 * MS))), []);
        assert_eq!(Fixture::findings((1..=4).map(|id| fault(id, 1, true, 900_000))), []);
        let starved = StallRecord { runnable_ns: 5 * MS, ..fault(1, 1, true, 5 * MS + 900_000) };
        assert!(Fixture::findings([starved]).iter().all(|found| found.rule != RULE.name));
        assert_eq!(fault(1, 1, true, MS).reason, StallReason::Major);
    }

    #[test]
    fn waits_of_the_dynamic_linker_are_reported_once() {
        let binding = BoundAtFirstCall { depth: 1, symbol: None, library: None };
        let bound = |id| StallRecord { binding: Some(binding.clone()), ..fault(id, 1, true, 5 * MS) };
        assert_eq!(Fixture::only_finding((1..=3).map(bound)).rule, "lazy-binding");
    }
}
