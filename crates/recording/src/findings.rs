//! Findings in the file, for users who query it with SQL. They are those of the complete recording.
//!
//! wallprof itself never reads these rows: each report applies the rules to the stalls again.

use std::path::Path;

use rusqlite::{Connection, Result as SqlResult, TransactionBehavior, params};
use wallprof_model::profile::Finding;

use crate::error::{Action, Error, Result};
use crate::foreign;

/// Replaces the findings of a complete recording, in one transaction.
pub fn write_findings(path: &Path, findings: &[Finding]) -> Result<()> {
    let (path, mut connection) = foreign::open_to_change(path)?;
    write(&mut connection, findings).map_err(|error| Error::from_sqlite(&path, Action::Write, error))
}

fn write(connection: &mut Connection, findings: &[Finding]) -> SqlResult<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    replace(&transaction, findings)?;
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
    use wallprof_model::{MonoNs, ThreadKey};

    fn finding(rule: &str, stalls: &[u64]) -> Finding {
        Finding {
            rule: rule.into(),
            title: "engine waited".into(),
            advice: "hold it for less time".into(),
            threads: vec![ThreadKey(2), ThreadKey(1)],
            count: u64::MAX,
            total_ns: 7,
            max_ns: 5,
            stalls: stalls.to_vec(),
        }
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
        write_findings(&path, &[finding("deadlock", &[3, 9]), finding("preempted", &[])]).unwrap();
        let count = i64::MAX;
        assert_eq!(
            rows(&path),
            [format!("1 deadlock {count} [1,2] [3,9]"), format!("2 preempted {count} [1,2] []")]
        );
        write_findings(&path, &[finding("oversleep", &[1, 1])]).unwrap();
        assert_eq!(rows(&path), [format!("1 oversleep {count} [1,2] [1]")]);
        write_findings(&path, &[]).unwrap();
        assert!(rows(&path).is_empty());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "one plain file is left");
    }

    #[test]
    fn file_that_is_no_recording_is_not_changed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes");
        std::fs::write(&path, "dear diary").unwrap();
        assert!(matches!(write_findings(&path, &[]), Err(Error::NotARecording { .. })));
        assert_eq!(std::fs::read(&path).unwrap(), b"dear diary");
        assert!(matches!(write_findings(&folder.path().join("none"), &[]), Err(Error::NotFound { .. })));
    }
}
