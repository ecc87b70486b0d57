// SPDX-License-Identifier: Apache-2.0
//! How long connections wait for a server to accept them: all of its workers are busy, its event loop does not come
//! back, or it takes no more of them at a time. Nothing in the server shows that somebody waits.
//!
//! The evidence is in the kernel's list of connections: one that no process has accepted has no inode.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;

use wallprof_model::MonoNs;

use super::Reading;
use super::namespaces::NamespaceId;
use super::netlink::Connection;
use super::waited::{Names, Waited};

/// Connections that are followed at a time.
const MOST_WAITS: usize = 4096;
/// Addresses of a process that have counters.
const MOST_ADDRESSES: usize = 16;

const MS: u64 = 1_000_000;

const NAMES: Names = Names { total: "accept.waited", count: "accept.connections", longest: "accept.longest" };

/// The connections that wait, and what has waited.
#[derive(Debug, Default)]
pub struct Accepts {
    /// Nothing is counted before.
    from: Option<MonoNs>,
    by_cookie: HashMap<(NamespaceId, u64), Wait>,
    /// By process and the address at which it listens.
    listeners: BTreeMap<(u32, SocketAddr), Waited>,
}

/// A connection that is not accepted yet.
#[derive(Debug)]
struct Wait {
    start: u64,
    counted_ns: u64,
}

/// By port, the processes that listen, and where.
fn listeners(rows: &[Connection], owners: &HashMap<u32, u32>) -> HashMap<u16, Vec<(u32, SocketAddr)>> {
    let mut by_port: HashMap<u16, Vec<(u32, SocketAddr)>> = HashMap::new();
    for row in rows.iter().filter(|row| row.listens) {
        if let Some(&pid) = owners.get(&row.inode) {
            by_port.entry(row.local.port()).or_default().push((pid, row.local));
        }
    }
    by_port
}

fn listens_at(listener: SocketAddr, local: SocketAddr) -> bool {
    listener.ip().is_unspecified() || listener.ip() == local.ip()
}

/// Whether no process has accepted it.
pub fn waits(row: &Connection) -> bool {
    !row.listens && row.inode == 0
}

impl Accepts {
    /// `listed`: the connections of each network namespace. `owners`: the processes that have the sockets with these
    /// inodes. Returns whether a connection waits for one of the processes.
    pub fn see(
        &mut self,
        at: MonoNs,
        listed: &[(NamespaceId, &[Connection])],
        owners: &HashMap<u32, u32>,
    ) -> bool {
        let from = self.from.get_or_insert(at).0;
        let mut seen = HashSet::new();
        for (home, rows) in listed {
            let listeners = listeners(rows, owners);
            for row in rows.iter().filter(|row| waits(row)) {
                let of_port = listeners.get(&row.local.port()).into_iter().flatten();
                let mut of_row = of_port.filter(|(_, address)| listens_at(*address, row.local));
                let Some(listener) = of_row.next() else { continue };
                let key = (*home, row.cookie);
                let is_known = self.by_cookie.contains_key(&key);
                let is_one_too_many = !is_known && self.by_cookie.len() >= MOST_WAITS
                    || !self.listeners.contains_key(listener) && self.count_of(listener.0) >= MOST_ADDRESSES;
                if is_one_too_many {
                    continue;
                }
                // What was received last came with the request, or is the connection itself.
                let start = at.0.saturating_sub(u64::from(row.received_ago_ms) * MS).max(from);
                let wait = self.by_cookie.entry(key).or_insert(Wait { start, counted_ns: 0 });
                let waited = self.listeners.entry(*listener).or_default();
                waited.add(wait.start, at.0, &mut wait.counted_ns);
                seen.insert(key);
            }
        }
        self.by_cookie.retain(|key, _| seen.contains(key));
        !seen.is_empty()
    }

    fn count_of(&self, pid: u32) -> usize {
        self.listeners.keys().filter(|(of, _)| *of == pid).count()
    }

    /// Passes the counters of a process.
    pub fn pass(&mut self, pid: u32, at: MonoNs, take: &mut dyn FnMut(MonoNs, Reading<'_>)) {
        for ((of, address), waited) in &mut self.listeners {
            if *of == pid && waited.count > 0 {
                waited.pass(&NAMES, address, at, take);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: u32 = 7;
    const LISTENS: u16 = 80;
    const HOME: NamespaceId = 1;

    fn row(inode: u32, cookie: u64, local: u16, received_ago_ms: u32) -> Connection {
        Connection {
            inode,
            cookie,
            local: SocketAddr::from(([127, 0, 0, 1], local)),
            remote: SocketAddr::from(([127, 0, 0, 1], 50_000)),
            listens: false,
            sent_ago_ms: received_ago_ms,
            received_ago_ms,
            acknowledged_ago_ms: received_ago_ms,
            sent: 0,
            received: 72,
            segments: 1,
        }
    }

    fn listener() -> Connection {
        Connection { listens: true, received: 0, segments: 0, ..row(1, 1, LISTENS, 0) }
    }

    /// What looks at these times see: connections that waited, and for how many ms, in all and the longest.
    fn seen(looks: &[(u64, &[Connection])]) -> (u64, u64, u64) {
        let owners = HashMap::from([(1, SERVER), (9, SERVER)]);
        let mut accepts = Accepts::default();
        accepts.see(MonoNs(0), &[(HOME, &[listener()])], &owners);
        for (ms, waiting) in looks {
            accepts.see(MonoNs(ms * MS), &[(HOME, &[&[listener()], *waiting].concat())], &owners);
        }
        let mut values = BTreeMap::new();
        accepts.pass(SERVER, MonoNs(1_000 * MS), &mut |_, reading| {
            values.insert(reading.name.to_owned(), reading.value);
        });
        let value = |name: &str| values.get(&format!("{name} 127.0.0.1:80")).copied().unwrap_or(0);
        (value("accept.connections"), value("accept.waited") / MS, value("accept.longest") / MS)
    }

    #[test]
    fn connection_waits_until_it_was_last_seen_without_a_process() {
        let looks: [(u64, &[Connection]); 4] = [
            (100, &[row(0, 5, LISTENS, 40)]),
            (200, &[row(0, 5, LISTENS, 140), row(0, 6, LISTENS, 20)]),
            (300, &[row(9, 5, LISTENS, 240), row(0, 6, LISTENS, 120)]),
            (400, &[]),
        ];
        assert_eq!(seen(&looks), (2, 140 + 120, 140));
        assert_eq!(seen(&[(100, &[row(0, 5, LISTENS, 5_000)])]), (1, 100, 100), "not before the recording");
        assert_eq!(
            seen(&[(100, &[row(0, 5, LISTENS, 40)]), (200, &[row(0, 5, LISTENS, 10)])]),
            (1, 140, 140)
        );
    }

    #[test]
    fn accepted_quick_and_foreign_connections_are_none() {
        assert_eq!(seen(&[(100, &[row(9, 5, LISTENS, 40)])]), (0, 0, 0), "accepted");
        assert_eq!(seen(&[(100, &[row(0, 5, LISTENS, 9)])]), (0, 0, 0), "quick");
        assert_eq!(seen(&[(100, &[row(0, 5, 81, 40)])]), (0, 0, 0), "another's");
    }

    /// Each container may have a server at the same port, and a machine one at each of its addresses.
    #[test]
    fn connection_waits_for_the_server_at_its_own_address_and_namespace() {
        let owners = HashMap::from([(1, SERVER), (2, 8), (3, 9)]);
        let at =
            |inode, ip: [u8; 4]| Connection { inode, local: SocketAddr::from((ip, LISTENS)), ..listener() };
        let here = [at(2, [10, 0, 0, 1]), at(1, [127, 0, 0, 1]), row(0, 5, LISTENS, 40)];
        let there = [at(3, [0, 0, 0, 0]), row(0, 5, LISTENS, 40)];
        let mut accepts = Accepts::default();
        accepts.see(MonoNs(0), &[(HOME, &here), (2, &there)], &owners);
        accepts.see(MonoNs(100 * MS), &[(HOME, &here), (2, &there)], &owners);
        let pids: Vec<(u32, u64)> =
            accepts.listeners.iter().map(|((pid, _), waited)| (*pid, waited.count)).collect();
        assert_eq!(pids, [(SERVER, 1), (9, 1)]);
    }

    #[test]
    fn own_connection_waits_until_it_is_accepted() {
        use std::io::Write;
        use std::net::{TcpListener, TcpStream};
        use std::os::fd::AsRawFd;

        use super::super::netlink::{IPV4, SocketList};
        use std::os::unix::fs::MetadataExt;

        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.write_all(b"question").unwrap();
        let file = std::fs::metadata(format!("/proc/self/fd/{}", listener.as_raw_fd())).unwrap();
        let owners = HashMap::from([(file.ino() as u32, SERVER)]);
        let mut list = SocketList::of_process(std::process::id()).unwrap();
        let mut accepts = Accepts::default();
        assert!(accepts.see(MonoNs(0), &[(HOME, &list.connections(IPV4).unwrap())], &owners));
        let _accepted = listener.accept().unwrap();
        assert!(!accepts.see(MonoNs(1), &[(HOME, &list.connections(IPV4).unwrap())], &owners));
    }
}
