// SPDX-License-Identifier: Apache-2.0
//! The findings of a recording from `report --json`, with the stalls that they refer to.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use wallprof_findings::{EvidenceKind, rule};

use wallprof_testkit::contract::Finding;
use wallprof_testkit::recorder::RecordingFile;
use wallprof_testkit::stored;

/// All findings of one recording. Every id in them resolves.
pub struct Found {
    pub findings: Vec<Finding>,
    names: BTreeMap<u64, String>,
    stalls: BTreeSet<u64>,
}

impl Found {
    pub fn in_recording(recording: &RecordingFile) -> Self {
        let report = recording.report();
        let stalls = recording.stalls(&["--all"]);
        let found = Found {
            findings: report.findings,
            names: report.threads.into_iter().map(|thread| (thread.id, thread.comm)).collect(),
            stalls: stalls.iter().map(|stall| stall.id).collect(),
        };
        found.findings.iter().for_each(|finding| found.assert_is_sound(finding));
        // A stored recording has the sentences of the day on which it was made.
        if !stored::is_replayed() {
            found.assert_are_in(&fs::read(recording.path()).expect("the recording"));
        }
        found
    }

    /// The names of the threads that were late.
    pub fn names<'a>(&'a self, finding: &'a Finding) -> impl Iterator<Item = &'a str> {
        finding.threads.iter().map(|id| self.names[id].as_str())
    }

    /// A query of the file returns the same sentences: SQLite keeps short texts in one piece.
    fn assert_are_in(&self, file: &[u8]) {
        for Finding { title, .. } in &self.findings {
            let is_there = file.windows(title.len()).any(|bytes| bytes == title.as_bytes());
            assert!(is_there, "not in the file: {title}");
        }
    }

    fn assert_is_sound(&self, finding: &Finding) {
        assert!(finding.title.ends_with('.') && finding.advice.ends_with('.'), "{finding:#?}");
        assert!(
            finding.count > 0 && finding.max_ns > 0 && finding.max_ns <= finding.total_ns,
            "{finding:#?}"
        );
        assert!(!finding.threads.is_empty(), "{finding:#?}");
        assert!(finding.threads.iter().all(|id| self.names.contains_key(id)), "{finding:#?}");
        assert!(finding.stalls.iter().all(|id| self.stalls.contains(id)), "{finding:#?}");
        assert!(finding.stalls.is_sorted() && finding.stalls.len() as u64 <= finding.count, "{finding:#?}");
        let rule = rule(&finding.rule).expect("a finding of a known rule");
        let may_list_stalls: &[bool] = match rule.evidence {
            EvidenceKind::Stalls => &[true],
            EvidenceKind::StallsOrSpans | EvidenceKind::StallsOrSums => &[true, false],
            EvidenceKind::Sums => &[false],
        };
        assert!(may_list_stalls.contains(&!finding.stalls.is_empty()), "{finding:#?}");
    }
}
