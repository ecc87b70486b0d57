//! The flame graph of the last minute, drawn by a child process. Its memory is freed when it ends. SQLite's
//! locks belong to a process: a second connection in this one would drop those of the flight recording when
//! it is closed.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use wallprof_watch::Response;

/// The time that the picture covers.
const SPAN: Duration = Duration::from_secs(60);
/// A picture serves all requests within this time.
const FRESH: Duration = Duration::from_secs(5);
/// Limit on a picture, which is one or two megabytes.
const MAX_BYTES: u64 = 32 << 20;

/// Draws the picture, and caches it for a few seconds.
pub struct LastMinute {
    recording: PathBuf,
    drawn: Mutex<Option<(Instant, Response)>>,
}

impl LastMinute {
    pub fn of(recording: PathBuf) -> Self {
        LastMinute { recording, drawn: Mutex::new(None) }
    }

    /// The picture, or an error as text.
    pub fn picture(&self) -> Response {
        let mut drawn = self.drawn.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, response)) = drawn.as_ref()
            && at.elapsed() < FRESH
        {
            return response.clone();
        }
        let response = draw(&self.recording);
        *drawn = Some((Instant::now(), response.clone()));
        response
    }
}

fn draw(recording: &Path) -> Response {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let from = now.saturating_sub(SPAN).as_secs().to_string();
    let child = Command::new("/proc/self/exe")
        .arg("flame")
        .arg(recording)
        .args(["--from", &from, "-o", "-"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => return Response::line(500, format_args!("the picture cannot be drawn: {error}")),
    };
    let (picture, error) = (read(child.stdout.take()), read(child.stderr.take()));
    match child.wait() {
        Ok(status) if status.success() => Response::new("image/svg+xml", picture),
        _ => Response::line(503, String::from_utf8_lossy(&error).trim_end()),
    }
}

/// Errors are one line: they stay in their pipe until the picture is read.
fn read(pipe: Option<impl Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        // After an error, the bytes so far are the result.
        let _ = pipe.take(MAX_BYTES).read_to_end(&mut bytes);
    }
    bytes
}
