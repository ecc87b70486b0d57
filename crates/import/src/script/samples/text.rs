// SPDX-License-Identifier: Apache-2.0
//! The samples of one text, in its order.

use std::io::{self, BufRead, BufReader, Read};

use super::frames::{Frames, PrintedCode, PrintedStack};
use super::line::{Expected, Line, SampleHead};

/// Longer lines are divided. Symbols of templates may be long.
const LONGEST_LINE: u64 = 1 << 20;

/// A sample with its stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PrintedSample {
    pub comm: Vec<u8>,
    pub pid: Option<i32>,
    pub tid: i32,
    pub cpu: Option<u32>,
    pub ns: Option<u64>,
    pub period: Option<u64>,
    pub event: Vec<u8>,
    pub stack: PrintedStack,
}

/// What is not a sample.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rest {
    /// Lines that could not be read.
    pub unread: u64,
    /// Lines of branches.
    pub branches: u64,
    /// Records that perf lost.
    pub lost: u64,
    /// `hostname : a`, in front of the first sample.
    pub facts: Vec<(String, String)>,
}

/// Reads one text.
pub(super) struct Samples<R> {
    text: BufReader<R>,
    line: Vec<u8>,
    /// The head of the next sample, which was read already.
    ahead: Option<PrintedSample>,
    /// Bytes that were read.
    pub position: u64,
    pub rest: Rest,
}

impl<R: Read> Samples<R> {
    pub(super) fn new(text: R) -> Self {
        let text = BufReader::with_capacity(256 << 10, text);
        Samples { text, line: Vec::new(), ahead: None, position: 0, rest: Rest::default() }
    }

    /// `None` at the end.
    pub(super) fn next(&mut self, frames: &mut Frames) -> io::Result<Option<PrintedSample>> {
        let mut open = self.ahead.take();
        let mut code = PrintedCode::default();
        let mut expected = open.as_ref().map_or(Expected::Sample, expected_behind);
        while self.read_line()? {
            match Line::parse(&self.line, expected) {
                Line::Sample(head) => {
                    let next = sample(head, frames);
                    expected = expected_behind(&next);
                    if let Some(done) = open.replace(next) {
                        self.ahead = open;
                        return Ok(Some(finished(done, code, frames)));
                    }
                }
                Line::Frame(frame) => {
                    expected = Expected::Frame;
                    if let (Err(frame), Some(sample)) = (code.add(frame), &mut open) {
                        sample.stack.push(std::mem::take(&mut code), frames);
                        // An empty place takes any frame.
                        let _ = code.add(frame);
                    }
                }
                Line::Source { file, line } => code.add_source(file, line),
                // An empty line may stand between a sample and its stack.
                Line::Blank if expected == Expected::Either => {}
                Line::Blank => expected = Expected::Sample,
                Line::Comment(text) => self.rest.comment(text),
                Line::Lost(count) => self.rest.lost = self.rest.lost.saturating_add(count),
                Line::Ignored => {}
                Line::Unread => {
                    if super::is_branch(&self.line) {
                        self.rest.branches += 1;
                    } else {
                        self.rest.unread += 1;
                    }
                    if let Some(sample) = open.as_mut().filter(|_| expected != Expected::Sample) {
                        sample.stack.is_incomplete = true;
                    }
                }
            }
        }
        Ok(open.map(|sample| finished(sample, code, frames)))
    }

    fn read_line(&mut self) -> io::Result<bool> {
        self.line.clear();
        let read = (&mut self.text).take(LONGEST_LINE).read_until(b'\n', &mut self.line)?;
        self.position += read as u64;
        Ok(read > 0)
    }
}

/// A stack follows, unless it is one frame on the same line.
fn expected_behind(sample: &PrintedSample) -> Expected {
    if sample.stack.is_empty() { Expected::Either } else { Expected::Sample }
}

fn sample(head: SampleHead<'_>, frames: &mut Frames) -> PrintedSample {
    let SampleHead { comm, pid, tid, cpu, ns, period, event, frame } = head;
    let mut stack = PrintedStack::default();
    if let Some(frame) = frame {
        let mut code = PrintedCode::default();
        let _ = code.add(frame);
        stack.push(code, frames);
    }
    PrintedSample { comm: comm.to_vec(), pid, tid, cpu, ns, period, event: event.to_vec(), stack }
}

fn finished(mut sample: PrintedSample, code: PrintedCode, frames: &mut Frames) -> PrintedSample {
    if !code.is_empty() {
        sample.stack.push(code, frames);
    }
    sample
}

impl Rest {
    fn comment(&mut self, text: &[u8]) {
        /// More than perf prints.
        const MAX_FACTS: usize = 64;
        let Some(colon) = memchr::memchr(b':', text).filter(|_| self.facts.len() < MAX_FACTS) else { return };
        let part = |bytes: &[u8]| String::from_utf8_lossy(bytes.trim_ascii()).into_owned();
        self.facts.push((part(&text[..colon]), part(&text[colon + 1..])));
    }
}
