//! The sockets of a process: what arrived and nobody has read, and what did not fit.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;

use wallprof_model::{CounterKind, CounterUnit, MonoNs};
use wallprof_probe::clock;

use super::Reading;
use super::namespaces::{NamespaceId, Namespaces};
use super::netlink::{Protocol, SocketRow};
use super::pace::Pace;

/// Of a process with more files than this open the rest is not looked at.
const MAX_FILES: usize = 1024;
/// UDP sockets that are told by their address; the others together.
const MAX_ADDRESSES: usize = 16;
/// How often files are counted, and listed where their number has changed: new sockets are found so.
const LIST_EVERY_NS: u64 = 1_000_000_000;
/// Where it has not one may have taken another's place: they are listed all the same, ever more seldom while there is
/// nothing new, up to this.
const LONGEST_NS: u64 = 8_000_000_000;

/// Which sockets a process has.
pub struct Sockets {
    pid: u32,
    inodes: HashSet<u32>,
    /// Where they are.
    namespace: Option<NamespaceId>,
    files: Pace,
    /// How many files were open when they were listed; 0 where the kernel does not say.
    open: u64,
    /// When they are listed again, whatever their number; and how long that was put off.
    due: u64,
    rest_ns: u64,
}

impl Sockets {
    pub fn of(pid: u32) -> Self {
        Sockets {
            pid,
            inodes: HashSet::new(),
            namespace: None,
            files: Pace::default(),
            open: 0,
            due: 0,
            // A process that has just begun is about to open its files.
            rest_ns: LIST_EVERY_NS / 2,
        }
    }

    /// Looks for new sockets when it is time to. True when there are others than before.
    pub fn look(&mut self, at: MonoNs) -> bool {
        if !self.files.is_due(at) {
            return false;
        }
        let began = clock::thread_cpu_ns();
        let has_news = self.list(at);
        self.files.took(at, clock::thread_cpu_ns().saturating_sub(began));
        self.files.rest(at, LIST_EVERY_NS);
        has_news
    }

    fn list(&mut self, at: MonoNs) -> bool {
        // The size of the folder is the number of open files, from Linux 6.2 on (fs/proc/fd.c, proc_fd_getattr).
        let open = fs::metadata(format!("/proc/{}/fd", self.pid)).map_or(0, |folder| folder.size());
        if open != 0 && open == self.open && at.0 < self.due {
            return false;
        }
        self.open = open;
        let namespace = fs::metadata(format!("/proc/{}/ns/net", self.pid));
        self.namespace = namespace.ok().map(|file| file.ino());
        let inodes = socket_inodes(self.pid);
        let has_news = inodes != self.inodes;
        self.inodes = inodes;
        self.rest_ns = if has_news { LIST_EVERY_NS } else { (self.rest_ns * 2).min(LONGEST_NS) };
        self.due = at.0.saturating_add(self.rest_ns);
        has_news
    }

    /// Their inodes.
    pub fn inodes(&self) -> impl Iterator<Item = u32> {
        self.inodes.iter().copied()
    }

    /// The network namespace that they are in; none without a socket.
    pub fn home(&self) -> Option<NamespaceId> {
        self.namespace.filter(|_| !self.inodes.is_empty())
    }

    /// Tells what the kernel has listed at `at`.
    pub fn tell(&self, at: MonoNs, namespaces: &Namespaces, take: &mut dyn FnMut(Reading<'_>)) {
        let Some(listed) = self.home().and_then(|home| namespaces.listed_at(at, home)) else { return };
        let own: Vec<_> = listed.filter(|(_, row)| self.inodes.contains(&row.inode)).collect();
        let of = |wanted| -> Vec<&SocketRow> {
            own.iter().filter(|(protocol, _)| *protocol == wanted).map(|(_, row)| *row).collect()
        };
        tell_udp(&of(Protocol::Udp), take);
        tell_tcp(&of(Protocol::Tcp), take);
    }
}

fn socket_inodes(pid: u32) -> HashSet<u32> {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let inode = |entry: fs::DirEntry| {
        let target = fs::read_link(entry.path()).ok()?;
        target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    };
    files.take(MAX_FILES).filter_map(inode).collect()
}

/// By local address, those with the same one together.
fn tell_udp(rows: &[&SocketRow], take: &mut dyn FnMut(Reading<'_>)) {
    let mut sums: BTreeMap<(std::net::IpAddr, u16), [u64; 2]> = BTreeMap::new();
    let mut others = [0u64; 2];
    for row in rows {
        let is_known = sums.contains_key(&row.local) || sums.len() < MAX_ADDRESSES;
        let sum = if is_known { sums.entry(row.local).or_default() } else { &mut others };
        sum[0] += u64::from(row.queue);
        sum[1] += u64::from(row.drops);
    }
    let more = rows.len() > MAX_ADDRESSES;
    let named = sums.into_iter().map(|((ip, port), sum)| (SocketAddr::new(ip, port).to_string(), sum));
    for (address, [queue, drops]) in named.chain(more.then(|| ("others".to_owned(), others))) {
        tell_level(&format!("udp.queue {address}"), CounterUnit::Bytes, queue, take);
        tell_sum(&format!("udp.drops {address}"), drops, take);
    }
}

fn tell_tcp(rows: &[&SocketRow], take: &mut dyn FnMut(Reading<'_>)) {
    if rows.is_empty() {
        return;
    }
    let sum = |listens: bool| {
        rows.iter().filter(|row| row.listens == listens).map(|row| u64::from(row.queue)).sum::<u64>()
    };
    tell_level("tcp.queue", CounterUnit::Bytes, sum(false), take);
    tell_level("tcp.backlog", CounterUnit::Count, sum(true), take);
    tell_sum("tcp.drops", rows.iter().map(|row| u64::from(row.drops)).sum(), take);
}

fn tell_level(name: &str, unit: CounterUnit, value: u64, take: &mut dyn FnMut(Reading<'_>)) {
    take(Reading { name, kind: CounterKind::Level, unit, value });
}

fn tell_sum(name: &str, value: u64, take: &mut dyn FnMut(Reading<'_>)) {
    take(Reading { name, kind: CounterKind::Sum, unit: CounterUnit::Count, value });
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, UdpSocket};

    use super::*;

    fn row(port: u16, queue: u32) -> SocketRow {
        SocketRow {
            inode: 1,
            id: [0; 48],
            local: (IpAddr::V4(Ipv4Addr::LOCALHOST), port),
            listens: false,
            queue,
            drops: 1,
        }
    }

    fn told(tell: impl FnOnce(&mut dyn FnMut(Reading<'_>))) -> Vec<(String, u64)> {
        let mut told = Vec::new();
        tell(&mut |reading| told.push((reading.name.to_owned(), reading.value)));
        told
    }

    #[test]
    fn udp_sockets_go_by_their_address() {
        let rows = [row(4000, 5), row(4000, 6), row(4001, 0)];
        let named = |name: &str, value| (name.to_owned(), value);
        assert_eq!(
            told(|take| tell_udp(&rows.iter().collect::<Vec<_>>(), take)),
            [
                named("udp.queue 127.0.0.1:4000", 11),
                named("udp.drops 127.0.0.1:4000", 2),
                named("udp.queue 127.0.0.1:4001", 0),
                named("udp.drops 127.0.0.1:4001", 1),
            ]
        );
        let many: Vec<_> = (0..20).map(|port| row(port, 1)).collect();
        let told = told(|take| tell_udp(&many.iter().collect::<Vec<_>>(), take));
        assert_eq!(told.len(), 2 * (MAX_ADDRESSES + 1));
        assert_eq!(told[2 * MAX_ADDRESSES], ("udp.queue others".into(), 4));
    }

    #[test]
    fn tcp_sockets_are_told_together() {
        let listening = SocketRow { listens: true, ..row(80, 3) };
        let rows = [&row(80, 5), &row(80, 6), &listening];
        let told = told(|take| tell_tcp(&rows, take));
        assert_eq!(told.iter().map(|(_, value)| *value).collect::<Vec<_>>(), [11, 3, 3]);
    }

    #[test]
    fn an_own_socket_is_found() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let name = format!("udp.queue {}", socket.local_addr().unwrap());
        let mut sockets = Sockets::of(std::process::id());
        assert!(sockets.look(MonoNs(1)));
        let home = sockets.home().expect("a network namespace");
        let mut namespaces = Namespaces::default();
        let homes = BTreeMap::from([(home, std::process::id())]);
        namespaces.look(MonoNs(1), &homes, &sockets.inodes().collect());
        let found = told(|take| sockets.tell(MonoNs(1), &namespaces, take));
        assert!(found.iter().any(|(told, _)| *told == name), "{found:?}");
        assert_eq!(told(|take| sockets.tell(MonoNs(2), &namespaces, take)), [], "nothing new");
    }
}
