// SPDX-License-Identifier: Apache-2.0
//! Limits on the number of connections and on the time of each of their steps, and which one is closed for a
//! new one.
//!
//! Pure. There are three pools of slots, so that no kind of client can block another: the control socket,
//! local clients that were served before (a Prometheus on this machine), and all others.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The head of a request must be complete within this time, from its first byte or from the start of the
/// connection.
pub(super) const HEAD_TIME: Duration = Duration::from_secs(5);
/// Limit on the idle time between requests: scrapers keep their connection for the next scrape.
const IDLE_TIME: Duration = Duration::from_secs(120);
/// Limit on the time in which a client takes no byte of its answer.
pub(super) const WRITE_TIME: Duration = Duration::from_secs(20);
/// A page must be made within this time.
const ANSWER_TIME: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Through the Unix socket.
    Control,
    /// Over TCP from a loopback address.
    Local,
    Network,
}

/// The step that a connection is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// A request is not complete yet.
    Reading,
    Answering,
    /// Its last answer was sent; it may send another request.
    Served,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pool {
    Control,
    Regular,
    Open,
}

impl Pool {
    fn slots(self) -> usize {
        match self {
            Pool::Control | Pool::Regular => 16,
            Pool::Open => 128,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    class: Class,
    phase: Phase,
    since: Instant,
    was_served: bool,
    /// The time since which the client takes no bytes of its answer.
    stalled: Option<Instant>,
}

impl Slot {
    fn pool(&self) -> Pool {
        match self.class {
            Class::Control => Pool::Control,
            Class::Local if self.was_served => Pool::Regular,
            Class::Local | Class::Network => Pool::Open,
        }
    }

    fn deadline(&self) -> Instant {
        let step = match self.phase {
            Phase::Reading => HEAD_TIME,
            Phase::Answering => ANSWER_TIME,
            Phase::Served => IDLE_TIME,
        };
        let step = self.since + step;
        self.stalled.map_or(step, |stalled| step.min(stalled + WRITE_TIME))
    }
}

/// The open connections, by number.
#[derive(Debug, Default)]
pub(super) struct Slots {
    used: BTreeMap<u64, Slot>,
    next: u64,
}

/// An accepted connection, and the one that must be closed for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Admitted {
    pub id: u64,
    pub instead_of: Option<u64>,
}

impl Slots {
    /// Takes a slot. `None` if every slot has an answer in the making.
    pub fn admit(&mut self, class: Class, now: Instant) -> Option<Admitted> {
        let slot = Slot { class, phase: Phase::Reading, since: now, was_served: false, stalled: None };
        let instead_of = match self.count(slot.pool()) < slot.pool().slots() {
            true => None,
            false => Some(self.first_to_close(slot.pool(), None)?),
        };
        instead_of.map(|id| self.used.remove(&id));
        let id = self.next;
        self.next += 1;
        self.used.insert(id, slot);
        Some(Admitted { id, instead_of })
    }

    /// Bytes of a request arrived. Only the first ones start its time, so that a slow sender gains none.
    pub fn received(&mut self, id: u64, now: Instant) {
        if let Some(slot) = self.used.get_mut(&id).filter(|slot| slot.phase == Phase::Served) {
            (slot.phase, slot.since) = (Phase::Reading, now);
        }
    }

    /// The request is complete.
    pub fn answering(&mut self, id: u64, now: Instant) {
        if let Some(slot) = self.used.get_mut(&id) {
            (slot.phase, slot.since) = (Phase::Answering, now);
        }
    }

    /// The answer was sent. Returns a connection to close if the pool of served clients is full.
    pub fn served(&mut self, id: u64, now: Instant) -> Option<u64> {
        let slot = self.used.get_mut(&id)?;
        let before = slot.pool();
        (slot.phase, slot.since, slot.was_served) = (Phase::Served, now, true);
        let pool = slot.pool();
        if pool == before || self.count(pool) <= pool.slots() {
            return None;
        }
        let evicted = self.first_to_close(pool, Some(id))?;
        self.used.remove(&evicted);
        Some(evicted)
    }

    /// The client takes no bytes of its answer for now, or takes them again.
    pub fn set_stalled(&mut self, id: u64, stalled: bool, now: Instant) {
        if let Some(slot) = self.used.get_mut(&id) {
            slot.stalled = if stalled { slot.stalled.or(Some(now)) } else { None };
        }
    }

    /// The connection is closed.
    pub fn leave(&mut self, id: u64) {
        self.used.remove(&id);
    }

    /// Removes and returns the connections whose time is over.
    pub fn expire(&mut self, now: Instant) -> Vec<u64> {
        let over: Vec<u64> =
            self.used.iter().filter(|(_, slot)| slot.deadline() <= now).map(|(id, _)| *id).collect();
        over.iter().for_each(|id| self.leave(*id));
        over
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        self.used.values().map(Slot::deadline).min()
    }

    fn count(&self, pool: Pool) -> usize {
        self.used.values().filter(|slot| slot.pool() == pool).count()
    }

    /// The connection with the oldest incomplete request, else the one that has been idle for longest.
    fn first_to_close(&self, pool: Pool, except: Option<u64>) -> Option<u64> {
        let in_phase = |phase: Phase| {
            let those = self
                .used
                .iter()
                .filter(move |(id, slot)| slot.pool() == pool && slot.phase == phase && Some(**id) != except);
            those.min_by_key(|(_, slot)| slot.since).map(|(id, _)| *id)
        };
        in_phase(Phase::Reading).or_else(|| in_phase(Phase::Served))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(number: u64) -> Duration {
        Duration::from_secs(number)
    }

    fn admitted(slots: &mut Slots, class: Class, now: Instant) -> u64 {
        slots.admit(class, now).expect("a slot").id
    }

    fn serve(slots: &mut Slots, id: u64, now: Instant) -> Option<u64> {
        slots.answering(id, now);
        slots.served(id, now)
    }

    #[test]
    fn oldest_incomplete_request_is_closed_first() {
        let (mut slots, start) = (Slots::default(), Instant::now());
        let idle = admitted(&mut slots, Class::Network, start);
        serve(&mut slots, idle, start);
        let slow: Vec<u64> =
            (1..128).map(|at| admitted(&mut slots, Class::Network, start + second(at))).collect();
        let now = start + second(200);
        let new = slots.admit(Class::Local, now).expect("a slot");
        assert_eq!(new.instead_of, Some(slow[0]), "not the one that was served, which is older");
        for one in &slow[1..] {
            slots.answering(*one, now);
        }
        slots.answering(new.id, now);
        assert_eq!(slots.admit(Class::Network, now).expect("a slot").instead_of, Some(idle));
    }

    #[test]
    fn connection_with_an_answer_in_the_making_stays() {
        let (mut slots, start) = (Slots::default(), Instant::now());
        for _ in 0..128 {
            let id = admitted(&mut slots, Class::Network, start);
            slots.answering(id, start);
        }
        assert_eq!(slots.admit(Class::Network, start), None);
        assert!(slots.admit(Class::Control, start).is_some(), "the socket has its own slots");
    }

    #[test]
    fn slow_connections_never_close_a_served_scraper() {
        let (mut slots, start) = (Slots::default(), Instant::now());
        let scraper = admitted(&mut slots, Class::Local, start);
        serve(&mut slots, scraper, start);
        for at in 0..500 {
            let new = slots.admit(Class::Local, start + Duration::from_millis(at)).expect("a slot");
            assert_ne!(new.instead_of, Some(scraper));
        }
        assert!(slots.used.len() <= 129);
    }

    #[test]
    fn the_pool_of_served_clients_is_bounded() {
        let (mut slots, start) = (Slots::default(), Instant::now());
        let mut gone = Vec::new();
        for at in 0..20 {
            let id = admitted(&mut slots, Class::Local, start + second(at));
            gone.extend(serve(&mut slots, id, start + second(at)));
        }
        assert_eq!(gone, [0, 1, 2, 3], "the ones that have been idle for longest");
    }

    #[test]
    fn each_step_has_its_limit() {
        let (mut slots, start) = (Slots::default(), Instant::now());
        let id = admitted(&mut slots, Class::Network, start);
        slots.received(id, start + second(4));
        assert_eq!(slots.next_deadline(), Some(start + HEAD_TIME), "bytes add no time");
        slots.answering(id, start + second(4));
        assert_eq!(slots.next_deadline(), Some(start + second(4) + ANSWER_TIME));
        slots.set_stalled(id, true, start + second(5));
        slots.set_stalled(id, true, start + second(6));
        assert_eq!(slots.next_deadline(), Some(start + second(5) + WRITE_TIME));
        slots.set_stalled(id, false, start + second(7));
        slots.served(id, start + second(8));
        assert_eq!(slots.next_deadline(), Some(start + second(8) + IDLE_TIME));
        slots.received(id, start + second(9));
        assert_eq!(slots.next_deadline(), Some(start + second(9) + HEAD_TIME));
        assert_eq!(slots.expire(start + second(13)), []);
        assert_eq!((slots.expire(start + second(14)), slots.next_deadline()), (vec![id], None));
    }
}
