//! Invented traces as perf.data, decoded by perf: a third opinion, on the file's format too.

use std::path::Path;
use std::process::Command;

use wallprof_intel_pt::generator::{Generated, Plan, TIME_CONV, generate};
use wallprof_intel_pt::{Event, EventKind, RunCache, Segment, decode_segment};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Transfer {
    is_call: bool,
    from: u64,
    to: u64,
    ns: u64,
}

fn ours(generated: &Generated) -> Vec<Transfer> {
    let mut events: Vec<Event> = Vec::new();
    let whole = Segment { start: 0, end: generated.trace.len(), first: true };
    decode_segment(&generated.as_trace(), whole, &mut RunCache::new(), &mut events);
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

/// What `perf script` prints of calls and returns: `TIME: FLAGS FROM => TO`.
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
        eprintln!("skipped: there is no perf here (Debian: linux-perf)");
        return;
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
