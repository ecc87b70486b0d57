// SPDX-License-Identifier: Apache-2.0
//! Charging each interval of waiting to the end of its chain.

use std::sync::Arc;

use wallprof_model::FastMap;

use super::knots::knots;
use super::waits::{Cause, Wait, Waits};
use super::{Blame, Doing, Edge, Group};

/// Threads of one chain. Longer ones are cut, and counted.
const LONGEST_CHAIN: usize = 64;
/// Pieces into which one wait is taken apart. The rest is cut, and counted.
const MOST_PIECES: u32 = 20_000;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct EdgeKey {
    waiter: u32,
    culprit: u32,
    doing: Doing,
    /// What the last wait of the chain means.
    meaning: Option<u32>,
    /// The group of the last thread of the chain, where it is neither waiter nor culprit.
    last: Option<u32>,
    place: Option<u32>,
}

#[derive(Clone, Copy, Default)]
struct Charged {
    ns: u64,
    count: u64,
    /// The last wait that was counted, from 1 on.
    last: u64,
}

pub(super) struct Chains<'w> {
    waits: &'w Waits,
    host: u32,
    unknown: u32,
    edges: FastMap<EdgeKey, Charged>,
    cut_ns: u64,
    /// The waiter that is charged, the number of its wait, and the pieces that are left for it.
    waiter: u32,
    wait: u64,
    pieces_left: u32,
    /// The threads of the chain.
    path: Vec<u32>,
    /// The start of that wait, and for each thread its first wait that is not over then.
    since: u64,
    first: Vec<usize>,
}

/// How many waits are over at a time. The answer is mostly small.
fn after(waits: &[Wait], time: u64) -> usize {
    let is_over = |wait: &Wait| wait.end <= time;
    let mut reach = 1;
    while reach <= waits.len() && is_over(&waits[reach - 1]) {
        reach *= 2;
    }
    let known = reach / 2;
    known + waits[known..reach.min(waits.len())].partition_point(is_over)
}

/// A half-open interval of time, ns.
#[derive(Clone, Copy)]
struct Interval {
    from: u64,
    to: u64,
}

impl Interval {
    fn ns(self) -> u64 {
        self.to.saturating_sub(self.from)
    }

    fn clipped(self, from: u64, to: u64) -> Interval {
        Interval { from: self.from.max(from), to: self.to.min(to) }
    }
}

impl<'w> Chains<'w> {
    pub fn new(waits: &'w Waits, host: u32, unknown: u32) -> Self {
        Chains {
            waits,
            host,
            unknown,
            edges: FastMap::default(),
            cut_ns: 0,
            waiter: 0,
            wait: 0,
            pieces_left: 0,
            path: Vec::new(),
            since: 0,
            first: vec![0; waits.by_thread.len()],
        }
    }

    /// Charges all waits that made one of these threads late. They are taken in the order of time: the waits of
    /// the chains lie around the same time, and are in the processor's caches.
    pub fn charge_all(&mut self, threads: impl Iterator<Item = u32>) {
        let mut late: Vec<(u64, u32, u32)> = Vec::new();
        for thread in threads {
            let waits = self.waits.by_thread[thread as usize].iter().enumerate();
            let of = |(number, wait): (usize, &Wait)| (wait.start, thread, number as u32);
            late.extend(waits.filter(|(_, wait)| wait.late_ns > 0).map(of));
        }
        late.sort_unstable();
        // Waits of one thread do not overlap in an honest recording; in another one no time counts twice.
        let mut charged_to = vec![0; self.waits.by_thread.len()];
        for (start, thread, number) in late {
            let wait = &self.waits.by_thread[thread as usize][number as usize];
            let charged_to = &mut charged_to[thread as usize];
            let late_from = wait.end.saturating_sub(wait.late_ns).max(start);
            let whole = Interval { from: late_from.max(*charged_to), to: wait.end };
            if whole.ns() == 0 {
                continue;
            }
            *charged_to = wait.end;
            self.waiter = self.waits.group_of[thread as usize];
            self.wait += 1;
            self.pieces_left = MOST_PIECES;
            self.path.clear();
            self.path.push(thread);
            self.since = start;
            self.charge_wait(wait, whole);
        }
    }

    /// The first wait of a thread that ends after a time in the wait that is charged. Later searches begin where
    /// this wait's began: all earlier ones are over.
    fn first_after(&mut self, thread: u32, time: u64) -> usize {
        let waits = &self.waits.by_thread[thread as usize];
        let first = &mut self.first[thread as usize];
        *first += after(&waits[*first..], self.since);
        *first + after(&waits[*first..], time)
    }

    /// `thread` is waited for in `during`, in which the last thread of the chain was woken from `release`.
    fn charge_thread(&mut self, thread: u32, during: Interval, release: Option<u32>) {
        if self.path.contains(&thread) {
            let last = *self.path.last().unwrap_or(&thread);
            return self.charge(
                self.waits.group_of[last as usize],
                Doing::Circle,
                None,
                release,
                during.ns(),
            );
        }
        if self.path.len() >= LONGEST_CHAIN || self.pieces_left == 0 {
            self.cut_ns = self.cut_ns.saturating_add(during.ns());
            return self.charge(
                self.waits.group_of[thread as usize],
                Doing::Running,
                None,
                None,
                during.ns(),
            );
        }
        let group = self.waits.group_of[thread as usize];
        let waits = &self.waits.by_thread[thread as usize];
        // Sorted by start; in an honest recording by end, too.
        let first = self.first_after(thread, during.from);
        self.path.push(thread);
        let mut at = during.from;
        for wait in waits[first..].iter().take_while(|wait| wait.start < during.to) {
            let within = during.clipped(wait.start.max(at), wait.end);
            if within.ns() == 0 {
                continue;
            }
            self.charge(group, Doing::Running, None, release, within.from - at);
            self.charge_wait(wait, within);
            at = within.to;
        }
        self.charge(group, Doing::Running, None, release, during.to.saturating_sub(at));
        self.path.pop();
    }

    /// Charges the part of a wait, of the last thread of the path, that lies in `within`.
    fn charge_wait(&mut self, wait: &Wait, within: Interval) {
        self.pieces_left = self.pieces_left.saturating_sub(1);
        let blocked = within.clipped(wait.start, wait.woken);
        if blocked.ns() > 0 {
            match wait.cause {
                Cause::Thread(next) => self.charge_thread(next, blocked, wait.release),
                Cause::Group(group) => {
                    let place = wait.release.or(wait.place);
                    self.charge(group, Doing::Waiting(wait.reason), wait.meaning, place, blocked.ns());
                }
                Cause::Itself => {
                    let own =
                        self.path.last().map_or(self.waiter, |last| self.waits.group_of[*last as usize]);
                    self.charge(own, Doing::Waiting(wait.reason), wait.meaning, wait.place, blocked.ns());
                }
            }
        }
        let runnable = within.clipped(wait.woken, wait.end);
        if runnable.ns() > 0 {
            self.charge_run_queue(wait, runnable);
        }
    }

    /// The times at which others had the CPU are not known, only for how long: each is charged with its share
    /// of the interval. Where nobody in this machine had it, the host had. Where somebody had it, the rest
    /// was had by threads that are not listed.
    fn charge_run_queue(&mut self, wait: &Wait, part: Interval) {
        let whole_ns = wait.end - wait.woken;
        let ran = &self.waits.ran[wait.ran.start as usize..wait.ran.end as usize];
        let ran_ns = ran.iter().fold(0u64, |sum, (_, ns)| sum.saturating_add(*ns));
        let denominator = u128::from(whole_ns.max(ran_ns).max(1));
        let mut left = part.ns();
        for &(group, ns) in ran {
            let share = (u128::from(part.ns()) * u128::from(ns) / denominator) as u64;
            self.charge(group, Doing::HadCpu, None, None, share);
            left -= share;
        }
        let rest = match ran.last() {
            // What was lost by rounding.
            Some(&(group, _)) if left <= ran.len() as u64 => group,
            None if !self.waits.ran.is_empty() => self.host,
            _ => self.unknown,
        };
        self.charge(rest, Doing::HadCpu, None, None, left);
    }

    fn charge(&mut self, culprit: u32, doing: Doing, meaning: Option<u32>, place: Option<u32>, ns: u64) {
        if ns == 0 {
            return;
        }
        let last = match self.path.as_slice() {
            [_, .., last] => Some(self.waits.group_of[*last as usize]).filter(|last| *last != culprit),
            _ => None,
        };
        let key = EdgeKey { waiter: self.waiter, culprit, doing, meaning, last, place };
        let charged = self.edges.entry(key).or_default();
        charged.ns = charged.ns.saturating_add(ns);
        if charged.last != self.wait {
            charged.last = self.wait;
            charged.count += 1;
        }
    }

    pub fn finish(self) -> Blame {
        let knots = knots(self.edges.iter().map(|(key, charged)| (key.waiter, key.culprit, charged.ns)));
        let group = |number: u32| Arc::clone(self.waits.group(number));
        let whole = |number: u32| Group::clone(self.waits.group(number));
        let edge = |(key, charged): (&EdgeKey, &Charged)| Edge {
            waiter: group(key.waiter),
            culprit: group(key.culprit),
            doing: key.doing,
            meaning: key.meaning.map(|meaning| self.waits.places.value(meaning).clone()),
            last: key.last.map(group),
            place: key.place.map(|place| self.waits.places.value(place).clone()),
            ns: charged.ns,
            count: charged.count,
        };
        let mut edges: Vec<Edge> = self.edges.iter().map(edge).collect();
        edges.sort_by(|a, b| b.ns.cmp(&a.ns).then_with(|| names(a).cmp(&names(b))));
        Blame {
            waiting_ns: edges.iter().fold(0, |sum, edge| edge.ns.saturating_add(sum)),
            edges,
            knots: knots.into_iter().map(|knot| knot.into_iter().map(whole).collect()).collect(),
            cut_ns: self.cut_ns,
        }
    }
}

/// What distinguishes edges of equal time.
type Names<'e> = (&'e Group, &'e Group, Doing, Option<&'e str>, Option<&'e Group>, Option<&'e str>);

fn names(edge: &Edge) -> Names<'_> {
    let Edge { waiter, culprit, doing, meaning, last, place, .. } = edge;
    (waiter, culprit, *doing, meaning.as_deref(), last.as_deref(), place.as_deref())
}
