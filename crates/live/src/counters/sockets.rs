// SPDX-License-Identifier: Apache-2.0
//! The sockets of a process: bytes that have not been read, and packets that were dropped.
//!
//! Owns when its files are listed to find them: that costs about a µs a file.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;

use wallprof_model::{CounterKind, CounterUnit, MonoNs};
use wallprof_probe::clock;

use super::Reading;
use super::activity::Activity;
use super::folder::Folder;
use super::namespaces::{NamespaceId, Namespaces};
use super::netlink::{Protocol, SocketRow};
use super::text::{TextFile, number_after};

/// Of a process with more open files the rest is not read.
const MAX_FILES: usize = 1024;
/// UDP sockets that have a counter of their own, by address. The others share one.
const MAX_ADDRESSES: usize = 16;
/// How often files are counted. They are listed where their number, or that of the sockets in their
/// namespace, has changed since the last listing. New sockets are found so.
const COUNT_EVERY_NS: u64 = 1_000_000_000;
/// A listing that finds something may use this part of one CPU, a thousandth. One in vain may use less.
const SHARE: u64 = 1000;
const SHARE_IN_VAIN: u64 = 5000;
/// Files are listed also where their number has not changed, since one may have taken another's place or come
/// from another process. While nothing is new these listings become rarer, up to this interval,
const LONGEST_NS: u64 = 8_000_000_000;
/// or, where that would use more than a fifty-thousandth of one CPU, up to this.
const SHARE_ANYWAY: u64 = 50_000;
const LONGEST_ANYWAY_NS: u64 = 30_000_000_000;

/// The sockets of a process.
pub struct Sockets {
    pid: u32,
    /// `None`: it has ended, or its files may not be read.
    files: Option<Folder>,
    inodes: HashSet<u32>,
    /// Their namespace.
    namespace: Option<NamespaceId>,
    /// The kernel's counts of the sockets there.
    stock: Option<TextFile>,
    /// It may have run since its files were last listed.
    may_be_stale: bool,
    count_due: u64,
    /// The time of the last listing.
    counts: Counts,
    plan: Plan,
}

/// Numbers that change when a socket is opened or closed. `None` where the kernel does not report them.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// Files of the process.
    files: Option<u64>,
    /// Sockets of all kinds in its network namespace.
    sockets: Option<u64>,
}

/// The time of the next listing.
#[derive(Clone, Copy, Debug)]
struct Plan {
    /// Not sooner than this.
    soonest: u64,
    /// At this time whatever the counts are, and the interval that led to it.
    anyway: u64,
    rest_ns: u64,
}

impl Sockets {
    pub fn of(pid: u32) -> Self {
        Sockets {
            pid,
            files: Folder::open(&format!("/proc/{pid}/fd")),
            inodes: HashSet::new(),
            namespace: None,
            stock: None,
            may_be_stale: true,
            count_due: 0,
            counts: Counts::default(),
            plan: Plan::new(),
        }
    }

    /// Looks for new sockets when that is due. True when they have changed.
    pub fn look(&mut self, at: MonoNs, activity: Activity) -> bool {
        self.may_be_stale |= activity == Activity::MayRun;
        if !self.may_be_stale || at.0 < self.count_due {
            return false;
        }
        self.count_due = at.0.saturating_add(COUNT_EVERY_NS);
        if !self.is_worth_listing(at) {
            return false;
        }
        let began = clock::thread_cpu_ns();
        let has_changed = self.list();
        self.plan.listed(at, clock::thread_cpu_ns().saturating_sub(began), has_changed);
        self.may_be_stale = false;
        has_changed
    }

    fn is_worth_listing(&mut self, at: MonoNs) -> bool {
        if at.0 < self.plan.soonest {
            return false;
        }
        at.0 >= self.plan.anyway
            || (is_other(self.counts.files, self.count_files())
                && is_other(self.counts.sockets, self.count_sockets()))
    }

    /// The size of the directory is the number of open files, from Linux 6.2 on (fs/proc/fd.c,
    /// proc_fd_getattr).
    fn count_files(&self) -> Option<u64> {
        Some(self.files.as_ref()?.metadata()?.size()).filter(|count| *count > 0)
    }

    fn count_sockets(&mut self) -> Option<u64> {
        number_after(self.stock.as_mut()?.read().ok()?, "sockets: used")
    }

    fn list(&mut self) -> bool {
        let namespace = fs::metadata(format!("/proc/{}/ns/net", self.pid)).ok().map(|file| file.ino());
        let moved = namespace != self.namespace;
        if moved || self.stock.is_none() {
            self.namespace = namespace;
            self.stock = TextFile::open(format!("/proc/{}/net/sockstat", self.pid));
        }
        // Later openings change these counts.
        self.counts = Counts { files: self.count_files(), sockets: self.count_sockets() };
        let inodes = self.files.as_ref().map(socket_inodes).unwrap_or_default();
        let has_changed = moved || inodes != self.inodes;
        self.inodes = inodes;
        has_changed
    }

    /// Their inodes.
    pub fn inodes(&self) -> impl Iterator<Item = u32> {
        self.inodes.iter().copied()
    }

    /// Their network namespace. None without a socket.
    pub fn home(&self) -> Option<NamespaceId> {
        self.namespace.filter(|_| !self.inodes.is_empty())
    }

    /// Passes what the kernel listed at `at`.
    pub fn pass(&self, at: MonoNs, namespaces: &Namespaces, take: &mut dyn FnMut(Reading<'_>)) {
        let Some(listed) = self.home().and_then(|home| namespaces.listed_at(at, home)) else { return };
        let own: Vec<_> = listed.filter(|(_, row)| self.inodes.contains(&row.inode)).collect();
        let of = |wanted| -> Vec<&SocketRow> {
            own.iter().filter(|(protocol, _)| *protocol == wanted).map(|(_, row)| *row).collect()
        };
        pass_udp(&of(Protocol::Udp), take);
        pass_tcp(&of(Protocol::Tcp), take);
    }
}

impl Plan {
    /// A process that has just started is about to open its files.
    fn new() -> Self {
        Plan { soonest: 0, anyway: 0, rest_ns: COUNT_EVERY_NS / 2 }
    }

    /// A listing at `at` used this much CPU time.
    fn listed(&mut self, at: MonoNs, cost_ns: u64, has_changed: bool) {
        let share = if has_changed { SHARE } else { SHARE_IN_VAIN };
        let longest = cost_ns.saturating_mul(SHARE_ANYWAY).clamp(LONGEST_NS, LONGEST_ANYWAY_NS);
        self.rest_ns = if has_changed { COUNT_EVERY_NS } else { (self.rest_ns * 2).min(longest) };
        self.soonest = at.0.saturating_add(cost_ns.saturating_mul(share).min(LONGEST_NS));
        self.anyway = at.0.saturating_add(self.rest_ns);
    }
}

/// An unknown number may be another one.
fn is_other(before: Option<u64>, now: Option<u64>) -> bool {
    before.is_none() || before != now
}

fn socket_inodes(files: &Folder) -> HashSet<u32> {
    let mut inodes = HashSet::new();
    let mut looked_at = 0;
    files.numbers(|_, name| {
        inodes.extend(files.target(name, socket_from_target));
        looked_at += 1;
        if looked_at < MAX_FILES { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    inodes
}

/// `socket:[INODE]`
pub(super) fn socket_from_target(target: &[u8]) -> Option<u32> {
    let inode = target.strip_prefix(b"socket:[")?.strip_suffix(b"]")?;
    std::str::from_utf8(inode).ok()?.parse().ok()
}

/// By local address. Sockets with the same address are added up.
fn pass_udp(rows: &[&SocketRow], take: &mut dyn FnMut(Reading<'_>)) {
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
        pass_level(&format!("udp.queue {address}"), CounterUnit::Bytes, queue, take);
        pass_sum(&format!("udp.drops {address}"), drops, take);
    }
}

fn pass_tcp(rows: &[&SocketRow], take: &mut dyn FnMut(Reading<'_>)) {
    if rows.is_empty() {
        return;
    }
    let sum = |listens: bool| {
        rows.iter().filter(|row| row.listens == listens).map(|row| u64::from(row.queue)).sum::<u64>()
    };
    pass_level("tcp.queue", CounterUnit::Bytes, sum(false), take);
    pass_level("tcp.backlog", CounterUnit::Count, sum(true), take);
    pass_sum("tcp.drops", rows.iter().map(|row| u64::from(row.drops)).sum(), take);
}

fn pass_level(name: &str, unit: CounterUnit, value: u64, take: &mut dyn FnMut(Reading<'_>)) {
    take(Reading { name, kind: CounterKind::Level, unit, value });
}

fn pass_sum(name: &str, value: u64, take: &mut dyn FnMut(Reading<'_>)) {
    take(Reading { name, kind: CounterKind::Sum, unit: CounterUnit::Count, value });
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, UdpSocket};
    use std::os::fd::AsRawFd;

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

    fn passed(pass: impl FnOnce(&mut dyn FnMut(Reading<'_>))) -> Vec<(String, u64)> {
        let mut values = Vec::new();
        pass(&mut |reading| values.push((reading.name.to_owned(), reading.value)));
        values
    }

    #[test]
    fn udp_sockets_are_counted_by_address() {
        let rows = [row(4000, 5), row(4000, 6), row(4001, 0)];
        let named = |name: &str, value| (name.to_owned(), value);
        assert_eq!(
            passed(|take| pass_udp(&rows.iter().collect::<Vec<_>>(), take)),
            [
                named("udp.queue 127.0.0.1:4000", 11),
                named("udp.drops 127.0.0.1:4000", 2),
                named("udp.queue 127.0.0.1:4001", 0),
                named("udp.drops 127.0.0.1:4001", 1),
            ]
        );
        let many: Vec<_> = (0..20).map(|port| row(port, 1)).collect();
        let values = passed(|take| pass_udp(&many.iter().collect::<Vec<_>>(), take));
        assert_eq!(values.len(), 2 * (MAX_ADDRESSES + 1));
        assert_eq!(values[2 * MAX_ADDRESSES], ("udp.queue others".into(), 4));
    }

    #[test]
    fn tcp_sockets_are_summed() {
        let listening = SocketRow { listens: true, ..row(80, 3) };
        let rows = [&row(80, 5), &row(80, 6), &listening];
        let values = passed(|take| pass_tcp(&rows, take));
        assert_eq!(values.iter().map(|(_, value)| *value).collect::<Vec<_>>(), [11, 3, 3]);
    }

    #[test]
    fn own_socket_is_found() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let name = format!("udp.queue {}", socket.local_addr().unwrap());
        let mut sockets = Sockets::of(std::process::id());
        assert!(sockets.look(MonoNs(1), Activity::Rests), "it has never been listed");
        let home = sockets.home().expect("a network namespace");
        let mut namespaces = Namespaces::default();
        let homes = BTreeMap::from([(home, std::process::id())]);
        namespaces.look(MonoNs(1), &homes, &sockets.inodes().collect());
        let found = passed(|take| sockets.pass(MonoNs(1), &namespaces, take));
        assert!(found.iter().any(|(found, _)| *found == name), "{found:?}");
        assert_eq!(passed(|take| sockets.pass(MonoNs(2), &namespaces, take)), [], "nothing new");
    }

    const SECOND_NS: u64 = 1_000_000_000;

    fn inode(socket: &UdpSocket) -> u32 {
        fs::metadata(format!("/proc/self/fd/{}", socket.as_raw_fd())).unwrap().ino() as u32
    }

    #[test]
    fn new_socket_of_a_running_process_is_found_within_a_second() {
        let mut sockets = Sockets::of(std::process::id());
        sockets.look(MonoNs(SECOND_NS), Activity::MayRun);
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        // As if no other test had opened sockets, nor changed the counts back.
        sockets.inodes.retain(|known| *known != inode(&socket));
        sockets.counts = Counts { files: Some(0), sockets: Some(0) };
        sockets.plan = Plan { soonest: 0, anyway: u64::MAX, rest_ns: 0 };
        assert!(
            !sockets.look(MonoNs(2 * SECOND_NS - 1), Activity::MayRun),
            "files are counted once a second"
        );
        assert!(sockets.look(MonoNs(2 * SECOND_NS), Activity::MayRun));
        assert!(sockets.inodes().any(|known| known == inode(&socket)));
    }

    #[test]
    fn resting_process_is_listed_once() {
        let mut sockets = Sockets::of(std::process::id());
        sockets.look(MonoNs(SECOND_NS), Activity::MayRun);
        let due = |sockets: &Sockets| sockets.plan.anyway;
        let first = due(&sockets);
        for second in 2..100 {
            sockets.look(MonoNs(second * SECOND_NS), Activity::Rests);
            assert_eq!(due(&sockets), first, "{second}");
        }
        sockets.look(MonoNs(100 * SECOND_NS), Activity::MayRun);
        assert!(due(&sockets) > 100 * SECOND_NS);
    }

    #[test]
    fn listing_is_put_off_by_its_cost_and_result() {
        let listed = |costs: &[(u64, bool)]| {
            let mut plan = Plan::new();
            costs.iter().for_each(|(cost_ns, has_changed)| plan.listed(MonoNs(0), *cost_ns, *has_changed));
            [plan.soonest, plan.anyway].map(|ns| ns / 1_000_000)
        };
        assert_eq!(listed(&[(20_000, true)]), [20, 1_000]);
        assert_eq!(listed(&[(20_000, false)]), [100, 1_000], "it has just started");
        assert_eq!(listed(&[(20_000, false); 9]), [100, 8_000]);
        assert_eq!(listed(&[(400_000, false); 9]), [2_000, 20_000], "a fifty-thousandth");
        assert_eq!(listed(&[(u64::MAX, false); 9]), [8_000, 30_000]);
        assert_eq!(
            listed(&[(2_000_000, false), (2_000_000, true)]),
            [2_000, 1_000],
            "thousands of connections"
        );
    }

    #[test]
    fn only_sockets_are_sockets() {
        let targets: [&[u8]; 6] = [
            b"socket:[12]",
            b"socket:[4294967295]",
            b"pipe:[12]",
            b"/socket:[12]",
            b"socket:[12",
            b"socket:[x]",
        ];
        let expected = [Some(12), Some(u32::MAX), None, None, None, None];
        assert_eq!(targets.map(socket_from_target), expected);
    }
}
