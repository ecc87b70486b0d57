// SPDX-License-Identifier: Apache-2.0
//! The queue of build ids, and the thread that requests them.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use wallprof_symbols::DebugFileServer;

use crate::cache::Cache;
use crate::certificates;
use crate::limits::Limits;
use crate::server::{Client, Refusal};
use crate::settings::Settings;

/// Sentences about failures that are kept.
const MAX_FAILURES: usize = 4;

/// The results of requests so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Files that were downloaded.
    pub received: u64,
    /// Files that were in the cache.
    pub cached: u64,
    /// Bytes that were downloaded.
    pub bytes: u64,
    /// Files that no server has.
    pub missing: u64,
    /// Answers that were not used, and requests beyond the limits.
    pub failed: u64,
    /// Requests without an answer yet.
    pub open: u64,
    /// The first failures, a sentence each.
    pub failures: Vec<String>,
}

/// Downloads in the background. Dropping it ends them without waiting.
pub struct Downloads {
    shared: Arc<Shared>,
    folder: PathBuf,
    notes: Vec<String>,
}

struct Shared {
    cache: Cache,
    state: Mutex<State>,
    changed: Condvar,
    stopped: AtomicBool,
}

#[derive(Default)]
struct State {
    asked: HashSet<Vec<u8>>,
    queue: VecDeque<Vec<u8>>,
    outcome: Outcome,
    /// The file that is being written.
    partial: Option<PathBuf>,
}

impl Downloads {
    /// `None`: the settings name no server.
    pub fn start(settings: Settings) -> io::Result<Option<Self>> {
        let Settings { servers, mut notes, cache, certificates, limits } = settings;
        let (servers, trusted) = reachable(servers, certificates.as_deref(), &mut notes);
        if servers.is_empty() && notes.is_empty() {
            return Ok(None);
        }
        let cache = Cache::open(cache.as_deref())?;
        let folder = cache.folder().to_owned();
        let shared = Arc::new(Shared {
            cache,
            state: Mutex::default(),
            changed: Condvar::new(),
            stopped: AtomicBool::new(false),
        });
        let worker = Worker {
            shared: Arc::clone(&shared),
            servers: servers.into_iter().map(Some).collect(),
            client: Client::new(limits, trusted),
            limits,
            bytes: 0,
            files: 0,
        };
        thread::Builder::new().name("debuginfod".into()).spawn(move || worker.run())?;
        Ok(Some(Downloads { shared, folder, notes }))
    }

    /// Sentences about servers that are left out.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Waits as [`DebugFileServer::wait`] does, until `goes_on` returns false. It is called ten times a
    /// second.
    pub fn wait_while(&self, longest: Duration, mut goes_on: impl FnMut(&Outcome) -> bool) -> bool {
        let deadline = Instant::now() + longest;
        let mut state = self.shared.lock();
        while state.outcome.open > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || !goes_on(&state.outcome) {
                return false;
            }
            let step = left.min(Duration::from_millis(100));
            let waited = self.shared.changed.wait_timeout(state, step);
            state = waited.map_or_else(|poisoned| poisoned.into_inner().0, |(state, _)| state);
        }
        true
    }

    /// The results so far.
    pub fn outcome(&self) -> Outcome {
        self.shared.lock().outcome.clone()
    }
}

impl DebugFileServer for Downloads {
    fn want(&self, build_id: &[u8]) {
        let mut state = self.shared.lock();
        if !build_id.is_empty() && state.asked.insert(build_id.to_vec()) {
            state.queue.push_back(build_id.to_vec());
            state.outcome.open += 1;
            self.shared.changed.notify_all();
        }
    }

    fn wait(&self, longest: Duration) -> bool {
        self.wait_while(longest, |_| true)
    }

    fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Downloads {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
        let mut state = self.shared.lock();
        state.queue.clear();
        // The thread may be waiting for a server when the process ends.
        if let Some(partial) = state.partial.take() {
            let _ = std::fs::remove_file(partial);
        }
        self.shared.cache.discard();
        self.shared.changed.notify_all();
    }
}

impl fmt::Debug for Downloads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Downloads").field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// The next build id; `None` when there will be none.
    fn next(&self) -> Option<Vec<u8>> {
        let mut state = self.lock();
        while !self.is_stopped() {
            if let Some(build_id) = state.queue.pop_front() {
                return Some(build_id);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }

    fn answered(&self, count: impl FnOnce(&mut Outcome)) {
        let mut state = self.lock();
        count(&mut state.outcome);
        state.outcome.open = state.outcome.open.saturating_sub(1);
        state.partial = None;
        self.changed.notify_all();
    }
}

/// The servers that can be reached with the available certificates, and those certificates.
fn reachable(
    mut servers: Vec<String>,
    certificates: Option<&Path>,
    notes: &mut Vec<String>,
) -> (Vec<String>, Vec<ureq::tls::Certificate<'static>>) {
    let is_secure = |server: &String| server.to_ascii_lowercase().starts_with("https:");
    if !servers.iter().any(is_secure) {
        return (servers, Vec::new());
    }
    let trusted = certificates::trusted(certificates);
    if trusted.is_empty() {
        servers.retain(|server| !is_secure(server));
        notes.push(
            "DEBUGINFOD_URLS: https servers are left out: no certificates of authorities were found: install \
             ca-certificates, or name a bundle in SSL_CERT_FILE"
                .into(),
        );
    }
    (servers, trusted)
}

/// The thread's state.
struct Worker {
    shared: Arc<Shared>,
    /// `None`: the server is not asked again.
    servers: Vec<Option<String>>,
    client: Client,
    limits: Limits,
    bytes: u64,
    files: usize,
}

impl Worker {
    fn run(mut self) {
        // A cache that cannot be cleaned is used as it is.
        let _ = self.shared.cache.clean();
        while let Some(build_id) = self.shared.next() {
            self.answer(&build_id);
        }
    }

    fn answer(&mut self, build_id: &[u8]) {
        if self.shared.cache.holds(build_id) {
            return self.shared.answered(|outcome| outcome.cached += 1);
        }
        if self.shared.cache.is_missed(build_id) {
            return self.shared.answered(|outcome| outcome.missing += 1);
        }
        let before = self.bytes;
        let answer = self.ask(build_id);
        let bytes = self.bytes - before;
        self.shared.answered(|outcome| {
            outcome.bytes += bytes;
            match answer {
                Ok(()) => outcome.received += 1,
                Err(Refusal::Missing) => outcome.missing += 1,
                Err(refusal) => {
                    outcome.failed += 1;
                    let sentence = refusal.to_string();
                    if outcome.failures.len() < MAX_FAILURES && !outcome.failures.contains(&sentence) {
                        outcome.failures.push(sentence);
                    }
                }
            }
        });
    }

    /// Asks one server after the other.
    fn ask(&mut self, build_id: &[u8]) -> Result<(), Refusal> {
        if self.files >= self.limits.files || self.bytes >= self.limits.total_bytes {
            return Err(Refusal::Unusable("this run has reached its limit of requests".into()));
        }
        self.files += 1;
        let mut worst = Refusal::Missing;
        let mut all_asked = !self.servers.is_empty();
        for index in 0..self.servers.len() {
            let Some(server) = self.servers[index].clone() else {
                all_asked = false;
                continue;
            };
            match self.ask_one(&server, build_id) {
                Ok(()) => return Ok(()),
                Err(Refusal::Missing) => {}
                Err(refusal) => {
                    all_asked = false;
                    if matches!(refusal, Refusal::Unreachable(_)) {
                        self.servers[index] = None;
                    }
                    worst = match refusal {
                        Refusal::Unreachable(why) => Refusal::Unreachable(format!("{server}: {why}")),
                        Refusal::Unusable(why) => Refusal::Unusable(format!("{server}: {why}")),
                        other => other,
                    };
                }
            }
        }
        if all_asked {
            // If the miss is not recorded, the file is requested again next time.
            let _ = self.shared.cache.note_miss(build_id);
        } else if matches!(worst, Refusal::Missing) {
            worst = Refusal::Unusable("no server is left to ask".into());
        }
        Err(worst)
    }

    fn ask_one(&mut self, server: &str, build_id: &[u8]) -> Result<(), Refusal> {
        let unusable = |error: io::Error| Refusal::Unusable(format!("it cannot be stored: {error}"));
        let mut file = self.shared.cache.create(build_id).map_err(unusable)?;
        self.shared.lock().partial = Some(file.path().to_owned());
        let left = self.limits.total_bytes - self.bytes;
        let mut received = 0;
        let stopped = || self.shared.is_stopped();
        let out: (&mut dyn Write, _) = (file.as_file_mut(), &mut received);
        let fetched = self.client.fetch(server, build_id, left, out, &stopped);
        self.bytes += received;
        fetched?;
        if wallprof_symbols::build_id(file.as_file()).as_deref() != Some(build_id) {
            return Err(Refusal::Unusable("the file that came has another build id".into()));
        }
        self.shared.cache.publish(file, build_id).map_err(unusable)
    }
}
