// SPDX-License-Identifier: Apache-2.0
//! What is drawn from the flight recording for a reader of the port, each by a child process. Its memory is freed
//! when it ends. SQLite's locks belong to a process: a second connection in this one would drop those of the
//! flight recording when it is closed.

use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use wallprof_findings::Collector;
use wallprof_model::MonoNs;
use wallprof_probe::clock;
use wallprof_recording::{Part, Recording};
use wallprof_watch::Response;

use crate::args::LatestArgs;
use crate::failure::Failure;
use crate::findings::Background;
use crate::meanings::with_meanings;
use crate::output::to_stdout;
use crate::page;

/// The hidden subcommand of the child that reads the last minutes.
pub const SUBCOMMAND: &str = "__latest";

/// The time that the flame graph covers.
const FLAME_SPAN: Duration = Duration::from_secs(60);
/// The time that the page and the findings cover.
const LATEST_SPAN: Duration = Duration::from_secs(300);
/// Limit on what a child prints: pictures are one or two megabytes.
const MAX_BYTES: u64 = 32 << 20;

/// What a child draws.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    Flame,
    /// The last minutes, as of `report -o FILE.html`.
    Page,
    /// A sentence a line: what the last minutes show.
    Findings,
}

impl Subject {
    /// A drawing serves all requests within this time.
    fn fresh(self) -> Duration {
        match self {
            Subject::Flame => Duration::from_secs(5),
            Subject::Page => Duration::from_secs(10),
            Subject::Findings => Duration::from_secs(30),
        }
    }

    fn content_type(self) -> &'static str {
        match self {
            Subject::Flame => "image/svg+xml",
            Subject::Page => "text/html; charset=utf-8",
            Subject::Findings => "text/plain; charset=utf-8",
        }
    }

    fn arguments(self) -> Vec<String> {
        let latest = clock::mono_now().0.saturating_sub(LATEST_SPAN.as_nanos() as u64);
        match self {
            Subject::Flame => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let from = now.saturating_sub(FLAME_SPAN).as_secs();
                vec!["flame".into(), "--from".into(), from.to_string(), "-o".into(), "-".into()]
            }
            Subject::Page => vec![SUBCOMMAND.into(), "--from".into(), latest.to_string()],
            Subject::Findings => {
                vec![SUBCOMMAND.into(), "--findings".into(), "--from".into(), latest.to_string()]
            }
        }
    }
}

/// Draws, and keeps what was drawn for a few seconds.
pub struct Drawing {
    subject: Subject,
    recording: PathBuf,
    /// `--idle` and the like, for the child.
    meaning: Vec<OsString>,
    drawn: Mutex<Option<(Instant, Response)>>,
}

impl Drawing {
    pub fn new(subject: Subject, recording: &Path, meaning: &[OsString]) -> Self {
        let (recording, meaning) = (recording.to_owned(), meaning.to_vec());
        Drawing { subject, recording, meaning, drawn: Mutex::new(None) }
    }

    /// What was drawn a moment ago, or is drawn now; an error as text.
    pub fn get(&self) -> Response {
        self.get_with_age().0
    }

    /// The same, and how long ago it was drawn.
    pub fn get_with_age(&self) -> (Response, Duration) {
        let mut drawn = self.drawn.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kept) = self.kept(&drawn) {
            return kept;
        }
        let response = self.draw();
        *drawn = Some((Instant::now(), response.clone()));
        (response, Duration::ZERO)
    }

    /// Whether [`Drawing::get`] waits for a child.
    pub fn is_stale(&self) -> bool {
        // Locked: another request waits for the child.
        self.drawn.try_lock().map_or(true, |drawn| self.kept(&drawn).is_none())
    }

    fn kept(&self, drawn: &Option<(Instant, Response)>) -> Option<(Response, Duration)> {
        let (at, response) = drawn.as_ref()?;
        let age = at.elapsed();
        (age < self.subject.fresh()).then(|| (response.clone(), age))
    }

    fn draw(&self) -> Response {
        let child = Command::new("/proc/self/exe")
            .args(self.subject.arguments())
            .args(&self.meaning)
            .arg(&self.recording)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = match child {
            Ok(child) => child,
            Err(error) => return Response::line(500, format_args!("no process could be started: {error}")),
        };
        let (drawn, error) = (read(child.stdout.take()), read(child.stderr.take()));
        match child.wait() {
            Ok(status) if status.success() => Response::new(self.subject.content_type(), drawn),
            _ => Response::line(503, String::from_utf8_lossy(&error).trim_end()),
        }
    }
}

/// Errors are one line: they stay in their pipe until the drawing is read.
fn read(pipe: Option<impl Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        // After an error, the bytes so far are the result.
        let _ = pipe.take(MAX_BYTES).read_to_end(&mut bytes);
    }
    bytes
}

/// The child: prints the last minutes as a page, or what they show.
pub fn print_latest(args: &LatestArgs) -> Result<ExitCode, Failure> {
    let part = Part { during: MonoNs(args.from)..MonoNs(u64::MAX) };
    let recording = with_meanings(Recording::open_part(&args.recording, &part)?, &args.meaning.rules()?)?;
    if !args.findings {
        page::print(&recording)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut stalls = Collector::default();
    recording.each_stall(|stall| stalls.add(&stall))?;
    let findings = Background::read(&recording)?.findings(stalls);
    to_stdout(|out| {
        for finding in &findings {
            writeln!(out, "{}", finding.title.replace('\n', " "))?;
        }
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}
