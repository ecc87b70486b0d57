//! What a test that measures time needs before it may start: the machine for itself, and BPF.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::recorder::wallprof;
use crate::skip;

static SERIAL: Mutex<()> = Mutex::new(());

/// Held by a running test: no other test of this program that reserves the machine runs meanwhile.
pub struct SerialGuard {
    _guard: MutexGuard<'static, ()>,
}

/// `None` where BPF is not permitted and may be missing: the test is skipped.
///
/// # Panics
/// Where BPF is not permitted and `WALLPROF_REQUIRE_BPF=1` demands it.
pub fn reserve(test: &str) -> Option<SerialGuard> {
    let guard = SERIAL.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(refusal) = bpf_refusal() {
        let required = std::env::var_os("WALLPROF_REQUIRE_BPF").is_some_and(|value| value == "1");
        assert!(!required, "WALLPROF_REQUIRE_BPF=1, but this machine cannot record: {refusal}");
        skip(test, refusal);
        return None;
    }
    Some(SerialGuard { _guard: guard })
}

/// The recorder's own message why this machine cannot record. Requested once.
fn bpf_refusal() -> Option<&'static str> {
    static REFUSAL: OnceLock<Option<String>> = OnceLock::new();
    REFUSAL.get_or_init(try_to_record).as_deref()
}

/// Exit code 3 is the recorder's "not permitted, or not offered by this kernel". Any other failure is no
/// reason to skip: the tests run and show it.
fn try_to_record() -> Option<String> {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let output = wallprof()
        .args(["record", "-a", "-d", "100ms", "-o"])
        .arg(folder.path().join("probe.db"))
        .output()
        .expect("the wallprof binary runs");
    (output.status.code() == Some(3)).then(|| String::from_utf8_lossy(&output.stderr).trim().to_owned())
}
