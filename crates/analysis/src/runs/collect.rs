// SPDX-License-Identifier: Apache-2.0
//! One recording as a run: its threads' ledgers, its stalls by place, its findings.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use wallprof_meaning::site::{Site, Sites};
use wallprof_model::histogram::Cell;
use wallprof_model::profile::{Finding, RecordingInfo, StallRecord, Thread};
use wallprof_model::{Histogram, Metric, SpanDelta, State, ThreadKey};

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
    places: HashMap<StalledAt, Sum>,
    spans: BTreeMap<String, Histogram>,
}

/// Of a stall: its thread, reason, meaning and site.
type StalledAt = (ThreadKey, &'static str, Option<Arc<str>>, Option<Arc<Site>>);

impl RunCollector {
    /// Adds a stall. A voluntary one made no thread late, and is left out.
    pub fn stall(&mut self, stall: &StallRecord) {
        if stall.voluntary {
            return;
        }
        let site = self.sites.of(stall.user.as_ref(), stall.kernel.as_ref());
        let meaning = stall.meaning.as_ref().map(|meaning| Arc::from(meaning.name.as_str()));
        let key = (stall.thread, stall.reason.name(), meaning, site);
        self.places.entry(key).or_default().add(1, stall.late_ns());
    }

    /// Adds sums of spans.
    pub fn spans(&mut self, sums: &[SpanDelta]) {
        for SpanDelta { kind, bucket, count, max_ns, states, .. } in sums {
            let cell = Cell { count: *count, total_ns: states.total_ns(), max_ns: *max_ns };
            self.spans.entry(kind.to_string()).or_default().add_cell(*bucket, cell);
        }
    }

    pub fn finish(self, info: &RecordingInfo, threads: &[Thread], findings: &[Finding]) -> Run {
        let mut run = Run {
            labels: info.labels.clone(),
            start: (!info.clock.anchors().is_empty()).then(|| info.clock.epoch_from_mono(info.start)),
            duration_ns: info.end.0.saturating_sub(info.start.0),
            min_stall_ns: info.min_stall_ns,
            findings: findings.iter().map(found).collect(),
            spans: self.spans,
            ..Run::default()
        };
        let mut groups: HashMap<ThreadKey, Group> = HashMap::new();
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
            }
            let functions = site.as_deref().map(functions).unwrap_or_default();
            let place = Place { reason, meaning: meaning.map(|name| name.to_string()), functions };
            run.places.entry((group.clone(), place)).or_default().add(sum.count, sum.ns);
        }
        keep_largest(&mut run.places, MOST_PLACES, |sum| sum.ns);
        keep_largest(&mut run.threads, MOST_GROUPS, weight);
        run
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
