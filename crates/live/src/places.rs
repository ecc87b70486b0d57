// SPDX-License-Identifier: Apache-2.0
//! Places where threads wait, and what was learned about them so far: a lock's own waiters, or others, end the
//! waits there.
//!
//! Pure. Owns the last waits of each place, within bounds, and asks the judge that readers ask
//! (`wallprof_meaning::waits::judge`). A place is what the innermost functions of the program are, in one
//! program and for one reason, whatever the process. Sums of waits arrive second by second, with all waits.
//! Single waits show the timing; they stop where a place is idle and the machine is busy, so that such a
//! verdict is reviewed.

use std::collections::{HashMap, HashSet, VecDeque};
use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash, Hasher};

use wallprof_meaning::waits::{
    Link, Shares, Timing, is_continued, judge, known_beside, median_depth, timing as timing_of_links,
    timing_beside, timing_of_parked,
};
use wallprof_model::Reason;
use wallprof_model::event::PlaceVerdict;

use crate::wait_stacks::StackPlace;

/// A place is judged by its last waits: between this many and twice as many, and at least those of one
/// second.
const WINDOW_WAITS: u64 = 64;
/// Single waits of a group by which its timing is judged, and of all groups, at 48 bytes each.
const MOST_LINKS: usize = 512;
const MOST_LINKS_IN_ALL: usize = 65_536;
/// Groups whose timing is judged anew after one second; at 0.2 ms each. The others have theirs from before.
const MOST_TIMINGS: usize = 64;
/// A timing is judged anew after so many further waits.
const FRESH_LINKS: usize = 64;
/// A thread counts as a waiter of a group for this long after it waited there.
const WAITER_NS: u64 = 60_000_000_000;
/// The kernel side may have forgotten a verdict that it got longer ago than this, for one of another place.
const REPEAT_NS: u64 = 8_000_000_000;
/// Waits that their own waiters end and that are no lock are looked at again after this time, one by one.
const REVIEW_NS: u64 = 30_000_000_000;
/// Slices of a wait that have not been continued by then are not.
const SLICE_NS: u64 = 10_000_000;
/// Places of single threads, as many as the kernel side has, and what they have in common.
const MOST_KEYS: usize = 8_192;
const MOST_PLACES: usize = 4_096;
const MOST_WAITERS: usize = 16_384;
/// Threads of which stacks are kept, stacks of each, and stacks of a group's waits.
const MOST_THREADS: usize = 4_096;
const MOST_STACKS: usize = 64;
/// Threads of a group whose distance from their loops is measured.
const MOST_MEASURED: usize = 16;
/// Waits that are compared with the loops of their threads after one second.
const MOST_COMPARED: usize = 64;

/// A place and its group, in one program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    reason: Reason,
    place: u64,
    group: u64,
    beside: Option<Beside>,
}

/// A group of further waits that say what a wait is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    /// All waits of parked threads of the program, for one of these.
    Parks(u64),
    /// The waits at all calls of one function without a symbol.
    Calls(u64),
}

impl Beside {
    fn group(self) -> u64 {
        match self {
            Beside::Parks(group) | Beside::Calls(group) => group,
        }
    }
}

impl Spot {
    /// The spot of waits with this reason and these functions in the program of this name.
    pub fn new(program: &[u8], reason: Reason, stack: StackPlace) -> Self {
        let of = |part: u64| {
            let mut hasher = DefaultHasher::new();
            (program, reason, part).hash(&mut hasher);
            hasher.finish()
        };
        let parks = || {
            let mut hasher = DefaultHasher::new();
            (program, "parks").hash(&mut hasher);
            hasher.finish()
        };
        let beside = match stack.is_parked {
            true => Some(Beside::Parks(parks())),
            false => stack.beside.map(|calls| Beside::Calls(of(calls))),
        };
        Spot { reason, place: of(stack.narrow), group: of(stack.wide), beside }
    }
}

/// What the kernel side gets to know of a place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SentVerdict {
    #[default]
    Unknown,
    Idle,
    /// It was idle, and is taken for that for a while, in which its waits are emitted one by one again: a busy period that
    /// is open would go on through all waits for work.
    IdleAsked,
    NotIdle,
}

/// A wait that was emitted by itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct MetWait {
    pub spot: Option<Spot>,
    /// The user stack.
    pub stack: u64,
    /// The system call is one of the `epoll_wait` family.
    pub in_epoll: bool,
    /// What a rule says.
    pub ruled: Option<PlaceVerdict>,
}

/// Waits of one thread with one stack that the same thread ended.
#[derive(Clone, Copy, Debug)]
pub struct Waits {
    pub thread: u32,
    pub spot: Spot,
    /// The user stack.
    pub stack: u64,
    /// `None`: an interrupt, a timeout, or a thread that is not recorded.
    pub waker: Option<u32>,
    pub ns: u64,
    pub count: u64,
}

/// Measures how many functions are between the loops of threads and their waits: a stack of the wait, and the
/// other stacks of its thread.
pub type DepthOf<'a> = dyn FnMut(u64, &[u64]) -> Option<usize> + 'a;

/// Everything that is learned, within bounds: what was not used for the longest time is forgotten first.
#[derive(Default)]
pub struct Places {
    /// By the kernel side's number: the place where one thread waits.
    keys: HashMap<u64, Key>,
    places: HashMap<u64, Place>,
    groups: HashMap<u64, Group>,
    /// When a thread last waited in a group.
    waiters: HashMap<(u64, u32), u64>,
    /// User stacks of each thread, those of its waits included.
    stacks: HashMap<u32, ThreadStacks>,
    /// The last wait of each thread, where it ended with its timeout.
    slices: HashMap<u32, SlicedWait>,
    /// The exec generation of each thread's process.
    generations: HashMap<u32, u32>,
    /// Waits since the last verdicts.
    waits: Vec<Waits>,
    /// The time of slices, which the sums have as ended by a timer, and the thread that ended the last one.
    credits: Vec<(Spot, u32, u64)>,
    /// Threads that ended, or run another program now.
    gone: HashSet<u32>,
}

struct Key {
    thread: u32,
    /// The last wait there. What a rule says goes before what is learned.
    wait: MetWait,
    /// It is inside of what the thread's loop calls, so that the wait is a part of its work. `None`: not compared yet.
    is_inner: Option<bool>,
    met: u64,
    /// The last verdict that the kernel side got, and when.
    known: SentVerdict,
    known_at: u64,
}

#[derive(Default)]
struct Place {
    group: u64,
    beside: Option<Beside>,
    /// Its threads wait in epoll, for whatever comes first: no thread holds that.
    in_epoll: bool,
    now: Shares,
    before: Shares,
    verdict: PlaceVerdict,
    /// When the kernel side was last asked to emit its waits one by one again.
    reviewed: u64,
    used: u64,
}

#[derive(Default)]
struct Group {
    links: VecDeque<Link>,
    /// User stacks of its waits.
    stacks: HashSet<u64>,
    timing: Timing,
    /// Links since the timing was judged.
    fresh: usize,
    used: u64,
}

#[derive(Default)]
struct ThreadStacks {
    stacks: HashSet<u64>,
    used: u64,
}

/// Slices of one wait so far.
struct SlicedWait {
    spot: Spot,
    stack: u64,
    link: Link,
    /// The waited time of all slices, ns.
    ns: u64,
}

impl Places {
    /// The number of places where a thread waits.
    #[cfg(test)]
    pub fn known(&self) -> usize {
        self.keys.len()
    }

    /// A thread waits at a place, for which the kernel side has this number.
    pub fn meet(&mut self, number: u64, thread: u32, wait: MetWait, now: u64) {
        let fresh = Key { thread, wait, is_inner: None, met: now, known: SentVerdict::Unknown, known_at: 0 };
        let known = self.keys.entry(number).or_insert(fresh);
        if known.wait.spot != wait.spot {
            known.is_inner = None;
        }
        (known.met, known.wait) = (now, wait);
        if let Some(spot) = wait.spot {
            self.waiters.insert((spot.group, thread), now);
            if wait.in_epoll {
                let place = self.places.entry(spot.place).or_default();
                (place.in_epoll, place.used) = (true, now);
            }
        }
    }

    /// A thread has this user stack, whatever it does.
    pub fn add_stack(&mut self, thread: u32, stack: u64, now: u64) {
        if stack == 0 {
            return;
        }
        let stacks = self.stacks.entry(thread).or_default();
        stacks.used = now;
        if stacks.stacks.len() < MOST_STACKS {
            stacks.stacks.insert(stack);
        }
    }

    /// Takes waits, for the next verdicts.
    pub fn add(&mut self, waits: Waits) {
        self.waits.push(waits);
    }

    /// Takes a wait that was emitted by itself, for the next verdicts. A thread's waits come in their order.
    pub fn add_single(&mut self, spot: Spot, stack: u64, link: Link) {
        let mut wait = SlicedWait { spot, stack, link, ns: link.woken.saturating_sub(link.start) };
        let before = self.slices.remove(&link.thread);
        if let Some(before) = before {
            let is_same = before.stack == stack && before.spot == spot;
            if is_same && is_continued(before.link.timed_out, before.link.end, link.start) {
                wait.link.start = before.link.start;
                wait.ns = wait.ns.saturating_add(before.ns);
                if let Some(waker) = link.waker.filter(|&waker| waker != link.thread) {
                    self.credits.push((spot, waker, before.ns));
                }
            } else {
                self.keep(&before);
            }
        }
        match link.timed_out && link.waker.is_none() {
            true => drop(self.slices.insert(link.thread, wait)),
            false => self.keep(&wait),
        }
    }

    fn keep(&mut self, wait: &SlicedWait) {
        for number in [Some(wait.spot.group), wait.spot.beside.map(Beside::group)].into_iter().flatten() {
            self.groups.entry(number).or_default().keep(wait.link);
        }
    }

    /// Judges the places by the waits since the last time.
    pub fn judge(&mut self, now: u64, depth_of: &mut DepthOf<'_>) {
        let is_over = |slices: &SlicedWait| now.saturating_sub(slices.link.end) > SLICE_NS;
        let over: Vec<_> = self.slices.extract_if(|_, slices| is_over(slices)).collect();
        over.iter().for_each(|(_, slices)| self.keep(slices));
        let mut used = self.count_waits(now);
        used.sort_unstable();
        used.dedup();
        let mut timings = MOST_TIMINGS;
        for place in used {
            self.judge_place(place, now, &mut timings, depth_of);
        }
        self.compare_with_loops(depth_of);
        self.forget_old(now);
    }

    /// Finds the waits inside of callbacks: the thread has a loop around a poll, and more functions are between that
    /// loop and the wait than between it and the poll. A thread that sleeps in its loop, and polls for an answer
    /// further in, keeps both: a loop around `poll` has only sleeps inside, one around `epoll_wait` any other wait.
    fn compare_with_loops(&mut self, depth_of: &mut DepthOf<'_>) {
        let is_idle = |key: &Key| key.wait.ruled.is_none() && self.verdict_of_key(key) == PlaceVerdict::Idle;
        let is_poll = |key: &Key| key.wait.spot.is_some_and(|spot| spot.reason == Reason::Poll);
        let mut loops: HashMap<u32, Vec<(bool, u64)>> = HashMap::new();
        for key in self.keys.values().filter(|key| is_poll(key) && is_idle(key)) {
            loops.entry(key.thread).or_default().push((key.wait.in_epoll, key.wait.stack));
        }
        let around = |key: &Key| -> Vec<u64> {
            let is_sleep = key.wait.spot.is_some_and(|spot| spot.reason == Reason::Sleep);
            let of_thread = loops[&key.thread].iter();
            of_thread.filter(|(in_epoll, _)| *in_epoll || is_sleep).map(|(_, poll)| *poll).collect()
        };
        let is_open =
            |key: &Key| key.is_inner.is_none() && !key.wait.in_epoll && loops.contains_key(&key.thread);
        let open = self.keys.iter().filter(|(_, key)| is_open(key) && is_idle(key));
        let open = open.map(|(number, key)| (key.thread, *number, around(key)));
        let mut open: Vec<(u32, u64, Vec<u64>)> = open.filter(|(.., around)| !around.is_empty()).collect();
        open.sort_unstable();
        let mut found = Vec::new();
        for (_, number, around) in open.into_iter().take(MOST_COMPARED) {
            let stack = self.keys[&number].wait.stack;
            // All are asked for, so that their names come together.
            let depths: Vec<_> =
                around.iter().map(|&poll| (depth_of(stack, &[poll]), depth_of(poll, &[stack]))).collect();
            let is_inside = |&(wait, poll): &(Option<usize>, Option<usize>)| Some(wait? > poll?);
            let inside: Option<Vec<bool>> = depths.iter().map(is_inside).collect();
            found.extend(inside.map(|inside| (number, inside.contains(&true))));
        }
        for (number, is_inner) in found {
            if let Some(key) = self.keys.get_mut(&number) {
                key.is_inner = Some(is_inner);
            }
        }
    }

    /// Adds the waits since the last time to their places, and returns these.
    fn count_waits(&mut self, now: u64) -> Vec<u64> {
        let waits = std::mem::take(&mut self.waits);
        // All waiters first: the one that ends a wait may have waited later than that.
        for wait in &waits {
            self.waiters.insert((wait.spot.group, wait.thread), now);
        }
        for wait in &waits {
            let is_peer =
                |waker: u32| waker != wait.thread && self.waiters.contains_key(&(wait.spot.group, waker));
            let own = wait.waker.is_some_and(is_peer);
            let place = self.places.entry(wait.spot.place).or_default();
            (place.used, place.group, place.beside) = (now, wait.spot.group, wait.spot.beside);
            place.now.add(wait.ns, wait.count, own);
            let group = self.groups.entry(wait.spot.group).or_default();
            group.used = now;
            if group.stacks.len() < MOST_STACKS {
                group.stacks.insert(wait.stack);
            }
            self.add_stack(wait.thread, wait.stack, now);
        }
        for (spot, waker, ns) in std::mem::take(&mut self.credits) {
            if self.waiters.contains_key(&(spot.group, waker))
                && let Some(place) = self.places.get_mut(&spot.place)
            {
                place.now.own_ns = place.now.own_ns.saturating_add(ns).min(place.now.ns);
            }
        }
        waits.iter().map(|wait| wait.spot.place).collect()
    }

    /// `timings`: how many may still be judged anew.
    fn judge_place(&mut self, number: u64, now: u64, timings: &mut usize, depth_of: &mut DepthOf<'_>) {
        let is_beside_idle = self.is_beside_idle(number);
        let Places { places, groups, stacks, .. } = self;
        let Some(place) = places.get_mut(&number) else { return };
        let links_of = |group: u64| Some(groups.get(&group)?.links.iter().copied().collect());
        let beside: Option<(Beside, Vec<Link>)> =
            place.beside.and_then(|beside| Some((beside, links_of(beside.group())?)));
        let Some(Group { links, stacks: here, timing, fresh, .. }) = groups.get_mut(&place.group) else {
            return;
        };
        let threads: HashSet<u32> = links.iter().map(|link| link.thread).collect();
        let mut has_own_waiters = false;
        let timing_of = || {
            has_own_waiters = true;
            let is_due = *fresh >= FRESH_LINKS || (*fresh > 0 && links.len() < MOST_LINKS);
            if is_due && *timings > 0 {
                *timings -= 1;
                let links = links.make_contiguous();
                *timing = match &beside {
                    Some((Beside::Parks(_), parks)) => timing_of_parked(links, parks),
                    Some((Beside::Calls(_), calls)) => timing_beside(links, calls),
                    None => timing_of_links(links),
                };
                *fresh = 0;
            }
            *timing
        };
        let depth = || Ok::<_, Infallible>(depth(&threads, here, stacks, depth_of));
        let Ok(verdict) = judge(&place.shares(), place.verdict, timing_of, depth);
        let is_loop = place.in_epoll && verdict == PlaceVerdict::NotIdle;
        let verdict = if is_loop { PlaceVerdict::Idle } else { verdict };
        let verdict = match verdict {
            PlaceVerdict::NotIdle if is_beside_idle => PlaceVerdict::Unknown,
            verdict => verdict,
        };
        place.verdict = verdict;
        if has_own_waiters && verdict != PlaceVerdict::NotIdle {
            if place.reviewed == 0 {
                place.reviewed = now;
            } else if now.saturating_sub(place.reviewed) >= REVIEW_NS {
                // What was learned before may be long ago.
                (place.verdict, place.reviewed) = (PlaceVerdict::Unknown, now);
                (*timing, *fresh) = (Timing::default(), 0);
                links.clear();
            }
        }
        if place.now.waits >= WINDOW_WAITS {
            place.before = std::mem::take(&mut place.now);
        }
    }

    /// Whether another call of the same function without a symbol is idle, so that its waits are no longer known one by one
    /// and the timing says nothing.
    fn is_beside_idle(&self, number: u64) -> bool {
        let Some(place) = self.places.get(&number) else { return false };
        let Some(Beside::Calls(calls)) = place.beside else { return false };
        let is_idle = |(other, beside): (&u64, &Place)| {
            *other != number && beside.beside == place.beside && beside.verdict == PlaceVerdict::Idle
        };
        let links = |group: u64| -> Vec<Link> {
            self.groups.get(&group).map_or_else(Vec::new, |group| group.links.iter().copied().collect())
        };
        self.places.iter().any(is_idle) && {
            let here = links(place.group);
            let first = here.iter().map(|link| link.start).min();
            known_beside(&here, &links(calls)).is_none_or(|(_, to)| first.is_none_or(|first| to < first))
        }
    }

    fn forget_old(&mut self, now: u64) {
        self.waiters.retain(|_, last| now.saturating_sub(*last) < WAITER_NS);
        self.groups.retain(|_, group| now.saturating_sub(group.used) < WAITER_NS);
        drop_oldest(&mut self.waiters, MOST_WAITERS, |last| *last);
        drop_oldest(&mut self.places, MOST_PLACES, |place| place.used);
        drop_oldest(&mut self.groups, MOST_PLACES, |group| group.used);
        drop_oldest(&mut self.keys, MOST_KEYS, |key| key.met);
        drop_oldest(&mut self.stacks, MOST_THREADS, |stacks| stacks.used);
        let links: usize = self.groups.values().map(|group| group.links.len()).sum();
        if links > MOST_LINKS_IN_ALL {
            drop_oldest(&mut self.groups, MOST_LINKS_IN_ALL / MOST_LINKS, |group| group.used);
        }
    }

    fn verdict_of_key(&self, key: &Key) -> PlaceVerdict {
        let learned = || key.wait.spot.map_or(PlaceVerdict::Unknown, |spot| self.verdict_of(spot));
        key.wait.ruled.unwrap_or_else(learned)
    }

    /// What was learned of a place.
    pub fn verdict_of(&self, spot: Spot) -> PlaceVerdict {
        self.places.get(&spot.place).map_or(PlaceVerdict::Unknown, |place| place.verdict)
    }

    /// The verdicts that the kernel side does not know. A thread whose idle place a rule knows has no other that was
    /// only learned: what it waits for elsewhere, a command that sleeps, say, is a part of its work. So is what
    /// it waits for inside of what its loop calls.
    pub fn take_unsent_verdicts(&mut self, now: u64) -> Vec<(u64, SentVerdict)> {
        let is_ruled_idle = |key: &&Key| key.wait.ruled == Some(PlaceVerdict::Idle);
        let known: HashSet<u32> = self.keys.values().filter(is_ruled_idle).map(|key| key.thread).collect();
        let is_work = |key: &Key| {
            key.wait.ruled.is_none() && (known.contains(&key.thread) || key.is_inner == Some(true))
        };
        let mut unsent = Vec::new();
        for (number, key) in &self.keys {
            let verdict = match self.verdict_of_key(key) {
                PlaceVerdict::NotIdle => SentVerdict::NotIdle,
                _ if is_work(key) => SentVerdict::Unknown,
                PlaceVerdict::Idle => SentVerdict::Idle,
                PlaceVerdict::Unknown => match key.known {
                    SentVerdict::Idle => SentVerdict::IdleAsked,
                    SentVerdict::IdleAsked if now.saturating_sub(key.known_at) < REVIEW_NS => {
                        SentVerdict::IdleAsked
                    }
                    _ => SentVerdict::Unknown,
                },
            };
            let may_be_forgotten = matches!(verdict, SentVerdict::Idle | SentVerdict::NotIdle)
                && key.met == now
                && now.saturating_sub(key.known_at) >= REPEAT_NS;
            let is_reviewed = || {
                let place = key.wait.spot.and_then(|spot| self.places.get(&spot.place));
                verdict == SentVerdict::Unknown && place.is_some_and(|place| place.reviewed > key.known_at)
            };
            if verdict != key.known || may_be_forgotten || is_reviewed() {
                unsent.push((*number, verdict));
            }
        }
        for (number, verdict) in &unsent {
            if let Some(key) = self.keys.get_mut(number) {
                (key.known, key.known_at) = (*verdict, now);
            }
        }
        unsent
    }

    /// A thread's process has this exec generation. After an exec, its places are gone.
    pub fn follow_exec(&mut self, thread: u32, generation: u32) {
        if self.generations.insert(thread, generation).is_some_and(|before| before != generation) {
            self.gone.insert(thread);
        }
    }

    pub fn end_thread(&mut self, thread: u32) {
        self.generations.remove(&thread);
        self.gone.insert(thread);
    }

    /// Drops the places of threads that have none any more, and returns the kernel side's numbers of them.
    pub fn take_gone(&mut self) -> Vec<u64> {
        let gone = std::mem::take(&mut self.gone);
        if gone.is_empty() {
            return Vec::new();
        }
        self.waiters.retain(|(_, thread), _| !gone.contains(thread));
        for thread in &gone {
            self.stacks.remove(thread);
            self.slices.remove(thread);
        }
        self.keys.extract_if(|_, key| gone.contains(&key.thread)).map(|(number, _)| number).collect()
    }
}

impl Group {
    fn keep(&mut self, link: Link) {
        self.used = self.used.max(link.end);
        if self.links.len() == MOST_LINKS {
            self.links.pop_front();
        }
        self.links.push_back(link);
        self.fresh += 1;
    }
}

impl Place {
    /// Of its last waits.
    fn shares(&self) -> Shares {
        let mut shares = self.now;
        shares.add(self.before.ns - self.before.own_ns, self.before.waits - self.before.own_waits, false);
        shares.add(self.before.own_ns, self.before.own_waits, true);
        shares
    }
}

/// How many functions are between the loops of these threads and their waits `here`; `None` where it takes
/// names that are still to come.
fn depth(
    threads: &HashSet<u32>,
    here: &HashSet<u64>,
    stacks: &HashMap<u32, ThreadStacks>,
    depth_of: &mut DepthOf<'_>,
) -> Option<usize> {
    let mut threads: Vec<u32> = threads.iter().copied().collect();
    threads.sort_unstable();
    let mut depths = Some(Vec::new());
    for of_thread in threads.iter().filter_map(|thread| stacks.get(thread)).take(MOST_MEASURED) {
        let (waits, others): (Vec<u64>, Vec<u64>) =
            of_thread.stacks.iter().copied().partition(|stack| here.contains(stack));
        let Some(&wait) = waits.iter().min() else { continue };
        // All are asked for, so that their names come together.
        match (depth_of(wait, &others), &mut depths) {
            (Some(depth), Some(depths)) => depths.push(depth),
            _ => depths = None,
        }
    }
    depths.map(median_depth)
}

/// Where there are more than `most`, drops the oldest, and a quarter more than it must.
fn drop_oldest<K: Copy + Eq + Hash, V>(map: &mut HashMap<K, V>, most: usize, time: impl Fn(&V) -> u64) {
    if map.len() <= most {
        return;
    }
    let mut oldest: Vec<(u64, K)> = map.iter().map(|(key, value)| (time(value), *key)).collect();
    let dropped = map.len() - most * 3 / 4;
    oldest.select_nth_unstable_by_key(dropped - 1, |(time, _)| *time);
    oldest[..dropped].iter().for_each(|(_, key)| drop(map.remove(key)));
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const SECOND: u64 = 1_000 * MS;

    /// A spot of the program `server`: its functions, and those that its group has in common.
    fn spot(narrow: u64, wide: u64) -> Spot {
        Spot::new(b"server", Reason::Wait, StackPlace { narrow, wide, ..StackPlace::default() })
    }

    fn met(spot: Option<Spot>, ruled: Option<PlaceVerdict>) -> MetWait {
        MetWait { spot, ruled, ..MetWait::default() }
    }

    fn judge(places: &mut Places, now: u64) {
        places.judge(now, &mut |_, _| Some(0));
    }

    /// Judges after these waits: (thread, place, waker, ms, count).
    fn judged(places: &mut Places, now: u64, waits: &[(u32, u64, Option<u32>, u64, u64)]) {
        for &(thread, narrow, waker, ms, count) in waits {
            let ns = ms * MS;
            places.add(Waits { thread, spot: spot(narrow, 1), stack: narrow, waker, ns, count });
        }
        judge(places, now);
    }

    fn verdict(places: &Places, narrow: u64) -> PlaceVerdict {
        places.verdict_of(spot(narrow, 1))
    }

    /// The verdict of a place by the kernel side's number.
    fn of_key(places: &Places, key: u64) -> PlaceVerdict {
        places.keys.get(&key).map_or(PlaceVerdict::Unknown, |key| places.verdict_of_key(key))
    }

    fn link(thread: u32, start_ms: u64, woken_ms: u64, waker: Option<u32>) -> Link {
        let (start, woken) = (start_ms * MS, woken_ms * MS);
        Link { thread, start, woken, end: woken, waker, timed_out: waker.is_none() }
    }

    /// The waits of one second, single ones and sums, at the place 10.
    fn add_second(places: &mut Places, links: &[Link]) {
        for link in links {
            places.add_single(spot(10, 1), 10, *link);
            places.add(Waits {
                thread: link.thread,
                spot: spot(10, 1),
                stack: 10,
                waker: link.waker,
                ns: link.woken - link.start,
                count: 1,
            });
        }
    }

    /// Three threads that take a lock in turn for 10 ms each, and come back after 5 ms.
    fn lock(second: u64) -> Vec<Link> {
        let thread = |turn: u64| ((turn * 7 + turn / 5) % 3) as u32 + 1;
        let turns = second * 100 + 2..(second + 1) * 100;
        let links = turns.map(|turn| link(thread(turn), turn * 10 - 15, turn * 10, Some(thread(turn - 1))));
        links.filter(|link| Some(link.thread) != link.waker).collect()
    }

    /// The same threads, idle: one that an interrupt wakes wakes another one, and that one the third.
    fn workers(second: u64) -> Vec<Link> {
        let round = |round: u64| {
            let at = second * 1_000 + round * 50;
            let outside = Link { timed_out: false, ..link(1, at.saturating_sub(40), at, None) };
            [
                outside,
                link(2, at.saturating_sub(40), at + 1, Some(1)),
                link(3, at.saturating_sub(40), at + 2, Some(2)),
            ]
        };
        (1..20).flat_map(round).collect()
    }

    #[test]
    fn waiters_that_end_the_waits_of_each_other_one_by_one_wait_for_a_lock() {
        let mut places = Places::default();
        add_second(&mut places, &lock(0)[..4]);
        judge(&mut places, SECOND);
        assert_eq!(verdict(&places, 10), PlaceVerdict::Unknown, "four waits are too few");
        add_second(&mut places, &lock(0)[4..]);
        judge(&mut places, 2 * SECOND);
        assert_eq!(verdict(&places, 10), PlaceVerdict::NotIdle);
    }

    #[test]
    fn loops_that_end_the_waits_of_each_other_are_no_lock() {
        let mut places = Places::default();
        places.meet(7, 1, MetWait { in_epoll: true, ..met(Some(spot(10, 1)), None) }, SECOND);
        add_second(&mut places, &lock(0));
        judge(&mut places, SECOND);
        assert_eq!(verdict(&places, 10), PlaceVerdict::Idle);
    }

    #[test]
    fn idle_workers_that_wake_each_other_are_no_lock() {
        let mut places = Places::default();
        for second in 0..4 {
            add_second(&mut places, &workers(second));
            judge(&mut places, (second + 1) * SECOND);
        }
        assert_eq!(verdict(&places, 10), PlaceVerdict::Idle);
    }

    /// See the test of readers, `queue_is_no_lock_because_its_waiters_wake_each_other_at_one_of_its_calls`.
    #[test]
    fn queue_is_no_lock_because_its_waiters_wake_each_other_at_one_of_its_calls() {
        let at_call = |narrow, beside| {
            Spot::new(b"server", Reason::Wait, StackPlace { narrow, wide: narrow, beside, is_parked: false })
        };
        let verdict = |beside: Option<u64>| {
            let (mut places, [first, again]) =
                (Places::default(), [10, 11].map(|call| at_call(call, beside)));
            for turn in 1..80u64 {
                let (getter, other, at) = (1 + (turn % 2) as u32, 2 - (turn % 2) as u32, turn * 20);
                for (spot, wait) in [
                    (first, link(other, at - 17, at, Some(getter))),
                    (again, link(getter, at - 20, at, Some(9))),
                ] {
                    let (thread, ns) = (wait.thread, wait.woken - wait.start);
                    places.add_single(spot, spot.place, wait);
                    places.add(Waits { thread, spot, stack: spot.place, waker: wait.waker, ns, count: 1 });
                }
            }
            judge(&mut places, SECOND);
            places.verdict_of(first)
        };
        assert_eq!(verdict(Some(1)), PlaceVerdict::Unknown);
        assert_eq!(verdict(None), PlaceVerdict::NotIdle, "as one call alone looks");
    }

    /// Of an idle place only sums arrive.
    #[test]
    fn call_beside_an_idle_one_is_no_lock_where_the_waits_there_are_not_known() {
        let verdict = |count_of_other: u64| {
            let at_call = |narrow| {
                let beside = Some(1);
                Spot::new(
                    b"server",
                    Reason::Wait,
                    StackPlace { narrow, wide: narrow, beside, is_parked: false },
                )
            };
            let (mut places, [first, other]) = (Places::default(), [10, 11].map(at_call));
            let (waker, ns, count) = (Some(9), MS, count_of_other);
            places.add(Waits { thread: 1, spot: other, stack: 11, waker, ns, count });
            judge(&mut places, SECOND);
            for link in lock(1) {
                let (thread, ns) = (link.thread, link.woken - link.start);
                places.add_single(first, 10, link);
                places.add(Waits { thread, spot: first, stack: 10, waker: link.waker, ns, count: 1 });
            }
            judge(&mut places, 2 * SECOND);
            places.verdict_of(first)
        };
        assert_eq!(verdict(20), PlaceVerdict::Unknown);
        assert_eq!(verdict(5), PlaceVerdict::NotIdle, "too few waits to be idle");
    }

    #[test]
    fn waiters_of_the_group_count_wherever_they_wait_in_it() {
        let mut places = Places::default();
        for link in lock(0) {
            places.add_single(spot(10, 1), 10, link);
        }
        judged(&mut places, SECOND, &[(1, 10, Some(2), 500, 50), (2, 11, None, 5, 1)]);
        assert_eq!(verdict(&places, 10), PlaceVerdict::NotIdle, "thread 2 waited for it elsewhere");
        assert_eq!(verdict(&places, 11), PlaceVerdict::Unknown);
        let other = Waits { thread: 1, spot: spot(20, 2), stack: 20, waker: Some(2), ns: 5 * MS, count: 16 };
        places.add(other);
        judge(&mut places, 2 * SECOND);
        assert_eq!(places.verdict_of(other.spot), PlaceVerdict::Idle, "thread 2 never waits in that group");
        assert_ne!(
            Spot::new(b"server", Reason::Poll, StackPlace { narrow: 10, wide: 1, ..StackPlace::default() }),
            spot(10, 1)
        );
    }

    #[test]
    fn queue_is_idle() {
        let mut places = Places::default();
        let waits = [(1, 10, Some(9), 5, 8), (2, 10, Some(9), 5, 7), (1, 10, None, 5, 1)];
        judged(&mut places, SECOND, &waits[..2]);
        assert_eq!(verdict(&places, 10), PlaceVerdict::Unknown, "fifteen waits are too few");
        judged(&mut places, 2 * SECOND, &waits[2..]);
        assert_eq!(verdict(&places, 10), PlaceVerdict::Idle);
    }

    #[test]
    fn thread_that_wakes_itself_is_no_peer() {
        let mut places = Places::default();
        judged(&mut places, SECOND, &[(1, 10, Some(1), 5, 20)]);
        assert_eq!(verdict(&places, 10), PlaceVerdict::Idle);
    }

    #[test]
    fn slices_belong_to_the_thread_that_ends_the_last_one() {
        // Each wait looks every ms whether the lock is free.
        let sliced = lock(0).into_iter().flat_map(|wait| {
            let (start, woken) = (wait.start / MS, wait.woken / MS);
            (start..woken)
                .map(move |at| link(wait.thread, at, at + 1, wait.waker.filter(|_| at + 1 == woken)))
        });
        let mut places = Places::default();
        add_second(&mut places, &sliced.collect::<Vec<_>>());
        judge(&mut places, SECOND);
        assert_eq!(verdict(&places, 10), PlaceVerdict::NotIdle);
        let timer: Vec<Link> = (0..100).map(|at| link(1, at * 10, at * 10 + 1, None)).collect();
        let mut places = Places::default();
        add_second(&mut places, &timer);
        judge(&mut places, SECOND);
        assert_eq!(verdict(&places, 10), PlaceVerdict::Idle);
    }

    #[test]
    fn verdict_is_taken_back_when_a_place_changes() {
        let mut places = Places::default();
        for second in 0..3 {
            add_second(&mut places, &lock(second));
            judge(&mut places, (second + 1) * SECOND);
        }
        assert_eq!(verdict(&places, 10), PlaceVerdict::NotIdle);
        // Thread 9, which waits elsewhere, ends all waits.
        judged(&mut places, 4 * SECOND, &[(1, 10, Some(9), 500, 70)]);
        judged(&mut places, 5 * SECOND, &[(1, 10, Some(9), 500, 70)]);
        assert_eq!(verdict(&places, 10), PlaceVerdict::Idle);
        for second in 5..7 {
            add_second(&mut places, &lock(second));
            judge(&mut places, (second + 1) * SECOND);
        }
        assert_eq!(verdict(&places, 10), PlaceVerdict::NotIdle);
    }

    #[test]
    fn idle_place_whose_waiters_wake_each_other_is_reviewed() {
        let mut places = Places::default();
        places.meet(7, 1, met(Some(spot(10, 1)), None), SECOND);
        for second in 1..=4 {
            add_second(&mut places, &workers(second));
            judge(&mut places, second * SECOND);
        }
        assert_eq!(places.take_unsent_verdicts(4 * SECOND), [(7, SentVerdict::Idle)]);
        // From now on the kernel side emits none one by one.
        let waits = [(2, 10, Some(1), 40, 10), (3, 10, Some(2), 40, 10)];
        let mut sent = Vec::new();
        for second in 5..=70 {
            judged(&mut places, second * SECOND, &waits);
            sent.extend(
                places
                    .take_unsent_verdicts(second * SECOND)
                    .into_iter()
                    .map(|(_, verdict)| (second, verdict)),
            );
        }
        let [(asked, SentVerdict::IdleAsked), (given_up, SentVerdict::Unknown), ..] = sent[..] else {
            panic!("{sent:?}");
        };
        assert!((30..=35).contains(&asked) && given_up == asked + 30, "{sent:?}");
        // Its waits, one by one, say the same as before.
        for second in 71..=74 {
            add_second(&mut places, &workers(second));
            judge(&mut places, second * SECOND);
        }
        assert_eq!(places.take_unsent_verdicts(74 * SECOND), [(7, SentVerdict::Idle)]);
    }

    #[test]
    fn depth_is_measured_from_the_other_stacks_of_each_waiter() {
        let mut places = Places::default();
        for (thread, stack) in [(1, 10), (1, 99), (2, 10), (2, 98), (3, 97)] {
            places.add_stack(thread, stack, SECOND);
        }
        let (threads, here) = (HashSet::from([1, 2, 3]), HashSet::from([10]));
        let of = |of_stacks: fn(u64) -> Option<usize>| {
            depth(&threads, &here, &places.stacks, &mut |wait, others| {
                assert_eq!((wait, others.len()), (10, 1));
                of_stacks(others[0])
            })
        };
        assert_eq!(
            of(|other| Some(other as usize - 95)),
            Some(4),
            "the median of two threads that wait here"
        );
        assert_eq!(of(|other| (other == 99).then_some(1)), None, "names are missing");
    }

    #[test]
    fn rule_goes_before_what_is_learned() {
        let mut places = Places::default();
        places.meet(7, 1, met(None, Some(PlaceVerdict::Idle)), SECOND);
        assert_eq!(places.take_unsent_verdicts(SECOND), [(7, SentVerdict::Idle)], "at once");
        places.meet(8, 2, met(Some(spot(10, 1)), Some(PlaceVerdict::NotIdle)), SECOND);
        judged(&mut places, SECOND, &[(2, 10, Some(9), 5, 30)]);
        assert_eq!(places.take_unsent_verdicts(SECOND), [(8, SentVerdict::NotIdle)]);
        assert_eq!(of_key(&places, 8), PlaceVerdict::NotIdle);
        places.meet(7, 1, met(None, Some(PlaceVerdict::Idle)), 20 * SECOND);
        assert_eq!(
            places.take_unsent_verdicts(20 * SECOND),
            [(7, SentVerdict::Idle)],
            "it may be forgotten there"
        );
    }

    /// The loop of Redis, whose commands sleep more often than a worker waits that is taken for idle.
    #[test]
    fn thread_with_an_idle_place_of_a_rule_works_where_it_waits_elsewhere() {
        let mut places = Places::default();
        for thread in [1, 2] {
            places.meet(10 + u64::from(thread), thread, met(Some(spot(10, 1)), None), SECOND);
        }
        judged(&mut places, SECOND, &[(1, 10, None, 5, 40), (2, 10, None, 5, 40)]);
        let sorted = |mut verdicts: Vec<(u64, SentVerdict)>| {
            verdicts.sort_unstable_by_key(|(number, _)| *number);
            verdicts
        };
        assert_eq!(
            sorted(places.take_unsent_verdicts(SECOND)),
            [(11, SentVerdict::Idle), (12, SentVerdict::Idle)]
        );
        places.meet(7, 1, met(None, Some(PlaceVerdict::Idle)), 2 * SECOND);
        judged(&mut places, 2 * SECOND, &[(1, 10, None, 5, 40), (2, 10, None, 5, 40)]);
        assert_eq!(
            sorted(places.take_unsent_verdicts(2 * SECOND)),
            [(7, SentVerdict::Idle), (11, SentVerdict::Unknown)],
            "thread 2 has no such place"
        );
    }

    /// The verdicts about a poll, 7, and another wait, 8, of one thread, after one second and after two, where so
    /// many functions are between its loop and each.
    fn of_loop(
        in_epoll: bool,
        reason: Reason,
        poll: usize,
        wait: [Option<usize>; 2],
    ) -> [Vec<(u64, SentVerdict)>; 2] {
        const POLL: u64 = 10;
        const WAIT: u64 = 20;
        let mut places = Places::default();
        [0, 1].map(|second| {
            let now = (second as u64 + 1) * SECOND;
            for (number, reason, stack) in [(7, Reason::Poll, POLL), (8, reason, WAIT)] {
                let spot = Spot::new(
                    b"server",
                    reason,
                    StackPlace { narrow: stack, wide: stack, ..StackPlace::default() },
                );
                let in_epoll = in_epoll && stack == POLL;
                places.meet(number, 1, MetWait { stack, in_epoll, ..met(Some(spot), None) }, now);
                places.add(Waits { thread: 1, spot, stack, waker: None, ns: 5 * MS, count: 20 });
            }
            places.judge(now, &mut |stack, others| match (stack, others) {
                (POLL, [WAIT]) => Some(poll),
                (WAIT, [POLL]) => wait[second],
                _ => panic!("{stack} {others:?}"),
            });
            let mut sent = places.take_unsent_verdicts(now);
            sent.sort_unstable_by_key(|(number, _)| *number);
            sent
        })
    }

    #[test]
    fn wait_inside_of_what_a_loop_calls_is_work() {
        let work = [vec![(7, SentVerdict::Idle)], vec![]];
        for reason in [Reason::Sleep, Reason::Poll, Reason::Wait, Reason::Child] {
            assert_eq!(of_loop(true, reason, 1, [Some(3); 2]), work, "{reason:?}");
        }
        assert_eq!(of_loop(false, Reason::Sleep, 1, [Some(3); 2]), work);
        let [first, then] = of_loop(true, Reason::Sleep, 1, [None, Some(3)]);
        assert_eq!(first, [(7, SentVerdict::Idle), (8, SentVerdict::Idle)], "names are still to come");
        assert_eq!(then, [(8, SentVerdict::Unknown)]);
    }

    #[test]
    fn wait_that_is_no_further_in_than_a_poll_is_idle() {
        let both = [vec![(7, SentVerdict::Idle), (8, SentVerdict::Idle)], vec![]];
        for (poll, wait) in [(3, 1), (1, 1), (0, 0)] {
            assert_eq!(of_loop(true, Reason::Sleep, poll, [Some(wait); 2]), both, "{poll} {wait}");
        }
        for reason in [Reason::Poll, Reason::Wait] {
            assert_eq!(
                of_loop(false, reason, 1, [Some(3); 2]),
                both,
                "either poll may be the loop's: {reason:?}"
            );
        }
    }

    #[test]
    fn kernel_side_gets_each_verdict_once_and_again_after_a_while() {
        let mut places = Places::default();
        places.meet(77, 1, met(Some(spot(10, 1)), None), SECOND);
        assert_eq!(places.take_unsent_verdicts(SECOND), [], "unknown is what it assumes");
        add_second(&mut places, &lock(0));
        judge(&mut places, SECOND);
        assert_eq!(places.take_unsent_verdicts(SECOND), [(77, SentVerdict::NotIdle)]);
        assert_eq!(places.take_unsent_verdicts(2 * SECOND), []);
        places.meet(78, 2, met(Some(spot(10, 1)), None), 3 * SECOND);
        assert_eq!(places.take_unsent_verdicts(3 * SECOND), [(78, SentVerdict::NotIdle)], "another thread's");
        assert_eq!(places.take_unsent_verdicts(30 * SECOND), [], "not used meanwhile");
        places.meet(77, 1, met(Some(spot(10, 1)), None), 31 * SECOND);
        assert_eq!(places.take_unsent_verdicts(31 * SECOND), [(77, SentVerdict::NotIdle)]);
        assert_eq!(
            (of_key(&places, 77), of_key(&places, 79)),
            (PlaceVerdict::NotIdle, PlaceVerdict::Unknown)
        );
    }

    #[test]
    fn places_of_a_thread_end_with_it_and_with_its_program() {
        let mut places = Places::default();
        for thread in [1, 2, 3] {
            places.follow_exec(thread, 5);
            places.meet(u64::from(thread), thread, met(Some(spot(10, 1)), None), SECOND);
        }
        places.follow_exec(1, 5);
        assert_eq!(places.take_gone(), Vec::<u64>::new());
        places.follow_exec(2, 6);
        places.end_thread(3);
        let mut gone = places.take_gone();
        gone.sort_unstable();
        assert_eq!(gone, [2, 3]);
        judged(&mut places, 2 * SECOND, &[(1, 10, Some(2), 5, 20)]);
        assert_eq!(verdict(&places, 10), PlaceVerdict::Idle, "it is no waiter any more");
    }

    #[test]
    fn thread_that_has_not_waited_for_long_is_no_peer() {
        let mut places = Places::default();
        judged(&mut places, SECOND, &[(2, 10, None, 1, 1)]);
        judge(&mut places, SECOND + WAITER_NS);
        judged(&mut places, 2 * SECOND + WAITER_NS, &[(1, 10, Some(2), 50, 20)]);
        assert_eq!(verdict(&places, 10), PlaceVerdict::Idle);
    }

    #[test]
    fn memory_is_bounded_and_the_newest_stays() {
        let mut places = Places::default();
        for number in 0..40_000u64 {
            let (thread, spot) = (number as u32, spot(number, number));
            places.meet(number, thread, met(Some(spot), None), number);
            places.add(Waits { thread, spot, stack: number + 1, waker: None, ns: MS, count: 20 });
            (0..4).for_each(|at| places.add_single(spot, number + 1, link(thread, at, at + 1, Some(1))));
            if number % 1_000 == 999 {
                judge(&mut places, number);
            }
        }
        assert!(places.keys.len() <= MOST_KEYS && places.places.len() <= MOST_PLACES);
        assert!(places.waiters.len() <= MOST_WAITERS && places.stacks.len() <= MOST_THREADS);
        assert!(places.groups.len() <= MOST_PLACES);
        assert_eq!(of_key(&places, 39_999), PlaceVerdict::Idle);
        assert_eq!(of_key(&places, 0), PlaceVerdict::Unknown);
    }

    #[test]
    fn single_waits_are_bounded_for_all_groups_together() {
        let mut places = Places::default();
        for number in 0..300 {
            let links = (0..600).map(|at| link(number as u32, at, at + 1, Some(1)));
            links.for_each(|link| places.add_single(spot(number, number), 1, link));
        }
        judge(&mut places, SECOND);
        let links: usize = places.groups.values().map(|group| group.links.len()).sum();
        assert!(links <= MOST_LINKS_IN_ALL && links > 0, "{links}");
    }
}
