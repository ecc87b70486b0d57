// SPDX-License-Identifier: Apache-2.0
//! The judge of waits at one place: statistics in, verdict out.
//!
//! Readers ask once, over a whole recording. The recorder asks while it records, about the last waits of a
//! place: waits at a place that is known to be idle are counted, not kept.

use wallprof_model::event::PlaceVerdict;

use super::chain::Timing;

/// The least share of a lock's waited time that its own waiters end. Measured: PostgreSQL 97 %, InnoDB,
/// HotSpot's monitors 100 %, parking_lot 50 %, a semaphore 45 %; queues 0 %, tokio 14 %.
const LEAST_OWN_SHARE: f64 = 0.4;

/// A place that was a lock stays one down to this share: a lock near the limit does not change with chance.
const STILL_OWN_SHARE: f64 = 0.2;

/// The least number of waits, ended by waiters of the place, for a judgement.
const LEAST_WAITS: u64 = 8;

/// Threads are idle that waited this often where their own waiters ended less than this share of the time.
const LEAST_IDLE_WAITS: u64 = 16;
const IDLE_SHARE: f64 = 0.05;

/// The least share of the waits that holders cover.
const LEAST_COVERED: f64 = 0.6;

/// The most wakeups out of turn where one thread at a time has what the others wait for.
const MOST_OUT_OF_TURN: f64 = 0.1;

/// Of fewer waits than this the timing must be clearer: idle workers of MariaDB that were woken 23 times in
/// 20 s looked like holders for 89 % of it, one of ten out of turn.
const FEW_WAITS: usize = 100;
const MOST_OUT_OF_TURN_OF_FEW: f64 = 0.02;
const LEAST_COVERED_OF_FEW: f64 = 0.95;

/// The same where single waits are missing, or the place stands for several locks.
const MOST_OUT_OF_TURN_DEEP: f64 = 0.4;

/// The most waits that are ended together with others, as a barrier does, unless the lock is always taken.
const MOST_TOGETHER: f64 = 0.4;

/// The share of the time with at most one thread awake from which on a lock is taken all the time, so that
/// threads that are woken together do not come back at random.
const TAKEN: f64 = 0.4;

/// The share of it from which on two threads answer each other.
const ANSWERS: f64 = 0.95;

/// The share of their wakeups from which on they do, where CPUs were busy: of a lock that two threads wait for,
/// one that lets go has something else to do.
const ANSWERED: f64 = 0.5;

/// The same of two threads of which one has hardly any of the waits, as it looks for the answer for a while before it
/// sleeps. Measured: 93 to 94 % with 1 to 6 % of the waits.
const ANSWERS_OF_SPINNER: f64 = 0.9;
const WAITS_OF_SPINNER: f64 = 0.1;

/// From these shares on the waiters are idle: all of them wait, so that none of them has anything, and others end most
/// waits, which never wait there. Measured: 92 to 99 % and 67 %, of four workers of a library.
const NONE_AWAKE: f64 = 0.9;
const BY_OTHERS: f64 = 0.6;

/// The most of them that parked threads drop, and the most of the holders' time in which they are parked, or in a wait at
/// another call of the same function. Measured of the latter: 65 to 99 % of workers of Python's `SimpleQueue`, and 0 % of a semaphore that is a lock.
const MOST_DROPPED: f64 = 0.1;
const MOST_PARKED: f64 = 0.5;

/// The most waits that go one way. Measured: 100 % of the reader of results of Python's `multiprocessing.Pool`.
const MOST_ONE_WAY: f64 = 0.5;

/// The most functions between a worker's loop and its wait for work. A lock is waited for further in, where
/// the timing proves nothing.
const LOOP_DEPTH: usize = 3;

/// Who ended the waits of a place: all of them, and those that its own waiters ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    pub waits: u64,
    pub ns: u64,
    pub own_waits: u64,
    pub own_ns: u64,
}

impl Shares {
    /// Adds waits that one thread ended; `own`: another thread that waits there itself.
    pub fn add(&mut self, ns: u64, count: u64, own: bool) {
        self.ns = self.ns.saturating_add(ns);
        self.waits = self.waits.saturating_add(count);
        if own {
            self.own_ns = self.own_ns.saturating_add(ns);
            self.own_waits = self.own_waits.saturating_add(count);
        }
    }

    fn own_share(&self) -> f64 {
        if self.ns == 0 { 0.0 } else { self.own_ns as f64 / self.ns as f64 }
    }
}

/// What the threads do that wait at a place, after the verdict `before`. `NotIdle`: they wait for a lock.
///
/// `timing` and `depth` are only asked for where they decide. `depth` is how many functions are between the
/// threads' loops and their waits, where that is known.
///
/// # Errors
/// Those of `depth`.
pub fn judge<E>(
    shares: &Shares,
    before: PlaceVerdict,
    timing: impl FnOnce() -> Timing,
    depth: impl FnOnce() -> Result<Option<usize>, E>,
) -> Result<PlaceVerdict, E> {
    let was_lock = before == PlaceVerdict::NotIdle;
    let share = shares.own_share();
    if share < if was_lock { STILL_OWN_SHARE } else { LEAST_OWN_SHARE } {
        let is_idle = shares.waits >= LEAST_IDLE_WAITS && share < IDLE_SHARE;
        return Ok(if is_idle { PlaceVerdict::Idle } else { PlaceVerdict::Unknown });
    }
    if shares.own_waits < LEAST_WAITS {
        return Ok(PlaceVerdict::Unknown);
    }
    let timing = timing();
    let verdict = by_timing(&timing, depth)?;
    // Few waits show what a place is, but not that it is no longer what it was.
    let keeps = verdict != PlaceVerdict::NotIdle && timing.waits < FEW_WAITS;
    Ok(match keeps {
        true if was_lock => before,
        true => PlaceVerdict::Unknown,
        false => verdict,
    })
}

fn by_timing<E>(
    timing: &Timing,
    depth: impl FnOnce() -> Result<Option<usize>, E>,
) -> Result<PlaceVerdict, E> {
    let spins = timing.rarest <= WAITS_OF_SPINNER && timing.one_awake >= ANSWERS_OF_SPINNER;
    let answers = timing.one_awake >= ANSWERS || timing.answered >= ANSWERED || spins;
    let has_fixed_partners = timing.fixed_order && (timing.threads > 2 || answers);
    let are_idle = timing.none_awake >= NONE_AWAKE && timing.by_others >= BY_OTHERS;
    let is_work = timing.dropped > MOST_DROPPED || timing.parked > MOST_PARKED || are_idle;
    let is_work = is_work || timing.one_way > MOST_ONE_WAY;
    if (timing.waits as u64) < LEAST_WAITS || timing.covered < LEAST_COVERED || has_fixed_partners || is_work
    {
        return Ok(PlaceVerdict::Idle);
    }
    let herd = timing.together > MOST_TOGETHER;
    let in_turn = match timing.waits < FEW_WAITS {
        true => timing.out_of_turn <= MOST_OUT_OF_TURN_OF_FEW && timing.covered >= LEAST_COVERED_OF_FEW,
        false => timing.out_of_turn <= MOST_OUT_OF_TURN,
    };
    if in_turn && !herd {
        return Ok(PlaceVerdict::NotIdle);
    }
    let may_be = timing.out_of_turn <= MOST_OUT_OF_TURN_DEEP && (!herd || timing.one_awake >= TAKEN);
    if !may_be {
        return Ok(PlaceVerdict::Idle);
    }
    Ok(match depth()? {
        None => PlaceVerdict::Unknown,
        Some(depth) if depth > LOOP_DEPTH => PlaceVerdict::NotIdle,
        Some(_) => PlaceVerdict::Idle,
    })
}

/// The depth of a place from those of its threads; 0 for none.
pub fn median_depth(mut depths: Vec<usize>) -> usize {
    depths.sort_unstable();
    depths.get(depths.len() / 2).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;
    use PlaceVerdict::{Idle, NotIdle, Unknown};

    const LOCK: Timing = Timing {
        waits: 200,
        covered: 0.9,
        out_of_turn: 0.05,
        together: 0.0,
        one_awake: 0.5,
        none_awake: 0.0,
        by_others: 0.0,
        threads: 3,
        rarest: 0.3,
        fixed_order: false,
        answered: 0.0,
        dropped: 0.0,
        parked: 0.0,
        one_way: 0.0,
    };

    /// Of 100 waits of 1 ms, these were ended by waiters of the place.
    fn shares(own: u64) -> Shares {
        Shares { waits: 100, ns: 100, own_waits: own, own_ns: own }
    }

    fn verdict(shares: Shares, before: PlaceVerdict, timing: Timing, depth: Option<usize>) -> PlaceVerdict {
        let Ok(verdict) = judge(&shares, before, || timing, || Ok::<_, Infallible>(depth));
        verdict
    }

    #[test]
    fn share_of_own_waiters_decides_first() {
        let of = |own, before| verdict(shares(own), before, LOCK, None);
        assert_eq!([0, 4, 5, 39, 40].map(|own| of(own, Unknown)), [Idle, Idle, Unknown, Unknown, NotIdle]);
        assert_eq!([4, 19, 20].map(|own| of(own, NotIdle)), [Idle, Unknown, NotIdle], "a lock stays one");
        let few = Shares { waits: 15, ns: 100, ..Shares::default() };
        assert_eq!(verdict(few, Unknown, LOCK, None), Unknown);
        let few = Shares { waits: 7, ns: 100, own_waits: 7, own_ns: 100 };
        assert_eq!(verdict(few, Unknown, LOCK, None), Unknown);
        assert_eq!(verdict(Shares::default(), NotIdle, LOCK, None), Unknown, "no waits");
    }

    #[test]
    fn workers_that_wake_each_other_are_known_by_the_timing() {
        let of = |timing| verdict(shares(100), Unknown, timing, None);
        assert_eq!(of(Timing { covered: 0.3, ..LOCK }), Idle);
        assert_eq!(of(Timing { fixed_order: true, ..LOCK }), Idle);
        let pair = Timing { fixed_order: true, threads: 2, ..LOCK };
        assert_eq!([0.4, 0.6].map(|answered| of(Timing { answered, ..pair })), [NotIdle, Idle]);
        let spinner = |rarest, one_awake| of(Timing { rarest, one_awake, ..pair });
        assert_eq!(spinner(0.06, 0.93), Idle, "one asks, and looks for the answer");
        assert_eq!([spinner(0.06, 0.8), spinner(0.3, 0.93)], [NotIdle; 2], "one keeps a lock for long");
        let idle = |none_awake, by_others| of(Timing { none_awake, by_others, ..LOCK });
        assert_eq!(idle(0.92, 0.66), Idle, "others have work for them");
        assert_eq!([idle(0.92, 0.5), idle(0.8, 0.66)], [NotIdle; 2], "others hold the lock, too");
        assert_eq!(of(Timing { out_of_turn: 0.5, ..LOCK }), Idle);
        assert_eq!(of(Timing { together: 0.9, one_awake: 0.2, ..LOCK }), Idle);
        assert_eq!([0.1, 0.2].map(|dropped| of(Timing { dropped, ..LOCK })), [NotIdle, Idle]);
        assert_eq!([0.5, 0.6].map(|parked| of(Timing { parked, ..LOCK })), [NotIdle, Idle]);
        assert_eq!([0.5, 0.6].map(|one_way| of(Timing { one_way, ..LOCK })), [NotIdle, Idle]);
    }

    #[test]
    fn depth_decides_where_the_timing_does_not() {
        let timing = Timing { out_of_turn: 0.3, ..LOCK };
        let of = |depth| verdict(shares(100), Unknown, timing, depth);
        assert_eq!([None, Some(3), Some(4)].map(of), [Unknown, Idle, NotIdle]);
    }

    #[test]
    fn few_waits_take_no_verdict_back() {
        let few = Timing { waits: 50, covered: 0.5, ..LOCK };
        assert_eq!(verdict(shares(100), Unknown, few, None), Unknown);
        assert_eq!(verdict(shares(100), NotIdle, few, None), NotIdle);
        assert_eq!(verdict(shares(100), NotIdle, Timing { waits: 100, ..few }, None), Idle);
        let clear = Timing { covered: 0.96, out_of_turn: 0.0, ..few };
        assert_eq!(verdict(shares(100), Unknown, clear, None), NotIdle);
    }
}
