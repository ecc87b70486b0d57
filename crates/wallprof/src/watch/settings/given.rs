// SPDX-License-Identifier: Apache-2.0
//! One value of the command line or the configuration, with its origin, and its interpretation.

use std::fmt::Display;
use std::path::Path;

use wallprof_analysis::{bytes_from_size, ns_from_duration};
use wallprof_meaning::Glob;
use wallprof_model::{Labels, SpanBudgets};
use wallprof_probe::facts::files::HostFiles;
use wallprof_recording::Retention;
use wallprof_watch::{Entry, HostNames, Hours, Severities};

use crate::budgets::budgets_from_texts;
use crate::cpu_list::cpus_from_option;
use crate::failure::Failure;
use crate::guarded::Guarded;
use crate::labels::labels_from_texts;
use crate::span_options::{SpanOptions, spans_from_texts};
use crate::watch::tables::TableSettings;

/// The shortest flight recording that holds the snapshot of a spike.
const MIN_KEEP_NS: u64 = 30_000_000_000;
const MIN_KEEP_BYTES: u64 = 16 << 20;
const MIN_TABLES_BYTES: u64 = 64 << 20;
/// Labels and buckets of this many series take 5 MiB.
const SERIES_LIMIT: usize = 100_000;

/// The text of a value and its origin: an option, or a line of the file.
pub(super) struct Given {
    pub text: String,
    pub from: String,
}

impl Given {
    /// The option `name` of the command line, else the entry of the file.
    pub fn find(file: &Path, name: &str, option: &Option<String>, entry: &Option<Entry>) -> Option<Self> {
        match option {
            Some(text) => Some(Given { text: text.clone(), from: name.into() }),
            None => entry.as_ref().map(|entry| Given::of_entry(file, name, entry)),
        }
    }

    fn of_entry(file: &Path, name: &str, entry: &Entry) -> Self {
        Given {
            text: entry.text.clone(),
            from: format!("{}, line {}: {}", file.display(), entry.line, name.trim_start_matches('-')),
        }
    }

    pub fn wrong(&self, error: impl Display) -> Failure {
        Failure::usage(format!("{}: {error}", self.from))
    }
}

/// The name of this machine, and the given ones.
pub(super) fn host_names(given: Option<Given>) -> HostNames {
    let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let given = given.map(|given| given.text).unwrap_or_default();
    let names = given.split(',').map(str::trim).filter(|name| !name.is_empty());
    HostNames::new(names.map(str::to_owned).chain([own]))
}

/// The labels of the command line if it has any, else those of the file: a table, or a text with commas.
pub(super) fn labels(options: &[String], entry: Option<&Entry>, file: &Path) -> Result<Labels, Failure> {
    several("--label", options, entry, file, |texts| labels_from_texts(texts.iter().copied()))
}

/// The same for budgets.
pub(super) fn budgets(
    options: &[String],
    entry: Option<&Entry>,
    file: &Path,
) -> Result<SpanBudgets, Failure> {
    several("--budget", options, entry, file, |texts| budgets_from_texts(texts.iter().copied()))
}

/// The options `--span` of the command line if it has any, else those of the file.
pub(super) fn spans(options: &[String], entries: &[Entry], file: &Path) -> Result<SpanOptions, Failure> {
    if options.is_empty()
        && let Some(first) = entries.first()
    {
        let place = |entry: &Entry| Given::of_entry(file, "--span", entry);
        for entry in entries {
            spans_from_texts([entry.text.as_str()]).map_err(|error| place(entry).wrong(error))?;
        }
        let texts = entries.iter().map(|entry| entry.text.as_str());
        return spans_from_texts(texts).map_err(|error| place(first).wrong(error));
    }
    spans_from_texts(options.iter().map(String::as_str))
        .map_err(|error| Failure::usage(format!("--span: {error}")))
}

fn several<V>(
    name: &str,
    options: &[String],
    entry: Option<&Entry>,
    file: &Path,
    read: impl FnOnce(&[&str]) -> Result<V, String>,
) -> Result<V, Failure> {
    if let (true, Some(entry)) = (options.is_empty(), entry) {
        let given = Given::of_entry(file, name, entry);
        let texts: Vec<&str> = entry.text.split(',').map(str::trim).collect();
        return read(&texts).map_err(|error| given.wrong(error));
    }
    let texts: Vec<&str> = options.iter().map(String::as_str).collect();
    read(&texts).map_err(|error| Failure::usage(format!("{name}: {error}")))
}

/// A number without a unit could mean seconds or microseconds: it is refused.
pub(super) fn duration_ns(given: &Given) -> Result<u64, Failure> {
    let text = given.text.trim();
    match ns_from_duration(text) {
        Ok(0) => Err(given.wrong("0 is not a duration: write 50us or 10m")),
        Ok(_) if text.ends_with(|c: char| c.is_ascii_digit() || c == '.') => {
            Err(given.wrong(format!("{text} has no unit: write {text}us, {text}ms or {text}s")))
        }
        Ok(ns) => Ok(ns),
        Err(error) => Err(given.wrong(error)),
    }
}

pub(super) fn retention(keep: &Given, size: &Given) -> Result<Retention, Failure> {
    let keep_ns = duration_ns(keep)?;
    if keep_ns < MIN_KEEP_NS {
        return Err(keep.wrong("keep at least 30s: a snapshot must find the time around its stall"));
    }
    let keep_bytes = bytes_from_size(&size.text).map_err(|error| size.wrong(error))?;
    match keep_bytes < MIN_KEEP_BYTES {
        true => Err(size.wrong("keep at least 16MiB: names and stacks alone take several")),
        false => Ok(Retention { keep_ns, keep_bytes }),
    }
}

pub(super) fn tables(folder: Option<Given>, size: &Given) -> Result<Option<TableSettings>, Failure> {
    let keep_bytes = bytes_from_size(&size.text).map_err(|error| size.wrong(error))?;
    if keep_bytes < MIN_TABLES_BYTES {
        return Err(size.wrong("keep at least 64MiB: five busy minutes take several"));
    }
    Ok(folder.map(|folder| TableSettings { folder: folder.text.into(), keep_bytes }))
}

pub(super) fn cpus(given: Option<Given>) -> Result<Option<Vec<u32>>, Failure> {
    given.map(|given| cpus_from_option(&given.from, &given.text)).transpose()
}

/// The guarded CPUs; without --guard-cpus those that the kernel isolates.
pub(super) fn guarded(cpus: Option<Given>, allow: Option<Given>) -> Result<Guarded, Failure> {
    let list = self::cpus(cpus)?;
    let allowed = allow.map(globs).transpose()?.unwrap_or_default();
    let named = Guarded { cpus: list.unwrap_or_default(), allowed };
    Ok(named.or_isolated(&HostFiles))
}

fn globs(given: Given) -> Result<Vec<Glob>, Failure> {
    given.text.split(',').map(|text| Glob::new(text.trim()).map_err(|error| given.wrong(error))).collect()
}

/// The severity of --on, which must be one of --severity.
pub(super) fn severity_of_snapshots(
    given: Option<Given>,
    severities: &Severities,
) -> Result<Option<String>, Failure> {
    let Some(given) = given else { return Ok(None) };
    match severities.least_ns(&given.text) {
        Some(_) => Ok(Some(given.text)),
        None => {
            let names: Vec<_> = severities.names().collect();
            Err(given.wrong(format!("`{}` is not a severity: use one of {}", given.text, names.join(", "))))
        }
    }
}

pub(super) fn hours(arm: Option<Given>, disarm: Option<Given>) -> Result<Option<Hours>, Failure> {
    match (arm, disarm) {
        (None, None) => Ok(None),
        (Some(arm), Some(disarm)) => {
            Hours::parse(&arm.text, &disarm.text).map(Some).map_err(|error| arm.wrong(error))
        }
        (Some(given), None) => Err(given.wrong("it needs --disarm-at: give both")),
        (None, Some(given)) => Err(given.wrong("it needs --arm-at: give both")),
    }
}

/// `0.5%` of one CPU, as a fraction.
pub(super) fn share_of_cpu(given: Given) -> Result<f64, Failure> {
    let percent = given.text.trim().strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
    match percent {
        Some(percent) if percent > 0.0 && percent <= 10_000.0 => Ok(percent / 100.0),
        _ => Err(given.wrong(format!("`{}` is not a share of a CPU: write 0.5%", given.text))),
    }
}

pub(super) fn max_series(given: &Given) -> Result<usize, Failure> {
    match given.text.parse() {
        Ok(series @ 1..=SERIES_LIMIT) => Ok(series),
        _ => Err(given.wrong(format!("`{}` is not a number from 1 to {SERIES_LIMIT}", given.text))),
    }
}
