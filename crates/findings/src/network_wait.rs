// SPDX-License-Identifier: Apache-2.0
//! `network-wait`: threads wait for the other end of a connection: for an answer, for space in the send
//! buffer, or for the connection itself. Names the other end, and what it did meanwhile if it is recorded.
//!
//! One finding a process, other end and function of the program, where waits of 10 ms or longer took a hundredth of the
//! threads' time, or one took 20 ms.
//!
//! A read, or a poll of one connection alone, is a wait for an answer where the thread's side made the connection,
//! and has sent something since it waited there the last time. TCP shows this, and UDP of connected sockets; of unix
//! sockets it is seen where the other end has not read the request yet, and has to be seen of most reads. Servers that
//! wait in epoll, or poll several connections, have their requests counted instead ([`upstream`]).
//!
//! False positives: a client whose task is to wait for answers, as a load generator's.

use wallprof_model::event::{Awaited, Peer, PeerKind, Role};
use wallprof_model::{Reason, StallReason};

use super::case::Case;
use super::conclusion::{Conclusion, Problem};
use super::evidence::Evidence;
use super::spec::{Cause, EvidenceKind, Reported, RuleSpec, Topic};
use super::{other_end, upstream, wording};

pub(super) const RULE: RuleSpec = RuleSpec {
    name: "network-wait",
    topic: None,
    excludes: &[Topic::Waits],
    cause: Cause::Program,
    evidence: EvidenceKind::StallsOrSums,
    find,
};

pub(super) const ADVICE_ON_SPACE: &str = "The other end reads more slowly than this one writes, or the network between \
    them is slow. Send less, or let another thread send.";

const ADVICE_ON_ITS_WAY: &str = "The kernel keeps the last part of a request back until the part before it is acknowledged, \
    about 40 ms (Nagle's algorithm and delayed acknowledgements): write a request at once (writev, MSG_MORE), or set \
    TCP_NODELAY. Longer delays are packets that were lost (`nstat`: TcpRetransSegs).";

fn find<'e>(evidence: &'e Evidence, reported: &Reported) -> Vec<Conclusion<'e>> {
    let mut conclusions = other_end::conclusions(evidence, reported, is_wanted, conclude);
    let upstreams = upstream::conclusions(evidence, &conclusions);
    conclusions.extend(upstreams);
    conclusions
}

fn is_wanted(case: &Case, peer: &Peer) -> bool {
    let is_own = matches!(case.reason, StallReason::Blocked(Reason::Network | Reason::Ipc))
        || case.polls_the_other_end();
    let is_client = peer.role == Some(Role::Client);
    is_own
        && match (peer.kind, peer.awaited) {
            (PeerKind::Tcp, Awaited::Data) => is_client && peer.asked == Some(true),
            // A client that sends again and again may wait for no more than the time until then.
            (PeerKind::Udp, Awaited::Data) => is_client && peer.asked == Some(true) && !case.timed_out(),
            // What the other end has read already is not seen: most of the waits say whether something was asked.
            (PeerKind::Unix, Awaited::Data) => is_client && peer.asked != Some(false),
            (PeerKind::Tcp | PeerKind::Unix, Awaited::Space) => true,
            (PeerKind::Tcp | PeerKind::Unix, Awaited::Connection) => is_client,
            (PeerKind::Udp | PeerKind::Pipe, _) => false,
        }
}

fn conclude<'e>(problem: Problem<'e>, name: &str, peer: &Peer, evidence: &Evidence) -> Conclusion<'e> {
    let has_no_request = peer.awaited == Awaited::Data && other_end::had_no_request(&problem.cases, evidence);
    let (what, advice) = match peer.awaited {
        Awaited::Data if has_no_request => (format!("an answer of {name}"), ADVICE_ON_ITS_WAY),
        Awaited::Data => (
            format!("an answer of {name}"),
            "Look at what the other end did meanwhile. Ask for several things at once, or go on with other work \
             until the answer is there.",
        ),
        Awaited::Space => (format!("space in the send buffer to {name}"), ADVICE_ON_SPACE),
        Awaited::Connection => (
            format!("a connection to {name}"),
            "Keep connections open, and make them before they are needed.",
        ),
    };
    let title = format!(
        "{} waited for {what}{} {}{}.",
        wording::who(&problem.cases, evidence),
        wording::place(problem.site().as_ref()),
        wording::delays(&problem.delays),
        match has_no_request {
            true => ": the other end waited for the request meanwhile, which was on its way".into(),
            false => other_end::meanwhile(&problem.cases, evidence),
        }
    );
    problem.conclude(title, advice)
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::super::fixture::{Fixture, at, case, stack};
    use super::*;
    use wallprof_meaning::waits::by_peer;
    use wallprof_model::event::PeerProcess;
    use wallprof_model::profile::StallRecord;
    use wallprof_model::{Meaning, MeaningSource};

    const MS: u64 = 1_000_000;

    fn wait(id: u64, ns: u64, change: impl Fn(&mut Peer)) -> StallRecord {
        let mut peer = Peer {
            kind: PeerKind::Tcp,
            awaited: Awaited::Data,
            role: Some(Role::Client),
            asked: Some(true),
            local: "127.0.0.1:40000".parse().ok(),
            remote: "127.0.0.1:5432".parse().ok(),
            inode: 7,
            by_child: false,
            process: Some(PeerProcess { pid: Some(4711), comm: "shop".into() }),
        };
        change(&mut peer);
        StallRecord {
            syscall: Some("read".into()),
            user: Some(stack(&["read", "ask_price", "serve"])),
            peer: Some(Box::new(peer)),
            ..case(id, 1, StallReason::Blocked(Reason::Network), ns)
        }
    }

    #[test]
    fn answer_full_buffer_and_connection_name_the_other_end() {
        let title = |awaited| Fixture::only_finding([wait(1, 30 * MS, |peer| peer.awaited = awaited)]).title;
        assert_eq!(
            title(Awaited::Data),
            "thread-1 of app waited for an answer of shop 4711 (127.0.0.1:5432) in ask_price (called by serve) \
             for 30.0 ms."
        );
        assert!(
            title(Awaited::Space)
                .contains(" waited for space in the send buffer to shop 4711 (127.0.0.1:5432) in")
        );
        assert!(
            title(Awaited::Connection).contains(" waited for a connection to shop 4711 (127.0.0.1:5432) in")
        );
    }

    /// As the rules about other ends have it.
    fn polled(id: u64, ns: u64, change: impl Fn(&mut Peer)) -> StallRecord {
        let stall = wait(id, ns, change);
        let reason = StallReason::Blocked(Reason::Poll);
        let meaning = by_peer(reason, stall.peer.as_ref().unwrap(), false);
        let voluntary = meaning.as_ref().is_none_or(|meaning| meaning.idle);
        StallRecord { reason, voluntary, meaning, syscall: Some("poll".into()), ..stall }
    }

    #[test]
    fn poll_of_one_connection_is_a_wait_for_its_other_end() {
        let title =
            |awaited| Fixture::only_finding([polled(1, 30 * MS, |peer| peer.awaited = awaited)]).title;
        assert!(title(Awaited::Data).contains(" waited for an answer of shop 4711 (127.0.0.1:5432) in"));
        assert!(title(Awaited::Space).contains(" waited for space in the send buffer to shop 4711"));
        assert!(title(Awaited::Connection).contains(" waited for a connection to shop 4711"));
        let none = |change: fn(&mut Peer)| assert_eq!(Fixture::findings([polled(1, 30 * MS, change)]), []);
        none(|peer| peer.role = Some(Role::Server));
        none(|peer| peer.asked = Some(false));
        none(|peer| peer.asked = None);
    }

    #[test]
    fn idle_ends_short_waits_and_other_sockets_are_none() {
        let none = |stall: StallRecord| assert_eq!(Fixture::findings([stall.clone()]), [], "{stall:?}");
        none(wait(1, 30 * MS, |peer| peer.role = Some(Role::Server)));
        none(wait(1, 30 * MS, |peer| peer.asked = Some(false)));
        none(wait(1, 30 * MS, |peer| peer.asked = None));
        none(wait(1, 30 * MS, |peer| peer.kind = PeerKind::Pipe));
        none(wait(1, 19 * MS, |_| ()));
        none(StallRecord { voluntary: true, ..wait(1, 30 * MS, |_| ()) });
        none(StallRecord { peer: None, ..wait(1, 30 * MS, |_| ()) });
        assert_eq!(Fixture::findings((1..=90).map(|id| wait(id, 9 * MS, |_| ()))), [], "quick answers");
    }

    #[test]
    fn client_of_udp_that_sent_something_waits_for_an_answer_until_its_timeout() {
        let udp = |peer: &mut Peer| peer.kind = PeerKind::Udp;
        let found = Fixture::only_finding([wait(1, 30 * MS, udp)]);
        assert!(
            found.title.contains(" waited for an answer of shop 4711 (127.0.0.1:5432) in"),
            "{}",
            found.title
        );
        let none = |stall: StallRecord| assert_eq!(Fixture::findings([stall]), []);
        none(StallRecord { asked_ns: Some(30 * MS), ..wait(1, 30 * MS, udp) });
        none(wait(1, 30 * MS, |peer| (peer.kind, peer.role) = (PeerKind::Udp, None)));
        none(wait(1, 30 * MS, |peer| (peer.kind, peer.asked) = (PeerKind::Udp, None)));
        none(wait(1, 30 * MS, |peer| (peer.kind, peer.awaited) = (PeerKind::Udp, Awaited::Space)));
    }

    #[test]
    fn reads_of_a_unix_socket_are_for_answers_where_most_follow_on_a_request() {
        let read = |id, asked| StallRecord {
            reason: StallReason::Blocked(Reason::Ipc),
            ..wait(id, 30 * MS, |peer| {
                (peer.kind, peer.asked, peer.local, peer.remote) = (PeerKind::Unix, asked, None, None);
            })
        };
        let found = Fixture::only_finding([read(1, Some(true)), read(2, None), read(3, Some(true))]);
        assert!(found.title.contains(" waited for an answer of shop 4711 in ask_price"), "{}", found.title);
        assert_eq!(found.count, 3);
        assert_eq!(
            Fixture::findings([read(1, Some(true)), read(2, None), read(3, None)]),
            [],
            "what it is sent"
        );
    }

    #[test]
    fn other_end_that_waits_for_the_request_owes_no_answer() {
        let title = |waits_ms: u64, remote: &str| {
            let mut peer = wait(2, waits_ms * MS, |peer| peer.asked = Some(false));
            let own = peer.peer.as_mut().unwrap();
            (own.role, own.local, own.remote) = (Some(Role::Server), own.remote, remote.parse().ok());
            peer.thread = wallprof_model::ThreadKey(2);
            let stalls = [wait(1, 30 * MS, |peer| peer.process.as_mut().unwrap().pid = Some(100)), peer];
            Fixture::only_finding(stalls.map(|stall| at(0, stall))).title
        };
        let on_its_way = ": the other end waited for the request meanwhile, which was on its way.";
        assert!(title(29, "127.0.0.1:40000").ends_with(on_its_way), "{}", title(29, "127.0.0.1:40000"));
        assert!(!title(20, "127.0.0.1:40000").contains("request"));
        assert!(!title(29, "127.0.0.1:40001").contains("request"), "another connection");
    }

    #[test]
    fn connections_to_one_server_are_one_finding_and_an_unknown_process_is_an_address() {
        let of = |id: u64, port: u16, known: bool| {
            wait(id, 30 * MS, |peer| {
                peer.remote.as_mut().unwrap().set_port(port);
                if !known {
                    peer.process = None;
                }
            })
        };
        let found = Fixture::only_finding([of(1, 1, true), of(2, 2, true)]);
        assert!(found.title.contains("an answer of shop 4711 in"), "{}", found.title);
        let found = Fixture::only_finding([of(1, 1, false), of(2, 1, false)]);
        assert!(found.title.contains("an answer of 127.0.0.1:1 in"), "{}", found.title);
        assert_eq!(Fixture::findings([of(1, 1, false), of(2, 2, false)]).len(), 2);
        let elsewhere = |port| {
            wait(2, 30 * MS, |peer| {
                peer.remote.as_mut().unwrap().set_port(port);
                (peer.inode, peer.process) = (8, None);
            })
        };
        let found = Fixture::only_finding([of(1, 1, true), elsewhere(1)]);
        assert!(found.title.contains("an answer of shop 4711 (127.0.0.1:1) in"), "{}", found.title);
        assert_eq!(Fixture::findings([of(1, 1, true), elsewhere(2)]).len(), 2);
    }

    #[test]
    fn waits_of_several_threads_are_one_finding_a_function_and_cut_stacks_are_no_function() {
        let of = |id, thread, functions: &[&str]| StallRecord {
            thread: wallprof_model::ThreadKey(thread),
            user: Some(stack(functions)),
            ..wait(id, 30 * MS, |_| ())
        };
        let ask = |id, thread| of(id, thread, &["read", "ask_price", "serve"]);
        let found = Fixture::only_finding([ask(1, 1), ask(2, 2)]);
        let expected =
            "2 threads of app named thread-1 waited for an answer of shop 4711 (127.0.0.1:5432) in ask_price";
        assert!(found.title.starts_with(expected), "{}", found.title);
        assert_eq!(Fixture::findings([ask(1, 1), of(2, 1, &["read", "ask_stock", "serve"])]).len(), 2);
        let cut = of(3, 2, &["read", "java.net.Socket$SocketInputStream.read"]);
        let found = Fixture::only_finding([ask(1, 1), ask(2, 1), cut.clone()]);
        assert_eq!(found.count, 3, "{}", found.title);
        assert!(Fixture::only_finding([cut]).title.contains(" in java.net.Socket"));
    }

    #[test]
    fn lock_of_a_server_is_no_network_wait() {
        let meaning = Meaning {
            name: "row lock".into(),
            software: Some("shop".into()),
            idle: false,
            holder: true,
            source: MeaningSource::Stack,
        };
        let lock = StallRecord { meaning: Some(meaning.into()), ..wait(1, 30 * MS, |_| ()) };
        assert_eq!(Fixture::only_finding([lock]).rule, "lock-wait");
    }

    /// The other end is process 200, whose thread 2 sleeps for most of the wait, or for little of it.
    #[test]
    fn what_the_other_end_did_meanwhile_is_named() {
        let from = |ns| {
            let wait = wait(1, 30 * MS, |peer| peer.process.as_mut().unwrap().pid = Some(200));
            let asleep = StallRecord {
                voluntary: true,
                user: Some(stack(&["nanosleep", "pause_serving"])),
                ..case(2, 2, StallReason::Blocked(Reason::Sleep), ns)
            };
            let mut fixture = Fixture::new();
            let server = &mut fixture.threads[1].info;
            (server.pid, server.process) = (200, "shop".into());
            fixture.stall(at(0, wait));
            fixture.stall(StallRecord { pid: 200, ..at(MS, asleep) });
            findings(&fixture.evidence())
        };
        let title = |ns| from(ns).remove(0).title;
        assert!(
            title(25 * MS).ends_with("for 30.0 ms, while thread-2 was mostly in sleep in pause_serving."),
            "{}",
            title(25 * MS)
        );
        assert!(title(5 * MS).ends_with(", while thread-2 was mostly running."), "{}", title(5 * MS));
    }
}
