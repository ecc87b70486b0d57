// SPDX-License-Identifier: Apache-2.0
//! Calls by function, for recordings that hold every call, and their difference between two recordings.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use wallprof_model::profile::ResolvedFrame;
use wallprof_model::{CallFrame, CallNumbers, FrameKind, Outside, ThreadCalls};

/// All calls of one function, by any caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionCalls {
    pub function: CalledFunction,
    /// With recursion, `total_ns` counts a call within a call once; the other numbers count both.
    pub numbers: CallNumbers,
}

/// A function by its names.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CalledFunction {
    pub symbol: Option<String>,
    pub module: Option<String>,
    pub is_kernel: bool,
    /// Only without a symbol: where it is.
    pub address: Option<u64>,
}

impl CalledFunction {
    fn of(frame: &ResolvedFrame) -> Self {
        // The last line is the function itself, the others were inlined into it.
        let symbol = frame.lines.last().and_then(|line| line.symbol.clone());
        CalledFunction {
            address: symbol.is_none().then_some(frame.address),
            symbol,
            module: frame.module.clone(),
            is_kernel: frame.kind == FrameKind::Kernel,
        }
    }
}

impl CalledFunction {
    /// The name by which other recordings know it: the path of its module may differ.
    fn name(&self) -> Name {
        let module =
            self.module.as_deref().map(|module| wallprof_meaning::site::base_name(module).to_owned());
        (self.symbol.clone(), module, self.address)
    }
}

/// The functions that `threads` called, most total time first.
pub fn functions<'a>(threads: impl IntoIterator<Item = &'a ThreadCalls>) -> Vec<FunctionCalls> {
    let mut found: BTreeMap<CalledFunction, CallNumbers> = BTreeMap::new();
    for calls in threads {
        for (function, numbers) in of_thread(calls) {
            found.entry(function).or_default().merge(&numbers);
        }
    }
    let all = found.into_iter().map(|(function, numbers)| FunctionCalls { function, numbers });
    let mut all: Vec<FunctionCalls> = all.collect();
    all.sort_by_key(|calls| Reverse(calls.numbers.total_ns));
    all
}

fn of_thread(calls: &ThreadCalls) -> HashMap<CalledFunction, CallNumbers> {
    let mut children: Vec<Vec<usize>> = vec![Vec::new(); calls.paths.len()];
    let mut left: Vec<(usize, bool)> = Vec::new();
    for (at, path) in calls.paths.iter().enumerate() {
        match path.parent {
            Some(parent) => children[parent].push(at),
            None => left.push((at, false)),
        }
    }
    let mut found: HashMap<CalledFunction, CallNumbers> = HashMap::new();
    let mut open: HashMap<CalledFunction, u32> = HashMap::new();
    while let Some((at, entered)) = left.pop() {
        let path = &calls.paths[at];
        if let CallFrame::Code(frame) = &path.frame {
            let function = CalledFunction::of(frame);
            let depth = open.entry(function.clone()).or_default();
            if entered {
                *depth -= 1;
                continue;
            }
            let total_ns = if *depth == 0 { path.numbers.total_ns } else { 0 };
            *depth += 1;
            left.push((at, true));
            found.entry(function).or_default().merge(&CallNumbers { total_ns, ..path.numbers.clone() });
        }
        left.extend(children[at].iter().map(|&child| (child, false)));
    }
    found
}

/// A function in two recordings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallChange {
    /// As B names it.
    pub function: CalledFunction,
    pub a: CallNumbers,
    pub b: CallNumbers,
}

impl CallChange {
    /// How much longer a complete call takes in B, in ns; `None` where one side has none.
    pub fn per_call_ns(&self) -> Option<i128> {
        Some(i128::from(self.b.average_ns()?) - i128::from(self.a.average_ns()?))
    }

    /// That difference over all calls of B.
    fn weight(&self) -> u128 {
        let calls = u128::from(self.b.calls);
        self.per_call_ns().map_or(0, |ns| ns.unsigned_abs().saturating_mul(calls))
    }
}

/// Two recordings' functions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallComparison {
    /// Functions with complete calls on both sides, the largest difference over all calls of B first.
    pub changes: Vec<CallChange>,
    /// Those with complete calls on one side only, most time first.
    pub only_a: Vec<FunctionCalls>,
    pub only_b: Vec<FunctionCalls>,
}

/// Compares functions by their names: the path of a module, and where it is mapped, may differ.
pub fn compare_calls(a: &[FunctionCalls], b: &[FunctionCalls]) -> CallComparison {
    let (mut a, mut b) = (by_name(a), by_name(b));
    let mut comparison = CallComparison::default();
    let names: Vec<_> = b.keys().filter(|name| a.contains_key(*name)).cloned().collect();
    for name in names {
        if let (Some(a), Some(b)) = (a.remove(&name), b.remove(&name)) {
            comparison.changes.push(CallChange { function: b.function, a: a.numbers, b: b.numbers });
        }
    }
    comparison.changes.sort_by_key(|change| Reverse(change.weight()));
    for (left, to) in [(a, &mut comparison.only_a), (b, &mut comparison.only_b)] {
        to.extend(left.into_values());
        to.sort_by_key(|calls| Reverse(calls.numbers.total_ns));
    }
    comparison
}

/// A call path in two recordings, by the names of its functions; of all threads together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathChange {
    /// An index before this one's.
    pub parent: Option<usize>,
    /// The name in B, else the name in A.
    pub frame: PathFrame,
    pub a: CallNumbers,
    pub b: CallNumbers,
    /// Time in B in the path and in what it called, ns: as much as its own time and that of the paths below
    /// it.
    pub width_ns: u64,
}

/// The last frame of a call path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathFrame {
    Function(CalledFunction),
    Outside(Outside),
}

impl PathChange {
    /// How much longer a complete call takes in B, in ns; `None` where one side has none.
    pub fn per_call_ns(&self) -> Option<i128> {
        Some(i128::from(self.b.average_ns()?) - i128::from(self.a.average_ns()?))
    }

    /// That difference over all calls of B. A call that A does not have is longer by its whole time.
    pub fn difference_ns(&self) -> i128 {
        let only_in_b = self.a == CallNumbers::default() && self.b.calls > 0;
        let whole = || only_in_b.then_some(i128::from(self.b.total_ns));
        let of_calls = |ns: i128| ns.saturating_mul(i128::from(self.b.calls));
        self.per_call_ns().map(of_calls).or_else(whole).unwrap_or(0)
    }
}

/// Compares path by path; parents come before their children.
pub fn compare_paths(a: &[ThreadCalls], b: &[ThreadCalls]) -> Vec<PathChange> {
    let mut found: Vec<PathChange> = Vec::new();
    let mut places: HashMap<(Option<usize>, PathName), usize> = HashMap::new();
    let sides: [(&[ThreadCalls], Side); 2] = [(b, |change| &mut change.b), (a, |change| &mut change.a)];
    for (threads, side) in sides {
        for thread in threads {
            let mut of_thread: Vec<usize> = Vec::with_capacity(thread.paths.len());
            for path in &thread.paths {
                let parent = path.parent.map(|parent| of_thread[parent]);
                let frame = PathFrame::of(&path.frame);
                let place = *places.entry((parent, frame.name())).or_insert_with(|| {
                    let (a, b) = (CallNumbers::default(), CallNumbers::default());
                    found.push(PathChange { parent, frame, a, b, width_ns: 0 });
                    found.len() - 1
                });
                side(&mut found[place]).merge(&path.numbers);
                of_thread.push(place);
            }
        }
    }
    for at in (0..found.len()).rev() {
        let width = found[at].width_ns.saturating_add(found[at].b.self_ns);
        found[at].width_ns = width;
        if let Some(parent) = found[at].parent {
            found[parent].width_ns = found[parent].width_ns.saturating_add(width);
        }
    }
    found
}

/// The numbers of one recording.
type Side = fn(&mut PathChange) -> &mut CallNumbers;

type Name = (Option<String>, Option<String>, Option<u64>);
type PathName = (Option<Outside>, Name);

impl PathFrame {
    fn of(frame: &CallFrame<Arc<ResolvedFrame>>) -> Self {
        match frame {
            CallFrame::Code(frame) => PathFrame::Function(CalledFunction::of(frame)),
            CallFrame::Outside(outside) => PathFrame::Outside(*outside),
        }
    }

    fn name(&self) -> PathName {
        match self {
            PathFrame::Function(function) => (None, function.name()),
            PathFrame::Outside(outside) => (Some(*outside), (None, None, None)),
        }
    }
}

fn by_name(functions: &[FunctionCalls]) -> BTreeMap<Name, FunctionCalls> {
    let mut named: BTreeMap<Name, FunctionCalls> = BTreeMap::new();
    for calls in functions.iter().filter(|calls| calls.numbers.calls > 0) {
        let known = named.entry(calls.function.name());
        known.and_modify(|known| known.numbers.merge(&calls.numbers)).or_insert_with(|| calls.clone());
    }
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    use wallprof_model::calls::ResolvedCallPath;
    use wallprof_model::{SymbolLine, ThreadKey};

    fn frame(symbol: &str, module: &str) -> CallFrame<Arc<ResolvedFrame>> {
        let lines = vec![SymbolLine { symbol: Some(symbol.into()), ..SymbolLine::default() }];
        let (kind, module) = (FrameKind::Native, Some(module.into()));
        CallFrame::Code(Arc::new(ResolvedFrame { kind, module, build_id: None, address: 7, lines }))
    }

    /// Parent, function, calls, total; a call takes what all take divided by their number.
    fn calls(paths: &[(Option<usize>, &str, u64, u64)]) -> ThreadCalls {
        let path = |&(parent, symbol, calls, total_ns): &(Option<usize>, &str, u64, u64)| {
            let frame = match symbol {
                "[blocked]" => CallFrame::Outside(Outside::Blocked),
                symbol => frame(symbol, "/bin/a"),
            };
            let numbers = CallNumbers { calls, total_ns, complete_ns: total_ns, ..CallNumbers::default() };
            ResolvedCallPath { parent, frame, numbers }
        };
        ThreadCalls { thread: ThreadKey(1), paths: paths.iter().map(path).collect() }
    }

    fn shown(functions: &[FunctionCalls]) -> Vec<(&str, u64, u64)> {
        let shown = |calls: &FunctionCalls| (calls.numbers.calls, calls.numbers.total_ns);
        let named = functions.iter().map(|calls| (calls.function.symbol.as_deref().unwrap(), shown(calls)));
        named.map(|(name, (calls, total))| (name, calls, total)).collect()
    }

    #[test]
    fn recursion_counts_its_time_once_and_its_calls_all() {
        let one = calls(&[
            (None, "main", 1, 100),
            (Some(0), "walk", 2, 60),
            (Some(1), "walk", 3, 40),
            (Some(2), "[blocked]", 1, 30),
            (Some(2), "leaf", 1, 5),
            (Some(0), "leaf", 1, 8),
        ]);
        assert_eq!(shown(&functions([&one])), [("main", 1, 100), ("walk", 5, 60), ("leaf", 2, 13)]);
        assert_eq!(shown(&functions([&one, &one]))[2], ("leaf", 4, 26));
    }

    #[test]
    fn largest_difference_over_all_calls_comes_first() {
        let a = functions([&calls(&[
            (None, "seldom", 1, 100),
            (None, "often", 100, 1_000),
            (None, "gone", 1, 5),
        ])]);
        let b = functions([&calls(&[
            (None, "seldom", 1, 400),
            (None, "often", 100, 1_500),
            (None, "new", 2, 9),
        ])]);
        let comparison = compare_calls(&a, &b);
        let changes = comparison
            .changes
            .iter()
            .map(|change| (change.function.symbol.clone().unwrap(), change.per_call_ns()));
        assert_eq!(
            changes.collect::<Vec<_>>(),
            [("often".to_owned(), Some(5)), ("seldom".to_owned(), Some(300))]
        );
        assert_eq!(
            (shown(&comparison.only_a), shown(&comparison.only_b)),
            (vec![("gone", 1, 5)], vec![("new", 2, 9)])
        );
    }

    #[test]
    fn paths_of_two_recordings_are_matched_by_names() {
        let own = |mut calls: ThreadCalls, own: &[u64]| {
            calls.paths.iter_mut().zip(own).for_each(|(path, own)| path.numbers.self_ns = *own);
            calls
        };
        let a = own(
            calls(&[(None, "main", 1, 100), (Some(0), "f", 10, 50), (Some(1), "gone", 1, 5)]),
            &[50, 45, 5],
        );
        let b = own(calls(&[(None, "main", 1, 200), (Some(0), "[blocked]", 2, 40)]), &[10, 40]);
        let other = own(
            calls(&[(None, "main", 1, 0), (Some(0), "f", 10, 90), (Some(1), "new", 3, 30)]),
            &[0, 60, 30],
        );
        let paths = compare_paths(&[a], &[b, other]);
        let shown: Vec<(Option<usize>, u64, u64, u64, i128)> = paths
            .iter()
            .map(|path| (path.parent, path.a.calls, path.b.calls, path.width_ns, path.difference_ns()))
            .collect();
        let expected = [
            (None, 1, 2, 140, 0),
            (Some(0), 0, 2, 40, 40),
            (Some(0), 10, 10, 90, 40),
            (Some(2), 0, 3, 30, 30),
            (Some(2), 1, 0, 0, 0),
        ];
        assert_eq!(shown, expected);
        assert_eq!(paths[2].per_call_ns(), Some(4));
    }
}
