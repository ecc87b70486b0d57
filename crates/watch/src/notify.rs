// SPDX-License-Identifier: Apache-2.0
//! Notifications to systemd (sd_notify(3)): ready, reloading, stopping, watchdog.
//!
//! Without `NOTIFY_SOCKET` nothing is sent. A socket that no process reads is no error: the service goes on.

use std::env;
use std::ffi::OsString;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use wallprof_model::MonoNs;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    Ready,
    /// With the time at which reloading started, which systemd requires.
    Reloading(MonoNs),
    Stopping,
    Watchdog,
}

/// The socket to systemd, if there is one.
pub struct Notifier {
    socket: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

impl Notifier {
    pub fn from_environment() -> Self {
        let watchdog = watchdog(
            env::var("WATCHDOG_USEC").ok().as_deref(),
            env::var("WATCHDOG_PID").ok().as_deref(),
            std::process::id(),
        );
        Notifier { socket: env::var_os("NOTIFY_SOCKET").and_then(socket), watchdog }
    }

    /// The interval of watchdog notifications: half of the time that systemd waits.
    pub fn watchdog_interval(&self) -> Option<Duration> {
        self.watchdog.map(|time| time / 2)
    }

    /// Sends `notice`; `systemctl status` shows `status`.
    pub fn send(&self, notice: Notice, status: &str) {
        if let Some((socket, address)) = &self.socket {
            let _ = socket.send_to_addr(message(notice, status).as_bytes(), address);
        }
    }
}

fn message(notice: Notice, status: &str) -> String {
    let state = match notice {
        Notice::Ready => "READY=1".to_string(),
        Notice::Reloading(at) => format!("RELOADING=1\nMONOTONIC_USEC={}", at.0 / 1_000),
        Notice::Stopping => "STOPPING=1".to_string(),
        Notice::Watchdog => "WATCHDOG=1".to_string(),
    };
    // Each line is a field: the status must stay on its own.
    let status = status.replace(char::is_control, " ");
    format!("{state}\nSTATUS={status}\n")
}

/// A path, or after `@` a name in the abstract namespace.
fn socket(name: OsString) -> Option<(UnixDatagram, SocketAddr)> {
    let address = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        [b'/', ..] => SocketAddr::from_pathname(&name),
        _ => return None,
    };
    Some((UnixDatagram::unbound().ok()?, address.ok()?))
}

/// The watchdog concerns this process if `pid` is its own pid, or no pid is given.
fn watchdog(microseconds: Option<&str>, pid: Option<&str>, own: u32) -> Option<Duration> {
    let time = microseconds?.parse().ok().filter(|time| *time > 0)?;
    let concerns_us = pid.is_none_or(|pid| pid.parse() == Ok(own));
    concerns_us.then(|| Duration::from_micros(time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_fields_on_lines() {
        assert_eq!(message(Notice::Ready, "a\nREADY=0"), "READY=1\nSTATUS=a READY=0\n");
        let reloading = message(Notice::Reloading(MonoNs(5_000)), "");
        assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC=5\n"));
    }

    #[test]
    fn notification_arrives() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("notify");
        let systemd = UnixDatagram::bind(&path).expect("a socket");
        let notifier = Notifier { socket: socket(path.clone().into()), watchdog: None };
        notifier.send(Notice::Stopping, "done");
        let mut bytes = [0; 64];
        let count = systemd.recv(&mut bytes).expect("a message");
        assert_eq!(&bytes[..count], b"STOPPING=1\nSTATUS=done\n");
        drop(systemd);
        notifier.send(Notice::Watchdog, "no reader");
    }

    #[test]
    fn abstract_names_and_absolute_paths_are_accepted() {
        assert!(socket("@wallprof-test".into()).is_some() && socket("/run/x".into()).is_some());
        assert!(socket("relative".into()).is_none() && socket("".into()).is_none());
    }

    #[test]
    fn watchdog_of_another_pid_is_ignored() {
        let time = Some(Duration::from_secs(1));
        assert_eq!(watchdog(Some("1000000"), Some("7"), 7), time);
        assert_eq!(watchdog(Some("1000000"), None, 7), time);
        assert_eq!(watchdog(Some("1000000"), Some("8"), 7), None);
        assert_eq!(watchdog(Some("0"), None, 7), None);
        assert_eq!(watchdog(None, None, 7), None);
    }
}
