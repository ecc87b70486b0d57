// SPDX-License-Identifier: Apache-2.0
//! One frame of a stack as it means the same in another recording: a name, not an address.

use std::fmt;
use std::sync::Arc;

use wallprof_model::profile::{ResolvedFrame, ResolvedStack};
use wallprof_model::{FrameKind, State, SymbolLine};

use wallprof_meaning::site::Role;
use wallprof_meaning::{site, stable_name};

/// One step on the way from the outermost function to the state.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Step {
    Function(Arc<str>),
    Kernel(Arc<str>),
    /// Code without a symbol, by its file's name: addresses differ from build to build.
    Unnamed(Arc<str>),
    /// Stands for the stack of time that has none.
    Unsampled,
    State(State),
}

impl fmt::Display for Step {
    /// As in folded stacks: `main`, `schedule_[k]`, `[libfoo.so]`, `[unsampled]`, `[blocked:lock]`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Function(name) => out.write_str(name),
            Step::Kernel(name) => write!(out, "{name}_[k]"),
            Step::Unnamed(module) => write!(out, "[{module}]"),
            Step::Unsampled => out.write_str("[unsampled]"),
            Step::State(state) => write!(out, "[{}]", state.label()),
        }
    }
}

/// A step and whether it is a library's or the kernel's common machinery, which sites leave out. So is Java's, below a
/// method of the program.
pub(crate) type Walked = (Step, bool);

/// The steps of a pair of stacks, outermost function first, the state last.
pub(crate) fn steps_from_stacks(
    user: Option<&ResolvedStack>,
    kernel: Option<&ResolvedStack>,
    state: State,
) -> Vec<Walked> {
    let has_program = user.is_some_and(has_program);
    let mut steps: Vec<Walked> = Vec::new();
    for frame in [user, kernel].into_iter().flatten().flat_map(|stack| stack.frames.iter().rev()) {
        for line in frame.lines.iter().rev() {
            let step = step(frame, line);
            // A walk through a file without symbols is one step: how deep it went is not known by name.
            let repeats =
                matches!(step, Step::Unnamed(_)) && steps.last().is_some_and(|(last, _)| *last == step);
            if !repeats {
                let is_plumbing = match Role::of(frame, line) {
                    Role::Program => false,
                    Role::Plumbing => true,
                    Role::JavaLibrary | Role::JavaMachine => has_program,
                };
                steps.push((step, is_plumbing));
            }
        }
    }
    if steps.is_empty() {
        steps.push((Step::Unsampled, true));
    }
    steps.push((Step::State(state), true));
    steps
}

fn has_program(stack: &ResolvedStack) -> bool {
    let mut lines = stack.frames.iter().flat_map(|frame| frame.lines.iter().map(move |line| (frame, line)));
    lines.any(|(frame, line)| Role::of(frame, line) == Role::Program && line.symbol.is_some())
}

fn step(frame: &ResolvedFrame, line: &SymbolLine) -> Step {
    let symbol = line.symbol.as_deref().filter(|name| !name.is_empty());
    match (symbol, frame.kind) {
        (Some(name), FrameKind::Kernel) => Step::Kernel(name.into()),
        (Some(name), _) => Step::Function((&*stable_name(name)).into()),
        (None, kind) => {
            let module = frame.module.as_deref().map(site::base_name).filter(|name| !name.is_empty());
            Step::Unnamed(module.unwrap_or(unnamed(kind)).into())
        }
    }
}

fn unnamed(kind: FrameKind) -> &'static str {
    match kind {
        FrameKind::Native => "unknown",
        FrameKind::Kernel | FrameKind::Jit => kind.name(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_model::{Reason, StackEnd};

    fn frame(kind: FrameKind, module: &str, symbols: &[&str]) -> Arc<ResolvedFrame> {
        let line = |symbol: &&str| SymbolLine {
            symbol: (!symbol.is_empty()).then(|| symbol.to_string()),
            ..SymbolLine::default()
        };
        Arc::new(ResolvedFrame {
            kind,
            module: (!module.is_empty()).then(|| module.into()),
            build_id: None,
            address: 0x1234,
            lines: symbols.iter().map(line).collect(),
        })
    }

    fn shown(user: &[Arc<ResolvedFrame>], kernel: &[Arc<ResolvedFrame>]) -> String {
        let stack = |frames: &[_]| ResolvedStack { frames: frames.into(), end: StackEnd::Complete };
        let steps = steps_from_stacks(Some(&stack(user)), Some(&stack(kernel)), State::Blocked(Reason::Lock));
        steps.iter().map(|(step, _)| step.to_string()).collect::<Vec<_>>().join(";")
    }

    #[test]
    fn a_path_goes_from_the_outermost_function_to_the_state() {
        let user = [
            frame(FrameKind::Native, "/bin/app", &["inner", "outer"]),
            frame(FrameKind::Native, "/bin/app", &["main"]),
        ];
        let kernel = [frame(FrameKind::Kernel, "", &["schedule"])];
        assert_eq!(shown(&user, &kernel), "main;outer;inner;schedule_[k];[blocked:lock]");
        assert_eq!(shown(&[], &[]), "[unsampled];[blocked:lock]");
    }

    #[test]
    fn code_without_symbols_is_named_by_its_file() {
        let user = [
            frame(FrameKind::Native, "/lib/libx.so.1", &[""]),
            frame(FrameKind::Native, "/lib/libx.so.1", &[""]),
            frame(FrameKind::Jit, "", &[""]),
            frame(FrameKind::Native, "", &[""]),
        ];
        assert_eq!(shown(&user, &[]), "[unknown];[jit];[libx.so.1];[blocked:lock]");
    }

    #[test]
    fn lambda_of_java_is_the_same_in_the_next_run() {
        let run = |name: &str| shown(&[frame(FrameKind::Jit, "", &[name])], &[]);
        assert_eq!(run("L$$Lambda$1+0x00007f24f0000a08.run()"), run("L$$Lambda$14+0x00007f61440010a8.run()"));
    }

    #[test]
    fn plumbing_is_marked() {
        let user = ResolvedStack {
            frames: [
                frame(FrameKind::Native, "/lib/libc.so.6", &["fsync"]),
                frame(FrameKind::Native, "/bin/app", &["save"]),
            ]
            .into(),
            end: StackEnd::Complete,
        };
        let steps = steps_from_stacks(Some(&user), None, State::Kernel);
        assert_eq!(steps.iter().map(|(_, plumbing)| *plumbing).collect::<Vec<_>>(), [false, true, true]);
    }
}
