// SPDX-License-Identifier: Apache-2.0
//! Who costs whom, as text, as JSON, and as a picture.

mod json;
mod svg;
mod text;
mod what_if;

use wallprof_analysis::blame::{Blame, Doing, Edge, Group};

pub(crate) use json::BlameJson;
pub use json::blame_json;
pub use svg::blame_svg;
pub use text::blame_text;
pub use what_if::what_if_text;

use crate::style::Style;

/// The edges of one waiter, most time first.
struct Waiter<'b> {
    group: &'b Group,
    edges: Vec<&'b Edge>,
    ns: u64,
}

/// The waiters, most time first.
fn waiters(blame: &Blame) -> Vec<Waiter<'_>> {
    let mut waiters: Vec<Waiter<'_>> = Vec::new();
    let mut number = std::collections::HashMap::new();
    for edge in &blame.edges {
        let at = *number.entry(&*edge.waiter).or_insert_with(|| {
            waiters.push(Waiter { group: &edge.waiter, edges: Vec::new(), ns: 0 });
            waiters.len() - 1
        });
        waiters[at].edges.push(edge);
        waiters[at].ns = waiters[at].ns.saturating_add(edge.ns);
    }
    waiters.sort_by_key(|waiter| std::cmp::Reverse(waiter.ns));
    waiters
}

/// `postgres`, `app/worker`, `device`.
fn group_name(group: &Group, style: &Style) -> String {
    match group {
        Group::Threads { process, thread } if process == thread || process.is_empty() => {
            style.comm(thread).into_owned()
        }
        Group::Threads { process, thread } => format!("{}/{}", style.comm(process), style.comm(thread)),
        other => other.name().unwrap_or_default().to_owned(),
    }
}

/// `app/housekeeper, which ran, and let go in sweep_registry`.
fn culprit(edge: &Edge, style: &Style) -> String {
    let name = group_name(&edge.culprit, style);
    let place = |before: &str| match &edge.place {
        Some(place) => format!("{before} in {}", style.name(place)),
        None => String::new(),
    };
    let of = |before: &str, after: &str| match &edge.last {
        Some(last) => format!("{before}{}{after}", group_name(last, style)),
        None => String::new(),
    };
    match edge.doing {
        Doing::Running => format!("{name}, which ran{}", place(", and let go")),
        Doing::HadCpu if *edge.culprit == Group::Host => "host: nobody in this machine had the CPU".into(),
        Doing::HadCpu => format!("{name}, which had the CPU{}", of(" that ", " waited for")),
        Doing::Circle => format!("{name}, in a circle of waits{}", place("")),
        Doing::Waiting(reason) => {
            let what = edge.meaning.as_deref().map_or(reason.name().into(), |meaning| style.name(meaning));
            format!("{name}: {what}{}{}", of(" of ", ""), place(""))
        }
    }
}

#[cfg(test)]
mod tests {
    use wallprof_model::{Reason, StallReason};

    use super::*;

    const MS: u64 = 1_000_000;

    fn threads(process: &str, thread: &str) -> Group {
        Group::Threads { process: process.into(), thread: thread.into() }
    }

    fn blame() -> Blame {
        let holder = threads("app", "house<keeper>\x1b");
        let edge = |culprit: Group, doing, last, ns| Edge {
            waiter: threads("app", "engine").into(),
            culprit: culprit.into(),
            doing,
            meaning: None,
            last,
            place: Some("sweep<Registry> (fdatasync)".into()),
            ns,
            count: 1,
        };
        let disk = Doing::Waiting(StallReason::Blocked(Reason::Disk));
        let edges = vec![
            edge(Group::Device, disk, Some(holder.clone().into()), 6 * MS),
            edge(holder.clone(), Doing::Running, None, 3 * MS),
            Edge { place: None, ..edge(Group::Host, Doing::HadCpu, None, MS) },
        ];
        let knots = vec![vec![holder, threads("app", "engine")]];
        Blame { waiting_ns: 10 * MS, edges, knots, cut_ns: 0 }
    }

    #[test]
    fn text_names_the_last_thread_and_its_place() {
        let mut text = Vec::new();
        blame_text(&mut text, &blame(), &Style::plain()).expect("text");
        let text = String::from_utf8(text).expect("UTF-8");
        assert_eq!(
            text,
            "
Who costs whom  10.0 ms of waiting, each at the end of its chain

app/engine waited 10.0 ms
    6.00 ms   60.0 %  device: disk of app/house<keeper>\\x1b in sweep<Registry> (fdatasync) (1 wait)
    3.00 ms   30.0 %  app/house<keeper>\\x1b, which ran, and let go in sweep<Registry> (fdatasync) (1
                      wait)
    1.00 ms   10.0 %  host: nobody in this machine had the CPU (1 wait)

app/house<keeper>\\x1b, app/engine wait for each other, and the others for them in the end
"
        );
        let mut text = Vec::new();
        blame_text(&mut text, &Blame::default(), &Style::plain()).expect("text");
        assert_eq!(text, b"no thread waited for anything that made it late\n");
    }

    #[test]
    fn wait_with_a_meaning_is_called_by_it() {
        let mut blame = blame();
        blame.edges[0].meaning = Some("row lock\x1b".into());
        let mut text = Vec::new();
        blame_text(&mut text, &blame, &Style::plain()).expect("text");
        let text = String::from_utf8(text).expect("UTF-8");
        assert!(text.contains("device: row lock\\x1b of app/house"), "{text}");
        let mut text = Vec::new();
        blame_json(&mut text, &blame, None).expect("JSON");
        let object: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        let edges = [&object["edges"][0], &object["edges"][1]].map(|edge| &edge["meaning"]);
        assert_eq!(edges, [&"row lock\u{1b}".into(), &serde_json::Value::Null]);
    }

    #[test]
    fn json_has_the_fields_of_the_contract() {
        let mut text = Vec::new();
        blame_json(&mut text, &blame(), None).expect("JSON");
        let object: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        let edge = &object["edges"][0];
        assert_eq!(edge["waiter"], serde_json::json!({"process": "app", "thread": "engine"}));
        assert_eq!(edge["culprit"], serde_json::json!({"process": null, "thread": "device"}));
        assert_eq!((&edge["state"], &edge["ns"]), (&"disk".into(), &(6 * MS).into()));
        assert_eq!(edge["where"], "sweep<Registry> (fdatasync)");
        assert_eq!(object["knots"][0].as_array().map(Vec::len), Some(2));
        assert!(object["what_if"].is_null() && object["schema"] == 1);
    }

    #[test]
    fn json_has_the_effect_of_a_change() {
        use wallprof_analysis::blame::{Estimate, KindEstimate, WhatIf};
        let estimate = Estimate { before: 40, after: 20, low: 19, high: 22 };
        let what_if = WhatIf {
            change: "disk=-50%".into(),
            waiting: estimate,
            groups: vec![(threads("app", "engine"), estimate)],
            kinds: vec![KindEstimate { kind: "order".into(), p99: Some(estimate), p999: None }],
            unknown_share: 0.25,
            counted_share: 0.0,
            is_found: true,
        };
        let mut text = Vec::new();
        blame_json(&mut text, &blame(), Some(&what_if)).expect("JSON");
        let object: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        let numbers = serde_json::json!({ "before": 40, "after": 20, "low": 19, "high": 22 });
        assert_eq!(
            object["what_if"],
            serde_json::json!({
                "change": "disk=-50%",
                "waiting_ns": numbers,
                "groups": [{ "process": "app", "thread": "engine", "waiting_ns": numbers }],
                "kinds": [{ "kind": "order", "p99_ns": numbers, "p999_ns": null }],
                "unknown_share": 0.25,
                "counted_share": 0.0,
                "found": true
            })
        );
    }

    #[test]
    fn names_in_the_picture_are_never_markup() {
        let mut svg = Vec::new();
        blame_svg(&mut svg, &blame()).expect("SVG");
        let svg = String::from_utf8(svg).expect("UTF-8");
        assert!(
            svg.contains("house&lt;keeper&gt;") && !svg.contains("house<") && !svg.contains('\x1b'),
            "{svg}"
        );
        assert_eq!(svg.matches("class=\"b\"").count(), 3);
        let mut svg = Vec::new();
        blame_svg(&mut svg, &Blame::default()).expect("SVG");
    }
}
