// SPDX-License-Identifier: Apache-2.0
//! The other end of a wait on a socket or a pipe.

use std::fmt;
use std::net::SocketAddr;

/// The other end of the socket or the pipe that a system call waited on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub kind: PeerKind,
    pub awaited: Awaited,
    /// Which side of the connection the waiting thread is on; `None`: not known, or there are no sides.
    pub role: Option<Role>,
    /// Whether something was sent since the thread waited here the last time, so that the wait is for an
    /// answer. `None`: not known.
    pub asked: Option<bool>,
    pub local: Option<SocketAddr>,
    pub remote: Option<SocketAddr>,
    /// Of the socket, or of the pipe.
    pub inode: u64,
    /// The thread that ended the wait is of a child of the waiting process.
    pub by_child: bool,
    /// The process at the other end, on this machine.
    pub process: Option<PeerProcess>,
}

/// A process at the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerProcess {
    /// `None`: several processes of this name have the other end, as the workers of a server have.
    pub pid: Option<u32>,
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
            pub const ALL: &[$name] = &[$($name::$variant),+];

            pub fn name(self) -> &'static str {
                match self {
                    $($name::$variant => $text,)+
                }
            }

            pub fn from_name(name: &str) -> Option<Self> {
                $name::ALL.iter().copied().find(|one| one.name() == name)
            }
        }
    };
}

named! {
    /// What the two ends are of.
    PeerKind {
        Tcp = "tcp",
        Udp = "udp",
        Unix = "unix",
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
    /// What the wait is called if the thread is idle in it: between two requests of a client, before the next
    /// client, or while a child works.
    pub fn idle_name(&self) -> Option<&'static str> {
        match (self.kind, self.awaited, self.role) {
            (PeerKind::Tcp | PeerKind::Unix, Awaited::Data, Some(Role::Server)) => Some("client idle"),
            (PeerKind::Tcp | PeerKind::Unix, Awaited::Connection, Some(Role::Server)) => Some("connections"),
            (PeerKind::Pipe, Awaited::Data, _) if self.by_child => Some("child's output"),
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
