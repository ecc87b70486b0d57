//! What a truth test needs before it may begin: the machine to itself, and BPF.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::recorder::wallprof;

static ALONE: Mutex<()> = Mutex::new(());

/// Held by a running truth test: no other one runs.
pub struct Stage {
    _alone: MutexGuard<'static, ()>,
}

/// `None` where BPF is not permitted and may be missing: the test is skipped.
pub fn enter(test: &str) -> Option<Stage> {
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(refusal) = bpf_refusal() {
        let required = std::env::var_os("WALLPROF_REQUIRE_BPF").is_some_and(|value| value == "1");
        assert!(!required, "WALLPROF_REQUIRE_BPF=1, but this machine cannot record: {refusal}");
        skip(test, refusal);
        return None;
    }
    Some(Stage { _alone: alone })
}

/// Says on the real stderr, which the test harness does not capture, that `test` did not run.
pub fn skip(test: &str, why: &str) {
    tell(&format!("skipped {test}: {why}"));
}

/// Says it on the real stderr.
pub fn tell(what: &str) {
    let _ = writeln!(std::io::stderr(), "{what}");
}

/// Why this machine cannot record, from the recorder itself; asked once.
fn bpf_refusal() -> Option<&'static str> {
    static REFUSAL: OnceLock<Option<String>> = OnceLock::new();
    REFUSAL.get_or_init(ask_for_bpf).as_deref()
}

/// Exit code 3 is the recorder's "not permitted, or not offered by this kernel". Any other failure is
/// not a reason to skip: the tests run and show it.
fn ask_for_bpf() -> Option<String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let output = wallprof()
        .args(["record", "-a", "-d", "100ms", "-o"])
        .arg(folder.path().join("probe.db"))
        .output()
        .expect("the wallprof binary runs");
    (output.status.code() == Some(3)).then(|| String::from_utf8_lossy(&output.stderr).trim().to_owned())
}

/// The scenario's program; all are built when the first is asked for.
pub fn program(scenario: &str) -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(build_scenarios).join(scenario)
}

fn build_scenarios() -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("scenarios");
    let status = Command::new("make")
        .args(["-s", "-C"])
        .arg(&sources)
        .arg(format!("OUT={}", folder.display()))
        .stdin(Stdio::null())
        .status()
        .expect("make runs");
    assert!(status.success(), "the scenarios in {} do not build", sources.display());
    folder
}
