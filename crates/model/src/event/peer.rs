// SPDX-License-Identifier: Apache-2.0
//! The other end of a wait on a socket or a pipe.

use std::fmt;
use std::net::SocketAddr;

/// The other end of the socket or the pipe that a system call waited on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The kind of the socket, or that it is a pipe.
    pub kind: PeerKind,
    /// What the system call waits for, as the name of the call says.
    pub awaited: Awaited,
    /// Which side of the connection the waiting thread is on; `None`: not known, or there are no sides.
    pub role: Option<Role>,
    /// Whether something was sent since the thread waited here the last time, so that the wait is for an
    /// answer. `None`: not known.
    pub asked: Option<bool>,
    /// The address of the waiting thread's end. `None`: a pipe, a unix socket, or a socket without an
    /// address.
    pub local: Option<SocketAddr>,
    /// The address of the other end. `None`: as of `local`, or a socket that listens.
    pub remote: Option<SocketAddr>,
    /// The inode of the waiting thread's socket or pipe, as in the links of `/proc/PID/fd`.
    pub inode: u64,
    /// The thread that ended the wait is of a child of the waiting process.
    pub by_child: bool,
    /// The process at the other end. `None`: not known, or on another machine.
    pub process: Option<PeerProcess>,
}

/// A process at the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerProcess {
    /// `None`: several processes of this name have the other end, as the workers of a server have.
    pub pid: Option<u32>,
    /// The name of the process; of a pipe's waker the name of its thread.
    pub comm: String,
}

macro_rules! named {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)+
        }

        impl $name {
            /// Each variant once, in the order of their declaration.
            pub const ALL: &[$name] = &[$($name::$variant),+];

            /// The name in recordings and in JSON, which [`Self::from_name`] reads.
            pub fn name(self) -> &'static str {
                match self {
                    $($name::$variant => $text,)+
                }
            }

            /// `None`: no name is equal to the text.
            pub fn from_name(name: &str) -> Option<Self> {
                $name::ALL.iter().copied().find(|one| one.name() == name)
            }
        }
    };
}

named! {
    /// What the two ends are of.
    PeerKind {
        /// Sockets of IPv4 or IPv6, by TCP.
        Tcp = "tcp",
        /// Sockets of IPv4 or IPv6, by UDP.
        Udp = "udp",
        /// Sockets of the unix family, on one machine.
        Unix = "unix",
        /// A pipe or FIFO, on one machine.
        Pipe = "pipe",
    }
}

named! {
    /// What the thread waited for.
    Awaited {
        /// Something to read.
        Data = "data",
        /// Space for what it writes: the buffer was full.
        Space = "space",
        /// A new connection: connect(2), accept(2).
        Connection = "connection",
    }
}

named! {
    /// The sides of a connection.
    Role {
        /// It made the connection.
        Client = "client",
        /// It accepted the connection, or waits for one.
        Server = "server",
    }
}

impl Peer {
    /// The names of waits in which the thread is idle.
    pub const IDLE_NAMES: [&str; 3] = ["client idle", "connections", "child's output"];

    /// What the wait is called if the thread is idle in it: between two requests of a client, before the next
    /// client, or while a child works.
    pub fn idle_name(&self) -> Option<&'static str> {
        let [client_idle, connections, output] = Self::IDLE_NAMES;
        match (self.kind, self.awaited, self.role) {
            (PeerKind::Tcp | PeerKind::Unix, Awaited::Data, Some(Role::Server)) => Some(client_idle),
            (PeerKind::Tcp | PeerKind::Unix, Awaited::Connection, Some(Role::Server)) => Some(connections),
            (PeerKind::Pipe, Awaited::Data, _) if self.by_child => Some(output),
            _ => None,
        }
    }
}

/// `nginx 4711`, or `nginx` where there are several.
impl fmt::Display for PeerProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.comm.is_empty() { "(unnamed)" } else { &self.comm })?;
        match self.pid {
            Some(pid) => write!(f, " {pid}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        assert!(PeerKind::ALL.iter().all(|kind| PeerKind::from_name(kind.name()) == Some(*kind)));
        assert!(Awaited::ALL.iter().all(|awaited| Awaited::from_name(awaited.name()) == Some(*awaited)));
        assert!(Role::ALL.iter().all(|role| Role::from_name(role.name()) == Some(*role)));
        assert_eq!(PeerKind::from_name("TCP"), None);
    }

    #[test]
    fn servers_and_readers_of_a_child_are_idle_and_clients_are_not() {
        let peer = |kind, awaited, role, by_child| Peer {
            kind,
            awaited,
            role,
            asked: None,
            local: None,
            remote: None,
            inode: 1,
            by_child,
            process: None,
        };
        let (client, server) = (Some(Role::Client), Some(Role::Server));
        for (peer, name) in [
            (peer(PeerKind::Tcp, Awaited::Data, server, false), Some("client idle")),
            (peer(PeerKind::Unix, Awaited::Connection, server, false), Some("connections")),
            (peer(PeerKind::Pipe, Awaited::Data, None, true), Some("child's output")),
            (peer(PeerKind::Pipe, Awaited::Data, None, false), None),
            (peer(PeerKind::Pipe, Awaited::Space, None, true), None),
            (peer(PeerKind::Tcp, Awaited::Space, server, false), None),
            (peer(PeerKind::Tcp, Awaited::Data, client, false), None),
            (peer(PeerKind::Tcp, Awaited::Data, None, false), None),
        ] {
            assert_eq!(peer.idle_name(), name, "{peer:?}");
        }
    }
}
