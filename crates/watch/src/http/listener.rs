// SPDX-License-Identifier: Apache-2.0
//! The listening socket: a TCP port or a Unix socket.

use std::fmt;
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::process::umask;

use super::activity::Stream;
use super::slots::Class;

/// A bound socket. The file of a Unix socket is removed with it.
pub enum Listener {
    Tcp(TcpListener),
    Unix { listener: UnixListener, path: PathBuf },
}

const TCP_CHOICE: &str = "another address with --listen";
const UNIX_CHOICE: &str = "another path with --socket";

/// Why an address cannot be listened on.
#[derive(Debug)]
pub struct ListenError {
    address: String,
    /// What to choose otherwise.
    choice: &'static str,
    source: io::Error,
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let advice = match self.source.kind() {
            io::ErrorKind::AddrInUse => "another program uses it: stop that program, or ",
            io::ErrorKind::PermissionDenied => "this user may not: ",
            io::ErrorKind::AddrNotAvailable => "this machine does not have the address: ",
            io::ErrorKind::NotFound => "its folder does not exist: create it, or ",
            _ => "",
        };
        let ListenError { address, choice, source } = self;
        write!(f, "cannot listen on {address}: {source}: {advice}choose {choice}")
    }
}

impl Listener {
    /// # Errors
    /// The address is in use, or this machine does not have it.
    pub fn tcp(address: SocketAddr) -> Result<Self, ListenError> {
        let failed = |source| ListenError { address: address.to_string(), choice: TCP_CHOICE, source };
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Listener::Tcp(listener))
    }

    /// A socket for its owner alone (mode 0600). It replaces a socket that no process serves any more, never
    /// another file.
    ///
    /// # Errors
    /// Another process serves it, or the path is another kind of file.
    pub fn unix(path: &Path) -> Result<Self, ListenError> {
        let failed =
            |source| ListenError { address: path.display().to_string(), choice: UNIX_CHOICE, source };
        remove_abandoned(path).map_err(failed)?;
        // By umask: a mode that is set after bind(2) would leave the socket open to others in between.
        let before = umask(Mode::from_raw_mode(0o177));
        let bound = UnixListener::bind(path);
        umask(before);
        let listener = bound.map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Listener::Unix { listener, path: path.to_owned() })
    }

    /// The address it listens on; for port 0 with the port that the kernel chose.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Listener::Tcp(listener) => listener.local_addr().ok(),
            Listener::Unix { .. } => None,
        }
    }

    /// Registers the socket with the current event loop.
    pub(super) fn into_acceptor(self) -> io::Result<Acceptor> {
        let accept = match &self {
            Listener::Tcp(listener) => Accept::Tcp(tokio::net::TcpListener::from_std(listener.try_clone()?)?),
            Listener::Unix { listener, .. } => {
                Accept::Unix(tokio::net::UnixListener::from_std(listener.try_clone()?)?)
            }
        };
        Ok(Acceptor { accept, _listener: self })
    }
}

/// A listener in an event loop.
pub(super) struct Acceptor {
    accept: Accept,
    /// Removes the socket's file.
    _listener: Listener,
}

enum Accept {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

impl Acceptor {
    /// Waits for the next client.
    pub async fn accept(&self) -> io::Result<(Box<dyn Stream>, Class)> {
        match &self.accept {
            Accept::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                let class = if peer.ip().is_loopback() { Class::Local } else { Class::Network };
                Ok((Box::new(stream), class))
            }
            Accept::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                Ok((Box::new(stream), Class::Control))
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Listener::Unix { path, .. } = self {
            // A file that cannot be removed is an abandoned socket, which the next watcher replaces.
            let _ = fs::remove_file(path);
        }
    }
}

/// Removes the socket of a killed watcher: connections to it are refused.
fn remove_abandoned(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(metadata) if !metadata.file_type().is_socket() => Err(io::ErrorKind::AddrInUse.into()),
        Ok(_) => match UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
            Err(error) => Err(error),
            Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn port_in_use_is_an_error() {
        let first = Listener::tcp(([127, 0, 0, 1], 0).into()).expect("a free port");
        let address = first.address().expect("an address");
        let error = Listener::tcp(address).err().expect("taken").to_string();
        assert!(error.contains(&address.to_string()) && error.contains("another program"), "{error}");
    }

    #[test]
    fn socket_has_mode_0600_and_is_removed_with_its_server() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ctl");
        let listener = Listener::unix(&path).expect("a socket");
        assert_eq!(fs::metadata(&path).expect("a file").permissions().mode() & 0o777, 0o600);
        assert!(Listener::unix(&path).err().expect("served").to_string().contains("another program"));
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn only_an_abandoned_socket_is_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let (socket, file) = (folder.path().join("socket"), folder.path().join("file"));
        drop(UnixListener::bind(&socket).expect("a socket"));
        assert!(socket.exists(), "as a killed server leaves it");
        assert!(Listener::unix(&socket).is_ok());
        fs::write(&file, "mine").expect("a file");
        assert!(Listener::unix(&file).is_err());
        assert_eq!(fs::read_to_string(&file).expect("still there"), "mine");
    }
}
