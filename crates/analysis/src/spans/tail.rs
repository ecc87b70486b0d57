// SPDX-License-Identifier: Apache-2.0
//! The slow spans of each kind minus those in the middle, state by state, and the waits that the difference
//! consists of.
//!
//! Counts and states are sums over all spans, exact at the edges of histogram buckets. Causes come from the
//! single spans that were kept: they divide each state's part of the difference in proportion. Running time is
//! divided by the samples late in busy periods and marked spans, if there are enough. So is what is left of a
//! blocked state by the waits late in busy periods: a thread that waits thousands of times a second has a record
//! of few of its waits.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use wallprof_meaning::site::{Site, Sites};
use wallprof_model::histogram::{Cell, Histogram, bucket_from_ns, range_from_bucket};
use wallprof_model::profile::{LockRecord, ResolvedStack, StallRecord, Thread, WakerRecord};
use wallprof_model::{
    LateSample, Meaning, MonoNs, Span, SpanDelta, SpanSource, SpanState, SpanStates, StallReason, State,
    ThreadKey,
};

use super::join::state_of;

/// With fewer spans in the tail, their mean says little.
pub const LEAST_TAIL: u64 = 30;
/// Kinds that are compared: those with most spans.
const MOST_KINDS: usize = 1_000;
/// Slowest spans that are listed.
const EXEMPLARS: usize = 10;
/// Single spans of the tail and of the body of a kind in which waits are looked for.
const MOST_LOOKED_AT: usize = 2_000;
/// With fewer samples in the tail, running time is not divided; with fewer late waits, nor is a blocked state.
const LEAST_SAMPLES: u64 = 10;
/// Stalls that a listed span names.
const MOST_STALLS: usize = 1_000;

/// Lower percentiles at which the tail starts where [`TailOptions::or_lower`] allows it.
const LOWER_TAILS: [f64; 2] = [0.99, LOWEST_TAIL];
pub const LOWEST_TAIL: f64 = 0.9;

/// Which spans are compared, as shares of all.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TailOptions {
    pub tail: f64,
    pub body: (f64, f64),
    /// Where the tail of a kind has fewer than [`LEAST_TAIL`] spans, it starts at P99, or else at P90.
    pub or_lower: bool,
}

impl Default for TailOptions {
    fn default() -> Self {
        TailOptions { tail: 0.999, body: (0.45, 0.55), or_lower: false }
    }
}

/// Spans between two durations.
#[derive(Clone, Debug, PartialEq)]
pub struct Means {
    /// The edges of the histogram's buckets.
    pub from_ns: u64,
    pub to_ns: u64,
    pub count: u64,
    /// Mean ns a span; they add up to `mean_ns`.
    pub states: [i64; SpanState::COUNT],
}

impl Means {
    pub fn mean_ns(&self) -> i64 {
        self.states.iter().sum()
    }
}

/// A part of the difference: waits at one place that one kind of thread ended, or the rest of a state.
#[derive(Clone, Debug)]
pub struct Cause {
    /// Mean ns of a tail span beyond the body; less than 0 where the body has more.
    pub ns: i64,
    /// The part of `ns` that no single wait or sample shows: a share of its state's rest, which is divided as the
    /// late waits are.
    pub divided_ns: i64,
    pub state: SpanState,
    pub meaning: Option<Arc<Meaning>>,
    pub site: Option<Arc<Site>>,
    /// Where the thread that ended the waits was.
    pub waker_site: Option<Arc<Site>>,
    /// These four are of the longest of the waits.
    pub user: Option<ResolvedStack>,
    pub kernel: Option<ResolvedStack>,
    pub waker: Option<WakerRecord>,
    pub lock: Option<LockRecord>,
}

/// One of the slowest spans.
#[derive(Clone, Debug, PartialEq)]
pub struct Exemplar {
    pub id: u64,
    pub span: Span,
    pub tid: u32,
    pub comm: Arc<str>,
    /// Stalls in it, and the site of the longest.
    pub stalls: Vec<u64>,
    pub longest: Option<(u64, StallReason, Option<Arc<Site>>)>,
    /// The traces that the thread worked for in these stalls, in the order of the stalls, each once.
    pub traces: Vec<String>,
}

/// The tail, the body and their difference.
#[derive(Clone, Debug)]
pub struct Group {
    pub tail: Means,
    /// Tail minus body. Most time first.
    pub states: [i64; SpanState::COUNT],
    pub causes: Vec<Cause>,
}

/// The spans of one kind in processes of one name.
#[derive(Clone, Debug)]
pub struct KindTail {
    pub kind: Arc<str>,
    pub source: SpanSource,
    pub process: Arc<str>,
    pub histogram: Histogram,
    /// The percentile at which the tail starts, as a share.
    pub tail_share: f64,
    pub body: Option<Means>,
    /// `None`: too few spans are in the tail.
    pub difference: Option<Group>,
    pub tail_count: u64,
    pub exemplars: Vec<Exemplar>,
}

/// Takes the sums and single spans of a recording, then its stalls.
pub struct Tails {
    kinds: Vec<Kind>,
    /// The spans in which waits are looked for, by thread and start.
    watched: HashMap<ThreadKey, Vec<Watched>>,
    sites: Sites,
    left_out: usize,
}

type KindKey = (Arc<str>, SpanSource, Arc<str>);

struct Kind {
    key: KindKey,
    sums: BTreeMap<u16, Sum>,
    tail_share: f64,
    tail_from: u16,
    body: (u16, u16),
    /// Spans that were looked at.
    tail_spans: u64,
    body_spans: u64,
    /// Samples of running time in the tail's spans.
    samples: u64,
    waits: HashMap<CauseKey, Waits>,
    exemplars: Vec<Exemplar>,
}

#[derive(Clone, Copy, Default)]
struct Sum {
    count: u64,
    max_ns: u64,
    states: SpanStates,
}

struct Watched {
    start: MonoNs,
    end: MonoNs,
    /// The latest end of this and all earlier ones of the thread.
    latest: MonoNs,
    kind: usize,
    in_tail: bool,
    in_body: bool,
    exemplar: Option<usize>,
}

#[derive(PartialEq, Eq, Hash, PartialOrd, Ord, Clone)]
struct CauseKey {
    state: SpanState,
    meaning: Option<Arc<Meaning>>,
    site: Option<Arc<Site>>,
    waker: Option<String>,
    waker_site: Option<Arc<Site>>,
}

#[derive(Default)]
struct Waits {
    tail_ns: u64,
    body_ns: u64,
    /// Late waits, which are in `tail_ns` as well.
    late_ns: u64,
    late_count: u64,
    longest_ns: u64,
    user: Option<ResolvedStack>,
    kernel: Option<ResolvedStack>,
    waker: Option<WakerRecord>,
    lock: Option<LockRecord>,
}

impl Tails {
    /// Of the spans of these threads, and of kinds that `accepts_kind` by name.
    pub fn new(
        threads: &[Thread],
        sums: &[SpanDelta],
        spans: Vec<(u64, Span)>,
        options: &TailOptions,
        accepts_kind: impl Fn(&str) -> bool,
    ) -> Self {
        let threads: HashMap<ThreadKey, &Thread> =
            threads.iter().map(|thread| (thread.info.key, thread)).collect();
        let mut processes: HashMap<&str, Arc<str>> = HashMap::new();
        let mut key_of = |thread: ThreadKey, source: SpanSource, kind: &Arc<str>| -> Option<KindKey> {
            let info = &threads.get(&thread)?.info;
            accepts_kind(kind).then(|| {
                let process = processes.entry(&info.process).or_insert_with(|| info.process.as_str().into());
                (Arc::clone(kind), source, Arc::clone(process))
            })
        };
        let mut by_key: BTreeMap<KindKey, BTreeMap<u16, Sum>> = BTreeMap::new();
        for delta in sums {
            let Some(key) = key_of(delta.thread, delta.source, &delta.kind) else { continue };
            let sum = by_key.entry(key).or_default().entry(delta.bucket).or_default();
            sum.count = sum.count.saturating_add(delta.count);
            sum.max_ns = sum.max_ns.max(delta.max_ns);
            sum.states.add(&delta.states);
        }
        let mut kinds: Vec<Kind> =
            by_key.into_iter().map(|(key, sums)| Kind::new(key, sums, options)).collect();
        kinds.sort_by_key(|kind| std::cmp::Reverse(kind.count()));
        let left_out = kinds.len().saturating_sub(MOST_KINDS);
        kinds.truncate(MOST_KINDS);
        let number: HashMap<KindKey, usize> =
            kinds.iter().enumerate().map(|(at, kind)| (kind.key.clone(), at)).collect();
        let mut tails = Tails { kinds, watched: HashMap::new(), sites: Sites::default(), left_out };
        for (id, span) in spans {
            let Some(key) = key_of(span.thread, span.source, &span.kind) else { continue };
            let (Some(&at), Some(thread)) = (number.get(&key), threads.get(&span.thread)) else { continue };
            tails.watch(at, id, span, thread);
        }
        for watched in tails.watched.values_mut() {
            watched.sort_by_key(|span| span.start);
            let mut latest = MonoNs(0);
            for span in watched {
                latest = latest.max(span.end);
                span.latest = latest;
            }
        }
        tails
    }

    /// Spans come longest first.
    fn watch(&mut self, at: usize, id: u64, span: Span, thread: &Thread) {
        let kind = &mut self.kinds[at];
        let bucket = bucket_from_ns(span.duration_ns());
        let in_tail = bucket >= kind.tail_from && kind.tail_spans < MOST_LOOKED_AT as u64;
        let is_body = bucket >= kind.body.0 && bucket <= kind.body.1;
        let in_body = is_body && kind.body_spans < MOST_LOOKED_AT as u64;
        kind.tail_spans += u64::from(in_tail);
        kind.body_spans += u64::from(in_body);
        let exemplar = (kind.exemplars.len() < EXEMPLARS).then_some(kind.exemplars.len());
        if !in_tail && !in_body && exemplar.is_none() {
            return;
        }
        let (start, end) = (span.start, span.end);
        let watched = Watched { start, end, latest: end, kind: at, in_tail, in_body, exemplar };
        self.watched.entry(span.thread).or_default().push(watched);
        if exemplar.is_some() {
            let (tid, comm) = (thread.info.tid, thread.info.comm.as_str().into());
            kind.exemplars.push(Exemplar {
                id,
                span,
                tid,
                comm,
                stalls: Vec::new(),
                longest: None,
                traces: Vec::new(),
            });
        }
    }

    /// Whether a stall can be in any of the spans.
    pub fn looks_for_waits(&self) -> bool {
        !self.watched.is_empty()
    }

    /// Takes a stall of the recording, in any order.
    pub fn add(&mut self, stall: &StallRecord) {
        let Tails { kinds, watched, sites, .. } = self;
        let Some(spans) = watched.get(&stall.thread) else { return };
        let first = spans.partition_point(|span| span.latest <= stall.start);
        let around = spans[first..].iter().take_while(|span| span.start < stall.end);
        let mut key = None;
        for span in around.filter(|span| span.end > stall.start) {
            let ns = stall.end.min(span.end).0.saturating_sub(stall.start.max(span.start).0);
            let key = key.get_or_insert_with(|| CauseKey::of(stall, sites));
            let kind = &mut kinds[span.kind];
            if let Some(exemplar) = span.exemplar.and_then(|at| kind.exemplars.get_mut(at)) {
                exemplar.add(stall, ns, key.site.as_ref());
            }
            if span.in_tail || span.in_body {
                // The time after the wakeup is a wait for a CPU, and another part of the difference.
                let wakeup = MonoNs(stall.end.0.saturating_sub(stall.runnable_ns));
                let waited_ns = match stall.reason {
                    StallReason::Preempted => ns,
                    _ => wakeup.min(span.end).0.saturating_sub(stall.start.max(span.start).0),
                };
                kind.add_wait(key.clone(), waited_ns, span, stall);
                if ns > waited_ns {
                    let state = SpanState::Of(State::Runnable);
                    let site = key.site.clone();
                    let key = CauseKey { state, meaning: None, site, waker: None, waker_site: None };
                    kind.add_wait(key, ns - waited_ns, span, stall);
                }
            }
        }
    }

    /// Takes what a thread did late in a span, with its stacks.
    pub fn add_late(
        &mut self,
        sample: &LateSample,
        user: Option<&ResolvedStack>,
        kernel: Option<&ResolvedStack>,
    ) {
        let Tails { kinds, watched, sites, .. } = self;
        let Some(spans) = watched.get(&sample.thread) else { return };
        let first = spans.partition_point(|span| span.latest < sample.at);
        let around = spans[first..].iter().take_while(|span| span.start < sample.at);
        for span in around.filter(|span| span.end >= sample.at && span.in_tail) {
            let kind = &mut kinds[span.kind];
            if kind.key.1 != sample.source {
                continue;
            }
            let state = SpanState::all()[SpanState::Of(sample.state).index()];
            kind.samples += u64::from(state == SpanState::Cpu);
            let site = sites.of(user, kernel);
            let key = CauseKey { state, meaning: None, site, waker: None, waker_site: None };
            let waits = kind.waits.entry(key).or_default();
            waits.tail_ns = waits.tail_ns.saturating_add(sample.ns);
            waits.late_ns = waits.late_ns.saturating_add(sample.ns);
            waits.late_count += 1;
            if sample.ns > waits.longest_ns {
                waits.longest_ns = sample.ns;
                (waits.user, waits.kernel) = (user.cloned(), kernel.cloned());
            }
        }
    }

    /// Kinds beyond the limit.
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    /// Kinds with most spans first.
    pub fn finish(self) -> Vec<KindTail> {
        self.kinds.into_iter().map(Kind::finish).collect()
    }
}

impl CauseKey {
    fn of(stall: &StallRecord, sites: &mut Sites) -> Self {
        let waker = stall.waker.as_ref();
        CauseKey {
            state: SpanState::Of(state_of(stall)),
            meaning: stall.meaning.clone(),
            site: sites.of(stall.user.as_ref(), stall.kernel.as_ref()),
            waker: waker.and_then(|waker| waker.thread.as_ref()).map(|thread| thread.comm.clone()),
            waker_site: waker
                .filter(|waker| waker.thread.is_some())
                .and_then(|waker| sites.of(waker.user.as_ref(), waker.kernel.as_ref())),
        }
    }
}

impl Exemplar {
    fn add(&mut self, stall: &StallRecord, ns: u64, site: Option<&Arc<Site>>) {
        if self.stalls.len() < MOST_STALLS {
            self.stalls.push(stall.id);
        }
        if let Some(trace) = stall.trace.map(|ids| ids.trace_id())
            && self.traces.len() < MOST_STALLS
            && !self.traces.contains(&trace)
        {
            self.traces.push(trace);
        }
        if self.longest.as_ref().is_none_or(|(longest, ..)| ns > *longest) {
            self.longest = Some((ns, stall.reason, site.cloned()));
        }
    }
}

impl Kind {
    fn new(key: KindKey, sums: BTreeMap<u16, Sum>, options: &TailOptions) -> Self {
        let count = sums.values().fold(0u64, |count, sum| count.saturating_add(sum.count));
        let bucket_at = |share: f64| {
            let rank = ((share * count as f64).ceil() as u64).clamp(1, count.max(1));
            let mut seen = 0u64;
            let found = sums.iter().find(|(_, sum)| {
                seen = seen.saturating_add(sum.count);
                seen >= rank
            });
            found.map_or(0, |(bucket, _)| *bucket)
        };
        let body = (bucket_at(options.body.0), bucket_at(options.body.1));
        let count_from =
            |bucket: u16| sums.range(bucket..).map(|(_, sum)| sum.count).fold(0, u64::saturating_add);
        // A bucket in which most spans are holds faster ones than the percentile, too: the tail is what is slower.
        let tail_from = |share: f64| {
            let at = bucket_at(share);
            let wanted = ((1.0 - share) * count as f64).max(1.0);
            let is_mostly_faster = at <= body.1 || count_from(at) as f64 > 2.0 * wanted;
            let next = at.max(body.1).saturating_add(1);
            if is_mostly_faster && count_from(next) >= LEAST_TAIL { next } else { at }
        };
        let in_tail = |share: f64| count_from(tail_from(share));
        // Where the lower percentile is as fast as the middle, its spans are not the slow ones.
        let is_slow = |share: &f64| bucket_at(*share) > body.1;
        let lower = LOWER_TAILS.into_iter().filter(|share| options.or_lower && *share < options.tail);
        let mut shares = std::iter::once(options.tail).chain(lower.filter(is_slow));
        let tail_share = shares.find(|share| in_tail(*share) >= LEAST_TAIL).unwrap_or(options.tail);
        Kind {
            tail_share,
            tail_from: tail_from(tail_share),
            body,
            key,
            sums,
            tail_spans: 0,
            body_spans: 0,
            samples: 0,
            waits: HashMap::new(),
            exemplars: Vec::new(),
        }
    }

    fn count(&self) -> u64 {
        self.sums.values().fold(0, |count: u64, sum| count.saturating_add(sum.count))
    }

    fn add_wait(&mut self, key: CauseKey, ns: u64, span: &Watched, stall: &StallRecord) {
        let waits = self.waits.entry(key).or_default();
        if span.in_tail {
            waits.tail_ns = waits.tail_ns.saturating_add(ns);
        }
        if span.in_body {
            waits.body_ns = waits.body_ns.saturating_add(ns);
        }
        if ns > waits.longest_ns {
            waits.longest_ns = ns;
            waits.user.clone_from(&stall.user);
            waits.kernel.clone_from(&stall.kernel);
            waits.waker.clone_from(&stall.waker);
            waits.lock.clone_from(&stall.lock);
        }
    }

    /// The mean states of the spans in these buckets.
    fn means(&self, from: u16, to: u16) -> Option<Means> {
        let mut sum = Sum::default();
        for (_, more) in self.sums.range(from..=to.max(from)) {
            sum.count = sum.count.saturating_add(more.count);
            sum.max_ns = sum.max_ns.max(more.max_ns);
            sum.states.add(&more.states);
        }
        let mean = |ns: u64| i64::try_from((ns + sum.count / 2) / sum.count).unwrap_or(i64::MAX / 64);
        (sum.count > 0).then(|| Means {
            from_ns: range_from_bucket(from).0,
            to_ns: range_from_bucket(bucket_from_ns(sum.max_ns).min(to)).1,
            count: sum.count,
            states: sum.states.0.map(mean),
        })
    }

    /// Gives late waits to the waits at the same place of which more is known: what they mean and who ended them.
    fn name_late_waits(&mut self) {
        // Waits without a stack may be at any place.
        let has_place = |key: &&CauseKey| key.site.is_some();
        let is_unnamed = |key: &CauseKey| {
            key.state != SpanState::Cpu
                && key.meaning.is_none()
                && key.waker.is_none()
                && key.waker_site.is_none()
        };
        let mut named: HashMap<(SpanState, Option<Arc<Site>>), Vec<CauseKey>> = HashMap::new();
        for key in self.waits.keys().filter(has_place).filter(|key| !is_unnamed(key)) {
            named.entry((key.state, key.site.clone())).or_default().push(key.clone());
        }
        let unnamed: Vec<CauseKey> = self.waits.keys().filter(|key| is_unnamed(key)).cloned().collect();
        for key in unnamed {
            let Some(named) = named.get(&(key.state, key.site.clone())) else { continue };
            let Some(late) = self.waits.get_mut(&key).map(Waits::take_late) else { continue };
            let seen_ns = |waits: &Waits| u128::from(waits.tail_ns) + u128::from(waits.body_ns);
            let all_ns: u128 = named.iter().map(|key| seen_ns(&self.waits[key])).sum();
            for key in named {
                let waits = self.waits.get_mut(key).expect("a key of the map");
                let share = |of: u64| (u128::from(of) * seen_ns(waits) / all_ns.max(1)) as u64;
                let (late_ns, late_count) = (share(late.late_ns), share(late.late_count));
                waits.tail_ns = waits.tail_ns.saturating_add(late_ns);
                waits.late_ns = waits.late_ns.saturating_add(late_ns);
                waits.late_count += late_count;
            }
        }
    }

    fn finish(mut self) -> KindTail {
        self.name_late_waits();
        if self.samples < LEAST_SAMPLES {
            self.waits.retain(|key, _| key.state != SpanState::Cpu);
        }
        let mut histogram = Histogram::default();
        for (bucket, sum) in &self.sums {
            let (count, max_ns) = (sum.count, sum.max_ns);
            histogram.add_cell(*bucket, Cell { count, total_ns: sum.states.total_ns(), max_ns });
        }
        let body = self.means(self.body.0, self.body.1);
        let tail = self.means(self.tail_from, u16::MAX);
        let tail_count = tail.as_ref().map_or(0, |tail| tail.count);
        let difference = match (tail, &body) {
            (Some(tail), Some(body)) if tail.count >= LEAST_TAIL => {
                let states = std::array::from_fn(|at| tail.states[at] - body.states[at]);
                Some(Group { causes: self.causes(&states), tail, states })
            }
            _ => None,
        };
        let (kind, source, process) = self.key;
        let (tail_share, exemplars) = (self.tail_share, self.exemplars);
        KindTail { kind, source, process, histogram, tail_share, body, difference, tail_count, exemplars }
    }

    /// The waits that each state's part of the difference consists of. They add up to it.
    fn causes(&self, states: &[i64; SpanState::COUNT]) -> Vec<Cause> {
        let mut causes = Vec::new();
        for (state, &whole) in SpanState::all().into_iter().zip(states) {
            let mut rest = whole;
            if whole > 0 {
                let mut more: BTreeMap<&CauseKey, (i64, i64)> = BTreeMap::new();
                let known: i64 = self.excess(state).map(|(ns, _)| ns).sum();
                for (ns, key) in self.excess(state) {
                    let ns = if known > whole { share(whole, ns, known) } else { ns };
                    rest -= ns;
                    more.insert(key, (ns, 0));
                }
                let left = rest;
                for (late_ns, all_ns, key) in self.late_waits(state) {
                    let ns = share(left, late_ns, all_ns);
                    rest -= ns;
                    more.entry(key).or_default().1 = ns;
                }
                causes.extend(more.into_iter().map(|(key, (seen, divided))| self.cause(seen, divided, key)));
            }
            if rest != 0 {
                causes.push(Cause::of_state(rest, state));
            }
        }
        causes.retain(|cause| cause.ns != 0);
        causes.sort_by_key(|cause| std::cmp::Reverse(cause.ns));
        causes
    }

    /// The late waits by which the rest of a blocked state is divided: their time, that of all, and the place. None
    /// where there are too few.
    fn late_waits(&self, state: SpanState) -> impl Iterator<Item = (i64, i64, &CauseKey)> {
        let is_blocked = matches!(state, SpanState::Of(State::Blocked(_)));
        let of_state = || self.waits.iter().filter(move |(key, _)| is_blocked && key.state == state);
        let count: u64 = of_state().map(|(_, waits)| waits.late_count).sum();
        let all_ns = of_state().fold(0u64, |sum, (_, waits)| sum.saturating_add(waits.late_ns));
        let signed = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
        let late = of_state().filter(move |(_, waits)| count >= LEAST_SAMPLES && waits.late_ns > 0);
        late.map(move |(key, waits)| (signed(waits.late_ns), signed(all_ns), key))
    }

    /// Mean ns of the waits of a state in a span of the tail beyond one of the body. Without a span of the body it is not
    /// known which waits all have.
    fn excess(&self, state: SpanState) -> impl Iterator<Item = (i64, &CauseKey)> {
        let mean = |ns: u64, spans: u64| (ns / spans.max(1)).min(i64::MAX as u64 / 2) as i64;
        let is_known = self.body_spans > 0;
        let of_state = self.waits.iter().filter(move |(key, _)| is_known && key.state == state);
        let excess = of_state.map(move |(key, waits)| {
            (mean(waits.tail_ns, self.tail_spans) - mean(waits.body_ns, self.body_spans), key)
        });
        excess.filter(|(ns, _)| *ns > 0)
    }

    fn cause(&self, seen_ns: i64, divided_ns: i64, key: &CauseKey) -> Cause {
        let waits = &self.waits[key];
        Cause {
            ns: seen_ns + divided_ns,
            divided_ns,
            state: key.state,
            meaning: key.meaning.clone(),
            site: key.site.clone(),
            waker_site: key.waker_site.clone(),
            user: waits.user.clone(),
            kernel: waits.kernel.clone(),
            waker: waits.waker.clone(),
            lock: waits.lock.clone(),
        }
    }
}

impl Waits {
    /// Leaves what single stalls show.
    fn take_late(&mut self) -> Waits {
        let (late_ns, late_count) = (std::mem::take(&mut self.late_ns), std::mem::take(&mut self.late_count));
        self.tail_ns = self.tail_ns.saturating_sub(late_ns);
        Waits { late_ns, late_count, ..Waits::default() }
    }
}

/// `part` of `of` in `whole`.
fn share(of: i64, part: i64, whole: i64) -> i64 {
    (i128::from(of) * i128::from(part) / i128::from(whole.max(1))) as i64
}

impl Cause {
    /// The part of a state of which no single wait is known.
    fn of_state(ns: i64, state: SpanState) -> Self {
        Cause {
            ns,
            divided_ns: 0,
            state,
            meaning: None,
            site: None,
            waker_site: None,
            user: None,
            kernel: None,
            waker: None,
            lock: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use wallprof_model::{MeaningSource, Reason, ThreadRef};

    use super::super::ThreadPauses;
    use super::*;
    use crate::weights::fixture::thread;
    use wallprof_testkit::stacks::stack;

    const ENGINE: ThreadKey = ThreadKey(1);
    const STEP: u64 = 10_000_000;
    const LOCK: StallReason = StallReason::Blocked(Reason::Lock);

    /// An operation every 10 ms; each waits as the function says.
    fn operations(
        count: u64,
        wait: impl Fn(u64) -> Option<StallRecord>,
    ) -> (Vec<(u64, Span)>, Vec<StallRecord>) {
        let mut pauses = ThreadPauses::default();
        let stalls: Vec<StallRecord> = (0..count).filter_map(wait).collect();
        stalls.iter().for_each(|stall| pauses.add(stall));
        pauses.finish();
        let mut spans: Vec<(u64, Span)> = Vec::new();
        for id in 0..count {
            let start = id * STEP;
            let waited = stalls.iter().filter(|stall| stall.start.0 / STEP == id);
            let ns = 20_000 + id % 5 * 100 + waited.map(StallRecord::duration_ns).sum::<u64>();
            let (start, end) = (MonoNs(start), MonoNs(start + ns));
            let states = pauses.states_of(start, end);
            let (source, kind) = (SpanSource::Import, "order".into());
            spans.push((id, Span { thread: ENGINE, source, kind, start, end, states }));
        }
        spans.sort_by_key(|(_, span)| std::cmp::Reverse(span.duration_ns()));
        (spans, stalls)
    }

    fn lock_wait(id: u64, ns: u64) -> StallRecord {
        let stall = StallRecord::new(id + 1, ENGINE, LOCK, MonoNs(id * STEP + 5_000), ns);
        let housekeeper = ThreadRef { key: None, pid: 1, tid: 3, comm: "housekeeper".into(), title: None };
        StallRecord {
            blocked_ns: ns - 10_000,
            runnable_ns: 10_000,
            user: Some(stack(&["take_registry_lock", "engine"])),
            lock: Some(LockRecord { address: 8, owner: Some(housekeeper) }),
            ..stall
        }
    }

    fn sums_of(spans: &[(u64, Span)]) -> Vec<SpanDelta> {
        let sum = |(_, span): &(u64, Span)| SpanDelta {
            thread: ENGINE,
            source: span.source,
            kind: Arc::clone(&span.kind),
            bucket: bucket_from_ns(span.duration_ns()),
            count: 1,
            max_ns: span.duration_ns(),
            states: span.states,
        };
        spans.iter().map(sum).collect()
    }

    fn tail_of(spans: Vec<(u64, Span)>, stalls: &[StallRecord], share: f64) -> KindTail {
        let sums = sums_of(&spans);
        let options = TailOptions { tail: share, ..TailOptions::default() };
        let threads = [thread(ENGINE.0, "engine")];
        let mut tails = Tails::new(&threads, &sums, spans, &options, |_| true);
        stalls.iter().for_each(|stall| tails.add(stall));
        tails.finish().remove(0)
    }

    #[test]
    fn the_planted_wait_is_the_first_cause_and_the_parts_add_up() {
        let (spans, stalls) = operations(4_000, |id| (id % 50 == 7).then(|| lock_wait(id, 900_000)));
        let kind = tail_of(spans, &stalls, 0.985);
        let group = kind.difference.expect("eighty spans in the tail");
        assert_eq!(group.tail.count, 80);
        let first = &group.causes[0];
        assert_eq!((first.state.label().as_str(), first.ns), ("blocked:lock", 890_000));
        assert_eq!(first.site.as_ref().map(|site| &*site.functions[0]), Some("take_registry_lock"));
        let owner = first.lock.as_ref().and_then(|lock| lock.owner.as_ref());
        assert_eq!(owner.map(|owner| owner.comm.as_str()), Some("housekeeper"));
        assert_eq!(group.causes[1].state, SpanState::Of(State::Runnable));
        let parts: i64 = group.causes.iter().map(|cause| cause.ns).sum();
        assert_eq!(parts, group.states.iter().sum::<i64>());
        let slowest = &kind.exemplars[0];
        assert_eq!((kind.exemplars.len(), slowest.stalls.len()), (10, 1));
        assert_eq!(slowest.span.states.total_ns(), slowest.span.duration_ns());
    }

    #[test]
    fn without_a_cause_there_is_no_excess() {
        let (spans, stalls) = operations(4_000, |_| None);
        let group = tail_of(spans, &stalls, 0.985).difference.expect("a tail");
        let more: i64 = group.states.iter().sum();
        assert!(more.abs() < 1_000, "{more}");
    }

    #[test]
    fn waits_that_the_middle_has_as_well_are_no_cause() {
        // Each waits 200 µs for the lock, and one in fifty 700 µs more.
        let ns = |id: u64| if id % 50 == 7 { 900_000 } else { 200_000 };
        let (spans, stalls) = operations(4_000, |id| Some(lock_wait(id, ns(id))));
        let group = tail_of(spans, &stalls, 0.985).difference.expect("a tail");
        assert_eq!(group.causes[0].ns, 700_000);
        assert!(group.causes[1..].iter().all(|cause| cause.ns.abs() < 1_000), "{:?}", group.causes);
    }

    #[test]
    fn a_tail_of_few_spans_is_not_compared() {
        let (spans, stalls) = operations(400, |id| (id % 50 == 7).then(|| lock_wait(id, 900_000)));
        let kind = tail_of(spans, &stalls, 0.985);
        assert!(kind.difference.is_none() && kind.body.is_some());
        assert_eq!((kind.tail_count, kind.exemplars.len()), (8, 10));
    }

    #[test]
    fn the_tail_starts_lower_where_it_may_and_has_too_few_spans() {
        let tail_of = |every: u64, or_lower| {
            let ns = |id: u64| 900_000 + id * 1_000;
            let (spans, _) = operations(400, |id| (id % every == 2).then(|| lock_wait(id, ns(id))));
            let options = TailOptions { or_lower, ..TailOptions::default() };
            let threads = [thread(ENGINE.0, "engine")];
            let kind = Tails::new(&threads, &sums_of(&spans), spans, &options, |_| true).finish().remove(0);
            (kind.tail_share, kind.difference.is_some())
        };
        assert_eq!(tail_of(5, true), (0.9, true), "a fifth is slow");
        assert_eq!(tail_of(5, false), (0.999, false));
        assert_eq!(tail_of(50, true), (0.999, false), "P90 is as fast as the middle");
    }

    /// Of 100, 95 take 20.0 to 20.4 us, in one bucket or two, and five wait for a lock.
    #[test]
    fn the_tail_is_what_is_slower_than_a_bucket_in_which_most_are() {
        let (spans, stalls) = operations(2_000, |id| (id % 20 == 7).then(|| lock_wait(id, 900_000)));
        for share in [0.6, 0.9, 0.95] {
            let kind = tail_of(spans.clone(), &stalls, share);
            let group = kind.difference.expect("a tail");
            assert_eq!((group.tail.count, kind.tail_count), (100, 100), "{share}");
            assert!(group.tail.from_ns > kind.body.expect("a body").from_ns);
        }
    }

    const PERIODS: u64 = 4_000;

    /// One in fifty periods.
    fn is_slow(id: u64) -> bool {
        id % 50 == 7
    }

    /// Busy periods that compute for 20 µs; the slow ones are `longer_ns` longer in a state.
    fn periods(state: SpanState, longer_ns: u64) -> Tails {
        let mut spans: Vec<(u64, Span)> = Vec::new();
        for id in 0..PERIODS {
            let mut states = SpanStates::default();
            states.0[SpanState::Cpu.index()] = 20_000 + id % 5 * 100;
            states.0[state.index()] += if is_slow(id) { longer_ns } else { 0 };
            let (start, end) = (MonoNs(id * STEP), MonoNs(id * STEP + states.total_ns()));
            let (source, kind) = (SpanSource::Busy, "busy".into());
            spans.push((id, Span { thread: ENGINE, source, kind, start, end, states }));
        }
        spans.sort_by_key(|(_, span)| std::cmp::Reverse(span.duration_ns()));
        let options = TailOptions { tail: 0.985, ..TailOptions::default() };
        Tails::new(&[thread(ENGINE.0, "engine")], &sums_of(&spans), spans, &options, |_| true)
    }

    /// In the slow ones, `late` samples of running time are taken.
    fn slow_periods(late: u64) -> Group {
        let mut tails = periods(SpanState::Cpu, 1_000_000);
        let at = (0..PERIODS).filter(|id| is_slow(*id)).map(|id| id * STEP + 500_000);
        for (number, at) in at.take(late as usize).enumerate() {
            let function = if number % 4 == 0 { "sort_orders" } else { "match_orders" };
            let (at, stack) = (MonoNs(at), stack(&[function, "engine"]));
            let sample = LateSample {
                thread: ENGINE,
                source: SpanSource::Busy,
                at,
                state: State::User,
                ns: 1_000_000,
                user: None,
                kernel: None,
            };
            tails.add_late(&sample, Some(&stack), None);
        }
        tails.finish().remove(0).difference.expect("eighty spans in the tail")
    }

    #[test]
    fn running_time_is_divided_by_late_samples() {
        let group = slow_periods(80);
        let found: Vec<(Option<&str>, i64)> = group
            .causes
            .iter()
            .map(|cause| (cause.site.as_ref().map(|site| &*site.functions[0]), cause.ns / 10_000))
            .collect();
        assert_eq!(found, [(Some("match_orders"), 75), (Some("sort_orders"), 25)]);
        let few = slow_periods(9);
        assert_eq!(few.causes.len(), 1);
        assert!(few.causes[0].site.is_none() && few.causes[0].state == SpanState::Cpu);
        let some: Vec<_> = slow_periods(40).causes.iter().map(|cause| cause.ns / 10_000).collect();
        assert_eq!(some, [50, 37, 12], "half of it has no sample");
    }

    /// The slow ones wait in short polls. Of eight of these, one poll of 100 µs has a record, which says what it is.
    /// `late` of them have late polls of 100 µs: three of four at the same place.
    fn short_polls(late: usize) -> Group {
        let mut tails = periods(SpanState::Of(State::Blocked(Reason::Poll)), 2_000_000);
        let slow: Vec<u64> = (0..PERIODS).filter(|id| is_slow(*id)).collect();
        let row_lock = Meaning {
            name: "row lock".into(),
            software: Some("postgresql".into()),
            idle: false,
            holder: true,
            source: MeaningSource::Stack,
        };
        for id in slow.iter().take(8) {
            let reason = StallReason::Blocked(Reason::Poll);
            let stall = StallRecord::new(id + 1, ENGINE, reason, MonoNs(id * STEP + 5_000), 100_000);
            tails.add(&StallRecord {
                blocked_ns: 100_000,
                user: Some(stack(&["sleep_on_row", "engine"])),
                meaning: Some(Arc::new(row_lock.clone())),
                ..stall
            });
        }
        for (number, id) in slow.iter().take(late).enumerate() {
            let function = if number % 4 == 0 { "send_answer" } else { "sleep_on_row" };
            let sample = LateSample {
                thread: ENGINE,
                source: SpanSource::Busy,
                at: MonoNs(id * STEP + 1_500_000),
                state: State::Blocked(Reason::Poll),
                ns: 100_000,
                user: None,
                kernel: None,
            };
            tails.add_late(&sample, Some(&stack(&[function, "engine"])), None);
        }
        tails.finish().remove(0).difference.expect("eighty spans in the tail")
    }

    #[test]
    fn waits_without_a_record_are_divided_by_late_ones() {
        let shown = |group: &Group| -> Vec<(Option<String>, Option<String>, i64, i64)> {
            let polls = group.causes.iter().filter(|cause| cause.state != SpanState::Cpu);
            let of = |cause: &Cause| {
                let site = cause.site.as_ref().map(|site| site.functions[0].to_string());
                let meaning = cause.meaning.as_ref().map(|meaning| meaning.name.to_string());
                (site, meaning, cause.ns, cause.divided_ns)
            };
            polls.map(of).collect()
        };
        let name = |name: &str| Some(name.to_owned());
        // 10 µs a span are recorded, and late ones are 100 µs: 75 of them for the row.
        assert_eq!(
            shown(&short_polls(80)),
            [
                (name("sleep_on_row"), name("row lock"), 85_000 + 1_417_500, 1_417_500),
                (name("send_answer"), None, 25_000 + 472_500, 472_500),
            ]
        );
        let few = short_polls(9);
        assert_eq!(shown(&few)[0], (None, None, 2_000_000 - 17_500 - 3_750, 0), "too few to divide by");
        let parts: i64 = few.causes.iter().map(|cause| cause.ns).sum();
        assert_eq!(parts, few.states.iter().sum::<i64>());
    }

    proptest! {
        #[test]
        fn causes_add_up_to_the_difference(waits in proptest::collection::vec(10_000u64..2_000_000, 200)) {
            let wait = |id: u64| id.is_multiple_of(3).then(|| lock_wait(id, waits[id as usize]));
            let (spans, stalls) = operations(200, wait);
            let group = tail_of(spans, &stalls, 0.8).difference.expect("forty spans in the tail");
            let parts: i64 = group.causes.iter().map(|cause| cause.ns).sum();
            prop_assert_eq!(parts, group.states.iter().sum::<i64>());
            for (at, state) in SpanState::all().into_iter().enumerate() {
                let of_state = group.causes.iter().filter(|cause| cause.state == state);
                prop_assert_eq!(of_state.map(|cause| cause.ns).sum::<i64>(), group.states[at]);
            }
        }
    }
}
