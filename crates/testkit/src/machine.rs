// SPDX-License-Identifier: Apache-2.0
//! What a live test needs before it may start: the machine for itself, and BPF.
//!
//! A test that reserves the machine is a *live* test: it records, or measures time. All other tests are
//! *pure*. `tests/gate` runs the pure ones first, with `WALLPROF_TESTS=pure`: a live test then returns, and
//! its name is written to the file that `WALLPROF_LIVE` names. So no list of live tests exists. In the same way
//! `WALLPROF_TESTS=stored` finds the tests of stored runs, see [`stored`].

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use rustix::fs::{FlockOperation, flock};

use crate::recorder::wallprof;
use crate::skips::append_line;
use crate::surroundings::Surroundings;
use crate::{note, skip, stored};

static SERIAL: Mutex<()> = Mutex::new(());

/// Held by a running test: no other live test runs meanwhile, neither of this program nor of another checkout.
/// Of a test that fails, it prints what else the machine did.
pub struct SerialGuard {
    test: String,
    before: Surroundings,
    start: Instant,
    _machine: File,
    _guard: MutexGuard<'static, ()>,
}

/// `None` where the test does not run: live tests are deferred, or BPF is not permitted and may be missing.
///
/// # Panics
/// Where BPF is not permitted and `WALLPROF_REQUIRE_BPF=1` demands it.
pub fn reserve(test: &str) -> Option<SerialGuard> {
    match std::env::var("WALLPROF_TESTS").as_deref() {
        Ok("pure") => {
            defer();
            return None;
        }
        Ok("stored") => return None,
        _ => {}
    }
    let guard = SERIAL.lock().unwrap_or_else(PoisonError::into_inner);
    let machine = lock_machine();
    if !may_record(test) {
        return None;
    }
    Some(SerialGuard {
        test: name_of_this_test(),
        before: Surroundings::now(),
        start: Instant::now(),
        _machine: machine,
        _guard: guard,
    })
}

/// Whether this machine can record. Asked by a test of a refusal, which comes before anything is recorded: such a
/// test is pure.
///
/// # Panics
/// Where it cannot and `WALLPROF_REQUIRE_BPF=1` demands it.
pub fn may_record(test: &str) -> bool {
    let Some(refusal) = bpf_refusal() else { return true };
    let required = std::env::var_os("WALLPROF_REQUIRE_BPF").is_some_and(|value| value == "1");
    assert!(!required, "WALLPROF_REQUIRE_BPF=1, but this machine cannot record: {refusal}");
    skip(test, refusal);
    false
}

impl Drop for SerialGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let meanwhile = Surroundings::now().since(&self.before, self.start.elapsed());
            note(&format!("machine {}: {meanwhile}", self.test));
        }
    }
}

/// Whether two threads of a scenario may run at the same time, by this process's affinity, which scenarios
/// inherit. A test whose claim needs that skips without.
pub fn may_use_two_cpus() -> bool {
    stored::is_replayed() || std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() >= 2)
}

/// The test harness names the thread of a test after it, with its modules.
pub(crate) fn name_of_this_test() -> String {
    std::thread::current().name().expect("the thread of a test has a name").to_owned()
}

/// Writes down that this test is to run later.
pub(crate) fn defer() {
    let path = std::env::var_os("WALLPROF_LIVE").expect("WALLPROF_LIVE goes with WALLPROF_TESTS");
    append_line(&path, &name_of_this_test())
        .unwrap_or_else(|error| panic!("WALLPROF_LIVE={}: {error}", path.display()));
}

/// Waits for the live test of another process. The file is never removed.
fn lock_machine() -> File {
    let path = PathBuf::from("/tmp/wallprof-live-test.lock");
    // A file of another user in a folder like /tmp may be read, not created (fs.protected_regular).
    let file = File::open(&path).or_else(|_| OpenOptions::new().create(true).append(true).open(&path));
    let file = file.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    flock(&file, FlockOperation::LockExclusive).expect("a lock on a file");
    file
}

/// The recorder's own message why this machine cannot record. Requested once, and by `tests/gate` for all.
fn bpf_refusal() -> Option<&'static str> {
    static REFUSAL: OnceLock<Option<String>> = OnceLock::new();
    let is_known_to_work = |value: OsString| value == "works";
    if std::env::var_os("WALLPROF_BPF").is_some_and(is_known_to_work) {
        return None;
    }
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
