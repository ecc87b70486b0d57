// SPDX-License-Identifier: Apache-2.0
//! What the waits of a recording mean: `--idle`, `--not-idle`, `--waits`, the user's own rules and the built-in
//! ones; and `wallprof waits`, which lists the rules.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use wallprof_meaning::Glob;
use wallprof_meaning::waits::{NoLock, Rule, Rules, Waits, WordRule};
use wallprof_recording::Recording;
use wallprof_views::escape;

use crate::args::{MeaningArgs, WaitsArgs};
use crate::failure::Failure;
use crate::open;
use crate::output::to_stdout;
use crate::stages;

/// Opens a recording whose waits have meanings.
pub fn open_recording(file: &Path, rules: &Rules) -> Result<Recording, Failure> {
    with_meanings(Recording::open(file)?, rules)
}

/// Gives the waits of a recording their meanings.
pub fn with_meanings(mut recording: Recording, rules: &Rules) -> Result<Recording, Failure> {
    recording.set_progress(stages::reading);
    let mut waits = Waits::new(&recording.processes()?);
    for sample in recording.samples(..)? {
        waits.add_sample(&sample?);
    }
    recording.each_wait(|wait| waits.add_wait(&wait))?;
    recording.each_wait_count(|thread, reason, count| waits.add_count(thread, reason, count))?;
    recording.each_word(|word| waits.add_word(&word, rules))?;
    recording.each_peer(|stall, reason, peer, timed_out| waits.add_peer(stall, reason, peer, timed_out))?;
    recording.yields()?.iter().for_each(|row| waits.add_yield(row));
    let meanings = waits.finish(rules, |stack| recording.look_at(stack))?;
    recording.set_meanings(meanings);
    Ok(recording)
}

impl MeaningArgs {
    /// The rules in the order in which they are asked: the options, the files, the user's file, the built-in
    /// ones.
    ///
    /// # Errors
    /// A glob that is none; a file that cannot be read or is not TOML of rules.
    pub fn rules(&self) -> Result<Rules, Failure> {
        let mut rules = Rules::built_in().map_err(Failure::failed)?;
        if let Some(file) = users_file() {
            add_file(&mut rules, &file)?;
        }
        for file in self.waits.iter().rev() {
            add_file(&mut rules, file)?;
        }
        rules.prepend_names(&globs("--idle", &self.idle)?, &globs("--not-idle", &self.not_idle)?);
        Ok(rules)
    }
}

fn globs(option: &str, texts: &[String]) -> Result<Vec<Glob>, Failure> {
    let glob = |text: &String| Glob::new(text).map_err(|error| Failure::usage(format!("{option}: {error}")));
    texts.iter().map(glob).collect()
}

fn add_file(rules: &mut Rules, file: &Path) -> Result<(), Failure> {
    let read = open::regular_file(file).and_then(std::io::read_to_string);
    let text = read.map_err(|error| {
        Failure::failed(format!("the rules about waits in {} could not be read: {error}", file.display()))
    })?;
    rules.prepend_file(&text).map_err(|error| {
        Failure::failed(format!("the rules about waits in {} are wrong: {error}", file.display()))
    })
}

/// `~/.config/wallprof/waits.toml`, if there is one.
fn users_file() -> Option<PathBuf> {
    let folder = match std::env::var_os("XDG_CONFIG_HOME").filter(|folder| Path::new(folder).is_absolute()) {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(&std::env::var_os("HOME").filter(|home| !home.is_empty())?).join(".config"),
    };
    Some(folder.join("wallprof/waits.toml")).filter(|file| file.exists())
}

/// Runs `wallprof waits`.
pub fn run(args: &WaitsArgs) -> Result<ExitCode, Failure> {
    let rules = args.meaning.rules()?;
    let is_listed = |rule: &&Rule| {
        args.software.as_ref().is_none_or(|software| rule.meaning.software.as_ref() == Some(software))
    };
    let listed: Vec<&Rule> = rules.iter().filter(is_listed).collect();
    let words: Vec<&WordRule> = rules
        .words()
        .filter(|rule| args.software.as_ref().is_none_or(|software| rule.software.as_ref() == Some(software)))
        .collect();
    let no_locks: Vec<&NoLock> = rules
        .no_locks()
        .filter(|rule| args.software.as_ref().is_none_or(|software| rule.software.as_ref() == Some(software)))
        .collect();
    let is_empty = listed.is_empty() && words.is_empty() && no_locks.is_empty();
    if let (Some(software), true) = (&args.software, is_empty) {
        return Err(Failure::failed(format!(
            "no rule is about {software}: `wallprof waits` lists all, --waits adds some"
        )));
    }
    to_stdout(|out| {
        for rule in listed {
            writeln!(out, "{}", line(rule))?;
        }
        for word in words {
            writeln!(out, "{}", word_line(word))?;
        }
        for no_lock in no_locks {
            writeln!(out, "{}", no_lock_line(no_lock))?;
        }
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

/// `postgresql  (154 values)  in memory  my_wait_event_info of */postgresql/15/bin/postgres`.
fn word_line(rule: &WordRule) -> String {
    let modules: Vec<_> = rule.modules.iter().map(|module| escape(module)).collect();
    format!(
        "{:<12} {:<24} {:<8} {} of {}",
        escape(rule.software.as_deref().unwrap_or("-")),
        format!("({} values)", rule.values()),
        "memory",
        escape(&rule.place.symbol),
        modules.join(" or ")
    )
}

/// `rust  -  no lock  in *std::sys::*condvar::*Condvar*::wait*`.
fn no_lock_line(rule: &NoLock) -> String {
    let of = |names: &[String]| names.iter().map(|name| escape(name)).collect::<Vec<_>>().join(" or ");
    let modules = match rule.modules.is_empty() {
        true => String::new(),
        false => format!(" of {}", of(&rule.modules)),
    };
    format!(
        "{:<12} {:<24} {:<8} in {}{modules}",
        escape(rule.software.as_deref().unwrap_or("-")),
        "-",
        "no lock",
        of(&rule.functions)
    )
}

/// `postgresql  row lock  not idle  in ProcSleep, called by XactLockTableWait`.
fn line(rule: &Rule) -> String {
    let meaning = &rule.meaning;
    let listed = |before: &str, names: &[String]| match names.is_empty() {
        true => String::new(),
        false => {
            format!("{before}{}", names.iter().map(|name| escape(name)).collect::<Vec<_>>().join(" or "))
        }
    };
    format!(
        "{:<12} {:<24} {:<8} {}{}{}{}{}{}{}",
        escape(meaning.software.as_deref().unwrap_or("-")),
        escape(&meaning.name),
        if meaning.idle { "idle" } else { "not idle" },
        listed("in ", &rule.functions),
        listed(", called by ", &rule.callers),
        listed(", directly called by ", &rule.direct_callers),
        listed(", called through unnamed functions by ", &rule.named_callers),
        listed(", of ", &rule.modules),
        if rule.waits_itself { ", which waits itself" } else { "" },
        if rule.after_sleep { ", at once after a sleep in one function" } else { "" }
    )
}
