//! Tests of the promise: equal processes are no news, where they drift no more than mildly (neighbouring seconds
//! correlated by 0.5), and real differences are.
//!
//! The processes are drawn from seeds; every run of these tests sees the same ones.

use wallprof_model::{Reason, State};

use super::story::Story;
use super::{Comparison, FALSE_NEWS, Floor, Tree, compare};
use crate::weights::View;

const LOCK: State = State::Blocked(Reason::Lock);
const DISK: State = State::Blocked(Reason::Disk);
const PAIRS: u64 = 200;

/// SplitMix64.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Evenly in 0..1.
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.share()).ln()
    }

    fn poisson(&mut self, mean: f64) -> u64 {
        let (mut count, mut at) = (0, self.exponential(1.0));
        while at < mean {
            count += 1;
            at += self.exponential(1.0);
        }
        count
    }
}

/// A service as they are: waits of many lengths in many places, rare long ones, a slow drift, and samples.
/// `factor` lengthens the waits in one place.
fn service(seed: u64, seconds: u32, factor: f64) -> Story {
    let mut chance = Chance(seed);
    let mut story = Story::new(seconds);
    let thread = story.thread("engine");
    let mut drift = 0.0;
    for second in 0..seconds {
        let waits = chance.poisson(25.0);
        let lock: f64 = (0..waits).map(|_| chance.exponential(1.5 * factor)).sum();
        wait(&mut story, thread, second, LOCK, &[("main;tick;take_lock", lock)]);
        drift = 0.5 * drift + chance.exponential(6.0) - 6.0;
        let (rare, flush) = if chance.share() < 0.15 { (chance.exponential(80.0), 9.0) } else { (0.0, 0.0) };
        let disk = [("main;log;write", 40.0 + drift), ("main;log;rotate", rare), ("main;log;flush", flush)];
        wait(&mut story, thread, second, DISK, &disk);
        let busy = [("main;tick;parse", 9.0), ("main;tick;apply", 4.0), ("main;log;format", 1.0)];
        let samples = busy.map(|(stack, mean)| (stack, chance.poisson(mean)));
        let sampled: u64 = samples.iter().map(|(_, count)| count).sum();
        story.run(thread, second, sampled * 10, &samples);
    }
    story
}

fn wait(
    story: &mut Story,
    thread: wallprof_model::ThreadKey,
    second: u32,
    state: State,
    stacks: &[(&str, f64)],
) {
    let stacks: Vec<(&str, u64)> = stacks.iter().map(|(stack, ms)| (*stack, ms.max(0.0) as u64)).collect();
    let sum_ms: u64 = stacks.iter().map(|(_, ms)| ms).sum();
    story.wait(thread, second, (state, sum_ms * 1_000_000), &stacks);
}

fn compared(a: &Story, b: &Story) -> Comparison {
    let mut tree = Tree::default();
    let (a, b) = (a.side(&mut tree), b.side(&mut tree));
    compare(tree, &a, &b, &View::Wall, Floor::default())
}

/// Largest count that a share of [`FALSE_NEWS`] exceeds with less than one in a thousand.
fn most_false_news() -> usize {
    let mean = PAIRS as f64 * FALSE_NEWS;
    (mean + 3.3 * mean.sqrt()).ceil() as usize
}

#[test]
fn equal_processes_are_no_news() {
    for seconds in [4, 10, 30] {
        let is_false = |pair: &u64| {
            let (one, other) = (service(2 * pair, seconds, 1.0), service(2 * pair + 1, seconds, 1.0));
            !compared(&one, &other).has_no_news()
        };
        let false_news = (0..PAIRS).filter(is_false).count();
        assert!(false_news <= most_false_news(), "{false_news} of {PAIRS} pairs of {seconds} s");
    }
}

#[test]
fn a_wait_twice_as_long_is_named_first_with_the_right_difference() {
    for pair in 0..PAIRS / 4 {
        let comparison = compared(&service(2 * pair, 40, 1.0), &service(2 * pair + 1, 40, 2.0));
        let first = comparison.headlines.first().expect("news");
        let path: Vec<String> = comparison.tree.path(first.node).iter().map(ToString::to_string).collect();
        assert_eq!(path, ["main", "tick", "take_lock", "[blocked:lock]"]);
        // 25 waits a second of 1.5 ms more; the stories cut each second's sum to whole milliseconds.
        let uncertainty = first.change.uncertainty.unwrap();
        let off = (first.change.difference_ns() - 37.5e6).abs();
        assert!(off < 2.5 * uncertainty.margin_ns + 0.5e6, "{:?}", first.change);
    }
}
