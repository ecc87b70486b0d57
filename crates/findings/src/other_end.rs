// SPDX-License-Identifier: Apache-2.0
//! The other end of waits on sockets and pipes, as findings name it: the process, its address, and what it
//! did meanwhile.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use wallprof_analysis::tally::Tally;
use wallprof_meaning::site::Site;
use wallprof_model::event::{Awaited, Peer, PeerKind, PeerProcess, Role};
use wallprof_model::{MonoNs, ThreadKey};

use super::case::{Case, Party, by_function, grouped, mostly};
use super::conclusion::{Charged, Conclusion, Problem};
use super::evidence::{Evidence, ThreadTotals};
use super::limits::SHORTEST_BLOCK_NS;
use super::spec::Reported;
use super::{known, wording};

/// Waits of a finding for which the other end is looked at: the longest.
const MOST_LOOKED_AT: usize = 100;

/// The conclusions about waits that are `wanted`, one for each process, kind of wait, other end and function. Waits whose
/// stacks do not reach a function of the program are with the most of those to the same other end that do.
pub(super) fn conclusions<'e>(
    evidence: &'e Evidence,
    reported: &Reported,
    wanted: fn(&Case, &Peer) -> bool,
    conclude: fn(Problem<'e>, &str, &Peer, &Evidence) -> Conclusion<'e>,
) -> Vec<Conclusion<'e>> {
    let is_one = |case: &&Case| {
        !case.voluntary
            && case.without_run_queue_ns() >= SHORTEST_BLOCK_NS
            && !case.is_for_a_lock()
            && !reported.has(case)
            && case.peer.as_ref().is_some_and(|peer| wanted(case, peer))
    };
    let cases: Vec<&Case> = evidence.cases().filter(is_one).collect();
    // One wait of several may lack its process: it has not ended, or came before the process was found.
    let mut known: HashMap<(u32, Other), &str> = HashMap::new();
    for &case in &cases {
        if let Some(peer) = &case.peer
            && let Some(process) = &peer.process
        {
            known.extend(others(peer).map(|other| ((case.pid, other), &*process.comm)));
        }
    }
    let ends = grouped(cases.iter().copied(), |case| Key::of(case, &known));
    let conclusions = ends.into_values().flat_map(by_function).filter_map(|cases| {
        let problem = Problem::heavy(Charged::over(cases, Case::duration_ns), evidence)
            .filter(|problem| was_asked(&problem.cases, evidence))?;
        // Of those with a known process, the longest.
        let longest =
            problem.cases.iter().max_by_key(|case| (process(case).is_some(), case.duration_ns()))?;
        let peer = longest.peer.as_deref()?;
        let name = name(&problem.cases, peer);
        Some(conclude(problem, &name, peer, evidence))
    });
    conclusions.collect()
}

/// Whether something was asked before the waits for data on unix sockets, as far as is known of most of their time.
fn was_asked(cases: &[&Case], evidence: &Evidence) -> bool {
    let is_unix = |case: &Case| {
        let peer = case.peer.as_ref().filter(|peer| peer.awaited == Awaited::Data);
        peer.is_some_and(|peer| peer.kind == PeerKind::Unix)
    };
    let waits: Vec<&Case> = longest(cases.iter().filter(|case| is_unix(case))).into_iter().copied().collect();
    let asked = |case: &Case| {
        let peer = case.peer.as_ref();
        peer.is_some_and(|peer| peer.asked == Some(true)) || has_woken_the_other_end(case, evidence)
    };
    waits.is_empty() || known::is_most(known::part_ns(&waits, asked), known::waited_ns(&waits))
}

/// Whether the waiting thread had woken a thread of the process that then answered, since it was itself woken by that one: the
/// other end may have read the request before the wait begins.
fn has_woken_the_other_end(case: &Case, evidence: &Evidence) -> bool {
    let Some(waker) = case.waker.as_ref().and_then(|waker| waker.by.as_ref()) else { return false };
    let by_it = |before: &&Case| before.waker.as_ref().and_then(|waker| waker.by.as_ref()) == Some(waker);
    let own = evidence.during(case.thread, MonoNs(0), case.start);
    let since = own.filter(|before| before.id != case.id).filter(by_it).last().map_or(MonoNs(0), Case::woken);
    let threads = evidence.threads_of(waker.pid);
    let woken = |wait: &Case| {
        wait.waker_key() == Some(case.thread) && wait.woken() > since && wait.woken() < case.woken()
    };
    threads.into_iter().any(|thread| evidence.during(thread, since, case.woken()).any(woken))
}

/// What one process at a time has: the other end of a socket or a pipe, and an address.
#[derive(PartialEq, Eq, Hash)]
enum Other {
    Of(u64),
    At(SocketAddr),
}

fn others(peer: &Peer) -> impl Iterator<Item = Other> {
    let client = peer.remote.filter(|_| peer.role == Some(Role::Client));
    [Other::Of(peer.inode)].into_iter().chain(client.map(Other::At))
}

/// Connections to one server are one other end.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    pid: u32,
    awaited: Option<Awaited>,
    other: Option<String>,
}

impl Key {
    fn of(case: &Case, known: &HashMap<(u32, Other), &str>) -> Self {
        let peer = case.peer.as_deref();
        let name = |peer| others(peer).find_map(|other| known.get(&(case.pid, other)));
        let process = peer.and_then(name).map(|name| (*name).to_owned());
        let address = || Some(peer?.remote?.to_string());
        Key { pid: case.pid, awaited: peer.map(|peer| peer.awaited), other: process.or_else(address) }
    }
}

/// `nginx 4711 (127.0.0.1:80)`, `10.0.0.2:5432`, `the other end`. Of several processes or addresses the name
/// alone.
fn name(cases: &[&Case], peer: &Peer) -> String {
    let all = |of: fn(&Peer) -> Option<String>| {
        let mut values: Vec<_> = cases.iter().filter_map(|case| of(case.peer.as_deref()?)).collect();
        values.sort_unstable();
        values.dedup();
        if values.len() == 1 { values.pop() } else { None }
    };
    let address = all(|peer| peer.remote.map(|end| end.to_string()));
    let process = match all(|peer| peer.process.as_ref().map(ToString::to_string)) {
        Some(process) => Some(process),
        None => peer.process.as_ref().map(|process| wording::shown(&process.comm).to_owned()),
    };
    match (process, address) {
        (Some(process), Some(address)) => format!("{process} ({address})"),
        (Some(process), None) => process,
        (None, Some(address)) => address,
        (None, None) => "the other end".into(),
    }
}

/// `, while archive was in sleep in pause_reading`; nothing where the other end is not recorded, or did
/// now this, now that.
pub(super) fn meanwhile(cases: &[&Case], evidence: &Evidence) -> String {
    let Some(pid) = mostly(cases, |case| process(case)?.pid) else { return String::new() };
    // Which thread of the process it is, only a pipe shows: one process wakes the other.
    let waker = mostly(cases, |case| case.waker_key().filter(|_| pid_of(case) == Some(pid)));
    let threads = waker.map_or_else(|| evidence.threads_of(pid), |waker| vec![waker]);
    let longest = longest(cases.iter().filter(|case| pid_of(case) == Some(pid)));
    let acts = threads.iter().filter_map(|&thread| act(thread, &longest, evidence));
    let acts: Vec<Act<'_>> = acts.collect();
    // Of several threads, the one that ran is what the others waited for, too.
    let mut ran = acts.iter().filter(|act| act.ran);
    match (acts.as_slice(), ran.next(), ran.next()) {
        ([act], ..) | (_, Some(act), None) => act.words(wording::shown(&act.thread.comm)),
        _ => String::new(),
    }
}

/// `: clamd 4711 ended it in answer, while clamd was mostly in sleep in scan`; nothing where interrupts ended the
/// waits, or they have not ended.
pub(super) fn ended(cases: &[&Case], evidence: &Evidence) -> String {
    ended_by(cases, evidence, |place| format!("ended it{}", wording::spot(place)))
}

/// The same, with other words about what the thread did meanwhile.
pub(super) fn ended_while(cases: &[&Case], evidence: &Evidence, meanwhile: &str) -> String {
    ended_in(cases, evidence, |place| format!("ended it{}", wording::spot(place)), Some(meanwhile))
}

/// The same, with what the thread did in the place where it ended the waits.
pub(super) fn ended_by(
    cases: &[&Case],
    evidence: &Evidence,
    did: impl FnOnce(Option<&Arc<Site>>) -> String,
) -> String {
    ended_in(cases, evidence, did, None)
}

fn ended_in(
    cases: &[&Case],
    evidence: &Evidence,
    did: impl FnOnce(Option<&Arc<Site>>) -> String,
    meanwhile: Option<&str>,
) -> String {
    let or_meanwhile = |found: &dyn Fn() -> String| meanwhile.map_or_else(found, str::to_owned);
    let waker = |case: &Case| case.waker.as_ref().and_then(|waker| waker.by.clone());
    let waited_ns = known::waited_ns(cases);
    let mut times: Tally<Party> = Tally::default();
    for case in cases {
        if let Some(by) = waker(case) {
            times.add(by, case.without_run_queue_ns());
        }
    }
    let Some((by, by_ns)) = times.top() else { return String::new() };
    if !known::is_most(times.total(), waited_ns) {
        return known::no_end(cases, times.total());
    }
    let is_most = known::is_most(by_ns, waited_ns);
    if let (false, Some(name)) = (is_most, known::of_one_name(&times, waited_ns)) {
        let is_named = |case: &Case| waker(case).is_some_and(|waker| known::has_name(&waker, &name));
        let place = mostly(cases, |case| case.release().filter(|_| is_named(case)).cloned());
        let meanwhile = or_meanwhile(&|| {
            meanwhile_of_each(cases, |waker| known::has_name(waker, &name), "they were", evidence)
        });
        return format!(": {} {}{meanwhile}", known::several(&name), did(place.as_ref()));
    }
    let is_by_it = |case: &&&Case| waker(case).as_ref() == Some(by);
    let by_it: Vec<&&Case> = longest(cases.iter().filter(is_by_it));
    let plain: Vec<&Case> = by_it.iter().map(|case| **case).collect();
    let place = mostly(&plain, |case| case.release().cloned());
    let named = by_it.first().map_or_else(|| wording::name(by), |waiter| wording::other(by, waiter));
    let did = did(place.as_ref());
    match is_most {
        true => {
            let meanwhile = or_meanwhile(&|| meanwhile_of(by, cases, evidence, |_| true));
            format!(": {named} {did}{meanwhile}")
        }
        false => {
            let meanwhile = or_meanwhile(&|| meanwhile_of_each(cases, |_| true, "these were", evidence));
            format!(": of several threads {named} {did}{}{meanwhile}", known::largest_part(by_ns, waited_ns))
        }
    }
}

/// `, while they were mostly in sleep in render`: what those of several threads that are `wanted` did during the waits that
/// each of them ended. Nothing where that is not known of half of the waits.
fn meanwhile_of_each(
    cases: &[&Case],
    wanted: impl Fn(&Party) -> bool,
    they_were: &str,
    evidence: &Evidence,
) -> String {
    let waker = |case: &Case| {
        case.waker.as_ref().and_then(|waker| waker.by.as_ref()).filter(|by| wanted(by)).cloned()
    };
    let waits = longest(cases.iter().filter(|case| waker(case).is_some_and(|by| by.key.is_some())));
    let plain: Vec<&Case> = waits.iter().map(|case| **case).collect();
    let all: Vec<&Case> = longest(cases.iter()).into_iter().copied().collect();
    if !known::is_most(known::waited_ns(&plain), known::waited_ns(&all)) {
        return String::new();
    }
    let mut meanwhile = Meanwhile::default();
    let mut on_cpu_ns = 0u64;
    let mut keys: Vec<ThreadKey> = Vec::new();
    for wait in &waits {
        let Some(thread) = wait.waker_key() else { continue };
        meanwhile.add(thread, wait, evidence);
        keys.push(thread);
    }
    keys.sort_unstable();
    keys.dedup();
    for thread in keys.into_iter().filter_map(|key| evidence.thread(key)) {
        on_cpu_ns = on_cpu_ns.saturating_add(thread.on_cpu_ns);
    }
    meanwhile.did(on_cpu_ns).map(|(did, _)| format!(", while {they_were} mostly {did}")).unwrap_or_default()
}

/// What threads did during waits that they ended.
#[derive(Default)]
struct Meanwhile {
    states: Tally<String>,
    whole_ns: u64,
    /// The part of it in which they were there.
    lived_ns: u64,
    covered_ns: u64,
}

impl Meanwhile {
    fn add(&mut self, thread: ThreadKey, wait: &Case, evidence: &Evidence) {
        let (from, to) = evidence.lived(thread, wait.start, wait.woken());
        self.whole_ns = self.whole_ns.saturating_add(wait.woken().0.saturating_sub(wait.start.0));
        self.lived_ns = self.lived_ns.saturating_add(to.0.saturating_sub(from.0));
        for case in evidence.during(thread, from, to) {
            let ns = case.overlap_ns(from, to);
            self.covered_ns = self.covered_ns.saturating_add(ns);
            self.states.add(format!("{}{}", wording::what(case), wording::spot(case.site.as_ref())), ns);
        }
    }

    /// What they did for half of the time, and whether that was to run. Short waits, and idle ones of a busy recording, are not
    /// kept one by one: threads that were `on_cpu_ns` on a CPU ran for no longer than that.
    fn did(&self, on_cpu_ns: u64) -> Option<(String, bool)> {
        let running_ns = self.lived_ns.saturating_sub(self.covered_ns);
        if self.whole_ns == 0 {
            return None;
        }
        if running_ns >= self.whole_ns / 2 {
            return (on_cpu_ns >= running_ns).then(|| ("running".to_owned(), true));
        }
        let (state, ns) = self.states.top()?;
        (ns >= self.whole_ns / 2).then(|| (format!("in {state}"), false))
    }
}

/// `, while clamd was mostly in sleep in scan`: what a thread waited for during the waits that it ended. Nothing where it
/// ran: another one may have had what they waited for.
pub(super) fn waited_meanwhile(by: &Party, cases: &[&Case], evidence: &Evidence) -> String {
    let is_by_it = |case: &Case| case.waker.as_ref().and_then(|waker| waker.by.as_ref()) == Some(by);
    if !known::is_most(known::part_ns(cases, is_by_it), known::waited_ns(cases)) {
        return String::new();
    }
    meanwhile_of(by, cases, evidence, |act| !act.ran)
}

fn meanwhile_of(
    by: &Party,
    cases: &[&Case],
    evidence: &Evidence,
    accepts: impl FnOnce(&Act<'_>) -> bool,
) -> String {
    let is_by_it = |case: &&&Case| case.waker.as_ref().and_then(|waker| waker.by.as_ref()) == Some(by);
    let by_it = longest(cases.iter().filter(is_by_it));
    let namesake = by_it.first().filter(|waiter| (waiter.pid, &waiter.comm) == (by.pid, &by.comm));
    let named = namesake.map_or_else(|| wording::name(by), |waiter| wording::other(by, waiter));
    let act = by.key.and_then(|thread| act(thread, &by_it, evidence)).filter(accepts);
    act.map(|act| act.words(&named)).unwrap_or_default()
}

/// Whether the other end waited for the request itself for most of the time, on the same connection: the request was on
/// its way, or kept back by the kernel of the one that sent it.
pub(super) fn had_no_request(cases: &[&Case], evidence: &Evidence) -> bool {
    let (mut waited_ns, mut without_ns) = (0u64, 0u64);
    for wait in longest(cases.iter()) {
        let Some((pid, local)) = pid_of(wait).zip(wait.peer.as_ref().and_then(|peer| peer.local)) else {
            continue;
        };
        let (from, to) = (wait.start, wait.woken());
        waited_ns = waited_ns.saturating_add(to.0.saturating_sub(from.0));
        let is_for_it = |case: &&Case| {
            let data = case.peer.as_ref().filter(|peer| peer.awaited == Awaited::Data);
            data.is_some_and(|peer| peer.remote == Some(local))
        };
        let threads = evidence.threads_of(pid);
        let during =
            threads.into_iter().flat_map(|thread| evidence.during(thread, from, to).filter(is_for_it));
        without_ns = during.fold(without_ns, |sum, case| sum.saturating_add(case.overlap_ns(from, to)));
    }
    waited_ns > 0 && u128::from(without_ns) * 4 >= u128::from(waited_ns) * 3
}

pub(super) fn longest<'c, 'e>(cases: impl Iterator<Item = &'c &'e Case>) -> Vec<&'c &'e Case> {
    let mut longest: Vec<&&Case> = cases.collect();
    longest.sort_by_key(|case| (std::cmp::Reverse(case.duration_ns()), case.id));
    longest.truncate(MOST_LOOKED_AT);
    longest
}

fn process(case: &Case) -> Option<&PeerProcess> {
    case.peer.as_ref()?.process.as_ref()
}

fn pid_of(case: &Case) -> Option<u32> {
    process(case)?.pid
}

/// What a thread did during most of some waits.
struct Act<'e> {
    thread: &'e ThreadTotals,
    ran: bool,
    /// `running`, `in sleep in scan`.
    did: String,
}

impl Act<'_> {
    /// `, while clamd was mostly in sleep in scan`.
    fn words(&self, name: &str) -> String {
        format!(", while {name} was mostly {}", self.did)
    }
}

fn act<'e>(thread: ThreadKey, waits: &[&&Case], evidence: &'e Evidence) -> Option<Act<'e>> {
    let totals = evidence.thread(thread)?;
    let mut meanwhile = Meanwhile::default();
    waits.iter().filter(|wait| wait.thread != thread).for_each(|wait| meanwhile.add(thread, wait, evidence));
    meanwhile.did(totals.on_cpu_ns).map(|(did, ran)| Act { thread: totals, ran, did })
}
