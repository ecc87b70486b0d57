// SPDX-License-Identifier: Apache-2.0
//! How long the requests of a server wait for the answers of others: a proxy's for its upstreams, an application's
//! for its database. Such a server sleeps in epoll meanwhile, as it does without a request. And how long connections
//! wait for the server itself ([`super::accepts`]).
//!
//! The evidence is in the kernel's list of connections: on the one that the server made, it was the last to send,
//! and on one that it accepted, the other end was, before that. Where nobody waits for the server, as where a
//! consumer asks for its next message, nothing counts.
//!
//! Owns when connections are listed, and the search for those of the recorded processes. Connections may live for
//! one request only, so the files of the processes are listed when one of unknown owner waits.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::ops::ControlFlow;

use wallprof_model::event::PeerProcess;
use wallprof_model::{CounterKind, CounterUnit, MonoNs};
use wallprof_probe::clock;

use super::Reading;
use super::accepts::{self, Accepts};
use super::folder::Folder;
use super::namespaces::NamespaceId;
use super::netlink::{Connection, IPV4, IPV6, Protocol, SocketList};
use super::pace::Pace;
use super::sockets::socket_from_target;
use super::stock::Stock;
use super::waited::{LEAST_NS, Names, Waited};
use crate::peers::Peers;

const NAMES: Names =
    Names { total: "upstream.waited", count: "upstream.requests", longest: "upstream.longest" };
const MS: u64 = 1_000_000;
/// An acknowledgement that comes later than this is the answer to a probe.
const LATEST_ACKNOWLEDGEMENT_MS: u32 = 1_000;
/// Addresses of a process that have counters of their own. The others share one.
const MOST_ADDRESSES: usize = 16;
/// Connections that are followed at a time.
const MOST_WAITS: usize = 4096;
/// Files of a process that are looked at.
const MOST_FILES: usize = 20_000;
/// Listing the files rests for this many times as long as it took.
const REST: u64 = 100;
/// Listing the connections may use this part of one CPU, a two-hundredth: the kernel walks a table of all of them,
/// which takes 200 µs where it has 262,144 rows.
const SHARE: u64 = 200;
/// Connections are listed this often while no process runs, and while none has had clients for a while.
const AT_REST_NS: u64 = 1_000_000_000;
const WITHOUT_CLIENTS_NS: u64 = 5_000_000_000;
/// The process at the other end of an address is looked for this often, until it is known.
const SEARCH_NS: u64 = 1_000_000_000;

/// The upstreams of all recorded processes.
pub struct Upstreams {
    pace: Pace,
    /// A recorded process had a client when it was looked at then.
    served: Option<MonoNs>,
    homes: BTreeMap<NamespaceId, Home>,
    owners: Owners,
    waits: Waits,
    accepts: Accepts,
    peers: Peers,
}

/// A network namespace.
struct Home {
    /// `None`: the kernel refused.
    list: Option<SocketList>,
    stock: Stock,
    /// Address families, and when each is listed next: a list of none costs as much as one of some.
    families: [(u8, u64); 2],
}

/// The processes that have the sockets.
#[derive(Default)]
struct Owners {
    by_inode: HashMap<u32, u32>,
    /// Sockets of other processes, as of the last listing.
    others: HashSet<u32>,
    due: u64,
}

/// The requests that wait, and what has waited.
#[derive(Default)]
struct Waits {
    /// Nothing is counted before.
    from: Option<MonoNs>,
    by_cookie: HashMap<u64, Wait>,
    /// By process and address; `None`: further addresses.
    upstreams: BTreeMap<(u32, Option<SocketAddr>), Upstream>,
}

/// A request that waits for its answer.
#[derive(Debug)]
struct Wait {
    pid: u32,
    local: SocketAddr,
    remote: SocketAddr,
    start: u64,
    /// It still waited then.
    until: u64,
    sent: u64,
    received: u64,
    segments: u32,
    /// A client of the process waited meanwhile, when it was last seen.
    is_owed: bool,
    counted_ns: u64,
}

/// The other end of such requests.
#[derive(Debug, Default)]
struct Upstream {
    local: Option<SocketAddr>,
    waited: Waited,
    process: Option<PeerProcess>,
    search_due: u64,
}

/// Who sent the last data on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    Own,
    Other,
    /// Both within a tick.
    Unknown,
}

impl Default for Upstreams {
    fn default() -> Self {
        Upstreams {
            pace: Pace::with_share(SHARE),
            served: None,
            homes: BTreeMap::new(),
            owners: Owners::default(),
            waits: Waits::default(),
            accepts: Accepts::default(),
            peers: Peers::default(),
        }
    }
}

impl Upstreams {
    /// Looks at the connections when that is due, and returns whether it was. `homes` are namespaces with a process in
    /// each, `pids` the recorded processes, of which one `runs`, or may run.
    pub fn look(
        &mut self,
        at: MonoNs,
        homes: &BTreeMap<NamespaceId, u32>,
        pids: &dyn Fn() -> Vec<u32>,
        runs: bool,
    ) -> bool {
        if !self.pace.is_due(at) {
            return false;
        }
        let began = clock::thread_cpu_ns();
        self.homes.retain(|id, _| homes.contains_key(id));
        for (&id, &pid) in homes {
            self.homes.entry(id).or_insert_with(|| Home::of(pid));
        }
        let mut rows = Vec::new();
        let mut ends = Vec::with_capacity(self.homes.len());
        for (id, home) in &mut self.homes {
            home.list_into(&mut rows, at);
            ends.push((*id, rows.len()));
        }
        let listening: HashSet<u16> =
            rows.iter().filter(|row| row.listens).map(|row| row.local.port()).collect();
        if self.owners.misses_one_of(&rows, &listening, at) {
            self.owners.list(&pids(), &rows, at);
        }
        self.waits.see(at, &rows, &listening, &self.owners.by_inode);
        self.waits.name(at, &mut self.peers);
        let mut start = 0;
        let of_home = |(id, end): (NamespaceId, usize)| (id, &rows[std::mem::replace(&mut start, end)..end]);
        let by_home: Vec<_> = ends.into_iter().map(of_home).collect();
        let waits_for_one = self.accepts.see(at, &by_home, &self.owners.by_inode);
        self.pace.took(at, clock::thread_cpu_ns().saturating_sub(began));
        let is_client = |row: &Connection| !row.listens && listening.contains(&row.local.port());
        let is_served = |row: &Connection| is_client(row) && self.owners.by_inode.contains_key(&row.inode);
        if waits_for_one || rows.iter().any(is_served) {
            self.served = Some(at);
        }
        // A recording may be short.
        let served = *self.served.get_or_insert(at);
        let serves = at.0.saturating_sub(served.0) < WITHOUT_CLIENTS_NS;
        if !runs || !serves {
            self.pace.rest(at, AT_REST_NS);
        }
        true
    }

    /// Passes the counters of a process, as of the look at `at`.
    pub fn pass(&mut self, pid: u32, at: MonoNs, take: &mut dyn FnMut(MonoNs, Reading<'_>)) {
        self.waits.pass(pid, at, take);
        self.accepts.pass(pid, at, take);
    }
}

impl Home {
    fn of(pid: u32) -> Self {
        Home {
            list: SocketList::of_process(pid).ok(),
            stock: Stock::of_process(pid),
            families: [(IPV4, 0), (IPV6, 0)],
        }
    }

    fn list_into(&mut self, rows: &mut Vec<Connection>, at: MonoNs) {
        let Some(list) = &mut self.list else { return };
        for (family, due) in &mut self.families {
            if at.0 < *due || self.stock.count(Protocol::Tcp, *family) == Some(0) {
                continue;
            }
            let listed = list.connections(*family).unwrap_or_default();
            if listed.iter().all(|row| row.listens) {
                *due = at.0.saturating_add(AT_REST_NS);
            }
            rows.extend(listed);
        }
    }
}

impl Owners {
    /// Whether a connection on which somebody waits may be of a recorded process.
    fn misses_one_of(&self, rows: &[Connection], listening: &HashSet<u16>, at: MonoNs) -> bool {
        let waits = |row: &Connection| {
            let is_accepted = listening.contains(&row.local.port());
            match last(row) {
                _ if accepts::waits(row) => is_accepted,
                Last::Own => !is_accepted && u64::from(row.sent_ago_ms) * MS >= LEAST_NS,
                Last::Other => is_accepted && u64::from(row.received_ago_ms) * MS >= LEAST_NS,
                Last::Unknown => false,
            }
        };
        let is_of_known =
            |row: &Connection| self.by_inode.contains_key(&row.inode) || self.others.contains(&row.inode);
        let new_listeners = rows.iter().filter(|row| row.listens && !is_of_known(row));
        let new_ports: HashSet<u16> = new_listeners.map(|row| row.local.port()).collect();
        let is_known = |row: &Connection| match accepts::waits(row) {
            true => !new_ports.contains(&row.local.port()),
            false => is_of_known(row),
        };
        at.0 >= self.due && rows.iter().any(|row| !row.listens && waits(row) && !is_known(row))
    }

    fn list(&mut self, pids: &[u32], rows: &[Connection], at: MonoNs) {
        let began = clock::thread_cpu_ns();
        self.by_inode.clear();
        for &pid in pids {
            let Some(files) = Folder::open(&format!("/proc/{pid}/fd")) else { continue };
            let mut left = MOST_FILES;
            files.numbers(|_, name| {
                if let Some(inode) = files.target(name, socket_from_target) {
                    self.by_inode.entry(inode).or_insert(pid);
                }
                left -= 1;
                if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
        }
        let others = rows.iter().map(|row| row.inode).filter(|inode| !self.by_inode.contains_key(inode));
        self.others = others.collect();
        let cost_ns = clock::thread_cpu_ns().saturating_sub(began);
        self.due = at.0.saturating_add(cost_ns.saturating_mul(REST));
    }
}

impl Waits {
    fn see(&mut self, at: MonoNs, rows: &[Connection], listening: &HashSet<u16>, owners: &HashMap<u32, u32>) {
        let from = self.from.get_or_insert(at).0;
        let own = rows.iter().filter(|row| !row.listens);
        let own = own.filter_map(|row| Some((*owners.get(&row.inode)?, row)));
        let (accepted, made): (Vec<_>, Vec<_>) =
            own.partition(|(_, row)| listening.contains(&row.local.port()));
        let owed = longest_owed(&accepted);
        let ends: HashSet<_> = accepted.iter().map(|(pid, row)| (*pid, row.local, row.remote)).collect();
        let mut seen = HashSet::with_capacity(made.len());
        for (pid, row) in made {
            // A client in the server's own process is none of its upstreams.
            if ends.contains(&(pid, row.remote, row.local)) {
                continue;
            }
            let before = self.by_cookie.remove(&row.cookie);
            let mut wait = match before {
                Some(wait) if wait.sent == row.sent && wait.received == row.received => {
                    Wait { until: at.0, ..wait }
                }
                before => {
                    if let Some(wait) = before {
                        self.answered(wait, row, at);
                    }
                    if last(row) != Last::Own || self.by_cookie.len() >= MOST_WAITS {
                        continue;
                    }
                    let start = at.0.saturating_sub(u64::from(row.sent_ago_ms) * MS).max(from);
                    Wait {
                        pid,
                        local: row.local,
                        remote: row.remote,
                        start,
                        until: at.0,
                        sent: row.sent,
                        received: row.received,
                        segments: row.segments,
                        is_owed: false,
                        counted_ns: 0,
                    }
                }
            };
            wait.is_owed = owed.get(&pid).is_some_and(|&ago_ms| ago_ms >= row.sent_ago_ms);
            if wait.is_owed {
                self.count(&mut wait, at.0);
            }
            seen.insert(row.cookie);
            self.by_cookie.insert(row.cookie, wait);
        }
        self.by_cookie.retain(|cookie, _| seen.contains(cookie));
    }

    /// The connection has changed since the wait was last seen. When the answer came is known where it was one
    /// segment, and nothing was sent since.
    fn answered(&mut self, mut wait: Wait, row: &Connection, at: MonoNs) {
        let is_one = row.sent == wait.sent && row.segments == wait.segments.wrapping_add(1);
        if wait.is_owed && is_one {
            let received = at.0.saturating_sub(u64::from(row.received_ago_ms) * MS);
            let end = received.clamp(wait.until, at.0);
            self.count(&mut wait, end);
        }
    }

    fn count(&mut self, wait: &mut Wait, end: u64) {
        if end.saturating_sub(wait.start) < LEAST_NS {
            return;
        }
        let key = self.key(wait);
        let upstream = self.upstreams.entry(key).or_default();
        upstream.local = Some(wait.local);
        upstream.waited.add(wait.start, end, &mut wait.counted_ns);
    }

    fn key(&self, wait: &Wait) -> (u32, Option<SocketAddr>) {
        let key = (wait.pid, Some(wait.remote));
        let of_process = self.upstreams.range((wait.pid, None)..).take_while(|((of, _), _)| *of == wait.pid);
        let is_one_too_many = !self.upstreams.contains_key(&key) && of_process.count() >= MOST_ADDRESSES;
        if is_one_too_many { (wait.pid, None) } else { key }
    }

    /// Looks for the processes of other ends for which requests have waited.
    fn name(&mut self, at: MonoNs, peers: &mut Peers) {
        for (&(pid, remote), upstream) in &mut self.upstreams {
            if let (Some(remote), Some(local)) = (remote, upstream.local)
                && upstream.process.is_none()
                && at.0 >= upstream.search_due
            {
                upstream.search_due = at.0.saturating_add(SEARCH_NS);
                upstream.process = peers.of_connection(pid, (local, remote));
            }
        }
    }

    fn pass(&mut self, pid: u32, at: MonoNs, take: &mut dyn FnMut(MonoNs, Reading<'_>)) {
        let of_process = self.upstreams.range_mut((pid, None)..).take_while(|((of, _), _)| *of == pid);
        for ((_, address), upstream) in of_process {
            let address = address.map_or_else(|| "others".to_owned(), |address| address.to_string());
            upstream.waited.pass(&NAMES, &address, at, take);
            if let Some(PeerProcess { pid, comm }) = &upstream.process {
                let name = format!("upstream.process {address} {comm}");
                let (kind, unit, value) =
                    (CounterKind::Level, CounterUnit::Plain, u64::from(pid.unwrap_or(0)));
                take(at, Reading { name: &name, kind, unit, value });
            }
        }
    }
}

/// Of each process the time since which its clients have waited, the longest one.
fn longest_owed(accepted: &[(u32, &Connection)]) -> HashMap<u32, u32> {
    let mut owed: HashMap<u32, u32> = HashMap::new();
    for (pid, row) in accepted {
        let waits = match last(row) {
            Last::Own => false,
            Last::Other => true,
            // An idle client looks so, too.
            Last::Unknown => row.received_ago_ms <= LATEST_ACKNOWLEDGEMENT_MS,
        };
        if waits && row.received > 0 {
            let longest = owed.entry(*pid).or_default();
            *longest = row.received_ago_ms.max(*longest);
        }
    }
    owed
}

/// Where both came within a tick, the other end may acknowledge what was sent later than it sent something itself.
/// What it sent last has the acknowledgement of all that came before.
fn last(row: &Connection) -> Last {
    if row.sent == 0 || row.received == 0 {
        return match (row.sent, row.received) {
            (0, 0) => Last::Unknown,
            (0, _) => Last::Other,
            _ => Last::Own,
        };
    }
    match row.sent_ago_ms.cmp(&row.received_ago_ms) {
        std::cmp::Ordering::Less => Last::Own,
        std::cmp::Ordering::Greater => Last::Other,
        std::cmp::Ordering::Equal => {
            let later_ms = row.sent_ago_ms.saturating_sub(row.acknowledged_ago_ms);
            match later_ms {
                1..=LATEST_ACKNOWLEDGEMENT_MS => Last::Own,
                _ => Last::Unknown,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROXY: u32 = 7;
    const LISTENS: u16 = 80;
    const TICKS: u64 = 100 * MS;

    /// Data on a connection of the proxy, by time: `(ms, bytes sent, bytes received)`, each a segment.
    struct Talk {
        cookie: u64,
        local: u16,
        remote: u16,
        data: Vec<(u32, u64, u64)>,
        closes_ms: u32,
    }

    fn talk(cookie: u64, (local, remote): (u16, u16), data: &[(u32, u64, u64)]) -> Talk {
        Talk { cookie, local, remote, data: data.to_vec(), closes_ms: u32::MAX }
    }

    /// A connection that a client made, and one that the proxy made.
    fn client(data: &[(u32, u64, u64)]) -> Talk {
        talk(1, (LISTENS, 50_000), data)
    }

    fn upstream(data: &[(u32, u64, u64)]) -> Talk {
        talk(2, (40_000, 9_000), data)
    }

    impl Talk {
        /// As the kernel lists it then. An acknowledgement comes 40 ms after what was sent, unless data does.
        fn at(&self, ms: u32) -> Option<Connection> {
            let data: Vec<_> = self.data.iter().filter(|(at, ..)| *at <= ms).collect();
            let (first, ..) = data.first().filter(|_| ms < self.closes_ms)?;
            let last = |of: fn(&(u32, u64, u64)) -> u64| {
                data.iter().rfind(|data| of(data) > 0).map_or(*first, |(at, ..)| *at)
            };
            let (sent, received) = (last(|data| data.1), last(|data| data.2));
            let is_own = data.last().is_some_and(|data| data.1 > 0);
            let acknowledged = if is_own && sent + 40 <= ms { sent + 40 } else { received };
            Some(Connection {
                inode: self.cookie as u32,
                cookie: self.cookie,
                local: SocketAddr::from(([127, 0, 0, 1], self.local)),
                remote: SocketAddr::from(([127, 0, 0, 1], self.remote)),
                listens: false,
                sent_ago_ms: ms - sent,
                received_ago_ms: ms - received,
                acknowledged_ago_ms: ms - acknowledged,
                sent: data.iter().map(|data| data.1).sum(),
                received: data.iter().map(|data| data.2).sum(),
                segments: data.iter().filter(|data| data.2 > 0).count() as u32,
            })
        }
    }

    /// What ten looks a second see of a second: requests, and for how many ms they waited, in all and the longest.
    fn seen(talks: &[Talk]) -> (u64, u64, u64) {
        let mut waits = Waits::default();
        let owners = talks.iter().map(|talk| (talk.cookie as u32, PROXY)).collect();
        let listening = HashSet::from([LISTENS]);
        for look in 0..10 {
            let rows: Vec<Connection> = talks.iter().filter_map(|talk| talk.at(look * 100 + 50)).collect();
            waits.see(MonoNs(TICKS * u64::from(look) + 50 * MS), &rows, &listening, &owners);
        }
        let all = waits.upstreams.values();
        let sum = |of: fn(&Upstream) -> u64| all.clone().map(of).sum::<u64>();
        let longest = all.clone().map(|upstream| upstream.waited.longest_ns / MS).max().unwrap_or(0);
        (sum(|upstream| upstream.waited.count), sum(|upstream| upstream.waited.total_ns) / MS, longest)
    }

    #[test]
    fn request_that_a_client_waits_for_waits_until_its_answer() {
        let asks = client(&[(110, 0, 72), (330, 90, 0)]);
        assert_eq!(seen(&[asks, upstream(&[(110, 60, 0), (330, 0, 90)])]), (1, 220, 220));
        let asks = client(&[(110, 0, 72), (330, 90, 0)]);
        let parts = upstream(&[(110, 60, 0), (320, 0, 30), (330, 0, 60)]);
        assert_eq!(seen(&[asks, parts]), (1, 140, 140), "when the first part came is not known");
        let asks = client(&[(110, 0, 72)]);
        assert_eq!(seen(&[asks, upstream(&[(110, 60, 0)])]), (1, 840, 840), "no answer");
    }

    /// As nginx does without `keepalive`.
    #[test]
    fn connection_of_one_request_waits_until_it_was_seen_last() {
        let asks = client(&[(110, 0, 72), (330, 90, 0)]);
        let one = Talk { closes_ms: 331, ..upstream(&[(110, 60, 0), (330, 0, 90)]) };
        assert_eq!(seen(&[asks, one]), (1, 140, 140));
    }

    /// Each answer is followed by the next request within the tick, on both sides.
    #[test]
    fn requests_without_a_pause_are_told_apart() {
        let asks = client(&[(100, 0, 72), (300, 90, 0), (300, 0, 72), (500, 90, 0), (500, 0, 72)]);
        let slow = upstream(&[(100, 60, 0), (300, 0, 90), (300, 60, 0), (500, 0, 90), (500, 60, 0)]);
        assert_eq!(seen(&[asks, slow]), (3, 150 + 150 + 450, 450));
    }

    #[test]
    fn quick_answers_and_idle_connections_are_none() {
        let data: Vec<_> = (0..90).flat_map(|n| [(n * 11, 60, 0), (n * 11 + 2, 0, 90)]).collect();
        let swapped: Vec<_> = (0..90).flat_map(|n| [(n * 11, 0, 72), (n * 11 + 2, 90, 0)]).collect();
        assert_eq!(seen(&[client(&swapped), upstream(&data)]), (0, 0, 0), "quick");
        let idle = [(100, 60, 0), (102, 0, 90)];
        let client_idle = [(100, 0, 72), (102, 90, 0)];
        assert_eq!(seen(&[client(&client_idle), upstream(&idle)]), (0, 0, 0), "idle");
        let in_a_tick = [(100, 60, 0), (100, 0, 90)];
        let client_in_a_tick = [(100, 0, 72), (100, 90, 0)];
        assert_eq!(seen(&[client(&client_in_a_tick), upstream(&in_a_tick)]), (0, 0, 0), "idle after a tick");
    }

    #[test]
    fn nobody_waits_for_a_consumer_or_behind_a_busy_server() {
        let polls = upstream(&[(100, 60, 0), (600, 0, 90)]);
        assert_eq!(seen(&[polls]), (0, 0, 0), "no client");
        let later = client(&[(300, 0, 72), (610, 90, 0)]);
        assert_eq!(seen(&[later, upstream(&[(100, 60, 0), (600, 0, 90)])]), (0, 0, 0), "it asked before");
        let asks = client(&[(110, 0, 72), (900, 90, 0)]);
        assert_eq!(seen(&[asks, upstream(&[(110, 60, 0), (112, 0, 90)])]), (0, 0, 0), "the server computes");
        let own = Talk { cookie: 3, ..client(&[(110, 0, 72)]) };
        assert_eq!(seen(&[own, talk(4, (LISTENS, 50_001), &[(110, 60, 0)])]), (0, 0, 0), "a client is slow");
    }

    #[test]
    fn client_in_the_servers_own_process_has_no_upstream() {
        let asks = client(&[(110, 0, 72), (330, 90, 0)]);
        let inside = talk(2, (50_000, LISTENS), &[(110, 72, 0), (330, 0, 90)]);
        assert_eq!(seen(&[asks, inside]), (0, 0, 0));
    }

    #[test]
    fn further_addresses_share_a_counter() {
        let mut talks = vec![client(&[(110, 0, 72)])];
        talks.extend((0..20).map(|n| talk(u64::from(n) + 2, (40_000, 9_000 + n), &[(110, 60, 0)])));
        let mut waits = Waits::default();
        let owners = talks.iter().map(|talk| (talk.cookie as u32, PROXY)).collect();
        for ms in [150, 250] {
            let rows: Vec<Connection> = talks.iter().filter_map(|talk| talk.at(ms)).collect();
            waits.see(MonoNs(u64::from(ms) * MS), &rows, &HashSet::from([LISTENS]), &owners);
        }
        assert_eq!(waits.upstreams.len(), MOST_ADDRESSES + 1);
        assert_eq!(waits.upstreams[&(PROXY, None)].waited.count, 4);
        waits.upstreams.values_mut().for_each(|upstream| {
            upstream.process = Some(PeerProcess { pid: Some(4711), comm: "shop".into() });
        });
        let mut passed = Vec::new();
        waits.pass(PROXY, MonoNs(250 * MS), &mut |at, reading| {
            passed.push((at.0, reading.name.to_owned(), reading.value));
        });
        let named = |at, name: &str, value| (at, name.to_owned(), value);
        assert_eq!(
            passed[..6],
            [
                named(250 * MS - 1, "upstream.waited others", 0),
                named(250 * MS - 1, "upstream.requests others", 0),
                named(250 * MS, "upstream.waited others", 4 * 100 * MS),
                named(250 * MS, "upstream.requests others", 4),
                named(250 * MS, "upstream.longest others", 100 * MS),
                named(250 * MS, "upstream.process others shop", 4711),
            ]
        );
        waits.pass(1, MonoNs(250 * MS), &mut |_, reading| panic!("{reading:?} of another process"));
    }

    /// A proxy, its client and its upstream, all of this process.
    #[test]
    fn own_request_is_found() {
        use std::io::{Read, Write};
        use std::net::{TcpListener, TcpStream};

        let [front, back] = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
        let mut client = TcpStream::connect(front.local_addr().unwrap()).unwrap();
        let (mut accepted, _) = front.accept().unwrap();
        client.write_all(b"question").unwrap();
        accepted.read_exact(&mut [0; 8]).unwrap();
        let mut made = TcpStream::connect(back.local_addr().unwrap()).unwrap();
        made.write_all(b"question").unwrap();
        let pid = std::process::id();
        let homes = BTreeMap::from([(1, pid)]);
        let mut upstreams = Upstreams::default();
        let name = format!("upstream.requests {}", back.local_addr().unwrap());
        let mut found = None;
        let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while found != Some(1) && std::time::Instant::now() < end {
            let at = clock::mono_now();
            upstreams.look(at, &homes, &|| vec![pid], true);
            upstreams.pass(pid, at, &mut |_, reading| {
                if reading.name == name {
                    found = Some(reading.value);
                }
            });
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert_eq!(found, Some(1));
    }
}
