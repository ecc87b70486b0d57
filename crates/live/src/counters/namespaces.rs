//! The sockets of the network namespaces that recorded processes are in: listed once for all of them, since the kernel
//! walks all its sockets for each list.

use std::collections::{BTreeMap, HashSet};

use wallprof_model::MonoNs;
use wallprof_probe::clock;

use super::netlink::{IPV4, IPV6, Protocol, SocketList, SocketRow};
use super::pace::Pace;

/// Where no socket of a kind was found it is looked for this seldom, and then more and more so: a process may have it
/// already, and bind or connect it later.
const REST_NS: u64 = 2_000_000_000;
const LONGEST_REST_NS: u64 = 16_000_000_000;
/// So few sockets are looked at one by one,
const FEW: usize = 32;
/// but all are listed this often.
const LIST_NS: u64 = 8_000_000_000;
/// A namespace whose sockets cannot be listed is tried again this seldom.
const RETRY_NS: u64 = 10_000_000_000;

/// A network namespace, by the inode of its file.
pub type NamespaceId = u64;

/// All network namespaces of recorded processes.
#[derive(Default)]
pub struct Namespaces {
    by_id: BTreeMap<NamespaceId, Namespace>,
}

/// One of them, as last listed.
struct Namespace {
    /// `None`: the kernel did not let us, or answered with an error.
    list: Option<SocketList>,
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
    /// When all were listed.
    listed: Option<MonoNs>,
    rows: Vec<SocketRow>,
}

impl Namespaces {
    /// Lists what is due where these processes are, of the sockets with these inodes. Others are forgotten.
    pub fn look(&mut self, at: MonoNs, homes: &BTreeMap<NamespaceId, u32>, wanted: &HashSet<u32>) {
        self.by_id.retain(|id, _| homes.contains_key(id));
        for (&id, &pid) in homes {
            self.by_id.entry(id).or_insert_with(Namespace::new).look(at, pid, wanted);
        }
    }

    /// There are other sockets than before: all are listed when it is time again, those of which there were none at
    /// once.
    pub fn expect_news(&mut self) {
        let sides = self.by_id.values_mut().flat_map(|namespace| &mut namespace.sides);
        sides.for_each(Side::expect_news);
    }

    /// What is known of a namespace's sockets, where something was listed at `at`.
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
    fn new() -> Self {
        let side = |protocol, family| Side {
            protocol,
            family,
            pace: Pace::default(),
            rest_ns: REST_NS,
            listed: None,
            rows: Vec::new(),
        };
        Namespace {
            list: None,
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

    /// `pid` is a process in it.
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
                if !side.look(list, wanted, at) {
                    self.list = None;
                }
            }
        }
    }
}

impl Side {
    fn expect_news(&mut self) {
        (self.listed, self.rest_ns) = (None, REST_NS);
        if self.rows.is_empty() {
            self.pace = Pace::default();
        }
    }

    /// False when the kernel did not answer.
    fn look(&mut self, list: &mut SocketList, wanted: &HashSet<u32>, at: MonoNs) -> bool {
        let began = clock::thread_cpu_ns();
        let answered = self.look_at_few(list, at) || self.list(list, wanted, at);
        self.pace.took(at, clock::thread_cpu_ns().saturating_sub(began));
        if self.rows.is_empty() {
            self.pace.rest(at, self.rest_ns);
            self.rest_ns = (self.rest_ns * 2).min(LONGEST_REST_NS);
        }
        answered
    }

    /// False when all must be listed.
    fn look_at_few(&mut self, list: &mut SocketList, at: MonoNs) -> bool {
        let is_fresh = self.listed.is_some_and(|listed| at.0 < listed.0.saturating_add(LIST_NS));
        if !is_fresh || self.rows.is_empty() || self.rows.len() > FEW {
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
    fn list(&mut self, list: &mut SocketList, wanted: &HashSet<u32>, at: MonoNs) -> bool {
        let listed = list.list(self.protocol, self.family);
        let answered = listed.is_ok();
        self.rows = listed.unwrap_or_default();
        self.rows.retain(|row| wanted.contains(&row.inode));
        self.listed = Some(at);
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
        namespaces.look(MonoNs(20_000_000_000), &homes, &HashSet::from([inode(&other)]));
        assert_eq!(udp_inodes(&namespaces, 20_000_000_000), Some(vec![inode(&other)]));
        namespaces.look(MonoNs(40_000_000_000), &BTreeMap::new(), &HashSet::new());
        assert!(namespaces.by_id.is_empty());
    }

    #[test]
    fn a_new_socket_of_a_kind_that_was_missing_is_found_at_once() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let homes = BTreeMap::from([(7, std::process::id())]);
        let mut namespaces = Namespaces::default();
        namespaces.look(MonoNs(1), &homes, &HashSet::new());
        assert_eq!(udp_inodes(&namespaces, 1), Some(vec![]));
        namespaces.expect_news();
        namespaces.look(MonoNs(2), &homes, &HashSet::from([inode(&socket)]));
        assert_eq!(udp_inodes(&namespaces, 2), Some(vec![inode(&socket)]));
    }
}
