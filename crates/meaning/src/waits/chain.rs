// SPDX-License-Identifier: Apache-2.0
//! Whether waits at one place are waits for a lock: what their timing says about the threads that end them.
//!
//! The thread that ends a wait for a lock had the lock while the other waited. It had waited for it itself,
//! or had got it at once, and one thread had it at a time. Idle workers that wake each other had nothing that
//! the others waited for: they were awake for a part of the wait only, or several of them at a time.

use std::collections::{HashMap, HashSet};

/// A wait that a thread ended, times in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    pub thread: u32,
    pub start: u64,
    pub woken: u64,
    /// When it ran again.
    pub end: u64,
    /// The thread that ended it. `None`: an interrupt, or a thread that does not wait here itself.
    pub waker: Option<u32>,
    /// Its timeout ended it: the thread may have got the lock without having been woken.
    pub timed_out: bool,
}

/// Wakeups by one thread within this time are one wakeup of several threads, ns.
const AT_ONCE_NS: u64 = 100_000;

/// A thread that waits again within this time after it ran again got nothing by its wakeup, ns.
const AGAIN_NS: u64 = 200_000;

/// A thread that waits within this time after it woke another one did nothing of its own in between, ns.
const ANSWER_NS: u64 = 50_000;

/// Waits whose holders are followed; of more, every second, third and so on.
const MOST_FOLLOWED: usize = 20_000;

/// Holders before the last one that are followed for one wait.
const MOST_HOLDERS: usize = 64;

/// A thread of which waiters ended so many waits, and which ended none of theirs, hands nothing on.
const LEAST_TAKEN: u64 = 8;

/// Wakers of a thread's waits are one thread if it ended this share of them.
const FIXED_SHARE: f64 = 0.95;

/// The timing of the waits at one place.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timing {
    /// Waits that another thread of the place ended.
    pub waits: usize,
    /// The share of the waits' time during which a thread of the place was awake that had been woken here, or
    /// had ended a wait, and then handed on to the one that waited. Time before a timeout does not count.
    pub covered: f64,
    /// The share of the wakeups by a thread that did not have it: another one had been woken before, and had
    /// neither handed on nor come back to wait.
    pub out_of_turn: f64,
    /// The share of the waits that were ended together with others, where the threads did not wait again.
    pub together: f64,
    /// The share of the time with at most one thread of the place awake.
    pub one_awake: f64,
    /// The share of the time in which all threads wait that ever wait at the place.
    pub none_awake: f64,
    /// The share of the waits that threads end which never wait at the place.
    pub by_others: f64,
    /// Threads with a wait.
    pub threads: usize,
    /// Each thread is woken by one other thread only.
    pub fixed_order: bool,
    /// The share of the wakeups whose waker was waiting itself at once: it had asked, and waited for the answer.
    pub answered: f64,
    /// The share of the waits that are those of the thread with the fewest.
    pub rarest: f64,
    /// Of parked threads only, see [`timing_of_parked`]: the share of the wakeups after which the woken thread
    /// waited again without having handed on, though another one had waited all the time.
    pub dropped: f64,
    /// Where waits beside these are known, as those of parked threads: the share of the holders' time in which they were
    /// in such a wait themselves.
    pub parked: f64,
    /// The share of the waits of threads that end none here, where the thread that ends them has its own waits ended by
    /// threads which never wait here: work goes one way, and a lock comes back.
    pub one_way: f64,
}

/// The end of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum By {
    Thread(u32),
    Timeout,
    /// An interrupt, or a thread that does not wait here.
    Other,
}

/// What a thread did at the place, by time.
#[derive(Debug, Default)]
struct Thread {
    /// Its waits by start: start and wakeup.
    waits: Vec<(u64, u64)>,
    /// When it was woken, and by whom, ascending.
    wakeups: Vec<(u64, By)>,
    /// When it ended waits of other threads, ascending. Several at once are one.
    releases: Vec<u64>,
}

impl Thread {
    /// The last time before `at` at which it was woken, and its waker; or at which it ended a wait itself, and
    /// got it again at once.
    fn had_since(&self, own: u32, at: u64) -> Option<(u64, By)> {
        let wakeup = self.wakeups[..self.wakeups.partition_point(|(time, _)| *time < at)].last();
        let before = self.releases.partition_point(|time| time.saturating_add(AT_ONCE_NS) <= at);
        let release = self.releases[..before].last();
        match (wakeup, release) {
            (Some(&(woken, waker)), release) if release.is_none_or(|&release| release <= woken) => {
                Some((woken, waker))
            }
            (_, release) => release.map(|&release| (release, By::Thread(own))),
        }
    }

    /// Whether it ended a wait of another thread in this time.
    fn handed_on(&self, from: u64, to: u64) -> bool {
        let next = self.releases.partition_point(|release| *release < from);
        self.releases.get(next).is_some_and(|release| *release <= to)
    }

    /// How much of this time it waited, ns.
    fn waited_ns(&self, from: u64, to: u64) -> u64 {
        let first = self.waits.partition_point(|(_, woken)| *woken <= from);
        let during = self.waits[first..].iter().take_while(|(start, _)| *start < to);
        during.map(|(start, woken)| (*woken).min(to).saturating_sub((*start).max(from))).sum()
    }

    /// Whether it begins to wait within `ns` after `at`.
    fn waits_within(&self, at: u64, ns: u64) -> bool {
        let next = self.waits.partition_point(|(start, _)| *start < at);
        self.waits.get(next).is_some_and(|(start, _)| start - at <= ns)
    }

    fn is_waiting(&self, at: u64) -> bool {
        self.waits_through(at, at)
    }

    /// Whether it is in one wait from before `from` until after `to`.
    fn waits_through(&self, from: u64, to: u64) -> bool {
        let before = self.waits.partition_point(|(start, _)| *start <= from);
        before.checked_sub(1).is_some_and(|last| self.waits[last].1 > to)
    }
}

/// Some waits that one thread ended at once.
struct Wakeup<'l> {
    at: u64,
    waker: u32,
    links: &'l [Link],
}

/// The timing of waits, in any order.
pub fn timing(links: &[Link]) -> Timing {
    let links = without_vain_wakeups(links);
    let threads = threads(&links);
    let mut ended: Vec<Link> = links.iter().filter(|link| link.by_other().is_some()).copied().collect();
    ended.sort_unstable_by_key(|link| (link.waker, link.woken));
    let mut wakeups: Vec<Wakeup<'_>> = ended
        .chunk_by(|one, next| one.waker == next.waker && next.woken - one.woken < AT_ONCE_NS)
        .filter_map(|links| Some(Wakeup { at: links[0].woken, waker: links[0].waker?, links }))
        .collect();
    wakeups.sort_unstable_by_key(|wakeup| wakeup.at);
    let (mut known, mut covered) = (0, 0);
    for link in ended.iter().step_by(ended.len() / MOST_FOLLOWED + 1) {
        let (of_holders, before_is_unknown) = covered_by_holders(link, &threads);
        covered += of_holders;
        known += if before_is_unknown { of_holders } else { link.woken.saturating_sub(link.start) };
    }
    let together = wakeups.iter().map(|wakeup| wakeup.links.len()).filter(|&count| count > 1).sum::<usize>();
    let waiters = threads.values().filter(|thread| !thread.waits.is_empty()).count();
    Timing {
        waits: ended.len(),
        covered: ratio(covered, known),
        out_of_turn: out_of_turn(&wakeups, &threads),
        together: ratio(together as u64, ended.len() as u64),
        one_awake: waiting(&links, threads.len() - usize::from(!threads.is_empty())),
        none_awake: waiting(&links, waiters),
        by_others: by_others(&ended, &threads),
        threads: waiters,
        fixed_order: fixed_order(&ended),
        answered: answered(&wakeups, &threads),
        rarest: rarest(&threads),
        dropped: 0.0,
        parked: 0.0,
        one_way: one_way(&links, &ended),
    }
}

/// The same of a place where threads are parked (`LockSupport.park` of Java): its functions are those of locks, of
/// queues and of answers alike, so that the timing has to say more. `parks` are the waits of the same threads at all
/// such places, these among them.
///
/// A lock that is handed from thread to thread in the order in which they came, as those of `java.util.concurrent`,
/// is never kept from a thread that waits: the holder hands it on before it waits again. A worker that has done its
/// job does not. And a holder is seldom parked itself: a worker that waits for the time of its job is.
pub fn timing_of_parked(links: &[Link], parks: &[Link]) -> Timing {
    let known_from = parks.iter().map(|link| link.start).min().unwrap_or(u64::MAX);
    let parked = parked(links, parks, |link| link.start >= known_from);
    Timing { dropped: dropped(links, &threads(links)), parked, ..timing(links) }
}

/// The same of a place that is one of several calls of a function without a symbol. `beside` are the waits at all of
/// them, these among them.
///
/// A queue waits at several places in its function: a worker that finds it empty again waits at another one. Of all these
/// places one can be woken by its own waiters alone. A thread that has a lock does not wait for it at the next call.
pub fn timing_beside(links: &[Link], beside: &[Link]) -> Timing {
    let known = known_beside(links, beside);
    let is_known = |link: &Link| known.is_some_and(|(from, to)| link.start >= from && link.woken <= to);
    Timing { parked: parked(links, beside, is_known), ..timing(links) }
}

/// See [`Timing::parked`], of the waits that are `wanted`.
fn parked(links: &[Link], beside: &[Link], wanted: impl Fn(&Link) -> bool) -> f64 {
    let (all, here) = (threads(beside), threads(links));
    let (mut held, mut parked) = (0, 0);
    for link in links.iter().filter(|link| link.by_other().is_some() && wanted(link)) {
        held += follow_holders(link, &here, |thread, since, until| {
            parked += all.get(&thread).map_or(0, |thread| thread.waited_ns(since, until));
        })
        .0;
    }
    ratio(parked, held)
}

/// From when to when waits beside these are known. A recorder does not keep those at a place that is idle.
pub fn known_beside(links: &[Link], beside: &[Link]) -> Option<(u64, u64)> {
    let here: HashSet<(u32, u64)> = links.iter().map(|link| (link.thread, link.start)).collect();
    let others = || beside.iter().filter(|link| !here.contains(&(link.thread, link.start)));
    Some((others().map(|link| link.start).min()?, others().map(|link| link.end).max()?))
}

/// See [`Timing::dropped`]. A thread that is woken next again got nothing the first time: another one had come first.
fn dropped(links: &[Link], threads: &HashMap<u32, Thread>) -> f64 {
    let mut by_wakeup: Vec<&Link> = links.iter().filter(|link| link.by_other().is_some()).collect();
    by_wakeup.sort_unstable_by_key(|link| link.woken);
    let (mut looked_at, mut dropped) = (0, 0);
    for link in by_wakeup.iter().step_by(by_wakeup.len() / MOST_FOLLOWED + 1) {
        let Some(thread) = threads.get(&link.thread) else { continue };
        let again = thread.waits.partition_point(|(start, _)| *start < link.woken);
        let Some(&(again, _)) = thread.waits.get(again) else { continue };
        let has_waited = |(number, other): (&u32, &Thread)| {
            *number != link.thread && other.waits_through(link.woken, again)
        };
        if !threads.iter().any(has_waited) {
            continue;
        }
        looked_at += 1;
        let next = by_wakeup.get(by_wakeup.partition_point(|next| next.woken <= again));
        let is_next = next.is_none_or(|next| next.thread == link.thread);
        dropped += u64::from(!is_next && !thread.handed_on(link.woken, again));
    }
    ratio(dropped, looked_at)
}

impl Link {
    fn by(&self) -> By {
        match self.waker {
            Some(waker) => By::Thread(waker),
            None if self.timed_out => By::Timeout,
            None => By::Other,
        }
    }

    /// The other thread that ended it.
    fn by_other(&self) -> Option<u32> {
        self.waker.filter(|&waker| waker != self.thread)
    }
}

/// Of threads that were woken together, all but one may come too late and wait again: that is one wait.
fn without_vain_wakeups(links: &[Link]) -> Vec<Link> {
    let mut together: Vec<(Option<u32>, u64, u32)> =
        links.iter().map(|link| (link.by_other(), link.woken, link.thread)).collect();
    together.sort_unstable();
    let is_beside = |one: &(Option<u32>, u64, u32), other: Option<&(Option<u32>, u64, u32)>| {
        other.is_some_and(|other| other.0 == one.0 && other.1.abs_diff(one.1) < AT_ONCE_NS)
    };
    let in_a_herd = |link: &Link| {
        let key = (link.by_other(), link.woken, link.thread);
        let Ok(at) = together.binary_search(&key) else { return false };
        let before = at.checked_sub(1).and_then(|before| together.get(before));
        key.0.is_some() && (is_beside(&key, before) || is_beside(&key, together.get(at + 1)))
    };
    let mut releases: Vec<(u32, u64)> =
        links.iter().filter_map(|link| Some((link.by_other()?, link.woken))).collect();
    releases.sort_unstable();
    let handed_on = |thread: u32, from: u64, to: u64| {
        let next = releases.partition_point(|release| *release < (thread, from));
        releases.get(next).is_some_and(|&(by, at)| by == thread && at <= to)
    };
    let mut sorted = links.to_vec();
    sorted.sort_unstable_by_key(|link| (link.thread, link.start));
    let mut joined: Vec<Link> = Vec::with_capacity(sorted.len());
    for link in sorted {
        let vain = joined.last().filter(|before| {
            before.thread == link.thread
                && link.start.saturating_sub(before.end) < AGAIN_NS
                && in_a_herd(before)
                && !handed_on(link.thread, before.woken, link.start)
        });
        let start = vain.map_or(link.start, |before| before.start);
        if vain.is_some() {
            joined.pop();
        }
        joined.push(Link { start, ..link });
    }
    joined
}

fn threads(links: &[Link]) -> HashMap<u32, Thread> {
    let mut threads: HashMap<u32, Thread> = HashMap::new();
    for link in links {
        let waiter = threads.entry(link.thread).or_default();
        waiter.waits.push((link.start, link.woken));
        waiter.wakeups.push((link.woken, link.by()));
        if let Some(waker) = link.by_other() {
            threads.entry(waker).or_default().releases.push(link.woken);
        }
    }
    for thread in threads.values_mut() {
        thread.waits.sort_unstable();
        thread.wakeups.sort_unstable();
        thread.releases.sort_unstable();
        thread.releases.dedup_by(|next, one| *next - *one < AT_ONCE_NS);
    }
    threads
}

/// The part of a wait in which its waker had it, and those before from which that one got it, ns; and whether
/// it is unknown who had it before, as the first of them got it after a timeout.
fn covered_by_holders(link: &Link, threads: &HashMap<u32, Thread>) -> (u64, bool) {
    follow_holders(link, threads, |_, _, _| {})
}

/// The same. `held` takes each of them: a thread, and from when to when it had it.
fn follow_holders(
    link: &Link,
    threads: &HashMap<u32, Thread>,
    mut held: impl FnMut(u32, u64, u64),
) -> (u64, bool) {
    let mut until = link.woken;
    let mut holder = link.by();
    for _ in 0..MOST_HOLDERS {
        let By::Thread(thread) = holder else { break };
        let since = threads.get(&thread).and_then(|known| known.had_since(thread, until));
        let Some((since, before)) = since.filter(|_| until > link.start) else { break };
        let since = since.max(link.start);
        held(thread, since, until);
        until = since;
        holder = before;
    }
    (link.woken.saturating_sub(until), until > link.start && holder == By::Timeout)
}

/// See [`Timing::out_of_turn`]. Looks at wakeups of threads that waited already when the one before was
/// woken: where they came later, it may have handed on in between without anyone to wake.
fn out_of_turn(wakeups: &[Wakeup<'_>], threads: &HashMap<u32, Thread>) -> f64 {
    let (mut looked_at, mut wrong) = (0, 0);
    for pair in wakeups.windows(2) {
        let [before, next] = pair else { continue };
        if next.links.iter().all(|link| link.start >= before.at) {
            continue;
        }
        looked_at += 1;
        let had_it = before.links.iter().any(|link| link.thread == next.waker);
        let waits_again =
            |link: &Link| threads.get(&link.thread).is_some_and(|thread| thread.is_waiting(next.at));
        wrong += u64::from(!had_it && !before.links.iter().all(waits_again));
    }
    ratio(wrong, looked_at)
}

/// The share of the time from the first to the last of the waits in which at least so many threads wait.
fn waiting(links: &[Link], threads: usize) -> f64 {
    let mut edges: Vec<(u64, i64)> = Vec::with_capacity(links.len() * 2);
    for link in links {
        edges.push((link.start, 1));
        edges.push((link.woken, -1));
    }
    edges.sort_unstable();
    let (Some(first), Some(last)) = (edges.first(), edges.last()) else { return 0.0 };
    let whole = last.0 - first.0;
    let least = i64::try_from(threads).unwrap_or(i64::MAX);
    let (mut waiting, mut from, mut sum) = (0, first.0, 0);
    for &(at, change) in &edges {
        if waiting >= least {
            sum += at - from;
        }
        waiting += change;
        from = at;
    }
    ratio(sum, whole)
}

/// See [`Timing::by_others`].
fn by_others(ended: &[Link], threads: &HashMap<u32, Thread>) -> f64 {
    let waits_never = |waker: u32| threads.get(&waker).is_none_or(|thread| thread.waits.is_empty());
    let others = ended.iter().filter(|link| link.waker.is_some_and(waits_never)).count();
    ratio(others as u64, ended.len() as u64)
}

/// See [`Timing::one_way`]. Of the reader of results, workers end all waits, and it ends none of theirs: the sender of their
/// jobs does.
fn one_way(links: &[Link], ended: &[Link]) -> f64 {
    let waiters: HashSet<u32> = links.iter().map(|link| link.thread).collect();
    let is_own = |link: &&Link| link.by_other().is_some_and(|waker| waiters.contains(&waker));
    let givers: HashSet<u32> = ended.iter().filter_map(|link| link.waker).collect();
    // By thread, its waits, and those that waiters ended.
    let mut waits: HashMap<u32, (u64, u64)> = HashMap::new();
    for link in links {
        let (all, own) = waits.entry(link.thread).or_default();
        (*all, *own) = (*all + 1, *own + u64::from(is_own(&link)));
    }
    let takes_only = |thread: u32| {
        !givers.contains(&thread) && waits.get(&thread).is_some_and(|(_, own)| *own >= LEAST_TAKEN)
    };
    let is_sent_for = |waker: u32| waits.get(&waker).is_some_and(|(all, own)| own * 2 < *all);
    let is_one = |link: &&Link| takes_only(link.thread) && link.waker.is_some_and(is_sent_for);
    let own = || ended.iter().filter(is_own);
    ratio(own().filter(is_one).count() as u64, own().count() as u64)
}

/// See [`Timing::answered`]. On a machine with busy CPUs a thread that wakes another one may lose its CPU before
/// it waits, so that both are awake for a while; in most turns it does not.
fn answered(wakeups: &[Wakeup<'_>], threads: &HashMap<u32, Thread>) -> f64 {
    let waits_at_once = |wakeup: &&Wakeup<'_>| {
        threads.get(&wakeup.waker).is_some_and(|waker| waker.waits_within(wakeup.at, ANSWER_NS))
    };
    ratio(wakeups.iter().filter(waits_at_once).count() as u64, wakeups.len() as u64)
}

/// See [`Timing::rarest`].
fn rarest(threads: &HashMap<u32, Thread>) -> f64 {
    let waits = || threads.values().map(|thread| thread.waits.len() as u64).filter(|&waits| waits > 0);
    ratio(waits().min().unwrap_or(0), waits().sum())
}

fn fixed_order(ended: &[Link]) -> bool {
    let mut wakers: HashMap<u32, HashMap<u32, u64>> = HashMap::new();
    for link in ended {
        if let Some(waker) = link.waker {
            *wakers.entry(link.thread).or_default().entry(waker).or_default() += 1;
        }
    }
    wakers.values().all(|wakers| {
        let most = wakers.values().copied().max().unwrap_or(0);
        ratio(most, wakers.values().sum()) >= FIXED_SHARE
    })
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn link(thread: u32, start: u64, woken: u64, waker: u32) -> Link {
        Link {
            thread,
            start: start * MS,
            woken: woken * MS,
            end: woken * MS,
            waker: Some(waker),
            timed_out: false,
        }
    }

    /// Threads 0, 1 and 2 take a lock in turn for 2 ms each. Each comes 1 ms after its own release.
    fn lock() -> Vec<Link> {
        (0..60u64)
            .map(|turn| {
                let thread = (turn * 7 + turn / 5) % 3;
                let before = ((turn + 59) * 7 + (turn + 59) / 5) % 3;
                let start = (turn * 2).saturating_sub(3);
                link(thread as u32, start, turn * 2, before as u32)
            })
            .filter(|link| Some(link.thread) != link.waker)
            .collect()
    }

    #[test]
    fn holder_of_a_lock_has_it_all_the_time_that_others_wait() {
        let timing = timing(&lock());
        assert!(timing.covered > 0.9, "{timing:?}");
        assert_eq!((timing.out_of_turn, timing.together), (0.0, 0.0), "{timing:?}");
        assert_eq!(timing.threads, 3);
    }

    #[test]
    fn two_threads_that_take_turns_answer_at_once_on_busy_cpus_too() {
        // Each turn takes 1 ms. In every third one the waker loses its CPU for 4 ms before it waits.
        let (mut links, mut at) = (Vec::new(), 0);
        let mut waiting_since = [0, 0];
        for turn in 0..90usize {
            let (waker, woken) = (turn % 2, 1 - turn % 2);
            at += 1_000_000;
            links.push(Link {
                start: waiting_since[woken],
                woken: at,
                end: at,
                ..link(woken as u32, 0, 0, waker as u32)
            });
            at += if turn % 3 == 0 { 4_000_000 } else { 10_000 };
            waiting_since[waker] = at;
        }
        let timing = timing(&links);
        assert!(timing.fixed_order && timing.one_awake < 0.6, "{timing:?}");
        assert!(timing.answered > 0.6, "{timing:?}");
        let of_a_lock = super::timing(&lock());
        assert!(of_a_lock.answered < 0.1, "{of_a_lock:?}");
    }

    #[test]
    fn thread_that_looks_for_the_answer_and_seldom_sleeps_has_few_of_the_waits() {
        // Each 10 s thread 1 asks thread 0. It waits for one answer of 20, which takes 400 ms.
        let asked = |turn: u64| {
            let at = turn * 10_000;
            let answer = turn.is_multiple_of(20).then(|| link(1, at, at + 400, 0));
            [Some(link(0, at.saturating_sub(9_500), at, 1)), answer].into_iter().flatten()
        };
        let links: Vec<Link> = (1..200).flat_map(asked).collect();
        let timing = timing(&links);
        assert!(timing.fixed_order && timing.rarest < 0.05, "{timing:?}");
        assert!((0.9..0.96).contains(&timing.one_awake), "{timing:?}");
        let of_a_lock = super::timing(&lock());
        assert!(of_a_lock.rarest > 0.1, "{of_a_lock:?}");
    }

    #[test]
    fn idle_workers_of_others_wait_all_the_time() {
        // Threads 8 and 9, which never wait here, have work for workers 0 and 1. Of these, one wakes the other.
        let round = |round: u64| {
            let at = round * 100;
            [link(0, at - 98, at, 8), link(1, at - 97, at + 1, 0), link(0, at + 2, at + 50, 9)]
        };
        let links: Vec<Link> = (1..40).flat_map(round).collect();
        let timing = timing(&links);
        assert!(timing.none_awake > 0.9 && timing.by_others > 0.6, "{timing:?}");
        assert_eq!(timing.threads, 2);
        let of_a_lock = super::timing(&lock());
        assert!(of_a_lock.none_awake < 0.1 && of_a_lock.by_others == 0.0, "{of_a_lock:?}");
    }

    #[test]
    fn idle_workers_that_wake_each_other_are_asleep_for_most_of_a_wait() {
        // Each second worker 0 wakes, wakes worker 1 after 1 ms, and that one wakes worker 2.
        let links: Vec<Link> = (0..20u64)
            .flat_map(|second| {
                let at = second * 1_000;
                let outside = Link { waker: None, ..link(0, at.saturating_sub(995), at, 0) };
                [
                    outside,
                    link(1, at.saturating_sub(995), at + 1, 0),
                    link(2, at.saturating_sub(995), at + 2, 1),
                ]
            })
            .collect();
        let timing = timing(&links);
        assert!(timing.covered < 0.05, "{timing:?}");
        assert_eq!(timing.waits, 40);
    }

    #[test]
    fn parallel_workers_wake_others_while_one_is_awake() {
        // Worker 0 wakes 1, then 2, and both then wake another one while all are awake.
        let links: Vec<Link> = (0..20u64)
            .flat_map(|round| {
                let at = round * 20;
                [
                    link(1, at, at + 5, 0),
                    link(2, at, at + 10, 0),
                    link(3, at, at + 10, 1),
                    link(0, at + 11, at + 19, 3),
                ]
            })
            .collect();
        assert!(timing(&links).out_of_turn > 0.3, "{:?}", timing(&links));
    }

    #[test]
    fn lock_of_parked_threads_is_handed_on_by_threads_that_are_not_parked() {
        // Five threads in a queue have it for 10 ms each, and come again a millisecond later.
        let links: Vec<Link> = (5..80u64)
            .map(|turn| link((turn % 5) as u32, turn * 10 - 39, turn * 10, ((turn + 4) % 5) as u32))
            .collect();
        let timing = timing_of_parked(&links, &links);
        assert_eq!((timing.dropped, timing.parked), (0.0, 0.0), "{timing:?}");
        assert!(timing.covered > 0.9, "{timing:?}");
    }

    #[test]
    fn thread_that_is_woken_again_after_another_came_first_drops_nothing() {
        // Thread 0 takes the lock again before thread 1, which is the first in the queue, has come.
        let links: Vec<Link> = (1..20u64)
            .flat_map(|turn| {
                let at = turn * 20;
                let first = Link { start: at * MS + 30_000, ..link(1, at, at + 10, 0) };
                let again = Link { start: (at + 10) * MS + 30_000, ..link(1, at, at + 15, 0) };
                [first, again, link(2, at - 5, at + 16, 1)]
            })
            .collect();
        let timing = timing_of_parked(&links, &links);
        assert_eq!(timing.dropped, 0.0, "{timing:?}");
    }

    #[test]
    fn parked_worker_that_does_its_job_while_others_wait_drops_it() {
        // A client, thread 9, submits a job each 10 ms. The eight workers take turns.
        let links: Vec<Link> = (0..80u64)
            .map(|turn| link((turn % 8) as u32, (turn * 10).saturating_sub(79), turn * 10, 9))
            .collect();
        let timing = timing_of_parked(&links, &links);
        assert!(timing.covered > 0.9, "it looks like a lock: {timing:?}");
        assert!(timing.dropped > 0.9, "{timing:?}");
    }

    #[test]
    fn parked_worker_that_waits_for_the_time_of_its_job_holds_nothing() {
        // One of four workers waits for the time of the next job. Then it wakes the next one to do so, and works.
        let (mut links, mut parks) = (Vec::new(), Vec::new());
        for turn in 4..80u64 {
            let (worker, next, at) = ((turn % 4) as u32, ((turn + 1) % 4) as u32, turn * 10);
            links.push(link(next, at - 29, at, worker));
            let timed = Link { waker: None, timed_out: true, ..link(worker, at - 9, at, 0) };
            parks.push(timed);
        }
        parks.extend(&links);
        let timing = timing_of_parked(&links, &parks);
        assert!(timing.covered > 0.9 && timing.dropped == 0.0, "it looks like a lock: {timing:?}");
        assert!(timing.parked > 0.8, "{timing:?}");
        assert_eq!(timing_of_parked(&links, &links).parked, 0.0, "other parks are not known");
    }

    /// Workers 1 and 2 take items of thread 9, one each 20 ms, out of a queue that waits at two calls: the first time, and
    /// again after the queue was found empty. The one that got the item wakes the other one, which waits for the first
    /// time. Waits at the first call, and at both.
    fn queue_of_two_calls() -> (Vec<Link>, Vec<Link>) {
        let (mut first, mut both) = (Vec::new(), Vec::new());
        for turn in 1..60u64 {
            let (getter, other, at) = (1 + (turn % 2) as u32, 2 - (turn % 2) as u32, turn * 20);
            first.push(link(other, at - 19, at, getter));
            both.push(link(getter, at - 20, at, 9));
        }
        both.extend(&first);
        (first, both)
    }

    #[test]
    fn worker_that_waits_at_the_next_call_of_a_queue_holds_nothing() {
        let (first, both) = queue_of_two_calls();
        let of_first = timing_beside(&first, &first);
        assert!(of_first.covered > 0.9 && of_first.parked == 0.0, "it looks like a lock: {of_first:?}");
        assert!(timing_beside(&first, &both).parked > 0.9, "{:?}", timing_beside(&first, &both));
    }

    #[test]
    fn holder_of_a_lock_does_not_wait_at_the_next_call_of_its_function() {
        // Five threads in a queue have it for 10 ms each, and wait for a millisecond for their next job before they come again.
        let links: Vec<Link> = (5..80u64)
            .map(|turn| link((turn % 5) as u32, turn * 10 - 39, turn * 10, ((turn + 4) % 5) as u32))
            .collect();
        let rests =
            links.iter().map(|wait| Link { start: wait.start - MS, woken: wait.start, waker: None, ..*wait });
        let both: Vec<Link> = links.iter().copied().chain(rests).collect();
        assert_eq!(timing_beside(&links, &both).parked, 0.0);
    }

    #[test]
    fn reader_of_results_ends_no_wait_of_the_workers_and_waits_for_no_lock() {
        // Workers 1 to 3 wait for jobs of a thread that never waits here, and wake reader 4 with their results.
        let jobs = |turn: u64| {
            let (worker, at) = (1 + (turn * 7 / 5 % 3) as u32, turn * 20);
            [Link { waker: None, ..link(worker, at - 18, at, 0) }, link(4, at - 17, at + 2, worker)]
        };
        let links: Vec<Link> = (1..60).flat_map(jobs).collect();
        assert_eq!(timing(&links).one_way, 1.0, "{:?}", timing(&links));
        assert_eq!(timing(&lock()).one_way, 0.0);
        // Thread 4 comes seldom, and has the lock for a moment: threads 0 to 2 end its waits, and those of each other.
        let seldom = lock().into_iter().step_by(4).map(|wait| Link { thread: 4, ..wait });
        let all: Vec<Link> = lock().into_iter().chain(seldom).collect();
        assert_eq!(timing(&all).one_way, 0.0, "{:?}", timing(&all));
    }

    #[test]
    fn barrier_wakes_its_threads_together() {
        let links: Vec<Link> = (1..20u64)
            .flat_map(|round| {
                let (at, last) = (round * 10, (round % 4) as u32);
                let others = (0..4).filter(move |thread| *thread != last);
                others.map(move |thread| link(thread, at - 3 - u64::from(thread), at, last))
            })
            .collect();
        let timing = timing(&links);
        assert!(timing.together > 0.95 && timing.one_awake < 0.4, "{timing:?}");
    }

    #[test]
    fn threads_that_were_woken_together_in_vain_are_in_one_wait() {
        // All wait; one of those that are woken gets it for 9 ms, the others wait on at once.
        let links: Vec<Link> = (1..100u64)
            .flat_map(|round| {
                let (at, holder, next) = (round * 10, (round % 4) as u32, (round + 1) % 4);
                let others = (0..4).filter(move |thread| *thread != holder);
                others.map(move |thread| {
                    let start = if u64::from(thread) == (next + 2) % 4 { at - 9 } else { at - 10 };
                    link(thread, start, at, holder)
                })
            })
            .collect();
        let timing = timing(&links);
        assert!(timing.together < 0.05, "{timing:?}");
        assert!(timing.covered > 0.9 && timing.out_of_turn < 0.1, "{timing:?}");
    }

    #[test]
    fn two_threads_that_answer_each_other_have_a_fixed_order_and_one_is_awake() {
        let links: Vec<Link> = (0..50u64)
            .map(|turn| link((turn % 2) as u32, turn * 2, turn * 2 + 2, (turn % 2) as u32 ^ 1))
            .collect();
        let timing = timing(&links);
        assert!(timing.fixed_order && timing.one_awake > 0.98, "{timing:?}");
        assert!(!super::timing(&lock()).fixed_order || super::timing(&lock()).one_awake < 0.9);
    }

    #[test]
    fn no_waits_have_no_timing() {
        let timing = timing(&[]);
        assert_eq!((timing.waits, timing.threads, timing.covered, timing.out_of_turn), (0, 0, 0.0, 0.0));
    }
}
