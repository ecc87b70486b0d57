// SPDX-License-Identifier: Apache-2.0
//! Writes a generated recording of any size, to test readers of perf.data.
//! `cargo run --release -p wallprof-intel-pt --example generate -- --seed S --bytes N
//! --out DIR` writes DIR/perf.data, the traced program DIR/target, and DIR/truth.txt. The latter has a line
//! `FUNCTION CALLS RETURNS` for each function; calls are those by `call`, without jumps from function to
//! function.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use wallprof_intel_pt::EventKind;
use wallprof_intel_pt::generator::{Machine, PerfDataWriter, Plan, Program, TIME_CONV, True};

const USAGE: &str = "usage: generate [--seed S] [--bytes N] [--threads T] [--switch-gap NS] [--functions F] [--overflows] --out DIR";
const INSTRUCTIONS_A_TIME: usize = 1 << 20;

struct Options {
    seed: u64,
    bytes: u64,
    plan: Plan,
    /// The shortest time of a thread on the CPU, in ns.
    switch_gap: u64,
    out: PathBuf,
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = options(std::env::args().skip(1)).ok_or(USAGE)?;
    std::fs::create_dir_all(&options.out)?;
    let out = std::path::absolute(&options.out)?;
    let gap = TIME_CONV.ticks_from_ns(options.switch_gap);
    let machine = Machine::new(options.seed, options.plan).with_switch_gap(gap);
    let program = machine.program().clone();
    let target = out.join("target");
    std::fs::write(&target, program.to_elf())?;
    let mut counts = Counts::default();
    let traced = write(machine, &options, &target, &out.join("perf.data"), &mut counts)?;
    counts.write(&program, &out.join("truth.txt"))?;
    println!("{traced} bytes of trace, {} calls and returns: {}", counts.all(), out.display());
    Ok(())
}

/// Writes the recording with a few MiB of memory. Returns the size of its trace in bytes.
fn write(
    mut machine: Machine,
    options: &Options,
    target: &Path,
    file: &Path,
    counts: &mut Counts,
) -> Result<u64, Box<dyn Error>> {
    let image = target.to_str().ok_or("the folder's name is no text")?;
    let (settings, threads) = (*machine.settings(), options.plan.threads as u32);
    let out = BufWriter::new(File::create(file)?);
    let mut recording = PerfDataWriter::new(out, machine.program(), settings, threads, image)?;
    let mut traced = 0;
    while traced < options.bytes {
        machine.run(INSTRUCTIONS_A_TIME);
        counts.add(&machine.take_truth());
        let switches = machine.take_switches();
        if threads > 1 {
            recording.switches(&switches)?;
        }
        let trace = machine.take_trace();
        traced += trace.len() as u64;
        recording.trace(&trace, machine.ticks())?;
    }
    let rest = machine.finish();
    counts.add(&rest.truth);
    recording.trace(&rest.trace, rest.end)?;
    recording.finish(rest.end)?;
    Ok(traced + rest.trace.len() as u64)
}

/// Calls and returns of each function.
#[derive(Default)]
struct Counts {
    by_function: BTreeMap<u32, (u64, u64)>,
}

impl Counts {
    fn add(&mut self, truth: &[True]) {
        for True { event, .. } in truth {
            let counts = self.by_function.entry(event.function.0).or_default();
            match event.kind {
                EventKind::Call { .. } => counts.0 += 1,
                EventKind::Return => counts.1 += 1,
                _ => {}
            }
        }
    }

    fn all(&self) -> u64 {
        self.by_function.values().map(|(calls, returns)| calls + returns).sum()
    }

    fn write(&self, program: &Program, file: &Path) -> Result<(), Box<dyn Error>> {
        let mut out = BufWriter::new(File::create(file)?);
        for (&id, (calls, returns)) in self.by_function.iter().filter(|(id, _)| **id != 0) {
            writeln!(out, "{} {calls} {returns}", program.name(id as usize - 1))?;
        }
        Ok(out.flush()?)
    }
}

fn options(mut words: impl Iterator<Item = String>) -> Option<Options> {
    let plan = Plan { functions: 200, threads: 1, instructions: 0, overflows: false, exceptions: true };
    let mut options = Options { seed: 1, bytes: 1 << 20, plan, switch_gap: 0, out: PathBuf::new() };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--seed" => options.seed = words.next()?.parse().ok()?,
            "--bytes" => options.bytes = words.next()?.parse().ok()?,
            "--threads" => {
                options.plan.threads = words.next()?.parse().ok().filter(|&threads| threads > 0)?
            }
            "--switch-gap" => options.switch_gap = words.next()?.parse().ok()?,
            "--functions" => options.plan.functions = words.next()?.parse().ok()?,
            "--overflows" => options.plan.overflows = true,
            "--out" => options.out = words.next()?.into(),
            _ => return None,
        }
    }
    (!options.out.as_os_str().is_empty()).then_some(options)
}
