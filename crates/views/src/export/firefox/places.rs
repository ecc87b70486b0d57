// SPDX-License-Identifier: Apache-2.0
//! Source files and lines of frames, for which the library has no fields: they go through it as parts of names, and are
//! moved to their columns in its JSON.

use std::collections::HashMap;

use serde_json::{Value, json};

/// Between a function, its file and the line. Names are escaped, so that they do not contain it.
const SEPARATOR: char = '\u{1}';

/// A function's name with its place.
pub(super) fn placed_name(name: &str, file: &str, line: Option<u32>) -> String {
    let line = line.map(|line| line.to_string()).unwrap_or_default();
    format!("{name}{SEPARATOR}{file}{SEPARATOR}{line}")
}

/// A name and its place.
#[derive(Clone, Copy)]
struct Placed<'a> {
    name: &'a str,
    file: Option<&'a str>,
    line: Option<u32>,
}

fn placed(name: &str) -> Placed<'_> {
    let mut parts = name.split(SEPARATOR);
    let name = parts.next().unwrap_or_default();
    let file = parts.next().filter(|file| !file.is_empty());
    Placed { name, file, line: parts.next().and_then(|line| line.parse().ok()) }
}

/// Moves the places of all functions of a profile to their columns.
pub(super) fn separate(profile: &mut Value) {
    for thread in profile["threads"].as_array_mut().into_iter().flatten() {
        separate_in(thread);
    }
}

fn separate_in(thread: &mut Value) {
    let strings: Vec<String> = texts(&thread["stringArray"]);
    if !strings.iter().any(|text| text.contains(SEPARATOR)) {
        return;
    }
    let mut kept = Strings::default();
    // Other columns refer to strings by number: those without a place keep theirs.
    strings.iter().for_each(|text| kept.push(text));
    let mut functions = Functions::default();
    let old: Vec<(usize, Option<u32>)> = numbers(&thread["funcTable"]["name"])
        .into_iter()
        .map(|name| {
            let place = placed(strings.get(name).map_or("", String::as_str));
            let name = kept.number(place.name);
            let file = place.file.map(|file| kept.number(file));
            (functions.number(name, file), place.line)
        })
        .collect();
    let of_frames: Vec<(usize, Option<u32>)> = numbers(&thread["frameTable"]["func"])
        .into_iter()
        .map(|function| old.get(function).copied().unwrap_or_default())
        .collect();
    thread["frameTable"]["func"] = of_frames.iter().map(|(function, _)| json!(function)).collect();
    thread["frameTable"]["line"] = of_frames.iter().map(|(_, line)| json!(line)).collect();
    thread["funcTable"] = functions.table();
    thread["stringArray"] = kept.texts.into();
}

/// The strings of a thread. Those with a place are empty, so that no number changes.
#[derive(Default)]
struct Strings {
    texts: Vec<String>,
    by_text: HashMap<String, usize>,
}

impl Strings {
    fn push(&mut self, text: &str) {
        if text.contains(SEPARATOR) {
            self.texts.push(String::new());
        } else {
            self.by_text.entry(text.to_owned()).or_insert(self.texts.len());
            self.texts.push(text.to_owned());
        }
    }

    fn number(&mut self, text: &str) -> usize {
        if let Some(number) = self.by_text.get(text) {
            return *number;
        }
        self.push(text);
        self.texts.len() - 1
    }
}

/// Functions by their name and file.
#[derive(Default)]
struct Functions {
    rows: Vec<(usize, Option<usize>)>,
    by_row: HashMap<(usize, Option<usize>), usize>,
}

impl Functions {
    fn number(&mut self, name: usize, file: Option<usize>) -> usize {
        let row = (name, file);
        *self.by_row.entry(row).or_insert_with(|| {
            self.rows.push(row);
            self.rows.len() - 1
        })
    }

    /// As the library writes functions that are labels.
    fn table(&self) -> Value {
        let same = |value: Value| vec![value; self.rows.len()];
        json!({
            "length": self.rows.len(),
            "name": self.rows.iter().map(|(name, _)| name).collect::<Vec<_>>(),
            "fileName": self.rows.iter().map(|(_, file)| file).collect::<Vec<_>>(),
            "isJS": same(json!(false)),
            "relevantForJS": same(json!(false)),
            "resource": same(json!(-1)),
            "lineNumber": same(Value::Null),
            "columnNumber": same(Value::Null),
        })
    }
}

fn texts(list: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    list.as_array().into_iter().flatten().map(text).collect()
}

fn numbers(list: &Value) -> Vec<usize> {
    let number = |value: &Value| value.as_u64().and_then(|number| usize::try_from(number).ok()).unwrap_or(0);
    list.as_array().into_iter().flatten().map(number).collect()
}
