// SPDX-License-Identifier: Apache-2.0
//! The options of `record` as values, from the command line's texts.
//!
//! Pure: `check` looks whether processes and events exist.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use wallprof_analysis::ns_from_duration;
use wallprof_meaning::waits::Rules;
use wallprof_model::{Labels, SpanBudgets};
use wallprof_probe::events::split_list;
use wallprof_recording::Retention;

use crate::args::{CallGraph, RecordArgs};
use crate::budgets::budgets_from_texts;
use crate::cpu_list::cpus_from_option;
use crate::failure::Failure;
use crate::guarded::Guarded;
use crate::labels::labels_from_texts;
use crate::record::target::Target;
use crate::span_options::{SpanOptions, spans_from_texts};

/// The options of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordOptions {
    pub target: Target,
    /// The command to start; the recording ends with it. With [`Target::Command`] it is the target.
    pub command: Option<Vec<OsString>>,
    /// Sorted, each once; `None`: all of them.
    pub cpus: Option<Vec<u32>>,
    pub guarded: Guarded,
    /// Where the recorder runs; `None`: as [`super::placement`] chooses.
    pub recorder_cpus: Option<Vec<u32>>,
    pub duration: Option<Duration>,
    /// 0: no samples.
    pub sample_hz: u32,
    /// In perf's syntax, one event each.
    pub events: Vec<String>,
    pub min_stall_ns: u64,
    pub call_graph: CallGraph,
    pub output: PathBuf,
    pub labels: Labels,
    pub budgets: SpanBudgets,
    pub spans: SpanOptions,
    /// Bounds of the recording; `None`: everything is kept.
    pub retention: Option<Retention>,
    /// About what waits mean.
    pub rules: Arc<Rules>,
    pub verbose: bool,
}

impl RecordOptions {
    pub fn from_args(args: RecordArgs) -> Result<Self, Failure> {
        let cpus = args.cpus.as_deref().map(|list| cpus_from_option("-C", list)).transpose()?;
        Ok(RecordOptions {
            target: Target::from_args(&args)?,
            cpus,
            guarded: Guarded::from_options(args.guard_cpus.as_deref(), &args.allow)?,
            recorder_cpus: args
                .recorder_cpus
                .as_deref()
                .map(|list| cpus_from_option("--recorder-cpus", list))
                .transpose()?,
            duration: args.duration.as_deref().map(duration).transpose()?,
            sample_hz: sample_hz(&args.sample_hz)?,
            events: events(&args.events)?,
            min_stall_ns: min_stall_ns(&args.min_stall)?,
            call_graph: args.call_graph,
            output: args.output,
            labels: labels_from_texts(args.labels.iter().map(String::as_str))
                .map_err(|error| Failure::usage(format!("--label: {error}")))?,
            budgets: budgets_from_texts(args.budgets.iter().map(String::as_str))
                .map_err(|error| Failure::usage(format!("--budget: {error}")))?,
            spans: spans_from_texts(args.spans.iter().map(String::as_str))
                .map_err(|error| Failure::usage(format!("--span: {error}")))?,
            retention: None,
            rules: Arc::new(args.meaning.rules()?),
            verbose: args.verbose,
            command: Some(args.command).filter(|command| !command.is_empty()),
        })
    }
}

#[cfg(test)]
impl RecordOptions {
    /// A recording of `target` into `output` with default options.
    pub(crate) fn of(target: Target, output: impl Into<PathBuf>) -> Self {
        RecordOptions {
            target,
            command: None,
            cpus: None,
            guarded: Guarded::default(),
            recorder_cpus: None,
            duration: None,
            sample_hz: 99,
            events: Vec::new(),
            min_stall_ns: 100_000,
            call_graph: CallGraph::Auto,
            output: output.into(),
            labels: Labels::new(),
            budgets: SpanBudgets::new(),
            spans: SpanOptions::default(),
            retention: None,
            rules: Arc::default(),
            verbose: false,
        }
    }
}

fn duration(text: &str) -> Result<Duration, Failure> {
    match ns_from_duration(text) {
        Ok(0) => Err(Failure::usage("-d 0 would record nothing: give a duration such as 30s, or omit -d")),
        Ok(ns) => Ok(Duration::from_nanos(ns)),
        Err(error) => Err(Failure::usage(format!("-d: {error}"))),
    }
}

fn sample_hz(text: &str) -> Result<u32, Failure> {
    match text.parse::<u32>() {
        Ok(hz) if !text.starts_with('+') => Ok(hz),
        _ => Err(Failure::usage(format!("-F takes a number of samples a second such as 99, not `{text}`"))),
    }
}

fn events(lists: &[String]) -> Result<Vec<String>, Failure> {
    let mut events: Vec<String> = Vec::new();
    for event in lists.iter().flat_map(|list| split_list(list)) {
        if event.is_empty() {
            return Err(Failure::usage(
                "-e takes events such as page-faults or sched:sched_switch: one is empty",
            ));
        }
        if !events.iter().any(|known| known == event) {
            events.push(event.to_string());
        }
    }
    Ok(events)
}

/// A number without a unit could mean seconds or microseconds: only 0 needs none.
fn min_stall_ns(text: &str) -> Result<u64, Failure> {
    match ns_from_duration(text) {
        Ok(ns) if ns > 0 && text.trim().ends_with(|c: char| c.is_ascii_digit() || c == '.') => Err(
            Failure::usage(format!("--min-stall {text} has no unit: write {text}us, {text}ms or {text}s")),
        ),
        Ok(ns) => Ok(ns),
        Err(error) => Err(Failure::usage(format!("--min-stall: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Exit;

    fn args() -> RecordArgs {
        RecordArgs { sample_hz: "99".into(), min_stall: "100us".into(), ..RecordArgs::default() }
    }

    fn refused(args: RecordArgs) -> String {
        let failure = RecordOptions::from_args(args).unwrap_err();
        assert_eq!(failure.exit, Exit::Usage);
        failure.message
    }

    #[test]
    fn durations_and_rates() {
        let options = RecordOptions::from_args(RecordArgs {
            all: true,
            duration: Some("1.5".into()),
            sample_hz: "1".into(),
            min_stall: "50us".into(),
            ..args()
        });
        let options = options.unwrap();
        assert_eq!(options.duration, Some(Duration::from_millis(1500)));
        assert_eq!((options.sample_hz, options.min_stall_ns), (1, 50_000));
        for hz in ["+0", "-1", "x", "", "99Hz", "4294967296"] {
            assert!(refused(RecordArgs { all: true, sample_hz: hz.into(), ..args() }).contains("-F"), "{hz}");
        }
        for text in ["0", "x", "-1", "", "5 parsecs"] {
            assert!(
                refused(RecordArgs { all: true, duration: Some(text.into()), ..args() }).contains("-d"),
                "{text}"
            );
        }
    }

    #[test]
    fn min_stall_needs_a_unit() {
        assert_eq!(min_stall_ns("0"), Ok(0));
        assert_eq!(min_stall_ns("1ms"), Ok(1_000_000));
        assert!(min_stall_ns("100").unwrap_err().message.contains("100us"));
        assert!(min_stall_ns("fast").unwrap_err().message.starts_with("--min-stall: "));
    }

    #[test]
    fn event_lists_are_split_without_duplicates() {
        let read = |lists: &[&str]| events(&lists.iter().map(|list| list.to_string()).collect::<Vec<_>>());
        assert_eq!(read(&["cs,cpu/a=1,b=2/", "cs"]).unwrap(), ["cs", "cpu/a=1,b=2/"]);
        assert!(read(&["cs,"]).is_err() && read(&[""]).is_err());
    }
}
