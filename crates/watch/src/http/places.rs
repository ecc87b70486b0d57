//! How many connections there may be, which goes when there is no place for one more, and when each has had its time.
//!
//! Pure. Three pools, so that no kind of client can keep out another: the control socket, local clients that were
//! served before (a Prometheus on this machine), and all others.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A request's head must be there whole this long after its first byte, or after the client came.
pub(super) const HEAD_TIME: Duration = Duration::from_secs(5);
/// Scrapers keep their connection for the next scrape.
const IDLE_TIME: Duration = Duration::from_secs(120);
/// Bytes of an answer must be taken within this time.
pub(super) const WRITE_TIME: Duration = Duration::from_secs(20);
/// A page must be made within this time.
const WORK_TIME: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Through the Unix socket.
    Control,
    /// Over TCP from a loopback address.
    Local,
    Network,
}

/// What a connection is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nothing has come of its first request, or not all of a request.
    Reading,
    Answering,
    /// Its last answer was given: it may ask again.
    Served,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pool {
    Control,
    Regular,
    Open,
}

impl Pool {
    fn places(self) -> usize {
        match self {
            Pool::Control | Pool::Regular => 16,
            Pool::Open => 128,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Held {
    class: Class,
    phase: Phase,
    since: Instant,
    was_served: bool,
    /// Since then it takes no bytes of its answer.
    stalled: Option<Instant>,
}

impl Held {
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
            Phase::Answering => WORK_TIME,
            Phase::Served => IDLE_TIME,
        };
        let step = self.since + step;
        self.stalled.map_or(step, |stalled| step.min(stalled + WRITE_TIME))
    }
}

/// The connections there are, by number.
#[derive(Debug, Default)]
pub(super) struct Places {
    held: BTreeMap<u64, Held>,
    next: u64,
}

/// A connection that may stay, and the one that has to go for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Admitted {
    pub id: u64,
    pub instead_of: Option<u64>,
}

impl Places {
    /// `None` where every place is taken by a client whose answer is being made.
    pub fn admit(&mut self, class: Class, now: Instant) -> Option<Admitted> {
        let held = Held { class, phase: Phase::Reading, since: now, was_served: false, stalled: None };
        let instead_of = match self.count(held.pool()) < held.pool().places() {
            true => None,
            false => Some(self.first_to_go(held.pool(), None)?),
        };
        instead_of.map(|id| self.held.remove(&id));
        let id = self.next;
        self.next += 1;
        self.held.insert(id, held);
        Some(Admitted { id, instead_of })
    }

    /// Bytes of a request came. A request that comes byte by byte gains no time by them.
    pub fn received(&mut self, id: u64, now: Instant) {
        if let Some(held) = self.held.get_mut(&id).filter(|held| held.phase == Phase::Served) {
            (held.phase, held.since) = (Phase::Reading, now);
        }
    }

    /// The request is there whole.
    pub fn answering(&mut self, id: u64, now: Instant) {
        if let Some(held) = self.held.get_mut(&id) {
            (held.phase, held.since) = (Phase::Answering, now);
        }
    }

    /// Its answer was given; the connection that has to go because this one joins those that were served.
    pub fn served(&mut self, id: u64, now: Instant) -> Option<u64> {
        let held = self.held.get_mut(&id)?;
        let before = held.pool();
        (held.phase, held.since, held.was_served) = (Phase::Served, now, true);
        let pool = held.pool();
        if pool == before || self.count(pool) <= pool.places() {
            return None;
        }
        let goes = self.first_to_go(pool, Some(id))?;
        self.held.remove(&goes);
        Some(goes)
    }

    /// It takes bytes of its answer, or none for now.
    pub fn takes(&mut self, id: u64, takes: bool, now: Instant) {
        if let Some(held) = self.held.get_mut(&id) {
            held.stalled = if takes { None } else { held.stalled.or(Some(now)) };
        }
    }

    pub fn leave(&mut self, id: u64) {
        self.held.remove(&id);
    }

    /// Those whose time is over leave.
    pub fn expire(&mut self, now: Instant) -> Vec<u64> {
        let over: Vec<u64> =
            self.held.iter().filter(|(_, held)| held.deadline() <= now).map(|(id, _)| *id).collect();
        over.iter().for_each(|id| self.leave(*id));
        over
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        self.held.values().map(Held::deadline).min()
    }

    fn count(&self, pool: Pool) -> usize {
        self.held.values().filter(|held| held.pool() == pool).count()
    }

    /// The oldest unfinished request, else the connection that has been idle for longest.
    fn first_to_go(&self, pool: Pool, but: Option<u64>) -> Option<u64> {
        let in_phase = |phase: Phase| {
            let those = self
                .held
                .iter()
                .filter(move |(id, held)| held.pool() == pool && held.phase == phase && Some(**id) != but);
            those.min_by_key(|(_, held)| held.since).map(|(id, _)| *id)
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

    fn admitted(places: &mut Places, class: Class, now: Instant) -> u64 {
        places.admit(class, now).expect("a place").id
    }

    fn serve(places: &mut Places, id: u64, now: Instant) -> Option<u64> {
        places.answering(id, now);
        places.served(id, now)
    }

    #[test]
    fn oldest_unfinished_request_goes_first() {
        let (mut places, start) = (Places::default(), Instant::now());
        let idle = admitted(&mut places, Class::Network, start);
        serve(&mut places, idle, start);
        let slow: Vec<u64> =
            (1..128).map(|at| admitted(&mut places, Class::Network, start + second(at))).collect();
        let now = start + second(200);
        let new = places.admit(Class::Local, now).expect("a place");
        assert_eq!(new.instead_of, Some(slow[0]), "not the one that was served, which is older");
        for one in &slow[1..] {
            places.answering(*one, now);
        }
        places.answering(new.id, now);
        assert_eq!(places.admit(Class::Network, now).expect("a place").instead_of, Some(idle));
    }

    #[test]
    fn answers_in_the_making_are_never_given_up() {
        let (mut places, start) = (Places::default(), Instant::now());
        for _ in 0..128 {
            let id = admitted(&mut places, Class::Network, start);
            places.answering(id, start);
        }
        assert_eq!(places.admit(Class::Network, start), None);
        assert!(places.admit(Class::Control, start).is_some(), "the socket has places of its own");
    }

    #[test]
    fn slow_connections_displace_no_scraper_that_was_served() {
        let (mut places, start) = (Places::default(), Instant::now());
        let scraper = admitted(&mut places, Class::Local, start);
        serve(&mut places, scraper, start);
        for at in 0..500 {
            let new = places.admit(Class::Local, start + Duration::from_millis(at)).expect("a place");
            assert_ne!(new.instead_of, Some(scraper));
        }
        assert!(places.held.len() <= 129);
    }

    #[test]
    fn the_pool_of_served_clients_is_bounded() {
        let (mut places, start) = (Places::default(), Instant::now());
        let mut gone = Vec::new();
        for at in 0..20 {
            let id = admitted(&mut places, Class::Local, start + second(at));
            gone.extend(serve(&mut places, id, start + second(at)));
        }
        assert_eq!(gone, [0, 1, 2, 3], "those that have been idle for longest");
    }

    #[test]
    fn each_step_has_its_time() {
        let (mut places, start) = (Places::default(), Instant::now());
        let id = admitted(&mut places, Class::Network, start);
        places.received(id, start + second(4));
        assert_eq!(places.next_deadline(), Some(start + HEAD_TIME), "bytes buy no time");
        places.answering(id, start + second(4));
        assert_eq!(places.next_deadline(), Some(start + second(4) + WORK_TIME));
        places.takes(id, false, start + second(5));
        places.takes(id, false, start + second(6));
        assert_eq!(places.next_deadline(), Some(start + second(5) + WRITE_TIME));
        places.takes(id, true, start + second(7));
        places.served(id, start + second(8));
        assert_eq!(places.next_deadline(), Some(start + second(8) + IDLE_TIME));
        places.received(id, start + second(9));
        assert_eq!(places.next_deadline(), Some(start + second(9) + HEAD_TIME));
        assert_eq!(places.expire(start + second(13)), []);
        assert_eq!((places.expire(start + second(14)), places.next_deadline()), (vec![id], None));
    }
}
