// SPDX-License-Identifier: Apache-2.0
//! The other end of a wait on a socket or a pipe: its addresses, as the kernel side sent them, and its
//! process, where that is on this machine.
//!
//! Owns the search for the process. The kernel knows the socket with the same addresses the other way round,
//! or the one that listens there, and the links in /proc/PID/fd name who has it. All of them are listed once
//! in a while, for at most a hundredth of the time.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use wallprof_model::ThreadRef;
use wallprof_model::event::{Awaited, Peer, PeerKind, PeerProcess, Role, Stall};
use wallprof_probe::bpf::{constants as c, stall_record, wait_peer};
use wallprof_probe::reasons::listed_syscall_name;

use crate::counters::{Folder, SocketList};

/// At this number of connections all are forgotten.
const MOST_KNOWN: usize = 4096;
/// Descriptors that are listed in one turn.
const MOST_FILES: usize = 20_000;
/// Connections that are asked for between two turns.
const MOST_ASKED: u32 = 200;
/// Listing has to rest for this many times as long as it took, and at least that long.
const REST: u32 = 100;
const SHORTEST_REST: Duration = Duration::from_millis(500);

/// The two addresses of a connection, as one process has them.
type Connection = (u32, SocketAddr, SocketAddr);

/// Processes at other ends.
#[derive(Default)]
pub struct Peers {
    known: HashMap<Connection, PeerProcess>,
    holders: Holders,
    asked: u32,
}

/// The processes that have sockets and pipes, by inode, as last listed.
#[derive(Default)]
struct Holders {
    by_inode: HashMap<u64, Vec<u32>>,
    due: Option<Instant>,
}

/// The other end of a wait, as far as the kernel side knows it; `None`: the record has none.
pub fn peer_from_record(record: &stall_record) -> Option<Peer> {
    if u64::from(record.flags) & c::STALL_PEER == 0 {
        return None;
    }
    let found = &record.peer;
    let kind = match u64::from(found.kind) {
        c::PEER_TCP => PeerKind::Tcp,
        c::PEER_UDP => PeerKind::Udp,
        c::PEER_UNIX => PeerKind::Unix,
        c::PEER_PIPE => PeerKind::Pipe,
        _ => return None,
    };
    let awaited = match u64::from(found.polled) {
        c::POLLED_DATA => Awaited::Data,
        c::POLLED_SPACE => Awaited::Space,
        c::POLLED_CONNECTION => Awaited::Connection,
        _ => awaited_by(listed_syscall_name(record.syscall)?)?,
    };
    let role = match (u64::from(found.role), awaited) {
        (c::PEER_ROLE_CLIENT, _) => Some(Role::Client),
        (c::PEER_ROLE_SERVER, _) => Some(Role::Server),
        _ => None,
    };
    // The backlog of a socket that listens is its own.
    let role = if record_accepts(record) { Some(Role::Server) } else { role };
    let asked = match u64::from(found.asked) {
        c::ASKED_YES => Some(true),
        c::ASKED_NO => Some(false),
        _ => None,
    };
    let process = (found.pid != 0).then(|| PeerProcess { pid: Some(found.pid), comm: String::new() });
    Some(Peer {
        kind,
        awaited,
        role,
        asked,
        local: address(found, &found.local, found.local_port),
        remote: address(found, &found.remote, found.remote_port),
        inode: found.inode,
        by_child: found.by_child != 0,
        process,
    })
}

fn record_accepts(record: &stall_record) -> bool {
    listed_syscall_name(record.syscall).is_some_and(|name| name.starts_with("accept"))
}

/// What a system call on a socket or a pipe waits for; `None`: it may be either.
fn awaited_by(syscall: &str) -> Option<Awaited> {
    match syscall {
        "read" | "readv" | "pread64" | "preadv" | "preadv2" | "recvfrom" | "recvmsg" | "recvmmsg" => {
            Some(Awaited::Data)
        }
        "write" | "writev" | "pwrite64" | "pwritev" | "pwritev2" | "sendto" | "sendmsg" | "sendmmsg"
        | "sendfile" => Some(Awaited::Space),
        "connect" | "accept" | "accept4" => Some(Awaited::Connection),
        _ => None,
    }
}

/// `None`: there is none yet, as of a socket that listens. An IPv4 address in an IPv6 socket is IPv4.
fn address(peer: &wait_peer, bytes: &[u8; 16], port: u16) -> Option<SocketAddr> {
    let ip = match peer.family {
        4 => IpAddr::V4(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3])),
        6 => IpAddr::V6(Ipv6Addr::from(*bytes)).to_canonical(),
        _ => return None,
    };
    (port != 0).then_some(SocketAddr::new(ip, port))
}

impl Peers {
    /// Sets the process at the other end of a wait of the process `pid`.
    pub fn complete(&mut self, pid: u32, stall: &mut Stall) {
        let waker = stall.waker.as_ref().and_then(|waker| waker.thread.as_ref());
        let Some(peer) = &mut stall.peer else { return };
        peer.process = match peer.kind {
            PeerKind::Pipe => of_waker(waker).or_else(|| self.of_pipe(pid, peer.inode)),
            PeerKind::Unix => {
                let process = peer.process.take().and_then(|process| named(&[process.pid?]));
                process.or_else(|| of_waker(waker))
            }
            PeerKind::Tcp => peer.local.zip(peer.remote).and_then(|ends| self.of_connection(pid, ends)),
            PeerKind::Udp => of_waker(waker.filter(|waker| is_same_machine(peer) && !passes_on(waker))),
        };
    }

    /// The one process beside `pid` that has a pipe.
    fn of_pipe(&mut self, pid: u32, inode: u64) -> Option<PeerProcess> {
        let holders: Vec<u32> = self.holders.of(inode).iter().copied().filter(|&one| one != pid).collect();
        if holders.len() == 1 { named(&holders) } else { None }
    }

    /// The process at the other end of a connection of `pid`, if it is found now.
    pub(crate) fn of_connection(
        &mut self,
        pid: u32,
        (local, remote): (SocketAddr, SocketAddr),
    ) -> Option<PeerProcess> {
        let key = (pid, local, remote);
        if let Some(process) = self.known.get(&key) {
            return Some(process.clone());
        }
        if self.holders.is_due() {
            self.asked = 0;
        }
        if self.asked == MOST_ASKED {
            return None;
        }
        self.asked += 1;
        let mut sockets = SocketList::of_process(pid).ok()?;
        // The other socket may be gone already, and the one that listens is still there.
        let found = [local.port(), 0].into_iter().find_map(|port| {
            let inode = sockets.tcp_at(remote, SocketAddr::new(local.ip(), port)).ok()??;
            named(self.holders.of(inode.into()))
        })?;
        if self.known.len() >= MOST_KNOWN {
            self.known.clear();
        }
        self.known.insert(key, found.clone());
        Some(found)
    }
}

/// Whether both ends are of this machine: what is sent to an address of its own wakes the reader at once.
fn is_same_machine(peer: &Peer) -> bool {
    let ends = peer.local.zip(peer.remote).map(|(local, remote)| (local.ip(), remote.ip()));
    ends.is_some_and(|(local, remote)| remote.is_loopback() || local == remote)
}

/// Whether it is a thread of the kernel that does what interrupts left.
fn passes_on(waker: &ThreadRef) -> bool {
    waker.comm.starts_with("ksoftirqd/")
}

/// Pipes and unix sockets wake each other's processes directly, and so do sockets of UDP on one machine.
fn of_waker(waker: Option<&ThreadRef>) -> Option<PeerProcess> {
    waker.map(|waker| PeerProcess { pid: Some(waker.pid), comm: waker.comm.clone() })
}

/// These processes as one, if they have one name. Several have no number.
fn named(pids: &[u32]) -> Option<PeerProcess> {
    let comm = |pid: &u32| {
        let comm = std::fs::read(format!("/proc/{pid}/comm")).ok()?;
        Some(String::from_utf8_lossy(comm.strip_suffix(b"\n").unwrap_or(&comm)).into_owned())
    };
    let (first, others) = pids.split_first()?;
    let name = comm(first)?;
    let are_alike = others.iter().all(|pid| comm(pid).as_ref() == Some(&name));
    are_alike.then(|| PeerProcess { pid: others.is_empty().then_some(*first), comm: name })
}

impl Holders {
    fn is_due(&self) -> bool {
        self.due.is_none_or(|due| due <= Instant::now())
    }

    /// The processes that have the socket or pipe with this inode. Lists all anew for one that is not known.
    fn of(&mut self, inode: u64) -> &[u32] {
        if !self.by_inode.contains_key(&inode) && self.is_due() {
            let start = Instant::now();
            self.by_inode = list();
            let end = Instant::now();
            self.due = Some(end + (end - start).saturating_mul(REST).max(SHORTEST_REST));
        }
        self.by_inode.get(&inode).map_or(&[], Vec::as_slice)
    }
}

fn list() -> HashMap<u64, Vec<u32>> {
    let mut by_inode: HashMap<u64, Vec<u32>> = HashMap::new();
    let mut left = MOST_FILES;
    let Some(processes) = Folder::open("/proc") else { return by_inode };
    processes.numbers(|pid, _| {
        let Some(files) = Folder::open(&format!("/proc/{pid}/fd")) else { return ControlFlow::Continue(()) };
        files.numbers(|_, name| {
            left -= 1;
            if let Some(inode) = files.target(name, inode_from_link) {
                let holders = by_inode.entry(inode).or_default();
                if holders.last() != Some(&pid) {
                    holders.push(pid);
                }
            }
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    by_inode
}

/// Of `socket:[4711]` and `pipe:[4711]`, whose inodes are numbered together.
fn inode_from_link(target: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(target).ok()?;
    let number = text.strip_prefix("socket:[").or_else(|| text.strip_prefix("pipe:["))?;
    number.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::process::{Command, Stdio};

    use wallprof_model::event::Waker;
    use wallprof_model::{MonoNs, Reason, StallReason, ThreadKey};

    use super::*;

    fn record(kind: u64, syscall: i32, change: impl Fn(&mut wait_peer)) -> stall_record {
        let mut record = stall_record { flags: c::STALL_PEER as u16, syscall, ..stall_record::default() };
        record.peer.kind = kind as u8;
        change(&mut record.peer);
        record
    }

    #[test]
    fn record_has_the_addresses_and_what_is_awaited() {
        let tcp = record(c::PEER_TCP, 0, |peer| {
            (peer.family, peer.role, peer.asked) = (4, c::PEER_ROLE_CLIENT as u8, c::ASKED_YES as u8);
            peer.local[..4].copy_from_slice(&[10, 0, 0, 1]);
            peer.remote[..4].copy_from_slice(&[10, 0, 0, 2]);
            (peer.local_port, peer.remote_port, peer.inode) = (40_000, 5432, 7);
        });
        let peer = peer_from_record(&tcp).unwrap();
        assert_eq!((peer.kind, peer.awaited, peer.role), (PeerKind::Tcp, Awaited::Data, Some(Role::Client)));
        assert_eq!((peer.asked, peer.inode, peer.process), (Some(true), 7, None));
        assert_eq!(peer.remote.map(|end| end.to_string()).as_deref(), Some("10.0.0.2:5432"));
        assert_eq!(peer.local.map(|end| end.to_string()).as_deref(), Some("10.0.0.1:40000"));
        assert_eq!(
            peer_from_record(&stall_record { flags: 0, ..tcp }),
            None,
            "the flag says whether it is valid"
        );
        let poll = stall_record { syscall: 7, ..tcp };
        assert_eq!(peer_from_record(&poll), None);
        let wide = record(c::PEER_TCP, 1, |peer| {
            peer.family = 6;
            peer.remote = "::ffff:10.0.0.3".parse::<Ipv6Addr>().unwrap().octets();
            peer.remote_port = 80;
        });
        let peer = peer_from_record(&wide).unwrap();
        assert_eq!((peer.awaited, peer.role, peer.asked), (Awaited::Space, None, None));
        assert_eq!(peer.remote.map(|end| end.to_string()).as_deref(), Some("10.0.0.3:80"));
        assert_eq!(peer.local, None, "without a port there is no address");
        let accepts = peer_from_record(&record(c::PEER_UNIX, 43, |_| {})).unwrap();
        assert_eq!((accepts.awaited, accepts.role), (Awaited::Connection, Some(Role::Server)));
        assert_eq!(peer_from_record(&record(9, 0, |_| {})), None);
    }

    fn waiting(peer: Peer) -> Stall {
        let reason = StallReason::Blocked(Reason::Network);
        Stall { peer: Some(Box::new(peer)), ..Stall::new(ThreadKey(1), reason, MonoNs(1), 1) }
    }

    fn completed(peers: &mut Peers, peer: Peer) -> Option<PeerProcess> {
        let mut stall = waiting(peer);
        peers.complete(std::process::id(), &mut stall);
        stall.peer.unwrap().process
    }

    #[test]
    fn other_end_of_a_connection_and_of_a_pipe_is_a_process() {
        let own = |pid| PeerProcess { pid, comm: named(&[std::process::id()]).unwrap().comm };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let of = |stream: &TcpStream| {
            let mut peer = peer_from_record(&record(c::PEER_TCP, 0, |_| {})).unwrap();
            (peer.local, peer.remote) = (stream.local_addr().ok(), stream.peer_addr().ok());
            peer
        };
        let (of_client, of_server) = (of(&client), of(&server));
        let mut peers = Peers::default();
        assert_eq!(completed(&mut peers, of_client.clone()), Some(own(Some(std::process::id()))));
        assert_eq!(completed(&mut peers, of_server), Some(own(Some(std::process::id()))));
        drop((client, server));
        let answer = completed(&mut Peers::default(), of_client.clone());
        assert_eq!(answer, Some(own(Some(std::process::id()))), "the one that listens");
        drop(listener);
        assert_eq!(completed(&mut Peers::default(), of_client.clone()), None);
        assert_eq!(
            completed(&mut peers, of_client).map(|process| process.comm),
            Some(own(None).comm),
            "known"
        );

        let mut cat = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let mut to_cat = cat.stdin.take().unwrap();
        to_cat.write_all(b"x").unwrap();
        let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&to_cat));
        let link = std::fs::read_link(link).unwrap();
        let mut pipe = peer_from_record(&record(c::PEER_PIPE, 1, |_| {})).unwrap();
        pipe.inode = inode_from_link(link.as_os_str().as_encoded_bytes()).unwrap();
        let found = completed(&mut Peers::default(), pipe.clone());
        assert_eq!(found.and_then(|process| process.pid), Some(cat.id()));
        let mut woken = waiting(pipe);
        let thread = Some(ThreadRef { pid: 7, comm: "reader".into(), ..ThreadRef::default() });
        woken.waker = Some(Waker { thread, user: None, kernel: None });
        Peers::default().complete(1, &mut woken);
        let process = woken.peer.unwrap().process;
        assert_eq!(process, Some(PeerProcess { pid: Some(7), comm: "reader".into() }));
        drop(to_cat);
        cat.wait().unwrap();
    }

    #[test]
    fn thread_that_ends_a_wait_on_a_socket_of_the_same_machine_is_its_other_end() {
        let found = |kind: u64, remote: &str, waker: &str| {
            let mut peer = peer_from_record(&record(kind, 0, |_| {})).unwrap();
            (peer.local, peer.remote) = ("10.0.0.1:40000".parse().ok(), remote.parse().ok());
            let mut woken = waiting(peer);
            let thread = Some(ThreadRef { pid: 7, comm: waker.into(), ..ThreadRef::default() });
            woken.waker = Some(Waker { thread, user: None, kernel: None });
            Peers::default().complete(1, &mut woken);
            woken.peer.unwrap().process.map(|process| process.comm)
        };
        assert_eq!(found(c::PEER_UDP, "127.0.0.1:53", "named").as_deref(), Some("named"));
        assert_eq!(found(c::PEER_UDP, "10.0.0.1:53", "named").as_deref(), Some("named"));
        assert_eq!(found(c::PEER_UDP, "10.0.0.2:53", "bystander"), None);
        assert_eq!(found(c::PEER_UDP, "127.0.0.1:53", "ksoftirqd/0"), None);
        assert_eq!(found(c::PEER_UNIX, "", "shop").as_deref(), Some("shop"));
    }

    #[test]
    fn links_of_other_files_are_no_inodes() {
        assert_eq!(inode_from_link(b"socket:[12]"), Some(12));
        assert_eq!(inode_from_link(b"pipe:[4294967295]"), Some(4_294_967_295));
        for other in [&b"/dev/null"[..], b"anon_inode:[eventpoll]", b"socket:[", b"socket:[x]", b"\xff"] {
            assert_eq!(inode_from_link(other), None);
        }
    }
}
