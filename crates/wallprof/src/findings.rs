// SPDX-License-Identifier: Apache-2.0
//! The findings of a recording: computed by `report`, and stored in the file at the end of `record` and
//! `import`, with the meanings of the waits and who costs whom, for queries.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::RangeBounds;
use std::path::Path;

use wallprof_analysis::blame::{Edge, Group, Waits};
use wallprof_analysis::spans::{LongPeriod, LongSum, OverBudget, long_periods, long_sums, over_budget};
use wallprof_findings::{
    Collector, Loss, SumRow, Surroundings, findings, is_enough_lost, is_much, reads_counter,
    reads_process_counter, reads_wait, times_of_drops,
};
use wallprof_meaning::waits::Rules;
use wallprof_model::counter::CounterTrack;
use wallprof_model::event::{LedgerDelta, Weighted};
use wallprof_model::profile::{
    CrossCallRow, Finding, InterruptRow, IntrusionRow, KernelDelayRow, RecordingInfo, SampleRow, Thread,
    ThrottledRow,
};
use wallprof_model::{EpochSecond, LateSample, MonoNs, Reason, Span, SpanSource, StackId, State, ThreadKey};
use wallprof_recording::{BlameRow, Conclusions, GroupNames, Recording, write_findings};

use crate::failure::{Failure, say};
use crate::meanings::open_recording;

/// Computes the findings and stores them in the complete recording. The recording is usable without them: a
/// failure is only printed.
pub fn store(file: &Path, rules: &Rules) {
    let stored = compute(file, rules).and_then(|found| Ok(write_findings(file, &found)?));
    if let Err(failure) = stored {
        say(&format!(
            "the findings could not be stored in the file, `wallprof report` shows them anyway: {}",
            failure.message
        ));
    }
}

fn compute(file: &Path, rules: &Rules) -> Result<Conclusions, Failure> {
    let recording = open_recording(file, rules)?;
    let (mut collector, mut meanings) = (Collector::default(), Vec::new());
    let background = Background::read(&recording)?;
    let mut waits = Waits::new(&background.threads);
    recording.each_stall(|stall| {
        if stall.meaning.is_some() || stall.wait_id.is_some() {
            meanings.push((stall.id, stall.meaning.clone(), stall.wait_id));
        }
        collector.add(&stall);
        waits.add(&stall);
    })?;
    let blame = waits.blame(|_| true).edges.iter().map(blame_row).collect();
    Ok(Conclusions { findings: background.findings(collector), meanings, blame })
}

fn blame_row(edge: &Edge) -> BlameRow {
    BlameRow {
        waiter: names(&edge.waiter),
        culprit: names(&edge.culprit),
        state: edge.doing.name(),
        last: edge.last.as_deref().map(names),
        place: edge.place.clone(),
        ns: edge.ns,
        count: edge.count,
    }
}

fn names(group: &Group) -> GroupNames {
    match group {
        Group::Threads { process, thread } => {
            GroupNames { process: Some(process.clone()), thread: thread.clone() }
        }
        other => GroupNames { process: None, thread: other.name().unwrap_or_default().into() },
    }
}

/// The data of a recording that findings need besides its stalls.
pub struct Background {
    pub info: RecordingInfo,
    pub threads: Vec<Thread>,
    pub interrupts: Vec<InterruptRow>,
    pub intrusions: Vec<IntrusionRow>,
    kernel_delays: Vec<KernelDelayRow>,
    cross_calls: Vec<CrossCallRow>,
    pub throttled: Vec<ThrottledRow>,
    counters: Vec<CounterTrack>,
    process_counters: Vec<CounterTrack>,
    periods: Vec<LongPeriod>,
    long_sums: Vec<LongSum>,
    over_budget: Vec<OverBudget>,
    sums: Vec<SumRow>,
}

impl Background {
    pub fn read(recording: &Recording) -> Result<Self, Failure> {
        let counters = recording.counters()?;
        let (info, threads) = (recording.info()?, recording.threads()?);
        let span_sums = recording.span_sums()?;
        let spans: Vec<Span> = recording.spans()?.into_iter().map(|(_, span)| span).collect();
        let over_budget = over_budget(&info.budgets, &threads, &span_sums, &spans);
        let samples = recording.late_samples()?;
        let periods = long_periods(&span_sums, &spans, &samples, |stack| recording.resolve(stack))?;
        let ledgers = threads.iter().map(|thread| (thread.info.key, &thread.ledger)).collect();
        let process_counters = counters.whole_of_processes(reads_process_counter)?;
        let running = running(recording, &ledgers, &seconds_of_drops(&process_counters, &info, &threads))?;
        let sums = [
            waits(recording, &ledgers)?,
            losses(recording, &ledgers, recording.minor_faults()?, Loss::Faults)?,
            losses(recording, &ledgers, yields(recording)?, Loss::Yields)?,
            running,
            usual(recording, &info, &first_seconds(&spans, &periods, &info), &samples)?,
        ]
        .concat();
        Ok(Background {
            sums,
            info,
            threads,
            periods,
            long_sums: long_sums(&span_sums),
            over_budget,
            interrupts: recording.interrupts()?,
            intrusions: recording.intrusions()?,
            kernel_delays: recording.kernel_delays()?,
            cross_calls: recording.cross_calls()?,
            throttled: recording.throttled()?,
            counters: counters.whole(reads_counter)?,
            process_counters,
        })
    }

    /// Only what concerns these threads; what the machine and other threads did to all remains. The threads
    /// themselves are the caller's to select.
    pub fn retain(&mut self, threads: &HashSet<ThreadKey>) {
        let pids: HashSet<u32> = self.threads.iter().map(|thread| thread.info.pid).collect();
        self.interrupts.retain(|row| row.victim.is_none_or(|victim| threads.contains(&victim)));
        self.kernel_delays.retain(|delay| threads.contains(&delay.thread));
        self.throttled.retain(|row| pids.contains(&row.pid));
        // A counter of a process is of one of its threads.
        self.process_counters.retain(|track| track.counter.thread.is_none_or(|key| threads.contains(&key)));
        self.periods.retain(|period| threads.contains(&period.thread));
        self.long_sums.retain(|sum| threads.contains(&sum.thread));
        self.sums.retain(|row| threads.contains(&row.thread));
    }

    /// The findings from `stalls`, which must be all stalls of the threads.
    pub fn findings(&self, stalls: Collector) -> Vec<Finding> {
        findings(&stalls.finish(&Surroundings {
            info: &self.info,
            threads: &self.threads,
            interrupts: &self.interrupts,
            intrusions: &self.intrusions,
            kernel_delays: &self.kernel_delays,
            cross_calls: &self.cross_calls,
            throttled: &self.throttled,
            counters: &self.counters,
            process_counters: &self.process_counters,
            periods: &self.periods,
            long_sums: &self.long_sums,
            over_budget: &self.over_budget,
            sums: &self.sums,
        }))
    }
}

/// A place with less of its thread's time is no part of a finding.
const LEAST_PART: u64 = 1_000;

/// Stacks that are read for where threads usually run: those with the most time.
const MOST_USUAL_STACKS: usize = 10_000;

type Ledgers<'r> = HashMap<ThreadKey, &'r LedgerDelta>;

/// The waits that findings read.
fn waits(recording: &Recording, ledgers: &Ledgers<'_>) -> Result<Vec<SumRow>, Failure> {
    let (mut rows, mut stacked_ns) = (Vec::new(), HashMap::<(ThreadKey, Reason), u64>::new());
    for row in recording.blocked()? {
        let Weighted::State(State::Blocked(reason)) = row.what else { continue };
        *stacked_ns.entry((row.thread, reason)).or_default() += row.weight;
        let meaning = recording.meaning(&row);
        if reads_wait(reason, meaning.as_deref()) {
            rows.push((row, Loss::Waits(reason, meaning)));
        }
    }
    let mut waits = sums(recording, ledgers, rows, is_enough_lost)?;
    for row in &mut waits {
        let Loss::Waits(reason, _) = row.loss else { continue };
        // A wait lasts until its thread runs. In the ledger, as in the kernel's own accounts, a thread that is woken on
        // an idle CPU runs some microseconds before.
        let (whole_ns, ledger) = (stacked_ns[&(row.thread, reason)], ledgers.get(&row.thread));
        let counted_ns = ledger.map_or(whole_ns, |ledger| ledger.blocked_ns[usize::from(reason.code())]);
        row.ns = scaled(row.ns, counted_ns.min(whole_ns), whole_ns);
    }
    Ok(waits)
}

/// The calls of sched_yield that findings read: not those of idle threads, which look for work before they sleep.
fn yields(recording: &Recording) -> Result<Vec<SampleRow>, Failure> {
    let is_idle = |row: &&SampleRow| recording.meaning(row).is_some_and(|meaning| meaning.idle);
    Ok(recording.yields()?.iter().filter(|row| !is_idle(row)).cloned().collect())
}

/// The page faults, or the calls of sched_yield, of threads that lost much by them.
fn losses(
    recording: &Recording,
    ledgers: &Ledgers<'_>,
    rows: Vec<SampleRow>,
    loss: Loss,
) -> Result<Vec<SumRow>, Failure> {
    let rows = rows.into_iter().map(|row| (SampleRow { kernel: None, ..row }, loss.clone())).collect();
    sums(recording, ledgers, rows, is_much)
}

/// The seconds in which sockets of processes dropped packets, with the threads of these processes.
fn seconds_of_drops(
    counters: &[CounterTrack],
    info: &RecordingInfo,
    threads: &[Thread],
) -> BTreeMap<EpochSecond, HashSet<ThreadKey>> {
    let pids: HashMap<ThreadKey, u32> =
        threads.iter().map(|thread| (thread.info.key, thread.info.pid)).collect();
    let mut seconds: BTreeMap<EpochSecond, HashSet<ThreadKey>> = BTreeMap::new();
    for track in counters {
        let pid = track.counter.thread.and_then(|thread| pids.get(&thread));
        let of_process = || threads.iter().map(|thread| thread.info.key).filter(|key| pids.get(key) == pid);
        for time in times_of_drops(track) {
            for at in [time.between.start, time.between.end] {
                seconds.entry(second_of(info, at)).or_default().extend(of_process());
            }
        }
    }
    seconds
}

/// Where threads ran in these seconds.
fn running(
    recording: &Recording,
    ledgers: &Ledgers<'_>,
    seconds: &BTreeMap<EpochSecond, HashSet<ThreadKey>>,
) -> Result<Vec<SumRow>, Failure> {
    let (Some((first, _)), Some((last, _))) = (seconds.first_key_value(), seconds.last_key_value()) else {
        return Ok(Vec::new());
    };
    let is_in = |second, thread| seconds.get(&second).is_some_and(|threads| threads.contains(&thread));
    let rows = running_by_stack(recording, *first..=*last, is_in)?;
    let rows = rows.into_values().map(|row| (row, Loss::Running)).collect();
    sums(recording, ledgers, rows, |_, _| true)
}

/// A user stack of a thread, or none.
type ThreadStack = (ThreadKey, Option<StackId>);

/// The running time in seconds of threads for which `is_wanted`.
fn running_by_stack(
    recording: &Recording,
    seconds: impl RangeBounds<EpochSecond>,
    is_wanted: impl Fn(EpochSecond, ThreadKey) -> bool,
) -> Result<BTreeMap<ThreadStack, SampleRow>, Failure> {
    let mut rows: BTreeMap<ThreadStack, SampleRow> = BTreeMap::new();
    for row in recording.samples(seconds)? {
        let row = row?;
        if is_wanted(row.second, row.thread)
            && matches!(row.what, Weighted::State(State::User | State::Kernel))
        {
            let (key, weight, count) = ((row.thread, row.user), row.weight, row.count);
            let sum = rows.entry(key).or_insert(SampleRow { kernel: None, weight: 0, count: 0, ..row });
            (sum.weight, sum.count) = (sum.weight.saturating_add(weight), sum.count.saturating_add(count));
        }
    }
    Ok(rows)
}

/// For each thread with a long period that has samples: the second of the thread's first busy period.
fn first_seconds(
    spans: &[Span],
    periods: &[LongPeriod],
    info: &RecordingInfo,
) -> HashMap<ThreadKey, EpochSecond> {
    let long = periods.iter().filter(|period| !period.samples.is_empty());
    let mut first: HashMap<ThreadKey, MonoNs> = long.map(|period| (period.thread, period.start)).collect();
    for span in spans.iter().filter(|span| span.source == SpanSource::Busy) {
        first.entry(span.thread).and_modify(|start| *start = span.start.min(*start));
    }
    first.into_iter().map(|(thread, start)| (thread, second_of(info, start))).collect()
}

/// Where these threads usually run: from the second after the first period on, since no period is known before, and not
/// late in a period. Nobody asks where each period is a turn.
fn usual(
    recording: &Recording,
    info: &RecordingInfo,
    first: &HashMap<ThreadKey, EpochSecond>,
    late: &[LateSample],
) -> Result<Vec<SumRow>, Failure> {
    let Some(from) = first.values().min().filter(|_| !info.has_turns) else { return Ok(Vec::new()) };
    let is_wanted = |second: EpochSecond, thread| first.get(&thread).is_some_and(|first| second.0 > first.0);
    let mut rows = running_by_stack(recording, *from.., is_wanted)?;
    for sample in late.iter().filter(|sample| sample.is_running_in_period()) {
        if is_wanted(second_of(info, sample.at), sample.thread)
            && let Some(row) = rows.get_mut(&(sample.thread, sample.user))
        {
            (row.weight, row.count) = (row.weight.saturating_sub(sample.ns), row.count.saturating_sub(1));
        }
    }
    let mut rows: Vec<SampleRow> = rows.into_values().filter(|row| row.count > 0).collect();
    rows.sort_by_key(|row| Reverse(row.weight));
    let resolved = rows.into_iter().take(MOST_USUAL_STACKS).map(|row| {
        let user = row.user.map(|stack| recording.look_at(stack)).transpose()?;
        let (thread, ns, count) = (row.thread, row.weight, row.count);
        Ok(SumRow { thread, loss: Loss::Usual, user, kernel: None, ns, count })
    });
    resolved.collect()
}

fn second_of(info: &RecordingInfo, at: MonoNs) -> EpochSecond {
    EpochSecond((info.clock.epoch_from_mono(at).0 / 1_000_000_000) as u32)
}

/// The rows of threads that lost enough in all. The stacks of others are not read from the file.
fn sums(
    recording: &Recording,
    ledgers: &Ledgers<'_>,
    mut rows: Vec<(SampleRow, Loss)>,
    is_enough: fn(u64, u64) -> bool,
) -> Result<Vec<SumRow>, Failure> {
    let mut lost_ns = HashMap::<ThreadKey, u64>::new();
    rows.iter().for_each(|(row, _)| *lost_ns.entry(row.thread).or_default() += row.weight);
    rows.retain(|(row, _)| {
        let wall_ns = ledgers.get(&row.thread).map_or(u64::MAX, |ledger| ledger.wall_ns);
        is_enough(lost_ns[&row.thread], wall_ns) && row.weight >= wall_ns / LEAST_PART
    });
    let look_at = |stack: Option<StackId>| stack.map(|stack| recording.look_at(stack)).transpose();
    let resolved = rows.into_iter().map(|(row, loss)| {
        let (user, kernel) = (look_at(row.user)?, look_at(row.kernel)?);
        Ok(SumRow { thread: row.thread, loss, user, kernel, ns: row.weight, count: row.count })
    });
    resolved.collect()
}

/// The part of `ns` that `part` is of `whole`.
fn scaled(ns: u64, part: u64, whole: u64) -> u64 {
    u64::try_from(u128::from(ns) * u128::from(part) / u128::from(whole.max(1))).unwrap_or(ns)
}
