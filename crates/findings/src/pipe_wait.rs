// SPDX-License-Identifier: Apache-2.0
//! `pipe-wait`: threads wait until a pipe has space, because the process at its other end reads slowly. Names
//! that process, and what it did meanwhile if it is recorded.
//!
//! One finding a process, other end and function, where waits of 10 ms or longer took a hundredth of the
//! threads' time, or one took 20 ms. A read from a pipe is no finding: a reader waits for its next input.
//!
//! False positives: a writer that is meant to be no faster than its reader.

use wallprof_model::event::{Awaited, Peer, PeerKind};
use wallprof_model::{Reason, StallReason};

use super::case::Case;
use super::conclusion::{Conclusion, Problem};
use super::evidence::Evidence;
use super::spec::{Cause, EvidenceKind, Reported, RuleSpec, Topic};
use super::{other_end, wording};

pub(super) const RULE: RuleSpec = RuleSpec {
    name: "pipe-wait",
    topic: None,
    excludes: &[Topic::Waits],
    cause: Cause::Program,
    evidence: EvidenceKind::Stalls,
    find,
};

const ADVICE: &str = "The other end reads more slowly than this one writes. Make its reading faster, or let another \
                      thread write.";

fn find<'e>(evidence: &'e Evidence, reported: &Reported) -> Vec<Conclusion<'e>> {
    other_end::conclusions(evidence, reported, is_wanted, conclude)
}

fn is_wanted(case: &Case, peer: &Peer) -> bool {
    let is_pipe = peer.kind == PeerKind::Pipe
        && (case.reason == StallReason::Blocked(Reason::Pipe) || case.polls_the_other_end());
    is_pipe && peer.awaited == Awaited::Space
}

fn conclude<'e>(problem: Problem<'e>, name: &str, _: &Peer, evidence: &Evidence) -> Conclusion<'e> {
    let title = format!(
        "{} waited for space in the pipe to {name}{} {}{}.",
        wording::who(&problem.cases, evidence),
        wording::place(problem.site().as_ref()),
        wording::delays(&problem.delays),
        other_end::meanwhile(&problem.cases, evidence)
    );
    problem.conclude(title, ADVICE)
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Fixture, case, stack};
    use super::*;
    use wallprof_model::event::PeerProcess;
    use wallprof_model::profile::StallRecord;

    const MS: u64 = 1_000_000;

    fn wait(id: u64, awaited: Awaited, ns: u64) -> StallRecord {
        let peer = Peer {
            kind: PeerKind::Pipe,
            awaited,
            role: None,
            asked: None,
            local: None,
            remote: None,
            inode: 7,
            by_child: false,
            process: Some(PeerProcess { pid: Some(4711), comm: "archive".into() }),
        };
        StallRecord {
            user: Some(stack(&["write", "send_record", "feed"])),
            peer: Some(Box::new(peer)),
            ..case(id, 1, StallReason::Blocked(Reason::Pipe), ns)
        }
    }

    #[test]
    fn slow_reader_is_named_and_a_reader_is_not_late() {
        let found = Fixture::only_finding([wait(1, Awaited::Space, 30 * MS)]);
        assert_eq!(found.rule, RULE.name);
        assert_eq!(
            found.title,
            "thread-1 of app waited for space in the pipe to archive 4711 in send_record (called by feed) for 30.0 ms."
        );
        let mut open = wait(2, Awaited::Space, 30 * MS);
        open.peer.as_mut().unwrap().process = None;
        let found = Fixture::only_finding([wait(1, Awaited::Space, 20 * MS), open]);
        assert!(found.title.contains(" in the pipe to archive 4711 in "), "{}", found.title);
        assert_eq!(Fixture::findings([wait(1, Awaited::Data, 30 * MS)]), []);
        assert_eq!(Fixture::findings((1..=90).map(|id| wait(id, Awaited::Space, 9 * MS))), []);
    }
}
