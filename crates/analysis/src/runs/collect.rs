// SPDX-License-Identifier: Apache-2.0
//! One recording as a run: its threads' ledgers, its stalls by place, its findings.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use wallprof_meaning::site::{Site, Sites};
use wallprof_model::histogram::{Cell, range_from_bucket};
use wallprof_model::profile::{Finding, RecordingInfo, StallRecord, Thread};
use wallprof_model::{Histogram, Loss, Metric, Reason, SpanDelta, StallReason, State, ThreadKey};

use super::figures::{FoundInRun, Place, Run, Sum, ThreadTime, What};
use crate::diff::Group;
use crate::totals::accounts;

/// Places kept of a run: those with the most time.
const MOST_PLACES: usize = 500;
/// Groups of threads kept of a run: those with the most time that is not voluntary.
const MOST_GROUPS: usize = 1_000;

/// Takes the rows of one recording.
#[derive(Debug, Default)]
pub struct RunCollector {
    sites: Sites,
    min_stall_ns: u64,
    places: HashMap<StalledAt, Sum>,
    /// Blocked time of the stalls that were blocked for `--min-stall` or longer.
    kept: BTreeMap<Reason, u64>,
    kept_of_any: u64,
    /// The last wait at each, where waits have slices.
    sliced: HashMap<StalledAt, u64>,
    spans: BTreeMap<String, Histogram>,
}

/// Of a stall: its thread, reason, meaning and site.
type StalledAt = (ThreadKey, &'static str, Option<Arc<str>>, Option<Arc<Site>>);

impl RunCollector {
    /// Of a recording with this threshold.
    pub fn new(min_stall_ns: u64) -> Self {
        RunCollector { min_stall_ns, ..RunCollector::default() }
    }

    /// Adds a stall: those of one thread in the order of time. A voluntary one made no thread late, and is left out.
    pub fn stall(&mut self, stall: &StallRecord) {
        if !stall.open && stall.blocked_ns >= self.min_stall_ns {
            let kept = match stall.reason {
                StallReason::Blocked(reason) => Some(self.kept.entry(reason).or_default()),
                // It waited longer for the CPU: for what before is not known.
                StallReason::Runnable => Some(&mut self.kept_of_any),
                _ => None,
            };
            if let Some(kept) = kept {
                *kept = kept.saturating_add(stall.blocked_ns);
            }
        }
        if stall.voluntary {
            return;
        }
        let site = self.sites.of(stall.user.as_ref(), stall.kernel.as_ref());
        let meaning = stall.meaning.as_ref().map(|meaning| Arc::from(meaning.name.as_str()));
        let key = (stall.thread, stall.reason.name(), meaning, site);
        let last = stall.wait_id.and_then(|wait| self.sliced.insert(key.clone(), wait));
        let is_new = last.is_none() || last != stall.wait_id;
        self.places.entry(key).or_default().add(u64::from(is_new), stall.late_ns());
    }

    /// Adds sums of spans.
    pub fn spans(&mut self, sums: &[SpanDelta]) {
        for SpanDelta { kind, bucket, count, max_ns, states, .. } in sums {
            let cell = Cell { count: *count, total_ns: states.total_ns(), max_ns: *max_ns };
            self.spans.entry(kind.to_string()).or_default().add_cell(*bucket, cell);
        }
    }

    pub fn finish(self, info: &RecordingInfo, threads: &[Thread], findings: &[Finding]) -> Run {
        let is_folded = |loss: &Loss| info.losses.get(loss.name()).is_some_and(|count| *count > 0);
        let only_summed = match Loss::OF_FOLDED_WAITS.iter().any(is_folded) {
            true => self.only_summed(threads),
            false => BTreeMap::new(),
        };
        let mut run = Run {
            labels: info.labels.clone(),
            start: (!info.clock.anchors().is_empty()).then(|| info.clock.epoch_from_mono(info.start)),
            duration_ns: info.end.0.saturating_sub(info.start.0),
            min_stall_ns: info.min_stall_ns,
            findings: findings.iter().map(found).collect(),
            spans: self.spans,
            ..Run::default()
        };
        run.only_summed_ns = only_summed.values().sum();
        let mut groups: HashMap<ThreadKey, Group> = HashMap::new();
        let mut reasons: BTreeMap<Arc<str>, BTreeSet<&str>> = BTreeMap::new();
        for (thread, account) in threads.iter().zip(accounts(threads)) {
            let group = Group { process: thread.info.process.clone(), thread: thread.info.comm.clone() };
            groups.insert(thread.info.key, group.clone());
            let time = run.threads.entry(group).or_default();
            time.threads += 1;
            for (state, ns) in account.states.iter() {
                let what = match state {
                    State::User | State::Kernel | State::Cpu => What::Cpu,
                    state => What::State(state),
                };
                let sum = time.states.entry(what).or_default();
                *sum = sum.saturating_add(ns);
            }
            for (metric, histogram) in &thread.latency {
                if let Metric::Blocked(reason) = metric {
                    time.waits.entry(*reason).or_default().add(histogram.count(), histogram.total_ns());
                }
            }
        }
        for ((thread, reason, meaning, site), sum) in self.places {
            let Some(group) = groups.get(&thread) else { continue };
            if let Some(meaning) = &meaning {
                run.meanings.entry(meaning.to_string()).or_default().add(sum.count, sum.ns);
                reasons.entry(Arc::clone(meaning)).or_default().insert(reason);
            }
            let functions = site.as_deref().map(functions).unwrap_or_default();
            let place = Place { reason, meaning: meaning.map(|name| name.to_string()), functions };
            run.places.entry((group.clone(), place)).or_default().add(sum.count, sum.ns);
        }
        for (meaning, reasons) in reasons {
            let of_reasons = only_summed.iter().filter(|(reason, _)| reasons.contains(reason.name()));
            let ns: u64 = of_reasons.map(|(_, ns)| *ns).sum();
            if ns > 0 {
                run.may_also_mean.insert(meaning.to_string(), ns);
            }
        }
        keep_largest(&mut run.places, MOST_PLACES, |sum| sum.ns);
        keep_largest(&mut run.threads, MOST_GROUPS, weight);
        run
    }

    /// Blocked time in waits of the threshold or longer that have no stall, by reason: of a burst, or of a file that was to
    /// stay small. Voluntary waits are none of them.
    fn only_summed(&self, threads: &[Thread]) -> BTreeMap<Reason, u64> {
        let mut all: BTreeMap<Reason, u64> = BTreeMap::new();
        for (metric, histogram) in threads.iter().flat_map(|thread| &thread.latency) {
            if let Metric::Blocked(reason) = metric
                && !reason.is_voluntary()
            {
                let long =
                    histogram.cells().filter(|(bucket, _)| range_from_bucket(*bucket).0 >= self.min_stall_ns);
                let ns = all.entry(*reason).or_default();
                *ns = long.fold(*ns, |sum, (_, cell)| sum.saturating_add(cell.total_ns));
            }
        }
        for (reason, ns) in &mut all {
            let kept = self.kept.get(reason).copied().unwrap_or(0);
            *ns = ns.saturating_sub(kept.saturating_add(self.kept_of_any));
        }
        all.retain(|_, ns| *ns > 0);
        all
    }
}

fn found(finding: &Finding) -> FoundInRun {
    let Finding { rule, cause, title, total_ns, .. } = finding;
    FoundInRun { rule: rule.clone(), cause: *cause, title: title.clone(), total_ns: *total_ns }
}

/// `pthread_mutex_lock ← handle_order ← main`: through which library function, and the program's own.
fn functions(site: &Site) -> String {
    let names: Vec<&str> = site.through.iter().chain(&site.functions).map(AsRef::as_ref).collect();
    names.join(" ← ")
}

/// Time in which the threads ran or were late.
fn weight(time: &ThreadTime) -> u64 {
    let is_voluntary = |what: &What| match what {
        What::State(State::Blocked(reason)) => reason.is_voluntary(),
        _ => false,
    };
    let states = time.states.iter().filter(|(what, _)| !is_voluntary(what));
    states.fold(0, |sum, (_, ns)| sum.saturating_add(*ns))
}

fn keep_largest<K: Ord + Clone, V>(map: &mut BTreeMap<K, V>, most: usize, weight: impl Fn(&V) -> u64) {
    if map.len() > most {
        let mut weights: Vec<u64> = map.values().map(&weight).collect();
        weights.sort_unstable_by(|a, b| b.cmp(a));
        let least = weights[most - 1];
        map.retain(|_, value| weight(value) >= least.max(1));
    }
}

#[cfg(test)]
mod tests {
    use wallprof_model::histogram::bucket_from_ns;
    use wallprof_model::meaning::MeaningSource;
    use wallprof_model::{Meaning, MonoNs};
    use wallprof_testkit::stacks::stall;

    use super::*;
    use crate::runs::{Excess, Limit, exceeded, may_exceed};
    use crate::weights::fixture::thread;

    const MS: u64 = 1_000_000;
    const LOCK: StallReason = StallReason::Blocked(Reason::Lock);

    /// A second in which a thread waited for a lock: so many waits of 1 ms, of which the recording has `kept`.
    fn run(waits: u64, kept: &[StallRecord]) -> Run {
        let mut engine = thread(1, "engine");
        let mut histogram = Histogram::default();
        let cell = Cell { count: waits, total_ns: waits * MS, max_ns: MS };
        histogram.add_cell(bucket_from_ns(MS), cell);
        engine.latency.insert(Metric::Blocked(Reason::Lock), histogram);
        let mut collector = RunCollector::new(MS / 10);
        kept.iter().for_each(|stall| collector.stall(stall));
        let losses = [(Loss::WaitsFolded.name().to_owned(), 1)].into();
        let info = RecordingInfo { end: MonoNs(1_000 * MS), losses, ..RecordingInfo::default() };
        collector.finish(&info, &[engine], &[])
    }

    fn row_lock(at: u64) -> StallRecord {
        let source = MeaningSource::Stack;
        let meaning = Meaning { name: "row lock".into(), software: None, idle: false, holder: true, source };
        StallRecord { meaning: Some(meaning.into()), ..stall(at, 1, LOCK, MonoNs(at * MS), MS) }
    }

    #[test]
    fn waits_that_were_only_added_up_leave_a_limit_on_a_meaning_open() {
        // A page fault is no wait for a lock.
        let fault = stall(99, 1, StallReason::Major, MonoNs(0), 50 * MS);
        let kept: Vec<StallRecord> = (0..10).map(row_lock).chain([fault]).collect();
        let limit = |text: &str| Limit::parse(text).unwrap();
        let (whole, cut) = (run(10, &kept), run(40, &kept));
        let most = Some(Excess { measured_ns: 40 * MS });
        for (text, of_whole, of_cut) in [
            ("meaning:row lock=5ms/s", None, None),
            ("meaning:row lock=20ms/s", None, most),
            ("meaning:row lock=50ms/s", None, None),
            ("meaning:other=1ms/s", None, None),
        ] {
            assert_eq!(
                (may_exceed(&whole, &limit(text)), may_exceed(&cut, &limit(text))),
                (of_whole, of_cut),
                "{text}"
            );
        }
        assert!(exceeded(&cut, &limit("meaning:row lock=5ms/s")).is_some());
        assert_eq!((whole.has_most_waits(), cut.has_most_waits()), (true, false));
    }

    #[test]
    fn slices_of_a_wait_are_one_wait() {
        let mut slices: Vec<StallRecord> = (0..6).map(row_lock).collect();
        for (at, wait) in [(0, 7), (1, 7), (2, 7), (4, 8), (5, 8)] {
            slices[at].wait_id = Some(wait);
        }
        let run = run(6, &slices);
        let sum = run.meanings["row lock"];
        assert_eq!((sum.count, sum.ns), (3, 6 * MS));
    }
}
