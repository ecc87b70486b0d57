//! The sockets of a process: what arrived and nobody has read, and what did not fit.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::net::SocketAddr;

use wallprof_model::{CounterKind, CounterUnit, MonoNs};
use wallprof_probe::clock;

use super::Reading;
use super::netlink::{IPV4, IPV6, Protocol, SocketList, SocketRow};
use super::pace::Pace;

/// Of a process with more files than this open the rest is not looked at.
const MAX_FILES: usize = 1024;
/// UDP sockets that are told by their address; the others together.
const MAX_ADDRESSES: usize = 16;
/// How often files are listed: new sockets are found so.
const LIST_EVERY_NS: u64 = 1_000_000_000;
/// Where no socket of a kind was found it is looked for this seldom.
const REST_NS: u64 = 2_000_000_000;

/// The sockets of one process.
pub struct Sockets {
    pid: u32,
    inodes: HashSet<u32>,
    files: Pace,
    sides: [Side; 4],
    /// Opened when the first socket is found; gone when the kernel answers with an error.
    list: Option<SocketList>,
}

/// One kind of sockets.
struct Side {
    protocol: Protocol,
    family: u8,
    pace: Pace,
    rows: Vec<SocketRow>,
}

impl Sockets {
    pub fn of(pid: u32) -> Self {
        let side = |protocol, family| Side { protocol, family, pace: Pace::default(), rows: Vec::new() };
        Sockets {
            pid,
            inodes: HashSet::new(),
            files: Pace::default(),
            sides: [
                side(Protocol::Udp, IPV4),
                side(Protocol::Udp, IPV6),
                side(Protocol::Tcp, IPV4),
                side(Protocol::Tcp, IPV6),
            ],
            list: None,
        }
    }

    pub fn read(&mut self, at: MonoNs, take: &mut dyn FnMut(Reading<'_>)) {
        if self.files.is_due(at) {
            let began = clock::thread_cpu_ns();
            self.inodes = socket_inodes(self.pid);
            self.files.took(at, clock::thread_cpu_ns().saturating_sub(began));
            self.files.rest(at, LIST_EVERY_NS);
        }
        if self.inodes.is_empty() {
            return;
        }
        if self.list.is_none() {
            self.list = SocketList::of_process(self.pid).ok();
        }
        let mut has_news = false;
        for side in &mut self.sides {
            if let Some(list) = &mut self.list
                && side.pace.is_due(at)
            {
                has_news = true;
                if !side.look(list, &self.inodes, at) {
                    self.list = None;
                }
            }
        }
        if has_news {
            let rows: Vec<&SocketRow> = self.rows(Protocol::Udp).collect();
            tell_udp(&rows, take);
            let rows: Vec<&SocketRow> = self.rows(Protocol::Tcp).collect();
            tell_tcp(&rows, take);
        }
    }

    fn rows(&self, protocol: Protocol) -> impl Iterator<Item = &SocketRow> {
        self.sides.iter().filter(move |side| side.protocol == protocol).flat_map(|side| &side.rows)
    }
}

impl Side {
    /// False when the kernel did not answer.
    fn look(&mut self, list: &mut SocketList, inodes: &HashSet<u32>, at: MonoNs) -> bool {
        let began = clock::thread_cpu_ns();
        let listed = list.list(self.protocol, self.family);
        let answered = listed.is_ok();
        self.rows = listed.unwrap_or_default();
        self.rows.retain(|row| inodes.contains(&row.inode));
        self.pace.took(at, clock::thread_cpu_ns().saturating_sub(began));
        if self.rows.is_empty() {
            self.pace.rest(at, REST_NS);
        }
        answered
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
        let found = told(|take| sockets.read(MonoNs(1), take));
        assert!(found.iter().any(|(told, _)| *told == name), "{found:?}");
    }
}
