//! What `record` was asked for, as plain values: the command line's texts read and their combinations checked.
//!
//! Looks at nothing outside: whether a process or an event exists is checked in `check`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use wallprof_analysis::{ByteStates, Glob, NoStates, ns_from_duration};
use wallprof_probe::events::split_list;
use wallprof_probe::{MAX_NAME_GLOBS, NameGlob};
use wallprof_recording::Retention;

use crate::args::{CallGraph, RecordArgs};
use crate::cpu_list::cpus_from_option;
use crate::failure::Failure;
use crate::guarded::Guarded;

const NO_TARGET: &str = "nothing to record was named: give processes (-p PID), threads (-t TID), names \
     to wait for (--name GLOB), a cgroup (--cgroup PATH), everything (-a) or a command (-- CMD)";

const NO_PARENT: &str = "--children needs -p PID, the process whose children are recorded: a name (--name), a cgroup \
     (--cgroup) and a command (-- CMD) cover processes to come without it";

/// A recording to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordOptions {
    pub target: Target,
    /// To be started; the recording ends when it ends. With [`Target::Command`] it is what is recorded.
    pub command: Option<Vec<OsString>>,
    /// Sorted, each once; `None`: all of them.
    pub cpus: Option<Vec<u32>>,
    pub guarded: Guarded,
    pub duration: Option<Duration>,
    /// At least 1.
    pub sample_hz: u32,
    /// In perf's syntax, one event each.
    pub events: Vec<String>,
    pub min_stall_ns: u64,
    pub call_graph: CallGraph,
    pub output: PathBuf,
    /// How much of the past is kept; `None`: everything.
    pub retention: Option<Retention>,
    pub verbose: bool,
}

/// Whose time is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// What matches any of these.
    Given(GivenTargets),
    System,
    /// The command of the options, with its threads and children.
    Command,
}

/// The targets that the user gave, of one kind or of several; at least one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GivenTargets {
    /// pids, with their threads, later ones too.
    pub processes: Vec<u32>,
    /// And the processes that these have started or will start, and so on.
    pub with_children: bool,
    /// tids; nothing else.
    pub threads: Vec<u32>,
    /// Globs as the user wrote them: what has such a name, now or later.
    pub names: Vec<String>,
    /// As the user wrote it.
    pub cgroup: Option<PathBuf>,
}

impl GivenTargets {
    fn is_empty(&self) -> bool {
        self.processes.is_empty() && self.threads.is_empty() && self.names.is_empty() && self.cgroup.is_none()
    }

    /// The option of the first of them, for an error.
    fn first_option(&self) -> &'static str {
        match self {
            _ if !self.processes.is_empty() => "-p",
            _ if !self.threads.is_empty() => "-t",
            _ if !self.names.is_empty() => "--name",
            _ => "--cgroup",
        }
    }

    /// Whether these have an end: processes and threads end, a name and a cgroup can always come to hold
    /// another one.
    pub fn can_end(&self) -> bool {
        self.names.is_empty() && self.cgroup.is_none()
    }
}

#[cfg(test)]
impl Target {
    pub(crate) fn processes(pids: &[u32]) -> Self {
        Target::Given(GivenTargets { processes: pids.to_vec(), ..GivenTargets::default() })
    }

    pub(crate) fn threads(tids: &[u32]) -> Self {
        Target::Given(GivenTargets { threads: tids.to_vec(), ..GivenTargets::default() })
    }

    pub(crate) fn names(globs: &[&str]) -> Self {
        let names = globs.iter().map(|glob| (*glob).to_string()).collect();
        Target::Given(GivenTargets { names, ..GivenTargets::default() })
    }

    pub(crate) fn cgroup(path: &str) -> Self {
        Target::Given(GivenTargets { cgroup: Some(path.into()), ..GivenTargets::default() })
    }
}

impl Target {
    /// One target or several. A command beside them only says how long, as with perf; `-C` alone means
    /// everything on those CPUs, as with perf.
    pub fn from_args(args: &RecordArgs) -> Result<Self, Failure> {
        let given = given_targets(args)?;
        if given.with_children && given.processes.is_empty() {
            return Err(Failure::usage(NO_PARENT));
        }
        match (given.is_empty(), args.all) {
            (false, true) => Err(Failure::usage(format!(
                "{} and -a name two targets: give one of them",
                given.first_option()
            ))),
            (false, false) => Ok(Target::Given(given)),
            (true, true) => Ok(Target::System),
            (true, false) if !args.command.is_empty() => Ok(Target::Command),
            (true, false) if args.cpus.is_some() => Ok(Target::System),
            (true, false) => Err(Failure::usage(NO_TARGET)),
        }
    }
}

impl RecordOptions {
    pub fn from_args(args: RecordArgs) -> Result<Self, Failure> {
        let cpus = args.cpus.as_deref().map(|list| cpus_from_option("-C", list)).transpose()?;
        Ok(RecordOptions {
            target: Target::from_args(&args)?,
            cpus,
            guarded: Guarded::from_options(args.guard_cpus.as_deref(), &args.allow)?,
            duration: args.duration.as_deref().map(duration).transpose()?,
            sample_hz: sample_hz(&args.sample_hz)?,
            events: events(&args.events)?,
            min_stall_ns: min_stall_ns(&args.min_stall)?,
            call_graph: args.call_graph,
            output: args.output,
            retention: None,
            verbose: args.verbose,
            command: Some(args.command).filter(|command| !command.is_empty()),
        })
    }
}

#[cfg(test)]
impl RecordOptions {
    /// A recording of `target` into `output`, with nothing else asked for.
    pub(crate) fn of(target: Target, output: impl Into<PathBuf>) -> Self {
        RecordOptions {
            target,
            command: None,
            cpus: None,
            guarded: Guarded::default(),
            duration: None,
            sample_hz: 99,
            events: Vec::new(),
            min_stall_ns: 100_000,
            call_graph: CallGraph::Auto,
            output: output.into(),
            retention: None,
            verbose: false,
        }
    }
}

fn given_targets(args: &RecordArgs) -> Result<GivenTargets, Failure> {
    name_globs(&args.names)?;
    let processes = ids_from_list("-p", "pid", &args.pids)?;
    let threads = ids_from_list("-t", "tid", &args.tids)?;
    Ok(GivenTargets {
        processes,
        with_children: args.children,
        threads,
        names: args.names.clone(),
        cgroup: args.cgroup.clone(),
    })
}

/// The automatons of `--name`.
pub fn name_globs(globs: &[String]) -> Result<Vec<NameGlob>, Failure> {
    if globs.len() > MAX_NAME_GLOBS {
        return Err(Failure::usage(format!(
            "--name can be given {MAX_NAME_GLOBS} times, not {}: let a * stand for what differs",
            globs.len()
        )));
    }
    globs.iter().map(|glob| name_glob(glob)).collect()
}

fn name_glob(glob: &str) -> Result<NameGlob, Failure> {
    let wrong = |why: &str| Failure::usage(format!("--name {glob}: {why}"));
    let parsed = Glob::new(glob).map_err(|error| wrong(&error.to_string()))?;
    if parsed.matches("") && !glob.contains('*') {
        return Err(wrong("nothing has an empty name, write '*' for every name"));
    }
    match parsed.byte_states() {
        Ok(ByteStates { takes, loops, accepts }) => Ok(NameGlob { takes, loops, accepts }),
        Err(NoStates::TooLong) => Err(wrong("no name is that long, give its first letters and a *")),
        Err(NoStates::SetOfManyBytes) => {
            Err(wrong("a set takes ASCII characters only, write ? in its place"))
        }
    }
}

/// Sorted, each once.
fn ids_from_list(option: &str, what: &str, texts: &[String]) -> Result<Vec<u32>, Failure> {
    let mut ids = Vec::new();
    for text in texts {
        // 0 is the idle task of every CPU, which is nobody; a pid fits an i32.
        match text.trim().parse::<i32>() {
            Ok(id) if id > 0 && !text.contains('+') => ids.push(id.unsigned_abs()),
            _ => {
                return Err(Failure::usage(format!(
                    "{option} takes {what}s such as 1234,1235: `{text}` is none"
                )));
            }
        }
    }
    ids.sort();
    ids.dedup();
    Ok(ids)
}

fn duration(text: &str) -> Result<Duration, Failure> {
    match ns_from_duration(text) {
        Ok(0) => {
            Err(Failure::usage("-d 0 would record nothing: give a duration such as 30s, or leave -d out"))
        }
        Ok(ns) => Ok(Duration::from_nanos(ns)),
        Err(error) => Err(Failure::usage(format!("-d: {error}"))),
    }
}

fn sample_hz(text: &str) -> Result<u32, Failure> {
    match text.parse::<u32>() {
        Ok(hz) if hz > 0 && !text.starts_with('+') => Ok(hz),
        _ => Err(Failure::usage(format!("-F takes samples a second such as 99: `{text}` is none"))),
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

/// A bare number could mean seconds or microseconds: only 0 is clear without a unit.
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

    fn texts(list: &str) -> Vec<String> {
        list.split(',').map(String::from).collect()
    }

    fn refused(args: RecordArgs) -> String {
        let failure = RecordOptions::from_args(args).unwrap_err();
        assert_eq!(failure.exit, Exit::Usage);
        failure.message
    }

    #[test]
    fn without_a_target_it_says_what_to_give() {
        let message = refused(args());
        for way in ["-p PID", "-t TID", "--name GLOB", "--cgroup PATH", "-a", "-- CMD"] {
            assert!(message.contains(way), "{way}");
        }
    }

    #[test]
    fn one_target_each() {
        let target = |args| RecordOptions::from_args(args).unwrap().target;
        assert_eq!(target(RecordArgs { pids: texts("9,7,9"), ..args() }), Target::processes(&[7, 9]));
        assert_eq!(target(RecordArgs { tids: texts("7"), ..args() }), Target::threads(&[7]));
        let names = target(RecordArgs { names: texts("feed*,nginx"), ..args() });
        assert_eq!(names, Target::names(&["feed*", "nginx"]));
        assert_eq!(target(RecordArgs { all: true, ..args() }), Target::System);
        assert_eq!(target(RecordArgs { cpus: Some("0".into()), ..args() }), Target::System);
        assert_eq!(target(RecordArgs { command: vec!["ls".into()], ..args() }), Target::Command);
        let beside = RecordArgs { all: true, command: vec!["sleep".into(), "1".into()], ..args() };
        let beside = RecordOptions::from_args(beside).unwrap();
        assert_eq!((beside.target, beside.command.map(|command| command.len())), (Target::System, Some(2)));
    }

    #[test]
    fn targets_of_several_kinds_are_combined() {
        let combined = RecordArgs {
            pids: texts("1"),
            children: true,
            tids: texts("2"),
            names: texts("feed*"),
            cgroup: Some("/web".into()),
            ..args()
        };
        let expected = GivenTargets {
            processes: vec![1],
            with_children: true,
            threads: vec![2],
            names: texts("feed*"),
            cgroup: Some("/web".into()),
        };
        assert_eq!(RecordOptions::from_args(combined).unwrap().target, Target::Given(expected.clone()));
        assert!(!expected.can_end());
        assert!(GivenTargets { names: vec![], cgroup: None, ..expected }.can_end());
    }

    #[test]
    fn everything_beside_another_target_is_refused() {
        let beside = |args: RecordArgs| refused(RecordArgs { all: true, ..args });
        assert!(
            beside(RecordArgs { pids: texts("1"), tids: texts("1"), ..args() }).starts_with("-p and -a ")
        );
        assert!(beside(RecordArgs { tids: texts("1"), ..args() }).starts_with("-t and -a "));
        assert!(beside(RecordArgs { names: texts("x"), ..args() }).starts_with("--name and -a "));
        assert!(beside(RecordArgs { cgroup: Some("x".into()), ..args() }).starts_with("--cgroup and -a "));
    }

    #[test]
    fn children_have_a_parent() {
        let with = |args: RecordArgs| refused(RecordArgs { children: true, ..args });
        let command = RecordArgs { command: vec!["ls".into()], ..args() };
        for targets in [
            args(),
            command,
            RecordArgs { all: true, ..args() },
            RecordArgs { tids: texts("7"), ..args() },
            RecordArgs { names: texts("x"), ..args() },
            RecordArgs { cgroup: Some("/web".into()), ..args() },
        ] {
            let message = with(targets);
            assert!(message.starts_with("--children needs -p PID"), "{message}");
        }
    }

    #[test]
    fn names_that_can_be_none() {
        let long = "x".repeat(64);
        for (name, why) in [("", "empty"), ("[x", "close it"), (&*long, "that long"), ("[ä]", "ASCII")] {
            let message = refused(RecordArgs { names: vec![name.into()], ..args() });
            assert!(message.starts_with("--name ") && message.contains(why), "{message}");
        }
        let many = vec!["x".to_string(); MAX_NAME_GLOBS + 1];
        assert!(refused(RecordArgs { names: many, ..args() }).contains("8 times"));
    }

    #[test]
    fn ids_that_are_none() {
        for list in ["", "0", "-1", "x", "1,,2", "4294967297", "2147483648", "+1", "1 2"] {
            assert!(refused(RecordArgs { pids: texts(list), ..args() }).contains("-p takes pids"), "{list}");
        }
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
        for hz in ["0", "-1", "x", "", "99Hz", "4294967296"] {
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
    fn a_least_stall_has_a_unit() {
        assert_eq!(min_stall_ns("0"), Ok(0));
        assert_eq!(min_stall_ns("1ms"), Ok(1_000_000));
        assert!(min_stall_ns("100").unwrap_err().message.contains("100us"));
        assert!(min_stall_ns("fast").unwrap_err().message.starts_with("--min-stall: "));
    }

    #[test]
    fn events_divide_and_none_is_taken_twice() {
        let read = |lists: &[&str]| events(&lists.iter().map(|list| list.to_string()).collect::<Vec<_>>());
        assert_eq!(read(&["cs,cpu/a=1,b=2/", "cs"]).unwrap(), ["cs", "cpu/a=1,b=2/"]);
        assert!(read(&["cs,"]).is_err() && read(&[""]).is_err());
    }
}
