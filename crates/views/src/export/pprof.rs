//! pprof's format, for `go tool pprof` and what else reads it: a gzipped protocol buffer, defined in
//! <https://github.com/google/pprof/blob/main/proto/profile.proto>.
//!
//! Each sample has a count and a weight, and the labels `process`, `thread`, `tid` and `state`; so the state is no frame
//! of a stack that has code (`-tagleaf=state` makes it one, `-tagroot=thread` the thread).

use std::collections::HashMap;
use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use wallprof_analysis::site::base_name;
use wallprof_analysis::weights::{Frame, FrameId, Function, Mark, View, WeightedStack, Weights};
use wallprof_model::profile::{RecordingInfo, ResolvedFrame};
use wallprof_model::{FrameKind, MonoNs, State};

use super::protobuf::Message;
use crate::escape::escape;

/// Field numbers of profile.proto.
mod field {
    pub mod profile {
        pub const SAMPLE_TYPE: u64 = 1;
        pub const SAMPLE: u64 = 2;
        pub const MAPPING: u64 = 3;
        pub const LOCATION: u64 = 4;
        pub const FUNCTION: u64 = 5;
        pub const STRING_TABLE: u64 = 6;
        pub const TIME_NANOS: u64 = 9;
        pub const DURATION_NANOS: u64 = 10;
        pub const DEFAULT_SAMPLE_TYPE: u64 = 14;
    }
    pub mod value_type {
        pub const TYPE: u64 = 1;
        pub const UNIT: u64 = 2;
    }
    pub mod sample {
        pub const LOCATION_ID: u64 = 1;
        pub const VALUE: u64 = 2;
        pub const LABEL: u64 = 3;
    }
    pub mod label {
        pub const KEY: u64 = 1;
        pub const STR: u64 = 2;
        pub const NUM: u64 = 3;
    }
    pub mod mapping {
        pub const ID: u64 = 1;
        pub const MEMORY_LIMIT: u64 = 3;
        pub const FILENAME: u64 = 5;
        pub const BUILD_ID: u64 = 6;
        pub const HAS_FUNCTIONS: u64 = 7;
        pub const HAS_FILENAMES: u64 = 8;
        pub const HAS_LINE_NUMBERS: u64 = 9;
        pub const HAS_INLINE_FRAMES: u64 = 10;
    }
    pub mod location {
        pub const ID: u64 = 1;
        pub const MAPPING_ID: u64 = 2;
        pub const ADDRESS: u64 = 3;
        pub const LINE: u64 = 4;
    }
    pub mod line {
        pub const FUNCTION_ID: u64 = 1;
        pub const LINE: u64 = 2;
    }
    pub mod function {
        pub const ID: u64 = 1;
        pub const NAME: u64 = 2;
        pub const SYSTEM_NAME: u64 = 3;
        pub const FILENAME: u64 = 4;
    }
}

/// What pprof's users call the kernel's mapping.
const KERNEL_MAPPING: &str = "[kernel.kallsyms]";

/// Addresses of a mapping end at a page of this size.
const PAGE: u64 = 4096;

/// Writes a gzipped profile. `start` and `duration_ns` are those of the part of the recording that `weights` are of.
pub fn pprof(
    out: &mut impl Write,
    weights: &Weights,
    info: &RecordingInfo,
    start: MonoNs,
    duration_ns: u64,
) -> io::Result<()> {
    let mut profile = Profile::new(weights);
    profile.meet_program();
    profile.add_sample_types();
    weights.stacks.iter().for_each(|stack| profile.add_sample(stack));
    profile.add_mappings();
    profile.add_functions();
    // Without anchors times are monotonic, and no times of day.
    if !info.clock.anchors().is_empty() {
        profile.message.number(field::profile::TIME_NANOS, info.clock.epoch_from_mono(start).0);
    }
    profile.message.number(field::profile::DURATION_NANOS, duration_ns);
    profile.add_strings();
    let mut gzip = GzEncoder::new(out, Compression::default());
    gzip.write_all(profile.message.as_bytes())?;
    gzip.finish().map(drop)
}

/// A profile that is being written.
struct Profile<'a> {
    weights: &'a Weights,
    message: Message,
    strings: Strings,
    /// Whether a frame was written as a location.
    located: Vec<bool>,
    functions: Functions,
    mappings: Mappings,
}

impl<'a> Profile<'a> {
    fn new(weights: &'a Weights) -> Self {
        Profile {
            weights,
            message: Message::default(),
            strings: Strings::default(),
            located: vec![false; weights.frames.iter().count()],
            functions: Functions::default(),
            mappings: Mappings::default(),
        }
    }

    /// The first mapping is taken for the program: the file that the first process is named after, where there is one.
    fn meet_program(&mut self) {
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
            let (name, unit) = (self.strings.number(name), self.strings.number(unit));
            self.message.message(field::profile::SAMPLE_TYPE, |out| {
                out.number(field::value_type::TYPE, name);
                out.number(field::value_type::UNIT, unit);
            });
        }
        let weight = self.strings.number(&types[1].0);
        self.message.number(field::profile::DEFAULT_SAMPLE_TYPE, weight);
    }

    fn add_sample(&mut self, stack: &WeightedStack) {
        let frames = self.located_frames(stack);
        frames.iter().for_each(|frame| self.add_location(*frame));
        let locations: Vec<u64> = frames.iter().rev().map(|frame| location_id(*frame)).collect();
        let labels = self.labels(stack);
        self.message.message(field::profile::SAMPLE, |out| {
            out.numbers(field::sample::LOCATION_ID, &locations);
            out.numbers(field::sample::VALUE, &[stack.count, stack.weight].map(signed));
            for (key, text, number) in labels {
                out.message(field::sample::LABEL, |out| {
                    out.number(field::label::KEY, key);
                    out.number(field::label::STR, text);
                    out.number(field::label::NUM, number);
                });
            }
        });
    }

    /// Root first. The state is left out where there is code: it is a label.
    fn located_frames(&self, stack: &WeightedStack) -> Vec<FrameId> {
        let frame = |id: &FrameId| self.weights.frames.get(*id);
        let mut frames = stack.frames.clone();
        let ends_in_state = matches!(frames.last().map(frame), Some(Frame::Mark(Mark::State(_))));
        if ends_in_state && frames.iter().any(|id| matches!(frame(id), Frame::Code(_))) {
            frames.pop();
        }
        frames
    }

    /// Key, text and number of each.
    fn labels(&mut self, stack: &WeightedStack) -> Vec<(u64, u64, u64)> {
        let thread = &self.weights.threads[stack.thread];
        let state = stack.state.map(State::label);
        let texts =
            [("process", Some(&thread.process)), ("thread", Some(&thread.comm)), ("state", state.as_ref())];
        let texts = texts.into_iter().filter_map(|(key, text)| Some((key, text?)));
        let mut labels: Vec<_> = texts
            .map(|(key, text)| (self.strings.number(key), self.strings.number(&escape(text)), 0))
            .collect();
        if thread.tid != 0 {
            labels.push((self.strings.number("tid"), 0, u64::from(thread.tid)));
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
        // Innermost first; a location's functions are its own and not the stack's, so a waking stack's too.
        let lines: Vec<(u64, u64)> =
            functions.iter().rev().map(|function| self.functions.line(function, &mut self.strings)).collect();
        self.message.message(field::profile::LOCATION, |out| {
            out.number(field::location::ID, location_id(id));
            out.number(field::location::MAPPING_ID, mapping);
            out.number(field::location::ADDRESS, address);
            for (function, line) in lines {
                out.message(field::location::LINE, |out| {
                    out.number(field::line::FUNCTION_ID, function);
                    out.number(field::line::LINE, line);
                });
            }
        });
    }

    fn add_mappings(&mut self) {
        for (at, mapping) in self.mappings.list.iter().enumerate() {
            let (file, build_id) =
                (self.strings.number(&mapping.file), self.strings.number(&mapping.build_id));
            self.message.message(field::profile::MAPPING, |out| {
                out.number(field::mapping::ID, at as u64 + 1);
                out.number(field::mapping::MEMORY_LIMIT, mapping.limit);
                out.number(field::mapping::FILENAME, file);
                out.number(field::mapping::BUILD_ID, build_id);
                // Everything that can be named is: pprof is not to try by itself.
                out.number(field::mapping::HAS_FUNCTIONS, 1);
                out.number(field::mapping::HAS_FILENAMES, 1);
                out.number(field::mapping::HAS_LINE_NUMBERS, 1);
                out.number(field::mapping::HAS_INLINE_FRAMES, 1);
            });
        }
    }

    fn add_functions(&mut self) {
        for (at, (name, file)) in self.functions.list.iter().enumerate() {
            self.message.message(field::profile::FUNCTION, |out| {
                out.number(field::function::ID, at as u64 + 1);
                out.number(field::function::NAME, *name);
                out.number(field::function::SYSTEM_NAME, *name);
                out.number(field::function::FILENAME, *file);
            });
        }
    }

    fn add_strings(&mut self) {
        self.message.bytes(field::profile::STRING_TABLE, b"");
        self.strings
            .list
            .iter()
            .for_each(|text| self.message.bytes(field::profile::STRING_TABLE, text.as_bytes()));
    }
}

fn location_id(frame: FrameId) -> u64 {
    frame.index() as u64 + 1
}

/// Values are signed in the format.
fn signed(value: u64) -> u64 {
    value.min(i64::MAX as u64)
}

/// The string table; number 0 is the empty text, which is not in `list`.
#[derive(Default)]
struct Strings {
    list: Vec<String>,
    numbers: HashMap<String, u64>,
}

impl Strings {
    fn number(&mut self, text: &str) -> u64 {
        if text.is_empty() {
            return 0;
        }
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        self.list.push(text.into());
        let number = self.list.len() as u64;
        self.numbers.insert(text.into(), number);
        number
    }
}

/// Functions by name and file; the first has number 1.
#[derive(Default)]
struct Functions {
    list: Vec<(u64, u64)>,
    numbers: HashMap<(u64, u64), u64>,
}

impl Functions {
    /// The function's number and the line in its file.
    fn line(&mut self, function: &Function<'_>, strings: &mut Strings) -> (u64, u64) {
        let file = function.line.and_then(|line| line.file.as_deref()).unwrap_or_default();
        let key = (strings.number(&escape(&function.name)), strings.number(&escape(file)));
        let list = &mut self.list;
        let number = *self.numbers.entry(key).or_insert_with(|| {
            list.push(key);
            list.len() as u64
        });
        (number, function.line.and_then(|line| line.line).map_or(0, u64::from))
    }
}

/// Files that code comes from; the first has number 1.
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
}
