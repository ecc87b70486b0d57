// SPDX-License-Identifier: Apache-2.0
//! Names that are added later: the frames that are listed, the names that are written, and those that stay.

mod fixture;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use fixture::*;
use rusqlite::Connection;
use wallprof_model::{Event, Frame, FrameId, FrameKind, MissingFile, Module, ModuleId, SymbolLine};
use wallprof_recording::{Error, Naming, Unnameable, UnnamedFrame, UnnamedModule};

const BUILD_ID: [u8; 4] = [0xab, 1, 2, 3];

fn line(symbol: &str, offset: u64) -> SymbolLine {
    SymbolLine { symbol: Some(symbol.into()), offset: Some(offset), ..SymbolLine::default() }
}

fn with_place(symbol: &str, offset: u64, inlined: bool) -> SymbolLine {
    let offset = (!inlined).then_some(offset);
    SymbolLine { file: Some("a.c".into()), line: Some(7), inlined, offset, ..line(symbol, 0) }
}

/// Frames by address: in a module with a build id and in one without, of the kernel, and of run-time code.
fn recording(place: &Place) {
    let mut recorder = recorder(&place.file());
    let module = |id, path: &str, build_id| Event::Module {
        id: ModuleId(id),
        module: Module { path: path.into(), build_id },
    };
    let frame = |id, kind, module: Option<u32>, address| Event::Frame {
        id: FrameId(id),
        frame: Frame { kind, module: module.map(ModuleId), address },
    };
    let named = |id, lines: &[SymbolLine]| Event::Symbol { frame: FrameId(id), lines: lines.to_vec() };
    let events = vec![
        module(1, "/opt/known", Some(BUILD_ID.to_vec())),
        module(2, "/opt/unknown", None),
        frame(1, FrameKind::Native, Some(1), 0x10),
        frame(2, FrameKind::Native, Some(1), 0x20),
        frame(3, FrameKind::Native, Some(1), 0x30),
        frame(4, FrameKind::Native, Some(1), 0x40),
        frame(5, FrameKind::Native, Some(2), 0x50),
        frame(6, FrameKind::Kernel, None, 0x60),
        frame(7, FrameKind::Jit, None, 0x70),
        frame(8, FrameKind::Native, None, 0x80),
        named(2, &[SymbolLine::default()]),
        named(3, &[line("by_table", 3)]),
        named(4, &[with_place("inner", 0, true), with_place("whole", 4, false)]),
    ];
    take_all(&mut recorder, events);
    recorder.finish(at(2_000_000_000)).unwrap();
}

/// All lines in the file, by the frame's address.
fn lines(path: &Path) -> Vec<(String, String)> {
    let connection = Connection::open(path).unwrap();
    let sql = "SELECT address,
             group_concat(coalesce(symbol, '?') || coalesce('@' || file || ':' || line, ''), ' < ')
         FROM (SELECT address, symbol, file, line, inline_depth FROM frames ORDER BY address, inline_depth) GROUP BY address ORDER BY address";
    let mut find = connection.prepare(sql).unwrap();
    find.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap().collect::<Result<_, _>>().unwrap()
}

fn text_of<'a>(lines: &'a [(String, String)], address: &str) -> &'a str {
    &lines.iter().find(|(known, _)| known == address).unwrap().1
}

fn frame_at(modules: &[UnnamedModule], address: u64) -> UnnamedFrame {
    modules[0].frames.iter().find(|frame| frame.address == address).unwrap().clone()
}

#[test]
fn unnamed_frames_are_listed_by_module_except_without_a_build_id() {
    let place = place();
    recording(&place);
    let naming = Naming::open(&place.file()).unwrap();
    let modules = naming.modules().unwrap();
    assert_eq!(modules.len(), 1);
    assert_eq!(modules[0].module, Module { path: "/opt/known".into(), build_id: Some(BUILD_ID.to_vec()) });
    let offered: Vec<_> =
        modules[0].frames.iter().map(|frame| (frame.address, frame.name.is_some())).collect();
    assert_eq!(offered, [(0x10, false), (0x20, false), (0x30, true)]);
    assert_eq!(modules[0].code_offset, None);
    assert_eq!(frame_at(&modules, 0x30).name.unwrap().offset, Some(3));
    assert_eq!(naming.unnameable().unwrap(), Unnameable { without_build_id: 2 });
}

#[test]
fn frames_of_a_missing_file_are_listed_by_its_build_id() {
    let place = place();
    let mut recorder = recorder(&place.file());
    let module = |id, path: &str| Event::Module {
        id: ModuleId(id),
        module: Module { path: path.into(), build_id: None },
    };
    let frame = |id, module, address| Event::Frame {
        id: FrameId(id),
        frame: Frame { kind: FrameKind::Native, module: Some(ModuleId(module)), address },
    };
    let file = MissingFile { build_id: BUILD_ID.to_vec(), code_offset: 0x1000 };
    take_all(&mut recorder, vec![module(1, "/opt/gone"), module(2, "/opt/unknown"), frame(1, 1, 0x1010)]);
    // Later than the module, also in another transaction.
    recorder.commit(at(1_000_000_000)).unwrap();
    take_all(&mut recorder, vec![frame(2, 2, 0x20), Event::MissingFile { module: ModuleId(1), file }]);
    recorder.finish(at(2_000_000_000)).unwrap();
    let naming = Naming::open(&place.file()).unwrap();
    let modules = naming.modules().unwrap();
    assert_eq!(modules.len(), 1);
    assert_eq!(modules[0].module, Module { path: "/opt/gone".into(), build_id: Some(BUILD_ID.to_vec()) });
    assert_eq!((modules[0].code_offset, modules[0].frames[0].address), (Some(0x1000), 0x1010));
    assert_eq!(naming.unnameable().unwrap(), Unnameable { without_build_id: 1 });
}

#[test]
fn names_are_written_and_existing_ones_are_kept() {
    let place = place();
    recording(&place);
    std::fs::set_permissions(place.file(), std::fs::Permissions::from_mode(0o640)).unwrap();
    let before = (lines(&place.file()), place.file().metadata().unwrap());
    let naming = Naming::open(&place.file()).unwrap();
    let modules = naming.modules().unwrap();
    let number = |address| frame_at(&modules, address).frame;
    let whole = Connection::open(place.file()).unwrap();
    let known_by_all: u32 =
        whole.query_row("SELECT id FROM frame WHERE address = 64", [], |row| row.get(0)).unwrap();
    drop(whole);
    let names = [
        (number(0x10), vec![with_place("inlined", 0, true), with_place("outer", 1, false)]),
        (number(0x30), vec![with_place("by_table", 3, false)]),
        (known_by_all, vec![line("another", 0)]),
    ];
    naming.write(&names).unwrap();
    let after = lines(&place.file());
    assert_eq!(text_of(&after, "0x10"), "inlined@a.c:7 < outer@a.c:7");
    assert_eq!(text_of(&after, "0x30"), "by_table@a.c:7");
    assert_eq!(text_of(&after, "0x40"), "inner@a.c:7 < whole@a.c:7", "not in the list");
    for address in ["0x20", "0x50", "0x60", "0x70", "0x80"] {
        assert_eq!(text_of(&after, address), text_of(&before.0, address), "{address}");
    }
    let metadata = place.file().metadata().unwrap();
    assert_eq!((metadata.mode(), metadata.uid()), (before.1.mode(), before.1.uid()));
    assert_eq!(std::fs::read_dir(place.folder()).unwrap().count(), 1, "one file");
    let modules = Naming::open(&place.file()).unwrap().modules().unwrap();
    assert_eq!(modules[0].frames.iter().map(|frame| frame.address).collect::<Vec<_>>(), [0x20]);
}

#[test]
fn empty_write_does_not_change_the_file() {
    let place = place();
    recording(&place);
    let before = std::fs::read(place.file()).unwrap();
    Naming::open(&place.file()).unwrap().write(&[]).unwrap();
    drop(Naming::open(&place.file()).unwrap());
    assert!(std::fs::read(place.file()).unwrap() == before);
}

#[test]
fn recording_in_use_is_refused_and_one_of_a_killed_recorder_is_named() {
    let place = place();
    let mut recorder = recorder(&place.file());
    take_all(&mut recorder, definitions());
    recorder.commit(at(1_000_000_000)).unwrap();
    let error = Naming::open(&place.file()).err().unwrap();
    assert!(matches!(error, Error::BeingWritten { .. }), "{error}");
    // After a kill there are the file and its journal, and no process has them open.
    let copy = place.folder().join("killed.db");
    for suffix in ["", "-wal"] {
        let of = |path: &Path| format!("{}{suffix}", path.display());
        std::fs::copy(of(&place.file()), of(&copy)).unwrap();
    }
    assert!(Naming::open(&copy).unwrap().modules().is_ok());
}

#[test]
fn failed_write_changes_nothing() {
    let place = place();
    recording(&place);
    let before = lines(&place.file());
    let naming = Naming::open(&place.file()).unwrap();
    let frame = naming.modules().unwrap()[0].frames[0].frame;
    let hostage = Connection::open(place.file()).unwrap();
    hostage.execute_batch("CREATE UNIQUE INDEX one ON line (symbol) WHERE symbol IS NOT NULL").unwrap();
    let twice = vec![with_place("twice", 0, true), with_place("twice", 0, false)];
    assert!(naming.write(&[(frame, twice)]).is_err());
    drop(hostage);
    assert_eq!(lines(&place.file()), before);
}
