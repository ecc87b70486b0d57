//! Who costs whom, for programs: one object on one line. Times are integer nanoseconds.
//!
//! ```text
//! { "schema": 1, "waiting_ns", "cut_ns" (in chains too long to follow),
//!   "edges": [ { "waiter": G, "culprit": G, "state", "last": null|G, "where": null|"function (call into a library)",
//!     "ns", "count" } ],
//!   "knots": [ [G] ], "what_if": null }
//! G = { "process": null|"name", "thread" }   — null: `device`, `network`, `timer`, `host` or `unknown`
//! ```
//! `state` is what the culprit did: `running`, `cpu` (it had the CPU that a thread of the chain waited for),
//! `circle` (the threads wait for each other), or the reason of the chain's last wait. `last` is the last
//! thread of the chain where it is not the culprit: the one that waited for the device.

use std::io::{self, Write};

use serde::Serialize;
use wallprof_analysis::blame::{Blame, Edge, Group};

use crate::json::write_line;

/// Writes all edges and knots as one line.
///
/// # Errors
/// The error of `out`; a broken pipe among them.
pub fn blame_json(out: &mut impl Write, blame: &Blame) -> io::Result<()> {
    let object = BlameJson {
        schema: 1,
        waiting_ns: blame.waiting_ns,
        cut_ns: blame.cut_ns,
        edges: blame.edges.iter().map(EdgeJson::of).collect(),
        knots: blame.knots.iter().map(|knot| knot.iter().map(GroupJson::of).collect()).collect(),
        what_if: None,
    };
    write_line(out, &object)
}

#[derive(Serialize)]
struct BlameJson<'b> {
    schema: u32,
    waiting_ns: u64,
    cut_ns: u64,
    edges: Vec<EdgeJson<'b>>,
    knots: Vec<Vec<GroupJson<'b>>>,
    what_if: Option<()>,
}

#[derive(Serialize)]
struct EdgeJson<'b> {
    waiter: GroupJson<'b>,
    culprit: GroupJson<'b>,
    state: &'static str,
    last: Option<GroupJson<'b>>,
    #[serde(rename = "where")]
    place: Option<&'b str>,
    ns: u64,
    count: u64,
}

impl<'b> EdgeJson<'b> {
    fn of(edge: &'b Edge) -> Self {
        EdgeJson {
            waiter: GroupJson::of(&edge.waiter),
            culprit: GroupJson::of(&edge.culprit),
            state: edge.doing.name(),
            last: edge.last.as_ref().map(GroupJson::of),
            place: edge.place.as_deref(),
            ns: edge.ns,
            count: edge.count,
        }
    }
}

#[derive(Serialize)]
struct GroupJson<'b> {
    process: Option<&'b str>,
    thread: &'b str,
}

impl<'b> GroupJson<'b> {
    fn of(group: &'b Group) -> Self {
        match group {
            Group::Threads { process, thread } => GroupJson { process: Some(process), thread },
            other => GroupJson { process: None, thread: other.name().unwrap_or_default() },
        }
    }
}
