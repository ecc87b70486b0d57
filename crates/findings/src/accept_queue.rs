// SPDX-License-Identifier: Apache-2.0
//! `accept-queue`: connections waited in the kernel's queue for a server to accept them. All of its workers are busy,
//! its event loop does not come back, or it takes no more of them at a time: its own threads show none of it, and its
//! log counts from the time at which the request was accepted.
//!
//! One finding a program and address, by counters of the process that listens (`live::counters::accepts`). It says
//! what most of the time of the program's threads was that were busy.
//!
//! False positives: a server whose clients connect long before they are to be served.

use std::collections::BTreeMap;
use std::sync::Arc;

use wallprof_analysis::tally::Tally;
use wallprof_model::counter::CounterTrack;
use wallprof_model::{Reason, StallReason, ThreadKey};

use super::case::Case;
use super::conclusion::{Conclusion, Problem};
use super::evidence::Evidence;
use super::limits::{Delays, is_share, wall_ns};
use super::spec::{Cause, EvidenceKind, Reported, RuleSpec};
use super::{blocked_loop, pool_exhausted, upstream, wording};

pub(super) const RULE: RuleSpec = RuleSpec {
    name: "accept-queue",
    topic: None,
    excludes: &[],
    cause: Cause::Program,
    evidence: EvidenceKind::Sums,
    find,
};

const COUNTERS: [&str; 3] = ["accept.waited ", "accept.connections ", "accept.longest "];

/// A thread that was busy for less than this part of its time is none that served.
const LEAST_PART: u64 = 10;

const ADVICE_BUSY: &str = "Let more workers or threads accept, or let each request keep them for less time: a server's own \
    log does not count this wait.";
const ADVICE_IDLE: &str = "Look at the server's limit of connections (maxconn, worker_connections, max_connections), \
    beyond which it accepts no more at a time; if the connections came in a burst, record that alone.";

/// Whether a counter of a process is one of those that are read here.
pub fn reads_counter(name: &str) -> bool {
    COUNTERS.iter().any(|prefix| name.starts_with(prefix))
}

/// The connections that waited for one process at an address, by its counters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Accepts<'t> {
    /// A thread of the process.
    pub thread: ThreadKey,
    pub address: &'t str,
    delays: Delays,
    /// How often the queue was full, at whichever address of the process.
    dropped: u64,
}

pub(super) fn accepts(tracks: &[CounterTrack]) -> impl Iterator<Item = Accepts<'_>> {
    let drops = |thread| {
        let is_one =
            |track: &&CounterTrack| track.counter.name == "tcp.drops" && track.counter.thread == Some(thread);
        tracks.iter().find(is_one).map_or(0, upstream::grown)
    };
    upstream::waited(tracks, COUNTERS).map(move |(thread, address, delays)| Accepts {
        thread,
        address,
        delays,
        dropped: drops(thread),
    })
}

fn find<'e>(evidence: &'e Evidence, _: &Reported) -> Vec<Conclusion<'e>> {
    let mut groups: BTreeMap<(Arc<str>, &str), Accepts> = BTreeMap::new();
    for of_one in evidence.accepts() {
        let Some(thread) = evidence.thread(of_one.thread) else { continue };
        let none = Accepts { delays: Delays::default(), dropped: 0, ..of_one };
        let all = groups.entry((Arc::clone(&thread.process), of_one.address)).or_insert(none);
        all.delays = all.delays.with(of_one.delays);
        all.dropped = all.dropped.saturating_add(of_one.dropped);
    }
    let conclude = |((program, _), accepts): (&(Arc<str>, &str), &Accepts<'_>)| {
        let addresses = groups.keys().filter(|(of, _)| of == program).count();
        conclude(program, *accepts, addresses, evidence)
    };
    groups.iter().filter_map(conclude).collect()
}

/// `addresses`: of the program, at which connections waited.
fn conclude<'e>(
    program: &str,
    accepts: Accepts<'_>,
    addresses: usize,
    evidence: &'e Evidence,
) -> Option<Conclusion<'e>> {
    let Accepts { address, delays, dropped, .. } = accepts;
    let of_program = evidence.threads_by_key().filter(|(_, thread)| &*thread.process == program);
    let threads: Vec<ThreadKey> = of_program.map(|(key, _)| *key).collect();
    let is_worth_it = upstream::is_worth_a_finding(delays, evidence.duration_ns(), evidence);
    if !is_worth_it || delays.is_negligible(evidence, &threads) {
        return None;
    }
    let (doing, advice) = doing(&threads, evidence);
    let waited = match delays.count {
        1 => format!("One connection waited {} for", wording::time(delays.total_ns)),
        count => format!("{count} connections waited for"),
    };
    let how_long = match delays.count {
        1 => String::new(),
        _ => format!(", {} in all, up to {}", wording::time(delays.total_ns), wording::time(delays.max_ns)),
    };
    let them = if delays.count == 1 { "it" } else { "them" };
    let program = wording::shown(program);
    let more = match delays.max_ns < upstream::READ_EVERY_NS {
        true => " Waits of less than 100 ms are seen by chance: there were more of them.",
        false => "",
    };
    let full = match dropped {
        0 => String::new(),
        1 if addresses == 1 => " Once the queue was full: a client then tries again after a second.".into(),
        times if addresses == 1 => {
            format!(" The queue was full {times} times: a client then tries again after a second.")
        }
        times => format!(
            " The queues at its {addresses} addresses were full {times} times in all: a client then tries again after a \
             second."
        ),
    };
    let title =
        format!("{waited} {program} to accept {them} at {address}{how_long}: its {doing}.{more}{full}");
    let delays = delays.within(&threads, evidence);
    Some(Problem::of_all(threads, delays).conclude(title, advice))
}

/// What threads did when they were not idle, ns.
#[derive(Default)]
struct Busy {
    waits: Tally<String>,
    /// Running, or waiting for a CPU.
    computed_ns: u64,
    queued_ns: u64,
}

impl Busy {
    fn of(threads: &[ThreadKey], evidence: &Evidence) -> Self {
        let mut busy = Busy::default();
        for case in threads.iter().flat_map(|thread| evidence.cases_of(*thread)).filter(|case| !is_idle(case))
        {
            let blocked_ns = case.without_run_queue_ns();
            busy.waits.add(pool_exhausted::waiting(case), blocked_ns);
            busy.queued_ns = busy.queued_ns.saturating_add(case.duration_ns().saturating_sub(blocked_ns));
        }
        let on_cpu = threads.iter().filter_map(|thread| Some(evidence.thread(*thread)?.on_cpu_ns));
        busy.computed_ns = on_cpu.fold(busy.queued_ns, u64::saturating_add);
        busy
    }

    fn total_ns(&self) -> u64 {
        self.waits.total().saturating_add(self.computed_ns)
    }
}

/// A wait for work, even if a timer ended it late. A sleep and a wait for a child are voluntary, and no such wait.
fn is_idle(case: &Case) -> bool {
    let is_of_a_request = case.is_asleep()
        || case.reason == StallReason::Blocked(Reason::Child)
        || blocked_loop::is_call_of_node(case);
    let means_work = || case.meaning.as_ref().is_some_and(|meaning| !meaning.idle);
    let is_for_work = matches!(case.reason, StallReason::Blocked(Reason::Poll | Reason::Wait));
    !is_of_a_request && (case.voluntary || is_for_work && !means_work())
}

/// `4 busy threads were mostly asleep in handle`, and the advice for that.
fn doing(threads: &[ThreadKey], evidence: &Evidence) -> (String, &'static str) {
    let is_busy = |thread: &ThreadKey| {
        let thread = std::slice::from_ref(thread);
        is_share(Busy::of(thread, evidence).total_ns(), LEAST_PART, wall_ns(evidence, thread))
    };
    let busy: Vec<ThreadKey> = threads.iter().copied().filter(is_busy).collect();
    let who = match busy.len() {
        0 => return ("threads were idle for most of the recording".into(), ADVICE_IDLE),
        1 => "one busy thread was".to_owned(),
        count => format!("{count} busy threads were"),
    };
    let did = Busy::of(&busy, evidence);
    let what = match did.waits.top() {
        Some((words, ns)) if ns > did.computed_ns => words.clone(),
        _ if is_share(did.queued_ns, 4, did.computed_ns) => "running or waiting for a CPU".into(),
        _ => "running".into(),
    };
    (format!("{who} mostly {what}"), ADVICE_BUSY)
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::super::fixture::{Fixture, at, case, stack, sum, waited};
    use super::*;
    use wallprof_model::profile::{Finding, StallRecord};

    const MS: u64 = 1_000_000;
    const ADDRESS: &str = "127.0.0.1:8000";

    /// Threads 1 and 2 sleep in a handler, or poll, for 4 of 5 parts of the time; the others have 1 % of theirs.
    fn found(waits: (u64, u64, u64), serves: bool) -> Vec<Finding> {
        let mut fixture = Fixture::new();
        for thread in &mut fixture.threads {
            thread.ledger.on_cpu_ns = thread.ledger.wall_ns / 100;
        }
        for turn in 0..100u64 {
            for thread in 1..=2 {
                let (reason, functions): (_, &[&str]) = match serves {
                    true => (Reason::Sleep, &["nanosleep", "handle", "main"]),
                    false => (Reason::Poll, &["epoll_wait", "run_loop", "main"]),
                };
                let wait = StallRecord {
                    voluntary: true,
                    user: Some(stack(functions)),
                    ..case(u64::from(thread) * 1_000 + turn, thread, StallReason::Blocked(reason), 80 * MS)
                };
                fixture.stall(at(turn * 100 * MS, wait));
            }
        }
        fixture.process_counters.extend(waited("accept", "connections", 1, ADDRESS, waits));
        findings(&fixture.evidence())
    }

    #[test]
    fn connections_that_waited_say_what_the_server_did() {
        let found = found((23, 4_210, 196), true);
        assert_eq!(found.len(), 1, "{found:#?}");
        assert_eq!(
            found[0].title,
            "23 connections waited for app to accept them at 127.0.0.1:8000, 4.21 s in all, up to 196 ms: its 2 busy \
             threads were mostly asleep in handle."
        );
        assert_eq!((found[0].rule.as_str(), found[0].stalls.len(), found[0].count), (RULE.name, 0, 23));
    }

    #[test]
    fn short_waits_are_seen_by_chance() {
        let found = found((23, 1_210, 96), true);
        assert!(
            found[0]
                .title
                .ends_with("handle. Waits of less than 100 ms are seen by chance: there were more of them.")
        );
    }

    #[test]
    fn full_queue_is_said() {
        let mut tracks = waited("accept", "connections", 1, ADDRESS, (23, 4_210, 196));
        tracks.push(sum("tcp.drops", 1, &[(500, 4), (9_000, 11)]));
        let found: Vec<Accepts> = accepts(&tracks).collect();
        assert_eq!((found.len(), found[0].dropped), (1, 7));
        let evidence = Fixture::new().evidence();
        let title = |addresses| conclude("app", found[0], addresses, &evidence).expect("a finding").title;
        let (one, two) = (title(1), title(2));
        assert!(
            one.ends_with(" The queue was full 7 times: a client then tries again after a second."),
            "{one}"
        );
        let of_two = " The queues at its 2 addresses were full 7 times in all: a client then tries again after a second.";
        assert!(two.ends_with(of_two), "{two}");
    }

    #[test]
    fn server_that_takes_no_more_is_idle() {
        let found = found((1, 840, 840), false);
        assert_eq!(
            found[0].title,
            "One connection waited 840 ms for app to accept it at 127.0.0.1:8000: its threads were idle for most of the \
             recording."
        );
        assert!(found[0].advice.contains("maxconn"), "{}", found[0].advice);
    }

    #[test]
    fn few_and_short_waits_are_none() {
        let rules =
            |waits| -> Vec<String> { found(waits, true).into_iter().map(|found| found.rule).collect() };
        assert_eq!(rules((9, 90, 19)), [""; 0], "none of 20 ms");
        assert_eq!(rules((2, 190, 95)), [""; 0], "two of less than 100 ms");
        assert_eq!(rules((3, 90, 60)), [""; 0], "less than a hundredth");
    }

    #[test]
    fn its_counters_are_read() {
        assert!(reads_counter("accept.waited 0.0.0.0:80") && !reads_counter("upstream.waited 0.0.0.0:80"));
    }
}
