// SPDX-License-Identifier: Apache-2.0
//! Two sides compared: every state of every matched group, and every node of the tree of stacks.

use super::collect::Side;
use super::comparison::{Comparison, GroupRate, Matched, Part, Unmatched};
use super::evidence::{LEAST_WINDOWS, rate_ns};
use super::headlines::headlines;
use super::news::{Floor, NodeRule};
use super::nodes::{Stacks, judged_nodes, node_changes};
use super::parts::{Pair, asked_p, is_asked_first, leaf_levels, part_changes, parts_of, waits_rule};
use super::sides::Sides;
use super::tree::Tree;
use crate::interest::Class;
use crate::weights::View;

/// Compares two sides that were collected with the same `tree`, in a view of time.
pub fn compare(tree: Tree, a: &Side, b: &Side, view: &View, floor: Floor) -> Comparison {
    let pairs: Vec<Pair<'_>> =
        a.groups.iter().filter_map(|(group, time)| Some((group, time, b.groups.get(group)?))).collect();
    let sides = Sides::of(a, b, floor);
    let mut parts = part_changes(&tree, &pairs, &sides, view);
    let stacks = Stacks::of(&tree, &pairs, view);
    let nodes = node_changes(&tree, stacks.clone(), &sides);
    let waits_rule = waits_rule(&parts, floor);
    let leaf_levels = leaf_levels(&tree, &pairs, &parts, &nodes.changes, &waits_rule);
    let others = parts.iter().filter(|part| !is_asked_first(part)).filter_map(asked_p);
    let rule = NodeRule::new(floor, nodes.asked.into_iter().chain(others).collect(), leaf_levels);
    parts.iter_mut().for_each(|part| {
        part.is_news = match is_asked_first(part) {
            true => waits_rule.is_news(&part.change),
            false => rule.is_other_news(&part.change),
        };
    });
    Comparison {
        view: view.clone(),
        floor,
        wall_a_s: a.wall_s(),
        wall_b_s: b.wall_s(),
        can_judge: [a, b].iter().all(|side| side.effective_windows() >= LEAST_WINDOWS),
        matched: pairs.iter().map(matched).collect(),
        unmatched: Unmatched { only_a: only(&tree, a, b, view), only_b: only(&tree, b, a, view) },
        headlines: headlines(&tree, stacks, &sides, &rule),
        parts,
        nodes: judged_nodes(&tree, &nodes.changes, &rule),
        tree,
    }
}

fn matched((group, a, b): &Pair<'_>) -> Matched {
    Matched { group: (*group).clone(), threads_a: a.threads, threads_b: b.threads }
}

/// The groups of `side` that `other` has not, the busiest first.
fn only(tree: &Tree, side: &Side, other: &Side, view: &View) -> Vec<GroupRate> {
    let unmatched = side.groups.iter().filter(|(group, _)| !other.groups.contains_key(group));
    let mut rates: Vec<GroupRate> = unmatched
        .map(|(group, time)| {
            let parts = parts_of(tree, time, view);
            let of_class = |class| {
                // User and kernel are running, divided.
                let states = parts.iter().filter(|(part, _)| *part != Part::Running);
                let of_class = states.filter(|(part, _)| part.class() == class);
                of_class.map(|(_, series)| rate_ns(series, &side.windows)).sum()
            };
            let (running_ns, late_ns) = (of_class(Class::Running), of_class(Class::Late));
            GroupRate { group: group.clone(), threads: time.threads, running_ns, late_ns }
        })
        .collect();
    rates.sort_by(|x, y| (y.running_ns + y.late_ns).total_cmp(&(x.running_ns + x.late_ns)));
    rates
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diff::comparison::Headline;
    use crate::diff::fixture::Fixture;
    use crate::diff::tree::NodeId;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use wallprof_model::{Reason, State};

    const MS: u64 = 1_000_000;
    const LOCK: State = State::Blocked(Reason::Lock);

    fn compared(a: &Fixture, b: &Fixture) -> Comparison {
        compared_in(&View::Wall, a, b)
    }

    fn compared_in(view: &View, a: &Fixture, b: &Fixture) -> Comparison {
        let mut tree = Tree::default();
        let (a, b) = (a.side(&mut tree), b.side(&mut tree));
        compare(tree, &a, &b, view, Floor::default())
    }

    fn shown(comparison: &Comparison, node: NodeId) -> String {
        let path: Vec<String> = comparison.tree.path(node).iter().map(ToString::to_string).collect();
        path.join(";")
    }

    fn headlines(comparison: &Comparison) -> Vec<(String, i64)> {
        let line = |headline: &Headline| {
            (shown(comparison, headline.node), (headline.change.difference_ns() / 1e6).round() as i64)
        };
        comparison.headlines.iter().map(line).collect()
    }

    #[test]
    fn longer_wait_is_named_at_its_stack() {
        let recorded =
            |ms| Fixture::new(10).waiting("t", LOCK, ms + 40, &[("main;take", ms), ("main;put", 40)]);
        let comparison = compared(&recorded(20), &recorded(45));
        assert_eq!(headlines(&comparison), [("main;take;[blocked:lock]".into(), 25)]);
        let news: Vec<_> = comparison.parts.iter().filter(|part| part.is_news).collect();
        assert_eq!(news.len(), 1);
        assert_eq!(
            (&news[0].part, news[0].change.a_ns, news[0].change.b_ns),
            (&Part::State(LOCK), 60e6, 85e6)
        );
    }

    #[test]
    fn many_small_differences_are_named_where_they_meet() {
        let recorded = |ms| {
            let names: Vec<String> = (0..20).map(|index| format!("main;work;leaf{index}")).collect();
            let stacks: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), ms)).collect();
            Fixture::new(10).waiting("t", LOCK, 20 * ms, &stacks)
        };
        let mut tree = Tree::default();
        let (a, b) = (recorded(2).side(&mut tree), recorded(4).side(&mut tree));
        let floor = Floor { ns: 5e6, share: 0.05 };
        let comparison = compare(tree, &a, &b, &View::Wall, floor);
        assert_eq!(headlines(&comparison), [("main;work".into(), 40)]);
    }

    #[test]
    fn rest_of_a_parent_excludes_its_named_children() {
        let recorded = |named: u64, others: u64| {
            let stacks: Vec<(String, u64)> = std::iter::once(("main;hot".to_string(), named))
                .chain((0..30).map(|index| (format!("main;leaf{index}"), others)))
                .collect();
            let stacks: Vec<(&str, u64)> = stacks.iter().map(|(name, ms)| (name.as_str(), *ms)).collect();
            Fixture::new(10).waiting("t", LOCK, 900, &stacks)
        };
        let floor = Floor { ns: 5e6, share: 0.05 };
        let mut tree = Tree::default();
        let (a, b) = (recorded(100, 2).side(&mut tree), recorded(200, 4).side(&mut tree));
        let comparison = compare(tree, &a, &b, &View::Wall, floor);
        let found = headlines(&comparison);
        assert_eq!(found[1], ("main;hot;[blocked:lock]".into(), 100));
        assert_eq!(found[2], ("main".into(), 60));
        assert!(comparison.headlines[2].is_rest && !comparison.headlines[1].is_rest);
        assert_eq!(found[0], ("[unsampled];[blocked:lock]".into(), -160));
    }

    #[test]
    fn shorter_sleep_comes_after_its_cause() {
        let recorded = |ms| {
            let sleep = State::Blocked(Reason::Sleep);
            let fixture = Fixture::new(10).waiting("t", sleep, 1_000 - ms, &[("main;idle", 1_000 - ms)]);
            fixture.waiting("t", LOCK, ms, &[("main;take", ms * 3 / 4), ("main;put", ms / 4)])
        };
        let found = headlines(&compared(&recorded(100), &recorded(300)));
        assert_eq!(found[0], ("main;take;[blocked:lock]".into(), 150));
        assert_eq!(found[2], ("main;idle;[blocked:sleep]".into(), -200), "though largest");
    }

    /// Backends wait for a row in a poll, which is voluntary where nothing is known of it.
    #[test]
    fn wait_that_means_a_lock_is_no_voluntary_one() {
        let poll = State::Blocked(Reason::Poll);
        let recorded = |ms| {
            let fixture = Fixture::new(5).meaning("main;update", "row lock", false);
            fixture.waiting("t", poll, 900, &[("main;update", ms), ("main;idle", 900 - ms)])
        };
        let comparison = compared(&recorded(100), &recorded(250));
        assert_eq!(
            headlines(&comparison),
            [("main;update;[blocked:poll]".into(), 150), ("main;idle;[blocked:poll]".into(), -150)]
        );
        let parts: Vec<_> = comparison
            .parts
            .iter()
            .map(|part| {
                let meant = part.part.meant().map(ToString::to_string);
                (part.part.label(), meant, part.change.a_ns, part.change.b_ns, part.is_news)
            })
            .collect();
        let row_lock = Some("row lock".to_owned());
        assert_eq!(
            parts,
            [
                ("blocked:poll".into(), None, 800e6, 650e6, true),
                ("blocked:poll".into(), row_lock, 100e6, 250e6, true)
            ]
        );
        let leaf = comparison.headlines[0].node;
        assert_eq!(comparison.tree.names(leaf), ["main", "update", "[row lock]", "[blocked:poll]"]);
    }

    #[test]
    fn wait_of_an_idle_thread_comes_last_whatever_its_state() {
        let network = State::Blocked(Reason::Network);
        let recorded = |ms: u64| {
            let fixture = Fixture::new(5).meaning("main;next", "client idle", true);
            let fixture = fixture.waiting("t", network, 900 - ms, &[("main;next", 900 - ms)]);
            fixture.waiting("t", LOCK, ms / 2, &[("main;take", ms / 2)])
        };
        let found = headlines(&compared(&recorded(100), &recorded(300)));
        assert_eq!(found[0], ("main;take;[blocked:lock]".into(), 100));
        assert_eq!(found[1], ("main;next;[blocked:network]".into(), -200), "though larger");
        let mut tree = Tree::default();
        let other = Fixture::new(5).running("other", 1, &[]).side(&mut tree);
        let side = recorded(100).side(&mut tree);
        let found = compare(tree, &side, &other, &View::Wall, Floor::default());
        assert_eq!(found.unmatched.only_a.iter().map(|one| one.late_ns).sum::<f64>(), 50e6);
    }

    /// The single waits of one side say what a place means, and hold for both.
    #[test]
    fn place_means_the_same_on_both_sides() {
        let poll = State::Blocked(Reason::Poll);
        let recorded = |ms: u64, meaning: bool| {
            let mut fixture = Fixture::new(5);
            if meaning {
                fixture = fixture.meaning("main;ask", "answer", false);
            }
            let key = fixture.thread("t");
            (0..5).for_each(|second| fixture.single_waits(key, second, poll, "main;ask", &[ms * MS; 10]));
            fixture
        };
        let comparison = compared(&recorded(4, false), &recorded(9, true));
        let leaf = comparison.headlines[0].node;
        assert_eq!(comparison.tree.names(leaf), ["main", "ask", "[answer]", "[blocked:poll]"]);
        assert_eq!((comparison.parts.len(), comparison.parts[0].change.a_ns), (1, 40e6));
        assert_eq!(comparison.parts[0].part.class(), Class::Peer);
    }

    #[test]
    fn appeared_and_vanished_stacks_are_marked() {
        let a = Fixture::new(5).waiting("t", LOCK, 10, &[("main;old", 10)]);
        let b = Fixture::new(5).waiting("t", LOCK, 10, &[("main;new", 10)]);
        let comparison = compared(&a, &b);
        let of = |name: &str| {
            let found = comparison.headlines.iter().find(|one| shown(&comparison, one.node).contains(name));
            found.unwrap().change
        };
        assert!(of("new").appeared() && of("old").went());
        assert!(comparison.parts.iter().all(|part| !part.is_news), "the state is as long as before");
    }

    #[test]
    fn threads_of_one_side_are_named_and_not_compared() {
        let a =
            Fixture::new(5).waiting("t", LOCK, 10, &[]).waiting("idle", LOCK, 1, &[]).running("gone", 5, &[]);
        let b = Fixture::new(5).waiting("t", LOCK, 10, &[]);
        let comparison = compared(&a, &b);
        assert!(comparison.has_no_news() && comparison.unmatched.only_b.is_empty());
        let gone = &comparison.unmatched.only_a[0];
        assert_eq!((gone.group.thread.as_str(), gone.running_ns), ("gone", 5e6));
        assert_eq!(comparison.unmatched.only_a[1].late_ns, 1e6);
        let other = compared(&a, &b.of_process("other"));
        assert_eq!((other.matched.len(), other.unmatched.only_a.len()), (0, 3));
    }

    /// The time by second shows no difference: every third second has most of it. The waits show it.
    #[test]
    fn changes_of_single_waits_include_similar_stacks() {
        let recorded = |ms: u64| {
            let mut fixture = Fixture::new(10);
            let key = fixture.thread("t");
            for second in 0..10 {
                let waits: Vec<u64> = (0..10).map(|at| (ms * 10 + at) * 100_000).collect();
                let waits = if second % 3 == 0 { &waits[..] } else { &waits[..2] };
                fixture.single_waits(key, second, LOCK, "main;tick;take", waits);
                fixture.single_waits(key, second, LOCK, "main;put", &[900_000; 3]);
                fixture.single_waits(key, second, State::Blocked(Reason::Disk), "main;tick;take", &[100_000]);
            }
            fixture
        };
        let comparison = compared(&recorded(1), &recorded(2));
        assert_eq!(headlines(&comparison), [("main;tick;take;[blocked:lock]".into(), 5)]);
        let news = |id: &NodeId| comparison.node(*id).unwrap().is_news;
        let named: Vec<String> =
            comparison.tree.ids().skip(2).filter(news).map(|id| shown(&comparison, id)).collect();
        assert_eq!(named, ["main;tick", "main;tick;take", "main;tick;take;[blocked:lock]"]);
    }

    #[test]
    fn views_choose_states() {
        let a = Fixture::new(5).running("t", 50, &[("main", 5)]).waiting("t", LOCK, 30, &[]);
        let b = Fixture::new(5).running("t", 50, &[("main", 5)]).waiting("t", LOCK, 60, &[]);
        assert!(compared_in(&View::OnCpu, &a, &b).has_no_news());
        let off = compared_in(&View::OffCpu, &a, &b);
        assert_eq!(off.parts.iter().map(|part| &part.part).collect::<Vec<_>>(), [&Part::State(LOCK)]);
        assert_eq!(off.node(NodeId::ALL).unwrap().change.a_ns, 30e6);
        assert_eq!(compared(&a, &b).node(NodeId::ALL).unwrap().change.a_ns, 80e6);
    }

    #[test]
    fn short_recordings_are_not_judged() {
        let recorded = |seconds, ms| Fixture::new(seconds).waiting("t", LOCK, ms, &[]);
        let comparison = compared(&recorded(2, 10), &recorded(9, 500));
        assert!(!comparison.can_judge && comparison.has_no_news());
        assert_eq!(comparison.parts[0].change.b_ns, 500e6);
    }

    /// A stack, its ms in each of six seconds.
    fn any_fixture() -> impl Strategy<Value = Fixture> {
        let stack =
            prop_oneof![Just("main;a;x"), Just("main;a;y"), Just("main;b"), Just("main"), Just("go;a")];
        let waits = proptest::collection::vec((stack, proptest::array::uniform6(0..150u64)), 1..8);
        waits.prop_map(|waits| {
            let mut fixture = Fixture::new(6);
            for (index, (stack, ms)) in waits.iter().enumerate() {
                let key = fixture.thread(["t", "u"][index % 2]);
                for (second, ms) in ms.iter().enumerate() {
                    fixture.wait(key, second as u32, (LOCK, ms * 1_000_000), &[(stack, *ms)]);
                    fixture.run(key, second as u32, *ms, &[(stack, ms / 10)]);
                }
            }
            fixture
        })
    }

    proptest! {
        #[test]
        fn equal_sides_have_no_news(fixture in any_fixture()) {
            let comparison = compared(&fixture, &fixture);
            prop_assert!(comparison.has_no_news());
            for id in comparison.tree.ids() {
                prop_assert!(comparison.node(id).is_none_or(|node| node.change.difference_ns() == 0.0));
            }
        }

        #[test]
        fn the_other_way_round_is_the_opposite(a in any_fixture(), b in any_fixture()) {
            let (there, back) = (compared(&a, &b), compared(&b, &a));
            let by_path = |comparison: &Comparison| -> BTreeMap<_, _> {
                let named = |id: NodeId| (comparison.tree.group(id).cloned(), shown(comparison, id));
                comparison.tree.ids().filter_map(|id| Some((named(id), comparison.node(id)?))).collect()
            };
            let (there_nodes, back_nodes) = (by_path(&there), by_path(&back));
            prop_assert_eq!(there_nodes.len(), back_nodes.len());
            for (path, node) in &there_nodes {
                let other = back_nodes[path];
                prop_assert_eq!(node.change.difference_ns(), -other.change.difference_ns());
                prop_assert_eq!(node.is_news, other.is_news);
            }
            let parts = |comparison: &Comparison| -> Vec<_> {
                comparison.parts.iter().map(|part| (part.part.clone(), part.is_news)).collect()
            };
            prop_assert_eq!(parts(&there), parts(&back));
        }

        #[test]
        fn parents_are_the_sums_of_their_children(a in any_fixture(), b in any_fixture()) {
            let comparison = compared(&a, &b);
            let mut sums: BTreeMap<NodeId, (f64, f64)> = BTreeMap::new();
            for id in comparison.tree.ids().skip(1) {
                if let Some(node) = comparison.node(id) {
                    let sum = sums.entry(comparison.tree.node(id).parent).or_default();
                    sum.0 += node.change.a_ns;
                    sum.1 += node.change.b_ns;
                }
            }
            for (id, (a, b)) in sums {
                let change = comparison.node(id).unwrap().change;
                prop_assert!((change.a_ns - a).abs() < 1e-3 && (change.b_ns - b).abs() < 1e-3);
            }
        }

        #[test]
        fn the_length_of_a_recording_changes_no_rate(ms in 0..400u64, count in 0..9u64, seconds in 1..50u32) {
            let recorded = |seconds| {
                let stacks = [("main;take", ms / 2)];
                let fixture = Fixture::new(seconds).waiting("t", LOCK, ms, &stacks);
                fixture.running("t", ms, &[("main;run", count), ("main", 1)])
            };
            let comparison = compared(&recorded(seconds), &recorded(7));
            for id in comparison.tree.ids() {
                let Some(node) = comparison.node(id) else { continue };
                // Scaling to the ledger rounds each second of a stack by less than a nanosecond.
                prop_assert!(node.change.difference_ns().abs() < 4.0, "{:?}", node.change);
            }
            prop_assert!(comparison.has_no_news());
        }
    }
}
