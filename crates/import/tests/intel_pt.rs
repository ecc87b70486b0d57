// SPDX-License-Identifier: Apache-2.0
//! Generated recordings with Intel PT, whole or damaged. An import of a whole one has the decoder's result
//! for the same trace; an import of a damaged one has gaps and counts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use wallprof_import::{
    FoundMapping, ImportOptions, MachineFacts, Outcome, RecordingFacts, Sink, TraceEvents, TraceFacts,
    TraceFile, TraceLimits, TraceWindow, import,
};
use wallprof_intel_pt::generator::record::{jit_dump, pair, record, words};
use wallprof_intel_pt::generator::{CODE_OFFSET, Generated, PID, Plan, TIME_CONV, TSC_CTC, generate};
use wallprof_intel_pt::replay::{CallTree, Frame, ThreadCalls, ThreadReplay, replay_segment};
use wallprof_intel_pt::{Departure, RunCache, Segment, ThreadId};
use wallprof_model::event::{LedgerDelta, Stall};
use wallprof_model::{
    CallFrame, CallPathId, Event, FrameId, MonoNs, StackId, StallReason, SymbolLine, ThreadKey,
};

/// A path's parent, its frame, and its numbers: complete calls, incomplete ones, those entered before the
/// recording, own ns, and calls in its histogram.
type ImportedPath = (Option<CallPathId>, CallFrame<FrameId>, [u64; 5]);

/// The imported events, by the names that users see.
#[derive(Default)]
struct Imported {
    facts: RecordingFacts,
    tids: BTreeMap<ThreadKey, u32>,
    names: BTreeMap<FrameId, String>,
    paths: BTreeMap<(ThreadKey, CallPathId), ImportedPath>,
    stacks: BTreeMap<StackId, Vec<FrameId>>,
    stalls: Vec<Stall>,
    on_cpu_ns: u64,
    wall_ns: u64,
    /// The sums of all deltas, by thread and second.
    ledgers: BTreeMap<(ThreadKey, u32), LedgerDelta>,
    window: TraceWindow,
}

impl Sink for Imported {
    type Error = std::convert::Infallible;

    fn start(&mut self, facts: &RecordingFacts) -> Result<(), Self::Error> {
        self.facts = facts.clone();
        Ok(())
    }

    fn window(&mut self) -> TraceWindow {
        self.window
    }

    fn take(&mut self, event: Event) -> Result<(), Self::Error> {
        match event {
            Event::Thread(info) => drop(self.tids.insert(info.key, info.tid)),
            Event::Symbol { frame, lines } => drop(self.names.insert(frame, name(&lines))),
            Event::Stack { id, frames, .. } => drop(self.stacks.insert(id, frames)),
            Event::Stall(stall) => self.stalls.push(*stall),
            Event::Ledger(delta) => {
                self.on_cpu_ns += delta.on_cpu_ns;
                self.wall_ns += delta.wall_ns;
                self.add(&delta);
            }
            Event::CallPath(path) => {
                assert!(path.parent.is_none_or(|parent| self.paths.contains_key(&(path.thread, parent))));
                let numbers = path.numbers;
                let counts = [
                    numbers.calls,
                    numbers.incomplete,
                    numbers.entered_before,
                    numbers.self_ns,
                    numbers.latency.count(),
                ];
                self.paths.insert((path.thread, path.id), (path.parent, path.frame, counts));
            }
            _ => {}
        }
        Ok(())
    }

    fn settled(&mut self, _until: MonoNs) -> Result<(), Self::Error> {
        Ok(())
    }

    fn progress(&mut self, bytes: u64, of: Option<u64>) {
        assert!(of.is_none_or(|of| bytes <= of), "{bytes} of {of:?}");
    }
}

fn name(lines: &[SymbolLine]) -> String {
    lines.last().and_then(|line| line.symbol.clone()).unwrap_or_else(|| "?".into())
}

type Counts = BTreeMap<(u32, String), [u64; 3]>;

impl Imported {
    fn add(&mut self, delta: &LedgerDelta) {
        let new = || LedgerDelta::new(delta.thread, delta.second);
        let sum = self.ledgers.entry((delta.thread, delta.second.0)).or_insert_with(new);
        let pairs = [
            (&mut sum.wall_ns, delta.wall_ns),
            (&mut sum.on_cpu_ns, delta.on_cpu_ns),
            (&mut sum.runnable_ns, delta.runnable_ns),
            (&mut sum.preempted_ns, delta.preempted_ns),
            (&mut sum.user_samples, delta.user_samples + delta.kernel_samples),
            (&mut sum.traced_user_ns, delta.traced_user_ns),
            (&mut sum.traced_kernel_ns, delta.traced_kernel_ns),
            (&mut sum.undivided_ns, delta.undivided_ns),
        ];
        pairs
            .into_iter()
            .chain(sum.blocked_ns.iter_mut().zip(delta.blocked_ns))
            .for_each(|(to, ns)| *to += ns);
    }

    /// Wall time, running time, user code, kernel, and undivided running time of all threads.
    fn running(&self) -> [u64; 5] {
        self.ledgers.values().fold([0; 5], |sum, delta| {
            let numbers = [
                delta.wall_ns,
                delta.on_cpu_ns,
                delta.traced_user_ns,
                delta.traced_kernel_ns,
                delta.undivided_ns,
            ];
            std::array::from_fn(|index| sum[index] + numbers[index])
        })
    }

    /// In each second of each thread the states add up to at most its wall time, and running time is divided.
    fn assert_whole(&self) {
        for delta in self.ledgers.values() {
            let off_cpu = delta.blocked_ns.iter().sum::<u64>() + delta.runnable_ns + delta.preempted_ns;
            assert!(delta.on_cpu_ns + off_cpu <= delta.wall_ns, "{delta:?}");
            let divided = delta.traced_user_ns + delta.traced_kernel_ns + delta.undivided_ns;
            assert_eq!((divided, delta.user_samples), (delta.on_cpu_ns, 0), "{delta:?}");
        }
    }

    /// Complete calls, incomplete ones, and those entered before the recording, by tid and path.
    fn counts(&self) -> Counts {
        let mut counts = Counts::new();
        for (&(thread, id), (_, _, numbers)) in &self.paths {
            let sum = counts.entry((self.tids[&thread], self.path(thread, id))).or_default();
            sum.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
        }
        without_empty(counts)
    }

    fn path(&self, thread: ThreadKey, id: CallPathId) -> String {
        let mut names = Vec::new();
        let mut at = Some(id);
        while let Some(id) = at {
            let (parent, frame, _) = &self.paths[&(thread, id)];
            names.push(match frame {
                CallFrame::Code(frame) => self.names[frame].clone(),
                CallFrame::Outside(outside) => outside.label().to_owned(),
            });
            at = *parent;
        }
        names.reverse();
        names.join(";")
    }

    fn calls(&self) -> u64 {
        let code = self.paths.values().filter(|path| matches!(path.1, CallFrame::Code(_)));
        code.map(|(_, _, [calls, incomplete, ..])| calls + incomplete).sum()
    }
}

fn without_empty(mut counts: Counts) -> Counts {
    counts.retain(|_, numbers| *numbers != [0; 3]);
    counts
}

/// The decoder's result for the whole trace, with the generated program and switches.
fn replayed(generated: &Generated) -> Vec<ThreadCalls> {
    let mut replays: BTreeMap<ThreadId, ThreadReplay> = BTreeMap::new();
    let whole = Segment { start: 0, end: generated.trace.len(), first: true };
    let (decoded, stretches) = replay_segment(&generated.as_trace(), whole, TIME_CONV, &mut RunCache::new());
    for stretch in stretches {
        let new = || ThreadReplay::new(stretch.thread, TIME_CONV);
        replays.entry(stretch.thread).or_insert_with(new).add(&stretch);
    }
    replays.into_values().map(|replay| replay.finish(decoded.last_ticks)).collect()
}

fn expected(generated: &Generated) -> Counts {
    let mut counts = Counts::new();
    replayed(generated).iter().for_each(|calls| add_counts(generated, calls, &mut counts));
    without_empty(counts)
}

fn add_counts(generated: &Generated, calls: &ThreadCalls, counts: &mut Counts) {
    let name = |frame: Frame| match frame {
        Frame::Function(id) => generated.program.name(id.0 as usize - 1),
        frame => frame.label().expect("a label").to_owned(),
    };
    for path in calls.tree.paths(CallTree::ROOT).into_iter().skip(1) {
        let mut names = Vec::new();
        let mut at = Some(path).filter(|&path| path != CallTree::ROOT);
        while let Some(path) = at {
            names.push(name(calls.tree.frame(path)));
            at = calls.tree.parent(path).filter(|&parent| parent != CallTree::ROOT);
        }
        names.reverse();
        let numbers = calls.tree.numbers(path);
        let sum = counts.entry((PID + calls.thread.0 - 1, names.join(";"))).or_default();
        let found = [numbers.calls, numbers.incomplete, numbers.entered_before];
        sum.iter_mut().zip(found).for_each(|(sum, number)| *sum += number);
    }
}

/// A folder with a generated recording and its program.
struct TestRecording {
    folder: tempfile::TempDir,
    generated: Generated,
}

impl TestRecording {
    fn new(seed: u64, threads: usize, overflows: bool) -> TestRecording {
        let plan = Plan { functions: 12, threads, instructions: 30_000, overflows, exceptions: true };
        let (folder, generated) = (tempfile::tempdir().expect("a folder"), generate(seed, plan));
        std::fs::create_dir(folder.path().join("root")).expect("made");
        std::fs::write(folder.path().join("root/program"), generated.program.to_elf()).expect("written");
        std::fs::write(folder.path().join("perf.data"), generated.to_perf_data("/program")).expect("written");
        TestRecording { folder, generated }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("perf.data")
    }

    fn options(&self) -> ImportOptions {
        ImportOptions { symfs: Some(self.folder.path().join("root")), ..ImportOptions::default() }
    }

    fn import(&self) -> (Outcome, Imported) {
        imported(&self.file(), &self.options(), Imported::default()).expect("it is whole")
    }
}

fn imported(file: &Path, options: &ImportOptions, mut result: Imported) -> Option<(Outcome, Imported)> {
    let outcome = import(file, options, &mut result).ok()?;
    Some((outcome, result))
}

#[test]
fn calls_are_those_of_the_decoder() {
    for seed in 0..24 {
        let recording = TestRecording::new(seed, 1 + seed as usize % 4, seed % 3 == 2);
        let (outcome, result) = recording.import();
        let (found, expected) = (result.counts(), expected(&recording.generated));
        let different = expected.iter().find(|(path, numbers)| found.get(*path) != Some(numbers));
        assert_eq!(different, None, "seed {seed}: {:?}", different.map(|(path, _)| found.get(path)));
        assert_eq!(found.len(), expected.len(), "seed {seed}");
        assert_eq!((result.facts.source, outcome.calls), ("intel-pt", Some(result.calls())));
        assert!(
            outcome.losses.keys().all(|reason| seed % 3 == 2 || !reason.starts_with("trace")),
            "{:?}",
            outcome.losses
        );
        for (_, _, [calls, _, _, _, in_histogram]) in result.paths.values() {
            assert_eq!(calls, in_histogram);
        }
    }
}

/// A compiler's dump of all functions of the program (`jitdump-specification.txt` in Linux's tools/perf).
fn dump_of(generated: &Generated) -> Vec<u8> {
    let program = &generated.program;
    let names: Vec<String> = (0..program.functions.len()).map(|index| program.name(index)).collect();
    let functions = program.functions.iter().zip(&names).map(|(function, name)| {
        let from = (function.start - program.base) as usize;
        let to = (function.end - program.base) as usize;
        (0, function.start, name.as_str(), &program.code[from..to])
    });
    jit_dump(PID, 0, &functions.collect::<Vec<_>>())
}

#[test]
fn code_made_at_run_time_comes_from_its_dump() {
    let recording = TestRecording::new(17, 2, false);
    std::fs::write(recording.folder.path().join("root/jit-9.dump"), dump_of(&recording.generated))
        .expect("written");
    std::fs::write(recording.file(), recording.generated.to_perf_data("/jit-9.dump")).expect("written");
    let (outcome, result) = recording.import();
    assert_eq!(result.counts(), expected(&recording.generated));
    assert!(outcome.losses.keys().all(|reason| !reason.starts_with("trace")), "{:?}", outcome.losses);
}

#[test]
fn own_times_add_up() {
    let recording = TestRecording::new(19, 1, false);
    let (_, result) = recording.import();
    let own: u64 = result.paths.values().map(|(_, _, numbers)| numbers[3]).sum();
    let calls = &replayed(&recording.generated)[0];
    assert_eq!(own, TIME_CONV.delta_ns(calls.last - calls.first));
}

#[test]
fn threads_run_on_their_cpu_and_wait_with_their_stacks() {
    let recording = TestRecording::new(3, 4, false);
    let options = ImportOptions { min_stall_ns: 0, ..recording.options() };
    let (_, result) = imported(&recording.file(), &options, Imported::default()).expect("it is whole");
    assert!(result.on_cpu_ns > 0 && result.on_cpu_ns < result.wall_ns);
    let in_paths: u64 = result.paths.values().map(|(_, _, numbers)| numbers[3]).sum();
    // From its first event to the last event of all threads. The time of each path is rounded down.
    assert!(in_paths <= result.wall_ns + 1_000, "{in_paths} of {}", result.wall_ns);
    let (open, closed): (Vec<&Stall>, Vec<&Stall>) = result.stalls.iter().partition(|stall| stall.open);
    assert!(!open.is_empty() && open.iter().all(|stall| stall.user.is_some()), "{open:?}");
    result.assert_whole();
    let [_, on_cpu, user, kernel, undivided] = result.running();
    assert!(user > 0 && kernel > 0 && undivided <= on_cpu / 20, "{undivided} of {on_cpu} ns");
    assert!(closed.len() > 20, "{} waits", closed.len());
    let with_stack = closed.iter().filter(|stall| stall.user.is_some()).count();
    assert!(with_stack * 10 >= closed.len() * 9, "{with_stack} of {}", closed.len());
    let reasons: Vec<bool> = closed.iter().map(|stall| stall.reason == StallReason::Preempted).collect();
    assert!(reasons.contains(&true) && reasons.contains(&false));
    for stack in closed.iter().filter_map(|stall| stall.user) {
        let root = result.stacks[&stack].last().expect("a frame");
        assert_eq!(result.names[root], "function_0");
    }
}

#[test]
fn parts_outside_the_limits_are_not_decoded() {
    let recording = TestRecording::new(7, 3, false);
    let (_, all) = recording.import();
    let limited = |trace: TraceLimits, window| {
        let options = ImportOptions { trace, ..recording.options() };
        imported(&recording.file(), &options, Imported { window, ..Imported::default() })
            .expect("it is whole")
            .1
    };
    let one = limited(TraceLimits { tids: vec![PID + 1], cpus: vec![] }, TraceWindow::default());
    let tids: Vec<u32> = one.counts().into_keys().map(|(tid, _)| tid).collect();
    assert!(!tids.is_empty() && tids.iter().all(|tid| *tid == PID + 1));
    let other_cpu = TraceLimits { tids: vec![], cpus: vec![9] };
    assert!(limited(other_cpu, TraceWindow::default()).paths.is_empty());
    let middle = MonoNs(TIME_CONV.ns_from_ticks(recording.generated.end / 2 + 500_000_000));
    let halves = [TraceWindow { from: Some(middle), to: None }, TraceWindow { from: None, to: Some(middle) }];
    let halves = halves.map(|window| limited(TraceLimits::default(), window).calls());
    assert!(halves.iter().all(|&calls| calls > 0 && calls < all.calls()), "{halves:?} of {}", all.calls());
    // Both halves share at most the calls of one synchronisation point's segment.
    let sum: u64 = halves.iter().sum();
    assert!(sum >= all.calls() && sum <= all.calls() * 3 / 2, "{halves:?} of {}", all.calls());
}

#[test]
fn without_the_program_there_are_gaps_without_names() {
    let recording = TestRecording::new(5, 2, false);
    let nowhere = recording.folder.path().join("nowhere");
    let options = ImportOptions { symfs: Some(nowhere), ..ImportOptions::default() };
    let (outcome, result) =
        imported(&recording.file(), &options, Imported::default()).expect("it can be read");
    assert_eq!(outcome.losses["binaries_missing"], 1);
    assert!(outcome.losses["trace_without_code"] > 0);
    assert_eq!(result.calls(), 0);
}

#[test]
fn truncation_anywhere_does_not_panic() {
    let recording = TestRecording::new(11, 2, false);
    let whole = std::fs::read(recording.file()).expect("readable");
    let cut = recording.folder.path().join("cut.data");
    let all = recording.import().1.calls();
    for len in (0..whole.len()).step_by(whole.len() / 61) {
        std::fs::write(&cut, &whole[..len]).expect("written");
        if let Some((_, result)) = imported(&cut, &recording.options(), Imported::default()) {
            assert!(result.calls() <= all, "{len} bytes");
        }
    }
}

#[test]
fn damage_anywhere_does_not_panic() {
    let recording = TestRecording::new(13, 3, true);
    let whole = std::fs::read(recording.file()).expect("readable");
    let damaged = recording.folder.path().join("damaged.data");
    let mut imports = 0;
    for turn in 0..150usize {
        let mut bytes = whole.clone();
        for at in 0..=turn % 5 {
            // Anywhere, or among the records before the trace.
            let range = if turn % 2 == 0 { bytes.len() } else { bytes.len().min(4_000) };
            let recording = (turn * 7_919 + at * 104_729) % range;
            bytes[recording] ^= 1 << (turn % 8);
        }
        std::fs::write(&damaged, &bytes).expect("written");
        imports += usize::from(imported(&damaged, &recording.options(), Imported::default()).is_some());
    }
    assert!(imports > 75, "{imports} imports");
}

#[test]
fn pipe_is_refused_in_one_sentence() {
    let recording = TestRecording::new(1, 1, false);
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    let whole = std::fs::read(recording.file()).expect("readable");
    // The records of a file as a stream: a header of 16 bytes, and the bytes behind the attributes.
    let data_at = u64::from_le_bytes(whole[40..48].try_into().expect("eight bytes")) as usize;
    let stream = [&b"PERFILE2\x10\0\0\0\0\0\0\0"[..], &whole[data_at..]].concat();
    let sending = std::thread::spawn(move || drop(std::io::Write::write_all(&mut writer, &stream)));
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&reader));
    let error =
        import(Path::new(&path), &ImportOptions::default(), &mut Imported::default()).expect_err("a pipe");
    assert!(error.to_string().starts_with("Intel PT cannot be read from a pipe"), "{error}");
    drop(reader);
    sending.join().expect("sent");
}

/// The attr of the generated file, with the sample fields of `record --intel-pt`.
fn attr_of(perf_data: &[u8]) -> Vec<u8> {
    const WHO_WHEN_WHERE_WHICH: u64 = 1 | 1 << 1 | 1 << 2 | 1 << 7 | 1 << 16;
    let mut attr = perf_data[120..232].to_vec();
    attr[4..8].copy_from_slice(&112u32.to_le_bytes());
    attr[24..32].copy_from_slice(&WHO_WHEN_WHERE_WHICH.to_le_bytes());
    attr[43] |= 1 << 2; // context_switch
    attr
}

/// A switch of one thread, as the kernel writes it.
fn switch(tid: u32, ticks: u64, misc: u16) -> Vec<u8> {
    record(14, misc, &words(&[pair(PID, tid), TIME_CONV.ns_from_ticks(ticks), 0, 7]))
}

/// The same trace as `wallprof record --intel-pt` writes it: switches of threads, and pieces of a CPU's
/// buffer.
fn as_recorded(generated: &Generated, perf_data: &[u8]) -> std::io::Result<Vec<u8>> {
    with_other_buffers(generated, perf_data, &[])
}

/// The same, with the traces of CPU 1 and later CPUs.
fn with_other_buffers(
    generated: &Generated,
    perf_data: &[u8],
    others: &[Vec<u8>],
) -> std::io::Result<Vec<u8>> {
    const OUT: u16 = 0x2000;
    const PREEMPTED: u16 = 0x4000;
    let facts = TraceFacts {
        pmu: 8,
        time_conv: Some(TIME_CONV),
        time_stamps: 1 << 10,
        no_return_compression: 1 << 11,
        mtc: 1 << 9,
        mtc_period: 0xf << 14,
        cycles: 1 << 1,
        tsc_to_crystal: TSC_CTC,
        max_non_turbo_ratio: generated.settings.max_non_turbo_ratio.into(),
        is_snapshot: false,
        of_cpus: false,
    };
    let events = TraceEvents { attr: attr_of(perf_data), ids: vec![7] };
    let mut file = TraceFile::create(std::io::Cursor::new(Vec::new()), &events, &facts)?;
    let tid = |thread: ThreadId| PID + thread.0 - 1;
    let switches: Vec<_> = generated.schedule.switches().collect();
    let threads: std::collections::BTreeSet<u32> = switches
        .iter()
        .filter(|switch| switch.thread != ThreadId::NONE)
        .map(|switch| tid(switch.thread))
        .collect();
    for &tid in &threads {
        file.found_thread(PID, tid, b"target")?;
    }
    let program = &generated.program;
    let mapping = FoundMapping {
        start: program.base,
        len: (program.code.len() as u64).next_multiple_of(0x1000),
        file_offset: CODE_OFFSET,
        inode: 0,
        path: b"/program",
    };
    file.found_mapping(PID, &mapping)?;
    let mut last = ThreadId::NONE;
    for found in switches {
        if last != ThreadId::NONE {
            let how = if found.departure == Departure::Preempted { OUT | PREEMPTED } else { OUT };
            file.record(&switch(tid(last), found.ticks - 1, how))?;
        }
        if found.thread != ThreadId::NONE {
            file.record(&switch(tid(found.thread), found.ticks.max(1), 0))?;
        }
        last = found.thread;
    }
    file.finish_round()?;
    let mut offset = 0;
    for piece in generated.trace.chunks(10_000) {
        let (one, other) = piece.split_at(piece.len() / 3);
        file.trace(0, offset, [one, other], generated.end)?;
        offset += piece.len() as u64;
    }
    for (cpu, trace) in (1..).zip(others) {
        file.trace(cpu, 0, [trace, &[]], generated.end)?;
    }
    let machine = MachineFacts {
        hostname: "db-1".into(),
        kernel: "6.1".into(),
        arch: "x86_64".into(),
        cpus: 1,
        command_line: ["wallprof", "record", "--", "./target"].map(String::from).to_vec(),
        clock: Some((5, 1_000_000_000)),
    };
    Ok(file.finish(&machine)?.into_inner())
}

#[test]
fn recorded_file_gives_the_same_calls_as_perfs_file() {
    for seed in [2, 3, 7, 8] {
        let recording = TestRecording::new(seed, 1 + seed as usize % 4, false);
        let (_, of_perf) = recording.import();
        let perf_data = std::fs::read(recording.file()).expect("readable");
        let own = recording.folder.path().join("own.data");
        std::fs::write(&own, as_recorded(&recording.generated, &perf_data).expect("in memory"))
            .expect("written");
        let (outcome, result) =
            imported(&own, &recording.options(), Imported::default()).expect("it is whole");
        assert_eq!(result.counts(), of_perf.counts(), "seed {seed}");
        assert!(outcome.losses.keys().all(|reason| !reason.starts_with("trace")), "{:?}", outcome.losses);
        assert_eq!((result.facts.source, result.facts.command.as_str()), ("intel-pt", "target"));
        assert_eq!((result.facts.hostname.as_str(), result.facts.kernel.as_str()), ("db-1", "6.1"));
        let anchor = result.facts.clock.expect("times of day are known");
        assert_eq!((anchor.mono.0, anchor.epoch.0), (5, 1_000_000_000));
    }
}

/// The output of `perf` for `file`; `None` without perf.
fn perf(arguments: &[&str], file: &Path, root: &Path) -> Option<String> {
    let perf = std::process::Command::new("perf")
        .args(arguments)
        .arg("--symfs")
        .arg(root)
        .arg("-i")
        .arg(file)
        .env("HOME", root)
        .output();
    let output = perf.ok()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn perf_reads_a_recorded_file() {
    let recording = TestRecording::new(2, 3, false);
    let root = recording.folder.path().join("root");
    let perf_data = std::fs::read(recording.file()).expect("readable");
    let own = recording.folder.path().join("own.data");
    std::fs::write(&own, as_recorded(&recording.generated, &perf_data).expect("in memory")).expect("written");
    let script = ["script", "--itrace=cr", "--ns", "-F", "tid,time,flags,ip,sym,addr"];
    let Some(theirs) = perf(&script, &recording.file(), &root) else {
        return wallprof_testkit::skip(
            "perf_reads_a_recorded_file",
            "perf is not installed (Debian: linux-perf)",
        );
    };
    let ours = perf(&script, &own, &root).expect("there is one");
    assert!(theirs.lines().count() > 1_000, "{} lines", theirs.lines().count());
    let different = ours.lines().zip(theirs.lines()).enumerate().find(|(_, (ours, theirs))| ours != theirs);
    assert_eq!((different, ours.lines().count()), (None, theirs.lines().count()));
    let header = perf(&["report", "--header-only"], &own, &root).expect("there is one");
    for fact in ["hostname : db-1", "os release : 6.1", "wallprof record"] {
        assert!(header.contains(fact), "{fact}: {header}");
    }
}

/// The recording, with its ITRACE_START record at `ticks`.
fn of_one_thread(recording: &TestRecording, ticks: u64) -> Vec<u8> {
    const ITRACE_START: [u8; 8] = [12, 0, 0, 0, 0, 0, 48, 0];
    let mut bytes = std::fs::read(recording.file()).expect("readable");
    let at = bytes.windows(8).position(|header| header == ITRACE_START).expect("a record");
    bytes[at + 24..at + 32].copy_from_slice(&TIME_CONV.ns_from_ticks(ticks).to_le_bytes());
    bytes
}

/// The position of the trace in a file.
fn trace_at(generated: &Generated, bytes: &[u8]) -> usize {
    bytes.windows(64).position(|window| window == &generated.trace[..64]).expect("the trace")
}

impl TestRecording {
    fn import_bytes(&self, bytes: &[u8]) -> (Outcome, Imported) {
        let file = self.folder.path().join("changed.data");
        std::fs::write(&file, bytes).expect("written");
        imported(&file, &self.options(), Imported::default()).expect("it can be read")
    }

    /// Imports the recording with another trace.
    fn import_trace(&self, trace: Vec<u8>) -> (Outcome, Imported) {
        let changed = Generated { trace, ..self.generated.clone() };
        self.import_bytes(&changed.to_perf_data("/program"))
    }
}

#[test]
fn without_switches_a_thread_ran_when_its_code_did_and_the_rest_is_unknown() {
    for seed in 0..12 {
        let recording = TestRecording::new(seed, 1, false);
        let (_, result) = recording.import_bytes(&of_one_thread(&recording, 1_000_000));
        let calls = &replayed(&recording.generated)[0];
        let paths = calls.tree.paths(CallTree::ROOT);
        let in_code = |path: &&_| matches!(calls.tree.frame(**path), Frame::Function(_) | Frame::Address(_));
        let own = paths.iter().filter(in_code).map(|&path| calls.tree.numbers(path).self_ticks).sum();
        let [wall, on_cpu, user, kernel, undivided] = result.running();
        assert_eq!((user, kernel, undivided), (TIME_CONV.delta_ns(own), 0, 0), "seed {seed}");
        assert_eq!(on_cpu, user, "seed {seed}: to the nanosecond");
        // It was in system calls, whose time is not in the trace.
        let away: u64 = result.paths.values().map(|path| path.2[3]).sum::<u64>() - user;
        assert!(away > 0 && wall >= user + away, "seed {seed}: {wall} of {user} and {away}");
        result.assert_whole();
    }
}

#[test]
fn with_switches_all_running_time_is_divided() {
    for seed in 0..8 {
        let recording = TestRecording::new(seed, 3, false);
        let (_, result) = recording.import();
        result.assert_whole();
        let in_code = replayed(&recording.generated).iter().fold(0, |sum, calls| {
            let paths = calls.tree.paths(CallTree::ROOT).into_iter();
            let code = paths.filter(|&path| matches!(calls.tree.frame(path), Frame::Function(_)));
            sum + code.map(|path| calls.tree.numbers(path).self_ticks).sum::<u64>()
        });
        let [_, _, user, ..] = result.running();
        let (in_code, slack) = (TIME_CONV.delta_ns(in_code), 3_000);
        assert!(user.abs_diff(in_code) <= slack, "seed {seed}: {user} of {in_code} ns");
    }
}

#[test]
fn thread_ends_with_its_own_trace_and_not_with_the_longest() {
    for seed in [2, 3, 7, 8] {
        let recording = TestRecording::new(seed, 2, false);
        let perf_data = std::fs::read(recording.file()).expect("readable");
        let end = recording.generated.end;
        // The trace of another CPU. It starts before the end and lasts 12.5 ms longer.
        let stamp = |ticks: u64| [&[0x19][..], &ticks.to_le_bytes()[..7]].concat();
        let psb = [0x02, 0x82].repeat(8);
        let later = [psb, stamp(end - 40_000), vec![0x02, 0x23], stamp(end + 31_250_000)].concat();
        let paths = |others: &[Vec<u8>], window| {
            let own = recording.folder.path().join("own.data");
            let written = with_other_buffers(&recording.generated, &perf_data, others).expect("in memory");
            std::fs::write(&own, written).expect("written");
            let result = Imported { window, ..Imported::default() };
            imported(&own, &recording.options(), result).expect("it is whole").1.paths
        };
        let until = |ticks| TraceWindow { from: None, to: Some(MonoNs(TIME_CONV.ns_from_ticks(ticks))) };
        let later = std::slice::from_ref(&later);
        let middle = until(end - 20_000);
        assert!(paths(later, middle) == paths(&[], middle), "seed {seed}: a window ends all threads");
        // Without a window, threads that are off the CPU stay there. All others end with their own trace.
        let (all, alone) = (paths(later, TraceWindow::default()), paths(&[], TraceWindow::default()));
        assert_eq!(all.len(), alone.len(), "seed {seed}");
        for ((_, frame, numbers), (_, _, [.., expected, _])) in all.values().zip(alone.values()) {
            // Own times are rounded as a sum.
            let same = numbers[3].abs_diff(*expected) <= 1 || matches!(frame, CallFrame::Outside(_));
            assert!(same, "seed {seed}: {} of {expected} ns", numbers[3]);
        }
    }
}

#[test]
fn trace_that_cannot_be_read_has_no_times() {
    let recording = TestRecording::new(4, 1, false);
    let size = recording.generated.trace.len();
    let rubbish: Vec<u8> = (0..size).map(|at| (at * 7 % 251) as u8).collect();
    for (trace, losses) in [(rubbish, 1), (vec![0; size], 0)] {
        let (outcome, result) = recording.import_trace(trace);
        assert_eq!(outcome.losses.get("trace_without_synchronisation").copied().unwrap_or(0), losses);
        assert_eq!((outcome.calls, outcome.accounted), (Some(0), false));
        assert_eq!(outcome.end.0, TIME_CONV.ns_from_ticks(recording.generated.end), "the end of the records");
        assert!(result.paths.is_empty() && result.wall_ns <= outcome.end.0);
    }
    let (outcome, _) = recording.import();
    assert!(outcome.accounted && !outcome.losses.contains_key("trace_without_synchronisation"));
}

#[test]
fn trace_without_a_time_is_counted() {
    let recording = TestRecording::new(4, 1, false);
    let psb = [0x02, 0x82].repeat(8);
    let untimed = [psb, vec![0x02, 0x03, 20, 0, 0x02, 0x23], vec![0x06; 50]].concat();
    let (outcome, result) = recording.import_trace(untimed);
    assert_eq!((outcome.losses["trace_without_time"], outcome.accounted), (1, false));
    assert!(result.paths.is_empty() && outcome.end.0 == TIME_CONV.ns_from_ticks(recording.generated.end));
}

#[test]
fn last_piece_of_a_truncated_file_is_decoded_as_far_as_it_goes() {
    let recording = TestRecording::new(9, 1, false);
    let whole = std::fs::read(recording.file()).expect("readable");
    let (at, size) = (trace_at(&recording.generated, &whole), recording.generated.trace.len());
    let (outcome, all) = recording.import();
    assert!(!outcome.losses.contains_key("trace_bytes_missing"));
    let mut before = 0;
    for part in 1..8 {
        let cut = size * part / 8;
        let (outcome, result) = recording.import_bytes(&whole[..at + cut]);
        let missing = size.next_multiple_of(8) - cut;
        assert_eq!(outcome.losses["trace_bytes_missing"], missing as u64, "{part} eighths");
        assert_eq!(outcome.losses["input_truncated"], 1);
        assert!(result.calls() >= before && result.calls() < all.calls(), "{part} eighths");
        before = result.calls();
    }
    assert!(before > all.calls() / 2, "{before} of {} calls", all.calls());
}

#[test]
fn file_that_perf_did_not_finish_is_read() {
    const SIZE_OF_DATA: std::ops::Range<usize> = 48..56;
    for threads in [1, 3] {
        let recording = TestRecording::new(6, threads, false);
        let mut bytes = std::fs::read(recording.file()).expect("readable");
        let end =
            trace_at(&recording.generated, &bytes) + recording.generated.trace.len().next_multiple_of(8);
        // perf writes the size of the data, and the features behind it, when it ends.
        bytes[SIZE_OF_DATA].fill(0);
        bytes.truncate(end);
        let (outcome, result) = recording.import_bytes(&bytes);
        assert_eq!(outcome.losses["perf_did_not_finish"], 1);
        let (whole, expected) = recording.import();
        assert_eq!((result.counts(), result.running()), (expected.counts(), expected.running()));
        assert!(!whole.losses.contains_key("perf_did_not_finish"));
    }
}

#[test]
fn damaged_cycle_counts_and_overflows_in_gaps_are_losses() {
    const OVERFLOW: [u8; 2] = [0x02, 0xf3];
    let recording = (0..99)
        .map(|seed| TestRecording::new(seed, 1, false))
        .find(|recording| recording.generated.settings.cycles);
    let recording = recording.expect("some traces count cycles");
    let (outcome, whole) = recording.import();
    assert!(!outcome.losses.keys().any(|reason| reason.starts_with("trace")), "{:?}", outcome.losses);
    let mut damaged = recording.generated.trace.clone();
    let starts = wallprof_intel_pt::segment_starts(&damaged);
    let at = starts[starts.len() / 2];
    // A count of 2^40 cycles in front of a synchronisation point.
    damaged.splice(at..at, [0x07, 0x01, 0x01, 0x01, 0x01, 0x81, 0x02]);
    let (outcome, result) = recording.import_trace(damaged);
    assert_eq!(outcome.losses["trace_times_corrected"], 1);
    assert_eq!(result.counts(), whole.counts());
    assert_eq!(result.running()[2], whole.running()[2], "no time is added");
    let mut overflowed = recording.generated.trace.clone();
    overflowed.splice(at..at, OVERFLOW.repeat(3));
    assert_eq!(recording.import_trace(overflowed).0.losses["trace_overflows"], 3);
}
