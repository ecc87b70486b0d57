// SPDX-License-Identifier: Apache-2.0
//! Debug files from the servers of `DEBUGINFOD_URLS`: starts the downloads for a command, and prints their
//! outcome.

use std::path::Path;
use std::sync::Arc;

use wallprof_debuginfod::{Downloads, Outcome, Settings};

use crate::failure::say;

/// Starts the downloads, if the environment names servers. Ignored servers and a failure are printed; the
/// command goes on.
pub fn start() -> Option<Arc<Downloads>> {
    match Downloads::start(Settings::from_environment()) {
        Ok(downloads) => {
            let downloads = downloads?;
            downloads.notes().iter().for_each(|note| say(note));
            Some(Arc::new(downloads))
        }
        Err(error) => {
            say(&format!(
                "debug files are not downloaded: {error}: set DEBUGINFOD_CACHE_PATH to a writable folder"
            ));
            None
        }
    }
}

/// Prints the outcome for a recording, and the command that gets the rest.
pub fn print_outcome(downloads: &Downloads, file: &Path) {
    if let Some(sentence) = sentence(&downloads.outcome(), file) {
        say(&sentence);
    }
}

/// `None` if nothing was requested, or no server has any of the files.
fn sentence(outcome: &Outcome, file: &Path) -> Option<String> {
    let mut parts = Vec::new();
    let mut part = |count: u64, what: &str| {
        if count > 0 {
            parts.push(format!("{count} {what}"));
        }
    };
    part(outcome.received, &format!("downloaded ({:.1} MiB)", outcome.bytes as f64 / 1_048_576.0));
    part(outcome.failed, "failed");
    part(outcome.open, "not complete in time");
    if parts.is_empty() {
        return None;
    }
    let reason = outcome.failures.first().map(|reason| format!(" ({reason})")).unwrap_or_default();
    let rest = match outcome.open + outcome.failed {
        0 => String::new(),
        _ => format!(": `wallprof symbolize {}` tries again", file.display()),
    };
    Some(format!("debug files: {}{reason}{rest}", parts.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcome_names_the_command_for_missing_files() {
        let file = Path::new("a.db");
        let outcome = Outcome { received: 2, cached: 1, bytes: 3 << 20, missing: 5, ..Outcome::default() };
        assert_eq!(sentence(&outcome, file).as_deref(), Some("debug files: 2 downloaded (3.0 MiB)"));
        let late = Outcome { open: 1, failed: 1, failures: vec!["h: no answer".into()], ..outcome };
        assert_eq!(
            sentence(&late, file).as_deref(),
            Some(
                "debug files: 2 downloaded (3.0 MiB), 1 failed, 1 not complete in time (h: no answer): \
                 `wallprof symbolize a.db` tries again"
            )
        );
        assert_eq!(sentence(&Outcome { missing: 7, cached: 2, ..Outcome::default() }, file), None);
    }
}
