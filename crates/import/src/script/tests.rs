// SPDX-License-Identifier: Apache-2.0
//! The calls in texts, however the texts are divided, and in texts of real processors.

use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::process::Command;

use proptest::prelude::*;
use wallprof_intel_pt::replay::{CallTree, Frame, PathId};

use super::merge::{Merger, Thread};
use super::names::{LocalNames, Named, Names};
use super::piece::parse_block;
use super::read::{Script, read};

/// Text as perf prints it, from `TID NS FLAGS FROM TO [CPU]`, with `symbol+offset` for places and `-` for
/// none. The function `a` is at 0xa000; kernel functions have capital letters.
fn text(lines: &str) -> String {
    lines.trim().lines().map(|line| perf_line(line.trim()) + "\n").collect()
}

fn perf_line(line: &str) -> String {
    let [tid, ns, rest] = line.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
    let (cpu, rest) = match rest.split_once('@') {
        Some((rest, cpu)) => (format!("[{:03}] ", cpu.parse::<u32>().unwrap()), rest.trim_end()),
        None => (String::new(), rest),
    };
    let ns: u64 = ns.parse().unwrap();
    if let Some(code) = rest.strip_prefix("error ") {
        return format!(
            " instruction trace error type 1 time 0.{ns:09} cpu -1 pid 1 tid {tid} ip 0 code {code}: x"
        );
    }
    let head = format!("{tid}/{tid} {cpu}7.{ns:09}: ");
    if rest.starts_with("PERF") {
        return head + rest;
    }
    let (rest, to) = rest.rsplit_once(' ').unwrap();
    let (flags, from) = rest.rsplit_once(' ').unwrap();
    format!("{head}  {flags}   {} => {}", perf_place(from), perf_place(to))
}

fn perf_place(place: &str) -> String {
    if place == "-" {
        return "0 [unknown]".to_owned();
    }
    let (symbol, offset) = place.split_once('+').unwrap_or((place, "0"));
    let offset: u64 = offset.parse().unwrap();
    let letter = symbol.as_bytes()[0];
    let kernel = if letter.is_ascii_uppercase() { 0xffff_ffff_8000_0000 } else { 0u64 };
    let entry = (u64::from(letter.to_ascii_lowercase() - b'a' + 10) << 12) | kernel;
    format!("{:x} {symbol}+{offset:#x}", entry + offset)
}

fn script(texts: &[&str]) -> Script {
    let texts = texts.iter().map(|text| Box::new(Cursor::new(text.as_bytes().to_vec())) as super::Text<'_>);
    read(texts.collect(), &mut |_| {}).unwrap()
}

/// All paths of all threads: `tid a;b calls(incomplete) self`.
fn paths(texts: &[&str]) -> Vec<String> {
    let script = script(texts);
    listed(&script.threads, &script.functions)
}

fn listed(threads: &[Thread], functions: &[Named]) -> Vec<String> {
    let mut listed = Vec::new();
    for thread in threads {
        assert_complete(thread);
        let tree = &thread.calls.tree;
        for path in tree.paths(CallTree::ROOT).into_iter().skip(1) {
            let numbers = tree.numbers(path);
            let mark = if numbers.unwound > 0 { " unwound" } else { "" };
            listed.push(format!(
                "{} {} {}({}){mark} {}",
                thread.id.tid,
                names(tree, path, functions),
                numbers.calls,
                numbers.incomplete,
                numbers.self_ticks
            ));
        }
    }
    listed.sort();
    listed
}

fn names(tree: &CallTree, path: PathId, functions: &[Named]) -> String {
    let name = match tree.frame(path) {
        Frame::Function(function) => {
            String::from_utf8_lossy(&functions[function.0 as usize - 1].symbol).into_owned()
        }
        frame => frame.label().map_or_else(|| format!("{frame:x?}"), str::to_owned),
    };
    match tree.parent(path).filter(|&parent| parent != CallTree::ROOT) {
        Some(parent) => names(tree, parent, functions) + ";" + &name,
        None => name,
    }
}

/// No call is open or made up, and all time belongs to a path.
fn assert_complete(thread: &Thread) {
    let calls = &thread.calls;
    let all = calls.tree.paths(CallTree::ROOT);
    let spent: u64 = all.iter().map(|&path| calls.tree.numbers(path).self_ticks).sum();
    assert_eq!(spent, calls.last - calls.first, "self times of {:?} add up to its span", thread.id);
    for path in all {
        assert!(!matches!(calls.tree.frame(path), Frame::Floor(_)));
        assert_eq!(calls.tree.numbers(path).histogram().count(), calls.tree.numbers(path).calls);
    }
}

const CALLS: &str = "
    5 100 tr strt - a+1
    5 110 call a+16 b
    5 120 call b+4 c
    5 150 return c+9 b+9
    5 160 return b+20 a+18
    5 170 call a+30 b
    5 200 return b+20 a+45";

#[test]
fn calls_and_returns() {
    assert_eq!(paths(&[&text(CALLS)]), ["5 a 0(0) 20", "5 a;b 2(0) 50", "5 a;b;c 1(0) 30"]);
}

#[test]
fn text_may_start_anywhere() {
    let middle = text(CALLS).lines().skip(3).collect::<Vec<_>>().join("\n");
    assert_eq!(paths(&[&middle]), ["5 a 0(0) 10", "5 a;b 1(0) 40", "5 a;b;c 0(0) 0"]);
    let within = "5 100 jcc a+5 a+9\n5 120 call a+20 b\n5 150 jmp b+1 b+7";
    assert_eq!(paths(&[&text(within)]), ["5 a 0(0) 20", "5 a;b 0(1) 30"]);
}

#[test]
fn system_calls_and_interrupts_have_frames_of_their_own() {
    let lines = "
        5 100 tr strt - a+1
        5 110 tr end  syscall a+5 -
        5 150 tr strt - a+7
        5 160 tr end  async a+9 -
        5 180 tr strt - a+9
        5 190 tr end  hw int a+12 -
        5 195 tr strt - h
        5 198 tr end  syscall h+5 -
        5 199 tr strt - a+12
        5 200 call a+16 b";
    assert_eq!(
        paths(&[&text(lines)]),
        [
            "5 a 0(0) 31",
            "5 a;[interrupt] 2(0) 25",
            "5 a;[interrupt];h 1(0) unwound 3",
            "5 a;[interrupt];h;[syscall] 1(0) 1",
            "5 a;[syscall] 1(0) 40",
            "5 a;b 0(1) 0",
        ]
    );
}

#[test]
fn kernel_frames_are_on_the_interrupted_ones() {
    let lines = "
        5 100 tr strt - a+1
        5 110 syscall a+5 E
        5 120 call E+9 F
        5 140 sysret F+5 a+7
        5 150 hw int a+9 I
        5 170 iret I+50 a+9
        5 180 jcc a+10 a+20";
    assert_eq!(
        paths(&[&text(lines)]),
        ["5 a 0(0) 30", "5 a;E 1(0) 10", "5 a;E;F 1(0) unwound 20", "5 a;I 1(0) 20"]
    );
}

#[test]
fn gap_is_a_frame_and_later_returns_confirm_open_calls() {
    let lines = "
        5 7000000100 tr strt - a+1
        5 7000000110 call a+5 b
        5 7000000130 error 7
        5 7000000160 tr strt - b+9
        5 7000000170 return b+20 a+10
        5 7000000190 call a+12 c";
    let errors: String = text(&lines.replace("5 7000000", "5 ")).replace("time 0.", "time 7.");
    let script = script(&[&errors]);
    assert_eq!(
        listed(&script.threads, &script.functions),
        ["5 a 0(0) 30", "5 a;b 0(1) 30", "5 a;b;[lost] 1(0) 30", "5 a;c 0(1) 0"]
    );
    assert_eq!(script.counts.gaps.losses().map(|(_, count)| count).sum::<u64>(), 1);
}

#[test]
fn line_behind_a_gap_shows_the_place() {
    let lines = "
        5 100 tr strt - a+1
        5 110 call a+5 b
        5 130 error 7
        5 160 return b+20 a+10";
    let errors = text(lines).replace("time 0.", "time 7.");
    assert_eq!(paths(&[&errors]), ["5 a 0(0) 10", "5 a;b 0(1) 20", "5 a;b;[lost] 1(0) 30"]);
    let unknown = errors.replace("tid 5", "tid -1");
    assert_eq!(paths(&[&unknown]), paths(&[&errors]));
}

#[test]
fn function_behind_an_unread_stub_is_found() {
    let stub = |next: &str| {
        let call = text("1 10 call b+5 c").replace(" c+0x0", " write@plt+0x0");
        paths(&[&(call + &text(&format!("1 12 error 5\n{next}\n1 40 return d+40 b+8")))])
    };
    let lost = "1 b;write@plt;[lost] 1(0) 10";
    let expected = ["1 b 0(0) 0", "1 b;d 0(0) 10", "1 b;write@plt 0(1) 0", lost, "1 b;d;e 1(0) 10"];
    let mut found = stub("1 20 call d+8 e\n1 30 return e+4 d+12");
    found.sort();
    let mut expected = expected.map(str::to_owned);
    expected.sort();
    assert_eq!(found, expected);
    // A stub that was read, and returned.
    let read = text("1 10 call b+5 c\n1 12 return c+9 b+8").replace(" c+0x0", " write@plt+0x0");
    assert_eq!(paths(&[&read]), ["1 b 0(0) 0", "1 b;write@plt 1(0) 2"]);
}

#[test]
fn branches_without_a_target_are_counted() {
    let whole = text("1 10 call b+5 c\n1 20 return c+3 b+8\n1 30 call b+15 c");
    let cut = &whole[..whole.len() - " => c000 c+0x0\n".len()];
    let (whole, cut) = (script(&[&whole]), script(&[cut]));
    assert_eq!((whole.counts.branches, whole.counts.untargeted), (3, 0));
    assert_eq!((cut.counts.branches, cut.counts.untargeted), (2, 1));
    assert_eq!(super::losses(&cut).into_iter().collect::<Vec<_>>(), [("branches_without_target", 1)]);
    assert!(super::losses(&whole).is_empty());
}

#[test]
fn another_go_stack_is_not_below_the_previous_one() {
    // `runtime.gogo` leads from the scheduler's stack (`b`, `c`) to a goroutine that was parked before the
    // start of the text (`r` had called `p`).
    let lines = "1 10 call b+5 c\n1 12 call c+5 g\n1 20 jmp g+40 p+9\n1 30 return p+20 r+7\n1 40 call r+9 c\n\
                 1 50 return c+3 r+14";
    let expected =
        ["1 b 0(0) 0", "1 b;c 0(1) 2", "1 b;c;g 0(1) 8", "1 r 0(0) 10", "1 r;c 1(0) 10", "1 r;p 0(0) 10"];
    let mut found = paths(&[&text(lines)]);
    found.sort();
    assert_eq!(found, expected);
}

#[test]
fn jumps_into_functions_are_calls_and_cold_parts_are_not() {
    let lines = "
        5 100 tr strt - a+1
        5 110 call a+5 b
        5 120 jmp b+30 b.cold
        5 130 jmp b.cold+9 b+40
        5 140 jmp b+50 c
        5 160 return c+9 a+10
        5 170 call a+12 b
        5 180 call b+9 c
        5 190 jmp c+5 a+80
        5 200 jcc a+90 a+100";
    assert_eq!(
        paths(&[&text(lines)]),
        ["5 a 0(0) 30", "5 a;b 2(0) unwound 40", "5 a;b;c 1(0) unwound 10", "5 a;c 1(0) 20"]
    );
}

#[test]
fn thread_on_a_cpu_displaces_the_previous_one() {
    let lines = "
        5 100 tr strt - A+1 @0
        5 110 call A+5 B @0
        6 130 tr strt - C+1 @0
        0 150 call C+5 D @0
        5 180 return B+9 A+10 @1
        5 190 call A+12 C @1";
    let expected = [
        "5 A 0(0) 20",
        "5 A;B 1(0) 20",
        "5 A;B;[off-cpu] 1(0) 50",
        "5 A;C 0(1) 0",
        "6 C 0(0) 20",
        "6 C;[off-cpu] 0(1) 0",
    ];
    assert_eq!(paths(&[&text(lines)]), expected);
}

#[test]
fn switches_have_reasons() {
    let lines = "
        5 100 tr strt - a+1
        5 110 tr end  syscall a+5 -
        5 120 PERF_RECORD_SWITCH_CPU_WIDE OUT          next pid/tid: 0/0
        5 150 PERF_RECORD_SWITCH_CPU_WIDE IN           prev pid/tid: 0/0
        5 160 tr strt - a+7
        5 170 tr end  async a+9 -
        5 175 PERF_RECORD_SWITCH OUT preempt
        5 195 tr strt - a+9
        5 200 call a+16 b";
    assert_eq!(
        paths(&[&text(lines)]),
        [
            "5 a 0(0) 25",
            "5 a;[interrupt] 1(0) 5",
            "5 a;[interrupt];[preempted] 1(0) 20",
            "5 a;[syscall] 1(0) 10",
            "5 a;[syscall];[blocked] 1(0) 40",
            "5 a;b 0(1) 0",
        ]
    );
}

#[test]
fn unknown_threads_have_a_stack_for_each_cpu_and_idle_has_none() {
    let lines = "
        -1 100 call a+5 b @0
        -1 110 call a+5 c @1
        -1 120 return b+5 a+10 @0
        0 130 call I+5 J @0";
    let expected =
        ["-1 a 0(0) 0", "-1 a 0(0) 10", "-1 a;[off-cpu] 0(1) 0", "-1 a;b 1(0) 20", "-1 a;c 0(1) 0"];
    assert_eq!(paths(&[&text(lines)]), expected);
}

#[test]
fn aborted_transactions_count_for_nothing() {
    let lines = "
        5 100 tr strt - a+1
        5 105 jcc a+2 a+4
        5 110 call (x) a+5 b
        5 120 call (x) b+5 c
        5 130 tx abrt c+5 a+50
        5 140 call a+60 d";
    let expected = ["5 a 0(0) 20", "5 a;b 1(0) unwound 10", "5 a;b;c 1(0) unwound 10", "5 a;d 0(1) 0"];
    assert_eq!(paths(&[&text(lines)]), expected);
}

#[test]
fn thread_that_moves_between_files_is_complete() {
    let one = "
        5 100 tr strt - a+1
        5 110 call a+5 b
        5 120 tr end  syscall b+5 -
        5 300 tr strt - c+7
        5 310 return c+9 b+14";
    let other = "
        5 200 tr strt - b+7
        5 210 call b+9 c
        5 220 tr end  syscall c+5 -
        6 230 tr strt - a+1";
    let expected = [
        "5 a 0(0) 10",
        "5 a;b 0(1) 20",
        "5 a;b;[syscall] 1(0) 80",
        "5 a;b;c 1(0) 20",
        "5 a;b;c;[syscall] 1(0) 80",
        "6 a 0(0) 0",
    ];
    assert_eq!(paths(&[&text(one), &text(other)]), expected);
    assert_eq!(paths(&[&text(other), &text(one)]), expected);
}

#[test]
fn divided_text_equals_the_whole_text() {
    let whole = text(CALLS);
    let lines: Vec<&str> = whole.split_inclusive('\n').collect();
    for at in 0..=lines.len() {
        let (one, other) = (lines[..at].concat(), lines[at..].concat());
        assert_eq!(paths(&[&one, &other]), paths(&[&whole]), "{at}");
    }
}

/// The threads of one file that is read in blocks of the given number of lines.
fn in_blocks(text: &str, lines_a_block: usize) -> Vec<String> {
    let names = Names::default();
    let mut local = LocalNames::new(&names);
    let mut merger = Merger::default();
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    for block in lines.chunks(lines_a_block) {
        merger.add(parse_block(block.concat().as_bytes(), &mut local, false), u64::MAX);
    }
    let threads = merger.finish();
    listed(&threads, &names.into_all().0)
}

#[test]
fn call_out_of_the_filter_lasts_until_the_trace_resumes() {
    let lines = "
        5 100 tr strt - a
        5 110 tr end  call a+5 x
        5 140 tr strt - a+10
        5 150 tr end  return a+20 y+9
        5 200 tr strt - a
        5 210 tr end  call a+5 x
        5 240 tr strt - a+10";
    assert_eq!(
        paths(&[&text(lines)]),
        ["5 [untraced] 1(0) 50", "5 a 1(1) 30", "5 a;x 2(0) 0", "5 a;x;[untraced] 2(0) 60"]
    );
}

#[test]
fn tail_call_out_of_the_filter_does_not_nest() {
    // perf 6.1 prints no kind of jump.
    for flags in ["tr end ", "tr end  jmp", "tr end  jcc"] {
        let called = |at: u64| format!("5 {at} tr strt - a\n5 {} {flags} a+5 x\n", at + 10);
        let lines: String = (1..6).map(|turn| called(100 * turn)).collect();
        let lines = text(&lines) + &text("5 600 tr strt - a");
        assert_eq!(paths(&[&lines]), ["5 [untraced] 5(0) 450", "5 a 5(1) 50", "5 x 0(5) 0"], "{flags}");
    }
}

/// Lines that are mostly consistent, and some that are not.
fn random_text() -> impl Strategy<Value = String> {
    let line = (0..3u32, 1..40u64, 0..16usize, 0..5u8, 0..5u8, 0..3u64, 0..3u32);
    proptest::collection::vec(line, 1..80).prop_map(|lines| {
        const FLAGS: [&str; 13] = [
            "call",
            "call",
            "call",
            "return",
            "return",
            "return",
            "jmp",
            "jcc",
            "tr strt",
            "tr end  syscall",
            "tr end  async",
            "syscall",
            "iret",
        ];
        let mut ns = 100;
        let mut text = String::new();
        for (tid, later, flags, from, to, offset, cpu) in lines {
            ns += later;
            let place =
                |letter: u8, offset: u64| perf_place(&format!("{}+{}", char::from(b'a' + letter), offset));
            text += &match FLAGS.get(flags) {
                Some(flags) => {
                    let to = if flags.starts_with("tr end") {
                        "0 [unknown]".into()
                    } else {
                        place(to, offset * 7)
                    };
                    format!("{tid} [{cpu:03}] 7.{ns:09}: {flags}  {} => {to}\n", place(from, 16))
                }
                None => format!(
                    " instruction trace error type 1 time 7.{ns:09} cpu -1 pid 1 tid {tid} ip 0 code 7: x\n"
                ),
            };
        }
        text
    })
}

proptest! {
    #[test]
    fn division_into_blocks_changes_nothing(text in random_text()) {
        let whole = in_blocks(&text, usize::MAX);
        for lines in [1, 2, 7] {
            prop_assert_eq!(&in_blocks(&text, lines), &whole, "{} lines a block", lines);
        }
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), texts in random_text()) {
        let names = Names::default();
        let mut mixed = texts.into_bytes();
        let at = mixed.len() / 2;
        mixed.splice(at..at, bytes);
        let parsed = parse_block(&mixed, &mut LocalNames::new(&names), true);
        let mut merger = Merger::default();
        merger.add(parsed, u64::MAX);
        merger.finish().iter().for_each(assert_complete);
    }
}

/// The folder of recordings that are not in the repository, if it exists.
fn captures() -> Option<Vec<PathBuf>> {
    let folder = Path::new(&std::env::var_os("WALLPROF_PT_DATA")?).join("magic-trace");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    Some(files)
}

fn content(file: &Path) -> Vec<u8> {
    if file.extension().is_some_and(|extension| extension == "xz") {
        return Command::new("xz").arg("-dc").arg(file).output().expect("xz is installed").stdout;
    }
    std::fs::read(file).unwrap()
}

#[test]
fn texts_of_real_processors_are_complete() {
    let Some(files) = captures() else {
        let reason = "WALLPROF_PT_DATA, the folder of its recordings, is not set";
        return wallprof_testkit::skip("texts_of_real_processors_are_complete", reason);
    };
    assert!(!files.is_empty());
    for file in files {
        let bytes = content(&file);
        assert!(
            super::kind(&bytes[..bytes.len().min(200_000)]) == Some(super::Kind::Trace),
            "{}",
            file.display()
        );
        let text = String::from_utf8_lossy(&bytes);
        let branches = text.lines().filter(|line| line.contains(" => ")).count() as u64;
        let errors = text.lines().filter(|line| line.contains("instruction trace error")).count() as u64;
        let script = script(&[&text]);
        script.threads.iter().for_each(assert_complete);
        assert_eq!(script.counts.branches, branches, "{}", file.display());
        assert_eq!(
            script.counts.gaps.losses().map(|(_, count)| count).sum::<u64>(),
            errors,
            "{}",
            file.display()
        );
        let whole = listed(&script.threads, &script.functions);
        let parts = in_blocks(&text, 100);
        let different = whole.iter().zip(&parts).find(|(one, other)| one != other);
        assert_eq!((different, parts.len()), (None, whole.len()), "{}", file.display());
        assert_eq!(whole.iter().any(|path| path.contains("[lost]")), errors > 0, "{}", file.display());
    }
}
