// SPDX-License-Identifier: Apache-2.0
//! The speed at which the text that `perf script` prints of a trace becomes calls, on all CPUs.
//!
//! `cargo bench -p wallprof-import --bench script`

use std::fmt::Write as _;
use std::path::PathBuf;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use wallprof_import::{RecordingFacts, Sink, import_scripts};
use wallprof_model::{Event, MonoNs};

const ROUNDS: u64 = 20_000;
/// Calls within calls before they return.
const DEPTH: u64 = 5;

/// Counts events.
struct Count(u64);

impl Sink for Count {
    type Error = std::convert::Infallible;

    fn start(&mut self, _facts: &RecordingFacts) -> Result<(), Self::Error> {
        Ok(())
    }

    fn take(&mut self, _event: Event) -> Result<(), Self::Error> {
        self.0 += 1;
        Ok(())
    }

    fn settled(&mut self, _until: MonoNs) -> Result<(), Self::Error> {
        Ok(())
    }

    fn progress(&mut self, _bytes: u64, _of: Option<u64>) {}
}

/// A thread that calls five functions deep and returns, again and again.
fn text() -> String {
    let mut text = String::new();
    let mut ns = 10_000_000_000u64;
    for round in 0..ROUNDS {
        let deep = |depth: u64| (0x40_1000 + 0x1000 * depth, (round + depth) % 97);
        for depth in 0..DEPTH {
            let ((from, caller), (to, callee)) = (deep(depth), deep(depth + 1));
            line(&mut text, &mut ns, "call", (from + 0x10, caller, 0x10), (to, callee, 0));
        }
        for depth in (0..DEPTH).rev() {
            let ((to, caller), (from, callee)) = (deep(depth), deep(depth + 1));
            line(&mut text, &mut ns, "return", (from + 0x20, callee, 0x20), (to + 0x15, caller, 0x15));
        }
    }
    text
}

/// Each side: address, function's number, offset in it.
fn line(text: &mut String, ns: &mut u64, what: &str, from: (u64, u64, u64), to: (u64, u64, u64)) {
    *ns += 90;
    let (seconds, rest) = (*ns / 1_000_000_000, *ns % 1_000_000_000);
    writeln!(
        text,
        "  program  100/101  [001]    {seconds}.{rest:09}:   {what:<22} {:x} work_{}+{:#x} (/bin/program) =>   {:x} work_{}+{:#x} (/bin/program)",
        from.0, from.1, from.2, to.0, to.1, to.2
    )
    .expect("a String takes it");
}

fn benches(criterion: &mut Criterion) {
    let text = text();
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path: PathBuf = folder.path().join("script.txt");
    std::fs::write(&path, &text).expect("the text is written");
    let mut group = criterion.benchmark_group("import");
    group.throughput(Throughput::Bytes(text.len() as u64)).sample_size(10);
    group.bench_function("script", |bencher| {
        bencher.iter(|| {
            let mut count = Count(0);
            import_scripts(std::slice::from_ref(&path), &mut count).expect("it is perf's text");
            assert!(count.0 > 0, "calls were emitted");
            count.0
        });
    });
    group.finish();
}

criterion_group!(all, benches);
criterion_main!(all);
