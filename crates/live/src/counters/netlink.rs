// SPDX-License-Identifier: Apache-2.0
//! The kernel's list of sockets: sock_diag(7). Its messages are in linux/inet_diag.h and linux/netlink.h.

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const FLAG_REQUEST: u16 = 0x1;
const FLAGS_DUMP: u16 = 0x300;
const MESSAGE_ERROR: u16 = 2;
const MESSAGE_DONE: u16 = 3;
/// The attribute with `SK_MEMINFO_…`, and the bit that requests it.
const ATTRIBUTE_MEMORY: u16 = 7;
const ASK_MEMORY: u8 = 1 << (ATTRIBUTE_MEMORY - 1);
/// `SK_MEMINFO_DROPS`.
const MEMORY_DROPS: usize = 8;
/// All states but TIME_WAIT, in which a socket has no owner.
const STATES: u32 = !(1 << 6);
/// The attribute with `struct tcp_info` (linux/tcp.h), and the bit that requests it.
const ATTRIBUTE_TCP: u16 = 2;
const ASK_TCP: u8 = 1 << (ATTRIBUTE_TCP - 1);
/// The states of `include/net/tcp_states.h` that [`SocketList::connections`] lists.
const ESTABLISHED: u8 = 1;
const CLOSE_WAIT: u8 = 8;
const LISTEN: u8 = 10;
const CONNECTED: u32 = 1 << ESTABLISHED | 1 << CLOSE_WAIT | 1 << LISTEN;

const HEADER_BYTES: usize = 16;
const REQUEST_BYTES: usize = HEADER_BYTES + 56;
const ROW_BYTES: usize = 72;
/// `struct inet_diag_sockid`: both addresses, the device, and a cookie that is unique to the socket.
const ID_BYTES: usize = 48;
/// The kernel's answers have at most 32 KiB.
const ANSWER_BYTES: usize = 64 << 10;
/// Further answers are not read: this is some hundred thousand sockets.
const MOST_ANSWERS: usize = 1000;

pub const IPV4: u8 = 2;
pub const IPV6: u8 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Tcp = 6,
    Udp = 17,
}

/// A socket as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketRow {
    pub inode: u32,
    /// The kernel's id of the socket.
    pub id: [u8; ID_BYTES],
    pub local: (IpAddr, u16),
    /// It waits for connections.
    pub listens: bool,
    /// Bytes that have not been read. For a listening socket, connections that have not been accepted.
    pub queue: u32,
    /// Packets or connections that were dropped because the queue was full.
    pub drops: u32,
}

/// A TCP connection, or a socket that waits for connections, as the kernel lists it. Its times have the
/// resolution of the kernel's tick.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    pub inode: u32,
    /// Unique to the socket.
    pub cookie: u64,
    pub local: SocketAddr,
    pub remote: SocketAddr,
    /// It waits for connections: the rest is 0.
    pub listens: bool,
    /// How long ago data was sent and received last, and an acknowledgement was received.
    pub sent_ago_ms: u32,
    pub received_ago_ms: u32,
    pub acknowledged_ago_ms: u32,
    /// Bytes.
    pub sent: u64,
    pub received: u64,
    /// Segments with data that were received.
    pub segments: u32,
}

/// Requests for the sockets of one network namespace.
pub struct SocketList {
    socket: OwnedFd,
    answer: Vec<u8>,
}

impl SocketList {
    /// The namespace of a process, which may be in a container.
    pub fn of_process(pid: u32) -> io::Result<Self> {
        let theirs = format!("/proc/{pid}/ns/net");
        let is_ours = same_link(Path::new(&theirs), Path::new("/proc/self/ns/net"));
        let socket = if is_ours { open()? } else { open_in(File::open(theirs)?)? };
        Ok(SocketList { socket, answer: vec![0; ANSWER_BYTES] })
    }

    /// All sockets of a protocol and an address family. The kernel walks its table of all of them, which
    /// takes hundreds of µs on a large machine.
    pub fn list(&mut self, protocol: Protocol, family: u8) -> io::Result<Vec<SocketRow>> {
        self.ask(&request(protocol, family, None))?;
        self.receive_all(row_from_message)
    }

    /// The TCP connections of an address family with what was sent and received last, and the sockets that wait
    /// for connections. As costly as [`SocketList::list`].
    pub fn connections(&mut self, family: u8) -> io::Result<Vec<Connection>> {
        let mut bytes = request(Protocol::Tcp, family, None);
        bytes[18] = ASK_TCP;
        bytes[20..24].copy_from_slice(&CONNECTED.to_ne_bytes());
        self.ask(&bytes)?;
        self.receive_all(connection_from_message)
    }

    fn receive_all<T>(&mut self, row: impl Fn(&[u8]) -> Option<T>) -> io::Result<Vec<T>> {
        let mut rows = Vec::new();
        for _ in 0..MOST_ANSWERS {
            let (len, _) = recv(self.socket.as_fd(), &mut self.answer[..], RecvFlags::empty())?;
            if rows_from_answer(&self.answer[..len], &row, &mut rows) == Answer::Last {
                return Ok(rows);
            }
        }
        Err(io::Error::other("more sockets than are read"))
    }

    /// A socket that was listed before, as it is now. `None` when it is closed, or when it shares its address
    /// with others (SO_REUSEPORT).
    pub fn find(
        &mut self,
        protocol: Protocol,
        family: u8,
        known: &SocketRow,
    ) -> io::Result<Option<SocketRow>> {
        let mut rows = Vec::new();
        self.ask(&request(protocol, family, Some(&known.id)))?;
        self.receive(&mut rows)?;
        Ok(rows.pop().filter(|row| row.inode == known.inode))
    }

    /// The inode of the TCP socket with these addresses, or of the one that listens at `local`.
    pub fn tcp_at(&mut self, local: SocketAddr, remote: SocketAddr) -> io::Result<Option<u32>> {
        let mut id = [0; ID_BYTES];
        id[..2].copy_from_slice(&local.port().to_be_bytes());
        id[2..4].copy_from_slice(&remote.port().to_be_bytes());
        let family = match (local.ip(), remote.ip()) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => {
                id[4..8].copy_from_slice(&local.octets());
                id[20..24].copy_from_slice(&remote.octets());
                IPV4
            }
            (IpAddr::V6(local), IpAddr::V6(remote)) => {
                id[4..20].copy_from_slice(&local.octets());
                id[20..36].copy_from_slice(&remote.octets());
                IPV6
            }
            _ => return Ok(None),
        };
        // INET_DIAG_NOCOOKIE
        id[40..].fill(0xff);
        let mut rows = Vec::new();
        self.ask(&request(Protocol::Tcp, family, Some(&id)))?;
        self.receive(&mut rows)?;
        // A connection that was closed has none.
        Ok(rows.pop().map(|row| row.inode).filter(|&inode| inode != 0))
    }

    fn ask(&mut self, request: &[u8]) -> io::Result<()> {
        Ok(send(&self.socket, request, SendFlags::empty()).map(drop)?)
    }

    fn receive(&mut self, rows: &mut Vec<SocketRow>) -> io::Result<Answer> {
        let (len, _) = recv(self.socket.as_fd(), &mut self.answer[..], RecvFlags::empty())?;
        Ok(rows_from_answer(&self.answer[..len], row_from_message, rows))
    }
}

fn same_link(one: &Path, other: &Path) -> bool {
    matches!((one.read_link(), other.read_link()), (Ok(one), Ok(other)) if one == other)
}

fn open() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(netlink::SOCK_DIAG))?)
}

/// A socket stays in the namespace in which it was opened. A thread enters the namespace, opens it and ends.
fn open_in(namespace: File) -> io::Result<OwnedFd> {
    let there = std::thread::spawn(move || {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        open()
    });
    there.join().unwrap_or_else(|_| Err(io::Error::other("the thread that opens it failed")))
}

/// `struct nlmsghdr` and `struct inet_diag_req_v2`: for all sockets, or for one.
fn request(protocol: Protocol, family: u8, id: Option<&[u8; ID_BYTES]>) -> [u8; REQUEST_BYTES] {
    let mut bytes = [0; REQUEST_BYTES];
    bytes[..4].copy_from_slice(&(REQUEST_BYTES as u32).to_ne_bytes());
    bytes[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    let flags = if id.is_some() { FLAG_REQUEST } else { FLAG_REQUEST | FLAGS_DUMP };
    bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
    bytes[16..19].copy_from_slice(&[family, protocol as u8, ASK_MEMORY]);
    bytes[20..24].copy_from_slice(&STATES.to_ne_bytes());
    if let Some(id) = id {
        let buffer = &mut bytes[REQUEST_BYTES - ID_BYTES..];
        buffer.copy_from_slice(id);
        // The kernel looks a UDP socket up as it would for a packet that arrives: its own address is the
        // destination (net/ipv4/udp_diag.c, udp_dump_one).
        if protocol == Protocol::Udp {
            buffer[..2].copy_from_slice(&id[2..4]);
            buffer[2..4].copy_from_slice(&id[..2]);
            buffer[4..20].copy_from_slice(&id[20..36]);
            buffer[20..36].copy_from_slice(&id[4..20]);
        }
    }
    bytes
}

#[derive(Debug, PartialEq, Eq)]
enum Answer {
    More,
    Last,
}

/// Messages are aligned to four bytes. A message with an impossible length ends the answer.
fn rows_from_answer<T>(mut bytes: &[u8], row: impl Fn(&[u8]) -> Option<T>, rows: &mut Vec<T>) -> Answer {
    while let (Some(len), Some(kind)) = (u32_at(bytes, 0), u16_at(bytes, 4)) {
        if matches!(kind, MESSAGE_DONE | MESSAGE_ERROR) {
            return Answer::Last;
        }
        let len = len as usize;
        let Some(message) = bytes.get(HEADER_BYTES..len) else { return Answer::Last };
        rows.extend(row(message));
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    Answer::More
}

/// `struct inet_diag_msg` and the attributes behind it.
fn row_from_message(message: &[u8]) -> Option<SocketRow> {
    let (head, attributes) = message.split_at_checked(ROW_BYTES)?;
    let address = address_at(head, 8)?;
    Some(SocketRow {
        inode: u32_at(head, 68)?,
        id: head[4..4 + ID_BYTES].try_into().ok()?,
        local: (address, u16::from_be_bytes([head[4], head[5]])),
        listens: head[1] == LISTEN,
        queue: u32_at(head, 56)?,
        drops: drops_from_attributes(attributes).unwrap_or(0),
    })
}

/// As [`row_from_message`]. `None` without its `tcp_info`, unless it listens.
fn connection_from_message(message: &[u8]) -> Option<Connection> {
    let (head, attributes) = message.split_at_checked(ROW_BYTES)?;
    let port = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let listens = head[1] == LISTEN;
    let info = attribute(attributes, ATTRIBUTE_TCP).filter(|_| !listens);
    if info.is_none() && !listens {
        return None;
    }
    let number = |at: usize| info.map_or(Some(0), |info| u32_at(info, at));
    let long = |at: usize| info.map_or(Some(0), |info| u64_at(info, at));
    Some(Connection {
        inode: u32_at(head, 68)?,
        cookie: u64_at(head, 44)?,
        local: SocketAddr::new(address_at(head, 8)?, port(4)),
        remote: SocketAddr::new(address_at(head, 24)?, port(6)),
        listens,
        sent_ago_ms: number(44)?,
        received_ago_ms: number(52)?,
        acknowledged_ago_ms: number(56)?,
        sent: long(200)?,
        received: long(128)?,
        segments: number(152)?,
    })
}

/// The address at this position of a row. An IPv4 address in an IPv6 socket is IPv4.
fn address_at(head: &[u8], at: usize) -> Option<IpAddr> {
    let address: [u8; 16] = head.get(at..at + 16)?.try_into().ok()?;
    Some(match head[0] {
        IPV4 => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(&address[..4]).ok()?)),
        _ => IpAddr::V6(Ipv6Addr::from(address)).to_canonical(),
    })
}

fn drops_from_attributes(bytes: &[u8]) -> Option<u32> {
    u32_at(attribute(bytes, ATTRIBUTE_MEMORY)?, MEMORY_DROPS * 4)
}

fn attribute(mut bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let (len, kind) = (usize::from(u16_at(bytes, 0)?), u16_at(bytes, 2)?);
        let content = bytes.get(4..len)?;
        if kind == wanted {
            return Some(content);
        }
        bytes = bytes.get(len.next_multiple_of(4)..)?;
    }
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::unix::fs::MetadataExt;

    fn message(kind: u16, content: &[u8]) -> Vec<u8> {
        let len = HEADER_BYTES + content.len();
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&(len as u32).to_ne_bytes());
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes.extend(content);
        bytes.resize(len.next_multiple_of(4), 0);
        bytes
    }

    fn row() -> Vec<u8> {
        let mut row = vec![0; ROW_BYTES];
        (row[0], row[1], row[4], row[5]) = (IPV4, 10, 0x0f, 0xa0);
        row[8..12].copy_from_slice(&[127, 0, 0, 1]);
        row[56..60].copy_from_slice(&7u32.to_ne_bytes());
        row[68..72].copy_from_slice(&99u32.to_ne_bytes());
        // An attribute of five bytes, padded, and the requested one.
        row.extend([5, 0, 1, 0, 42, 0, 0, 0, 40, 0, 7, 0]);
        row.extend((0..9u32).flat_map(u32::to_ne_bytes));
        row
    }

    #[test]
    fn rows_come_out_of_messages() {
        let mut bytes = message(SOCK_DIAG_BY_FAMILY, &row());
        bytes.extend(message(SOCK_DIAG_BY_FAMILY, &row()[..ROW_BYTES]));
        let mut rows = Vec::new();
        assert_eq!(rows_from_answer(&bytes, row_from_message, &mut rows), Answer::More);
        let local = (IpAddr::V4(Ipv4Addr::LOCALHOST), 4000);
        let id = row()[4..52].try_into().unwrap();
        let expected = SocketRow { inode: 99, id, local, listens: true, queue: 7, drops: 8 };
        assert_eq!(rows, [expected.clone(), SocketRow { drops: 0, ..expected }]);
        assert_eq!(
            rows_from_answer(&message(MESSAGE_DONE, &[0; 4]), row_from_message, &mut rows),
            Answer::Last
        );
    }

    #[test]
    fn damaged_answers_end() {
        let whole = message(SOCK_DIAG_BY_FAMILY, &row());
        for len in 0..whole.len() {
            let mut rows = Vec::new();
            rows_from_answer(&whole[..len], row_from_message, &mut rows);
            assert!(rows.is_empty(), "{len}");
        }
        let mut endless = whole.clone();
        endless[..4].copy_from_slice(&0u32.to_ne_bytes());
        assert_eq!(rows_from_answer(&endless, row_from_message, &mut Vec::new()), Answer::Last);
    }

    #[test]
    fn own_socket_is_listed_with_its_unread_bytes() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        socket.send_to(b"unread", address).unwrap();
        let inode = std::fs::metadata(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&socket)))
            .unwrap()
            .ino();
        let mut list = SocketList::of_process(std::process::id()).unwrap();
        let rows = list.list(Protocol::Udp, IPV4).unwrap();
        let own = rows.iter().find(|row| u64::from(row.inode) == inode).expect("the socket");
        assert_eq!(own.local, (address.ip(), address.port()));
        assert!(own.queue > 0 && own.drops == 0, "{own:?}");
        socket.recv(&mut [0; 16]).unwrap();
        let now = list.find(Protocol::Udp, IPV4, own).unwrap();
        assert_eq!(now, Some(SocketRow { queue: 0, ..own.clone() }));
        drop(socket);
        assert_eq!(list.find(Protocol::Udp, IPV4, own).unwrap(), None);
    }

    #[test]
    fn connection_and_listener_are_read_one_by_one() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        std::io::Write::write_all(&mut client, b"unread").unwrap();
        let mut list = SocketList::of_process(std::process::id()).unwrap();
        let rows = list.list(Protocol::Tcp, IPV4).unwrap();
        let port = listener.local_addr().unwrap().port();
        let own: Vec<_> = rows.iter().filter(|row| row.local.1 == port).collect();
        assert_eq!(own.len(), 2, "{own:?}");
        for row in own {
            assert_eq!(list.find(Protocol::Tcp, IPV4, row).unwrap().as_ref(), Some(row));
        }
        drop(server);
    }

    #[test]
    fn connection_says_what_was_sent_and_received_last() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut client = std::net::TcpStream::connect(address).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        std::io::Write::write_all(&mut client, b"question").unwrap();
        std::io::Read::read_exact(&mut server, &mut [0; 8]).unwrap();
        let mut list = SocketList::of_process(std::process::id()).unwrap();
        let rows = list.connections(IPV4).unwrap();
        let of = |local| rows.iter().find(|row| row.local == local && !row.listens).expect("a connection");
        let (asking, asked) = (of(client.local_addr().unwrap()), of(address));
        assert_eq!((asking.remote, asking.sent, asking.received), (address, 8, 0));
        assert_eq!((asked.remote, asked.sent, asked.received), (asking.local, 0, 8));
        assert_eq!((asking.segments, asked.segments), (0, 1));
        assert!(asking.cookie != asked.cookie && asking.inode != asked.inode);
        assert!(asking.sent_ago_ms < 60_000 && asked.received_ago_ms < 60_000, "{asking:?} {asked:?}");
        assert!(rows.iter().any(|row| row.listens && row.local == address));
    }

    #[test]
    fn row_without_its_numbers_is_no_connection() {
        let mut row = row();
        assert!(connection_from_message(&row).is_some_and(|row| row.listens), "it needs none");
        row[1] = ESTABLISHED;
        assert_eq!(connection_from_message(&row), None);
        row.extend([208, 0, 2, 0]);
        row.extend((1..=51u32).flat_map(u32::to_ne_bytes));
        assert_eq!(connection_from_message(&row), None, "a kernel that does not count what was sent");
        for len in 0..row.len() {
            connection_from_message(&row[..len]);
        }
    }
}
