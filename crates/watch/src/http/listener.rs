//! Where clients come in: a TCP port or a Unix socket.

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
use super::places::Class;

/// A place at which clients are accepted. A socket's file goes with it.
pub enum Listener {
    Tcp(TcpListener),
    Unix { listener: UnixListener, path: PathBuf },
}

/// Why nothing can be accepted there.
#[derive(Debug)]
pub struct ListenError {
    place: String,
    source: io::Error,
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let advice = match self.source.kind() {
            io::ErrorKind::AddrInUse => "another program is there: stop it, or choose another place",
            io::ErrorKind::PermissionDenied => "choose a place that this user may take",
            io::ErrorKind::AddrNotAvailable => "it is no address of this machine",
            io::ErrorKind::NotFound => "its folder does not exist: create it, or choose another place",
            _ => "choose another place",
        };
        write!(f, "cannot listen on {}: {}: {advice}", self.place, self.source)
    }
}

impl Listener {
    /// # Errors
    /// The address is taken, or not this machine's.
    pub fn tcp(address: SocketAddr) -> Result<Self, ListenError> {
        let failed = |source| ListenError { place: address.to_string(), source };
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Listener::Tcp(listener))
    }

    /// A socket for its owner alone (mode 0600), in place of one that nobody serves any more but never of another file.
    ///
    /// # Errors
    /// Another process serves it, or there is something else.
    pub fn unix(path: &Path) -> Result<Self, ListenError> {
        let failed = |source| ListenError { place: path.display().to_string(), source };
        remove_abandoned(path).map_err(failed)?;
        // From its first moment on: a mode that is set later would leave a gap.
        let before = umask(Mode::from_raw_mode(0o177));
        let bound = UnixListener::bind(path);
        umask(before);
        let listener = bound.map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Listener::Unix { listener, path: path.to_owned() })
    }

    /// Where it listens: of port 0 the one that was given.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Listener::Tcp(listener) => listener.local_addr().ok(),
            Listener::Unix { .. } => None,
        }
    }

    /// For the event loop that is entered.
    pub(super) fn into_door(self) -> io::Result<Door> {
        let accept = match &self {
            Listener::Tcp(listener) => Accept::Tcp(tokio::net::TcpListener::from_std(listener.try_clone()?)?),
            Listener::Unix { listener, .. } => {
                Accept::Unix(tokio::net::UnixListener::from_std(listener.try_clone()?)?)
            }
        };
        Ok(Door { accept, _listener: self })
    }
}

/// A listener in an event loop.
pub(super) struct Door {
    accept: Accept,
    /// A socket's file goes with it.
    _listener: Listener,
}

enum Accept {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

impl Door {
    /// The next client.
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
            // Nothing can be done about a file that resists; the next watcher finds it abandoned.
            let _ = fs::remove_file(path);
        }
    }
}

/// A killed watcher leaves its socket behind: nobody answers there.
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
    fn a_port_in_use_is_told() {
        let first = Listener::tcp(([127, 0, 0, 1], 0).into()).expect("a free port");
        let address = first.address().expect("an address");
        let error = Listener::tcp(address).err().expect("taken").to_string();
        assert!(error.contains(&address.to_string()) && error.contains("another program"), "{error}");
    }

    #[test]
    fn a_socket_is_its_owner_s_and_goes_with_its_server() {
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
