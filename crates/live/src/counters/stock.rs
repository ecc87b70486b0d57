// SPDX-License-Identifier: Apache-2.0
//! The number of sockets of a kind in a network namespace. The kernel keeps these counts, so that reading one
//! costs 2 µs. A list of TCP sockets would walk a table whose size depends on the machine's memory.

use super::netlink::{IPV6, Protocol};
use super::text::{TextFile, number_after};

/// Kinds of sockets that the kernel does not have are `None`.
pub struct Stock {
    ipv4: Option<TextFile>,
    ipv6: Option<TextFile>,
}

impl Stock {
    /// For the namespace that a process is in now.
    pub fn of_process(pid: u32) -> Self {
        let open = |file| TextFile::open(format!("/proc/{pid}/net/{file}"));
        Stock { ipv4: open("sockstat"), ipv6: open("sockstat6") }
    }

    /// Sockets with an address of their own: those that are listed. `None` when the kernel does not report
    /// the number.
    pub fn count(&mut self, protocol: Protocol, family: u8) -> Option<u64> {
        let (file, name) = match (protocol, family == IPV6) {
            (Protocol::Tcp, false) => (&mut self.ipv4, "TCP: inuse"),
            (Protocol::Udp, false) => (&mut self.ipv4, "UDP: inuse"),
            (Protocol::Tcp, true) => (&mut self.ipv6, "TCP6: inuse"),
            (Protocol::Udp, true) => (&mut self.ipv6, "UDP6: inuse"),
        };
        number_after(file.as_mut()?.read().ok()?, name)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use super::super::netlink::IPV4;
    use super::*;

    #[test]
    fn own_sockets_count() {
        let mut stock = Stock::of_process(std::process::id());
        let _open = (UdpSocket::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
        for protocol in [Protocol::Udp, Protocol::Tcp] {
            let count = stock.count(protocol, IPV4);
            assert!(count.is_some_and(|count| count > 0), "{protocol:?} {count:?}");
        }
        assert_eq!(Stock::of_process(u32::MAX).count(Protocol::Tcp, IPV6), None);
    }
}
