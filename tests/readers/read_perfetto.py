# SPDX-License-Identifier: Apache-2.0
"""Reads an export for Perfetto by Perfetto's own definitions, and compares it with the stalls of the recording.

    python3 read_perfetto.py FILE.perfetto-trace STALLS.jsonl REPORT.json

STALLS.jsonl is what `wallprof stalls --json --all` prints, REPORT.json is by `wallprof report --json`.
"""

import json
import sys

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb2

BEGIN, END, INSTANT, COUNTER = (
    pb2.TrackEvent.TYPE_SLICE_BEGIN,
    pb2.TrackEvent.TYPE_SLICE_END,
    pb2.TrackEvent.TYPE_INSTANT,
    pb2.TrackEvent.TYPE_COUNTER,
)


class Texts:
    """The interned texts of the sequence, as the trace processor follows them."""

    KINDS = ["event_names", "event_categories", "debug_annotation_names", "debug_annotation_string_values"]

    def __init__(self):
        self.known = {kind: {} for kind in self.KINDS}

    def add(self, packet):
        if packet.sequence_flags & pb2.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED:
            assert packet.trace_packet_defaults.timestamp_clock_id == 3, "the clock is CLOCK_MONOTONIC"
            self.__init__()
        for kind in self.KINDS:
            for entry in getattr(packet.interned_data, kind):
                text = entry.str.decode() if hasattr(entry, "str") else entry.name
                self.known[kind][entry.iid] = text

    def value(self, annotation):
        field = annotation.WhichOneof("value")
        if annotation.array_values:
            return [self.value(element) for element in annotation.array_values]
        if field == "string_value_iid":
            return self.known["debug_annotation_string_values"][annotation.string_value_iid]
        return getattr(annotation, field)

    def annotations(self, event):
        names = self.known["debug_annotation_names"]
        return {names[one.name_iid]: self.value(one) for one in event.debug_annotations}


def unknown_fields(message, at="Trace"):
    """The paths of fields that Perfetto's definitions do not have."""
    from google.protobuf import unknown_fields as unknown

    found = [f"{at}.{field.field_number}" for field in unknown.UnknownFieldSet(message)]
    for field, value in message.ListFields():
        if field.message_type is not None:
            for one in value if hasattr(value, "__len__") else [value]:
                found += unknown_fields(one, f"{at}.{field.name}")
    return found


def slices(trace):
    """Every slice as (track, start, end, name, annotations, flows into it), and the flows out of instants."""
    texts, opened, done, flows_out, tracks = Texts(), {}, [], {}, {}
    for packet in trace.packet:
        texts.add(packet)
        if packet.HasField("track_descriptor"):
            tracks[packet.track_descriptor.uuid] = packet.track_descriptor
        if not packet.HasField("track_event"):
            continue
        event = packet.track_event
        assert event.track_uuid in tracks, "each event has a described track"
        name = texts.known["event_names"].get(event.name_iid)
        if event.type == BEGIN:
            row = [event.track_uuid, packet.timestamp, None, name, texts.annotations(event)]
            opened.setdefault(event.track_uuid, []).append(row + [list(event.terminating_flow_ids)])
        elif event.type == END:
            row = opened[event.track_uuid].pop()
            row[2] = packet.timestamp
            done.append(row)
        elif event.type == INSTANT:
            for flow in event.flow_ids:
                flows_out[flow] = (event.track_uuid, packet.timestamp)
            row = [event.track_uuid, packet.timestamp, packet.timestamp, name, texts.annotations(event)]
            done.append(row + [list(event.terminating_flow_ids)])
    assert not any(opened.values()), "each slice ends"
    return done, flows_out, tracks


class Stacks:
    """The stacks of the sequence, by the numbers that samples have."""

    KINDS = ["function_names", "frames", "callstacks", "stack_sample_counter_descriptors"]

    def __init__(self):
        self.known = {kind: {} for kind in self.KINDS}

    def add(self, packet):
        if packet.sequence_flags & pb2.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED:
            defaults = packet.trace_packet_defaults.stack_sample_defaults
            assert (defaults.source, defaults.primary_descriptor.name) == ("wallprof", "wall time"), defaults
            self.__init__()
        for kind in self.KINDS:
            self.known[kind].update((one.iid, one) for one in getattr(packet.interned_data, kind))

    def names(self, sample):
        frames = [self.known["frames"][number] for number in self.known["callstacks"][sample.callstack_iid].frame_ids]
        return [self.known["function_names"][frame.function_name_id].str.decode() for frame in frames]

    def state(self, sample):
        (number,) = sample.follower_descriptor_iids
        return self.known["stack_sample_counter_descriptors"][number].name


def samples(trace):
    """Every stack sample as (tid, state, names of functions from the root on, nanoseconds)."""
    stacks, found = Stacks(), []
    for packet in trace.packet:
        stacks.add(packet)
        if packet.HasField("stack_sample"):
            sample = packet.stack_sample
            assert list(sample.follower_weights) == [sample.primary_weight], sample
            assert packet.timestamp > 0, "a sample has a time"
            found.append((sample.task_context.tid, stacks.state(sample), stacks.names(sample), sample.primary_weight))
    return found


def check_samples(trace, report):
    """The weights of each thread and state are those of the report."""
    found = samples(trace)
    for thread in report["threads"]:
        mine = [sample for sample in found if sample[0] == thread["tid"]]
        assert sum(ns for *_, ns in mine) == thread["wall_ns"], thread
        for reason, ns in thread["states"]["blocked"].items():
            assert sum(ns for _, state, _, ns in mine if state == f"blocked:{reason}") == ns, (thread, reason)
    waits = [names for _, state, names, _ in found if state == "blocked:lock"]
    assert any(any("take_registry_lock" in name for name in names) for names in waits), waits
    return len(found)


def tid(tracks, uuid):
    track = tracks[uuid]
    return track.thread.tid if track.HasField("thread") else tid(tracks, track.parent_uuid)


def main():
    trace = pb2.Trace()
    with open(sys.argv[1], "rb") as file:
        data = file.read()
    trace.ParseFromString(data)
    # Python reads packed and single numbers alike, Perfetto's own decoder only what its definitions say.
    assert trace.ByteSize() == len(data), "repeated numbers are packed as in Perfetto's definitions"
    assert unknown_fields(trace) == [], unknown_fields(trace)
    with open(sys.argv[2], encoding="utf-8") as file:
        stalls = {stall["id"]: stall for stall in map(json.loads, file)}
    done, flows_out, tracks = slices(trace)
    shown = {row[4]["stall"]: row for row in done if "stall" in row[4]}
    assert shown.keys() == stalls.keys(), (len(shown), len(stalls))
    for number, (track, start, end, _, annotations, _) in shown.items():
        stall = stalls[number]
        assert end - start == stall["duration_ns"], stall
        assert tid(tracks, track) == stall["tid"], stall
        assert annotations["reason"] == stall["reason"], stall
        assert annotations["voluntary"] == stall["voluntary"], stall
        assert bool(annotations.get("kernel stack")) == bool(stall["kernel_stack"]), stall
    flows_in = {flow: row for row in done for flow in row[5]}
    assert flows_in.keys() == flows_out.keys(), "each flow has two ends"
    woken = {number for number, stall in stalls.items() if (stall["waker"] or {}).get("tid")}
    assert flows_in.keys() == woken, (len(flows_in), len(woken))
    for flow, (track, _) in flows_out.items():
        assert tid(tracks, track) == stalls[flow]["waker"]["tid"]
    counters = sum(packet.track_event.type == COUNTER for packet in trace.packet)
    assert counters > 0
    named = [row for row in done if any("take_registry_lock" in name for name in row[4].get("user stack", []))]
    assert named, "no stall has take_registry_lock on its stack"
    with open(sys.argv[3], encoding="utf-8") as file:
        count = check_samples(trace, json.load(file))
    print(f"{len(shown)} stalls, {len(flows_in)} flows, {counters} values of counters, {count} stack samples")


main()
