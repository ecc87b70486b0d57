// SPDX-License-Identifier: Apache-2.0
//! Lines from a child's pipe, with a limit on the time that a test waits for one.

use std::io::{BufRead, BufReader, Read};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// Longer than any scenario is silent. A test that waits this long for a line has failed.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Lines, read by a thread of their own so that the child never blocks on a full pipe.
pub struct Lines {
    what: &'static str,
    incoming: Receiver<String>,
    seen: Vec<String>,
}

impl Lines {
    pub fn from_pipe(what: &'static str, pipe: impl Read + Send + 'static) -> Self {
        let (sender, incoming) = channel();
        std::thread::spawn(move || {
            let mut pipe = BufReader::new(pipe);
            let mut line = Vec::new();
            while matches!(pipe.read_until(b'\n', &mut line), Ok(read) if read > 0) {
                let text = String::from_utf8_lossy(&line).trim_end_matches('\n').to_owned();
                if sender.send(text).is_err() {
                    return;
                }
                line.clear();
            }
        });
        Lines { what, incoming, seen: Vec::new() }
    }

    /// The next line for which `wanted` holds; `None` when the pipe ends before it.
    pub fn find(&mut self, wanted: impl Fn(&str) -> bool) -> Option<String> {
        loop {
            match self.incoming.recv_timeout(TIMEOUT) {
                Ok(line) if wanted(&line) => {
                    self.seen.push(line.clone());
                    return Some(line);
                }
                Ok(line) => self.seen.push(line),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {
                    panic!("{} wrote nothing for {TIMEOUT:?}; before: {:#?}", self.what, self.seen)
                }
            }
        }
    }

    /// What was read so far.
    pub fn seen(&self) -> &[String] {
        &self.seen
    }
}
