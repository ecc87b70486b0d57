// SPDX-License-Identifier: Apache-2.0
//! Findings, the meanings of waits and who costs whom in the file, for users who query it with SQL. They are
//! those of the complete recording.
//!
//! wallprof itself never reads these rows: each report applies the rules to the stalls again.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use rusqlite::{Connection, Result as SqlResult, TransactionBehavior, params};
use wallprof_model::Meaning;
use wallprof_model::profile::Finding;

use crate::error::{Action, Error, Result};
use crate::foreign;

/// The meaning of a stall, and the first of the time slices of its wait.
pub type StallMeaning = (u64, Option<Arc<Meaning>>, Option<u64>);

/// Waiting time of one group of threads that another one caused: a row of the view `blame`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlameRow {
    pub waiter: GroupNames,
    pub culprit: GroupNames,
    pub state: &'static str,
    pub last: Option<GroupNames>,
    pub place: Option<Arc<str>>,
    pub ns: u64,
    pub count: u64,
}

/// The names of a group of threads. `process` is `None` for a culprit that is no thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupNames {
    pub process: Option<Arc<str>>,
    pub thread: Arc<str>,
}

/// What is concluded from a complete recording.
#[derive(Clone, Debug, Default)]
pub struct Conclusions {
    pub findings: Vec<Finding>,
    pub meanings: Vec<StallMeaning>,
    pub blame: Vec<BlameRow>,
}

/// Replaces the conclusions in the file of a complete recording, in one transaction.
pub fn write_findings(path: &Path, conclusions: &Conclusions) -> Result<()> {
    let (path, mut connection) = foreign::open_to_change(path)?;
    write(&mut connection, conclusions).map_err(|error| Error::from_sqlite(&path, Action::Write, error))
}

fn write(connection: &mut Connection, conclusions: &Conclusions) -> SqlResult<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    replace(&transaction, &conclusions.findings)?;
    replace_meanings(&transaction, &conclusions.meanings)?;
    replace_blame(&transaction, &conclusions.blame)?;
    transaction.commit()
}

fn replace(to: &Connection, findings: &[Finding]) -> SqlResult<()> {
    // A transaction without changes does not wait for the disk. A DELETE counts as a change even if it
    // deletes no row.
    if to.query_row("SELECT EXISTS (SELECT 1 FROM finding)", [], |row| row.get(0))? {
        to.execute_batch("DELETE FROM finding; DELETE FROM finding_thread; DELETE FROM finding_stall")?;
    }
    for (id, finding) in (1..).zip(findings) {
        insert(to, id, finding)?;
    }
    Ok(())
}

fn replace_meanings(to: &Connection, meanings: &[StallMeaning]) -> SqlResult<()> {
    if to.query_row("SELECT EXISTS (SELECT 1 FROM stall_meaning)", [], |row| row.get(0))? {
        to.execute_batch("DELETE FROM meaning; DELETE FROM stall_meaning")?;
    }
    let mut ids: HashMap<&Meaning, i64> = HashMap::new();
    for (stall, meaning, wait) in meanings {
        let id = match meaning {
            Some(meaning) => Some(meaning_id(to, meaning, &mut ids)?),
            None => None,
        };
        to.prepare_cached("INSERT OR REPLACE INTO stall_meaning (stall, meaning, wait) VALUES (?, ?, ?)")?
            .execute(params![integer(*stall), id, wait.map(integer)])?;
    }
    Ok(())
}

fn replace_blame(to: &Connection, rows: &[BlameRow]) -> SqlResult<()> {
    if to.query_row("SELECT EXISTS (SELECT 1 FROM blame_edge)", [], |row| row.get(0))? {
        to.execute_batch("DELETE FROM blame_edge")?;
    }
    let mut insert = to.prepare_cached("INSERT INTO blame_edge VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")?;
    for row in rows {
        let last = row.last.as_ref();
        insert.execute(params![
            row.waiter.process.as_deref().unwrap_or_default(),
            row.waiter.thread,
            row.culprit.process,
            row.culprit.thread,
            row.state,
            last.and_then(|last| last.process.clone()),
            last.map(|last| last.thread.clone()),
            row.place,
            integer(row.ns),
            integer(row.count)
        ])?;
    }
    Ok(())
}

fn meaning_id<'m>(
    to: &Connection,
    meaning: &'m Meaning,
    ids: &mut HashMap<&'m Meaning, i64>,
) -> SqlResult<i64> {
    if let Some(&known) = ids.get(meaning) {
        return Ok(known);
    }
    let id = ids.len() as i64 + 1;
    let Meaning { name, software, idle, holder: _, source } = meaning;
    to.prepare_cached("INSERT INTO meaning (id, name, software, idle, source) VALUES (?, ?, ?, ?, ?)")?
        .execute(params![id, name, software, idle, source.name()])?;
    ids.insert(meaning, id);
    Ok(id)
}

fn insert(to: &Connection, id: i64, finding: &Finding) -> SqlResult<()> {
    to.prepare_cached(
        "INSERT INTO finding (id, rule, title, advice, count, total_ns, max_ns) VALUES (?, ?, ?, ?, ?, ?, ?)",
    )?
    .execute(params![
        id,
        finding.rule,
        finding.title,
        finding.advice,
        integer(finding.count),
        integer(finding.total_ns),
        integer(finding.max_ns)
    ])?;
    for thread in &finding.threads {
        to.prepare_cached("INSERT OR IGNORE INTO finding_thread (finding, thread) VALUES (?, ?)")?
            .execute(params![id, thread.0])?;
    }
    for &stall in &finding.stalls {
        to.prepare_cached("INSERT OR IGNORE INTO finding_stall (finding, stall) VALUES (?, ?)")?
            .execute(params![id, integer(stall)])?;
    }
    Ok(())
}

/// SQLite's integers end at 2^63 - 1.
fn integer(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Recorder, RecordingStart};
    use wallprof_model::profile::Cause;
    use wallprof_model::{MonoNs, ThreadKey};

    fn finding(rule: &str, stalls: &[u64]) -> Finding {
        Finding {
            rule: rule.into(),
            cause: Cause::Program,
            title: "engine waited".into(),
            advice: "hold it for less time".into(),
            threads: vec![ThreadKey(2), ThreadKey(1)],
            most_late: Vec::new(),
            most_late_ns: 7,
            count: u64::MAX,
            total_ns: 7,
            max_ns: 5,
            stalls: stalls.to_vec(),
        }
    }

    fn found(findings: Vec<Finding>) -> Conclusions {
        Conclusions { findings, ..Conclusions::default() }
    }

    fn meaning_of(meanings: Vec<StallMeaning>) -> Conclusions {
        Conclusions { meanings, ..Conclusions::default() }
    }

    #[test]
    fn blame_replaces_that_of_an_earlier_write() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        Recorder::create(&path, &RecordingStart::default()).unwrap().finish(MonoNs(10)).unwrap();
        let group = |process: Option<&str>, thread: &str| GroupNames {
            process: process.map(Arc::from),
            thread: thread.into(),
        };
        let row = BlameRow {
            waiter: group(Some("shop"), "engine"),
            culprit: group(None, "device"),
            state: "disk",
            last: Some(group(Some("shop"), "housekeeper")),
            place: Some("sweep (fdatasync)".into()),
            ns: u64::MAX,
            count: 3,
        };
        let blame = vec![row.clone(), BlameRow { last: None, place: None, ns: 7, ..row }];
        let rows = |path: &Path| -> Vec<String> {
            let sql =
                "SELECT concat_ws(' ', waiter_process, waiter_thread, culprit_process, culprit_thread, state,
                last_process, last_thread, place, ns, count) FROM blame ORDER BY ns DESC";
            let connection = Connection::open(path).unwrap();
            let mut statement = connection.prepare(sql).unwrap();
            statement.query_map([], |row| row.get(0)).unwrap().collect::<SqlResult<_>>().unwrap()
        };
        for _ in 0..2 {
            write_findings(&path, &Conclusions { blame: blame.clone(), ..Conclusions::default() }).unwrap();
            let first = format!("shop engine device disk shop housekeeper sweep (fdatasync) {} 3", i64::MAX);
            assert_eq!(rows(&path), [first, "shop engine device disk 7 3".into()]);
        }
        write_findings(&path, &Conclusions::default()).unwrap();
        assert!(rows(&path).is_empty());
    }

    fn rows(path: &Path) -> Vec<String> {
        let connection = Connection::open(path).unwrap();
        let sql = "SELECT id || ' ' || rule || ' ' || count || ' ' || threads || ' ' || stalls FROM findings";
        let mut statement = connection.prepare(sql).unwrap();
        statement.query_map([], |row| row.get(0)).unwrap().collect::<SqlResult<_>>().unwrap()
    }

    #[test]
    fn findings_replace_those_of_an_earlier_write() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        Recorder::create(&path, &RecordingStart::default()).unwrap().finish(MonoNs(10)).unwrap();
        write_findings(&path, &found(vec![finding("deadlock", &[3, 9]), finding("preempted", &[])])).unwrap();
        let count = i64::MAX;
        assert_eq!(
            rows(&path),
            [format!("1 deadlock {count} [1,2] [3,9]"), format!("2 preempted {count} [1,2] []")]
        );
        write_findings(&path, &found(vec![finding("oversleep", &[1, 1])])).unwrap();
        assert_eq!(rows(&path), [format!("1 oversleep {count} [1,2] [1]")]);
        write_findings(&path, &Conclusions::default()).unwrap();
        assert!(rows(&path).is_empty());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "one plain file is left");
    }

    #[test]
    fn meanings_are_columns_of_the_view_of_stalls() {
        use crate::RecordingStart;
        use wallprof_model::event::Stall;
        use wallprof_model::{Event, MeaningSource, Reason, StallReason, ThreadInfo, ThreadKey};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        let mut recorder = Recorder::create(&path, &RecordingStart::default()).unwrap();
        recorder.take(Event::Thread(ThreadInfo::new(ThreadKey(1), (1, "postgres"), (1, "backend")))).unwrap();
        let reason = StallReason::Blocked(Reason::Poll);
        for start in [10, 30, 50] {
            let wait = Stall::new(ThreadKey(1), reason, MonoNs(start), 9);
            // The last one was late by more than its slack.
            let wait = Stall { asked_ns: Some(5), voluntary: start != 50, ..wait };
            recorder.take(Event::Stall(Box::new(wait))).unwrap();
        }
        recorder.finish(MonoNs(100)).unwrap();
        let meaning = |name: &str, idle| {
            let (software, source) = (Some("postgresql".into()), MeaningSource::Stack);
            Some(Arc::new(Meaning { name: name.into(), software, idle, holder: true, source }))
        };
        let meanings = [(1, meaning("row lock", false), Some(1)), (2, meaning("row lock", false), Some(1))];
        write_findings(&path, &meaning_of(meanings.to_vec())).unwrap();
        let rows = |path: &Path| -> Vec<String> {
            let sql = "SELECT coalesce(meaning, '-') || ' ' || voluntary || ' ' || late_ns || ' ' || wait_id
                FROM stalls ORDER BY id";
            let connection = Connection::open(path).unwrap();
            let mut statement = connection.prepare(sql).unwrap();
            statement.query_map([], |row| row.get(0)).unwrap().collect::<SqlResult<_>>().unwrap()
        };
        assert_eq!(rows(&path), ["row lock 0 9 1", "row lock 0 9 1", "- 0 4 3"]);
        let idle = |stall| (stall, meaning("client idle", true), None);
        write_findings(&path, &meaning_of(vec![idle(2), idle(3)])).unwrap();
        assert_eq!(rows(&path), ["- 1 4 1", "client idle 1 4 2", "client idle 0 4 3"], "overslept");
    }

    #[test]
    fn file_that_is_no_recording_is_not_changed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes");
        std::fs::write(&path, "dear diary").unwrap();
        assert!(matches!(write_findings(&path, &Conclusions::default()), Err(Error::NotARecording { .. })));
        assert_eq!(std::fs::read(&path).unwrap(), b"dear diary");
        assert!(matches!(
            write_findings(&folder.path().join("none"), &Conclusions::default()),
            Err(Error::NotFound { .. })
        ));
    }
}
