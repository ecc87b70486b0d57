//! Text and JSON against files that a person has looked at. `WALLPROF_BLESS=1 cargo test -p wallprof-views`
//! writes the files anew; a missing file fails.

mod story;

use std::path::PathBuf;
use std::{env, fs};

use story::{Story, deadlock_story, lock_story, noted_story, system_story};
use wallprof_model::profile::Finding;
use wallprof_views::{Report, StallsText, Style, Surroundings, report_json, report_text, stall_json};

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

fn report(story: &Story, style: &Style) -> String {
    let digest = story.digest();
    let mut out = Vec::new();
    report_text(&mut out, &input(story, &digest, &story.findings()), style).unwrap();
    String::from_utf8(out).unwrap()
}

fn input<'a>(
    story: &'a Story,
    stalls: &'a wallprof_analysis::StallDigest,
    findings: &'a [Finding],
) -> Report<'a> {
    Report {
        info: &story.info,
        threads: &story.threads,
        interrupts: &story.interrupts,
        intrusions: &story.intrusions,
        folded: &story.folded,
        marks: &story.marks,
        stalls,
        findings,
    }
}

fn stalls(story: &Story, style: &Style) -> String {
    let mut out = Vec::new();
    let mut text = StallsText::new(&story.info, style);
    let beside = story.surroundings();
    story.stalls.iter().for_each(|stall| text.write(&mut out, stall, &beside).unwrap());
    text.finish(&mut out).unwrap();
    String::from_utf8(out).unwrap()
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
        let text = report(&lock_story(), &Style { width, ..Style::plain() });
        check(&format!("report-{width}.txt"), &text);
    }
}

#[test]
fn report_in_ascii_and_in_colour() {
    check("report-ascii.txt", &report(&lock_story(), &Style { unicode: false, width: 80, ..Style::plain() }));
    check("report-colour.txt", &report(&lock_story(), &Style { colour: true, ..Style::plain() }));
}

#[test]
fn report_of_a_whole_system_and_of_a_deadlock() {
    check("report-system.txt", &report(&system_story(), &Style::plain()));
    check("report-deadlock.txt", &report(&deadlock_story(), &Style::plain()));
}

#[test]
fn stalls_as_text() {
    check("stalls-80.txt", &stalls(&lock_story(), &Style { width: 80, ..Style::plain() }));
    check("stalls-100.txt", &stalls(&lock_story(), &Style::plain()));
    check("stalls-deadlock.txt", &stalls(&deadlock_story(), &Style::plain()));
}

#[test]
fn marks_and_counters_beside_the_stalls() {
    check("report-noted.txt", &report(&noted_story(), &Style::plain()));
    check("stalls-noted.txt", &stalls(&noted_story(), &Style::plain()));
}

#[test]
fn report_as_json() {
    let story = lock_story();
    let digest = story.digest();
    let mut out = Vec::new();
    report_json(&mut out, &input(&story, &digest, &story.findings())).unwrap();
    check("report.json", &spread(&String::from_utf8(out).unwrap()));
}

#[test]
fn stalls_as_json() {
    let story = noted_story();
    let mut out = Vec::new();
    // One with surroundings, the others without.
    let mut beside = story.surroundings();
    for stall in &story.stalls {
        stall_json(&mut out, stall, &beside, &story.info.clock).unwrap();
        beside = Surroundings::default();
    }
    let text = String::from_utf8(out).unwrap();
    assert_eq!(text.lines().count(), story.stalls.len());
    check("stalls.json", &text.lines().map(|line| spread(line) + "\n").collect::<String>());
}
