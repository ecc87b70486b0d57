// SPDX-License-Identifier: Apache-2.0
//! A diff for programs: one object on one line. Times are integer nanoseconds per second of wall time,
//! `null` for unknown values.
//!
//! ```text
//! { "schema": 1, "view": "wall",
//!   "a": { "file", "command", "hostname", "start_ns" (Unix epoch; null: unknown), "wall_ns" (observed) }, "b": …,
//!   "judged": true,          — false: a side is too short to distinguish news from noise; then nothing is news
//!   "floor": { "ns", "share" },
//!   "threads": [ { "process", "thread", "a_threads", "b_threads" } ],          — compared, by their names
//!   "only_a": [ { "process", "thread", "threads", "running_ns", "late_ns" } ], "only_b": …,
//!   "states": [ { "process", "thread", "state", "meaning": null|"row lock of postgresql", C } ],
//!                                                         — "running" is user and kernel together
//!   "spans": [ { "process", "kind", "source", "a_count", "b_count",
//!                "percentiles": [ { "share", "a_ns", "b_ns", "p" (null: too few), "news" } ] } ],  — of both sides
//!   "stacks": [ { "process", "thread", "stack": ["main", …, "[blocked:lock]"], "leaf", "rank", "rest": null|{ C }, C } ] }
//! C = "a_ns", "b_ns", "difference_ns", "margin_ns" (95 %), "p" (of the time by second or of the lengths of its waits,
//!     before the correction for many), "news"
//! ```
//! `stack` goes from the outermost function inwards, as folded stacks do; a stack that is no leaf sums up
//! all that begin with it. `rank` is 1 for the first stack of the text, null for those it does not name;
//! `rest` is a ranked stack's time without those ranked below it. Stacks that take less than the floor on
//! both sides are left out; largest difference first.

use std::io::{self, Write};

use schemars::JsonSchema;
use serde::Serialize;
use wallprof_analysis::diff::{Change, Comparison, GroupRate, Headline, KindChange, NodeId, Step};

use super::amount::{difference_ns, whole_ns};
use super::{Diff, DiffSide};
use crate::json::{known, schema, write_line};

/// Writes the diff as one line holding one object.
///
/// # Errors
/// The error of `out`; a broken pipe among them.
pub fn diff_json(out: &mut impl Write, diff: &Diff<'_>) -> io::Result<()> {
    let comparison = diff.comparison;
    let object = DiffJson {
        schema: schema::VERSION,
        view: comparison.view.to_string(),
        a: SideJson::of(&diff.a, comparison.wall_a_s),
        b: SideJson::of(&diff.b, comparison.wall_b_s),
        judged: comparison.can_judge,
        floor: FloorJson { ns: whole_ns(comparison.floor.ns), share: comparison.floor.share },
        threads: threads(comparison),
        only_a: comparison.unmatched.only_a.iter().map(OnlyJson::of).collect(),
        only_b: comparison.unmatched.only_b.iter().map(OnlyJson::of).collect(),
        states: states(comparison),
        spans: diff.kinds.iter().map(KindJson::of).collect(),
        stacks: stacks(comparison),
    };
    write_line(out, &object)
}

/// `wallprof diff A B --json`: one object. Times are nanoseconds per second of wall time.
#[derive(Serialize, JsonSchema)]
pub(crate) struct DiffJson<'a> {
    #[schemars(schema_with = "schema::version")]
    schema: u32,
    view: String,
    a: SideJson<'a>,
    b: SideJson<'a>,
    /// `false`: a side is too short to tell news from noise, and nothing is news.
    judged: bool,
    /// Below it nothing is news.
    floor: FloorJson,
    threads: Vec<ThreadsJson<'a>>,
    only_a: Vec<OnlyJson<'a>>,
    only_b: Vec<OnlyJson<'a>>,
    states: Vec<StateJson<'a>>,
    spans: Vec<KindJson<'a>>,
    stacks: Vec<StackJson<'a>>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Side")]
struct SideJson<'a> {
    file: &'a str,
    command: Option<&'a str>,
    hostname: Option<&'a str>,
    start_ns: Option<u64>,
    wall_ns: u64,
}

impl<'a> SideJson<'a> {
    fn of(side: &DiffSide<'a>, wall_s: f64) -> Self {
        let clock = &side.info.clock;
        SideJson {
            file: side.file,
            command: known(&side.info.command),
            hostname: known(&side.info.hostname),
            start_ns: (!clock.anchors().is_empty()).then(|| clock.epoch_from_mono(side.info.start).0),
            wall_ns: whole_ns(wall_s * 1e9),
        }
    }
}

#[derive(Serialize, JsonSchema)]
struct FloorJson {
    ns: u64,
    share: f64,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ComparedThreads")]
struct ThreadsJson<'a> {
    process: &'a str,
    thread: &'a str,
    a_threads: usize,
    b_threads: usize,
}

fn threads(comparison: &Comparison) -> Vec<ThreadsJson<'_>> {
    let matched = comparison.matched.iter().map(|matched| ThreadsJson {
        process: &matched.group.process,
        thread: &matched.group.thread,
        a_threads: matched.threads_a,
        b_threads: matched.threads_b,
    });
    matched.collect()
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "UnmatchedThreads")]
struct OnlyJson<'a> {
    process: &'a str,
    thread: &'a str,
    threads: usize,
    running_ns: u64,
    late_ns: u64,
}

impl<'a> OnlyJson<'a> {
    fn of(rate: &'a GroupRate) -> Self {
        OnlyJson {
            process: &rate.group.process,
            thread: &rate.group.thread,
            threads: rate.threads,
            running_ns: whole_ns(rate.running_ns),
            late_ns: whole_ns(rate.late_ns),
        }
    }
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "StateChange")]
struct StateJson<'a> {
    process: &'a str,
    thread: &'a str,
    state: String,
    /// What the waits are for: `row lock of postgresql`.
    meaning: Option<String>,
    #[serde(flatten)]
    change: ChangeJson,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "SpanChange")]
struct KindJson<'a> {
    process: &'a str,
    kind: &'a str,
    source: &'static str,
    a_count: u64,
    b_count: u64,
    percentiles: [PercentileJson; 4],
}

#[derive(Serialize, JsonSchema)]
struct PercentileJson {
    share: f64,
    a_ns: u64,
    b_ns: u64,
    p: Option<f64>,
    news: bool,
}

impl<'a> KindJson<'a> {
    fn of(change: &'a KindChange) -> Self {
        KindJson {
            process: &change.kind.process,
            kind: &change.kind.kind,
            source: change.kind.source.name(),
            a_count: change.a_count,
            b_count: change.b_count,
            percentiles: change.percentiles.map(|found| PercentileJson {
                share: found.share,
                a_ns: found.a_ns,
                b_ns: found.b_ns,
                p: found.p,
                news: found.is_news,
            }),
        }
    }
}

fn states(comparison: &Comparison) -> Vec<StateJson<'_>> {
    let parts = comparison.parts.iter().map(|part| StateJson {
        process: &part.group.process,
        thread: &part.group.thread,
        state: part.part.label(),
        meaning: part.part.meant().map(ToString::to_string),
        change: ChangeJson::of(&part.change, part.is_news),
    });
    parts.collect()
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "StackChange")]
struct StackJson<'a> {
    process: &'a str,
    thread: &'a str,
    stack: Vec<String>,
    leaf: bool,
    rank: Option<usize>,
    rest: Option<ChangeJson>,
    #[serde(flatten)]
    change: ChangeJson,
}

fn stacks(comparison: &Comparison) -> Vec<StackJson<'_>> {
    let tree = &comparison.tree;
    let large = |id: &NodeId| {
        comparison.node(*id).is_some_and(|node| comparison.floor.could_be_reached(&node.change))
    };
    let mut ids: Vec<NodeId> = tree.ids().filter(|id| tree.step(*id).is_some()).filter(large).collect();
    let size = |id: NodeId| comparison.node(id).map_or(0.0, |node| node.change.difference_ns().abs());
    ids.sort_by(|x, y| size(*y).total_cmp(&size(*x)).then(x.cmp(y)));
    ids.into_iter().filter_map(|id| stack(comparison, id)).collect()
}

fn stack(comparison: &Comparison, id: NodeId) -> Option<StackJson<'_>> {
    let (tree, node) = (&comparison.tree, comparison.node(id)?);
    let group = tree.group(id)?;
    let ranked: Option<(usize, &Headline)> =
        comparison.headlines.iter().enumerate().find(|(_, headline)| headline.node == id);
    let rest = ranked.filter(|(_, headline)| headline.is_rest);
    Some(StackJson {
        process: &group.process,
        thread: &group.thread,
        stack: tree.names(id),
        leaf: matches!(tree.step(id), Some(Step::State(_))),
        rank: ranked.map(|(at, _)| at + 1),
        rest: rest.map(|(_, headline)| ChangeJson::of(&headline.change, true)),
        change: ChangeJson::of(&node.change, node.is_news),
    })
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Change")]
struct ChangeJson {
    a_ns: u64,
    b_ns: u64,
    difference_ns: i64,
    /// Of the difference, 95 %.
    margin_ns: Option<u64>,
    p: Option<f64>,
    /// Beyond the noise.
    news: bool,
}

impl ChangeJson {
    fn of(change: &Change, news: bool) -> Self {
        let difference = difference_ns(change);
        ChangeJson {
            a_ns: whole_ns(change.a_ns),
            b_ns: whole_ns(change.b_ns),
            difference_ns: i64::try_from(difference).unwrap_or(if difference < 0 {
                i64::MIN
            } else {
                i64::MAX
            }),
            margin_ns: change.uncertainty.map(|found| whole_ns(found.margin_ns)),
            p: change.uncertainty.map(|found| two_digits(found.p)),
            news,
        }
    }
}

/// Two significant digits: the logarithm of another machine may change the others.
fn two_digits(p: f64) -> f64 {
    format!("{p:.1e}").parse().unwrap_or(p)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_have_two_digits() {
        assert_eq!((two_digits(0.012345), two_digits(1.0), two_digits(0.0)), (0.012, 1.0, 0.0));
        assert_eq!(two_digits(3.456e-40), 3.5e-40);
    }

    #[test]
    fn damaged_numbers_saturate() {
        let change = Change { a_ns: 1e300, b_ns: 0.0, uncertainty: None };
        let json = ChangeJson::of(&change, false);
        assert_eq!((json.a_ns, json.difference_ns, json.p), (u64::MAX, i64::MIN, None));
    }
}
