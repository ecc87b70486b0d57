// SPDX-License-Identifier: Apache-2.0
//! The properties of a rule in the registry, and the findings of earlier rules when a rule runs.

use std::collections::HashSet;

use wallprof_model::ThreadKey;
pub use wallprof_model::profile::Cause;

use super::case::Case;
use super::conclusion::Conclusion;
use super::evidence::Evidence;

/// A rule as the registry knows it.
pub struct RuleSpec {
    /// The name in reports and in the file: `lock-wait`. `docs/findings.md` has a section of that name.
    pub name: &'static str,
    /// The stalls and threads that the rule explains. A later rule can leave them out.
    pub(super) topic: Option<Topic>,
    /// Topics whose reported stalls or threads the rule leaves out.
    pub(super) excludes: &'static [Topic],
    /// Where the cause lies, unless the evidence of a finding says otherwise (`super::cause`).
    pub cause: Cause,
    /// The evidence of the rule's findings.
    pub evidence: EvidenceKind,
    pub(super) find: Find,
}

/// Draws a rule's conclusions from the evidence. `Reported` holds what the rule has to leave out.
pub(super) type Find = for<'e> fn(&'e Evidence, &Reported) -> Vec<Conclusion<'e>>;

/// A kind of trouble that several rules explain, the most specific rule first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Topic {
    /// The cause for which a blocked thread waited.
    Waits,
    /// What kept an event loop.
    Loops,
    /// The cause for which a runnable thread got no CPU.
    CpuDenied,
    /// Other threads had the CPUs, all of them.
    CpuShared,
    /// Functions that other CPUs called on the thread's CPU.
    CrossCalls,
}

/// The evidence of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvidenceKind {
    /// Stalls, which the finding lists by id.
    Stalls,
    /// Stalls; or spans without stalls, such as busy periods of running time, and then the finding lists none.
    StallsOrSpans,
    /// Stalls; or sums over the recording, and then the finding lists none.
    StallsOrSums,
    /// Sums over the recording: the finding lists no stalls.
    Sums,
}

/// The stalls and threads of earlier conclusions that a rule leaves out.
#[derive(Debug, Default)]
pub(super) struct Reported {
    stalls: HashSet<u64>,
    threads: HashSet<ThreadKey>,
}

impl Reported {
    /// The stalls and threads of the conclusions whose rules have one of these topics.
    pub fn of(earlier: &[(&RuleSpec, Conclusion<'_>)], topics: &[Topic]) -> Self {
        let mut reported = Reported::default();
        for (rule, conclusion) in earlier {
            if rule.topic.is_some_and(|topic| topics.contains(&topic)) {
                reported.stalls.extend(conclusion.cases.iter().map(|case| case.id));
                reported.threads.extend(&conclusion.threads);
            }
        }
        reported
    }

    pub fn has(&self, case: &Case) -> bool {
        self.stalls.contains(&case.id)
    }

    pub fn has_thread(&self, thread: ThreadKey) -> bool {
        self.threads.contains(&thread)
    }

    #[cfg(test)]
    pub fn stalls(ids: &[u64]) -> Self {
        Reported { stalls: ids.iter().copied().collect(), threads: HashSet::new() }
    }
}
