// SPDX-License-Identifier: Apache-2.0
//! Exports for other tools, read back.

mod stacks;

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;

use serde_json::Value;
use stacks::{MILLI, Stacks, hostile_stacks, info, lock_stacks};
use wallprof_analysis::weights::{Mark, View, Weights};
use wallprof_model::{Meaning, MeaningSource};
use wallprof_views::{EXPORT_FORMATS, Export, ExportFormat, Rows, folded, pprof, speedscope};

/// `None` for a format that is not made of stacks.
fn exported(format: &ExportFormat, weights: &Weights) -> Option<Vec<u8>> {
    let Rows::Stacks(write) = format.rows else { return None };
    let (mut out, info) = (Vec::new(), info());
    let export = Export { weights, info: &info, title: "matchd", range: info.start..info.end };
    write(&mut out, &export).unwrap();
    Some(out)
}

/// The sum of the weights in an exported file. A new format needs an arm here.
fn total_of(format: &ExportFormat, file: &[u8]) -> u64 {
    match format.name {
        "folded" => {
            let lines = std::str::from_utf8(file).unwrap().lines();
            lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
        }
        "speedscope" => {
            let json: Value = serde_json::from_slice(file).unwrap();
            let profiles = json["profiles"].as_array().unwrap().iter();
            profiles.map(|profile| profile["endValue"].as_u64().unwrap()).sum()
        }
        "pprof" => pprof_from_file(file).messages(2).iter().map(|sample| sample.packed(2)[1]).sum(),
        other => panic!("no test reads back the format {other}"),
    }
}

#[test]
fn each_format_has_the_weight_of_all_stacks() {
    for stacks in [lock_stacks(), hostile_stacks()] {
        for format in EXPORT_FORMATS {
            let Some(file) = exported(format, &stacks.weights) else { continue };
            let total = total_of(format, &file);
            assert_eq!(u128::from(total), stacks.weights.total(), "{}", format.name);
        }
    }
}

fn folded_text(weights: &Weights) -> String {
    let mut out = Vec::new();
    folded(&mut out, weights).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn folded_lines_name_thread_functions_and_state() {
    let mut stacks = lock_stacks();
    stacks.add(1, &["main", "sweep"], Some(wallprof_model::State::User), 1);
    assert_eq!(
        folded_text(&stacks.weights),
        "engine;[unsampled];[irq] 100000000\n\
         engine;main;tick;book;[user] 300000000\n\
         engine;main;tick;book;lock;futex_wait_[k];[blocked:lock] 600000000\n\
         keeper;main;sweep;[user] 500000001\n"
    );
}

#[test]
fn hostile_names_stay_in_their_place_of_a_folded_line() {
    let stacks = hostile_stacks();
    let text = folded_text(&stacks.weights);
    assert_eq!(text.lines().count(), stacks.weights.stacks.len());
    for line in text.lines() {
        let (path, weight) = line.rsplit_once(' ').unwrap();
        assert_eq!((path.split(';').count(), weight), (5, "1000000"), "{line}");
        assert!(path.split(';').all(|name| !name.is_empty()), "{line}");
        assert!(!line.contains(|c: char| c.is_control()), "{line:?}");
    }
    assert!(text.contains("semi\\x3bcolon;semi\\x3bcolon;semi\\x3bcolon_[k];"));
    assert!(text.contains("two\\nlines 99;"));
}

#[test]
fn weights_of_folded_stacks_are_all_of_the_weight() {
    for stacks in [lock_stacks(), hostile_stacks()] {
        let text = folded_text(&stacks.weights);
        let weight = |line: &str| line.rsplit_once(' ').unwrap().1.parse::<u128>().unwrap();
        assert_eq!(text.lines().map(weight).sum::<u128>(), stacks.weights.total());
    }
}

fn speedscope_json(weights: &Weights) -> Value {
    let mut out = Vec::new();
    speedscope(&mut out, weights, "matchd").unwrap();
    serde_json::from_slice(&out).unwrap()
}

#[test]
fn speedscope_has_a_profile_a_thread_the_heaviest_first() {
    let json = speedscope_json(&lock_stacks().weights);
    assert_eq!(json["$schema"], "https://www.speedscope.app/file-format-schema.json");
    let profiles = json["profiles"].as_array().unwrap();
    let heads: Vec<_> =
        profiles.iter().map(|one| (one["name"].as_str().unwrap(), &one["endValue"])).collect();
    assert_eq!(heads[0], ("engine 4243 of matchd", &Value::from(1_000 * MILLI)));
    assert_eq!(heads[1], ("keeper 4244 of matchd", &Value::from(500 * MILLI)));
    let frames = json["shared"]["frames"].as_array().unwrap();
    let stack = |profile: &Value, at: usize| -> Vec<String> {
        let sample = profile["samples"][at].as_array().unwrap();
        let name =
            |number: &Value| frames[number.as_u64().unwrap() as usize]["name"].as_str().unwrap().into();
        sample.iter().map(name).collect()
    };
    assert_eq!(stack(&profiles[0], 1), ["main", "tick", "book", "lock", "futex_wait_[k]", "[blocked:lock]"]);
    assert_eq!(profiles[0]["weights"], serde_json::json!([300 * MILLI, 600 * MILLI, 100 * MILLI]));
    assert_eq!((&profiles[0]["type"], &profiles[0]["unit"]), (&"sampled".into(), &"nanoseconds".into()));
    assert_eq!(frames.iter().filter(|frame| frame["name"] == "main").count(), 1);
}

#[test]
fn threads_without_a_stack_have_no_speedscope_profile() {
    let mut stacks = Stacks::new(View::Event("cs".into()));
    stacks.add(1, &["main"], None, 3);
    let json = speedscope_json(&stacks.weights);
    assert_eq!(json["profiles"].as_array().unwrap().len(), 1);
    assert_eq!(json["profiles"][0]["unit"], "none");
    assert_eq!(speedscope_json(&hostile_stacks().weights)["profiles"].as_array().unwrap().len(), 15);
}

/// The fields of a message: by number, each as a number or as bytes.
#[derive(Default)]
struct Fields {
    numbers: BTreeMap<u64, Vec<u64>>,
    bytes: BTreeMap<u64, Vec<Vec<u8>>>,
}

impl Fields {
    fn read(mut rest: &[u8]) -> Fields {
        let mut fields = Fields::default();
        while !rest.is_empty() {
            let key = varint(&mut rest);
            let value = varint(&mut rest);
            if key & 7 == 0 {
                fields.numbers.entry(key >> 3).or_default().push(value);
            } else {
                assert_eq!(key & 7, 2);
                let (bytes, after) = rest.split_at(value as usize);
                fields.bytes.entry(key >> 3).or_default().push(bytes.to_vec());
                rest = after;
            }
        }
        fields
    }

    fn number(&self, field: u64) -> u64 {
        self.numbers.get(&field).map_or(0, |numbers| numbers[0])
    }

    fn messages(&self, field: u64) -> Vec<Fields> {
        self.bytes.get(&field).into_iter().flatten().map(|bytes| Fields::read(bytes)).collect()
    }

    fn packed(&self, field: u64) -> Vec<u64> {
        let mut rest = self.bytes[&field][0].as_slice();
        let mut numbers = Vec::new();
        while !rest.is_empty() {
            numbers.push(varint(&mut rest));
        }
        numbers
    }
}

fn varint(rest: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let (byte, after) = rest.split_first().unwrap();
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    value
}

fn pprof_fields(weights: &Weights) -> Fields {
    let mut out = Vec::new();
    pprof(&mut out, weights, &info(), info().start, 1_000 * MILLI).unwrap();
    pprof_from_file(&out)
}

fn pprof_from_file(file: &[u8]) -> Fields {
    let mut message = Vec::new();
    flate2::read::GzDecoder::new(file).read_to_end(&mut message).unwrap();
    Fields::read(&message)
}

/// Text number `at` of the string table.
fn text(profile: &Fields, at: u64) -> String {
    String::from_utf8(profile.bytes[&6][at as usize].clone()).unwrap()
}

#[test]
fn pprof_samples_have_labels_and_leaf_first_locations() {
    let profile = pprof_fields(&lock_stacks().weights);
    let types: Vec<_> = profile
        .messages(1)
        .iter()
        .map(|kind| (text(&profile, kind.number(1)), text(&profile, kind.number(2))))
        .collect();
    assert_eq!(types, [("samples".into(), "count".into()), ("wall".into(), "nanoseconds".to_string())]);
    assert_eq!(text(&profile, profile.number(14)), "wall");
    assert_eq!((profile.number(9), profile.number(10)), (1_795_248_009_331 * MILLI, 1_000 * MILLI));
    let samples = profile.messages(2);
    assert_eq!(samples[1].packed(2), [1, 600 * MILLI]);
    let locations: BTreeMap<u64, Fields> =
        profile.messages(4).into_iter().map(|location| (location.number(1), location)).collect();
    let functions = profile.messages(5);
    let names: Vec<Vec<String>> = samples[1]
        .packed(1)
        .iter()
        .map(|id| {
            let lines = locations[id].messages(4);
            let function = |line: &Fields| &functions[line.number(1) as usize - 1];
            lines.iter().map(|line| text(&profile, function(line).number(2))).collect()
        })
        .collect();
    assert_eq!(names, [vec!["futex_wait"], vec!["lock"], vec!["book", "tick"], vec!["main"]]);
    let labels: Vec<(String, String, u64)> = samples[1]
        .messages(3)
        .iter()
        .map(|label| (text(&profile, label.number(1)), text(&profile, label.number(2)), label.number(3)))
        .collect();
    let label = |key: &str, value: &str, number| (key.to_string(), value.to_string(), number);
    assert_eq!(
        labels,
        [
            label("process", "matchd", 0),
            label("thread", "engine", 0),
            label("state", "blocked:lock", 0),
            label("tid", "", 4243)
        ]
    );
}

#[test]
fn meaning_of_a_wait_is_a_label_of_pprof_and_a_frame_elsewhere() {
    let mut weights = lock_stacks().weights;
    let meaning = Meaning {
        name: "row lock".into(),
        software: Some("postgresql".into()),
        idle: false,
        holder: true,
        source: MeaningSource::Stack,
    };
    let meaning = weights.frames.mark(Mark::Meaning(Arc::new(meaning)));
    let stack = &mut weights.stacks[1];
    stack.frames.insert(stack.frames.len() - 1, meaning);

    let profile = pprof_fields(&weights);
    let sample = &profile.messages(2)[1];
    assert_eq!(sample.packed(1).len(), 4, "as without a meaning");
    let labels = sample.messages(3);
    let found = labels.iter().find(|label| text(&profile, label.number(1)) == "meaning").unwrap();
    assert_eq!(text(&profile, found.number(2)), "row lock of postgresql");
    let mut lines = Vec::new();
    folded(&mut lines, &weights).unwrap();
    let lines = String::from_utf8(lines).unwrap();
    assert!(lines.contains(";[row lock of postgresql];[blocked:lock] "), "{lines}");
}

#[test]
fn pprof_mappings_hold_the_addresses_of_their_locations() {
    let profile = pprof_fields(&lock_stacks().weights);
    let mappings = profile.messages(3);
    let shown: Vec<_> = mappings
        .iter()
        .map(|mapping| (text(&profile, mapping.number(5)), text(&profile, mapping.number(6))))
        .collect();
    assert_eq!(shown[0], ("/opt/matchd".into(), "5c2f".into()), "the program is first");
    assert_eq!(shown[1], ("[kernel.kallsyms]".into(), String::new()));
    for location in profile.messages(4) {
        let mapping = location.number(2);
        if mapping > 0 {
            assert!(location.number(3) < mappings[mapping as usize - 1].number(3));
        }
    }
}

#[test]
fn pprof_holds_any_name_and_number() {
    let mut stacks = hostile_stacks();
    stacks.add(0, &["main"], None, u64::MAX);
    let profile = pprof_fields(&stacks.weights);
    assert_eq!(profile.messages(2).last().unwrap().packed(2), [1, i64::MAX as u64]);
    for at in 0..profile.bytes[&6].len() {
        assert!(!text(&profile, at as u64).contains(|c: char| c.is_control()));
    }
}
