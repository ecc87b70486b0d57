// SPDX-License-Identifier: Apache-2.0
//! Lines as `perf script` prints them for a trace, generated from its grammar: several threads, CPUs and
//! files, calls and returns that match or do not, errors and switches. Some fields are wrong.
//!
//! The target `script` takes any bytes, most of which are refused before the calls are matched. Here nearly
//! every line is a branch.
#![no_main]

mod settled;

use std::fmt::Write;
use std::path::PathBuf;

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use settled::Settled;
use wallprof_import::import_scripts;

const COMMS: [&str; 7] = ["", "server", "a b", ":0", "x 1.5:", "7/7 [001] 3.0:", "\u{202e}evil\u{1b}[31m"];
const FLAGS: [&str; 20] = [
    "call",
    "call",
    "call",
    "return",
    "return",
    "return",
    "jcc",
    "jmp",
    "syscall",
    "sysret",
    "int",
    "iret",
    "hw int",
    "async",
    "tx abrt",
    "vmentry",
    "vmexit",
    "tr strt",
    "tr end  syscall",
    "tr end  async (x)",
];
const SYMBOLS: [&str; 8] = [
    "main",
    "work",
    "operator=>",
    "a+0x1",
    "std::map<int, a b>::at(int) const",
    "[unknown]",
    "",
    "A::{{closure}}",
];
const MODULES: [&str; 5] =
    ["", " (/usr/bin/a)", " (/usr/lib/a b.so (deleted))", " ([unknown])", " ([kernel.kallsyms])"];
/// Values that replace the right one in some fields.
const WRONG: [&str; 6] = ["", "-1", "99999999999999999999", "zz", "0x", "\u{0}"];
const FUNCTIONS: u64 = 12;
const FUNCTION_BYTES: u64 = 0x100;
const KERNEL: u64 = 0xffff_ffff_8000_0000;

fuzz_target!(|bytes: &[u8]| {
    let mut input = Unstructured::new(bytes);
    let Ok(texts) = texts(&mut input) else { return };
    let paths: Vec<PathBuf> = texts
        .iter()
        .enumerate()
        .map(|(number, text)| {
            let path = PathBuf::from(format!("/dev/shm/wallprof-lines-{}-{number}", std::process::id()));
            std::fs::write(&path, text).expect("a file in memory");
            path
        })
        .collect();
    let _ = import_scripts(&paths, &mut Settled::default());
    for path in paths {
        let _ = std::fs::remove_file(path);
    }
});

/// One text, or one for each of two CPUs.
fn texts(input: &mut Unstructured<'_>) -> Result<Vec<String>> {
    let mut texts = vec![String::new(); input.int_in_range(1..=2)?];
    let mut ns = 5_000_000_000u64;
    while !input.is_empty() {
        let forward = [0, 1, 100, 1 << 20][input.choose_index(4)?];
        // perf prints the samples of a CPU in order, and those of several in parts.
        ns = if input.ratio(1, 40)? { ns.saturating_sub(forward) } else { ns + forward };
        let text = input.choose_index(texts.len())?;
        let line = line(input, ns)?;
        texts[text].push_str(&line);
        texts[text].push('\n');
    }
    Ok(texts)
}

fn line(input: &mut Unstructured<'_>, ns: u64) -> Result<String> {
    let tid: u8 = input.int_in_range(1..=4)?;
    if input.ratio(1, 30)? {
        let code: u8 = input.int_in_range(0..=12)?;
        let time = time(ns, 9);
        return Ok(format!(
            " instruction trace error type 1 time {time} cpu -1 pid {tid} tid {tid} ip 0 code {code}: lost"
        ));
    }
    let head = head(input, tid, ns)?;
    if input.ratio(1, 20)? {
        let kind = ["OUT", "OUT preempt", "IN", "_CPU_WIDE OUT preempt  next pid/tid:  0/0"];
        return Ok(format!(
            "{head} PERF_RECORD_SWITCH{}{}",
            if input.arbitrary()? { " " } else { "" },
            input.choose(&kind)?
        ));
    }
    let event = *input.choose(&["", "  1 ", " 1   branches:uH: ", " branches: "])?;
    let flags = if input.ratio(1, 30)? { "" } else { input.choose(&FLAGS)? };
    let (from, to) = (place(input)?, place(input)?);
    let cost = if input.ratio(1, 8)? { "\t IPC: 0.34 (10/29) " } else { "" };
    if input.ratio(1, 40)? {
        return Ok(format!("{head}{event}  {flags}  {from}"));
    }
    Ok(format!("{head}{event}  {flags}  {from} => {to}{cost}"))
}

fn head(input: &mut Unstructured<'_>, tid: u8, ns: u64) -> Result<String> {
    let mut head = String::new();
    let comm = input.choose(&COMMS)?;
    let digits = if input.ratio(1, 20)? { 6 } else { 9 };
    let time = if input.ratio(1, 60)? { (*input.choose(&WRONG)?).to_owned() } else { time(ns, digits) };
    let _ = match input.choose_index(3)? {
        0 => write!(head, "{comm} {tid}"),
        1 => write!(head, "{comm} {}/{tid}", tid / 2),
        _ => write!(head, "{comm} {tid}/{tid} [{:03}]", tid % 2),
    };
    let _ = write!(head, " {time}:");
    Ok(head)
}

fn time(ns: u64, digits: usize) -> String {
    let (seconds, ns) = (ns / 1_000_000_000, format!("{:09}", ns % 1_000_000_000));
    format!("{seconds}.{}", &ns[..digits])
}

/// `ADDRESS SYMBOL+OFFSET (MODULE)`. There are few functions, so that returns match their calls.
fn place(input: &mut Unstructured<'_>) -> Result<String> {
    if input.ratio(1, 60)? {
        return Ok(format!("{} main+0x1", input.choose(&WRONG)?));
    }
    let function = input.int_in_range(0..=FUNCTIONS - 1)?;
    let offset = *input.choose(&[0, 0, 1, 4, 9, 15, 16, FUNCTION_BYTES - 1])?;
    let base = if input.ratio(1, 6)? { KERNEL } else { 0x40_0000 };
    let address = base + function * FUNCTION_BYTES + offset;
    let symbol = SYMBOLS[function as usize % SYMBOLS.len()];
    let module = input.choose(&MODULES)?;
    Ok(match symbol {
        "" => format!("{address:x}{module}"),
        "[unknown]" => format!("{address:x} [unknown]{module}"),
        symbol => format!("{address:x} {symbol}+{offset:#x}{module}"),
    })
}
