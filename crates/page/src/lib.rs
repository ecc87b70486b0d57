// SPDX-License-Identifier: Apache-2.0
//! A recording as one HTML file: findings, threads over time, counters, heat maps, stalls and a flame graph of
//! what the reader selects. It opens without a network.
//!
//! [`Stalls`] and [`wallprof_analysis::bins`] collect a recording's rows; [`page_html`] writes them as compressed
//! columns into the page. `web/` has the code of the page, which computes everything else from the columns.
//! Pure: values in, bytes out.

mod columns;
mod counters;
mod head;
mod ledger;
mod names;
mod spans;
mod stacks;
mod stalls;
mod weights;

use std::collections::HashMap;
use std::io::{self, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use wallprof_analysis::bins::{BinnedLedger, BinnedStacks};
use wallprof_analysis::interest;
use wallprof_analysis::spans::KindTail;
use wallprof_analysis::totals::accounts;
use wallprof_model::ThreadKey;
use wallprof_model::counter::{CounterTrack, Mark};
use wallprof_model::profile::{Finding, FoldedStalls, RecordingInfo, Thread};

pub use spans::OPTIONS as SPAN_OPTIONS;
pub use stalls::Stalls;

use columns::Columns;
use head::{Head, LeftOut};
use names::Names;
use stacks::Stacks;
use stalls::Texts;
use weights::BinnedWeights;

/// The page before and after its data, made and compressed by `build.rs`.
const BEFORE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/before.html.gz"));
const AFTER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/after.html.gz"));

/// Limit on the compressed data: a page stays below 5 MiB.
const MOST_BYTES: usize = 3_600_000;
/// Limit on weights of stacks. Beyond it, their bins become longer.
const MOST_WEIGHTS: usize = 150_000;
/// How often stalls are left out until the data fits. One time is enough unless names take most of it.
const ATTEMPTS: usize = 4;

/// Everything that a page shows. Threads are in the order of [`ordered`].
pub struct Page<'a> {
    pub info: &'a RecordingInfo,
    pub threads: &'a [Thread],
    pub findings: &'a [Finding],
    pub folded: &'a [FoldedStalls],
    pub counters: &'a [CounterTrack],
    pub marks: &'a [Mark],
    /// The kinds of spans, and how many more there are.
    pub kinds: (&'a [KindTail], usize),
    /// Whether the recording has calls, which a page does not show.
    pub has_calls: bool,
    pub ledger: BinnedLedger,
    pub samples: BinnedStacks,
    pub stalls: Stalls,
}

/// The threads in the order of the page: the most lateness first, as a report has them.
pub fn ordered(threads: &[Thread]) -> Vec<Thread> {
    let order = interest::order(threads, &accounts(threads));
    order.into_iter().map(|at| threads[at].clone()).collect()
}

/// Writes the page.
///
/// # Errors
/// Errors of `out`.
pub fn page_html(out: &mut dyn Write, page: Page<'_>) -> io::Result<()> {
    let data = page.data()?;
    io::copy(&mut GzDecoder::new(BEFORE), out)?;
    out.write_all(STANDARD.encode(data).as_bytes())?;
    io::copy(&mut GzDecoder::new(AFTER), out).map(drop)
}

impl Page<'_> {
    /// The compressed columns. Where they are too many bytes, the least important stalls are left out.
    fn data(self) -> io::Result<Vec<u8>> {
        let Page { info, threads, findings, folded, counters, marks, kinds, .. } = self;
        let Page { has_calls, ledger, samples, mut stalls, .. } = self;
        let (mut names, mut stacks) = (Names::default(), Stacks::default());
        let mut weights = BinnedWeights::new(&samples, &mut stacks, &mut names);
        while weights.len() > MOST_WEIGHTS && weights.widen() {}
        stalls.set_evidence(findings.iter().flat_map(|finding| finding.stalls.iter().copied()));
        stalls.truncate(stalls::MOST_STALLS);
        for attempt in 1.. {
            stalls.sort();
            let given = Given { info, threads, findings, folded, counters, marks, kinds, has_calls };
            let bytes = given.encoded(&ledger, &weights, &stalls, (names.clone(), stacks.clone()))?;
            if bytes.len() <= MOST_BYTES || attempt == ATTEMPTS || stalls.len() == 0 {
                return Ok(bytes);
            }
            let excess = bytes.len() as f64 / MOST_BYTES as f64;
            stalls.truncate((stalls.len() as f64 / (excess * 1.2)) as usize);
            while weights.len() > MOST_WEIGHTS / (2 * attempt) && weights.widen() {}
        }
        Err(io::Error::other("the page does not fit its limit: report this as a bug"))
    }
}

/// The parts of a page that are not shortened.
#[derive(Clone, Copy)]
struct Given<'a> {
    info: &'a RecordingInfo,
    threads: &'a [Thread],
    findings: &'a [Finding],
    folded: &'a [FoldedStalls],
    counters: &'a [CounterTrack],
    marks: &'a [Mark],
    kinds: (&'a [KindTail], usize),
    has_calls: bool,
}

impl Given<'_> {
    fn encoded(
        &self,
        ledger: &BinnedLedger,
        weights: &BinnedWeights,
        stalls: &Stalls,
        (mut names, mut stacks): (Names, Stacks),
    ) -> io::Result<Vec<u8>> {
        let mut columns = Columns::default();
        let start = self.info.start.0;
        head::write_threads(self.info, self.threads, &mut names, &mut columns);
        ledger::write(ledger, &mut columns);
        stalls.write(&mut Texts::new(self.threads, &mut names, &mut stacks), start, &mut columns);
        let index: HashMap<ThreadKey, u32> =
            self.threads.iter().zip(0..).map(|(thread, at)| (thread.info.key, at)).collect();
        let number = |key| index.get(&key).map_or(0, |at| at + 1);
        let (tracks, mut left_out) = counters::write(self.counters, start, number, &mut names, &mut columns);
        left_out.marks = counters::write_marks(self.marks, start, &mut names, &mut columns);
        stacks.write(&mut columns);
        weights.write(&mut columns);
        let left_out = LeftOut {
            stalls: stalls.left_out,
            counters: left_out,
            folded: self.folded,
            cut_stacks: stacks.cut,
            cut_names: names.cut,
            calls: self.has_calls,
            ledger_seconds: ledger.bins.width,
            weight_seconds: weights.width,
        };
        let found = (self.findings, self.kinds);
        let head = Head::new(self.info, (self.threads, &index), found, tracks, &left_out, &names);
        let bytes = columns.with_head(&head).map_err(io::Error::other)?;
        let mut encoder = GzEncoder::new(Vec::new(), Compression::new(6));
        encoder.write_all(&bytes)?;
        encoder.finish()
    }
}
