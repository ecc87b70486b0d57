// SPDX-License-Identifier: Apache-2.0
//! The targets of a recording, from the command line's texts.

use std::path::PathBuf;

use wallprof_meaning::{ByteStates, Glob, NoStates};
use wallprof_probe::{MAX_NAME_GLOBS, NameGlob};

use crate::args::RecordArgs;
use crate::failure::Failure;

const NO_TARGET: &str = "no target was given: give processes (-p PID), threads (-t TID), names \
     to wait for (--name GLOB), a cgroup (--cgroup PATH), everything (-a) or a command (-- CMD)";

const NO_PARENT: &str = "--children needs -p PID, the process whose children are recorded: a name (--name), a cgroup \
     (--cgroup) and a command (-- CMD) include later processes without it";

/// The threads that are recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Threads that match any of these.
    Given(GivenTargets),
    System,
    /// The command of the options, with its threads and children.
    Command,
}

/// Targets of one or several kinds; at least one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GivenTargets {
    /// pids; with all of their threads, including later ones.
    pub processes: Vec<u32>,
    /// Also the processes that these have started or will start, and so on.
    pub with_children: bool,
    /// tids; without the threads that they start.
    pub threads: Vec<u32>,
    /// Globs of names, as the user wrote them; current and later processes and threads.
    pub names: Vec<String>,
    /// The path as the user wrote it.
    pub cgroup: Option<PathBuf>,
}

impl GivenTargets {
    fn is_empty(&self) -> bool {
        self.processes.is_empty() && self.threads.is_empty() && self.names.is_empty() && self.cgroup.is_none()
    }

    /// The option of the first target, for an error.
    fn first_option(&self) -> &'static str {
        match self {
            _ if !self.processes.is_empty() => "-p",
            _ if !self.threads.is_empty() => "-t",
            _ if !self.names.is_empty() => "--name",
            _ => "--cgroup",
        }
    }

    /// Whether all targets can end. A name and a cgroup can always get another process.
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
    /// Reads the targets. As with perf, a command besides other targets only gives the duration, and `-C`
    /// alone means everything on those CPUs.
    pub fn from_args(args: &RecordArgs) -> Result<Self, Failure> {
        let given = given_targets(args)?;
        if given.with_children && given.processes.is_empty() {
            return Err(Failure::usage(NO_PARENT));
        }
        match (given.is_empty(), args.all) {
            (false, true) => Err(Failure::usage(format!(
                "{} and -a exclude each other: give one of them",
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

/// The automata of `--name`.
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
        return Err(wrong("no process has an empty name, write '*' for every name"));
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
        // 0 is the idle task of each CPU; a pid fits an i32.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Exit;
    use crate::record::RecordOptions;

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
    fn error_without_a_target_lists_the_options() {
        let message = refused(args());
        for way in ["-p PID", "-t TID", "--name GLOB", "--cgroup PATH", "-a", "-- CMD"] {
            assert!(message.contains(way), "{way}");
        }
    }

    #[test]
    fn each_kind_of_target_is_read() {
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
    fn children_need_a_parent() {
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
    fn impossible_names_are_refused() {
        let long = "x".repeat(64);
        for (name, why) in [("", "empty"), ("[x", "close it"), (&*long, "that long"), ("[ä]", "ASCII")] {
            let message = refused(RecordArgs { names: vec![name.into()], ..args() });
            assert!(message.starts_with("--name ") && message.contains(why), "{message}");
        }
        let many = vec!["x".to_string(); MAX_NAME_GLOBS + 1];
        assert!(refused(RecordArgs { names: many, ..args() }).contains("8 times"));
    }

    #[test]
    fn impossible_ids_are_refused() {
        for list in ["", "0", "-1", "x", "1,,2", "4294967297", "2147483648", "+1", "1 2"] {
            assert!(refused(RecordArgs { pids: texts(list), ..args() }).contains("-p takes pids"), "{list}");
        }
    }
}
