// SPDX-License-Identifier: Apache-2.0
//! `perf script`'s text of samples: threads, stacks, and sums that are those of the text.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::path::PathBuf;

use proptest::prelude::*;
use wallprof_import::{
    ImportError, ImportOptions, Outcome, RecordingFacts, Refusal, Sink, import, import_scripts,
};
use wallprof_model::event::{SampleDelta, Weighted};
use wallprof_model::{Event, Frame, FrameId, FrameKind, MonoNs, StackId, SymbolLine, ThreadInfo, ThreadKey};

/// What an import emitted.
#[derive(Default)]
struct Imported {
    facts: RecordingFacts,
    threads: HashMap<ThreadKey, ThreadInfo>,
    frames: HashMap<FrameId, Frame>,
    lines: HashMap<FrameId, Vec<SymbolLine>>,
    stacks: HashMap<StackId, Vec<FrameId>>,
    events: HashMap<u16, String>,
    samples: Vec<SampleDelta>,
    on_cpu_ns: u64,
}

impl Sink for Imported {
    type Error = Infallible;

    fn start(&mut self, facts: &RecordingFacts) -> Result<(), Infallible> {
        self.facts = facts.clone();
        Ok(())
    }

    fn take(&mut self, event: Event) -> Result<(), Infallible> {
        match event {
            Event::Thread(info) => drop(self.threads.insert(info.key, info)),
            Event::Frame { id, frame } => assert_eq!(self.frames.insert(id, frame), None, "defined once"),
            Event::Symbol { frame, lines } => drop(self.lines.insert(frame, lines)),
            Event::Stack { id, frames, .. } => {
                assert!(frames.iter().all(|frame| self.frames.contains_key(frame)), "defined before");
                self.stacks.insert(id, frames);
            }
            Event::EventName { index, name } => drop(self.events.insert(index, name)),
            Event::Sample(sample) => self.samples.push(sample),
            Event::Ledger(delta) => self.on_cpu_ns += delta.on_cpu_ns,
            _ => {}
        }
        Ok(())
    }

    fn settled(&mut self, _: MonoNs) -> Result<(), Infallible> {
        Ok(())
    }

    fn progress(&mut self, _: u64, _: Option<u64>) {}
}

type Imports = Result<Outcome, ImportError<Infallible>>;

fn imported_texts(texts: &[&str]) -> (Imports, Imported) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |(number, text): (usize, &&str)| {
        let path = folder.path().join(format!("{number}.txt"));
        std::fs::write(&path, text).expect("written");
        path
    };
    let paths: Vec<PathBuf> = texts.iter().enumerate().map(file).collect();
    let mut imported = Imported::default();
    let outcome = match &paths[..] {
        [path] => import(path, &ImportOptions::default(), &mut imported),
        paths => import_scripts(paths, &mut imported),
    };
    (outcome, imported)
}

fn imported(text: &str) -> (Outcome, Imported) {
    let (outcome, imported) = imported_texts(&[text]);
    (outcome.expect("a text of samples"), imported)
}

impl Imported {
    fn names(&self, stack: Option<StackId>) -> Vec<String> {
        let frames = stack.map(|id| self.stacks[&id].clone()).unwrap_or_default();
        frames.iter().flat_map(|frame| self.functions(*frame)).collect()
    }

    fn functions(&self, frame: FrameId) -> Vec<String> {
        let unnamed = || vec![SymbolLine::default()];
        let lines = self.lines.get(&frame).cloned().unwrap_or_else(unnamed);
        let name = |line: &SymbolLine| {
            let place = line.file.as_ref().map(|file| format!("@{file}:{}", line.line.unwrap_or(0)));
            line.symbol.clone().unwrap_or("?".into()) + &place.unwrap_or_default()
        };
        lines.iter().map(name).collect()
    }

    /// Sums by `thread;outermost;…;leaf`, of samples with this meaning.
    fn folded(&self, of: impl Fn(&SampleDelta) -> Option<u64>) -> BTreeMap<String, u64> {
        let mut sums = BTreeMap::new();
        for sample in &self.samples {
            let Some(count) = of(sample) else { continue };
            let mut parts = self.names(sample.kernel);
            parts.extend(self.names(sample.user));
            parts.push(self.threads[&sample.thread].comm.clone());
            parts.reverse();
            *sums.entry(parts.join(";")).or_default() += count;
        }
        sums
    }

    /// Running time in ns.
    fn time(&self) -> BTreeMap<String, u64> {
        self.folded(|sample| matches!(sample.what, Weighted::State(_)).then_some(sample.weight))
    }

    /// Counts of an event.
    fn counts(&self, event: &str) -> BTreeMap<String, u64> {
        let index = self.events.iter().find(|(_, name)| *name == event).map(|(index, _)| *index);
        self.folded(|sample| match sample.what {
            Weighted::Event(of) if Some(of) == index => Some(sample.weight),
            _ => None,
        })
    }
}

fn sums<const N: usize>(entries: [(&str, u64); N]) -> BTreeMap<String, u64> {
    entries.into_iter().map(|(name, sum)| (name.to_owned(), sum)).collect()
}

/// One sample in `work`, called by `main`, with this head.
fn one(head: &str) -> String {
    format!("{head}\n\t    7f12 work+0x2 (/bin/app)\n\t    7f52 main+0x12 (/bin/app)\n\n")
}

#[test]
fn samples_of_a_clock_are_running_time() {
    let text = one("app 12/13 [001]  7.000250:     250000 cpu-clock:u: ")
        + &one("app 12/13 [001]  7.000500:     250000 cpu-clock:u: ");
    let (outcome, imported) = imported(&text);
    assert_eq!((outcome.samples, outcome.threads, outcome.calls), (2, 1, None));
    assert_eq!(imported.time(), sums([("app;main;work", 500_000)]));
    assert_eq!((imported.on_cpu_ns, outcome.end), (500_000, MonoNs(7_000_500_000)));
    let thread = imported.threads.values().next().expect("a thread");
    assert_eq!((thread.pid, thread.tid, imported.facts.source), (12, 13, "perf-script"));
    assert_eq!(outcome.losses, BTreeMap::new());
    assert!(imported.events.is_empty(), "the time is all that the text says");
}

#[test]
fn other_events_are_counted_by_their_periods_or_one_by_one() {
    let text = one("app 12 7.1: 99 instructions: ")
        + &one("app 12 7.2: 1 instructions: ")
        + &one("app 12 7.3: page-faults: ");
    let (outcome, imported) = imported(&text);
    assert_eq!((outcome.samples, imported.time()), (3, BTreeMap::new()));
    assert_eq!(imported.counts("instructions"), sums([("app;main;work", 100)]));
    assert_eq!(imported.counts("page-faults"), sums([("app;main;work", 1)]));
}

#[test]
fn cycles_are_counted_and_stand_for_the_time_between_samples() {
    let head = |ms: u32, period: u32| one(&format!("app 12 7.{ms:03}: {period} cycles:P: "));
    let text = head(1, 300) + &head(2, 500) + &head(3, 200) + &head(4, 1000);
    let (_, imported) = imported(&text);
    assert_eq!(imported.counts("cycles:P"), sums([("app;main;work", 2000)]));
    assert_eq!(imported.time(), sums([("app;main;work", 4_000_000)]));
}

#[test]
fn kernel_frames_are_a_stack_of_their_own() {
    let text = "app 12 7.1: 10 cpu-clock: \n\tffffffff81000010 copy_page ([kernel.kallsyms])\n\
                \t  5f vfs_read (/lib/modules/4.1.0/build/vmlinux)\n\t 7f52 main (/bin/app)\n\n";
    let (_, imported) = imported(text);
    let sample = &imported.samples[0];
    assert_eq!(imported.names(sample.kernel), ["copy_page", "vfs_read"]);
    assert_eq!(imported.names(sample.user), ["main"]);
    assert_eq!(imported.time(), sums([("app;main;vfs_read;copy_page", 10)]));
    let kinds = |stack: Option<StackId>| -> Vec<FrameKind> {
        imported.stacks[&stack.expect("a stack")].iter().map(|frame| imported.frames[frame].kind).collect()
    };
    assert_eq!(
        (kinds(sample.kernel), kinds(sample.user)),
        (vec![FrameKind::Kernel; 2], vec![FrameKind::Native])
    );
}

#[test]
fn inlined_functions_and_source_lines_are_one_frame() {
    let text = "app 12 7.1: 10 cpu-clock: \n\t 7f12 part (inlined)\n  a.c:3\n\t 7f12 work+0x2 (/bin/app)\n  a.c:9\n\
                \t 7f52 [unknown] (/bin/app)\n  app[7f52]\n\n";
    let (outcome, imported) = imported(text);
    assert_eq!(imported.time(), sums([("app;?;work@a.c:9;part@a.c:3", 10)]));
    let stack = &imported.stacks[&imported.samples[0].user.expect("a stack")];
    assert_eq!(stack.len(), 2);
    let inlined: Vec<bool> = imported.lines[&stack[0]].iter().map(|line| line.inlined).collect();
    assert_eq!((inlined, outcome.losses), (vec![true, false], BTreeMap::new()));
}

#[test]
fn functions_at_one_address_of_two_programs_stay_apart() {
    let text = "a 1 7.1: 5 cpu-clock: \n\t 7f12 [unknown] ([unknown])\n\nb 2 7.2: 5 cpu-clock: \n\t 7f12 f ([unknown])\n\n\
                b 2 7.3: 5 cpu-clock: \n\t 7f12 g ([unknown])\n\n";
    assert_eq!(imported(text).1.time(), sums([("a;?", 5), ("b;f", 5), ("b;g", 5)]));
}

#[test]
fn samples_without_a_time_are_counted_and_stay_apart() {
    let text = one("app 12 cycles:") + &one("app 12 cycles: ");
    let (outcome, imported) = imported(&text);
    assert_eq!(outcome.losses, [("samples_without_time", 2)].into());
    assert_eq!(imported.counts("cycles"), sums([("app;main;work", 2)]));
    assert_eq!(imported.time(), sums([("app;main;work", 2_000_000)]));
    let (_, imported) = self::imported(&one("app 12 [000]  10101010 cpu-clock:"));
    assert_eq!(imported.time(), sums([("app;main;work", 10_101_010)]));
}

#[test]
fn stacks_of_one_line_and_none_are_read() {
    let text = "  app 12 7.1:  10 cpu-clock:u:  7f12 work+0x2 (/bin/app)\n  app 12 7.2:  10 cpu-clock:u: \n  app 12 7.3: 10 cpu-clock:u: 7f52 main\n";
    let (outcome, imported) = imported(text);
    assert_eq!((outcome.samples, outcome.losses), (3, BTreeMap::new()));
    assert_eq!(imported.time(), sums([("app;work", 10), ("app", 10), ("app;main", 10)]));
}

#[test]
fn lines_that_cannot_be_read_are_counted() {
    let text = one("app 12 7.1: 10 cpu-clock: ")
        + "app 12 7.2: 10 cpu-clock: \n\t WEIRD_LINE\n\t 7f52 main (/bin/app)\n\nunread\n";
    let (outcome, imported) = imported(&text);
    assert_eq!((outcome.samples, outcome.losses), (2, [("printed_lines_unread", 2)].into()));
    assert_eq!(imported.time(), sums([("app;main;work", 10), ("app;main", 10)]));
    assert_eq!(outcome.stacks.incomplete["truncated"], 1);
}

#[test]
fn samples_among_branches_are_counted_whatever_comes_first() {
    let branch = "12/12 7.000000001:  1 branches:uH:  call  401136 main+0x4 (a) => 401020 f+0x0 (a)\n";
    let sample = "12/12 7.000000002:  50 branch-misses/period=50/u:   0   7fca f+0x37 (a)\n";
    let packet = "12/12 7.000000003:  1 cbr:  cbr: 47 freq: 4706 MHz (162%)   0  7fca main+0x1\n";
    let many = sample.repeat(8_000);
    for (text, samples) in
        [(format!("{branch}{sample}{sample}{packet}"), 2), (format!("{many}{branch}{packet}"), 8_000)]
    {
        let (outcome, _) = imported(&text);
        assert_eq!(
            (outcome.calls.is_some(), outcome.losses.get("samples_among_branches")),
            (true, Some(&samples))
        );
    }
    assert_eq!(imported(&format!("{branch}{packet}")).0.losses, BTreeMap::new());
}

#[test]
fn idle_task_and_headers_are_no_threads() {
    let text = "# ========\n# hostname : box\n# os release : 6.18.0\n# arch : x86_64\n# nrcpus online : 4\n# ========\n#\n".to_owned()
        + &one("swapper     0 [001] 7.1: 10 cpu-clock: ")
        + &one("app 12 [001] 7.2: 10 cpu-clock: ");
    let (outcome, imported) = imported(&text);
    assert_eq!((outcome.threads, imported.time()), (1, sums([("app;main;work", 10)])));
    assert_eq!((outcome.samples, outcome.idle_samples, outcome.losses.len()), (1, 1, 0));
    let facts = &imported.facts;
    assert_eq!((&*facts.hostname, &*facts.kernel, facts.cpus), ("box", "6.18.0", 4));
}

#[test]
fn parts_of_a_recording_are_merged_by_time() {
    let (first, second) = (
        one("a 1 [000] 7.1: 10 cpu-clock: ") + &one("a 1 [000] 7.3: 10 cpu-clock: "),
        one("b 2 [001] 7.2: 10 cpu-clock: "),
    );
    let (outcome, imported) = imported_texts(&[&first, &second]);
    assert_eq!(outcome.expect("texts of samples").samples, 3);
    assert_eq!(imported.time(), sums([("a;main;work", 20), ("b;main;work", 10)]));
    let order: Vec<u32> =
        imported.samples.iter().map(|sample| imported.threads[&sample.thread].tid).collect();
    assert_eq!(order, [1, 2, 1]);
}

#[test]
fn samples_behind_later_ones_are_counted_and_keep_their_sums() {
    let text = one("a 1 7.2: 10 cpu-clock: ") + &one("a 1 7.1: 10 cpu-clock: ");
    let (outcome, imported) = imported(&text);
    assert_eq!((outcome.losses, outcome.end), ([("records_late", 1)].into(), MonoNs(7_200_000_000)));
    assert_eq!(imported.time(), sums([("a;main;work", 20)]));
}

proptest! {
    /// Lines of samples, cut and put together in any way, are an import or an error.
    #[test]
    fn any_text_ends(parts in prop::collection::vec((0usize..10, 0usize..40), 1..60)) {
        const PIECES: [&str; 10] = [
            "app 12/13 [001] 7.000250: ", "250000 cpu-clock:u: ", "\n", "\t 7f12 work+0x2 (/bin/app)", "# a : b\n",
            "part (inlined)", "-1 99999999999.9: 18446744073709551615 cycles:", " ((", "  a.c:3", "ffffffffffffffff",
        ];
        let text: String = parts.iter().map(|&(piece, len)| &PIECES[piece][..len.min(PIECES[piece].len())]).collect();
        let _ = imported_texts(&[&text]);
        let _ = imported_texts(&[&one("app 12 7.1: 10 cpu-clock: "), &format!("a 1 7.1: cycles:\n{text}")]);
    }
}

/// The number of the file that is refused, and the reason.
fn refusal(texts: &[&str]) -> (String, Refusal) {
    match imported_texts(texts).0 {
        Err(ImportError::Refused { input, why }) => {
            (input.file_stem().expect("a name").to_string_lossy().into_owned(), why)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn perf_data_among_texts_is_refused_by_its_name() {
    let text = one("app 12 7.1: 10 cpu-clock: ");
    // The headers of a file and of a stream.
    for data in ["PERFILE2\x68\0\0\0\0\0\0\0 ", "PERFILE2\x10\0\0\0\0\0\0\0 "] {
        let expected = |number: &str| (number.to_owned(), Refusal::PerfDataAmongTexts);
        assert_eq!(refusal(&[data, &text]), expected("0"));
        assert_eq!(refusal(&[&text, data]), expected("1"));
    }
    assert_eq!(refusal(&[&text, "hello\n"]), ("1".into(), Refusal::NotPerfData));
    assert_eq!(imported_texts(&[&text, &text]).0.expect("texts of samples").samples, 2);
}

#[test]
fn branches_without_flags_are_blamed_on_their_text() {
    let samples = one("app 12 7.1: 10 cpu-clock: ");
    let unflagged = "app 12/12 [000] 7.000000100:   401136 main+0x4 (a) => 401020 f+0x0 (a)\n";
    assert_eq!(refusal(&[&samples, unflagged]), ("1".into(), Refusal::ScriptWithoutFlags));
}

#[test]
fn other_texts_are_refused() {
    for text in ["", "hello\n", "2024-01-01 12:00:00.5: started\n", "a;b;c 12\n"] {
        let (outcome, _) = imported_texts(&[text]);
        assert!(outcome.is_err(), "{text}");
    }
}
