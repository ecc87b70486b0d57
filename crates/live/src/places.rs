//! Places where threads wait voluntarily, and who ends the waits there: a lock's own waiters, or others.
//!
//! Pure. A place is a user stack in one program, whatever the process. The threads that wait in the same
//! function outside of the runtime libraries are the waiters of its group. Where waiters end the waits of
//! each other, they wait as for a lock, whatever system call they use: measured, 97 to 100 % of the waited
//! time in a database's row lock, 45 % with a semaphore. In a queue it is 0 %, because workers are woken by
//! the threads that bring work. Idle workers that wake each other look like a lock. But they all wait at the
//! same time, while a lock that is waited for has a holder, which does not.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use wallprof_model::event::PlaceVerdict;

/// A verdict that the threads are not idle needs this many waits, and this share of their time.
const LEAST_PEER_WAITS: u64 = 3;
const PEER_PERCENT: u64 = 40;
/// Such a place stays one down to this share, so that a lock near the limit does not change with chance.
const STILL_PEER_PERCENT: u64 = 20;
/// A verdict that they are idle needs this many waits, and less than this share.
const LEAST_IDLE_WAITS: u64 = 16;
const IDLE_PERCENT: u64 = 5;
/// Threads of one place that are looked at to see whether they all wait at the same time.
const MOST_POOL_THREADS: usize = 64;
/// A place is judged by its last waits: between this many and twice as many, and at least those of one
/// second.
const WINDOW_WAITS: u64 = 64;
/// A thread counts as a waiter of a group for this long after it waited there.
const WAITER_NS: u64 = 60_000_000_000;
/// The kernel side may have forgotten a verdict that it got longer ago than this, for one of another place.
const REPEAT_NS: u64 = 8_000_000_000;
const SECOND_NS: u64 = 1_000_000_000;
/// Places of single threads, as many as the kernel side has, and what they have in common.
const MOST_KEYS: usize = 8_192;
const MOST_PLACES: usize = 4_096;
const MOST_WAITERS: usize = 16_384;

/// Where in the code a user stack is, whatever the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackPlace {
    /// A hash over all frames.
    pub whole: u64,
    /// A hash over the leaf frames, up to the first one outside of the runtime libraries.
    pub leaf: u64,
}

/// A place and its group, in one program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    place: u64,
    group: u64,
}

impl Spot {
    /// The spot of a stack in the program of this name.
    pub fn new(program: &[u8], stack: StackPlace) -> Self {
        let of = |part: u64| {
            let mut hasher = DefaultHasher::new();
            (program, part).hash(&mut hasher);
            hasher.finish()
        };
        Spot { place: of(stack.whole), group: of(stack.leaf) }
    }
}

/// Waits of one thread at one spot that the same thread ended.
#[derive(Clone, Copy, Debug)]
pub struct Waits {
    pub thread: u32,
    pub spot: Spot,
    /// `None`: an interrupt, a timeout, or a thread that is not recorded.
    pub waker: Option<u32>,
    pub ns: u64,
    pub count: u64,
}

/// Everything that is learned, within bounds: what was not used for the longest time is forgotten first.
#[derive(Default)]
pub struct Places {
    /// By the kernel side's number: the place where one thread waits.
    keys: HashMap<u64, Key>,
    places: HashMap<u64, Place>,
    /// When a thread last waited in a group.
    waiters: HashMap<(u64, u32), u64>,
    /// The exec generation of each thread's process.
    generations: HashMap<u32, u32>,
    /// Waits since the last verdicts.
    waits: Vec<Waits>,
    judged_at: Option<u64>,
    /// Threads that ended, or run another program now.
    gone: HashSet<u32>,
}

struct Key {
    thread: u32,
    spot: Spot,
    met: u64,
    /// The last verdict that the kernel side got, and when.
    known: PlaceVerdict,
    known_at: u64,
}

#[derive(Default)]
struct Place {
    now: Window,
    before: Window,
    verdict: PlaceVerdict,
    used: u64,
}

#[derive(Default)]
struct Window {
    /// The time from which it has waits.
    from: u64,
    waits: u64,
    ns: u64,
    by_peers_ns: u64,
    /// What each thread waited, ns.
    threads: HashMap<u32, u64>,
}

impl Places {
    /// A thread waits at a spot; `key` is the kernel side's number for that.
    pub fn meet(&mut self, key: u64, thread: u32, spot: Spot, now: u64) {
        let fresh = Key { thread, spot, met: now, known: PlaceVerdict::Unknown, known_at: 0 };
        let known = self.keys.entry(key).or_insert(fresh);
        (known.met, known.spot) = (now, spot);
        self.waiters.insert((spot.group, thread), now);
    }

    /// Takes waits, for the next verdicts.
    pub fn add(&mut self, waits: Waits) {
        self.waits.push(waits);
    }

    /// Judges the places by the waits since the last time.
    pub fn judge(&mut self, now: u64) {
        let waits = std::mem::take(&mut self.waits);
        let from = self.judged_at.replace(now).unwrap_or(now.saturating_sub(SECOND_NS));
        // All waiters first: the one that ends a wait may have waited later than that.
        for wait in &waits {
            self.waiters.insert((wait.spot.group, wait.thread), now);
        }
        for wait in &waits {
            let is_peer =
                |waker: u32| waker != wait.thread && self.waiters.contains_key(&(wait.spot.group, waker));
            let by_peer = wait.waker.is_some_and(is_peer);
            let place = self.places.entry(wait.spot.place).or_default();
            place.used = now;
            place.now.add(wait, by_peer, from);
        }
        let used: HashSet<u64> = waits.iter().map(|wait| wait.spot.place).collect();
        for place in used {
            self.places.entry(place).or_default().judge(now);
        }
        self.waiters.retain(|_, last| now.saturating_sub(*last) < WAITER_NS);
        drop_oldest(&mut self.waiters, MOST_WAITERS, |last| *last);
        drop_oldest(&mut self.places, MOST_PLACES, |place| place.used);
        drop_oldest(&mut self.keys, MOST_KEYS, |key| key.met);
    }

    /// The verdict of a place by the kernel side's number.
    pub fn verdict(&self, key: u64) -> PlaceVerdict {
        self.keys.get(&key).map_or(PlaceVerdict::Unknown, |key| self.verdict_of(key.spot))
    }

    fn verdict_of(&self, spot: Spot) -> PlaceVerdict {
        self.places.get(&spot.place).map_or(PlaceVerdict::Unknown, |place| place.verdict)
    }

    /// The verdicts that the kernel side does not know.
    pub fn take_news(&mut self, now: u64) -> Vec<(u64, PlaceVerdict)> {
        let mut news = Vec::new();
        for (number, key) in &mut self.keys {
            let place = self.places.get(&key.spot.place);
            let verdict = place.map_or(PlaceVerdict::Unknown, |place| place.verdict);
            let may_be_forgotten =
                verdict == PlaceVerdict::NotIdle && key.met == now && now - key.known_at >= REPEAT_NS;
            if verdict != key.known || may_be_forgotten {
                (key.known, key.known_at) = (verdict, now);
                news.push((*number, verdict));
            }
        }
        news
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
        self.keys.extract_if(|_, key| gone.contains(&key.thread)).map(|(number, _)| number).collect()
    }
}

impl Place {
    fn judge(&mut self, now: u64) {
        let sum = |of: fn(&Window) -> u64| of(&self.now).saturating_add(of(&self.before));
        let (waits, ns) = (sum(|window| window.waits), sum(|window| window.ns));
        let by_peers_ns = sum(|window| window.by_peers_ns);
        let share_is_at_least = |percent| {
            u128::from(by_peers_ns) * 100 >= u128::from(ns) * u128::from(percent) && by_peers_ns > 0
        };
        let was_peers = self.verdict == PlaceVerdict::NotIdle && share_is_at_least(STILL_PEER_PERCENT);
        let is_peers = was_peers || share_is_at_least(PEER_PERCENT);
        self.verdict = match waits {
            LEAST_PEER_WAITS.. if is_peers && !self.all_wait_at_once(now) => PlaceVerdict::NotIdle,
            LEAST_IDLE_WAITS.. if is_peers || !share_is_at_least(IDLE_PERCENT) => PlaceVerdict::Idle,
            _ => PlaceVerdict::Unknown,
        };
        if self.now.waits >= WINDOW_WAITS {
            self.before = std::mem::take(&mut self.now);
        }
    }

    /// Whether, on average, less than half a thread of several was not waiting here.
    fn all_wait_at_once(&self, now: u64) -> bool {
        let mut threads = self.before.threads.clone();
        for (thread, ns) in &self.now.threads {
            *threads.entry(*thread).or_default() += ns;
        }
        // A wait that ended in the window can have started before it.
        let longest = threads.values().max().copied().unwrap_or(0);
        let since = if self.before.waits > 0 { self.before.from } else { self.now.from };
        let span = u128::from(now.saturating_sub(since).max(longest));
        let waited: u128 = threads.values().map(|ns| u128::from(*ns)).sum();
        threads.len() > 1 && waited * 2 >= span * (threads.len() as u128 * 2 - 1)
    }
}

impl Window {
    fn add(&mut self, wait: &Waits, by_peer: bool, from: u64) {
        if self.waits == 0 {
            self.from = from;
        }
        self.waits = self.waits.saturating_add(wait.count);
        self.ns = self.ns.saturating_add(wait.ns);
        if by_peer {
            self.by_peers_ns = self.by_peers_ns.saturating_add(wait.ns);
        }
        if self.threads.len() < MOST_POOL_THREADS || self.threads.contains_key(&wait.thread) {
            *self.threads.entry(wait.thread).or_default() += wait.ns;
        }
    }
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

    /// A spot of the program `server`: its stack, and the function that all such stacks wait in.
    fn spot(whole: u64, leaf: u64) -> Spot {
        Spot::new(b"server", StackPlace { whole, leaf })
    }

    /// Judges after these waits: (thread, stack, waker, ms, count).
    fn judged(places: &mut Places, now: u64, waits: &[(u32, u64, Option<u32>, u64, u64)]) {
        for (thread, whole, waker, ms, count) in waits {
            places.add(Waits {
                thread: *thread,
                spot: spot(*whole, 1),
                waker: *waker,
                ns: ms * MS,
                count: *count,
            });
        }
        places.judge(now);
    }

    fn verdict(places: &Places, whole: u64) -> PlaceVerdict {
        places.verdict_of(spot(whole, 1))
    }

    #[test]
    fn waiters_that_end_the_waits_of_each_other_are_not_idle() {
        let mut places = Places::default();
        judged(&mut places, SECOND, &[(1, 10, Some(2), 5, 1), (2, 10, Some(1), 5, 1)]);
        assert_eq!(verdict(&places, 10), PlaceVerdict::Unknown, "two waits are too few");
        judged(&mut places, 2 * SECOND, &[(1, 10, Some(2), 5, 1)]);
        assert_eq!(verdict(&places, 10), PlaceVerdict::NotIdle);
    }

    #[test]
    fn waiters_of_the_group_count_whatever_their_stack() {
        let mut places = Places::default();
        judged(&mut places, SECOND, &[(1, 10, Some(2), 5, 3), (2, 11, None, 5, 1)]);
        assert_eq!(verdict(&places, 10), PlaceVerdict::NotIdle, "thread 2 waited for it elsewhere");
        assert_eq!(verdict(&places, 11), PlaceVerdict::Unknown);
        let other = Waits { thread: 1, spot: spot(20, 2), waker: Some(2), ns: 5 * MS, count: 16 };
        places.add(other);
        places.judge(2 * SECOND);
        assert_eq!(places.verdict_of(other.spot), PlaceVerdict::Idle, "thread 2 never waits in that group");
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
    fn idle_workers_that_wake_each_other_are_a_pool() {
        let of = |waited_ms| {
            let mut places = Places::default();
            let waits = [1, 2, 3].map(|thread| (thread, 10, Some(thread % 3 + 1), waited_ms, 8));
            judged(&mut places, 10 * SECOND, &[]);
            judged(&mut places, 11 * SECOND, &waits);
            verdict(&places, 10)
        };
        assert_eq!(of(990), PlaceVerdict::Idle);
        assert_eq!(of(30_000), PlaceVerdict::Idle, "for half a minute before");
        assert_eq!(of(667), PlaceVerdict::NotIdle, "one of three always holds the lock");
    }

    #[test]
    fn one_waiter_is_no_pool() {
        let mut places = Places::default();
        let alone = [(1, 10, Some(2), 990, 3), (2, 11, None, 5, 1)];
        judged(&mut places, SECOND, &alone);
        assert_eq!(verdict(&places, 10), PlaceVerdict::NotIdle);
    }

    #[test]
    fn share_of_time_decides() {
        let of = |peers_ms, others_ms| {
            let mut places = Places::default();
            judged(&mut places, SECOND, &[(2, 10, None, others_ms, 30), (1, 10, Some(2), peers_ms, 10)]);
            verdict(&places, 10)
        };
        assert_eq!(of(40, 60), PlaceVerdict::NotIdle);
        assert_eq!(of(39, 61), PlaceVerdict::Unknown);
        assert_eq!(of(5, 95), PlaceVerdict::Unknown);
        assert_eq!(of(4, 96), PlaceVerdict::Idle);
    }

    #[test]
    fn place_changes_its_nature() {
        let mut places = Places::default();
        let of = |waker: Option<u32>| [(1, 10, waker, 50, 50), (2, 10, waker.map(|waker| 3 - waker), 50, 50)];
        judged(&mut places, SECOND, &of(Some(2)));
        assert_eq!(verdict(&places, 10), PlaceVerdict::NotIdle);
        judged(&mut places, 2 * SECOND, &of(None));
        assert_eq!(verdict(&places, 10), PlaceVerdict::NotIdle, "half of the last two seconds");
        judged(&mut places, 3 * SECOND, &of(None));
        assert_eq!(verdict(&places, 10), PlaceVerdict::Idle);
        judged(&mut places, 4 * SECOND, &of(Some(2)));
        judged(&mut places, 5 * SECOND, &of(Some(2)));
        assert_eq!(verdict(&places, 10), PlaceVerdict::NotIdle);
    }

    #[test]
    fn kernel_side_gets_each_verdict_once_and_again_after_a_while() {
        let mut places = Places::default();
        places.meet(77, 1, spot(10, 1), SECOND);
        assert_eq!(places.take_news(SECOND), [], "unknown is what it assumes");
        judged(&mut places, SECOND, &[(1, 10, Some(2), 5, 3), (2, 10, Some(1), 5, 3)]);
        assert_eq!(places.take_news(SECOND), [(77, PlaceVerdict::NotIdle)]);
        assert_eq!(places.take_news(2 * SECOND), []);
        places.meet(78, 2, spot(10, 1), 3 * SECOND);
        assert_eq!(places.take_news(3 * SECOND), [(78, PlaceVerdict::NotIdle)], "another thread's");
        assert_eq!(places.take_news(30 * SECOND), [], "not used meanwhile");
        places.meet(77, 1, spot(10, 1), 31 * SECOND);
        assert_eq!(places.take_news(31 * SECOND), [(77, PlaceVerdict::NotIdle)]);
        assert_eq!((places.verdict(77), places.verdict(79)), (PlaceVerdict::NotIdle, PlaceVerdict::Unknown));
    }

    #[test]
    fn places_of_a_thread_end_with_it_and_with_its_program() {
        let mut places = Places::default();
        for thread in [1, 2, 3] {
            places.follow_exec(thread, 5);
            places.meet(u64::from(thread), thread, spot(10, 1), SECOND);
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
        places.judge(SECOND + WAITER_NS);
        judged(&mut places, 2 * SECOND + WAITER_NS, &[(1, 10, Some(2), 50, 20)]);
        assert_eq!(verdict(&places, 10), PlaceVerdict::Idle);
    }

    #[test]
    fn memory_is_bounded_and_the_newest_stays() {
        let mut places = Places::default();
        for number in 0..40_000u64 {
            places.meet(number, number as u32, spot(number, number), number);
            let thread = number as u32;
            places.add(Waits { thread, spot: spot(number, number), waker: None, ns: MS, count: 20 });
            if number % 1_000 == 999 {
                places.judge(number);
            }
        }
        assert!(places.keys.len() <= MOST_KEYS && places.places.len() <= MOST_PLACES);
        assert!(places.waiters.len() <= MOST_WAITERS);
        assert_eq!(places.verdict(39_999), PlaceVerdict::Idle);
        assert_eq!(places.verdict(0), PlaceVerdict::Unknown);
    }
}
