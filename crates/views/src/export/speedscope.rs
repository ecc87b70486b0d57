// SPDX-License-Identifier: Apache-2.0
//! speedscope's file format: <https://github.com/jlfwong/speedscope/wiki/Importing-from-custom-sources>.
//!
//! One sampled profile for each thread, the one with the most weight first. A frame is a function in a
//! source file: its lines are left out, as speedscope would show each as a function of its own.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::io::{self, Write};

use serde::Serialize;
use wallprof_analysis::weights::{Function, WeightedStack, WeightedThread, Weights};

use super::format::{ExportFormat, Rows};
use super::per_step::PerStep;
use crate::frame_name::{marked_name, shown_comm};
use crate::json::to_writer;

const SCHEMA: &str = "https://www.speedscope.app/file-format-schema.json";

pub(super) const FORMAT: ExportFormat = ExportFormat {
    name: "speedscope",
    about: "JSON for speedscope.app",
    counts_calls_in_names: false,
    rows: Rows::Stacks(|mut out, export| speedscope(&mut out, export.weights, export.title)),
};

/// Writes one JSON object. `name` is what speedscope shows as the file's title.
pub fn speedscope(out: &mut impl Write, weights: &Weights, name: &str) -> io::Result<()> {
    let mut frames = Frames::default();
    let mut profiles = profiles(weights, &mut frames);
    profiles.sort_by_key(|profile| Reverse(profile.end_value));
    let file = File {
        schema: SCHEMA,
        shared: Shared { frames: frames.list },
        profiles,
        name,
        exporter: concat!("wallprof ", env!("CARGO_PKG_VERSION")),
        active_profile_index: 0,
    };
    to_writer(out, &file)?;
    writeln!(out)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct File<'a> {
    #[serde(rename = "$schema")]
    schema: &'static str,
    shared: Shared,
    profiles: Vec<Profile>,
    name: &'a str,
    exporter: &'static str,
    active_profile_index: usize,
}

#[derive(Serialize)]
struct Shared {
    frames: Vec<Frame>,
}

#[derive(Clone, Serialize, PartialEq, Eq, Hash)]
struct Frame {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Profile {
    #[serde(rename = "type")]
    kind: &'static str,
    name: String,
    unit: &'static str,
    start_value: u64,
    end_value: u64,
    /// Root first.
    samples: Vec<Vec<usize>>,
    weights: Vec<u64>,
}

/// Threads without a stack have no profile.
fn profiles(weights: &Weights, frames: &mut Frames) -> Vec<Profile> {
    let mut numbers = PerStep::new(weights, |function| frames.number(function));
    let mut profiles: Vec<Profile> = weights.threads.iter().map(|thread| empty(weights, thread)).collect();
    for stack in &weights.stacks {
        profiles[stack.thread].add(stack, &mut numbers);
    }
    profiles.retain(|profile| profile.end_value > 0);
    profiles
}

fn empty(weights: &Weights, thread: &WeightedThread) -> Profile {
    let (process, comm) = (shown_comm(&thread.process), shown_comm(&thread.comm));
    let tid = if thread.tid == 0 { String::new() } else { format!(" {}", thread.tid) };
    Profile {
        kind: "sampled",
        name: format!("{comm}{tid} of {process}"),
        unit: if weights.view.is_time() { "nanoseconds" } else { "none" },
        start_value: 0,
        end_value: 0,
        samples: Vec::new(),
        weights: Vec::new(),
    }
}

impl Profile {
    fn add<F: FnMut(&Function<'_>) -> usize>(
        &mut self,
        stack: &WeightedStack,
        numbers: &mut PerStep<'_, usize, F>,
    ) {
        let mut sample = Vec::with_capacity(stack.frames.len());
        numbers.each(stack, |number| sample.push(*number));
        self.samples.push(sample);
        self.weights.push(stack.weight);
        self.end_value = self.end_value.saturating_add(stack.weight);
    }
}

/// Every frame once.
#[derive(Default)]
struct Frames {
    list: Vec<Frame>,
    numbers: HashMap<Frame, usize>,
}

impl Frames {
    fn number(&mut self, function: &Function<'_>) -> usize {
        let file = function.line.and_then(|line| line.file.clone());
        let frame = Frame { name: marked_name(function).into_owned(), file };
        let list = &mut self.list;
        *self.numbers.entry(frame).or_insert_with_key(|frame| {
            list.push(frame.clone());
            list.len() - 1
        })
    }
}
