// SPDX-License-Identifier: Apache-2.0
//! The configuration file: TOML with the names of the command line's options, and where each value stands.
//!
//! Pure: text in, values with their lines out. Values are interpreted together with the command line's
//! options; an error there names the line that is kept here.

use std::fmt;

use serde::Deserialize;
use toml::Spanned;

/// A value as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub text: String,
    /// The first line is 1.
    pub line: usize,
}

/// The values of the file; `None` for an absent one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    pub targets: TargetEntries,
    pub label: Option<Entry>,
    pub budget: Option<Entry>,
    pub span: Vec<Entry>,
    pub threshold: Option<Entry>,
    pub severity: Option<Entry>,
    pub listen: Option<Entry>,
    pub socket: Option<Entry>,
    pub host_names: Option<Entry>,
    pub output: Option<Entry>,
    pub keep: Option<Entry>,
    pub keep_size: Option<Entry>,
    pub on: Option<Entry>,
    pub snapshot: Option<Entry>,
    pub parquet: Option<Entry>,
    pub parquet_size: Option<Entry>,
    pub guard_cpus: Option<Entry>,
    pub recorder_cpus: Option<Entry>,
    pub allow: Option<Entry>,
    pub arm_at: Option<Entry>,
    pub disarm_at: Option<Entry>,
    pub max_cpu: Option<Entry>,
    pub freq: Option<Entry>,
    pub max_series: Option<Entry>,
    pub label_containers: bool,
}

/// The targets in the file. Items of lists are joined by commas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetEntries {
    pub pid: Option<Entry>,
    pub tid: Option<Entry>,
    pub name: Option<Entry>,
    pub cgroup: Option<Entry>,
    pub all: bool,
    pub children: bool,
}

/// An error in a configuration, with its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    pub line: usize,
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.message)
    }
}

/// A value where TOML lets people write a text, a number, or a table of severities.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Value {
    Text(String),
    Whole(i64),
    Fraction(f64),
    Table(toml::Table),
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Texts {
    One(String),
    Several(Vec<String>),
}

/// A target, or several.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Targets {
    One(Target),
    Several(Vec<Target>),
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Target {
    Name(String),
    Id(i64),
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct File {
    pid: Option<Spanned<Targets>>,
    tid: Option<Spanned<Targets>>,
    name: Option<Spanned<Targets>>,
    cgroup: Option<Spanned<String>>,
    all: bool,
    children: bool,
    label: Option<Spanned<Value>>,
    budget: Option<Spanned<Value>>,
    span: Option<Spanned<Texts>>,
    threshold: Option<Spanned<Value>>,
    severity: Option<Spanned<Value>>,
    listen: Option<Spanned<Value>>,
    socket: Option<Spanned<Value>>,
    host_names: Option<Spanned<Value>>,
    output: Option<Spanned<Value>>,
    keep: Option<Spanned<Value>>,
    keep_size: Option<Spanned<Value>>,
    on: Option<Spanned<Value>>,
    snapshot: Option<Spanned<Value>>,
    parquet: Option<Spanned<Value>>,
    parquet_size: Option<Spanned<Value>>,
    guard_cpus: Option<Spanned<Value>>,
    recorder_cpus: Option<Spanned<Value>>,
    allow: Option<Spanned<Value>>,
    arm_at: Option<Spanned<Value>>,
    disarm_at: Option<Spanned<Value>>,
    max_cpu: Option<Spanned<Value>>,
    freq: Option<Spanned<Value>>,
    max_series: Option<Spanned<Value>>,
    label_containers: bool,
}

impl Config {
    /// # Errors
    /// The text is not TOML, or has a name that no option has; with the line.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let file: File = toml::from_str(text).map_err(|error| error_from_toml(&error, text))?;
        let list = |value: Option<Spanned<Targets>>| value.map(|value| list_entry(value, text));
        let path = |value: Spanned<String>| Entry {
            line: line_at(text, value.span().start),
            text: value.into_inner(),
        };
        let targets = TargetEntries {
            pid: list(file.pid),
            tid: list(file.tid),
            name: list(file.name),
            cgroup: file.cgroup.map(path),
            all: file.all,
            children: file.children,
        };
        let entry = |value: Option<Spanned<Value>>| value.map(|value| entry(value, text)).transpose();
        Ok(Config {
            targets,
            label: entry(file.label)?,
            budget: entry(file.budget)?,
            span: file.span.map_or_else(Vec::new, |value| text_entries(value, text)),
            threshold: entry(file.threshold)?,
            severity: entry(file.severity)?,
            listen: entry(file.listen)?,
            socket: entry(file.socket)?,
            host_names: entry(file.host_names)?,
            output: entry(file.output)?,
            keep: entry(file.keep)?,
            keep_size: entry(file.keep_size)?,
            on: entry(file.on)?,
            snapshot: entry(file.snapshot)?,
            parquet: entry(file.parquet)?,
            parquet_size: entry(file.parquet_size)?,
            guard_cpus: entry(file.guard_cpus)?,
            recorder_cpus: entry(file.recorder_cpus)?,
            allow: entry(file.allow)?,
            arm_at: entry(file.arm_at)?,
            disarm_at: entry(file.disarm_at)?,
            max_cpu: entry(file.max_cpu)?,
            freq: entry(file.freq)?,
            max_series: entry(file.max_series)?,
            label_containers: file.label_containers,
        })
    }
}

fn entry(value: Spanned<Value>, text: &str) -> Result<Entry, ConfigError> {
    let line = line_at(text, value.span().start);
    let text = match value.into_inner() {
        Value::Text(text) => text,
        Value::Whole(number) => number.to_string(),
        Value::Fraction(number) => number.to_string(),
        Value::Table(table) => list_from_table(&table).ok_or_else(|| ConfigError {
            line,
            message: "a table holds texts, such as { critical = \"500us\" }".into(),
        })?,
    };
    Ok(Entry { text, line })
}

/// Each with the line at which the first one begins.
fn text_entries(value: Spanned<Texts>, text: &str) -> Vec<Entry> {
    let line = line_at(text, value.span().start);
    let texts = match value.into_inner() {
        Texts::One(text) => vec![text],
        Texts::Several(texts) => texts,
    };
    texts.into_iter().map(|text| Entry { text, line }).collect()
}

fn list_entry(value: Spanned<Targets>, text: &str) -> Entry {
    let line = line_at(text, value.span().start);
    let targets = match value.into_inner() {
        Targets::One(target) => vec![target],
        Targets::Several(targets) => targets,
    };
    let texts = targets.into_iter().map(|target| match target {
        Target::Name(name) => name,
        Target::Id(id) => id.to_string(),
    });
    Entry { text: texts.collect::<Vec<_>>().join(","), line }
}

/// `{ warning = "100us" }` as the command line's `warning=100us`.
fn list_from_table(table: &toml::Table) -> Option<String> {
    let parts: Option<Vec<String>> =
        table.iter().map(|(name, value)| Some(format!("{name}={}", value.as_str()?))).collect();
    Some(parts?.join(","))
}

fn error_from_toml(error: &toml::de::Error, text: &str) -> ConfigError {
    let line = error.span().map_or(1, |span| line_at(text, span.start));
    let message: Vec<_> = error.message().split_whitespace().collect();
    ConfigError { line, message: message.join(" ") }
}

fn line_at(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(text: &str, line: usize) -> Option<Entry> {
        Some(Entry { text: text.into(), line })
    }

    #[test]
    fn one_span_or_several() {
        let spans = |text: &str| {
            let config = Config::parse(text).expect("a configuration");
            config.span.into_iter().map(|entry| (entry.text, entry.line)).collect::<Vec<_>>()
        };
        let span = |name: &str, line| (name.to_owned(), line);
        assert_eq!(spans("all = true\nspan = \"a\"\n"), [span("a", 2)]);
        assert_eq!(spans("span = [\"f<a, b>\",\n\"c\"]\n"), [span("f<a, b>", 1), span("c", 1)]);
        assert_eq!(spans("all = true\n"), []);
        assert!(Config::parse("span = 3").is_err());
    }

    #[test]
    fn values_are_the_texts_of_options_with_their_lines() {
        let config = Config::parse(
            "# what to watch\nthreshold = \"50us\"\nfreq = 49\nmax-cpu = \"0.5%\"\n\n[severity]\ncritical = \"1ms\"\n",
        );
        let config = config.expect("a configuration");
        assert_eq!((config.threshold, config.freq), (entry("50us", 2), entry("49", 3)));
        assert_eq!(config.max_cpu, entry("0.5%", 4));
        assert_eq!(config.severity.map(|entry| entry.text), Some("critical=1ms".into()));
        assert_eq!(config.listen, None);
    }

    #[test]
    fn severities_are_a_text_or_a_table() {
        let text =
            |text: &str| Config::parse(text).expect("a configuration").severity.map(|entry| entry.text);
        assert_eq!(text("severity = \"a=1ms,b=2ms\""), Some("a=1ms,b=2ms".into()));
        assert_eq!(text("severity = { a = \"1ms\", b = \"2ms\" }"), Some("a=1ms,b=2ms".into()));
    }

    #[test]
    fn targets_are_one_or_several() {
        let targets = |text: &str| Config::parse(text).expect("a configuration").targets;
        let one = targets("pid = 7\nname = \"feed*,nginx\"\ncgroup = \"/web\"\nchildren = true\n");
        assert_eq!((one.pid, one.name), (entry("7", 1), entry("feed*,nginx", 2)));
        assert_eq!((one.cgroup, one.children, one.all), (entry("/web", 3), true, false));
        let several = targets("all = true\npid = [7, \"8\"]\n\ntid = [9]\nname = [\"feed*\", \"nginx\"]\n");
        assert_eq!((several.pid, several.tid), (entry("7,8", 2), entry("9", 4)));
        assert_eq!((several.name, several.all), (entry("feed*,nginx", 5), true));
        assert_eq!(targets(""), TargetEntries::default());
        for wrong in ["\nall = 1", "\npid = 1.5", "\ncgroup = [\"a\"]", "\nname = [[\"a\"]]"] {
            assert_eq!(Config::parse(wrong).unwrap_err().line, 2, "{wrong}");
        }
    }

    #[test]
    fn errors_name_the_line_and_the_field() {
        let error = |text: &str| Config::parse(text).unwrap_err();
        let unknown = error("keep = \"1m\"\ntreshold = \"1ms\"\n");
        assert!(unknown.line == 2 && unknown.message.contains("treshold"), "{unknown}");
        assert_eq!(error("keep = \"1m\"\nlisten = \n").line, 2);
        assert_eq!(error("\n\nkeep = [1]\n").line, 3);
        assert!(error("severity = { a = 5 }").message.contains("500us"));
        assert_eq!(error("keep = \"1m\"\nkeep = \"2m\"").line, 2);
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "\\PC{0,80}") {
            let _ = Config::parse(&text);
        }
    }
}
