// SPDX-License-Identifier: Apache-2.0
//! `dropped-packets`: the kernel dropped packets at a UDP socket of the process, as nobody read it in time. The sender
//! learns nothing of it, and no call of the receiver fails.
//!
//! One finding a socket address, by the counters of the process's sockets (`live::counters::sockets`), which are read ten
//! times a second. It says what the threads that read the socket did between two readings of which the later one had
//! more dropped packets. Threads whose waits on the socket are recorded read it; else the one thread of the process that
//! polls. Of other threads it is not known.
//!
//! Where a finding about stalls says that packets were dropped meanwhile, there is no second one.
//!
//! False positives: packets with a wrong checksum, and those that a filter of the socket rejects, count as dropped, too.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use wallprof_analysis::receive::{Dropped, dropped};
use wallprof_analysis::tally::Tally;
use wallprof_meaning::site::Site;
use wallprof_model::counter::CounterTrack;
use wallprof_model::event::PeerKind;
use wallprof_model::{Reason, StallReason, ThreadKey};

use super::case::Case;
use super::conclusion::{Conclusion, Problem};
use super::evidence::{Evidence, Loss, Sum};
use super::limits::{Delays, LEAST_LOOP_WAITS, is_share};
use super::spec::{Cause, EvidenceKind, Reported, RuleSpec, Topic};
use super::{pool_exhausted, wording};

pub(super) const RULE: RuleSpec = RuleSpec {
    name: "dropped-packets",
    topic: None,
    excludes: &[Topic::Waits, Topic::Loops],
    cause: Cause::Program,
    evidence: EvidenceKind::StallsOrSums,
    find,
};

const DROPS: &str = "udp.drops ";
const QUEUE: &str = "udp.queue ";

const SECOND_NS: u64 = 1_000_000_000;

/// Fewer lost packets are usual.
const LEAST_PACKETS: u64 = 10;

/// What the receiver did is said where it has one of this many parts of the time.
const WORTH_SAYING: u64 = 5;

const ADVICE: &str = "Let a thread read the socket that does nothing else, and pass the packets on. A larger receive buffer \
    (SO_RCVBUF, net.core.rmem_max) helps where the receiver comes back before it is full.";

const ADVICE_RUNNING: &str = "Let the thread that reads the socket do less for each packet: read several at a time \
    (recvmmsg), pass them on to other threads, or let several sockets share the address (SO_REUSEPORT). A larger receive \
    buffer (SO_RCVBUF, net.core.rmem_max) helps where the receiver comes back before it is full.";

/// The packets that were dropped at one address of a process.
pub(super) struct Drops<'t> {
    pub thread: ThreadKey,
    address: &'t str,
    times: Vec<Dropped>,
    /// In the receive queue, at most, bytes.
    queue: u64,
    /// The counter's last value: processes that share a socket have the same.
    last: u64,
}

/// Those of a process, by its counters.
pub(super) fn drops(tracks: &[CounterTrack]) -> impl Iterator<Item = Drops<'_>> {
    tracks.iter().filter_map(|track| {
        let (thread, address) = (track.counter.thread?, address(&track.counter.name)?);
        let queue = tracks.iter().find(|queue| {
            let is_of_it = queue.counter.name.strip_prefix(QUEUE) == Some(address);
            is_of_it && queue.counter.thread == Some(thread)
        });
        let bytes = queue.into_iter().flat_map(|queue| &queue.points).map(|(_, bytes)| *bytes);
        let (times, last) = (dropped(track), track.points.last()?.1 as u64);
        Some(Drops { thread, address, times, queue: bytes.fold(0.0, f64::max) as u64, last })
    })
}

fn address(counter: &str) -> Option<&str> {
    counter.strip_prefix(DROPS)
}

/// The times in which so many packets were dropped at a socket of a process that a finding reads what its threads ran then.
pub fn times_of_drops(track: &CounterTrack) -> Vec<Dropped> {
    let times = address(&track.counter.name).map(|_| dropped(track)).unwrap_or_default();
    if packets(&times) < LEAST_PACKETS { Vec::new() } else { times }
}

fn packets(times: &[Dropped]) -> u64 {
    times.iter().fold(0, |sum, time| sum.saturating_add(time.packets))
}

fn find<'e>(evidence: &'e Evidence, reported: &Reported) -> Vec<Conclusion<'e>> {
    // A socket that processes share is counted at each of them.
    let mut sockets: BTreeMap<(&str, u64), Vec<Drops<'_>>> = BTreeMap::new();
    for drops in evidence.drops().filter(|drops| packets(&drops.times) >= LEAST_PACKETS) {
        sockets.entry((drops.address, drops.last)).or_default().push(drops);
    }
    sockets.into_values().filter_map(|shared| conclude(&shared, evidence, reported)).collect()
}

fn conclude<'e>(shared: &[Drops<'_>], evidence: &'e Evidence, reported: &Reported) -> Option<Conclusion<'e>> {
    let readers: Vec<Vec<ThreadKey>> = shared.iter().map(|drops| readers(drops, evidence)).collect();
    let first = readers.iter().position(|threads| !threads.is_empty()).unwrap_or(0);
    let (drops, readers) = (&shared[first], readers.concat());
    let did = Did::of(&readers, drops, evidence);
    let doing = did.most();
    let cases: Vec<&Case> = match doing {
        Some((Doing::Waits(words), _)) => {
            did.cases.iter().copied().filter(|case| waiting(case) == *words).collect()
        }
        _ => Vec::new(),
    };
    if is_said(drops, &readers, evidence, reported) {
        return None;
    }
    let threads = if readers.is_empty() { vec![drops.thread] } else { readers };
    let totals: Vec<_> = threads.iter().filter_map(|key| evidence.thread(*key)).collect();
    let program = wording::shown(&totals.first()?.process);
    let meanwhile = doing.map(|(doing, ns)| {
        let share = wording::percent(ns, did.whole_ns);
        let were = if threads.len() == 1 { "was" } else { "were" };
        let what = doing.words(&threads, evidence);
        format!(": meanwhile {} {were} {what} for {share} of the time", wording::threads(&totals))
    });
    let queue = match drops.queue {
        0 => String::new(),
        bytes => format!(", with up to {} in its receive queue", wording::size(bytes)),
    };
    let seconds = seconds(&drops.times, evidence);
    let title = format!(
        "{} packets were dropped at the socket udp {} of {program} in {} of {} s{queue}{}.",
        packets(&drops.times),
        drops.address,
        seconds.len(),
        seconds.last().map_or(0, |last| last + 1).max(evidence.duration_ns() / SECOND_NS),
        meanwhile.unwrap_or_default(),
    );
    let advice = match doing {
        Some((Doing::Runs, _)) => ADVICE_RUNNING,
        _ => ADVICE,
    };
    let lengths = drops.times.iter().map(|time| time.between.end.0.saturating_sub(time.between.start.0));
    let delays = Delays { count: packets(&drops.times), ..Delays::of(lengths) };
    let delays = doing.map_or(delays, |(_, ns)| Delays { total_ns: ns, ..delays });
    let waits_for_a_cpu = cases.first().is_some_and(|case| !matches!(case.reason, StallReason::Blocked(_)));
    let cases = if waits_for_a_cpu { cases } else { Vec::new() };
    Some(Problem::of_all(threads, delays).conclude(title, advice).with_stalls(cases))
}

/// Whether findings about stalls say of most of the packets that they were dropped meanwhile: stalls of the threads that read
/// the socket, or, where these are not known, of any thread of the process.
fn is_said(drops: &Drops<'_>, readers: &[ThreadKey], evidence: &Evidence, reported: &Reported) -> bool {
    let pid = evidence.thread(drops.thread).map(|thread| thread.pid);
    let threads = match readers.is_empty() {
        true => pid.map_or(Vec::new(), |pid| evidence.threads_of(pid)),
        false => readers.to_vec(),
    };
    let is_one = |time: &&Dropped| {
        let mut cases =
            threads.iter().flat_map(|thread| evidence.during(*thread, time.between.start, time.between.end));
        cases.any(|case| {
            reported.has(case) && evidence.backlog(case).is_some_and(|backlog| backlog.dropped > 0)
        })
    };
    let said = drops.times.iter().filter(is_one).fold(0u64, |sum, time| sum.saturating_add(time.packets));
    is_share(said, 2, packets(&drops.times))
}

/// The seconds of the recording at whose readings there were more.
fn seconds(times: &[Dropped], evidence: &Evidence) -> BTreeSet<u64> {
    times.iter().map(|time| time.between.end.0.saturating_sub(evidence.start().0 + 1) / SECOND_NS).collect()
}

/// The threads that read the socket.
fn readers(drops: &Drops<'_>, evidence: &Evidence) -> Vec<ThreadKey> {
    let Some(pid) = evidence.thread(drops.thread).map(|thread| thread.pid) else { return Vec::new() };
    let threads = evidence.threads_of(pid);
    let waits = |thread: &ThreadKey, is_one: &dyn Fn(&Case) -> bool| {
        evidence.cases_of(*thread).filter(|case| is_one(case)).count() as u64
    };
    let by_calls =
        threads.iter().copied().filter(|thread| waits(thread, &|case| reads(case, drops.address)) > 0);
    let by_calls: Vec<ThreadKey> = by_calls.collect();
    if !by_calls.is_empty() {
        return by_calls;
    }
    let polls = |case: &Case| case.reason == StallReason::Blocked(Reason::Poll);
    let polling: Vec<ThreadKey> =
        threads.into_iter().filter(|thread| waits(thread, &polls) >= LEAST_LOOP_WAITS).collect();
    if polling.len() == 1 { polling } else { Vec::new() }
}

/// Whether a wait is for packets at this address.
fn reads(case: &Case, address: &str) -> bool {
    let peer = case.peer.as_ref().filter(|peer| peer.kind == PeerKind::Udp);
    peer.and_then(|peer| peer.local).is_some_and(|local| local.to_string() == address)
}

/// What the threads that read a socket did while it dropped packets.
#[derive(Default)]
struct Did<'e> {
    /// Of all of them.
    whole_ns: u64,
    waits: Tally<String>,
    cases: Vec<&'e Case>,
    ran_ns: u64,
}

#[derive(Clone, Copy)]
enum Doing<'d> {
    Waits(&'d String),
    Runs,
}

impl<'e> Did<'e> {
    fn of(readers: &[ThreadKey], drops: &Drops<'_>, evidence: &'e Evidence) -> Self {
        let mut did = Did::default();
        for thread in readers {
            let mut awake_ns = 0u64;
            for Dropped { between, .. } in &drops.times {
                let length_ns = between.end.0.saturating_sub(between.start.0);
                let mut off_ns = 0u64;
                for case in evidence.during(*thread, between.start, between.end) {
                    let ns = case.overlap_ns(between.start, between.end);
                    off_ns = off_ns.saturating_add(ns);
                    if !reads(case, drops.address) && case.reason != StallReason::Blocked(Reason::Poll) {
                        did.waits.add(waiting(case), ns);
                        did.cases.push(case);
                    }
                }
                did.whole_ns = did.whole_ns.saturating_add(length_ns);
                awake_ns = awake_ns.saturating_add(length_ns.saturating_sub(off_ns));
            }
            // Waits that are too short to be kept are no running time.
            let sampled_ns = ran(&[*thread], evidence).fold(0u64, |sum, (_, ns)| sum.saturating_add(ns));
            did.ran_ns = did.ran_ns.saturating_add(awake_ns.min(sampled_ns));
        }
        did.cases.sort_by_key(|case| case.id);
        did.cases.dedup_by_key(|case| case.id);
        did
    }

    /// What they did most, and for how long, ns, if that is worth saying.
    fn most(&self) -> Option<(Doing<'_>, u64)> {
        let waited = self.waits.top().map(|(words, ns)| (Doing::Waits(words), ns));
        let most = waited.into_iter().chain([(Doing::Runs, self.ran_ns)]).max_by_key(|(_, ns)| *ns);
        most.filter(|(_, ns)| *ns > 0 && is_share(*ns, WORTH_SAYING, self.whole_ns))
    }
}

/// Where a thread waits for a CPU is chance.
fn waiting(case: &Case) -> String {
    match case.reason {
        StallReason::Preempted | StallReason::Runnable => "waiting for a CPU".to_owned(),
        _ => pool_exhausted::waiting(case),
    }
}

impl Doing<'_> {
    /// `asleep in nap`, `running in rebuild_book`.
    fn words(&self, threads: &[ThreadKey], evidence: &Evidence) -> String {
        let Doing::Waits(words) = self else { return format!("running{}", running_in(threads, evidence)) };
        (*words).clone()
    }
}

/// The places where threads ran in the seconds with dropped packets.
fn ran<'e>(
    threads: &[ThreadKey],
    evidence: &'e Evidence,
) -> impl Iterator<Item = (Option<&'e Arc<Site>>, u64)> {
    let is_one = |sum: &&Sum| matches!(sum.loss, Loss::Running) && threads.contains(&sum.thread);
    evidence.sums().filter(is_one).map(|sum| (sum.site.as_ref(), sum.ns))
}

/// ` in rebuild_book (called by take_packet)`: the place of half of the running time.
fn running_in(threads: &[ThreadKey], evidence: &Evidence) -> String {
    let mut functions: Tally<&Arc<str>> = Tally::default();
    let mut sites: Tally<&Arc<Site>> = Tally::default();
    let whole_ns = ran(threads, evidence).fold(0u64, |sum, (_, ns)| sum.saturating_add(ns));
    for (site, ns) in ran(threads, evidence) {
        if let Some((site, function)) = site.and_then(|site| Some((site, site.functions.first()?))) {
            functions.add(function, ns);
            sites.add(site, ns);
        }
    }
    let function =
        functions.top().filter(|(_, ns)| is_share(*ns, 2, whole_ns)).map(|(function, _)| *function);
    let of_it =
        sites.ranked().into_iter().map(|(site, _)| *site).find(|site| site.functions.first() == function);
    wording::place(of_it.filter(|_| function.is_some()))
}

#[cfg(test)]
mod tests {
    use super::super::evidence::SumRow;
    use super::super::findings;
    use super::super::fixture::{Fixture, at, case, lock_case, stack, sum, udp_drops, udp_queue, untracked};
    use super::*;
    use wallprof_model::Counter;
    use wallprof_model::event::{Awaited, Peer};
    use wallprof_model::profile::{Finding, StallRecord};

    const MS: u64 = 1_000_000;

    /// Packets are dropped between 100 and 200 ms of each of four seconds. Stalls start a second after their time.
    fn drops(packets: u64) -> Vec<CounterTrack> {
        let readings = (2..=5).flat_map(|second| {
            let before = 7 + (second - 2) * packets;
            [(second * 1_000 + 100, before), (second * 1_000 + 200, before + packets)]
        });
        vec![
            udp_drops(&readings.collect::<Vec<_>>()),
            udp_queue(&[(500, 0), (1_200, 126 * 1_024), (1_300, 0)]),
        ]
    }

    /// A wait of thread 2 for packets.
    fn receive(id: u64, start_ms: u64, ms: u64) -> StallRecord {
        let peer = Peer {
            kind: PeerKind::Udp,
            awaited: Awaited::Data,
            role: None,
            asked: None,
            local: "10.0.0.1:5000".parse().ok(),
            remote: None,
            inode: 7,
            by_child: false,
            process: None,
        };
        let wait = case(id, 2, StallReason::Blocked(Reason::Network), ms * MS);
        at(start_ms * MS, StallRecord { voluntary: true, peer: Some(Box::new(peer)), ..wait })
    }

    /// Waits of thread 2 while packets are dropped, of which it makes one in each of four seconds.
    fn each_second(wait: impl Fn(u64) -> StallRecord) -> Vec<StallRecord> {
        (1..=4)
            .flat_map(|second| {
                let id = second * 10;
                [receive(id, second * 1_000 + 10, 90), at((second * 1_000 + 110) * MS, wait(id + 1))]
            })
            .collect()
    }

    fn found(tracks: Vec<CounterTrack>, stalls: Vec<StallRecord>, ran_ms: u64) -> Vec<Finding> {
        let mut fixture = Fixture::new();
        fixture.process_counters = tracks;
        stalls.into_iter().for_each(|stall| fixture.stall(stall));
        let user = Some(stack(&["rebuild_book", "take_packet", "run"]));
        let (thread, loss, ns) = (ThreadKey(2), Loss::Running, ran_ms * MS);
        fixture.sums = vec![SumRow { thread, loss, user, kernel: None, ns, count: 4 }];
        findings(&fixture.evidence())
    }

    fn sleep(id: u64) -> StallRecord {
        let user = Some(stack(&["nanosleep", "nap", "run"]));
        StallRecord { voluntary: true, user, ..case(id, 2, StallReason::Blocked(Reason::Sleep), 80 * MS) }
    }

    #[test]
    fn receiver_that_slept_is_named() {
        let found = found(drops(600), each_second(sleep), 1);
        assert_eq!(found.len(), 1, "{found:#?}");
        assert_eq!(
            found[0].title,
            "2400 packets were dropped at the socket udp 10.0.0.1:5000 of app in 4 of 10 s, with up to 126 KiB in its \
             receive queue: meanwhile thread-2 of app was asleep in nap for 80 % of the time."
        );
        assert_eq!((found[0].rule.as_str(), found[0].cause), (RULE.name, Cause::Program));
        assert_eq!((found[0].count, found[0].total_ns, found[0].max_ns), (2_400, 320 * MS, 100 * MS));
        assert_eq!((found[0].threads.as_slice(), found[0].stalls.len()), (&[ThreadKey(2)][..], 0));
        assert!(found[0].advice.contains("SO_RCVBUF"), "{}", found[0].advice);
    }

    #[test]
    fn receiver_that_computed_is_named() {
        let waits = (1..=4).map(|second| receive(second, second * 1_000 + 10, 90));
        let found = found(drops(600), waits.collect(), 500);
        assert_eq!(found.len(), 1, "{found:#?}");
        let end = ": meanwhile thread-2 of app was running in rebuild_book (called by take_packet) for 100 % of the time.";
        assert!(found[0].title.ends_with(end), "{}", found[0].title);
        assert!(found[0].advice.contains("SO_REUSEPORT"), "{}", found[0].advice);
    }

    #[test]
    fn unknown_receiver_did_nothing_that_is_known() {
        let found = found(drops(600), Vec::new(), 500);
        assert!(found[0].title.ends_with(" of app in 4 of 10 s, with up to 126 KiB in its receive queue."));
    }

    #[test]
    fn thread_that_polls_alone_reads_the_socket() {
        let polls = |threads: u32| {
            let poll = move |id: u64, thread| {
                let poll = case(id, thread, StallReason::Blocked(Reason::Poll), 10 * MS);
                at((5_000 + id % 100 * 20) * MS, StallRecord { voluntary: true, ..poll })
            };
            let polls = (0..threads).flat_map(move |other| {
                (0..9).map(move |id| poll(500 + u64::from(other) * 100 + id, 2 + other))
            });
            (1..=4).map(|id| at((id * 1_000 + 110) * MS, sleep(id))).chain(polls).collect::<Vec<_>>()
        };
        let title = |threads| {
            let mut found = found(drops(600), polls(threads), 1);
            found.retain(|found| found.rule == RULE.name);
            found.remove(0).title
        };
        assert!(title(1).contains("meanwhile thread-2 of app was asleep in nap"), "{}", title(1));
        assert!(!title(2).contains("meanwhile"), "{}", title(2));
    }

    #[test]
    fn finding_about_stalls_that_says_it_is_the_only_one() {
        let lock = |id| StallRecord { comm: "thread-2".into(), ..lock_case(id, 2, 3, 80 * MS) };
        let found = found(drops(600), each_second(lock), 1);
        assert_eq!(found.len(), 1, "{found:#?}");
        assert_eq!(found[0].rule, "lock-wait");
        assert!(found[0].title.contains("packets were dropped"), "{}", found[0].title);
    }

    #[test]
    fn socket_that_two_processes_have_is_one_finding() {
        let mut tracks = drops(600);
        let shared = CounterTrack {
            counter: Counter { thread: Some(ThreadKey(9)), ..tracks[0].counter.clone() },
            ..tracks[0].clone()
        };
        tracks.push(shared);
        let found = found(tracks, each_second(sleep), 1);
        assert_eq!(found.len(), 1, "{found:#?}");
    }

    #[test]
    fn few_packets_and_other_sockets_are_none() {
        assert_eq!(found(drops(2), each_second(sleep), 1), []);
        let tcp = sum("tcp.drops", 1, &[(500, 0), (900, 5_000)]);
        assert_eq!(found(vec![tcp], each_second(sleep), 1), []);
    }

    #[test]
    fn receiver_without_a_cpu_is_the_machines() {
        let queued = |id| StallRecord {
            ran_instead: vec![(untracked("build"), 80 * MS)],
            ..case(id, 2, StallReason::Runnable, 80 * MS)
        };
        let mut found = found(drops(600), each_second(queued), 1);
        found.retain(|found| found.rule == RULE.name);
        assert_eq!(found[0].cause, Cause::Machine, "{found:#?}");
        assert!(found[0].title.contains("was waiting for a CPU for 80 %"), "{}", found[0].title);
    }
}
