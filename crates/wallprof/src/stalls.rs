// SPDX-License-Identifier: Apache-2.0
//! `wallprof stalls`: groups of stalls with equal stacks, or the stalls one by one, as they are read.

use std::collections::HashMap;
use std::io::Write;
use std::process::ExitCode;

use wallprof_analysis::counters::{marks_around, moved, time_around};
use wallprof_analysis::receive::backlog;
use wallprof_analysis::spans::SpansAround;
use wallprof_analysis::{EqualStacks, Holders, Timepoint, Zone, ns_from_duration};
use wallprof_model::profile::{RecordingInfo, StallRecord};
use wallprof_model::{Mark, MonoNs, StallKind, StallReason, ThreadInfo, ThreadKey};
use wallprof_recording::{Counters, Recording, StallFilter, Stalls};
use wallprof_views::{StallGroupsText, StallsText, Style, Surroundings, stall_json};

use crate::args::StallsArgs;
use crate::failure::Failure;
use crate::meanings::open_recording;
use crate::output::{WriteFailure, to_stdout};
use crate::terminal::style_for_stdout;
use crate::threads::Threads;

/// Runs the command. The options are checked before the file is opened.
pub fn run(args: &StallsArgs) -> Result<ExitCode, Failure> {
    let criteria = Criteria::from_args(args)?;
    let recording = open_recording(&args.file, &args.meaning.rules()?)?;
    let info = recording.info()?;
    let style = style_for_stdout();
    let stalls = recording.stalls(&criteria.filter(&recording, &info, &style.zone)?)?;
    let stalls = Selected { stalls, id: args.id, found: false };
    // The stall of an id is shown by itself.
    let each = args.each || args.id.is_some();
    let holders = if args.json || each { holders(&recording)? } else { Holders::default() };
    let mut context = Context {
        has_voluntary: criteria.all,
        counters: recording.counters()?,
        marks: recording.marks()?,
        spans: SpansAround::new(recording.spans()?),
        holders,
        containers: containers(&recording)?,
    };
    to_stdout(|out| match (args.json, each) {
        (true, _) => write_json(out, stalls, &mut context, &info),
        (false, true) => write_each(out, stalls, &mut context, &info, &style),
        (false, false) => write_groups(out, stalls, &mut context, &info, &style, (&recording, args.top)),
    })?;
    Ok(ExitCode::SUCCESS)
}

fn containers(recording: &Recording) -> Result<HashMap<ThreadKey, (String, Option<String>)>, Failure> {
    let infos = recording.thread_infos()?;
    let of = |thread: &ThreadInfo| Some((thread.key, (thread.container()?, thread.pod_name())));
    Ok(infos.iter().filter_map(of).collect())
}

/// What the threads did that held locks for which others waited.
fn holders(recording: &Recording) -> Result<Holders, Failure> {
    let mut holders = Holders::default();
    let waits = StallFilter { for_locks: true, include_voluntary: true, ..StallFilter::default() };
    for wait in recording.stalls(&waits)? {
        holders.add_wait(&wait?);
    }
    let threads = holders.threads();
    if !threads.is_empty() {
        let theirs =
            StallFilter { threads: Some(threads), include_voluntary: true, ..StallFilter::default() };
        for stall in recording.stalls(&theirs)? {
            holders.add(&stall?);
        }
    }
    Ok(holders.sorted())
}

/// What is known of a recording beside its stalls, and the holders of locks.
struct Context<'r> {
    /// Voluntary waits are among the stalls.
    has_voluntary: bool,
    counters: Counters<'r>,
    marks: Vec<Mark>,
    spans: SpansAround,
    holders: Holders,
    /// Of threads in containers: its id, and its name in Kubernetes.
    containers: HashMap<ThreadKey, (String, Option<String>)>,
}

impl Context<'_> {
    fn surroundings(&mut self, stall: &StallRecord) -> Result<Surroundings, Failure> {
        let time = stall.start..stall.end;
        let (counters, backlog) = match self.counters.is_empty() {
            true => (None, None),
            false => {
                let tracks = self.counters.around(stall.pid, time_around(time.clone()))?;
                let backlog = backlog(tracks.iter().copied(), time.clone()).filter(|_| !stall.voluntary);
                (Some(moved(tracks, time.clone())), backlog)
            }
        };
        let marks = marks_around(&self.marks, time).cloned().collect();
        let spans = self.spans.of(stall);
        let (container, pod) = self.containers.get(&stall.thread).cloned().unzip();
        let pod = pod.flatten();
        let holder = self.holders.during(stall);
        Ok(Surroundings { counters, backlog, marks, spans, container, pod, holder })
    }
}

fn write_json(
    mut out: &mut dyn Write,
    stalls: Selected,
    context: &mut Context<'_>,
    info: &RecordingInfo,
) -> Result<(), WriteFailure> {
    for stall in stalls {
        let stall = stall?;
        stall_json(&mut out, &stall, &context.surroundings(&stall)?, &info.clock)?;
    }
    Ok(())
}

fn write_each(
    mut out: &mut dyn Write,
    stalls: Selected,
    context: &mut Context<'_>,
    info: &RecordingInfo,
    style: &Style,
) -> Result<(), WriteFailure> {
    let mut text = StallsText::new(info, style);
    for stall in stalls {
        let stall = stall?;
        text.write(&mut out, &stall, &context.surroundings(&stall)?)?;
    }
    Ok(text.finish(&mut out, context.has_voluntary)?)
}

fn write_groups(
    mut out: &mut dyn Write,
    stalls: Selected,
    context: &mut Context<'_>,
    info: &RecordingInfo,
    style: &Style,
    (recording, top): (&Recording, usize),
) -> Result<(), WriteFailure> {
    let mut stacks = EqualStacks::default();
    for stall in stalls {
        stacks.add(stall?);
    }
    let mut text = StallGroupsText::new(info, style);
    for group in stacks.ranked().into_iter().take(top) {
        let found = recording.stall(group.longest).map_err(Failure::from)?;
        let longest = found.ok_or_else(|| no_such_stall(group.longest))?;
        text.write(&mut out, group, &longest, &context.surroundings(&longest)?)?;
    }
    Ok(text.finish(&mut out, &stacks, context.has_voluntary)?)
}

/// All stalls, or the one with this id.
struct Selected<'a> {
    stalls: Stalls<'a>,
    id: Option<u64>,
    found: bool,
}

impl Iterator for Selected<'_> {
    type Item = Result<StallRecord, Failure>;

    /// # Errors
    /// The recording cannot be read, or has no stall with this id.
    fn next(&mut self) -> Option<Self::Item> {
        let Some(id) = self.id else { return self.stalls.next().map(|stall| stall.map_err(Failure::from)) };
        if self.found {
            return None;
        }
        self.found = true;
        let stall = self.stalls.find(|stall| stall.as_ref().map_or(true, |stall| stall.id == id));
        Some(match stall {
            Some(stall) => stall.map_err(Failure::from),
            None => Err(no_such_stall(id)),
        })
    }
}

fn no_such_stall(id: u64) -> Failure {
    Failure::failed(format!(
        "there is no stall {id}: it may be older than the recording; `wallprof stalls --each` lists the others"
    ))
}

/// The options, read but not yet applied to a recording.
struct Criteria {
    kind: Option<StallKind>,
    reason: Option<StallReason>,
    min_late_ns: u64,
    threads: Threads,
    trace: Option<String>,
    from: Option<Timepoint>,
    to: Option<Timepoint>,
    all: bool,
}

impl Criteria {
    fn from_args(args: &StallsArgs) -> Result<Self, Failure> {
        let longer_than = args.longer_than.as_deref().map(ns_from_duration).transpose();
        Ok(Criteria {
            kind: args.kind,
            reason: args.reason,
            min_late_ns: longer_than.map_err(|error| usage("--longer-than", error))?.unwrap_or(0),
            threads: Threads::from_args(args.thread.as_deref(), args.container.as_deref())?,
            trace: args.trace.clone(),
            from: timepoint("--from", args.from.as_deref())?,
            to: timepoint("--to", args.to.as_deref())?,
            // A voluntary reason that is given by name is meant to be shown.
            all: args.all
                || args.id.is_some()
                // Whatever the thread waited for, the trace waited as well.
                || args.trace.is_some()
                || matches!(args.reason, Some(StallReason::Blocked(reason)) if reason.is_voluntary()),
        })
    }

    fn filter(
        &self,
        recording: &Recording,
        info: &RecordingInfo,
        zone: &Zone,
    ) -> Result<StallFilter, Failure> {
        Ok(StallFilter {
            kind: self.kind,
            reason: self.reason,
            min_late_ns: self.min_late_ns,
            threads: self.threads.keys(recording)?,
            during: self.during(info, zone)?,
            include_voluntary: self.all,
            for_locks: false,
            trace: self.trace.clone(),
        })
    }

    fn during(&self, info: &RecordingInfo, zone: &Zone) -> Result<Option<std::ops::Range<MonoNs>>, Failure> {
        if self.from.is_none() && self.to.is_none() {
            return Ok(None);
        }
        let resolve = |option, point: &Option<Timepoint>, otherwise| match point {
            Some(point) => point.resolve(info, zone).map_err(|error| usage(option, error)),
            None => Ok(otherwise),
        };
        let (from, to) =
            (resolve("--from", &self.from, MonoNs(0))?, resolve("--to", &self.to, MonoNs(u64::MAX))?);
        match from < to {
            true => Ok(Some(from..to)),
            false => Err(Failure::usage("--from is not before --to: give the earlier time to --from")),
        }
    }
}

fn timepoint(option: &str, text: Option<&str>) -> Result<Option<Timepoint>, Failure> {
    text.map(Timepoint::parse).transpose().map_err(|error| usage(option, error))
}

fn usage(option: &str, error: impl std::fmt::Display) -> Failure {
    Failure::usage(format!("{option}: {error}"))
}

#[cfg(test)]
mod tests {
    use wallprof_model::Reason;

    use super::*;
    use crate::args::MeaningArgs;

    fn args() -> StallsArgs {
        StallsArgs {
            file: "x.db".into(),
            json: false,
            each: false,
            top: 50,
            longer_than: None,
            container: None,
            thread: None,
            kind: None,
            reason: None,
            trace: None,
            from: None,
            to: None,
            id: None,
            all: false,
            meaning: MeaningArgs::default(),
        }
    }

    fn text(text: &str) -> Option<String> {
        Some(text.to_string())
    }

    #[test]
    fn options_are_read() {
        let criteria = Criteria::from_args(&StallsArgs {
            longer_than: text("2ms"),
            kind: Some(StallKind::Fault),
            reason: Some(StallReason::Major),
            thread: text("worker-*"),
            ..args()
        });
        let criteria = criteria.unwrap();
        assert_eq!((criteria.kind, criteria.reason), (Some(StallKind::Fault), Some(StallReason::Major)));
        assert_eq!((criteria.min_late_ns, criteria.all), (2_000_000, false));
        assert_eq!(criteria.threads.name_glob(), Some("worker-*"));
    }

    #[test]
    fn voluntary_reason_by_name_is_shown() {
        let all = |reason| Criteria::from_args(&StallsArgs { reason: Some(reason), ..args() }).unwrap().all;
        let blocked = |reason| all(StallReason::Blocked(reason));
        assert!(blocked(Reason::Sleep) && blocked(Reason::Wait) && !blocked(Reason::Lock));
        assert!(!all(StallReason::Preempted));
    }

    #[test]
    fn wrong_options_are_named() {
        for (wrong, option) in [
            (StallsArgs { longer_than: text("x"), ..args() }, "--longer-than"),
            (StallsArgs { thread: text("[a"), ..args() }, "--thread"),
            (StallsArgs { from: text("noon"), ..args() }, "--from"),
            (StallsArgs { to: text("later"), ..args() }, "--to"),
        ] {
            let Err(failure) = Criteria::from_args(&wrong) else { panic!("{wrong:?}") };
            assert!(failure.message.starts_with(option), "{failure:?}");
        }
    }

    #[test]
    fn times_are_a_range_of_the_recording() {
        let info = RecordingInfo { start: MonoNs(100), ..RecordingInfo::default() };
        let during = |from: Option<String>, to: Option<String>| {
            Criteria::from_args(&StallsArgs { from, to, ..args() })?.during(&info, &Zone::utc())
        };
        assert_eq!(during(None, None).unwrap(), None);
        assert_eq!(during(text("+5ns"), text("+9ns")).unwrap(), Some(MonoNs(105)..MonoNs(109)));
        assert_eq!(during(None, text("+9ns")).unwrap(), Some(MonoNs(0)..MonoNs(109)));
        assert!(during(text("+9ns"), text("+5ns")).unwrap_err().message.contains("earlier"));
        assert!(during(text("12:00:00"), None).unwrap_err().message.contains("time of day"));
    }
}
