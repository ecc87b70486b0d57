// SPDX-License-Identifier: Apache-2.0
//! A recording of the split program as its recorder left it on another machine: two frames without a name.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use wallprof_model::event::Stall;
use wallprof_model::{
    Event, Frame, FrameId, FrameKind, MissingFile, Module, ModuleId, MonoNs, Reason, StackEnd, StackId,
    StallReason, SymbolLine, ThreadInfo, ThreadKey,
};
use wallprof_recording::{Recorder, RecordingStart};
use wallprof_testkit::recorder::wallprof;

use crate::program::Split;

/// One stall in `hidden`, called from an unnamed address in `main`. `exported` is named by its dynamic
/// symbol.
pub fn recording(split: &Split, build_id: Option<Vec<u8>>) -> PathBuf {
    recorded(split, build_id, None)
}

/// The same as an import has it that did not find the program: frames have offsets in its file, which are
/// also their addresses.
pub fn import_without_the_program(split: &Split, build_id: Vec<u8>) -> PathBuf {
    recorded(split, None, Some(MissingFile { build_id, code_offset: 0x1000 }))
}

fn recorded(split: &Split, build_id: Option<Vec<u8>>, missing: Option<MissingFile>) -> PathBuf {
    let path = split.folder().join("unnamed.db");
    let start = MonoNs(1_000_000_000_000);
    let recording = RecordingStart { start, source: "live".into(), cpus: 1, ..RecordingStart::default() };
    let mut recorder = Recorder::create(&path, &recording).expect("created");
    let mut take = |event| recorder.take(event).expect("taken");
    let thread = ThreadInfo { start_boot_ns: 5, ..ThreadInfo::new(ThreadKey(1), (10, "app"), (10, "app")) };
    take(Event::Thread(thread));
    take(Event::ThreadSeen { thread: ThreadKey(1), from: start });
    take(Event::Module { id: ModuleId(0), module: Module { path: "/nowhere/app".into(), build_id } });
    let places =
        [split.address_of("hidden") + 4, split.address_of("main") + 4, split.address_of("exported") + 4];
    for (id, address) in (0..).zip(places) {
        let frame = Frame { kind: FrameKind::Native, module: Some(ModuleId(0)), address };
        take(Event::Frame { id: FrameId(id), frame });
    }
    if let Some(file) = missing {
        take(Event::MissingFile { module: ModuleId(0), file });
    }
    let by_table = SymbolLine { symbol: Some("exported".into()), offset: Some(4), ..SymbolLine::default() };
    take(Event::Symbol { frame: FrameId(2), lines: vec![by_table] });
    take(Event::Stack { id: StackId(1), frames: (0..3).map(FrameId).collect(), end: StackEnd::Complete });
    let reason = StallReason::Blocked(Reason::Lock);
    let stall = Stall { comm: "app".into(), ..Stall::new(ThreadKey(1), reason, start, 5_000_000) };
    take(Event::Stall(Box::new(Stall { user: Some(StackId(1)), ..stall })));
    recorder.finish(MonoNs(start.0 + 1_000_000_000)).expect("complete");
    path
}

/// Runs `wallprof symbolize`, without servers.
pub fn symbolize(file: &Path, debug_dir: Option<&Path>) -> Output {
    command(file, debug_dir).output().expect("the binary runs")
}

pub fn command(file: &Path, debug_dir: Option<&Path>) -> Command {
    let mut command = wallprof();
    command.arg("symbolize").arg(file);
    if let Some(dir) = debug_dir {
        command.arg("--debug-dir").arg(dir);
    }
    command
}

/// Each frame of the stall as `symbol file:line`, innermost first.
pub fn frames(file: &Path) -> Vec<String> {
    let output = wallprof().args(["stalls", "--json"]).arg(file).output().expect("the binary runs");
    let stall: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one object");
    let frames = stall["user_stack"].as_array().expect("a stack");
    let text = |frame: &serde_json::Value| {
        let file = frame["file"].as_str().map(|file| file.rsplit('/').next().unwrap_or_default().to_owned());
        format!("{} {}", frame["symbol"].as_str().unwrap_or("?"), file.unwrap_or("?".into()))
    };
    frames.iter().map(text).collect()
}
