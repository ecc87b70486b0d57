// SPDX-License-Identifier: Apache-2.0
//! A thread that parses the debug information of one protected file.
//!
//! Such a file is honest, but may be large: a signal must end a recording while the thread is busy. The
//! thread is abandoned then and ends after the address that it is at, or with the process. Files of others
//! never come here ([`crate::reader`]).

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::debug_parser::{Answer, Parser};
use crate::read_limits::Deadline;

/// How often the deadline is looked at while the thread is busy.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// As the first thread of a process has it.
const STACK_SIZE: usize = 8 << 20;

pub(crate) struct DebugReader {
    /// `None` from the end on.
    requests: Option<Sender<Vec<u64>>>,
    answers: Receiver<Answer>,
    /// `None` once it is abandoned.
    thread: Option<JoinHandle<()>>,
}

impl DebugReader {
    /// `path` leads to `file`, which stays open as long as the reader lives.
    pub(crate) fn start(path: PathBuf, file: Arc<File>, debug_dirs: Vec<PathBuf>) -> io::Result<Self> {
        let (requests, asked) = channel::<Vec<u64>>();
        let (answering, answers) = channel();
        let parse = move || {
            let _file = file;
            let mut parser = Parser::new(path, debug_dirs);
            while let Ok(addresses) = asked.recv() {
                if answering.send(parser.answer(&addresses)).is_err() {
                    return;
                }
            }
        };
        let thread =
            std::thread::Builder::new().name("symbols".into()).stack_size(STACK_SIZE).spawn(parse)?;
        Ok(DebugReader { requests: Some(requests), answers, thread: Some(thread) })
    }

    /// At most [`crate::debug_parser::ADDRESSES_A_PARSE`] addresses at once; `None` when the deadline is
    /// over, from then on.
    pub(crate) fn functions(&mut self, addresses: &[u64], deadline: &Deadline) -> Option<Answer> {
        self.requests.as_ref()?.send(addresses.to_vec()).ok()?;
        loop {
            match self.answers.recv_timeout(POLL_INTERVAL) {
                Ok(answer) => return Some(answer),
                Err(RecvTimeoutError::Timeout) if !deadline.is_over() => {}
                Err(_) => {
                    self.abandon();
                    return None;
                }
            }
        }
    }

    fn abandon(&mut self) {
        (self.requests, self.thread) = (None, None);
    }
}

impl Drop for DebugReader {
    /// Its memory is free before another file is read.
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
