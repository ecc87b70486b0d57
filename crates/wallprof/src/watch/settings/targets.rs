// SPDX-License-Identifier: Apache-2.0
//! The targets of `watch`, from the command line or the configuration.

use std::path::{Path, PathBuf};

use wallprof_watch::{Config, Entry};

use crate::args::{RecordArgs, WatchArgs};
use crate::failure::Failure;
use crate::record::Target;

const NO_TARGET: &str = "no target was given: give processes (-p PID), threads (-t TID), names (--name GLOB), a \
     cgroup (--cgroup PATH), everything (-a), or a file with targets (--config FILE)";

/// The targets of the command line if it has any, else those of the file. They are checked here, so that an
/// error names the line of the file.
pub(super) fn read(args: &WatchArgs, config: &Config, file: &Path) -> Result<RecordArgs, Failure> {
    let given = RecordArgs {
        pids: args.pids.clone(),
        children: args.children,
        tids: args.tids.clone(),
        names: args.names.clone(),
        cgroup: args.cgroup.clone(),
        all: args.all,
        ..RecordArgs::default()
    };
    let has_any = !(given.pids.is_empty() && given.tids.is_empty() && given.names.is_empty());
    let entries = &config.targets;
    if has_any || given.children || given.cgroup.is_some() || given.all {
        return Ok(given);
    }
    if *entries == Default::default() {
        return Err(no_target(args.config.as_deref()));
    }
    let list = |entry: &Option<Entry>| -> Vec<String> {
        entry.iter().flat_map(|entry| entry.text.split(',')).map(|text| text.trim().to_string()).collect()
    };
    let of_file = RecordArgs {
        pids: list(&entries.pid),
        children: entries.children,
        tids: list(&entries.tid),
        names: list(&entries.name),
        cgroup: entries.cgroup.as_ref().map(|entry| PathBuf::from(&entry.text)),
        all: entries.all,
        ..RecordArgs::default()
    };
    let wrong = |place: String| {
        move |failure: Failure| Failure { message: format!("{place}: {}", failure.message), ..failure }
    };
    for (entry, alone) in [
        (&entries.pid, RecordArgs { pids: of_file.pids.clone(), ..RecordArgs::default() }),
        (&entries.tid, RecordArgs { tids: of_file.tids.clone(), ..RecordArgs::default() }),
        (&entries.name, RecordArgs { names: of_file.names.clone(), ..RecordArgs::default() }),
    ] {
        if let Some(entry) = entry {
            let place = format!("{}, line {}", file.display(), entry.line);
            Target::from_args(&alone).map_err(wrong(place))?;
        }
    }
    Target::from_args(&of_file).map_err(wrong(file.display().to_string()))?;
    Ok(of_file)
}

fn no_target(file: Option<&Path>) -> Failure {
    Failure::usage(match file {
        Some(file) => format!(
            "{} has no target: write `all = true` into it, or `name = [\"engine\"]`, and start wallprof again",
            file.display()
        ),
        None => NO_TARGET.to_string(),
    })
}
