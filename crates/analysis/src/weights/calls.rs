// SPDX-License-Identifier: Apache-2.0
//! Calls as weighted stacks: a stack for each call path, that weighs what the path spent itself.

use std::collections::HashMap;
use std::sync::Arc;

use wallprof_model::profile::{ResolvedFrame, Thread};
use wallprof_model::{CallFrame, CallNumbers, FrameKind, Outside, Reason, State, ThreadCalls};

use super::frame::{Frame, FrameId, Frames, Mark, Role};
use super::stack::{WeightedStack, WeightedThread, Weights};
use super::view::{Side, View};

/// The form of the names of frames of call paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallNames {
    /// By its function alone.
    Plain,
    /// With how often the path was called and how long that took: `read:12(1),avg:3400`.
    Counted,
}

/// A call path's last frame with what was counted of the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Called {
    pub code: Arc<ResolvedFrame>,
    /// Calls seen from begin to end.
    pub calls: u64,
    pub incomplete: u64,
    /// Of complete calls.
    pub average_ns: Option<u64>,
}

impl Called {
    /// The text after the function's name: complete calls, incomplete ones, and the average of the complete
    /// ones, in ns.
    pub fn counts(&self) -> String {
        format!(":{}({}),avg:{}", self.calls, self.incomplete, self.average_ns.unwrap_or(0))
    }
}

/// The calls of `threads`; those of the same name in a process of the same name are one.
pub fn weights_of_calls(threads: &[(&Thread, ThreadCalls)], side: Side, names: CallNames) -> Weights {
    let mut groups: Vec<Group> = Vec::new();
    let mut places: HashMap<(&str, &str), usize> = HashMap::new();
    for (thread, calls) in threads {
        let info = &thread.info;
        let place = *places.entry((&info.process, &info.comm)).or_insert_with(|| {
            groups.push(Group::new(thread));
            groups.len() - 1
        });
        groups[place].add(thread, calls, side);
    }
    let mut frames = Frames::default();
    let mut stacks = Vec::new();
    for (thread, group) in groups.iter().enumerate() {
        group.add_stacks(thread, names, &mut frames, &mut stacks);
    }
    let threads = groups.into_iter().map(|group| group.thread).collect();
    Weights { view: View::Calls, threads, frames, stacks, left_out_ns: 0 }
}

/// Threads of one name, and their call paths merged by the names of functions.
struct Group {
    thread: WeightedThread,
    nodes: Vec<Node>,
    places: HashMap<(Option<usize>, String, Role), usize>,
}

struct Node {
    parent: Option<usize>,
    frame: CallFrame<Arc<ResolvedFrame>>,
    numbers: CallNumbers,
}

impl Group {
    fn new(thread: &Thread) -> Group {
        let info = &thread.info;
        let thread = WeightedThread {
            process: info.process.clone(),
            comm: info.comm.clone(),
            pid: info.pid,
            tid: info.tid,
        };
        Group { thread, nodes: Vec::new(), places: HashMap::new() }
    }

    fn add(&mut self, thread: &Thread, calls: &ThreadCalls, side: Side) {
        if self.thread.tid != thread.info.tid {
            // Several threads have no one number.
            (self.thread.tid, self.thread.pid) =
                (0, if self.thread.pid == thread.info.pid { thread.info.pid } else { 0 });
        }
        let mut places: Vec<Option<usize>> = Vec::with_capacity(calls.paths.len());
        for path in &calls.paths {
            let parent = path.parent.and_then(|parent| places[parent]);
            if !keeps(&path.frame, side) {
                // Its time is that of who called it.
                if let Some(parent) = parent {
                    let own = &mut self.nodes[parent].numbers.self_ns;
                    *own = own.saturating_add(path.numbers.self_ns);
                    places.push(Some(parent));
                    continue;
                }
            }
            let place = self.place(parent, &path.frame);
            self.nodes[place].numbers.merge(&path.numbers);
            places.push(Some(place));
        }
    }

    fn place(&mut self, parent: Option<usize>, frame: &CallFrame<Arc<ResolvedFrame>>) -> usize {
        let shown = plain(frame);
        let (name, role) = match shown.functions().last() {
            Some(function) => (function.name.to_string(), function.role),
            None => (String::new(), Role::Mark),
        };
        let nodes = &mut self.nodes;
        *self.places.entry((parent, name, role)).or_insert_with(|| {
            nodes.push(Node { parent, frame: frame.clone(), numbers: CallNumbers::default() });
            nodes.len() - 1
        })
    }

    fn add_stacks(
        &self,
        thread: usize,
        names: CallNames,
        frames: &mut Frames,
        stacks: &mut Vec<WeightedStack>,
    ) {
        let ids: Vec<FrameId> = self.nodes.iter().map(|node| node.id(names, frames)).collect();
        for (place, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.numbers.self_ns > 0) {
            let up = std::iter::successors(Some(place), |&place| self.nodes[place].parent);
            let mut path: Vec<FrameId> = up.map(|place| ids[place]).collect();
            path.reverse();
            let CallNumbers { self_ns, calls, incomplete, .. } = node.numbers;
            stacks.push(WeightedStack {
                thread,
                frames: path,
                state: state(&node.frame),
                weight: self_ns,
                count: calls.saturating_add(incomplete),
            });
        }
    }
}

impl Node {
    fn id(&self, names: CallNames, frames: &mut Frames) -> FrameId {
        match (&self.frame, names) {
            (CallFrame::Outside(outside), _) => frames.mark(Mark::Outside(*outside)),
            (CallFrame::Code(code), CallNames::Plain) => frames.code(code),
            (CallFrame::Code(code), CallNames::Counted) => frames.called(Called {
                code: Arc::clone(code),
                calls: self.numbers.calls,
                incomplete: self.numbers.incomplete,
                average_ns: self.numbers.average_ns(),
            }),
        }
    }
}

fn plain(frame: &CallFrame<Arc<ResolvedFrame>>) -> Frame {
    match frame {
        CallFrame::Code(code) => Frame::Code(Arc::clone(code)),
        CallFrame::Outside(outside) => Frame::Mark(Mark::Outside(*outside)),
    }
}

fn keeps(frame: &CallFrame<Arc<ResolvedFrame>>, side: Side) -> bool {
    match (frame, side) {
        (CallFrame::Code(code), Side::User) => code.kind != FrameKind::Kernel,
        (CallFrame::Code(code), Side::Kernel) => code.kind == FrameKind::Kernel,
        _ => true,
    }
}

/// The state whose colour a frame has; `None` where it is not known whether the thread ran.
fn state(frame: &CallFrame<Arc<ResolvedFrame>>) -> Option<State> {
    Some(match frame {
        CallFrame::Code(code) if code.kind == FrameKind::Kernel => State::Kernel,
        CallFrame::Code(_) => State::User,
        CallFrame::Outside(outside) => match outside {
            Outside::SystemCall | Outside::PageFault => State::Kernel,
            Outside::Interrupt => State::Irq,
            Outside::Blocked | Outside::OffCpu => State::Blocked(Reason::Other),
            Outside::Preempted => State::Preempted,
            Outside::Unknown | Outside::Untraced | Outside::Lost => return None,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::fixture::{code, kernel_code, thread};
    use wallprof_model::ThreadKey;
    use wallprof_model::calls::ResolvedCallPath;

    fn path(
        parent: Option<usize>,
        frame: CallFrame<Arc<ResolvedFrame>>,
        [calls, incomplete, complete_ns, self_ns]: [u64; 4],
    ) -> ResolvedCallPath {
        let numbers = CallNumbers { calls, incomplete, complete_ns, self_ns, ..CallNumbers::default() };
        ResolvedCallPath { parent, frame, numbers }
    }

    /// `main` calls `work` thrice, which is blocked once and enters the kernel.
    fn calls(key: u32) -> ThreadCalls {
        let code = |name: &str| CallFrame::Code(code(&[name]));
        let paths = vec![
            path(None, code("main"), [0, 1, 0, 5]),
            path(Some(0), code("work"), [3, 0, 300, 70]),
            path(Some(1), CallFrame::Outside(Outside::Blocked), [1, 0, 200, 200]),
            path(Some(1), CallFrame::Code(kernel_code("sys_read")), [1, 0, 30, 30]),
        ];
        ThreadCalls { thread: ThreadKey(key), paths }
    }

    fn lines(weights: &Weights) -> Vec<String> {
        let line = |stack: &WeightedStack| {
            let names = stack.frames.iter().flat_map(|frame| weights.frames.get(*frame).functions());
            let names: Vec<_> = names.map(|function| function.name.into_owned()).collect();
            format!("{} {} {:?}", names.join(";"), stack.weight, stack.state)
        };
        weights.stacks.iter().map(line).collect()
    }

    #[test]
    fn frames_say_how_often_and_how_long() {
        let one = thread(1, "engine");
        let weights = weights_of_calls(&[(&one, calls(1))], Side::Both, CallNames::Counted);
        assert_eq!(
            lines(&weights),
            [
                "main:0(1),avg:0 5 Some(User)",
                "main:0(1),avg:0;work:3(0),avg:100 70 Some(User)",
                "main:0(1),avg:0;work:3(0),avg:100;[blocked] 200 Some(Blocked(Other))",
                "main:0(1),avg:0;work:3(0),avg:100;sys_read:1(0),avg:30 30 Some(Kernel)",
            ]
        );
        assert_eq!((weights.view, weights.threads[0].tid), (View::Calls, 101));
    }

    #[test]
    fn threads_of_one_name_are_one() {
        let (one, two, other) = (thread(1, "engine"), thread(2, "engine"), thread(3, "keeper"));
        let all = [(&one, calls(1)), (&two, calls(2)), (&other, calls(3))];
        let weights = weights_of_calls(&all, Side::Both, CallNames::Counted);
        assert_eq!((weights.threads.len(), weights.threads[0].tid), (2, 0));
        assert_eq!(lines(&weights)[1], "main:0(2),avg:0;work:6(0),avg:100 140 Some(User)");
        assert_eq!(weights.total(), 3 * 305);
    }

    #[test]
    fn one_side_keeps_all_of_the_time() {
        let one = thread(1, "engine");
        let of = |side| weights_of_calls(&[(&one, calls(1))], side, CallNames::Plain);
        assert_eq!(lines(&of(Side::User))[1], "main;work 100 Some(User)");
        for side in [Side::User, Side::Kernel] {
            assert_eq!(of(side).total(), 305, "{side:?}");
        }
    }
}
