// SPDX-License-Identifier: Apache-2.0
//! `wallprof stacks`: what all threads do now.

use std::collections::HashSet;
use std::process::ExitCode;
use std::sync::Arc;

use wallprof_live::{Look, Seen, run_beside_others};
use wallprof_model::ThreadNow;
use wallprof_probe::Targets;
use wallprof_probe::facts::files::{Files, HostFiles};
use wallprof_symbols::KernelSymbols;
use wallprof_views::{threads_json, threads_text, waits_text};

use crate::args::StacksArgs;
use crate::descriptors;
use crate::failure::{Exit, Failure, say};
use crate::output::to_stdout;
use crate::record::{
    GivenTargets, RecordOptions, Target, check_exists, check_permitted, failure_from_session, target_set,
};
use crate::terminal::style_for_stdout;

const NO_TARGET: &str = "no target was given: give processes (-p PID), threads (-t TID), names \
     (--name GLOB), a cgroup (--cgroup PATH) or everything (-a)";

/// How the threads are printed.
#[derive(Clone, Copy)]
enum Shape {
    Groups,
    WaitsFor,
    Json,
}

/// Runs the command. Nothing is loaded before the targets are known to exist.
pub fn run(args: StacksArgs) -> Result<ExitCode, Failure> {
    if !args.has_target() {
        return Err(Failure::usage(NO_TARGET));
    }
    let shape = match (args.waits_for, args.json) {
        (true, _) => Shape::WaitsFor,
        (false, true) => Shape::Json,
        (false, false) => Shape::Groups,
    };
    let options = RecordOptions::from_args(args.into_record())?;
    check_exists(&options, &HostFiles)?;
    check_permitted(&HostFiles)?;
    let (targets, shown) = targets(&options, &HostFiles)?;
    let seen = look(targets, &options)?;
    if seen.lost_stacks > 0 {
        say(&format!("{} stacks are missing: there was no memory for them in the kernel", seen.lost_stacks));
    }
    let is_shown = |thread: &ThreadNow| match &shown {
        Some(tids) => tids.contains(&thread.tid),
        None => !seen.holders.contains(&thread.tid),
    };
    if !seen.threads.iter().any(is_shown) {
        return Err(Failure::new(Exit::NothingRecorded, nothing_seen(&options.target)));
    }
    print(&seen.threads, is_shown, shape)
}

fn look(targets: Targets, options: &RecordOptions) -> Result<Seen, Failure> {
    descriptors::raise_limit();
    run_beside_others();
    // Reading the kernel's symbols takes longer than loading the programs: do both at once.
    let kernel_symbols = std::thread::spawn(KernelSymbols::load);
    let mut look = Look::load(targets, Arc::clone(&options.rules)).map_err(failure_from_session)?;
    match kernel_symbols.join() {
        Ok(Ok(symbols)) => look.set_kernel_symbols(Arc::new(symbols)),
        Ok(Err(error)) => say(&format!("kernel functions have no names: {error}")),
        Err(_) => say("kernel functions have no names: reading /proc/kallsyms failed"),
    }
    look.take().map_err(failure_from_session)
}

/// The targets, and the threads that are shown; `None`: all of the targets. The holder of a lock is a thread
/// of the same process: with -t alone the whole process is looked at.
fn targets(options: &RecordOptions, files: &dyn Files) -> Result<(Targets, Option<HashSet<u32>>), Failure> {
    let Target::Given(given) = &options.target else { return Ok((Targets::Everything, None)) };
    let only_threads = !given.threads.is_empty()
        && *given == GivenTargets { threads: given.threads.clone(), ..GivenTargets::default() };
    let mut set = target_set(given, files)?;
    if !only_threads {
        return Ok((Targets::Given(set), None));
    }
    set.processes = given.threads.iter().filter_map(|tid| process_of(*tid, files)).collect();
    Ok((Targets::Given(set), Some(given.threads.iter().copied().collect())))
}

fn process_of(tid: u32, files: &dyn Files) -> Option<u32> {
    let status = files.read(format!("/proc/{tid}/status").as_ref()).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

fn nothing_seen(target: &Target) -> String {
    match target {
        Target::Given(given) if !given.names.is_empty() => format!(
            "no process or thread is named {} now: `ps -eL -o comm` lists the running ones",
            given.names.join(" or ")
        ),
        _ => "no thread of the target is alive".into(),
    }
}

fn print(
    threads: &[ThreadNow],
    is_shown: impl Fn(&ThreadNow) -> bool,
    shape: Shape,
) -> Result<ExitCode, Failure> {
    to_stdout(|mut out| {
        match shape {
            Shape::WaitsFor => waits_text(&mut out, threads, &style_for_stdout())?,
            Shape::Groups => threads_text(&mut out, threads, &is_shown, &style_for_stdout())?,
            Shape::Json => threads_json(&mut out, threads, &is_shown)?,
        }
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::RecordOptions;

    #[test]
    fn process_of_a_thread_is_looked_at_and_the_thread_is_shown() {
        let own = std::process::id();
        let (found, shown) =
            targets(&RecordOptions::of(Target::threads(&[own]), "x.db"), &HostFiles).unwrap();
        let Targets::Given(set) = found else { panic!("{found:?}") };
        assert_eq!((set.processes, set.threads), (vec![own], vec![own]));
        assert_eq!(shown, Some(HashSet::from([own])));
        let (_, shown) = targets(&RecordOptions::of(Target::processes(&[own]), "x.db"), &HostFiles).unwrap();
        assert_eq!(shown, None);
    }

    #[test]
    fn target_is_demanded_before_anything_is_loaded() {
        let failure = run(StacksArgs::default()).unwrap_err();
        assert_eq!(failure.exit, Exit::Usage);
        assert!(failure.message.contains("--name GLOB") && !failure.message.contains("CMD"));
    }
}
