// SPDX-License-Identifier: Apache-2.0
//! Walks through the stacks of a program that waits at difficult places find the frames that libgcc's
//! unwinder finds.

use object::{Object, ObjectSegment, ObjectSymbol, SymbolKind};
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use wallprof_model::StackEnd;
use wallprof_unwind::{Code, CodeSpace, Memory, Registers, Rule, RuleKind, Table, walk};

/// The places at which the program waits.
const PLACES: [&str; 10] = [
    "recursion",
    "qsort",
    "alloca",
    "realigned",
    "realigned_with_alloca",
    "signal",
    "fault",
    "signal_on_another_stack",
    "coroutine",
    "thread",
];

#[test]
fn optimised_without_frame_pointers() {
    compare("optimised", &["-O2", "-fomit-frame-pointer"]);
}

#[test]
fn with_frame_pointers() {
    compare("framed", &["-O1", "-fno-omit-frame-pointer"]);
}

#[test]
fn with_every_function_realigned() {
    compare("realigned", &["-O2", "-fomit-frame-pointer", "-mstackrealign"]);
}

#[test]
fn linked_statically() {
    compare("static", &["-O2", "-fomit-frame-pointer", "-static"]);
}

/// The vDSO is in no file. Its image in memory has the layout of a file.
#[test]
fn the_vdso_by_its_image_in_memory() {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("readable");
    let Some(line) = maps.lines().find(|line| line.ends_with("[vdso]")) else {
        return wallprof_testkit::skip("the_vdso_by_its_image_in_memory", "this kernel maps no vDSO");
    };
    let (start, rest) = line.split_once('-').expect("a range");
    let number = |text| u64::from_str_radix(text, 16).expect("hexadecimal");
    let (start, end) = (number(start), number(rest.split(' ').next().expect("its end")));
    let mut image = vec![0; (end - start) as usize];
    let memory = std::fs::File::open("/proc/self/mem").expect("this process's memory");
    memory.read_exact_at(&mut image, start).expect("the vDSO is readable");
    let table = Table::from_elf(&image).expect("the vDSO has unwind entries");
    let file = object::File::parse(&*image).expect("an ELF file");
    let symbols: Vec<_> = file.dynamic_symbols().filter(|symbol| symbol.kind() == SymbolKind::Text).collect();
    assert!(!symbols.is_empty());
    for symbol in symbols {
        let rule = table.rule_at(symbol.address());
        assert_eq!((rule.kind, rule.cfa_offset, rule.ra), (RuleKind::Sp, 8, -1), "{symbol:?}");
    }
}

fn compare(name: &str, flags: &[&str]) {
    let output = Command::new(compiled(name, flags)).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let Output { stops, code } = Output::read(&String::from_utf8(output.stdout).expect("text"));
    let places: Vec<&str> = stops.iter().map(|stop| stop.place.as_str()).collect();
    assert_eq!(places, PLACES);
    for mut stop in stops {
        let mut frames = Vec::new();
        let end = walk(stop.registers, &mut stop.memory, &code, 128, &mut frames);
        // The first frame is capture() itself, at two of its instructions.
        let (found, expected) = (&frames[1..], stop.expected(&code));
        // Coroutines of makecontext() return to a function's first byte, which nothing marks as an end.
        // libgcc stops there because it has no entry, and walks may continue by frame pointer.
        if stop.place == "coroutine" {
            assert_eq!(found[..expected.len()], expected, "{name}: {end:?}");
            continue;
        }
        assert_eq!(found, expected, "{name}, {}: {end:?}", stop.place);
        assert_eq!(end, StackEnd::Complete, "{name}, {}", stop.place);
    }
}

fn compiled(name: &str, flags: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/real_stacks/program.c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("real_stacks-{name}"));
    let status = Command::new("gcc")
        .args(flags)
        .args(["-Wall", "-Werror", "-pthread", "-o"])
        .arg(&program)
        .arg(source)
        .status();
    assert!(
        status.is_ok_and(|status| status.success()),
        "gcc, which the recording's SQLite is built with, compiles it"
    );
    program
}

/// The output of the program.
struct Output {
    stops: Vec<Stop>,
    code: Mapped,
}

struct Stop {
    place: String,
    registers: Registers,
    backtrace: Vec<u64>,
    memory: Words,
}

#[derive(Default)]
struct Words(BTreeMap<u64, u64>);

impl Memory for Words {
    fn word(&mut self, address: u64) -> Option<u64> {
        self.0.get(&address).copied()
    }
}

impl Output {
    fn read(text: &str) -> Output {
        let mut output = Output { stops: vec![], code: Mapped::default() };
        for line in text.lines() {
            let (kind, rest) = line.split_once(' ').expect("a kind and what it says");
            let mut words = rest.split(' ').map_while(|word| u64::from_str_radix(word, 16).ok());
            let stop = output.stops.last_mut();
            match (kind, stop) {
                ("place", _) => output.stops.push(Stop::new(rest)),
                ("map", _) => output.code.add(rest),
                ("registers", Some(stop)) => {
                    let [ip, sp, fp, bx, r10] =
                        std::array::from_fn(|_| words.next().expect("five registers"));
                    stop.registers = Registers { ip, sp, fp, bx: Some(bx), r10: Some(r10), link: None };
                }
                ("backtrace", Some(stop)) => stop.backtrace = words.collect(),
                ("memory", Some(stop)) => {
                    let start = words.next().expect("an address");
                    stop.memory.0.extend((start..).step_by(8).zip(words));
                }
                _ => panic!("{line}"),
            }
        }
        output
    }
}

impl Stop {
    fn new(place: &str) -> Stop {
        let (registers, memory) = (Registers::default(), Words::default());
        Stop { place: place.to_owned(), registers, backtrace: vec![], memory }
    }

    /// libgcc gives the exact addresses of the trampoline and of the interrupted frame. Walks give one past
    /// these.
    fn expected(&self, code: &Mapped) -> Vec<u64> {
        let mut interrupted = false;
        let mut expected = Vec::new();
        for &address in &self.backtrace[1..] {
            let trampoline = code.rule_at(address - 1) == Rule::SIGNAL;
            expected.push(address + u64::from(trampoline || interrupted));
            interrupted = trampoline;
        }
        expected
    }
}

/// Executable mappings: `(start, end, slide, table)`, the virtual address being `pc - slide`.
#[derive(Default)]
struct Mapped(Vec<(u64, u64, u64, Table)>);

impl CodeSpace for Mapped {
    fn code_at(&self, pc: u64) -> Code<'_> {
        let mapping = self.0.iter().find(|(start, end, ..)| (*start..*end).contains(&pc));
        mapping
            .map_or(Code::Jit, |(_, _, slide, table)| Code::Table { table, address: pc.wrapping_sub(*slide) })
    }
}

impl Mapped {
    fn rule_at(&self, pc: u64) -> Rule {
        match self.code_at(pc) {
            Code::Table { table, address } => table.rule_at(address),
            other => panic!("{other:?} at {pc:#x}"),
        }
    }

    /// A line of `/proc/PID/maps`.
    fn add(&mut self, line: &str) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let &[range, "r-xp", offset, _, _, path] = &fields[..] else { return };
        let Ok(image) = std::fs::read(path) else { return };
        let number = |text| u64::from_str_radix(text, 16).expect("hexadecimal");
        let (start, end) = range.split_once('-').expect("a range");
        let (start, end, offset) = (number(start), number(end), number(offset));
        let file = object::File::parse(&*image).expect("an ELF file");
        let holds = |segment: &object::Segment| {
            let (from, len) = segment.file_range();
            (from & !4095..from + len).contains(&offset)
        };
        let segment = file.segments().find(holds).expect("what is mapped is a segment");
        let address = segment.address() - segment.file_range().0 + offset;
        self.0.push((start, end, start.wrapping_sub(address), Table::from_elf(&image).expect("a table")));
    }
}
