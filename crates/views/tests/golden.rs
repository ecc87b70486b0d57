// SPDX-License-Identifier: Apache-2.0
//! Text and JSON against files that a person has checked. `WALLPROF_BLESS=1 cargo test -p wallprof-views`
//! writes the files anew; a missing file fails.

mod fixture;

use std::path::PathBuf;
use std::sync::Arc;
use std::{env, fs};

use fixture::{Fixture, deadlock_fixture, lock_fixture, noted_fixture, system_fixture};
use wallprof_analysis::EqualStacks;
use wallprof_model::profile::{Finding, StallRecord};
use wallprof_model::{Meaning, MeaningSource};
use wallprof_views::{
    Report, StallGroupsText, StallsText, Style, Surroundings, report_json, report_text, stall_json,
};

fn check(name: &str, got: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/goldens").join(name);
    if env::var_os("WALLPROF_BLESS").is_some() {
        return fs::write(&path, got).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
    let expected = fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}: look at the output and bless it", path.display()));
    if let Some((line, (got, expected))) =
        (1..).zip(got.lines().zip(expected.lines())).find(|(_, (got, expected))| got != expected)
    {
        panic!("{name}:{line}\n     got: {got}\nexpected: {expected}");
    }
    assert!(got == expected, "{name}: {} lines instead of {}", got.lines().count(), expected.lines().count());
}

fn report(fixture: &Fixture, style: &Style) -> String {
    let digest = fixture.digest();
    let mut out = Vec::new();
    report_text(&mut out, &input(fixture, &digest, &fixture.findings()), style).unwrap();
    String::from_utf8(out).unwrap()
}

fn input<'a>(
    fixture: &'a Fixture,
    stalls: &'a wallprof_analysis::StallDigest,
    findings: &'a [Finding],
) -> Report<'a> {
    Report {
        info: &fixture.info,
        threads: &fixture.threads,
        interrupts: &fixture.interrupts,
        intrusions: &fixture.intrusions,
        folded: &fixture.folded,
        marks: &fixture.marks,
        stalls,
        findings,
    }
}

fn stalls(fixture: &Fixture, style: &Style) -> String {
    let mut out = Vec::new();
    let mut text = StallsText::new(&fixture.info, style);
    fixture
        .stalls
        .iter()
        .for_each(|stall| text.write(&mut out, stall, &fixture.surroundings_of(stall)).unwrap());
    text.finish(&mut out, true).unwrap();
    String::from_utf8(out).unwrap()
}

/// The groups with the most time, `top` of them.
fn stall_groups(fixture: &Fixture, top: usize, style: &Style) -> String {
    let mut stacks = EqualStacks::default();
    fixture.stalls.iter().for_each(|stall| stacks.add(stall.clone()));
    let mut out = Vec::new();
    let mut text = StallGroupsText::new(&fixture.info, style);
    let beside = fixture.surroundings();
    for group in stacks.ranked().into_iter().take(top) {
        let longest = fixture.stalls.iter().find(|stall| stall.id == group.longest).unwrap();
        text.write(&mut out, group, longest, &beside).unwrap();
    }
    text.finish(&mut out, &stacks, true).unwrap();
    String::from_utf8(out).unwrap()
}

/// The last three waits are slices of one wait for a row lock.
fn sliced_fixture() -> Fixture {
    let mut fixture = lock_fixture();
    let source = MeaningSource::Stack;
    let (name, software) = ("row lock".into(), Some("postgresql".into()));
    let meaning = Some(Arc::new(Meaning { name, software, idle: false, holder: true, source }));
    let wait = fixture.stalls.iter().rfind(|stall| stall.id == 26).cloned().unwrap();
    fixture.stalls.retain(|stall| stall.id < 26);
    fixture.stalls.extend((26..29).map(|id| {
        let wait_id = Some(26);
        StallRecord { id, wait_id, meaning: meaning.clone(), ..wait.clone() }
    }));
    fixture
}

/// JSON with a line for each value, in the order in which it was written.
fn spread(json: &str) -> String {
    let (mut text, mut depth, mut in_string, mut escaped) = (String::new(), 0usize, false, false);
    for c in json.chars() {
        let structure = !in_string;
        if structure && matches!(c, '}' | ']') {
            depth -= 1;
            text.push('\n');
            text.push_str(&"  ".repeat(depth));
        }
        text.push(c);
        if structure && matches!(c, '{' | '[') {
            depth += 1;
        }
        if structure && matches!(c, '{' | '[' | ',') {
            text.push('\n');
            text.push_str(&"  ".repeat(depth));
        }
        in_string = if c == '"' && !escaped { !in_string } else { in_string };
        escaped = c == '\\' && !escaped;
    }
    text
}

#[test]
fn report_at_three_widths() {
    for width in [80, 100, 140] {
        let text = report(&lock_fixture(), &Style { width, ..Style::plain() });
        check(&format!("report-{width}.txt"), &text);
    }
}

#[test]
fn report_in_ascii_and_in_colour() {
    check(
        "report-ascii.txt",
        &report(&lock_fixture(), &Style { unicode: false, width: 80, ..Style::plain() }),
    );
    check("report-colour.txt", &report(&lock_fixture(), &Style { colour: true, ..Style::plain() }));
}

#[test]
fn report_of_a_whole_system_and_of_a_deadlock() {
    check("report-system.txt", &report(&system_fixture(), &Style::plain()));
    check("report-deadlock.txt", &report(&deadlock_fixture(), &Style::plain()));
}

#[test]
fn report_of_a_go_program_says_what_is_not_seen() {
    let mut fixture = lock_fixture();
    assert!(!report(&fixture, &Style::plain()).contains("goroutines"));
    let (name, source) = ("goroutines".into(), wallprof_model::MeaningSource::Stack);
    let meaning =
        wallprof_model::Meaning { name, software: Some("go".into()), idle: true, holder: false, source };
    fixture.stalls[0].meaning = Some(std::sync::Arc::new(meaning));
    let text = report(&fixture, &Style::plain());
    assert_eq!(
        text.lines().nth(3),
        Some("Go: goroutines that wait are not threads, and are not seen"),
        "{text}"
    );
}

#[test]
fn labels_are_in_the_head_of_a_report() {
    let mut fixture = lock_fixture();
    fixture.info.labels = [("version".into(), "1.4".into()), ("arm".into(), "a\x1bb".into())].into();
    let text = report(&fixture, &Style::plain());
    assert_eq!(text.lines().nth(3), Some("arm=a\\x1bb, version=1.4"), "{text}");
}

#[test]
fn stalls_as_text() {
    check("stalls-80.txt", &stalls(&lock_fixture(), &Style { width: 80, ..Style::plain() }));
    check("stalls-100.txt", &stalls(&lock_fixture(), &Style::plain()));
    check("stalls-deadlock.txt", &stalls(&deadlock_fixture(), &Style::plain()));
}

#[test]
fn stall_groups_as_text() {
    check("stall-groups-80.txt", &stall_groups(&system_fixture(), 2, &Style { width: 80, ..Style::plain() }));
    check("stall-groups-100.txt", &stall_groups(&lock_fixture(), 50, &Style::plain()));
    check("stall-groups-slices.txt", &stall_groups(&sliced_fixture(), 1, &Style::plain()));
    assert!(
        stall_groups(&Fixture { stalls: Vec::new(), ..lock_fixture() }, 50, &Style::plain())
            .starts_with("No stall")
    );
}

#[test]
fn marks_and_counters_beside_the_stalls() {
    check("report-noted.txt", &report(&noted_fixture(), &Style::plain()));
    check("stalls-noted.txt", &stalls(&noted_fixture(), &Style::plain()));
}

#[test]
fn report_as_json() {
    let fixture = lock_fixture();
    let digest = fixture.digest();
    let mut out = Vec::new();
    report_json(&mut out, &input(&fixture, &digest, &fixture.findings())).unwrap();
    check("report.json", &spread(&String::from_utf8(out).unwrap()));
}

#[test]
fn stalls_as_json() {
    let fixture = noted_fixture();
    let mut out = Vec::new();
    // One with surroundings, the others with the holder of their lock alone.
    let mut beside = fixture.surroundings();
    for stall in &fixture.stalls {
        beside.holder = fixture.surroundings_of(stall).holder;
        stall_json(&mut out, stall, &beside, &fixture.info.clock).unwrap();
        beside = Surroundings::default();
    }
    let text = String::from_utf8(out).unwrap();
    assert_eq!(text.lines().count(), fixture.stalls.len());
    check("stalls.json", &text.lines().map(|line| spread(line) + "\n").collect::<String>());
}
