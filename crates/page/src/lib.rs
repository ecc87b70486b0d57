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
/// How often the data is made smaller until it fits. Once is mostly enough.
const ATTEMPTS: usize = 12;

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
    let data = page.data(MOST_BYTES)?;
    io::copy(&mut GzDecoder::new(BEFORE), out)?;
    out.write_all(STANDARD.encode(data).as_bytes())?;
    io::copy(&mut GzDecoder::new(AFTER), out).map(drop)
}

impl Page<'_> {
    /// The compressed columns. Where they are too many bytes, the least important stalls are left out, light stacks are
    /// cut, and sums are of longer times.
    fn data(self, most_bytes: usize) -> io::Result<Vec<u8>> {
        let Page { info, threads, findings, folded, counters, marks, kinds, .. } = self;
        let Page { has_calls, mut ledger, samples, mut stalls, .. } = self;
        stalls.set_evidence(findings.iter().flat_map(|finding| finding.stalls.iter().copied()));
        let sums = ledger.rows.len();
        let mut share = 1.0;
        for attempt in 1.. {
            let most = |limit: usize| (limit as f64 * share) as usize;
            let (mut names, mut stacks) =
                (Names::default(), Stacks::with_room_for(most(stacks::MOST_NODES).max(1)));
            let mut weights = BinnedWeights::new(&samples, &mut stacks, &mut names);
            while weights.len() > most(MOST_WEIGHTS) && weights.widen() {}
            while ledger.rows.len() > most(sums) && ledger.widen(info) {}
            stalls.truncate(most(stalls::MOST_STALLS));
            stalls.sort();
            let given = Given { info, threads, findings, folded, counters, marks, kinds, has_calls };
            let bytes = given.encoded(&ledger, &weights, &stalls, (names, stacks))?;
            if bytes.len() <= most_bytes || attempt == ATTEMPTS {
                return Ok(bytes);
            }
            share *= most_bytes as f64 / bytes.len() as f64 / 1.2;
        }
        unreachable!("the last attempt returns")
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
        let threads = (self.threads, &index);
        let head = Head::new(self.info, threads, found, &stalls.ids(), tracks, &left_out, &names);
        let bytes = columns.with_head(&head).map_err(io::Error::other)?;
        let mut encoder = GzEncoder::new(Vec::new(), Compression::new(6));
        encoder.write_all(&bytes)?;
        encoder.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;
    use std::sync::Arc;

    use wallprof_analysis::bins::{Ledgers, Samples, Slots};
    use wallprof_analysis::weights::Side;
    use wallprof_model::event::{LedgerDelta, Weighted};
    use wallprof_model::profile::{Cause, ResolvedFrame, ResolvedStack, SampleRow, StallRecord};
    use wallprof_model::{
        EpochSecond, FrameKind, MonoNs, Reason, StackEnd, StackId, StallReason, State, SymbolLine,
    };

    use crate::weights::tests::thread;

    const SECOND_NS: u64 = 1_000_000_000;
    const THREADS: u32 = 300;
    /// A twelfth of the true one, which much less exceeds.
    const LIMIT: usize = MOST_BYTES / 12;

    /// Numbers that do not compress (Knuth's MMIX constants).
    fn random(state: &mut u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *state >> 33
    }

    /// A stack of functions with names of their own.
    fn stack(state: &mut u64) -> ResolvedStack {
        let frame = |state: &mut u64| {
            let symbol = format!("f{:x}_{:x}_{:x}", random(state), random(state), random(state));
            let lines = vec![SymbolLine { symbol: Some(symbol), ..SymbolLine::default() }];
            Arc::new(ResolvedFrame {
                kind: FrameKind::Native,
                module: None,
                build_id: None,
                address: 0,
                lines,
            })
        };
        ResolvedStack { frames: (0..8).map(|_| frame(state)).collect(), end: StackEnd::Complete }
    }

    /// The bytes of the data of a recording with so many seconds, stacks and stalls, all of which a finding rests on.
    fn data(seconds: u64, stacks: u32, stalls: u64) -> usize {
        let info = RecordingInfo { end: MonoNs(seconds * SECOND_NS), ..RecordingInfo::default() };
        let threads: Vec<Thread> = (1..=THREADS).map(|key| thread(key, seconds)).collect();
        let state = &mut 42;
        let mut ledgers = Ledgers::new(&info, &threads);
        for second in 0..seconds as u32 {
            for key in 1..=THREADS {
                let on_cpu_ns = random(state) % SECOND_NS;
                let delta = LedgerDelta::new(ThreadKey(key), EpochSecond(second));
                ledgers.add(&LedgerDelta { wall_ns: SECOND_NS, on_cpu_ns, ..delta });
            }
        }
        let ledger = ledgers.finish();
        let slots = Slots::new(&info, &threads, &ledger);
        let mut samples = Samples::new(&slots, Side::Both);
        for number in 0..stacks {
            let row = SampleRow {
                thread: ThreadKey(1 + number % THREADS),
                second: EpochSecond((random(state) % seconds) as u32),
                what: Weighted::State(State::User),
                user: Some(StackId(number.into())),
                kernel: None,
                waker: None,
                weight: 1_000_000 + random(state) % 1_000_000,
                count: 1,
            };
            let added: Result<(), Infallible> = samples.add(&row, None, |_| Ok(stack(state)));
            added.expect("it cannot fail");
        }
        let mut kept = Stalls::default();
        for id in 0..stalls {
            let (start, ns) =
                (random(state) * 1_000 % (seconds * SECOND_NS), 100_000 + random(state) % 100_000_000);
            let thread = ThreadKey(1 + (id % u64::from(THREADS)) as u32);
            kept.add(StallRecord::new(id, thread, StallReason::Blocked(Reason::Lock), MonoNs(start), ns));
        }
        let finding = Finding {
            rule: "lock-wait".into(),
            cause: Cause::Program,
            title: "threads waited for a lock".into(),
            advice: "hold it for less time".into(),
            threads: Vec::new(),
            most_late: Vec::new(),
            most_late_ns: 0,
            count: stalls,
            total_ns: 0,
            max_ns: 0,
            stalls: (0..stalls).collect(),
        };
        let page = Page {
            info: &info,
            threads: &threads,
            findings: &vec![finding; 12],
            folded: &[],
            counters: &[],
            marks: &[],
            kinds: (&[], 0),
            has_calls: false,
            ledger,
            samples: samples.finish(),
            stalls: kept,
        };
        page.data(LIMIT).expect("memory takes all").len()
    }

    #[test]
    fn data_of_very_much_is_smaller_than_its_limit() {
        let small = data(3, 10, 10);
        assert!(small < LIMIT / 4, "{small} bytes");
        for (seconds, stacks, stalls) in [(40, 4_000, 20_000), (3, 6_000, 0), (3, 0, 40_000), (100, 0, 0)] {
            let bytes = data(seconds, stacks, stalls);
            assert!(bytes <= LIMIT, "{bytes} bytes of {seconds} s, {stacks} stacks and {stalls} stalls");
            assert!(bytes > LIMIT / 3, "more than is needed is left out: {bytes} bytes");
        }
    }
}
