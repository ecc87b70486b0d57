// SPDX-License-Identifier: Apache-2.0
//! The sockets of the network namespaces of recorded processes. They are listed once for all processes of a
//! namespace, since the kernel walks all its sockets for each list.

use std::collections::{BTreeMap, HashSet};

use wallprof_model::MonoNs;
use wallprof_probe::clock;

use super::netlink::{IPV4, IPV6, Protocol, SocketList, SocketRow};
use super::pace::Pace;
use super::stock::Stock;

/// A kind of sockets of which none was found is listed again after this time, and then more and more rarely.
/// A process may have such a socket already, and bind or connect it later.
const REST_NS: u64 = 2_000_000_000;
const LONGEST_REST_NS: u64 = 16_000_000_000;
/// Up to this many sockets are read one by one.
const FEW: usize = 32;
/// All sockets are listed at least this often,
const LIST_NS: u64 = 8_000_000_000;
/// and this often where their number has not changed, since one may have taken another's place.
const LIST_SAME_NS: u64 = 32_000_000_000;
/// A namespace whose sockets cannot be listed is tried again after this time.
const RETRY_NS: u64 = 10_000_000_000;

/// A network namespace, by the inode of its file.
pub type NamespaceId = u64;

/// All network namespaces of recorded processes.
#[derive(Default)]
pub struct Namespaces {
    by_id: BTreeMap<NamespaceId, Namespace>,
}

/// One namespace, as last listed.
struct Namespace {
    /// `None`: the kernel refused, or answered with an error.
    list: Option<SocketList>,
    stock: Stock,
    opening: Pace,
    sides: [Side; 4],
    listed: Option<MonoNs>,
}

/// One kind of sockets.
struct Side {
    protocol: Protocol,
    family: u8,
    pace: Pace,
    rest_ns: u64,
    /// The time when all were listed, and their number. `None` where the kernel does not report it.
    listed: Option<MonoNs>,
    count: Option<u64>,
    rows: Vec<SocketRow>,
}

impl Namespaces {
    /// Lists the kinds that are due in the namespaces of these processes, and keeps the sockets with these
    /// inodes. Forgets other namespaces.
    pub fn look(&mut self, at: MonoNs, homes: &BTreeMap<NamespaceId, u32>, wanted: &HashSet<u32>) {
        self.by_id.retain(|id, _| homes.contains_key(id));
        for (&id, &pid) in homes {
            self.by_id.entry(id).or_insert_with(|| Namespace::of(pid)).look(at, pid, wanted);
        }
    }

    /// The processes have other sockets than before. All are listed when that is due again, and kinds of
    /// which there were none at once.
    pub fn expect_changes(&mut self) {
        let sides = self.by_id.values_mut().flat_map(|namespace| &mut namespace.sides);
        sides.for_each(Side::expect_changes);
    }

    /// The sockets of a namespace, if any were listed at `at`.
    pub fn listed_at(
        &self,
        at: MonoNs,
        id: NamespaceId,
    ) -> Option<impl Iterator<Item = (Protocol, &SocketRow)>> {
        let namespace = self.by_id.get(&id).filter(|namespace| namespace.listed == Some(at))?;
        Some(namespace.sides.iter().flat_map(|side| side.rows.iter().map(|row| (side.protocol, row))))
    }
}

impl Namespace {
    fn of(pid: u32) -> Self {
        let side = |protocol, family| Side {
            protocol,
            family,
            pace: Pace::default(),
            rest_ns: REST_NS,
            listed: None,
            count: None,
            rows: Vec::new(),
        };
        Namespace {
            list: None,
            stock: Stock::of_process(pid),
            opening: Pace::default(),
            sides: [
                side(Protocol::Udp, IPV4),
                side(Protocol::Udp, IPV6),
                side(Protocol::Tcp, IPV4),
                side(Protocol::Tcp, IPV6),
            ],
            listed: None,
        }
    }

    /// `pid` is a process in the namespace.
    fn look(&mut self, at: MonoNs, pid: u32, wanted: &HashSet<u32>) {
        if self.list.is_none() && self.opening.is_due(at) {
            self.list = SocketList::of_process(pid).ok();
            self.opening.rest(at, RETRY_NS);
        }
        for side in &mut self.sides {
            if let Some(list) = &mut self.list
                && side.pace.is_due(at)
            {
                self.listed = Some(at);
                if !side.look(list, &mut self.stock, wanted, at) {
                    self.list = None;
                }
            }
        }
    }
}

impl Side {
    fn expect_changes(&mut self) {
        (self.listed, self.rest_ns) = (None, REST_NS);
        if self.rows.is_empty() {
            self.pace = Pace::default();
        }
    }

    /// False when the kernel did not answer.
    fn look(&mut self, list: &mut SocketList, stock: &mut Stock, wanted: &HashSet<u32>, at: MonoNs) -> bool {
        let began = clock::thread_cpu_ns();
        let count = stock.count(self.protocol, self.family);
        let answered = self.look_at_few(list, count, at) || self.list(list, count, wanted, at);
        self.pace.took(at, clock::thread_cpu_ns().saturating_sub(began));
        if self.rows.is_empty() {
            self.pace.rest(at, self.rest_ns);
            self.rest_ns = (self.rest_ns * 2).min(LONGEST_REST_NS);
        }
        answered
    }

    /// False when all sockets must be listed.
    fn look_at_few(&mut self, list: &mut SocketList, count: Option<u64>, at: MonoNs) -> bool {
        let are_as_many = count.is_some() && count == self.count;
        let fresh_ns = if are_as_many { LIST_SAME_NS } else { LIST_NS };
        let is_fresh = self.listed.is_some_and(|listed| at.0 < listed.0.saturating_add(fresh_ns));
        if !is_fresh || self.rows.len() > FEW || (self.rows.is_empty() && !are_as_many) {
            return false;
        }
        let (protocol, family) = (self.protocol, self.family);
        self.rows.iter_mut().all(|row| match list.find(protocol, family, row) {
            Ok(Some(now)) => {
                *row = now;
                true
            }
            _ => false,
        })
    }

    /// False when the kernel did not answer.
    fn list(&mut self, list: &mut SocketList, count: Option<u64>, wanted: &HashSet<u32>, at: MonoNs) -> bool {
        let listed = if count == Some(0) { Ok(Vec::new()) } else { list.list(self.protocol, self.family) };
        let answered = listed.is_ok();
        self.rows = listed.unwrap_or_default();
        self.rows.retain(|row| wanted.contains(&row.inode));
        (self.listed, self.count) = (Some(at), count);
        answered
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn inode(socket: &UdpSocket) -> u32 {
        fs::metadata(format!("/proc/self/fd/{}", socket.as_raw_fd())).unwrap().ino() as u32
    }

    fn udp_inodes(namespaces: &Namespaces, at: u64) -> Option<Vec<u32>> {
        let rows = namespaces.listed_at(MonoNs(at), 7)?;
        Some(rows.filter(|(protocol, _)| *protocol == Protocol::Udp).map(|(_, row)| row.inode).collect())
    }

    #[test]
    fn wanted_sockets_are_listed_when_they_are_due() {
        let [wanted, other] = [0, 1].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
        let homes = BTreeMap::from([(7, std::process::id())]);
        let mut namespaces = Namespaces::default();
        namespaces.look(MonoNs(1), &homes, &HashSet::from([inode(&wanted)]));
        assert_eq!(udp_inodes(&namespaces, 1), Some(vec![inode(&wanted)]));
        namespaces.look(MonoNs(2), &homes, &HashSet::from([inode(&wanted)]));
        assert_eq!(udp_inodes(&namespaces, 2), None, "not due yet");
        namespaces.look(MonoNs(40_000_000_000), &homes, &HashSet::from([inode(&other)]));
        assert_eq!(udp_inodes(&namespaces, 40_000_000_000), Some(vec![inode(&other)]));
        namespaces.look(MonoNs(80_000_000_000), &BTreeMap::new(), &HashSet::new());
        assert!(namespaces.by_id.is_empty());
    }

    #[test]
    fn first_socket_of_a_kind_is_found_at_once() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let homes = BTreeMap::from([(7, std::process::id())]);
        let mut namespaces = Namespaces::default();
        namespaces.look(MonoNs(1), &homes, &HashSet::new());
        assert_eq!(udp_inodes(&namespaces, 1), Some(vec![]));
        namespaces.expect_changes();
        namespaces.look(MonoNs(2), &homes, &HashSet::from([inode(&socket)]));
        assert_eq!(udp_inodes(&namespaces, 2), Some(vec![inode(&socket)]));
    }
    #[test]
    fn list_holds_longer_while_the_number_is_unchanged() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut list = SocketList::of_process(std::process::id()).unwrap();
        let mut namespace = Namespace::of(std::process::id());
        let [side, ..] = &mut namespace.sides;
        let wanted = HashSet::from([inode(&socket)]);
        assert!(side.list(&mut list, Some(5), &wanted, MonoNs(1)));
        assert_eq!(side.rows.len(), 1);
        let mut holds = |count, at| side.look_at_few(&mut list, count, MonoNs(at));
        assert!(holds(Some(5), LIST_NS + 1) && !holds(Some(6), LIST_NS + 1) && !holds(None, LIST_NS + 1));
        assert!(holds(Some(6), LIST_NS) && !holds(Some(5), LIST_SAME_NS + 1));
        side.rows.clear();
        let mut holds = |count| side.look_at_few(&mut list, count, MonoNs(2));
        assert!(holds(Some(5)) && !holds(Some(6)) && !holds(None), "a wanted one may be bound by now");
    }

    #[test]
    fn nothing_is_listed_without_sockets() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut list = SocketList::of_process(std::process::id()).unwrap();
        let [mut side, ..] = Namespace::of(std::process::id()).sides;
        assert!(side.list(&mut list, Some(0), &HashSet::from([inode(&socket)]), MonoNs(1)));
        assert!(side.rows.is_empty() && side.listed.is_some());
    }
}
