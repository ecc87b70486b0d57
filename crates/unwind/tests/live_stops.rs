// SPDX-License-Identifier: Apache-2.0
//! Programs are stopped at arbitrary instructions, and the walker's frames must be gdb's, each one and in
//! order.
//!
//! gdb (live_stops/stops.py) writes registers, stack and call chain of each stop. It reads the same unwind
//! information with its own reader, so that agreement shows the compiler's intent. For Go programs it uses
//! their debug information, and the walker `.gopclntab`.
//!
//! WALLPROF_STOPS sets the total number of stops.

use std::collections::{BTreeMap, HashMap};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;
use wallprof_model::StackEnd;
use wallprof_unwind::{Code, CodeSpace, Memory, Registers, Table, walk};

const STOPS: usize = 200;
const MAX_FRAMES: usize = 250;
const PAGE: u64 = 4096;
/// Go's functions at the base of a stack. Beyond them is another stack, or the thread's start. gdb ends
/// there, too, or reads on at random.
const BASES: [&str; 4] = ["runtime.mstart", "runtime.mcall", "runtime.systemstack", "runtime.morestack"];
/// Go's signal handler inserts a call of this between two instructions. Its return address follows no call,
/// so that the rule before it need not be the rule at it.
const INJECTED: &str = "runtime.asyncPreempt";
/// Where libgcc's functions that raise an exception install the handler's context: the new stack pointer, then
/// its return address, are in rcx (mov %rcx,%rsp; pop %rcx; jmp *%rcx), and no rule has that register.
const INSTALLS_CONTEXT: [u8; 6] = [0x48, 0x89, 0xcc, 0x59, 0xff, 0xe1];

// --- the output of gdb ---

#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Maps { maps: String },
    Vdso { vdso: String },
    Stop(Stop),
}

#[derive(Deserialize)]
struct Stop {
    registers: HashMap<String, u64>,
    thread: u32,
    /// pc, kind, function
    frames: Vec<(u64, String, String)>,
    outermost: bool,
    stack: Vec<(u64, String)>,
}

impl Stop {
    fn start(&self) -> Registers {
        let register = |name: &str| self.registers[name];
        Registers {
            ip: register("rip"),
            sp: register("rsp"),
            fp: register("rbp"),
            bx: Some(register("rbx")),
            r10: Some(register("r10")),
            link: Some(register("rdi")),
        }
    }

    /// gdb's frames in the walker's form: the interrupted frame and its trampoline are one past their pc.
    fn entries(&self) -> Vec<u64> {
        let is_signal = |index: usize| self.frames.get(index).is_some_and(|(_, kind, _)| kind == "signal");
        let entry = |(index, (pc, ..)): (usize, &(u64, String, String))| {
            let exact = is_signal(index) || (index > 0 && is_signal(index - 1));
            pc + u64::from(exact)
        };
        self.frames.iter().enumerate().map(entry).collect()
    }

    /// Frames of a Go program beyond the first `same` ones cannot be known.
    fn is_out_of_reach(&self, same: usize) -> bool {
        let is_one_of = |from_last: usize, names: &[&str]| {
            let frame = same.checked_sub(from_last).and_then(|index| self.frames.get(index));
            frame.is_some_and(|(_, _, name)| names.contains(&name.as_str()))
        };
        is_one_of(1, &BASES) || is_one_of(2, &[INJECTED])
    }
}

// --- the state of the program ---

/// The pages of a stack.
struct Pages(HashMap<u64, Vec<u8>>);

impl Memory for Pages {
    fn word(&mut self, address: u64) -> Option<u64> {
        let mut word = [0; 8];
        for (at, byte) in (address..).zip(&mut word) {
            *byte = *self.0.get(&(at & !(PAGE - 1)))?.get((at % PAGE) as usize)?;
        }
        Some(u64::from_le_bytes(word))
    }
}

/// A file's table, and the addresses of its file offsets.
struct Image {
    bytes: Vec<u8>,
    table: Option<Table>,
    /// (file offset, bytes in the file, address)
    segments: Vec<(u64, u64, u64)>,
}

impl Image {
    fn read(bytes: Vec<u8>) -> Self {
        Image { table: Table::from_elf(&bytes).ok(), segments: load_segments(&bytes), bytes }
    }

    fn address(&self, file_offset: u64) -> Option<u64> {
        let holds = |&&(offset, size, _): &&(u64, u64, u64)| (offset..offset + size).contains(&file_offset);
        self.segments.iter().find(holds).map(|(offset, _, address)| file_offset - offset + address)
    }
}

/// PT_LOAD of a 64-bit ELF file.
fn load_segments(bytes: &[u8]) -> Vec<(u64, u64, u64)> {
    let word =
        |at: usize| bytes.get(at..at + 8).map_or(0, |word| u64::from_le_bytes(word.try_into().unwrap()));
    let (start, count) = (word(32) as usize, (word(56) & 0xffff) as usize);
    let headers = (0..count).map(|index| start + index * 56).filter(|&at| word(at) as u32 == 1);
    headers.map(|at| (word(at + 8), word(at + 32), word(at + 16))).collect()
}

struct Mapping {
    start: u64,
    end: u64,
    file_offset: u64,
    path: String,
}

#[derive(Default)]
struct Program {
    mappings: Vec<Mapping>,
    images: BTreeMap<String, Image>,
}

impl Program {
    fn map(&mut self, maps: &str) {
        self.mappings = maps.lines().filter_map(executable_mapping).collect();
        for mapping in &self.mappings {
            if mapping.path.starts_with('/') && !self.images.contains_key(&mapping.path) {
                let bytes = std::fs::read(&mapping.path).expect("a mapped file");
                self.images.insert(mapping.path.clone(), Image::read(bytes));
            }
        }
    }

    fn mapping(&self, pc: u64) -> Option<&Mapping> {
        self.mappings.iter().find(|mapping| (mapping.start..mapping.end).contains(&pc))
    }

    /// Whether the thread was stopped where rcx has a part of the context that the function installs.
    fn installs_context(&self, pc: u64) -> bool {
        let installs = |mapping: &Mapping| {
            let rest = self
                .images
                .get(&mapping.path)?
                .bytes
                .get((pc - mapping.start + mapping.file_offset) as usize..)?;
            Some([0, 4].iter().any(|&at| rest.starts_with(&INSTALLS_CONTEXT[at..])))
        };
        self.mapping(pc).and_then(installs).unwrap_or_default()
    }

    fn describe(&self, entry: u64) -> String {
        let place = self.mapping(entry.wrapping_sub(1)).map(|mapping| {
            let offset = entry - 1 - mapping.start + mapping.file_offset;
            let address = self.images.get(&mapping.path).and_then(|image| image.address(offset));
            format!("{}+{:#x}", mapping.path.rsplit('/').next().unwrap_or(""), address.unwrap_or(offset))
        });
        place.unwrap_or_else(|| format!("{entry:#x}"))
    }
}

impl CodeSpace for Program {
    fn code_at(&self, pc: u64) -> Code<'_> {
        let Some(mapping) = self.mapping(pc) else { return Code::Jit };
        let Some(image) = self.images.get(&mapping.path) else { return Code::Jit };
        let address = image.address(pc - mapping.start + mapping.file_offset);
        match (&image.table, address) {
            (Some(table), Some(address)) => Code::Table { table, address },
            _ => Code::NoTable,
        }
    }
}

fn executable_mapping(line: &str) -> Option<Mapping> {
    let mut fields = line.split_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    fields.next().filter(|permissions| permissions.contains('x'))?;
    let file_offset = u64::from_str_radix(fields.next()?, 16).ok()?;
    let path = fields.nth(2).unwrap_or_default().to_owned();
    let bound = |text| u64::from_str_radix(text, 16).ok();
    Some(Mapping { start: bound(start)?, end: bound(end)?, file_offset, path })
}

fn bytes_from_hex(text: &str) -> Vec<u8> {
    let digit = |byte: u8| (byte as char).to_digit(16).expect("hexadecimal") as u8;
    text.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

// --- the comparison ---

#[derive(Default)]
struct Verdicts {
    whole: usize,
    /// The end of the known part of a Go program's stacks, and the jump to an exception's handler.
    out_of_reach: usize,
    /// gdb made an error, and its frames before it are the same.
    gdb_gave_up: usize,
    frames: usize,
    different: Vec<String>,
}

impl Verdicts {
    fn judge(&mut self, program: &Program, stop: &Stop) {
        let pages = stop.stack.iter().map(|(page, hex)| (*page, bytes_from_hex(hex))).collect();
        let mut own = Vec::new();
        let end = walk(stop.start(), &mut Pages(pages), program, MAX_FRAMES, &mut own);
        let other = stop.entries();
        let same = own.iter().zip(&other).take_while(|(own, other)| own == other).count();
        // Beyond the entry point, and after a wrong step, gdb reads on but finds no code.
        let is_code = |entry: &u64| program.mapping(*entry).is_some();
        let gdb_lost = other.iter().position(|entry| !is_code(entry)).unwrap_or(other.len());
        // A thread that Go has just cloned has 0 on its new stack in the place of a return address.
        let has_no_caller = same == own.len() && other.get(same) == Some(&0);
        let is_between_contexts = (same, own.len(), end) == (1, 1, StackEnd::Unsupported)
            && program.installs_context(stop.registers["rip"]);
        self.frames += same;
        if same == own.len() && end == StackEnd::Complete && same >= gdb_lost {
            self.whole += 1;
        } else if same > gdb_lost
            // It does not have the unwind entries of a library that the dynamic linker has not announced yet.
            || (same == gdb_lost && end == StackEnd::Complete)
            || (same == other.len() && !stop.outermost)
        {
            self.gdb_gave_up += 1;
        } else if stop.is_out_of_reach(same) || has_no_caller || is_between_contexts {
            self.out_of_reach += 1;
        } else {
            self.different.push(difference(program, stop, end, &own, &other, same));
        }
    }
}

fn difference(
    program: &Program,
    stop: &Stop,
    end: StackEnd,
    own: &[u64],
    other: &[u64],
    same: usize,
) -> String {
    let list = |entries: &[u64]| {
        let from = same.saturating_sub(2).min(entries.len());
        let shown = entries[from..].iter().take(6).map(|entry| program.describe(*entry));
        shown.collect::<Vec<_>>().join(" < ")
    };
    format!(
        "thread {}: {same} same of {} and gdb's {} ({end:?}): {} | gdb: {}",
        stop.thread,
        own.len(),
        other.len(),
        list(own),
        list(other)
    )
}

fn judge_output(path: &Path) -> Verdicts {
    let text = std::fs::read_to_string(path).expect("gdb's output");
    let (mut program, mut verdicts) = (Program::default(), Verdicts::default());
    for line in text.lines() {
        match serde_json::from_str(line).expect("a line of gdb's") {
            Line::Maps { maps } => program.map(&maps),
            Line::Vdso { vdso } => {
                program.images.insert("[vdso]".into(), Image::read(bytes_from_hex(&vdso)));
            }
            Line::Stop(stop) => verdicts.judge(&program, &stop),
        }
    }
    verdicts
}

// --- programs ---

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/live_stops")
}

/// Runs a build. `None` if its compiler is not installed.
fn build(command: &mut Command) -> Option<()> {
    match command.output() {
        Ok(output) => {
            assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
            Some(())
        }
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => panic!("{command:?}: {error}"),
    }
}

/// The command line of the scenario, whose functions call each other without frame pointers.
fn scenario(name: &str) -> Vec<String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("scenarios");
    let makefile = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    build(Command::new("make").args(["-s", "-C"]).arg(makefile).arg(format!("OUT={}", folder.display())))
        .expect("make is installed");
    vec![folder.join(name).display().to_string(), "-d".into(), "10000".into()]
}

fn compiled(name: &str, command: &mut Command, output_flag: &str) -> Option<Vec<String>> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("live_stops");
    std::fs::create_dir_all(&folder).expect("a folder");
    let program = folder.join(name);
    build(command.arg(output_flag).arg(&program).arg(sources().join(format!("program.{name}"))))?;
    Some(vec![program.display().to_string()])
}

/// Stops the program `count` times. `None` if gdb is not installed.
fn stops_of(program: &[String], count: usize) -> Option<Verdicts> {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let output = folder.path().join("stops.json");
    let mut gdb = Command::new("gdb");
    gdb.args(["-batch", "-nx", "-x"])
        .arg(sources().join("stops.py"))
        .env("STOPS_PROGRAM", serde_json::to_string(program).expect("text"))
        .env("STOPS_COUNT", count.to_string())
        .env("STOPS_OUTPUT", &output)
        .env("GOMAXPROCS", "2");
    build(&mut gdb)?;
    Some(judge_output(&output))
}

fn stops_in_all() -> usize {
    std::env::var("WALLPROF_STOPS").ok().and_then(|text| text.parse().ok()).unwrap_or(STOPS)
}

fn compare(test: &str, name: &str, program: Option<Vec<String>>, share: usize) {
    let Some(program) = program else {
        return wallprof_testkit::skip(test, "the compiler of its program is not installed");
    };
    let wanted = stops_in_all() * share / 100;
    let Some(verdicts) = stops_of(&program, wanted) else {
        return wallprof_testkit::skip(test, "gdb is not installed");
    };
    let Verdicts { whole, out_of_reach, gdb_gave_up, frames, different } = verdicts;
    eprintln!(
        "{name}: {whole} whole, {out_of_reach} as far as possible, {gdb_gave_up} farther than gdb, {frames} frames"
    );
    assert!(different.is_empty(), "{name}: {different:#?}");
    assert!(whole + out_of_reach + gdb_gave_up == wanted, "{name}: {whole} of {wanted} stops");
    assert!(gdb_gave_up * 20 <= wanted, "gdb gave up {gdb_gave_up} times of {wanted}");
}

#[test]
fn sixty_functions() {
    compare("sixty_functions", "chain", Some(scenario("chain")), 15);
}

#[test]
fn odd_frames_and_signal_handlers() {
    compare("odd_frames_and_signal_handlers", "shapes", Some(scenario("shapes")), 20);
}

#[test]
fn libraries_that_come_and_go() {
    compare("libraries_that_come_and_go", "loader", Some(scenario("loader")), 15);
}

#[test]
fn a_cxx_program() {
    compare("a_cxx_program", "cc", compiled("cc", Command::new("g++").args(["-O2", "-g"]), "-o"), 20);
}

#[test]
fn a_rust_program() {
    let mut rustc = Command::new("rustc");
    rustc.args(["--edition", "2024", "--crate-name", "program", "-O", "-g"]);
    compare("a_rust_program", "rs", compiled("rs", &mut rustc, "-o"), 15);
}

#[test]
fn a_go_program() {
    compare("a_go_program", "go", compiled("go", Command::new("go").arg("build"), "-o"), 15);
}
