// SPDX-License-Identifier: Apache-2.0
//! Flame graphs, read by an XML parser that neither wrote them nor knows them.

mod stacks;

use roxmltree::{Document, Node};
use stacks::{LOCK, MILLI, Stacks, hostile_stacks, info, lock_stacks};
use wallprof_analysis::Zone;
use wallprof_analysis::weights::{Side, View};
use wallprof_model::State;
use wallprof_model::profile::RecordingInfo;
use wallprof_views::{Flame, flame_svg};

fn svg_of(stacks: &Stacks, info: &RecordingInfo, thread_glob: Option<&str>) -> String {
    let zone = Zone::utc();
    let flame = Flame {
        info,
        weights: &stacks.weights,
        side: Side::Both,
        range: info.start..info.end,
        thread_glob,
        zone: &zone,
    };
    let mut out = Vec::new();
    flame_svg(&mut out, &flame).unwrap();
    String::from_utf8(out).unwrap()
}

fn svg(stacks: &Stacks) -> String {
    svg_of(stacks, &info(), None)
}

/// The element that holds the boxes.
fn boxes<'a, 'i>(document: &'a Document<'i>) -> Node<'a, 'i> {
    document.descendants().find(|node| node.attribute("id") == Some("frames")).unwrap()
}

fn titles<'a>(document: &'a Document<'_>) -> Vec<&'a str> {
    boxes(document)
        .descendants()
        .filter(|node| node.has_tag_name((SVG, "title")))
        .filter_map(|title| title.text())
        .collect()
}

fn texts(document: &Document<'_>) -> Vec<String> {
    let texts = document.descendants().filter(|node| node.has_tag_name((SVG, "text")));
    texts.filter_map(|text| text.text()).map(str::to_owned).collect()
}

const SVG: &str = "http://www.w3.org/2000/svg";

#[test]
fn boxes_say_how_long_and_how_much() {
    let svg = svg(&lock_stacks());
    let document = Document::parse(&svg).unwrap();
    let mut found = titles(&document);
    found.sort_unstable();
    assert_eq!(
        found,
        [
            "2 threads (1.50 s, 100.00 %)",
            "[blocked:lock] (600 ms, 40.00 %)",
            "[irq] (100 ms, 6.67 %)",
            "[unsampled] (100 ms, 6.67 %)",
            "[user] (300 ms, 20.00 %)",
            "[user] (500 ms, 33.33 %)",
            "book (900 ms, 60.00 %)",
            "engine (1.00 s, 66.67 %)",
            "futex_wait_[k] (600 ms, 40.00 %)",
            "keeper (500 ms, 33.33 %)",
            "lock (600 ms, 40.00 %)",
            "main (500 ms, 33.33 %)",
            "main (900 ms, 60.00 %)",
            "matchd (1.50 s, 100.00 %)",
            "sweep (500 ms, 33.33 %)",
            "tick (900 ms, 60.00 %)",
        ]
    );
}

/// Of the box whose title begins so: the left edge and the width in pixels, and the upper edge.
fn place(document: &Document<'_>, title: &str) -> (f64, f64, f64) {
    let rect = rect(document, title);
    let [x, width, y] = ["x", "width", "y"].map(|name| rect.attribute(name).unwrap().parse::<f64>().unwrap());
    (x, width, y)
}

#[test]
fn boxes_are_as_wide_as_their_time_and_stand_on_their_callers() {
    let svg = svg(&lock_stacks());
    let document = Document::parse(&svg).unwrap();
    let (left, whole, ground) = place(&document, "2 threads");
    assert_eq!((left, whole), (10.0, 1180.0));
    for (title, callers, share) in
        [("matchd", 1, 1.0), ("engine", 2, 2.0 / 3.0), ("futex_wait_[k]", 7, 0.4), ("keeper", 2, 1.0 / 3.0)]
    {
        let (x, width, y) = place(&document, title);
        assert!((width - share * whole).abs() < 0.01, "{title}: {width}");
        assert!((ground - y - f64::from(callers) * 17.0).abs() < 0.11, "{title}: {y}");
        assert!(x >= left && x + width <= left + whole + 0.01, "{title}: {x}");
    }
    let (engine, keeper) = (place(&document, "engine"), place(&document, "keeper"));
    assert!((engine.0 + engine.1 - keeper.0).abs() < 0.01, "siblings touch: {engine:?} {keeper:?}");
}

#[test]
fn caption_has_the_view_the_time_and_the_threads() {
    let stacks = lock_stacks();
    let svg = svg_of(&stacks, &info(), Some("*e*"));
    let texts = texts(&Document::parse(&svg).unwrap());
    for text in [
        "Wall time: matchd",
        "1.00 s from 08:00:09.331000 on 2026-11-21 UTC · 2 threads named *e* · host md-07",
        "user 800 ms",
        "blocked:lock 600 ms",
        "irq 100 ms",
    ] {
        assert!(texts.iter().any(|found| found == text), "{text}: {texts:?}");
    }
    assert!(!texts.iter().any(|text| text.contains("not drawn")));
}

#[test]
fn parts_that_are_not_drawn_are_noted() {
    let mut stacks = lock_stacks();
    stacks.add(0, &["main", "dust"], Some(State::User), 10);
    stacks.weights.left_out_ns = 7 * MILLI;
    let svg = svg_of(&stacks, &RecordingInfo { ended_cleanly: false, ..info() }, None);
    let texts = texts(&Document::parse(&svg).unwrap());
    for text in [
        "2 frames under 0.001 % are not drawn.",
        "7.00 ms of blocked time are left out: the waker is not known.",
        RecordingInfo::NO_END,
    ] {
        assert!(texts.iter().any(|found| found == text), "{text}: {texts:?}");
    }
    assert!(!svg.contains("dust"));
}

/// The rectangle of the box whose title begins so.
fn rect<'a, 'i>(document: &'a Document<'i>, title: &str) -> Node<'a, 'i> {
    let starts = |node: &Node<'_, '_>| node.text().is_some_and(|text| text.starts_with(title));
    let found = boxes(document).descendants().find(|node| node.has_tag_name((SVG, "title")) && starts(node));
    let group = found.and_then(|title| title.parent()).unwrap();
    group.children().find(|node| node.has_tag_name((SVG, "rect"))).unwrap()
}

#[test]
fn a_box_has_the_colour_of_the_state_it_was_in_most() {
    let svg = svg(&lock_stacks());
    let document = Document::parse(&svg).unwrap();
    let is_hot = |title: &str| {
        let fill = rect(&document, title).attribute("fill").unwrap();
        let parts: Vec<u8> = fill[4..fill.len() - 1].split(',').map(|part| part.parse().unwrap()).collect();
        parts[0] > parts[2]
    };
    for cold in ["tick", "book", "lock", "futex_wait_[k]", "[blocked:lock]"] {
        assert!(!is_hot(cold), "{cold}");
    }
    for hot in ["sweep", "[user]", "[irq]"] {
        assert!(is_hot(hot), "{hot}");
    }
}

#[test]
fn no_name_breaks_out_of_the_picture() {
    let stacks = hostile_stacks();
    let mut info = info();
    (info.command, info.hostname) = (stacks::HOSTILE[..8].concat(), stacks::HOSTILE[..8].concat());
    let svg = svg_of(&stacks, &info, Some("</text><script>*"));
    assert!(!svg.contains("<!DOCTYPE"));
    let document = Document::parse(&svg).unwrap();
    let script: Vec<_> = document.descendants().filter(|node| node.has_tag_name((SVG, "script"))).collect();
    assert_eq!(script.len(), 1, "the picture's own");
    assert!(!script[0].text().unwrap().contains("alert"));
    for node in document.descendants() {
        for attribute in node.attributes() {
            let (name, value) = (attribute.name(), attribute.value());
            assert!(!name.starts_with("on"), "{name}={value}");
            assert!(name != "href" && !value.contains("alert"), "{name}={value}");
        }
        let text =
            node.text().filter(|_| !node.has_tag_name((SVG, "script")) && !node.has_tag_name((SVG, "style")));
        let harmful = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!text.is_some_and(|text| text.contains(harmful)), "{text:?}");
    }
}

#[test]
fn hostile_names_stay_unchanged() {
    let svg = svg(&hostile_stacks());
    let document = Document::parse(&svg).unwrap();
    let titles = titles(&document);
    for name in [
        "<script>alert(1)</script>",
        "]]><script>alert(2)</script>",
        "\"'><svg onload=alert(3)>",
        "&lt;b&gt;",
        "nul\\x00nul",
        "cod\\u{202e}exe",
        "two\\nlines 99",
        "semi;colon",
        "ends in 17",
        "marked_[k]_[k]",
        "all",
        "\u{fffd}\u{fffd}",
        "(unnamed)",
    ] {
        let expected = format!("{name} (1.00 ms, 6.67 %)");
        assert!(titles.contains(&expected.as_str()), "{name}: {titles:?}");
    }
    let longest = titles.iter().map(|title| title.chars().count()).max().unwrap();
    assert!(longest < 600, "{longest}");
}

#[test]
fn nothing_to_show_is_an_error_and_no_picture() {
    let zone = Zone::utc();
    let (stacks, info) = (Stacks::new(View::Wall), info());
    let range = info.start..info.end;
    let flame = Flame {
        info: &info,
        weights: &stacks.weights,
        side: Side::Both,
        range,
        thread_glob: None,
        zone: &zone,
    };
    let error = flame_svg(&mut Vec::new(), &flame).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
}

#[test]
fn damaged_numbers_make_a_picture_too() {
    let mut stacks = Stacks::new(View::Wall);
    for name in ["a", "b", "c"] {
        stacks.add(0, &[name], Some(LOCK), u64::MAX);
    }
    let svg = svg(&stacks);
    let document = Document::parse(&svg).unwrap();
    let rects = boxes(&document).descendants().filter(|node| node.has_tag_name((SVG, "rect")));
    for rect in rects {
        let [x, width] = ["x", "width"].map(|name| rect.attribute(name).unwrap().parse::<f64>().unwrap());
        assert!(x >= 10.0 && width > 0.0 && x + width <= 1190.001, "{rect:?}");
    }
}

#[test]
fn counts_are_no_times() {
    let mut stacks = Stacks::new(View::Event("cs".into()));
    stacks.add(0, &["main", "+schedule"], None, 12_345);
    let svg = svg(&stacks);
    let document = Document::parse(&svg).unwrap();
    assert!(titles(&document).contains(&"schedule_[k] (12,345, 100.00 %)"));
    assert!(texts(&document).contains(&"Counts of cs: matchd".to_owned()));
}

#[test]
fn the_same_stacks_give_the_same_bytes() {
    assert_eq!(svg(&lock_stacks()), svg(&lock_stacks()));
}
