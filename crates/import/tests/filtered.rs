// SPDX-License-Identifier: Apache-2.0
//! Generated recordings with address filters (`perf record --filter`): the filters are read from the file and
//! resolved by its mappings.

use std::collections::BTreeMap;
use std::path::Path;

use wallprof_import::{ImportOptions, Outcome, RecordingFacts, Sink, import};
use wallprof_intel_pt::generator::{Generated, Plan, TIME_CONV, Tracing, generate_traced};
use wallprof_intel_pt::replay::{CallTree, Frame, ThreadReplay, replay_segment};
use wallprof_intel_pt::{FunctionId, RunCache, Segment, ThreadId};
use wallprof_model::{CallFrame, CallPathId, Event, FrameId, MonoNs};

/// Complete calls, incomplete ones, and those entered before the recording, by path.
type Counts = BTreeMap<String, [u64; 3]>;

/// A path's parent, its frame, and its calls as in [`Counts`].
type ImportedPath = (Option<CallPathId>, CallFrame<FrameId>, [u64; 3]);

/// The imported call paths of the one thread.
#[derive(Default)]
struct Imported {
    names: BTreeMap<FrameId, String>,
    paths: BTreeMap<CallPathId, ImportedPath>,
}

impl Sink for Imported {
    type Error = std::convert::Infallible;

    fn start(&mut self, _: &RecordingFacts) -> Result<(), Self::Error> {
        Ok(())
    }

    fn take(&mut self, event: Event) -> Result<(), Self::Error> {
        match event {
            Event::Symbol { frame, lines } => {
                let name = lines.last().and_then(|line| line.symbol.clone());
                self.names.insert(frame, name.unwrap_or_else(|| "?".into()));
            }
            Event::CallPath(path) => {
                let numbers = [path.numbers.calls, path.numbers.incomplete, path.numbers.entered_before];
                self.paths.insert(path.id, (path.parent, path.frame, numbers));
            }
            _ => {}
        }
        Ok(())
    }

    fn settled(&mut self, _: MonoNs) -> Result<(), Self::Error> {
        Ok(())
    }

    fn progress(&mut self, _: u64, _: Option<u64>) {}
}

impl Imported {
    fn counts(&self) -> Counts {
        let mut counts = Counts::new();
        for (&id, (_, _, numbers)) in &self.paths {
            let sum = counts.entry(self.path(id)).or_default();
            sum.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
        }
        counts.retain(|_, numbers| *numbers != [0; 3]);
        counts
    }

    fn path(&self, id: CallPathId) -> String {
        let above = std::iter::successors(Some(id), |id| self.paths[id].0);
        let name = |id| match &self.paths[&id].1 {
            CallFrame::Code(frame) => self.names[frame].clone(),
            CallFrame::Outside(outside) => outside.label().to_owned(),
        };
        let mut names: Vec<String> = above.map(name).collect();
        names.reverse();
        names.join(";")
    }
}

/// The decoder's result for the same trace, with the generated program and filters.
fn expected(generated: &Generated) -> Counts {
    let whole = Segment { start: 0, end: generated.trace.len(), first: true };
    let (decoded, stretches) = replay_segment(&generated.as_trace(), whole, TIME_CONV, &mut RunCache::new());
    let mut replay = ThreadReplay::new(ThreadId(1), TIME_CONV);
    stretches.iter().for_each(|stretch| replay.add(stretch));
    let tree = replay.finish(decoded.last_ticks).tree;
    let name = |frame: Frame| match frame {
        Frame::Function(id) => match id.0.checked_sub(FunctionId::FIRST_OF_KERNEL.0) {
            Some(number) => generated.program.kernel.as_ref().expect("a kernel").name(number as usize),
            None => generated.program.name(id.0 as usize - 1),
        },
        frame => frame.label().expect("a label").to_owned(),
    };
    let mut counts = Counts::new();
    for path in tree.paths(CallTree::ROOT).into_iter().skip(1) {
        let above = std::iter::successors(Some(path), |&path| tree.parent(path));
        let mut names: Vec<String> =
            above.filter(|&path| path != CallTree::ROOT).map(|path| name(tree.frame(path))).collect();
        names.reverse();
        let numbers = tree.numbers(path);
        let sum = counts.entry(names.join(";")).or_default();
        let found = [numbers.calls, numbers.incomplete, numbers.entered_before];
        sum.iter_mut().zip(found).for_each(|(sum, number)| *sum += number);
    }
    counts.retain(|_, numbers| *numbers != [0; 3]);
    counts
}

fn generated(seed: u64, tracing: Tracing) -> Generated {
    let plan = Plan { functions: 14, threads: 1, instructions: 6_000, overflows: false, exceptions: false };
    generate_traced(seed, plan, tracing)
}

/// Writes the recording, its program and, if it is traced, its kernel.
fn write(folder: &Path, generated: &Generated) {
    std::fs::create_dir_all(folder.join("root")).expect("made");
    std::fs::write(folder.join("root/program"), generated.program.to_elf()).expect("written");
    std::fs::write(folder.join("perf.data"), generated.to_perf_data("/program")).expect("written");
    let Some(kernel) = &generated.program.kernel else { return };
    std::fs::create_dir_all(folder.join("kcore_dir")).expect("made");
    std::fs::write(folder.join("kcore_dir/kcore"), kernel.to_elf()).expect("written");
    let line = |(index, start): (usize, u64)| format!("{start:x} T {}\n", kernel.name(index));
    let starts = kernel.functions.iter().map(|function| function.start).enumerate();
    let end = kernel.base + kernel.code.len() as u64;
    let symbols = starts.map(line).collect::<String>() + &format!("{end:x} T _etext\n");
    std::fs::write(folder.join("kcore_dir/kallsyms"), symbols).expect("written");
}

fn imported(folder: &Path) -> (Outcome, Imported) {
    let options = ImportOptions { symfs: Some(folder.join("root")), ..ImportOptions::default() };
    let mut imported = Imported::default();
    let outcome = import(&folder.join("perf.data"), &options, &mut imported).expect("it is whole");
    (outcome, imported)
}

#[test]
fn filters_are_read_from_the_file() {
    let mut untraced = 0;
    for seed in 0..36 {
        let (ranges, kernel_ranges) = [(1, 0), (3, 0), (1, 2)][(seed % 3) as usize];
        let (kernel, addressed_ends) = (kernel_ranges > 0, seed % 2 == 0);
        let tracing = Tracing { ranges, splits: seed % 5 == 0, kernel, kernel_ranges, addressed_ends };
        let generated = generated(seed, tracing);
        let folder = tempfile::tempdir().expect("a folder");
        write(folder.path(), &generated);
        let (outcome, imported) = imported(folder.path());
        let (found, expected) = (imported.counts(), expected(&generated));
        let different = expected.iter().find(|(path, counts)| found.get(*path) != Some(counts));
        assert_eq!(different, None, "seed {seed}: {:?}", different.map(|(path, _)| found.get(path)));
        assert_eq!(found.len(), expected.len(), "seed {seed}");
        let of_trace = |reason: &&&str| reason.starts_with("trace");
        assert_eq!(outcome.losses.keys().find(of_trace), None, "seed {seed}");
        untraced += found.keys().filter(|path| path.contains(";[untraced]")).count();
    }
    assert!(untraced > 100, "{untraced}");
}

/// The recording of seed 3 with `from` replaced by `to`.
fn edited(from: &str, to: &str) -> (Outcome, Imported) {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), &generated(3, Tracing { ranges: 2, ..Tracing::default() }));
    let mut bytes = std::fs::read(folder.path().join("perf.data")).expect("readable");
    let at = bytes.windows(from.len()).position(|window| window == from.as_bytes()).expect("it is there");
    bytes[at..at + from.len()].copy_from_slice(to.as_bytes());
    std::fs::write(folder.path().join("perf.data"), bytes).expect("written");
    imported(folder.path())
}

#[test]
fn filters_that_are_not_understood_are_counted() {
    let unknown = |outcome: &Outcome| outcome.losses.get("trace_filters_unknown").copied();
    let (outcome, _) = edited("filter 0x", "filter 0x");
    assert_eq!(unknown(&outcome), None);
    for (from, to) in [("filter 0x", "filtre 0x"), ("filter 0x", "filter ?x"), ("@/program", "@/progran")] {
        let (outcome, other) = edited(from, to);
        assert_eq!(unknown(&outcome), Some(1), "{to}");
        assert!(!other.counts().is_empty(), "{to}");
    }
}
