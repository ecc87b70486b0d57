//! Charging each interval of waiting to the end of its chain.

use std::collections::HashMap;

use super::knots::knots;
use super::waits::{Cause, Wait, Waits};
use super::{Blame, Doing, Edge};

/// Threads of one chain. Longer ones are cut, and counted.
const LONGEST_CHAIN: usize = 64;
/// Pieces into which one wait is taken apart. The rest is cut, and counted.
const MOST_PIECES: u32 = 20_000;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct EdgeKey {
    waiter: u32,
    culprit: u32,
    doing: Doing,
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
    edges: HashMap<EdgeKey, Charged>,
    cut_ns: u64,
    /// The waiter that is charged, the number of its wait, and the pieces that are left for it.
    waiter: u32,
    wait: u64,
    pieces_left: u32,
    /// The threads of the chain.
    path: Vec<u32>,
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
            edges: HashMap::new(),
            cut_ns: 0,
            waiter: 0,
            wait: 0,
            pieces_left: 0,
            path: Vec::new(),
        }
    }

    /// Charges all waits of a thread that made it late.
    pub fn charge_all(&mut self, thread: u32) {
        self.waiter = self.waits.group_of[thread as usize];
        let mut charged_to = 0;
        for wait in &self.waits.by_thread[thread as usize] {
            // Waits of one thread do not overlap in an honest recording; in another one no time counts twice.
            let late_from = wait.end.saturating_sub(wait.late_ns).max(wait.start);
            let whole = Interval { from: late_from.max(charged_to), to: wait.end };
            if whole.ns() == 0 {
                continue;
            }
            charged_to = wait.end;
            self.wait += 1;
            self.pieces_left = MOST_PIECES;
            self.path.clear();
            self.path.push(thread);
            self.charge_wait(wait, whole);
        }
    }

    /// `thread` is waited for in `during`, in which the last thread of the chain was woken from `release`.
    fn charge_thread(&mut self, thread: u32, during: Interval, release: Option<u32>) {
        if self.path.contains(&thread) {
            let last = *self.path.last().unwrap_or(&thread);
            return self.charge(self.waits.group_of[last as usize], Doing::Circle, release, during.ns());
        }
        if self.path.len() >= LONGEST_CHAIN || self.pieces_left == 0 {
            self.cut_ns += during.ns();
            return self.charge(self.waits.group_of[thread as usize], Doing::Running, None, during.ns());
        }
        let group = self.waits.group_of[thread as usize];
        let waits = &self.waits.by_thread[thread as usize];
        // Sorted by start; in an honest recording by end, too.
        let first = waits.partition_point(|wait| wait.end <= during.from);
        self.path.push(thread);
        let mut at = during.from;
        for wait in waits[first..].iter().take_while(|wait| wait.start < during.to) {
            let within = during.clipped(wait.start.max(at), wait.end);
            if within.ns() == 0 {
                continue;
            }
            self.charge(group, Doing::Running, release, within.from - at);
            self.charge_wait(wait, within);
            at = within.to;
        }
        self.charge(group, Doing::Running, release, during.to.saturating_sub(at));
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
                    self.charge(group, Doing::Waiting(wait.reason), place, blocked.ns());
                }
                Cause::Itself => {
                    let own =
                        self.path.last().map_or(self.waiter, |last| self.waits.group_of[*last as usize]);
                    self.charge(own, Doing::Waiting(wait.reason), wait.place, blocked.ns());
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
            self.charge(group, Doing::HadCpu, None, share);
            left -= share;
        }
        let rest = match ran.last() {
            // What was lost by rounding.
            Some(&(group, _)) if left <= ran.len() as u64 => group,
            None if !self.waits.ran.is_empty() => self.host,
            _ => self.unknown,
        };
        self.charge(rest, Doing::HadCpu, None, left);
    }

    fn charge(&mut self, culprit: u32, doing: Doing, place: Option<u32>, ns: u64) {
        if ns == 0 {
            return;
        }
        let last = match self.path.as_slice() {
            [_, .., last] => Some(self.waits.group_of[*last as usize]).filter(|last| *last != culprit),
            _ => None,
        };
        let key = EdgeKey { waiter: self.waiter, culprit, doing, last, place };
        let charged = self.edges.entry(key).or_default();
        charged.ns += ns;
        if charged.last != self.wait {
            charged.last = self.wait;
            charged.count += 1;
        }
    }

    pub fn finish(self) -> Blame {
        let knots = knots(self.edges.iter().map(|(key, charged)| (key.waiter, key.culprit, charged.ns)));
        let group = |number: u32| self.waits.group(number).clone();
        let edge = |(key, charged): (&EdgeKey, &Charged)| Edge {
            waiter: group(key.waiter),
            culprit: group(key.culprit),
            doing: key.doing,
            last: key.last.map(group),
            place: key.place.map(|place| self.waits.places.value(place).clone()),
            ns: charged.ns,
            count: charged.count,
        };
        let mut edges: Vec<Edge> = self.edges.iter().map(edge).collect();
        edges.sort_by(|a, b| {
            let names = |edge: &Edge| {
                (edge.waiter.clone(), edge.culprit.clone(), edge.doing, edge.last.clone(), edge.place.clone())
            };
            b.ns.cmp(&a.ns).then_with(|| names(a).cmp(&names(b)))
        });
        Blame {
            waiting_ns: edges.iter().map(|edge| edge.ns).sum(),
            edges,
            knots: knots.into_iter().map(|knot| knot.into_iter().map(group).collect()).collect(),
            cut_ns: self.cut_ns,
        }
    }
}
