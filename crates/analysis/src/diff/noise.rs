// SPDX-License-Identifier: Apache-2.0
//! Tests of the promise: equal processes are no news, where they drift no more than mildly (neighbouring
//! seconds correlated by 0.5), and real differences are.
//!
//! The processes are drawn from seeds; every run of these tests sees the same ones.

use wallprof_model::{Reason, State};

use super::chance::Chance;
use super::fixture::Fixture;
use super::{Comparison, FALSE_NEWS, Floor, Tree, compare};
use crate::weights::View;

const LOCK: State = State::Blocked(Reason::Lock);
const DISK: State = State::Blocked(Reason::Disk);
const PAIRS: u64 = 200;

/// A service as they are: waits of many lengths in many places, rare long ones, a slow drift, and samples.
/// `factor` lengthens the waits in one place.
fn service(seed: u64, seconds: u32, factor: f64) -> Fixture {
    let mut chance = Chance(seed);
    let mut fixture = Fixture::new(seconds);
    let thread = fixture.thread("engine");
    let mut drift = 0.0;
    for second in 0..seconds {
        let waits = chance.poisson(25.0);
        let lock: Vec<u64> = (0..waits).map(|_| ns(chance.exponential(1.5 * factor))).collect();
        fixture.single_waits(thread, second, LOCK, "main;tick;take_lock", &lock);
        drift = 0.5 * drift + chance.exponential(6.0) - 6.0;
        let (rare, flush) = if chance.share() < 0.15 { (chance.exponential(80.0), 9.0) } else { (0.0, 0.0) };
        let disk = [("main;log;write", 40.0 + drift), ("main;log;rotate", rare), ("main;log;flush", flush)];
        wait(&mut fixture, thread, second, DISK, &disk);
        let busy = [("main;tick;parse", 9.0), ("main;tick;apply", 4.0), ("main;log;format", 1.0)];
        let samples = busy.map(|(stack, mean)| (stack, chance.poisson(mean)));
        let sampled: u64 = samples.iter().map(|(_, count)| count).sum();
        fixture.run(thread, second, sampled * 10, &samples);
    }
    fixture
}

/// A thread that mostly sleeps and rarely waits for a lock, as long as another holds it: 13 times a second,
/// for up to 2 ms times `factor`; and many places in which it runs.
fn rare_waits(seed: u64, factor: f64) -> Fixture {
    let mut chance = Chance(seed);
    let mut fixture = Fixture::new(9);
    let thread = fixture.thread("engine");
    let places: Vec<String> = (0..40).map(|place| format!("main;tick;step{place}")).collect();
    for second in 0..9 {
        let waits = chance.poisson(13.0);
        let lengths: Vec<u64> = (0..waits).map(|_| ns(2.0 * factor * chance.share())).collect();
        fixture.single_waits(thread, second, LOCK, "main;tick;take_lock", &lengths);
        let samples: Vec<_> = places.iter().map(|place| (place.as_str(), chance.poisson(0.5))).collect();
        fixture.run(thread, second, 200, &samples);
    }
    fixture
}

fn ns(ms: f64) -> u64 {
    (ms * 1e6) as u64
}

fn wait(
    fixture: &mut Fixture,
    thread: wallprof_model::ThreadKey,
    second: u32,
    state: State,
    stacks: &[(&str, f64)],
) {
    let stacks: Vec<(&str, u64)> = stacks.iter().map(|(stack, ms)| (*stack, ms.max(0.0) as u64)).collect();
    let sum_ms: u64 = stacks.iter().map(|(_, ms)| ms).sum();
    fixture.wait(thread, second, (state, sum_ms * 1_000_000), &stacks);
}

fn compared(a: &Fixture, b: &Fixture) -> Comparison {
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
fn rare_waits_that_are_equal_are_no_news() {
    let is_false =
        |pair: &u64| !compared(&rare_waits(2 * pair, 1.0), &rare_waits(2 * pair + 1, 1.0)).has_no_news();
    let false_news = (0..PAIRS).filter(is_false).count();
    assert!(false_news <= most_false_news(), "{false_news} of {PAIRS} pairs");
}

/// The test of their lengths finds nearly all; the windows of nine seconds alone miss half.
#[test]
fn a_rare_wait_twice_as_long_is_named_first() {
    const PAIRS: u64 = 60;
    let is_first = |a: &Fixture, b: &Fixture| {
        let comparison = compared(a, b);
        let first = comparison.headlines.first().map(|first| comparison.tree.path(first.node));
        first.is_some_and(|path| path.iter().any(|step| step.to_string() == "take_lock"))
    };
    let pairs = || (0..PAIRS).map(|pair| (rare_waits(2 * pair, 1.0), rare_waits(2 * pair + 1, 2.0)));
    let named = pairs().filter(|(a, b)| is_first(a, b)).count();
    assert!(named as u64 >= PAIRS * 95 / 100, "{named} of {PAIRS}");
    let by_windows = |(a, b): (Fixture, Fixture)| is_first(&a, &b.with_min_stall(1));
    let named = pairs().map(by_windows).filter(|is_first| *is_first).count();
    assert!(named as u64 <= PAIRS * 60 / 100, "{named} of {PAIRS} where the recordings kept different waits");
}

#[test]
fn a_wait_twice_as_long_is_named_first_with_the_right_difference() {
    for pair in 0..PAIRS / 4 {
        let comparison = compared(&service(2 * pair, 40, 1.0), &service(2 * pair + 1, 40, 2.0));
        let first = comparison.headlines.first().expect("news");
        let path: Vec<String> = comparison.tree.path(first.node).iter().map(ToString::to_string).collect();
        assert_eq!(path, ["main", "tick", "take_lock", "[blocked:lock]"]);
        // 25 waits a second of 1.5 ms more.
        let uncertainty = first.change.uncertainty.unwrap();
        let off = (first.change.difference_ns() - 37.5e6).abs();
        assert!(off < 2.5 * uncertainty.margin_ns, "{:?}", first.change);
    }
}
