// SPDX-License-Identifier: Apache-2.0
//! Files of other users that are crafted, or cut short while they are read: the recorder goes on in bounded
//! memory and counts them. Ordinary files of other users have all their names.

mod support;

use std::fs::{File, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

use support::{Program, compile_c, run};
use wallprof_model::{Module, SymbolLine};
use wallprof_symbols::{ModuleFile, ReadLimits, ReaderCommand, Resolver, ResolverOptions};

/// Memory of the process is compared, so that one test runs at a time.
static ALONE: Mutex<()> = Mutex::new(());

const MIB: u64 = 1 << 20;

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A program file that others can write.
fn foreign(arguments: &[&str]) -> Program {
    let program = compile_c(arguments);
    std::fs::set_permissions(&program.path, Permissions::from_mode(0o777)).expect("changed");
    program
}

fn module(path: &Path) -> ModuleFile {
    let file = File::open(path).expect("readable");
    ModuleFile { module: Module { path: "/foreign".into(), build_id: None }, file: Some(Arc::new(file)) }
}

fn options() -> ResolverOptions {
    let reader = ReaderCommand::new(env!("CARGO_BIN_EXE_wallprof-symbol-reader"), &[]);
    ResolverOptions { debug_dirs: vec![], reader: Some(reader), ..ResolverOptions::default() }
}

fn resolver() -> Resolver {
    Resolver::new(options())
}

/// The first 16 addresses of `wanted`.
fn addresses(path: &Path) -> Vec<u64> {
    let output = Command::new("nm").arg(path).output().expect("nm");
    let text = String::from_utf8(output.stdout).expect("text");
    let line = text.lines().find(|line| line.ends_with(" wanted")).expect("a symbol");
    let start = u64::from_str_radix(line.split(' ').next().expect("an address"), 16).expect("hex");
    (start..start + 16).collect()
}

fn is_whole(lines: &[Vec<SymbolLine>]) -> bool {
    let all = || lines.iter().flatten();
    let has = |name: &str| {
        let of_name = |line: &&SymbolLine| line.symbol.as_deref() == Some(name);
        all().filter(of_name).any(|line| line.file.is_some() && line.line.is_some())
    };
    has("wanted") && has("inlined_part") && all().any(|line| line.inlined)
}

/// How much the peak of resident memory grows.
fn peak_growth(work: impl FnOnce()) -> u64 {
    let status = |field: &str| {
        let text = std::fs::read_to_string("/proc/self/status").expect("readable");
        let line = text.lines().find_map(|line| line.strip_prefix(field)).expect("a field");
        line.trim_matches([':', '\t', ' ', 'k', 'B']).parse::<u64>().expect("a number") << 10
    };
    // 5: the peak becomes what is resident now (proc(5), clear_refs).
    std::fs::write("/proc/self/clear_refs", "5").expect("reset");
    let before = status("VmRSS");
    work();
    status("VmHWM").saturating_sub(before)
}

/// Gives the program a symbol table of `size` bytes, at the end of its file.
fn with_large_symbol_table(program: &Program, size: u64) -> File {
    let file = OpenOptions::new().read(true).write(true).open(&program.path).expect("writable");
    let mut header = [0; 64];
    file.read_exact_at(&mut header, 0).expect("a header");
    let sections_at = u64::from_le_bytes(header[40..48].try_into().expect("8 bytes"));
    let count = u16::from_le_bytes([header[60], header[61]]);
    let kind = |index: u16| {
        let mut entry = [0; 64];
        file.read_exact_at(&mut entry, sections_at + 64 * u64::from(index)).expect("an entry");
        entry[4]
    };
    let symbols = (0..count).find(|&index| kind(index) == 2).expect("a symbol table");
    let table_at = file.metadata().expect("metadata").len().next_multiple_of(4096);
    let place = [table_at.to_le_bytes(), size.to_le_bytes()].concat();
    file.write_all_at(&place, sections_at + 64 * u64::from(symbols) + 24).expect("written");
    file.set_len(table_at + size).expect("sparse");
    file
}

#[test]
fn an_ordinary_file_of_others_has_names_files_lines_and_inlined_functions() {
    let _alone = alone();
    for arguments in [&["-g"][..], &["-g", "-gz=zlib"], &["-g", "-gdwarf-4"], &["-g", "-static"]] {
        let program = foreign(arguments);
        let mut resolver = resolver();
        let lines = resolver.resolve(&module(&program.path), &addresses(&program.path));
        assert!(is_whole(&lines), "{arguments:?}: {lines:?}");
        assert_eq!(resolver.unreadable(), 0);
    }
}

#[test]
fn a_file_of_others_without_debug_information_has_names() {
    let _alone = alone();
    let program = foreign(&[]);
    let mut resolver = resolver();
    let lines = resolver.resolve(&module(&program.path), &addresses(&program.path));
    assert!(lines.iter().all(|lines| lines[0].symbol.as_deref() == Some("wanted")), "{lines:?}");
    assert_eq!(resolver.unreadable(), 0);
}

#[test]
fn a_file_that_is_cut_short_while_it_is_read_does_not_end_the_reader() {
    let _alone = alone();
    let program = foreign(&["-g", "-static"]);
    let (image, addresses) = (std::fs::read(&program.path).expect("readable"), addresses(&program.path));
    let writer = OpenOptions::new().write(true).open(&program.path).expect("writable");
    let resolve = || {
        let mut resolver = resolver();
        let lines = resolver.resolve(&module(&program.path), &addresses);
        assert_eq!(lines.len(), addresses.len());
        resolver.unreadable()
    };
    let started = Instant::now();
    assert_eq!(resolve(), 0);
    let whole = started.elapsed();
    let mut unreadable = 0;
    for part in 0..200 {
        // At 200 points in the time that reading takes.
        let (starts, delay) = (Barrier::new(2), whole * part / 200);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                starts.wait();
                let started = Instant::now();
                while started.elapsed() < delay {
                    std::hint::spin_loop();
                }
                writer.set_len(4096).expect("cut");
            });
            starts.wait();
            unreadable += resolve();
        });
        writer.write_all_at(&image, 0).expect("written");
    }
    assert!(unreadable > 0);
    assert!(is_whole(&resolver().resolve(&module(&program.path), &addresses)), "it is whole again");
}

#[test]
fn a_sparse_file_with_a_huge_symbol_table_costs_no_memory() {
    let _alone = alone();
    for (size, unreadable) in [(128 * MIB, 0), (16 << 30, 1)] {
        let program = foreign(&[]);
        let addresses = addresses(&program.path);
        with_large_symbol_table(&program, size);
        let mut resolver = resolver();
        let growth = peak_growth(|| {
            let lines = resolver.resolve(&module(&program.path), &addresses);
            assert!(lines.iter().flatten().all(|line| line.symbol.is_none()), "{lines:?}");
        });
        assert!(growth < 16 * MIB, "{size}: {growth} bytes");
        assert_eq!(resolver.unreadable(), unreadable, "{size}");
    }
}

#[test]
fn debug_information_beside_a_huge_symbol_table_is_not_read() {
    let _alone = alone();
    let program = foreign(&["-g"]);
    let addresses = addresses(&program.path);
    with_large_symbol_table(&program, 1 << 30);
    let mut resolver = resolver();
    let growth = peak_growth(|| drop(resolver.resolve(&module(&program.path), &addresses)));
    assert!(growth < 16 * MIB, "{growth} bytes");
    assert_eq!(resolver.unreadable(), 1);
}

#[test]
fn a_file_with_very_many_symbols_costs_no_memory_and_keeps_its_names() {
    let _alone = alone();
    let program = foreign(&[]);
    let addresses = addresses(&program.path);
    let size = 24 * (2 << 20);
    let file = with_large_symbol_table(&program, size);
    let table_at = file.metadata().expect("metadata").len() - size;
    // Each of them covers all addresses; the last one starts at the first address.
    let name_at = 1u32;
    let symbols: Vec<u8> = (0..size / 24)
        .flat_map(|number| {
            let start = if number == size / 24 - 1 { addresses[0] } else { 1 + number % 16 };
            let [start, len] = [start, 1 << 40].map(u64::to_le_bytes);
            [&name_at.to_le_bytes()[..], &[0x12, 0, 1, 0], &start, &len].concat()
        })
        .collect();
    file.write_all_at(&symbols, table_at).expect("written");
    drop(symbols);
    let mut resolver = resolver();
    let growth = peak_growth(|| {
        let lines = resolver.resolve(&module(&program.path), &addresses);
        let offsets: Vec<_> = lines.iter().map(|lines| lines[0].offset).collect();
        assert_eq!(offsets, (0..16).map(Some).collect::<Vec<_>>(), "{lines:?}");
    });
    assert!(growth < 16 * MIB, "{growth} bytes");
    assert_eq!(resolver.unreadable(), 0);
}

#[test]
fn a_file_of_others_is_read_within_its_time_and_a_protected_one_as_long_as_it_takes() {
    let _alone = alone();
    let program = foreign(&["-g"]);
    let addresses = addresses(&program.path);
    for (mode, unreadable) in [(0o777, 1), (0o755, 0)] {
        std::fs::set_permissions(&program.path, Permissions::from_mode(mode)).expect("changed");
        let none = ReadLimits { per_file: Duration::ZERO, in_all: Duration::ZERO, bytes: u64::MAX };
        let options = ResolverOptions { read_limits: Some(none), ..options() };
        let mut resolver = Resolver::new(options);
        let lines = resolver.resolve(&module(&program.path), &addresses);
        assert_eq!((lines.len(), is_whole(&lines)), (addresses.len(), unreadable == 0));
        assert_eq!(resolver.unreadable(), unreadable);
    }
}

#[test]
fn nothing_is_read_once_reading_is_stopped() {
    let _alone = alone();
    let program = foreign(&["-g"]);
    let (addresses, stop) = (addresses(&program.path), Arc::new(AtomicBool::new(false)));
    let mut resolver = resolver();
    resolver.stop_when(Arc::clone(&stop));
    assert!(is_whole(&resolver.resolve(&module(&program.path), &addresses)));
    stop.store(true, Ordering::Relaxed);
    let lines = resolver.resolve(&module(&program.path), &addresses);
    assert!(lines.iter().flatten().all(|line| line.symbol.is_none()), "{lines:?}");
    assert_eq!(resolver.unreadable(), 1);
}

/// A program of others whose line table has `rows` rows, each one byte in the file.
fn with_line_table(rows: usize) -> Program {
    let program = foreign(&["-g"]);
    let section = program.folder.path().join("lines");
    let dump = format!(".debug_line={}", section.display());
    run(Command::new("objcopy").arg("--dump-section").arg(&dump).arg(&program.path));
    let mut lines = std::fs::read(&section).expect("readable");
    // DWARF 5, 32-bit: the length of the unit, version and sizes in 4 bytes, the length of the header.
    let header = u32::from_le_bytes(lines[8..12].try_into().expect("4 bytes")) as usize;
    lines.truncate(12 + header);
    // DW_LNE_set_address.
    lines.extend([0, 9, 2]);
    lines.extend(addresses(&program.path)[0].to_le_bytes());
    // DW_LNS_copy: a row at this address.
    lines.push(1);
    // The opcode 250 moves on by some bytes of code and some lines, and makes a row.
    lines.resize(lines.len() + rows, 250);
    // DW_LNE_end_sequence.
    lines.extend([0, 1, 1]);
    let unit = (lines.len() - 4) as u32;
    lines[..4].copy_from_slice(&unit.to_le_bytes());
    std::fs::write(&section, lines).expect("written");
    run(Command::new("objcopy").arg("--update-section").arg(&dump).arg(&program.path));
    program
}

#[test]
fn line_table_that_takes_gigabytes_ends_its_reader_only() {
    let _alone = alone();
    for (rows, unreadable) in [(1000, 0), (60_000_000, 1)] {
        let program = with_line_table(rows);
        let mut resolver = resolver();
        let growth = peak_growth(|| {
            let lines = resolver.resolve(&module(&program.path), &addresses(&program.path));
            assert!(
                lines.iter().all(|lines| lines.last().expect("a line").symbol.as_deref() == Some("wanted"))
            );
            let has_lines = lines.iter().flatten().any(|line| line.line.is_some());
            assert_eq!(has_lines, unreadable == 0, "{rows} rows: {lines:?}");
        });
        assert!(growth < 16 * MIB, "{rows} rows: {growth} bytes");
        assert_eq!(resolver.unreadable(), unreadable, "{rows} rows");
    }
}

/// The reader is a line of shell.
fn options_with(script: &str) -> ResolverOptions {
    ResolverOptions { reader: Some(ReaderCommand::new("/bin/sh", &["-c", script])), ..options() }
}

#[test]
fn file_whose_reader_fails_has_names_without_lines() {
    let _alone = alone();
    let program = foreign(&["-g"]);
    for script in ["kill -9 $$", "head -c 1000 /dev/urandom", "true"] {
        let mut resolver = Resolver::new(options_with(script));
        let lines = resolver.resolve(&module(&program.path), &addresses(&program.path));
        let is_named = |lines: &Vec<SymbolLine>| lines[0].symbol.as_deref() == Some("wanted");
        assert!(lines.iter().all(is_named), "{script}: {lines:?}");
        assert!(lines.iter().flatten().all(|line| line.line.is_none()), "{script}: {lines:?}");
        assert_eq!(resolver.unreadable(), 1, "{script}");
    }
    assert!(is_whole(&resolver().resolve(&module(&program.path), &addresses(&program.path))));
}

#[test]
fn file_whose_reader_hangs_is_given_up_at_its_deadline() {
    let _alone = alone();
    let program = foreign(&["-g"]);
    let limits =
        ReadLimits { per_file: Duration::from_millis(100), in_all: Duration::from_secs(1), bytes: 1 << 30 };
    let mut resolver =
        Resolver::new(ResolverOptions { read_limits: Some(limits), ..options_with("exec sleep 1000") });
    let lines = resolver.resolve(&module(&program.path), &addresses(&program.path));
    assert!(lines.iter().flatten().all(|line| line.line.is_none()), "{lines:?}");
    assert_eq!(resolver.unreadable(), 1);
}

#[test]
fn protected_file_starts_no_reader() {
    let _alone = alone();
    let program = compile_c(&["-g"]);
    std::fs::set_permissions(&program.path, Permissions::from_mode(0o755)).expect("changed");
    let mut resolver = Resolver::new(options_with("kill -9 $$"));
    assert!(is_whole(&resolver.resolve(&module(&program.path), &addresses(&program.path))));
    let mut without_reader = Resolver::new(ResolverOptions { reader: None, ..options() });
    assert!(is_whole(&without_reader.resolve(&module(&program.path), &addresses(&program.path))));
    assert_eq!([resolver.unreadable(), without_reader.unreadable()], [0, 0]);
}

#[test]
fn foreign_debug_file_beside_a_protected_program_is_bounded() {
    let _alone = alone();
    let program = compile_c(&["-g", "-Wl,--build-id=sha1"]);
    let addresses = addresses(&program.path);
    let build_id = wallprof_symbols::build_id_of_path(&program.path).expect("a build id");
    let debug = program.folder.path().join("separate.debug");
    run(Command::new("objcopy").arg("--only-keep-debug").args([&program.path, &debug]));
    run(Command::new("strip").arg(&program.path));
    std::fs::set_permissions(&program.path, Permissions::from_mode(0o755)).expect("changed");
    for (mode, unreadable) in [(0o644, 0), (0o666, 1)] {
        std::fs::set_permissions(&debug, Permissions::from_mode(mode)).expect("changed");
        let files = [(build_id.clone(), vec![debug.clone()])].into_iter().collect();
        let options = ResolverOptions { files, ..options_with("kill -9 $$") };
        let mut resolver = Resolver::new(options);
        let module = ModuleFile {
            module: Module { build_id: Some(build_id.clone()), ..module(&program.path).module },
            ..module(&program.path)
        };
        let lines = resolver.resolve(&module, &addresses);
        assert_eq!((is_whole(&lines), resolver.unreadable()), (unreadable == 0, unreadable), "{mode:o}");
    }
}

#[test]
fn reader_has_no_rights_and_cannot_write() {
    let _alone = alone();
    let program = foreign(&["-g"]);
    let mut resolver = resolver();
    assert!(is_whole(&resolver.resolve(&module(&program.path), &addresses(&program.path))));
    let reader = child_named("wallprof-symbol");
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{reader}/{name}")).expect("it runs");
    let (status, limits) = (read("status"), read("limits"));
    let field = |text: &str, name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("a field");
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    for sets in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
        assert_eq!(field(&status, sets), ["0000000000000000"], "{sets}");
    }
    assert_eq!(field(&status, "NoNewPrivs:"), ["1"]);
    assert_ne!(field(&status, "Uid:")[1], "0");
    for (name, limit) in [("Max file size", "0"), ("Max core file size", "0"), ("Max cpu time", "60")] {
        assert_eq!(field(&limits, name)[..2], [limit, limit], "{name}");
    }
    assert_eq!(field(&limits, "Max address space")[0], (512 * MIB).to_string());
    drop(resolver);
}

/// The pid of this process's child with this name.
fn child_named(name: &str) -> String {
    let own = std::process::id();
    let children = std::fs::read_dir("/proc/self/task")
        .expect("tasks")
        .flatten()
        .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let children: String = children.collect();
    let has_name = |pid: &&str| {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.starts_with(name))
    };
    let found = children.split_whitespace().find(has_name);
    found.unwrap_or_else(|| panic!("no child {name} of {own}: {children}")).to_owned()
}
