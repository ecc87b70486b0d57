// SPDX-License-Identifier: Apache-2.0
//! Requests of a server that waited for another one, by the counters of its connections: a proxy sleeps in epoll
//! meanwhile, as it does without a request. The recorder counts a request only while a client waits for the
//! server (`live::counters::upstreams`).

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use wallprof_model::ThreadKey;
use wallprof_model::counter::CounterTrack;

use super::conclusion::{Conclusion, Problem};
use super::evidence::{Evidence, ThreadTotals};
use super::limits::{Delays, is_share, wall_ns};
use super::wording;

const WAITED: &str = "upstream.waited ";
const REQUESTS: &str = "upstream.requests ";
const LONGEST: &str = "upstream.longest ";
const PROCESS: &str = "upstream.process ";
/// The name in place of an address where there are too many.
const OTHERS: &str = "others";

/// One request that waited for as long as this many times the shortest stall is a finding,
const LONG: u64 = 1_000;
/// and so are this many, of which one waited for as long as this, in a hundredth of the time. Counters are read
/// ten times a second, so that one slow answer of many that are quick is seen by chance.
const FEW: u64 = 3;
const SLOW: u64 = 200;
pub(super) const READ_EVERY_NS: u64 = 100_000_000;

const ADVICE: &str = "Record the upstream too, to see what it does meanwhile. Cache its answers, ask for them in \
                      parallel, or give it more workers.";

/// Whether a counter of a process is one of those that are read here.
pub fn reads_counter(name: &str) -> bool {
    [WAITED, REQUESTS, LONGEST, PROCESS].iter().any(|prefix| name.starts_with(prefix))
}

/// The requests of one process that waited for one upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Upstream<'t> {
    pub thread: ThreadKey,
    pub address: &'t str,
    delays: Delays,
    /// Its name, and its number if there is one process of that name.
    process: Option<(&'t str, u32)>,
}

/// The upstreams of a process, by its counters.
pub(super) fn upstreams(tracks: &[CounterTrack]) -> Vec<Upstream<'_>> {
    let found = waited(tracks, [WAITED, REQUESTS, LONGEST]).map(|(thread, address, delays)| Upstream {
        thread,
        address,
        delays,
        process: of_kind(tracks, PROCESS).find_map(|(of, name, track)| {
            let (its, comm) = name.split_once(' ').filter(|_| of == thread)?;
            (its == address).then(|| (comm, u32::try_from(most(track)).unwrap_or(0)))
        }),
    });
    found.collect()
}

/// What has waited at each address, by the thread whose process the counters with these names are of: their sum, how
/// many, and the longest.
pub(super) fn waited<'t>(
    tracks: &'t [CounterTrack],
    [total, count, longest]: [&'static str; 3],
) -> impl Iterator<Item = (ThreadKey, &'t str, Delays)> {
    let track_of = move |prefix, thread, address| {
        let mut tracks = of_kind(tracks, prefix);
        tracks.find(|(of, name, _)| (*of, *name) == (thread, address)).map(|(.., track)| track)
    };
    let found = of_kind(tracks, total).map(move |(thread, address, track)| {
        let (count, total_ns) = (track_of(count, thread, address).map_or(0, grown), grown(track));
        let is_whole = track.points.first().is_some_and(|(_, value)| *value == 0.0);
        let longest = track_of(longest, thread, address).filter(|track| is_whole || grown(track) > 0);
        // Of a part of a recording in which none was longer than those before, the mean.
        let max_ns = longest.map_or(total_ns.div_ceil(count.max(1)), most).min(total_ns);
        (thread, address, Delays { count, total_ns, max_ns })
    });
    found.filter(|(.., delays)| delays.count > 0)
}

/// The counters whose names begin so, each with the rest of its name.
fn of_kind<'t>(
    tracks: &'t [CounterTrack],
    prefix: &'static str,
) -> impl Iterator<Item = (ThreadKey, &'t str, &'t CounterTrack)> {
    let rest = move |track: &'t CounterTrack| {
        Some((track.counter.thread?, track.counter.name.strip_prefix(prefix)?, track))
    };
    tracks.iter().filter_map(rest)
}

/// A sum counts from its first value on.
pub(super) fn grown(track: &CounterTrack) -> u64 {
    let ends = track.points.first().zip(track.points.last());
    ends.map_or(0, |((_, first), (_, last))| (last - first).max(0.0) as u64)
}

fn most(track: &CounterTrack) -> u64 {
    track.points.iter().map(|(_, value)| *value).fold(0.0, f64::max) as u64
}

/// The conclusions about them, one for each program and upstream. `reported` are conclusions about the same
/// waits, by the stalls of threads that waited in a call on the connection.
pub(super) fn conclusions<'e>(evidence: &'e Evidence, reported: &[Conclusion<'e>]) -> Vec<Conclusion<'e>> {
    let reported: HashSet<(u32, String)> = reported
        .iter()
        .flat_map(|conclusion| &conclusion.cases)
        .filter_map(|case| Some((case.pid, case.peer.as_ref()?.remote?.to_string())))
        .collect();
    let mut groups: BTreeMap<(Arc<str>, String), Vec<Upstream<'e>>> = BTreeMap::new();
    for upstream in evidence.upstreams() {
        let Some(thread) = evidence.thread(upstream.thread) else { continue };
        if !reported.contains(&(thread.pid, upstream.address.to_owned())) {
            let key = (Arc::clone(&thread.process), upstream.address.to_owned());
            groups.entry(key).or_default().push(upstream);
        }
    }
    groups.into_values().filter_map(|upstreams| conclude(&upstreams, evidence)).collect()
}

fn conclude<'e>(upstreams: &[Upstream<'e>], evidence: &'e Evidence) -> Option<Conclusion<'e>> {
    let first = upstreams.first()?;
    let delays = upstreams.iter().fold(Delays::default(), |sum, upstream| sum.with(upstream.delays));
    let threads: BTreeSet<ThreadKey> = upstreams.iter().map(|upstream| upstream.thread).collect();
    let threads: Vec<ThreadKey> = threads.into_iter().collect();
    if !is_worth_a_finding(delays, wall_ns(evidence, &threads), evidence)
        || delays.is_negligible(evidence, &threads)
    {
        return None;
    }
    // Counters are of processes.
    let processes: Vec<ThreadTotals> = threads
        .iter()
        .filter_map(|&key| evidence.thread(key))
        .map(|thread| ThreadTotals { comm: Arc::clone(&thread.process), ..thread.clone() })
        .collect();
    let who = wording::threads(&processes.iter().collect::<Vec<_>>());
    let requests = match delays.count {
        1 => format!("one request for {}", wording::time(delays.total_ns)),
        count => format!(
            "{count} requests, {} in all, up to {}",
            wording::time(delays.total_ns),
            wording::time(delays.max_ns)
        ),
    };
    let more = match delays.max_ns < READ_EVERY_NS {
        true => " Answers that take less than 100 ms are seen by chance: there were more of them.",
        false => "",
    };
    let title = format!(
        "{who} waited for an answer of {} to {requests}, while clients waited for {who}.{more}",
        name(first.address, upstreams)
    );
    let delays = delays.within(&threads, evidence);
    Some(Problem::of_all(threads, delays).conclude(title, ADVICE))
}

/// Whether requests waited so often, or one for so long, where `whole_ns` could have been waited.
pub(super) fn is_worth_a_finding(delays: Delays, whole_ns: u64, evidence: &Evidence) -> bool {
    let unit = evidence.unit_ns();
    let is_often = delays.count >= FEW
        && delays.max_ns >= unit.saturating_mul(SLOW)
        && is_share(delays.total_ns, 100, whole_ns);
    is_often || delays.max_ns >= unit.saturating_mul(LONG)
}

/// `the upstream 127.0.0.1:9000 (python3 4711)`.
fn name(address: &str, upstreams: &[Upstream<'_>]) -> String {
    if address == OTHERS {
        return "further upstreams".into();
    }
    let processes: BTreeSet<_> = upstreams.iter().filter_map(|upstream| upstream.process).collect();
    let mut names: Vec<&str> = processes.iter().map(|(comm, _)| *comm).collect();
    names.dedup();
    let process = match (names.as_slice(), processes.first()) {
        ([comm], Some(&(_, pid))) if processes.len() == 1 && pid != 0 => {
            format!(" ({} {pid})", wording::shown(comm))
        }
        ([comm], _) => format!(" ({})", wording::shown(comm)),
        _ => String::new(),
    };
    format!("the upstream {address}{process}")
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::super::fixture::{Fixture, WALL_NS, at, case, stack, thread, upstream};
    use super::*;
    use wallprof_model::event::{Awaited, Peer, PeerKind, PeerProcess, Role};
    use wallprof_model::profile::{Finding, StallRecord};
    use wallprof_model::{MonoNs, Reason, StallReason};

    const ADDRESS: &str = "127.0.0.1:9000";

    fn found(
        waits: &[(u32, u64, u64, u64)],
        process: Option<&str>,
        stalls: Vec<StallRecord>,
    ) -> Vec<Finding> {
        let mut fixture = Fixture::new();
        for &(number, requests, waited_ms, longest_ms) in waits {
            if number > 1 {
                let mut other = thread(number);
                other.info.pid = 100 + number;
                fixture.threads[number as usize - 1] = other;
            }
            let tracks = upstream(number, ADDRESS, process, requests, waited_ms, longest_ms);
            fixture.process_counters.extend(tracks);
        }
        stalls.into_iter().for_each(|stall| fixture.stall(stall));
        findings(&fixture.evidence())
    }

    fn titles(waits: &[(u32, u64, u64, u64)], process: Option<&str>) -> Vec<String> {
        found(waits, process, Vec::new()).into_iter().map(|found| found.title).collect()
    }

    #[test]
    fn longest_of_a_part_is_no_longer_one_before_it() {
        let longest_ms = |total: [u64; 2], level: [u64; 2]| {
            let mut tracks = upstream(1, ADDRESS, None, 20, 2_000, 0);
            let of_two = |values: [u64; 2]| {
                let points = [500, 9_000].into_iter().zip(values);
                points.map(|(ms, value)| (MonoNs(ms * 1_000_000), value as f64 * 1e6)).collect()
            };
            for track in &mut tracks {
                match &*track.counter.name {
                    name if name.starts_with("upstream.waited ") => track.points = of_two(total),
                    name if name.starts_with("upstream.longest ") => track.points = of_two(level),
                    _ => {}
                }
            }
            waited(&tracks, [WAITED, REQUESTS, LONGEST]).next().expect("an upstream").2.max_ns / 1_000_000
        };
        assert_eq!(longest_ms([0, 2_000], [700, 700]), 700, "from the first request on");
        assert_eq!(longest_ms([5_000, 7_000], [700, 900]), 900);
        assert_eq!(longest_ms([5_000, 7_000], [3_000, 3_000]), 100, "20 requests took 2 s");
    }

    #[test]
    fn requests_that_waited_name_the_upstream() {
        let found = found(&[(1, 23, 4_210, 196)], Some("python3"), Vec::new());
        assert_eq!(found.len(), 1, "{found:#?}");
        assert_eq!(
            found[0].title,
            "app waited for an answer of the upstream 127.0.0.1:9000 (python3 4711) to 23 requests, 4.21 s in all, \
             up to 196 ms, while clients waited for app."
        );
        assert_eq!((found[0].rule.as_str(), found[0].stalls.len()), ("network-wait", 0));
        assert_eq!((found[0].count, found[0].total_ns), (23, 4_210_000_000));
        assert_eq!(
            titles(&[(1, 1, 840, 840)], None),
            [
                "app waited for an answer of the upstream 127.0.0.1:9000 to one request for 840 ms, while clients \
                 waited for app."
            ]
        );
    }

    #[test]
    fn processes_of_one_program_are_one_finding() {
        let found = titles(&[(1, 2, 400, 200), (2, 1, 150, 150)], Some("python3"));
        let words = "2 app processes waited for an answer of the upstream 127.0.0.1:9000 (python3 4711) to 3 requests, \
            550 ms in all, up to 200 ms";
        assert!(found.len() == 1 && found[0].starts_with(words), "{found:#?}");
    }

    #[test]
    fn requests_that_wait_at_the_same_time_cost_no_more_than_all_of_it() {
        let found = found(&[(1, 640, 3 * WALL_NS / 1_000_000, 207)], None, Vec::new());
        assert_eq!((found[0].total_ns, found[0].count), (WALL_NS, 640));
    }

    #[test]
    fn quick_and_rare_answers_are_none() {
        let hundredth_ms = WALL_NS / 100 / 1_000_000;
        for waits in [(1, 2, hundredth_ms, 99), (1, 9, hundredth_ms - 1, 99), (1, 99, hundredth_ms, 19)] {
            assert_eq!(titles(&[waits], None), [""; 0], "{waits:?}");
        }
        let quick = titles(&[(1, 3, hundredth_ms, 20)], None);
        assert!(quick.len() == 1 && quick[0].ends_with(" by chance: there were more of them."), "{quick:?}");
        assert_eq!(titles(&[(1, 1, 99, 99)], None), [""; 0]);
        assert_eq!(titles(&[(1, 0, 0, 0)], None), [""; 0]);
    }

    /// A server with a thread for each client waits in a read, whose stall says more.
    #[test]
    fn waits_in_calls_on_the_connection_are_reported_once() {
        let peer = Peer {
            kind: PeerKind::Tcp,
            awaited: Awaited::Data,
            role: Some(Role::Client),
            asked: Some(true),
            local: "127.0.0.1:40000".parse().ok(),
            remote: ADDRESS.parse().ok(),
            inode: 7,
            by_child: false,
            process: Some(PeerProcess { pid: Some(4711), comm: "shop".into() }),
        };
        let read = StallRecord {
            syscall: Some("read".into()),
            user: Some(stack(&["read", "ask_price", "serve"])),
            peer: Some(Box::new(peer)),
            ..case(1, 1, StallReason::Blocked(Reason::Network), 400_000_000)
        };
        let found = found(&[(1, 23, 4_210, 396)], None, vec![at(0, read)]);
        assert_eq!(found.len(), 1, "{found:#?}");
        assert!(found[0].title.contains("waited for an answer of shop 4711 (127.0.0.1:9000) in ask_price"));
    }

    #[test]
    fn other_counters_are_no_upstreams() {
        assert!(reads_counter("upstream.waited others") && !reads_counter("tcp.queue"));
        let others: Vec<CounterTrack> = upstream(1, OTHERS, None, 5, 900, 300);
        let found = upstreams(&others);
        assert_eq!(found.len(), 1);
        assert_eq!(name(found[0].address, &found), "further upstreams");
        assert_eq!(upstreams(&others[1..]), [], "without its sum");
    }
}
