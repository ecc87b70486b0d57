// SPDX-License-Identifier: Apache-2.0
//! Who costs whom, for programs: one object on one line. Times are integer nanoseconds.
//!
//! ```text
//! { "schema": 1, "waiting_ns", "cut_ns" (in chains too long to follow),
//!   "edges": [ { "waiter": G, "culprit": G, "state", "meaning": null|"row lock", "last": null|G,
//!     "where": null|"function (call into a library)", "ns", "count" } ],
//!   "knots": [ [G] ], "what_if": null|W }
//! G = { "process": null|"name", "thread" }   — null: `device`, `network`, `timer`, `host` or `unknown`
//! W = { "change", "waiting_ns": E, "groups": [ { "process", "thread", "waiting_ns": E } ],
//!   "kinds": [ { "kind", "p99_ns": null|E, "p999_ns": null|E } ], "unknown_share",
//!   "counted_share", "found" }
//! E = { "before", "after", "low", "high" }
//! ```
//! `state` is what the culprit did: `running`, `cpu` (it had the CPU that a thread of the chain waited for),
//! `circle` (the threads wait for each other), or the reason of the chain's last wait, whose `meaning` is that of a
//! stall. `last` is the last thread of the chain where it is not the culprit: the one that waited for the device.

use std::collections::hash_map::Entry;
use std::io::{self, Write};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::ser::Error;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use wallprof_analysis::blame::{Blame, Edge, Estimate, Group, WhatIf};
use wallprof_model::FastMap;

use crate::json::{schema, to_writer, write_line};

/// Writes all edges and knots as one line.
///
/// # Errors
/// The error of `out`; a broken pipe among them.
pub fn blame_json(out: &mut impl Write, blame: &Blame, what_if: Option<&WhatIf>) -> io::Result<()> {
    let object = BlameJson {
        schema: schema::VERSION,
        waiting_ns: blame.waiting_ns,
        cut_ns: blame.cut_ns,
        edges: Edges(&blame.edges),
        knots: blame.knots.iter().map(|knot| knot.iter().map(GroupJson::of).collect()).collect(),
        what_if: what_if.map(WhatIfJson::of),
    };
    write_line(out, &object)
}

/// `wallprof blame --json`: one object, who costs whom.
#[derive(Serialize, JsonSchema)]
pub(crate) struct BlameJson<'b> {
    #[schemars(schema_with = "schema::version")]
    schema: u32,
    waiting_ns: u64,
    /// In chains of waits that are too long to follow.
    cut_ns: u64,
    #[schemars(with = "Vec<EdgeJson<'b>>")]
    edges: Edges<'b>,
    /// Groups that wait for each other and for nobody else.
    knots: Vec<Vec<GroupJson<'b>>>,
    what_if: Option<WhatIfJson<'b>>,
}

/// Written one by one.
struct Edges<'b>(&'b [Edge]);

impl Serialize for Edges<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let texts = Texts::of(self.0).map_err(S::Error::custom)?;
        serializer.collect_seq(self.0.iter().map(|edge| EdgeJson::of(edge, &texts)))
    }
}

/// The JSON of each group and of each place, by address: all edges share them.
#[derive(Default)]
struct Texts(FastMap<usize, Box<RawValue>>);

impl Texts {
    fn of(edges: &[Edge]) -> io::Result<Self> {
        let mut texts = Texts::default();
        for edge in edges {
            for group in [&edge.waiter, &edge.culprit].into_iter().chain(&edge.last) {
                texts.add(group, GroupJson::of)?;
            }
            if let Some(place) = &edge.place {
                texts.add(place, |place| place)?;
            }
        }
        Ok(texts)
    }

    fn add<'v, T: ?Sized, J: Serialize>(
        &mut self,
        value: &'v Arc<T>,
        json: impl FnOnce(&'v T) -> J,
    ) -> io::Result<()> {
        if let Entry::Vacant(entry) = self.0.entry(address(value)) {
            let mut text = Vec::new();
            to_writer(&mut text, &json(value))?;
            entry.insert(serde_json::from_slice(&text)?);
        }
        Ok(())
    }

    fn get<T: ?Sized>(&self, value: &Arc<T>) -> &RawValue {
        &self.0[&address(value)]
    }
}

fn address<T: ?Sized>(value: &Arc<T>) -> usize {
    Arc::as_ptr(value).cast::<()>().addr()
}

#[derive(Serialize, JsonSchema)]
struct EdgeJson<'b> {
    #[schemars(with = "GroupJson<'b>")]
    waiter: &'b RawValue,
    #[schemars(with = "GroupJson<'b>")]
    culprit: &'b RawValue,
    /// What the culprit did: `running`, `cpu`, `circle`, or the reason of the last wait of the chain.
    state: &'static str,
    meaning: Option<&'b str>,
    #[schemars(with = "Option<GroupJson<'b>>")]
    last: Option<&'b RawValue>,
    #[serde(rename = "where")]
    #[schemars(with = "Option<&'b str>")]
    place: Option<&'b RawValue>,
    ns: u64,
    count: u64,
}

impl<'b> EdgeJson<'b> {
    fn of(edge: &'b Edge, texts: &'b Texts) -> Self {
        EdgeJson {
            waiter: texts.get(&edge.waiter),
            culprit: texts.get(&edge.culprit),
            state: edge.doing.name(),
            meaning: edge.meaning.as_deref(),
            last: edge.last.as_ref().map(|last| texts.get(last)),
            place: edge.place.as_ref().map(|place| texts.get(place)),
            ns: edge.ns,
            count: edge.count,
        }
    }
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Group")]
struct GroupJson<'b> {
    /// `null` where the thread is `device`, `network`, `timer`, `host` or `unknown`.
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

#[derive(Serialize, JsonSchema)]
struct WhatIfJson<'b> {
    change: &'b str,
    waiting_ns: EstimateJson,
    groups: Vec<GroupEstimateJson<'b>>,
    kinds: Vec<KindJson<'b>>,
    /// The part of the waiting that was ended by what was not seen.
    unknown_share: f64,
    /// Of a change of locks: the part of all waits that are counted alone.
    counted_share: f64,
    /// Whether the recording has such a part of the work.
    found: bool,
}

#[derive(Serialize, JsonSchema)]
struct EstimateJson {
    before: u64,
    after: u64,
    low: u64,
    high: u64,
}

#[derive(Serialize, JsonSchema)]
struct GroupEstimateJson<'b> {
    #[serde(flatten)]
    group: GroupJson<'b>,
    waiting_ns: EstimateJson,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "SpanEstimate")]
struct KindJson<'b> {
    kind: &'b str,
    p99_ns: Option<EstimateJson>,
    p999_ns: Option<EstimateJson>,
}

impl<'b> WhatIfJson<'b> {
    fn of(what_if: &'b WhatIf) -> Self {
        let group = |(group, estimate): &'b (Group, Estimate)| GroupEstimateJson {
            group: GroupJson::of(group),
            waiting_ns: EstimateJson::of(estimate),
        };
        WhatIfJson {
            change: &what_if.change,
            waiting_ns: EstimateJson::of(&what_if.waiting),
            groups: what_if.groups.iter().map(group).collect(),
            kinds: what_if
                .kinds
                .iter()
                .map(|kind| KindJson {
                    kind: &kind.kind,
                    p99_ns: kind.p99.as_ref().map(EstimateJson::of),
                    p999_ns: kind.p999.as_ref().map(EstimateJson::of),
                })
                .collect(),
            unknown_share: what_if.unknown_share,
            counted_share: what_if.counted_share,
            found: what_if.is_found,
        }
    }
}

impl EstimateJson {
    fn of(&Estimate { before, after, low, high }: &Estimate) -> Self {
        EstimateJson { before, after, low, high }
    }
}
