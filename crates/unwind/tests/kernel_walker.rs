// SPDX-License-Identifier: Apache-2.0
//! The walker that runs in the kernel, compiled for the host, agrees with the reference walker frame by
//! frame, on stacks of random words that look enough like stacks for long walks.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};
use wallprof_model::StackEnd;
use wallprof_unwind::{Code, CodeSpace, Memory, PAGE_STARTS, Registers, Rule, RuleKind, Table, walk};

/// `MAX_FRAMES` of bpf/include/limits.h.
const MAX_FRAMES: usize = 255;
/// `CHUNK_WORDS` and `CHUNK_BITS` of bpf/include/unwind.h.
const CHUNK_WORDS: usize = 1 << 18;
const STACK_START: u64 = 0x7ffd_0000_0000;
const STACK_BYTES: u64 = 16 << 10;
const CASES: usize = 1_500;

/// A file with a table, mapped at some address.
struct Mapped {
    table: Table,
    start: u64,
    end: u64,
    /// ELF virtual address = pc - slide.
    slide: u64,
}

struct Space {
    files: Vec<Mapped>,
    /// Code of whose frames there is too little for random choice: the caller may be on another stack, or the return
    /// address be far from it.
    linked: Vec<u64>,
}

impl CodeSpace for Space {
    fn code_at(&self, pc: u64) -> Code<'_> {
        let mapped = self.files.iter().find(|mapped| (mapped.start..mapped.end).contains(&pc));
        mapped.map_or(Code::Jit, |mapped| Code::Table { table: &mapped.table, address: pc - mapped.slide })
    }
}

struct Case {
    registers: [u64; 6],
    stack: Vec<u8>,
}

impl Memory for &Case {
    fn word(&mut self, address: u64) -> Option<u64> {
        let at = usize::try_from(address.checked_sub(STACK_START)?).ok()?;
        let bytes = self.stack.get(at..at.checked_add(8)?)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }
}

#[test]
fn the_kernels_walker_and_the_reference_agree() {
    let Some(space) = space() else {
        assert!(std::env::var_os("WALLPROF_REQUIRE_BPF").is_none(), "no libc to walk through");
        let test = "the_kernels_walker_and_the_reference_agree";
        return wallprof_testkit::skip(test, "there is no libc.so.6 where Debian has it");
    };
    let cases = cases(&space);
    let kernel = walk_on_host(&space, &cases);
    let mut ends = [0usize; 16];
    let mut deepest = 0;
    for (index, (case, (end, frames))) in cases.iter().zip(&kernel).enumerate() {
        let [ip, sp, fp, bx, r10, link] = case.registers;
        let start = Registers { ip, sp, fp, bx: Some(bx), r10: Some(r10), link: Some(link) };
        let mut expected = Vec::new();
        let mut memory = case;
        let expected_end = walk(start, &mut memory, &space, MAX_FRAMES, &mut expected);
        assert_eq!(
            (StackEnd::from_code(*end as u8), frames),
            (Some(expected_end), &expected),
            "case {index}: registers {:x?}",
            case.registers
        );
        ends[*end as usize] += 1;
        deepest = deepest.max(frames.len());
    }
    // The walks must be long, or agreement would mean nothing.
    assert!(deepest > 15, "the deepest walk had {deepest} frames");
    assert!(ends.iter().filter(|count| **count > 10).count() >= 4, "{ends:?}");
}

/// libc and the dynamic linker, side by side.
fn space() -> Option<Space> {
    let folder = Path::new("/lib/x86_64-linux-gnu");
    let names = ["libc.so.6", "ld-linux-x86-64.so.2"];
    let tables: Option<Vec<Table>> = names.iter().map(|name| table(&folder.join(name))).collect();
    let of_go = go_root().and_then(|root| table(&root.join("bin/gofmt")));
    if of_go.is_none() {
        let test = "the_kernels_walker_and_the_reference_agree";
        wallprof_testkit::excuse(test, "a program of Go", "go is not installed");
    }
    let tables = tables?.into_iter().chain(of_go).chain(interpreter());
    let mut start = 0x7f00_0000_0000u64;
    let place = |table: Table| {
        let len = table.pages().len() as u64 * 65_536;
        let mapped = Mapped { start, end: start + len, slide: start - table.base(), table };
        start += len + (1 << 20);
        mapped
    };
    let files: Vec<Mapped> = tables.map(place).collect();
    let linked = files.iter().flat_map(linked).collect();
    Some(Space { files, linked })
}

/// Code as that of HotSpot's interpreter: the caller's sp is below fp, the return address above it.
fn interpreter() -> Option<Table> {
    let flags = Rule::FP_AT_FP | Rule::RA_AT_FP;
    let rule = Rule { kind: RuleKind::FpDeref, flags, cfa_offset: -8, ra: 1, ..Rule::default() };
    Table::from_rules([(0x10_0000, 0x10_0010, rule)])
}

fn table(path: &Path) -> Option<Table> {
    Table::from_elf(&std::fs::read(path).ok()?).ok()
}

/// The path of Go, if it is installed.
fn go_root() -> Option<PathBuf> {
    let output = Command::new("go").args(["env", "GOROOT"]).output().ok()?;
    Some(PathBuf::from(String::from_utf8(output.stdout).ok()?.trim_end()))
}

fn linked(mapped: &Mapped) -> Vec<u64> {
    let rare = Rule::ANY_STACK | Rule::RA_AT_FP;
    let is_linked = |pc: &u64| mapped.table.rule_at(pc - mapped.slide).flags & rare != 0;
    (mapped.start..mapped.end).filter(is_linked).collect()
}

fn cases(space: &Space) -> Vec<Case> {
    let mut random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    (0..CASES).map(|_| case(&mut random, space)).collect()
}

fn case(random: &mut TestRng, space: &Space) -> Case {
    let on_stack = |random: &mut TestRng| STACK_START + ((random.next_u64() % STACK_BYTES) & !7);
    let code = |random: &mut TestRng| {
        if random.next_u64().is_multiple_of(16) && !space.linked.is_empty() {
            return space.linked[random.next_u64() as usize % space.linked.len()];
        }
        // The last one has rare code alone.
        let mapped = &space.files[random.next_u64() as usize % (space.files.len() - 1)];
        // Most code has rows. Code without rows is still met often enough.
        for _ in 0..8 {
            let pc = mapped.start + random.next_u64() % (mapped.end - mapped.start);
            if mapped.table.rule_at(pc - mapped.slide).kind != RuleKind::Uncovered {
                return pc;
            }
        }
        mapped.start
    };
    // Some stacks are walked far, some end soon.
    let clean = [64, 32, 6, 2][random.next_u64() as usize % 4];
    let word = |random: &mut TestRng| match random.next_u64() % (clean + 4) {
        0 => random.next_u64(),
        1 => random.next_u64() % 3,
        2 | 3 => on_stack(random),
        _ => code(random),
    };
    let mut stack = Vec::new();
    for _ in 0..STACK_BYTES / 8 {
        stack.extend(word(random).to_le_bytes());
    }
    let low = STACK_START + ((random.next_u64() % 1024) & !7);
    let kept = [on_stack(random), on_stack(random), on_stack(random)];
    let registers = [code(random), low, kept[0], kept[1], kept[2], code(random)];
    Case { registers, stack }
}

/// The input: rules, chunks, the address of the list of mappings, cases. All counts have 64 bits.
fn walk_on_host(space: &Space, cases: &[Case]) -> Vec<(u64, Vec<u64>)> {
    let mut input = arena_bytes(space);
    input.extend((cases.len() as u64).to_le_bytes());
    for case in cases {
        case.registers.iter().for_each(|register| input.extend(register.to_le_bytes()));
        input.extend(STACK_START.to_le_bytes());
        input.extend((case.stack.len() as u64).to_le_bytes());
        input.extend(&case.stack);
    }
    let program = compiled();
    let mut child = Command::new(&program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the compiled walker starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let mut output = Vec::new();
    child.stdout.take().expect("a pipe").read_to_end(&mut output).expect("its frames");
    writer.join().expect("no panic").expect("it reads all cases");
    assert!(child.wait().expect("it ends").success());
    let mut words =
        output.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
    cases
        .iter()
        .map(|_| {
            let (end, depth) = (words.next().expect("an end"), words.next().expect("a depth"));
            (end, words.by_ref().take(depth as usize).collect())
        })
        .collect()
}

fn compiled() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernel_walker");
    let done = Command::new("clang-19")
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-I"])
        .arg(root.join("../../bpf"))
        .arg(root.join("tests/kernel_walker/host.c"))
        .arg("-o")
        .arg(&program)
        .status()
        .expect("clang-19, which bpf/ is built with");
    assert!(done.success(), "the walker compiles for the host");
    program
}

/// Everything in the layout of bpf/include/unwind.h: pages, directories, the list of mappings.
fn arena_bytes(space: &Space) -> Vec<u8> {
    let mut rules: Vec<Rule> = vec![Rule::UNCOVERED];
    let mut arena: Vec<u32> = vec![0; 8];
    let mut list = Vec::new();
    for mapped in &space.files {
        let first = rules.len() as u32;
        rules.extend(mapped.table.rules());
        let positions: Vec<u32> = mapped
            .table
            .pages()
            .map(|page| page.map_or(0, |page| store_page(&mut arena, page, first)))
            .collect();
        let directory = store(&mut arena, &positions);
        let halves = |value: u64| [value as u32, (value >> 32) as u32];
        let bias = mapped.slide + mapped.table.base();
        list.extend([mapped.start, mapped.end - mapped.start, bias].into_iter().flat_map(halves));
        list.extend([directory, positions.len() as u32]);
    }
    let position = store(&mut arena, &list);
    arena.resize(arena.len().next_multiple_of(CHUNK_WORDS), 0);
    let mut bytes = (rules.len() as u64).to_le_bytes().to_vec();
    rules.iter().for_each(|rule| bytes.extend(rule.to_bytes()));
    bytes.extend(((arena.len() / CHUNK_WORDS) as u64).to_le_bytes());
    arena.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    bytes.extend(u64::from(position).to_le_bytes());
    bytes.extend((space.files.len() as u64).to_le_bytes());
    bytes
}

/// Rule 0 is the same in all tables. The others follow those of the earlier tables.
fn store_page(arena: &mut Vec<u32>, page: &[u32], first: u32) -> u32 {
    let mut words = page.to_vec();
    for row in words.iter_mut().skip(PAGE_STARTS) {
        let rule = *row >> 8;
        *row = ((if rule == 0 { 0 } else { first + rule }) << 8) | (*row & 0xff);
    }
    store(arena, &words)
}

fn store(arena: &mut Vec<u32>, words: &[u32]) -> u32 {
    arena.resize(arena.len().next_multiple_of(8), 0);
    if arena.len() / CHUNK_WORDS != (arena.len() + words.len() - 1) / CHUNK_WORDS {
        arena.resize(arena.len().next_multiple_of(CHUNK_WORDS), 0);
    }
    let position = arena.len() as u32;
    arena.extend(words);
    position
}
