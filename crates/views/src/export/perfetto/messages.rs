// SPDX-License-Identifier: Apache-2.0
//! The messages of Perfetto's trace format, as far as the export fills them. Names and numbers of the fields
//! are those of <https://github.com/google/perfetto/tree/main/protos/perfetto/trace>; a file is a `Trace`,
//! whose field 1 repeats `TracePacket`.
//!
//! Repeated numbers are packed exactly where Perfetto's definitions say so: its own decoder reads no other encoding.

use prost::Message;

/// `ClockSnapshot.Clock.BuiltinClocks`.
pub(super) const REALTIME: u32 = 1;
pub(super) const MONOTONIC: u32 = 3;

/// `TracePacket.SequenceFlags`.
pub(super) const INCREMENTAL_STATE_CLEARED: u32 = 1;
pub(super) const NEEDS_INCREMENTAL_STATE: u32 = 2;

/// `CounterDescriptor.Unit`.
pub(super) const UNIT_TIME_NS: i32 = 1;
pub(super) const UNIT_COUNT: i32 = 2;
pub(super) const UNIT_SIZE_BYTES: i32 = 3;

/// `StackSample.Unit`.
pub(super) const UNIT_NANOSECONDS: i32 = 1;

/// `trace_packet.proto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TracePacket {
    #[prost(message, optional, tag = "6")]
    pub clock_snapshot: Option<ClockSnapshot>,
    #[prost(uint64, optional, tag = "8")]
    pub timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "10")]
    pub trusted_packet_sequence_id: Option<u32>,
    #[prost(message, optional, tag = "11")]
    pub track_event: Option<TrackEvent>,
    #[prost(message, optional, tag = "12")]
    pub interned_data: Option<InternedData>,
    #[prost(uint32, optional, tag = "13")]
    pub sequence_flags: Option<u32>,
    #[prost(message, optional, tag = "59")]
    pub trace_packet_defaults: Option<TracePacketDefaults>,
    #[prost(message, optional, tag = "60")]
    pub track_descriptor: Option<TrackDescriptor>,
    #[prost(message, optional, tag = "135")]
    pub stack_sample: Option<StackSample>,
}

/// `trace_packet_defaults.proto`: the clock of a sequence's timestamps, and what its samples are of.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TracePacketDefaults {
    #[prost(uint32, optional, tag = "58")]
    pub timestamp_clock_id: Option<u32>,
    #[prost(message, optional, tag = "100")]
    pub stack_sample_defaults: Option<StackSampleDefaults>,
}

/// `stack_sample.proto`, from version 58 on: a stack, whose it is, and its weight by one counter and others.
#[derive(Clone, PartialEq, Message)]
pub(super) struct StackSample {
    #[prost(message, optional, tag = "1")]
    pub task_context: Option<TaskContext>,
    #[prost(uint64, optional, tag = "6")]
    pub callstack_iid: Option<u64>,
    #[prost(uint64, optional, tag = "11")]
    pub primary_weight: Option<u64>,
    #[prost(uint64, repeated, packed = "true", tag = "13")]
    pub follower_descriptor_iids: Vec<u64>,
    #[prost(uint64, repeated, packed = "true", tag = "14")]
    pub follower_weights: Vec<u64>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct TaskContext {
    #[prost(uint32, optional, tag = "2")]
    pub pid: Option<u32>,
    #[prost(uint32, optional, tag = "3")]
    pub tid: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct StackSampleDefaults {
    #[prost(string, optional, tag = "1")]
    pub source: Option<String>,
    #[prost(message, optional, tag = "2")]
    pub primary_descriptor: Option<StackCounter>,
}

/// `StackSample.CounterDescriptor`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct StackCounter {
    #[prost(uint64, optional, tag = "1")]
    pub iid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    #[prost(int32, optional, tag = "3")]
    pub unit: Option<i32>,
}

/// `profile_common.proto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Callstack {
    #[prost(uint64, optional, tag = "1")]
    pub iid: Option<u64>,
    /// Root first.
    #[prost(uint64, repeated, packed = "false", tag = "2")]
    pub frame_ids: Vec<u64>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Frame {
    #[prost(uint64, optional, tag = "1")]
    pub iid: Option<u64>,
    #[prost(uint64, optional, tag = "2")]
    pub function_name_id: Option<u64>,
    #[prost(uint64, optional, tag = "5")]
    pub source_path_iid: Option<u64>,
    #[prost(uint32, optional, tag = "6")]
    pub line_number: Option<u32>,
}

/// `clock_snapshot.proto`: the same moment on several clocks.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ClockSnapshot {
    #[prost(message, repeated, tag = "1")]
    pub clocks: Vec<Clock>,
    #[prost(uint32, optional, tag = "2")]
    pub primary_trace_clock: Option<u32>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Clock {
    #[prost(uint32, optional, tag = "1")]
    pub clock_id: Option<u32>,
    #[prost(uint64, optional, tag = "2")]
    pub timestamp: Option<u64>,
}

/// `track_descriptor.proto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TrackDescriptor {
    #[prost(uint64, optional, tag = "1")]
    pub uuid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    #[prost(message, optional, tag = "3")]
    pub process: Option<ProcessDescriptor>,
    #[prost(message, optional, tag = "4")]
    pub thread: Option<ThreadDescriptor>,
    #[prost(uint64, optional, tag = "5")]
    pub parent_uuid: Option<u64>,
    #[prost(message, optional, tag = "8")]
    pub counter: Option<CounterDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ProcessDescriptor {
    #[prost(int32, optional, tag = "1")]
    pub pid: Option<i32>,
    #[prost(string, optional, tag = "6")]
    pub process_name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ThreadDescriptor {
    #[prost(int32, optional, tag = "1")]
    pub pid: Option<i32>,
    #[prost(int32, optional, tag = "2")]
    pub tid: Option<i32>,
    #[prost(string, optional, tag = "5")]
    pub thread_name: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct CounterDescriptor {
    #[prost(int32, optional, tag = "3")]
    pub unit: Option<i32>,
}

/// `TrackEvent.Type`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum EventType {
    SliceBegin = 1,
    SliceEnd = 2,
    Instant = 3,
    Counter = 4,
}

/// `track_event.proto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TrackEvent {
    #[prost(uint64, repeated, packed = "false", tag = "3")]
    pub category_iids: Vec<u64>,
    #[prost(message, repeated, tag = "4")]
    pub debug_annotations: Vec<DebugAnnotation>,
    #[prost(int32, optional, tag = "9")]
    pub r#type: Option<i32>,
    #[prost(uint64, optional, tag = "10")]
    pub name_iid: Option<u64>,
    #[prost(uint64, optional, tag = "11")]
    pub track_uuid: Option<u64>,
    #[prost(int64, optional, tag = "30")]
    pub counter_value: Option<i64>,
    #[prost(double, optional, tag = "44")]
    pub double_counter_value: Option<f64>,
    #[prost(fixed64, repeated, packed = "false", tag = "47")]
    pub flow_ids: Vec<u64>,
    #[prost(fixed64, repeated, packed = "false", tag = "48")]
    pub terminating_flow_ids: Vec<u64>,
}

impl TrackEvent {
    pub fn on(track: u64, r#type: EventType) -> Self {
        TrackEvent { track_uuid: Some(track), r#type: Some(r#type as i32), ..TrackEvent::default() }
    }
}

/// `debug_annotation.proto`: a name, unless it is an element of an array, and one value.
#[derive(Clone, PartialEq, Message)]
pub(super) struct DebugAnnotation {
    #[prost(uint64, optional, tag = "1")]
    pub name_iid: Option<u64>,
    #[prost(bool, optional, tag = "2")]
    pub bool_value: Option<bool>,
    #[prost(uint64, optional, tag = "3")]
    pub uint_value: Option<u64>,
    #[prost(string, optional, tag = "6")]
    pub string_value: Option<String>,
    #[prost(uint64, optional, tag = "7")]
    pub pointer_value: Option<u64>,
    #[prost(message, repeated, tag = "12")]
    pub array_values: Vec<DebugAnnotation>,
    #[prost(uint64, optional, tag = "17")]
    pub string_value_iid: Option<u64>,
}

/// `interned_data.proto`. An `EventCategory`, an `EventName`, a `DebugAnnotationName` and an `InternedString`
/// have the same two fields. Numbers start at 1.
#[derive(Clone, PartialEq, Message)]
pub(super) struct InternedData {
    #[prost(message, repeated, tag = "1")]
    pub event_categories: Vec<Interned>,
    #[prost(message, repeated, tag = "2")]
    pub event_names: Vec<Interned>,
    #[prost(message, repeated, tag = "3")]
    pub debug_annotation_names: Vec<Interned>,
    #[prost(message, repeated, tag = "5")]
    pub function_names: Vec<Interned>,
    #[prost(message, repeated, tag = "6")]
    pub frames: Vec<Frame>,
    #[prost(message, repeated, tag = "7")]
    pub callstacks: Vec<Callstack>,
    #[prost(message, repeated, tag = "18")]
    pub source_paths: Vec<Interned>,
    #[prost(message, repeated, tag = "29")]
    pub debug_annotation_string_values: Vec<Interned>,
    #[prost(message, repeated, tag = "50")]
    pub stack_sample_counter_descriptors: Vec<StackCounter>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Interned {
    #[prost(uint64, optional, tag = "1")]
    pub iid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub text: Option<String>,
}
