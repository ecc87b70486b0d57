// SPDX-License-Identifier: Apache-2.0
//! Generated traces as perf.data, decoded by perf: an independent check, also of the file's format.

use std::path::Path;
use std::process::Command;

use wallprof_intel_pt::generator::{Generated, Plan, TIME_CONV, Tracing, generate, generate_traced};
use wallprof_intel_pt::{EndCause, Event, EventKind, RunCache, Segment, decode_segment};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Transfer {
    is_call: bool,
    from: u64,
    to: u64,
    ns: u64,
}

fn decoded(generated: &Generated) -> Vec<Event> {
    let mut events: Vec<Event> = Vec::new();
    let whole = Segment { start: 0, end: generated.trace.len(), first: true };
    decode_segment(&generated.as_trace(), whole, &mut RunCache::new(), &mut events);
    events
}

fn ours(generated: &Generated) -> Vec<Transfer> {
    let events = decoded(generated);
    let transfer = |event: &Event| {
        let is_call = match event.kind {
            EventKind::Call { .. } => true,
            EventKind::Return => false,
            _ => return None,
        };
        Some(Transfer { is_call, from: event.from, to: event.to, ns: TIME_CONV.ns_from_ticks(event.ticks) })
    };
    events.iter().filter_map(transfer).collect()
}

/// The calls and returns that `perf script` prints: `TIME: FLAGS FROM => TO`.
fn theirs(text: &str) -> Vec<Transfer> {
    text.lines().filter_map(transfer_from_line).collect()
}

fn transfer_from_line(line: &str) -> Option<Transfer> {
    let (left, to) = line.split_once("=>")?;
    let (time, rest) = left.split_once(':')?;
    let (seconds, fraction) = time.trim().rsplit(' ').next()?.split_once('.')?;
    let mut words = rest.split_whitespace();
    let is_call = match words.next()? {
        "call" => true,
        "return" => false,
        _ => return None,
    };
    let address = |text: &str| u64::from_str_radix(text.trim(), 16).ok();
    let ns = seconds.parse::<u64>().ok()? * 1_000_000_000 + fraction.parse::<u64>().ok()?;
    Some(Transfer { is_call, from: address(words.next()?)?, to: address(to.split_whitespace().next()?)?, ns })
}

fn perf_script(file: &Path) -> String {
    let output = Command::new("perf")
        .args(["script", "--itrace=cr", "--ns", "-F", "time,flags,ip,addr", "-i"])
        .arg(file)
        .env("HOME", file.parent().expect("a folder"))
        .output()
        .expect("perf runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !errors.contains("error"), "{errors}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn perf_sees_the_same_calls_and_returns() {
    if Command::new("perf").arg("--version").output().is_err() {
        return wallprof_testkit::skip(
            "perf_sees_the_same_calls_and_returns",
            "perf is not installed (Debian: linux-perf)",
        );
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut compared = 0;
    for seed in 0..60 {
        let threads = 1 + seed as usize % 3;
        if threads > 1 {
            continue;
        }
        let plan = Plan {
            functions: 10 + seed as usize % 20,
            threads,
            instructions: 3_000,
            overflows: false,
            exceptions: true,
        };
        let generated = generate(seed, plan);
        let image = folder.path().join(format!("image{seed}"));
        std::fs::write(&image, generated.program.to_elf()).expect("an image");
        let file = folder.path().join("perf.data");
        std::fs::write(&file, generated.to_perf_data(image.to_str().expect("a path"))).expect("a file");
        let (ours, theirs) = (ours(&generated), theirs(&perf_script(&file)));
        compared += assert_same(seed, &generated, &ours, &theirs);
    }
    assert!(compared > 2_000, "{compared}");
}

fn assert_same(seed: u64, generated: &Generated, ours: &[Transfer], theirs: &[Transfer]) -> usize {
    let ends = |transfer: &Transfer| (transfer.is_call, transfer.from, transfer.to);
    let different = ours.iter().zip(theirs).position(|(ours, theirs)| ends(ours) != ends(theirs));
    assert_eq!(
        different,
        None,
        "seed {seed} {:x?} {:?}",
        different.map(|at| (ours[at], theirs[at])),
        generated.settings
    );
    assert!(ours.len().abs_diff(theirs.len()) <= 2, "seed {seed}: {} {}", ours.len(), theirs.len());
    ours.len()
}

/// An event that both report. An address that one of them lacks is 0.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Branch {
    flags: &'static str,
    from: u64,
    to: u64,
}

/// Our events in perf's form: a branch out of the traced code is one event.
fn as_perf(events: &[Event]) -> Vec<Branch> {
    let mut branches: Vec<Branch> = Vec::new();
    let mut leaving: Option<(&'static str, u64)> = None;
    for (index, event) in events.iter().enumerate() {
        let leaves = events.get(index + 1).is_some_and(|next| {
            let end = |cause| EventKind::End { cause, return_to: 0 };
            next.from == event.from && [EndCause::Other, EndCause::Jump].map(end).contains(&next.kind)
        });
        let flags = match event.kind {
            EventKind::Call { .. } if leaves => {
                leaving = Some(("tr end call", event.to));
                continue;
            }
            EventKind::Jump { .. } if leaves => {
                leaving = Some(("tr end jump", event.to));
                continue;
            }
            EventKind::Call { .. } => "call",
            EventKind::Return => "return",
            EventKind::Jump { .. } => "jump",
            EventKind::SystemCall { .. } => "syscall",
            EventKind::SystemReturn => "sysret",
            EventKind::Interrupt { .. } => "hw int",
            EventKind::Start => "tr strt",
            EventKind::End { cause, return_to } => {
                let (flags, to) = leaving.take().unwrap_or(match cause {
                    EndCause::SystemCall => ("tr end syscall", 0),
                    EndCause::SystemReturn => ("tr end return", 0),
                    EndCause::Interrupt { .. } => ("tr end async", 0),
                    EndCause::Return => ("tr end return", return_to),
                    EndCause::Jump | EndCause::Gap | EndCause::Other => ("tr end jump", 0),
                });
                branches.push(Branch { flags, from: event.from, to });
                continue;
            }
            _ => continue,
        };
        branches.push(Branch { flags, from: event.from, to: event.to });
    }
    branches
}

/// perf's events, without jumps inside a function.
fn branches_of_perf(generated: &Generated, text: &str) -> Vec<Branch> {
    let function = |address| generated.program.function_at(address);
    let branches = text.lines().filter_map(branch_from_line);
    branches.filter(|branch| branch.flags != "jump" || function(branch.from) != function(branch.to)).collect()
}

fn branch_from_line(line: &str) -> Option<Branch> {
    let (left, to) = line.split_once("=>")?;
    let (_, rest) = left.split_once(':')?;
    let mut words: Vec<&str> = rest.split_whitespace().collect();
    let address = |text: &str| u64::from_str_radix(text.trim(), 16).ok();
    let from = address(words.pop()?)?;
    let flags = match &words.join(" ")[..] {
        "call" => "call",
        "return" => "return",
        "jmp" | "jcc" => "jump",
        "syscall" => "syscall",
        "sysret" | "iret" => "sysret",
        "hw int" => "hw int",
        "tr strt" => "tr strt",
        "tr end call" => "tr end call",
        "tr end" | "tr end jmp" | "tr end jcc" => "tr end jump",
        "tr end return" | "tr end sysret" | "tr end iret" => "tr end return",
        "tr end syscall" => "tr end syscall",
        "tr end async" | "tr end hw int" => "tr end async",
        other => panic!("{other}: {line}"),
    };
    Some(Branch { flags, from, to: address(to.split_whitespace().next()?)? })
}

fn agrees(ours: &Branch, theirs: &Branch) -> bool {
    (ours.flags, ours.from) == (theirs.flags, theirs.from)
        && (ours.to == theirs.to || ours.to == 0 || theirs.to == 0)
}

/// One range, several, the kernel whole and in part, with and without the targets of direct branches.
fn filtered(seed: u64) -> Generated {
    let (ranges, kernel_ranges) = [(1, 0), (3, 0), (1, 1), (2, 2), (0, 1), (4, 0), (0, 0)][seed as usize % 7];
    let kernel = kernel_ranges > 0 || ranges == 0;
    let (splits, addressed_ends) = ((seed / 7).is_multiple_of(2), (seed / 14).is_multiple_of(2));
    let functions = 10 + seed as usize % 20;
    let plan = Plan {
        functions,
        threads: 1,
        instructions: 4_000,
        overflows: false,
        exceptions: seed.is_multiple_of(3),
    };
    generate_traced(seed, plan, Tracing { ranges, splits, kernel, kernel_ranges, addressed_ends })
}

fn script_of_branches(folder: &Path, generated: &Generated) -> String {
    let (image, file, kernel) = (folder.join("image"), folder.join("perf.data"), folder.join("vmlinux"));
    std::fs::write(&image, generated.program.to_elf()).expect("an image");
    let recording = generated.to_perf_data(image.to_str().expect("a path"));
    std::fs::write(&file, recording).expect("a file");
    let mut perf = Command::new("perf");
    perf.args(["script", "--itrace=be", "--ns", "-F", "time,flags,ip,addr", "-i"]).arg(&file);
    if let Some(code) = &generated.program.kernel {
        std::fs::write(&kernel, code.to_elf()).expect("an image");
        perf.arg("-k").arg(&kernel);
    }
    let output = perf.env("HOME", folder).output().expect("perf runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn perf_sees_the_same_of_filtered_traces() {
    const SEEDS: u64 = 224;
    if Command::new("perf").arg("--version").output().is_err() {
        return wallprof_testkit::skip(
            "perf_sees_the_same_of_filtered_traces",
            "perf is not installed (Debian: linux-perf)",
        );
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (mut compared, mut ends) = (0, 0);
    for seed in 0..SEEDS {
        let generated = filtered(seed);
        let text = script_of_branches(folder.path(), &generated);
        let (ours, theirs) = (as_perf(&decoded(&generated)), branches_of_perf(&generated, &text));
        let different = ours.iter().zip(&theirs).position(|(ours, theirs)| !agrees(ours, theirs));
        if let Some(at) = different {
            let context = at.saturating_sub(3)..(at + 4).min(ours.len()).min(theirs.len());
            panic!(
                "seed {seed} at {at} of {}: ours {:x?}\ntheirs {:x?}\n{:?} {:x?}",
                ours.len(),
                &ours[context.clone()],
                &theirs[context],
                generated.settings,
                generated.program.traced
            );
        }
        assert!(ours.len().abs_diff(theirs.len()) <= 2, "seed {seed}: {} {}", ours.len(), theirs.len());
        let errors = text.lines().filter(|line| line.contains("error")).collect::<Vec<_>>();
        assert!(
            errors.is_empty(),
            "seed {seed}: {errors:?} {:?} {:x?}",
            generated.settings,
            generated.program.traced
        );
        compared += ours.len();
        ends += ours.iter().filter(|branch| branch.flags.starts_with("tr end")).count();
    }
    assert!(compared > 20_000 && ends > 10_000, "{compared} {ends}");
}
