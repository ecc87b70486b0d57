// SPDX-License-Identifier: Apache-2.0
//! Events written in the terms of a PMU: `cpu/event=0x3c,umask=0x1,name=busy/`.
//!
//! sysfs defines the bits of `config`, `config1` and `config2` that a term fills (`format/TERM`, as
//! `config:0-7,32-35`), and the names that stand for several terms (`events/NAME`, as
//! `event=0xcd,umask=0x1`): Documentation/ABI/testing/sysfs-bus-event_source-devices-{format,events}.

use super::error::EventError;
use super::source::{EventSources, can_sample, pmu_directory, sampling_pmus};
use super::spec::{PerfEventSpec, Sampling};
use crate::facts::files::Files;

/// The event `pmu/terms/`; `event` is its text, for messages and as its name.
pub(super) fn pmu_event(
    event: &str,
    pmu: &str,
    terms: &str,
    sources: &EventSources,
) -> Result<PerfEventSpec, EventError> {
    let mut builder = Builder::new(event, pmu, sources.files)?;
    for term in terms.split(',').filter(|term| !term.is_empty()) {
        builder.add(term)?;
    }
    Ok(builder.spec)
}

/// The event of any sampling PMU that has this name in sysfs, such as `mem-loads`.
pub(super) fn named_event(name: &str, sources: &EventSources) -> Option<PerfEventSpec> {
    let pmu =
        sampling_pmus(sources.files).into_iter().find(|pmu| alias(sources.files, pmu, name).is_some())?;
    pmu_event(name, &pmu, name, sources).ok()
}

/// `pmu/event/` for every named event of the PMUs that can sample.
pub(super) fn named_events(files: &dyn Files) -> Vec<String> {
    let pmus = sampling_pmus(files).into_iter();
    pmus.flat_map(|pmu| alias_names(files, &pmu).into_iter().map(move |alias| format!("{pmu}/{alias}/")))
        .collect()
}

/// An event under construction.
struct Builder<'a> {
    files: &'a dyn Files,
    event: &'a str,
    pmu: &'a str,
    spec: PerfEventSpec,
}

impl<'a> Builder<'a> {
    fn new(event: &'a str, pmu: &'a str, files: &'a dyn Files) -> Result<Self, EventError> {
        if !is_name(pmu) {
            return Err(EventError::Malformed { event: event.to_string() });
        }
        let event_type =
            files.read(&pmu_directory(pmu).join("type")).ok().and_then(|text| text.trim().parse().ok());
        let Some(event_type) = event_type else {
            let known = sampling_pmus(files);
            return Err(EventError::UnknownPmu { event: event.to_string(), pmu: pmu.to_string(), known });
        };
        if !can_sample(files, pmu) {
            return Err(EventError::PmuCannotSample { event: event.to_string(), pmu: pmu.to_string() });
        }
        Ok(Builder { files, event, pmu, spec: PerfEventSpec::new(event, event_type, 0, Sampling::Frequency) })
    }

    /// One term as the user wrote it: a value, a flag, or a name that stands for several.
    fn add(&mut self, term: &str) -> Result<(), EventError> {
        match term.split_once('=') {
            Some(("name", name)) => {
                self.spec.name = name.to_string();
                Ok(())
            }
            Some((name, value)) => self.set(name, value),
            None => match alias(self.files, self.pmu, term) {
                Some(terms) => self.add_alias(&terms),
                None => self.set(term, "1"),
            },
        }
    }

    fn add_alias(&mut self, terms: &str) -> Result<(), EventError> {
        for term in terms.trim().split(',') {
            match term.split_once('=') {
                // The user must set this: `ldlat=?`. perf starts it at 0 as well when it is left out.
                Some((_, "?")) => {}
                Some((name, value)) => self.set(name, value)?,
                None => self.set(term, "1")?,
            }
        }
        Ok(())
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), EventError> {
        let bad_value = || EventError::BadTermValue { event: self.event.to_string(), term: name.to_string() };
        let number = number(value).ok_or_else(bad_value)?;
        let words = [&mut self.spec.config, &mut self.spec.config1, &mut self.spec.config2];
        if let Some(whole) = word_from_name(name) {
            *words[whole] = number;
            return Ok(());
        }
        let Some(format) = term_format(self.files, self.pmu, name) else {
            return Err(self.unknown_term(name));
        };
        let bits = format.spread(number).ok_or_else(bad_value)?;
        *words[format.word] = *words[format.word] & !format.mask() | bits;
        Ok(())
    }

    fn unknown_term(&self, term: &str) -> EventError {
        let mut known = self.files.list(&pmu_directory(self.pmu).join("format")).unwrap_or_default();
        known.extend(["config", "config1", "config2", "name"].map(String::from));
        known.extend(alias_names(self.files, self.pmu));
        EventError::UnknownTerm { event: self.event.to_string(), term: term.to_string(), known }
    }
}

/// The destination of a term's value: a config word and bit ranges of it, lowest value bits first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    word: usize,
    ranges: Vec<(u32, u32)>,
}

impl Format {
    /// Reads `config1:0-7,32-35`.
    fn parse(text: &str) -> Option<Self> {
        let (word, ranges) = text.trim().split_once(':')?;
        let ranges = ranges.split(',').map(range).collect::<Option<Vec<_>>>()?;
        Some(Format { word: word_from_name(word)?, ranges })
    }

    /// `value` spread over the ranges; `None` when it has more bits than they have.
    pub(crate) fn spread(&self, mut value: u64) -> Option<u64> {
        let mut bits = 0;
        for &(from, to) in &self.ranges {
            bits |= (value & low_bits(to - from + 1)) << from;
            value = value.checked_shr(to - from + 1).unwrap_or(0);
        }
        (value == 0).then_some(bits)
    }

    pub(crate) fn mask(&self) -> u64 {
        self.ranges.iter().fold(0, |mask, &(from, to)| mask | low_bits(to - from + 1) << from)
    }
}

fn word_from_name(name: &str) -> Option<usize> {
    ["config", "config1", "config2"].iter().position(|word| *word == name)
}

fn range(text: &str) -> Option<(u32, u32)> {
    let (from, to) = text.split_once('-').unwrap_or((text, text));
    let (from, to) = (from.parse().ok()?, to.parse().ok()?);
    (from <= to && to < 64).then_some((from, to))
}

fn low_bits(count: u32) -> u64 {
    u64::MAX >> (64 - count)
}

fn number(text: &str) -> Option<u64> {
    let digits = |text: &str| !text.starts_with('+');
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) if digits(hex) => u64::from_str_radix(hex, 16).ok(),
        None if digits(text) => text.parse().ok(),
        _ => None,
    }
}

pub(crate) fn term_format(files: &dyn Files, pmu: &str, term: &str) -> Option<Format> {
    let path = pmu_directory(pmu).join("format").join(Some(term).filter(|term| is_name(term))?);
    Format::parse(&files.read(&path).ok()?)
}

fn alias(files: &dyn Files, pmu: &str, name: &str) -> Option<String> {
    let path = pmu_directory(pmu).join("events").join(Some(name).filter(|name| is_name(name))?);
    files.read(&path).ok()
}

/// Besides an event's file there may be its `.scale`, `.unit`, `.snapshot` and `.per-pkg`.
fn alias_names(files: &dyn Files, pmu: &str) -> Vec<String> {
    let names = files.list(&pmu_directory(pmu).join("events")).unwrap_or_default();
    names.into_iter().filter(|name| !name.contains('.')).collect()
}

/// Only valid names of sysfs files: the name becomes part of a path.
fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    !name.is_empty() && name.chars().all(plain) && !name.starts_with('.')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::files::fake::FakeFiles;

    const DEVICES: &str = "/sys/bus/event_source/devices";

    fn files() -> FakeFiles {
        let at = |path: &str| format!("{DEVICES}/{path}");
        FakeFiles::new(&[
            (&at("cpu/type"), "4\n"),
            (&at("cpu/format/event"), "config:0-7,32-35\n"),
            (&at("cpu/format/umask"), "config:8-15\n"),
            (&at("cpu/format/inv"), "config:23\n"),
            (&at("cpu/format/ldlat"), "config1:0-15\n"),
            (&at("cpu/format/all"), "config2:0-63\n"),
            (&at("cpu/format/odd"), "config:9-3\n"),
            (&at("cpu/events/cpu-cycles"), "event=0x3c\n"),
            (&at("cpu/events/mem-loads"), "event=0xcd,umask=0x1,ldlat=?\n"),
            (&at("cpu/events/mem-loads.unit"), "x\n"),
            (&at("uncore_imc/type"), "12\n"),
            (&at("uncore_imc/cpumask"), "0\n"),
            (&at("uprobe/type"), "8\n"),
        ])
    }

    fn parse(pmu: &str, terms: &str) -> Result<PerfEventSpec, EventError> {
        pmu_event("the event", pmu, terms, &EventSources { files: &files(), tracefs: None })
    }

    fn configs(terms: &str) -> (u64, u64, u64) {
        let spec = parse("cpu", terms).unwrap();
        assert_eq!(spec.event_type, 4);
        (spec.config, spec.config1, spec.config2)
    }

    #[test]
    fn terms_fill_the_bits_that_sysfs_names() {
        assert_eq!(configs("event=0x3c,umask=1"), (0x13c, 0, 0));
        assert_eq!(configs("event=0x3c2"), (0xc2 | 3 << 32, 0, 0));
        assert_eq!(configs("event=0x3c,inv"), (0x3c | 1 << 23, 0, 0));
        assert_eq!(configs("config=0x1a8,config1=2,config2=3"), (0x1a8, 2, 3));
        assert_eq!(configs("all=0xffffffffffffffff"), (0, 0, u64::MAX));
        assert_eq!(configs(""), (0, 0, 0));
    }

    #[test]
    fn a_named_event_stands_for_its_terms_and_later_ones_win() {
        assert_eq!(configs("cpu-cycles"), (0x3c, 0, 0));
        assert_eq!(configs("mem-loads,ldlat=30"), (0x1cd, 30, 0));
        assert_eq!(configs("mem-loads,umask=2"), (0x2cd, 0, 0));
        assert_eq!(parse("cpu", "event=1,name=mine").unwrap().name, "mine");
    }

    #[test]
    fn a_bare_name_is_found_on_its_pmu() {
        let files = files();
        let sources = EventSources { files: &files, tracefs: None };
        let spec = named_event("mem-loads", &sources).unwrap();
        assert_eq!((spec.name.as_str(), spec.config), ("mem-loads", 0x1cd));
        assert_eq!(named_event("mem-stores", &sources), None);
        assert_eq!(named_events(&files), ["cpu/cpu-cycles/", "cpu/mem-loads/"]);
    }

    #[test]
    fn wrong_terms_are_named() {
        let error = |pmu, terms| parse(pmu, terms).unwrap_err();
        assert!(matches!(error("gpu", ""), EventError::UnknownPmu { known, .. } if known == ["cpu"]));
        assert!(matches!(error("uncore_imc", ""), EventError::PmuCannotSample { .. }));
        assert!(matches!(error("uprobe", ""), EventError::PmuCannotSample { .. }));
        assert!(matches!(error("cpu", "evnt=1"), EventError::UnknownTerm { term, .. } if term == "evnt"));
        assert!(matches!(error("cpu", "odd=1"), EventError::UnknownTerm { .. }));
        for terms in ["umask=0x100", "umask=", "umask=x", "event=-1", "umask=+1", "umask=0x+1", "inv=2"] {
            assert!(matches!(error("cpu", terms), EventError::BadTermValue { .. }), "{terms}");
        }
    }

    #[test]
    fn names_cannot_leave_sysfs() {
        for pmu in ["..", "../../proc", ""] {
            assert!(matches!(parse(pmu, "x=1"), Err(EventError::Malformed { .. })), "{pmu}");
        }
        assert!(matches!(parse("cpu", "../type=1"), Err(EventError::UnknownTerm { .. })));
    }
}
