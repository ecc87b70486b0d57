// SPDX-License-Identifier: Apache-2.0
//! pprof's format, for `go tool pprof` and other readers: a gzipped protocol buffer, defined in
//! <https://github.com/google/pprof/blob/main/proto/profile.proto>.
//!
//! Each sample has a count and a weight, and the labels `process`, `thread`, `tid` and `state`; so the state
//! is no frame of a stack that has code (`-tagleaf=state` makes it one, `-tagroot=thread` the thread).

use std::collections::HashMap;
use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;
use wallprof_analysis::weights::{Frame, FrameId, Function, Mark, View, WeightedStack, Weights};
use wallprof_meaning::site::base_name;
use wallprof_model::profile::{RecordingInfo, ResolvedFrame};
use wallprof_model::{FrameKind, MonoNs, State};

use super::format::{ExportFormat, Rows};
use super::profile::{self, Label, Line, Location, Profile, Sample, ValueType};
use crate::escape::escape;

/// The name of the kernel's mapping in pprof.
const KERNEL_MAPPING: &str = "[kernel.kallsyms]";

/// Addresses of a mapping end at a page of this size.
const PAGE: u64 = 4096;

pub(super) const FORMAT: ExportFormat = ExportFormat {
    name: "pprof",
    about: "A gzipped profile for pprof and Pyroscope",
    counts_calls_in_names: false,
    rows: Rows::Stacks(|mut out, export| {
        let duration_ns = export.range.end.0.saturating_sub(export.range.start.0);
        pprof(&mut out, export.weights, export.info, export.range.start, duration_ns)
    }),
};

/// Writes a gzipped profile. `start` and `duration_ns` are those of the part of the recording that `weights`
/// are of.
pub fn pprof(
    out: &mut impl Write,
    weights: &Weights,
    info: &RecordingInfo,
    start: MonoNs,
    duration_ns: u64,
) -> io::Result<()> {
    let mut builder = Builder::new(weights);
    builder.add_program();
    builder.add_sample_types();
    weights.stacks.iter().for_each(|stack| builder.add_sample(stack));
    let mut profile = builder.finish();
    // Without anchors times are monotonic, and no times of day.
    if !info.clock.anchors().is_empty() {
        profile.time_nanos = signed(info.clock.epoch_from_mono(start).0);
    }
    profile.duration_nanos = signed(duration_ns);
    let mut gzip = GzEncoder::new(out, Compression::default());
    gzip.write_all(&profile.encode_to_vec())?;
    gzip.finish().map(drop)
}

/// Collects a profile from weights.
struct Builder<'a> {
    weights: &'a Weights,
    profile: Profile,
    strings: Strings,
    /// Whether a frame is among the locations.
    located: Vec<bool>,
    functions: Functions,
    mappings: Mappings,
}

impl<'a> Builder<'a> {
    fn new(weights: &'a Weights) -> Self {
        Builder {
            weights,
            profile: Profile::default(),
            strings: Strings::default(),
            located: vec![false; weights.frames.iter().count()],
            functions: Functions::default(),
            mappings: Mappings::default(),
        }
    }

    /// pprof takes the first mapping for the program: this adds the file that the first process is named
    /// after, where there is one.
    fn add_program(&mut self) {
        let Some(thread) = self.weights.threads.first() else { return };
        let program = self.weights.frames.iter().find_map(|frame| match frame {
            Frame::Code(code) => {
                let file = base_name(code.module.as_deref()?);
                (!thread.process.is_empty() && file.starts_with(&thread.process)).then_some(code)
            }
            Frame::Called(_) | Frame::Mark(_) => None,
        });
        if let Some(program) = program {
            self.mappings.number(program);
        }
    }

    fn add_sample_types(&mut self) {
        let weight = match &self.weights.view {
            View::Event(event) => (event.clone(), "count"),
            view => (view.to_string(), "nanoseconds"),
        };
        let types = [("samples".to_string(), "count"), weight];
        for (name, unit) in &types {
            let (r#type, unit) = (self.strings.number(name), self.strings.number(unit));
            self.profile.sample_type.push(ValueType { r#type, unit });
        }
        self.profile.default_sample_type = self.strings.number(&types[1].0);
    }

    fn add_sample(&mut self, stack: &WeightedStack) {
        let frames = self.located_frames(stack);
        frames.iter().for_each(|frame| self.add_location(*frame));
        let sample = Sample {
            location_id: frames.iter().rev().map(|frame| location_id(*frame)).collect(),
            value: [stack.count, stack.weight].map(signed).to_vec(),
            label: self.labels(stack),
        };
        self.profile.sample.push(sample);
    }

    /// Root first. The meaning of a wait is a label, and so is the state where there is code.
    fn located_frames(&self, stack: &WeightedStack) -> Vec<FrameId> {
        let frame = |id: &FrameId| self.weights.frames.get(*id);
        let mut frames = stack.frames.clone();
        let ends_in_state = matches!(frames.last().map(frame), Some(Frame::Mark(Mark::State(_))));
        if ends_in_state && frames.iter().any(|id| matches!(frame(id), Frame::Code(_))) {
            frames.pop();
        }
        frames.retain(|id| !matches!(frame(id), Frame::Mark(Mark::Meaning(_))));
        frames
    }

    fn labels(&mut self, stack: &WeightedStack) -> Vec<Label> {
        let thread = &self.weights.threads[stack.thread];
        let state = stack.state.map(State::label);
        let meaning = stack.frames.iter().find_map(|id| match self.weights.frames.get(*id) {
            Frame::Mark(Mark::Meaning(meaning)) => Some(meaning.to_string()),
            _ => None,
        });
        let texts = [
            ("process", Some(&thread.process)),
            ("thread", Some(&thread.comm)),
            ("state", state.as_ref()),
            ("meaning", meaning.as_ref()),
        ];
        let texts = texts.into_iter().filter_map(|(key, text)| Some((key, text?)));
        let mut labels: Vec<Label> = texts
            .map(|(key, text)| Label {
                key: self.strings.number(key),
                str: self.strings.number(&escape(text)),
                num: 0,
            })
            .collect();
        if thread.tid != 0 {
            labels.push(Label { key: self.strings.number("tid"), str: 0, num: thread.tid.into() });
        }
        labels
    }

    fn add_location(&mut self, id: FrameId) {
        if std::mem::replace(&mut self.located[id.index()], true) {
            return;
        }
        let frame = self.weights.frames.get(id);
        let (mapping, address) = match frame {
            Frame::Code(code) => (self.mappings.number(code), code.address),
            Frame::Called(called) => (self.mappings.number(&called.code), called.code.address),
            Frame::Mark(_) => (0, 0),
        };
        let functions = frame.functions();
        // Innermost first: a location has its functions in its own order, in the stack of a waker, too.
        let line =
            functions.iter().rev().map(|function| self.functions.line(function, &mut self.strings)).collect();
        self.profile.location.push(Location { id: location_id(id), mapping_id: mapping, address, line });
    }

    fn finish(mut self) -> Profile {
        self.profile.mapping = self.mappings.messages(&mut self.strings);
        self.profile.function = self.functions.messages();
        self.profile.string_table = self.strings.table();
        self.profile
    }
}

fn location_id(frame: FrameId) -> u64 {
    frame.index() as u64 + 1
}

/// Values are signed in the format.
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// The string table. Number 0 is the empty text, which is not in `list`.
#[derive(Default)]
struct Strings {
    list: Vec<String>,
    numbers: HashMap<String, i64>,
}

impl Strings {
    fn number(&mut self, text: &str) -> i64 {
        if text.is_empty() {
            return 0;
        }
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        self.list.push(text.into());
        let number = self.list.len() as i64;
        self.numbers.insert(text.into(), number);
        number
    }

    fn table(self) -> Vec<String> {
        std::iter::once(String::new()).chain(self.list).collect()
    }
}

/// Functions by name and file. The first has number 1.
#[derive(Default)]
struct Functions {
    list: Vec<(i64, i64)>,
    numbers: HashMap<(i64, i64), u64>,
}

impl Functions {
    fn line(&mut self, function: &Function<'_>, strings: &mut Strings) -> Line {
        let file = function.line.and_then(|line| line.file.as_deref()).unwrap_or_default();
        let key = (strings.number(&escape(&function.name)), strings.number(&escape(file)));
        let list = &mut self.list;
        let function_id = *self.numbers.entry(key).or_insert_with(|| {
            list.push(key);
            list.len() as u64
        });
        Line { function_id, line: function.line.and_then(|line| line.line).map_or(0, i64::from) }
    }

    fn messages(self) -> Vec<profile::Function> {
        let message = |(id, (name, filename)): (u64, (i64, i64))| profile::Function {
            id,
            name,
            system_name: name,
            filename,
        };
        (1..).zip(self.list).map(message).collect()
    }
}

/// Files that code comes from. The first has number 1.
#[derive(Default)]
struct Mappings {
    list: Vec<Mapping>,
    numbers: HashMap<(String, String), u64>,
}

struct Mapping {
    file: String,
    build_id: String,
    /// All addresses are below it, rounded up to a page.
    limit: u64,
}

impl Mappings {
    /// 0 for code of no known file.
    fn number(&mut self, code: &ResolvedFrame) -> u64 {
        let kernel = (code.kind == FrameKind::Kernel).then_some(KERNEL_MAPPING);
        let Some(file) = code.module.as_deref().or(kernel) else { return 0 };
        let build_id: String = code.build_id.iter().flatten().map(|byte| format!("{byte:02x}")).collect();
        let key = (escape(file).into_owned(), build_id);
        let list = &mut self.list;
        let number = *self.numbers.entry(key).or_insert_with_key(|(file, build_id)| {
            list.push(Mapping { file: file.clone(), build_id: build_id.clone(), limit: 0 });
            list.len() as u64
        });
        let limit = &mut self.list[number as usize - 1].limit;
        *limit =
            (*limit).max(code.address.saturating_add(1).checked_next_multiple_of(PAGE).unwrap_or(u64::MAX));
        number
    }

    fn messages(self, strings: &mut Strings) -> Vec<profile::Mapping> {
        let message = |(id, mapping): (u64, Mapping)| profile::Mapping {
            id,
            memory_limit: mapping.limit,
            filename: strings.number(&mapping.file),
            build_id: strings.number(&mapping.build_id),
            // The export names everything that can be named: pprof is not to try by itself.
            has_functions: true,
            has_filenames: true,
            has_line_numbers: true,
            has_inline_frames: true,
        };
        (1..).zip(self.list).map(message).collect()
    }
}
