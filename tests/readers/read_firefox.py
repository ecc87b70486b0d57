# SPDX-License-Identifier: Apache-2.0
"""Reads an export for the Firefox Profiler with the viewer's own code, and compares it with the recording.

    python3 read_firefox.py PROFILER_CLI.js FILE.json STALLS.jsonl REPORT.json

PROFILER_CLI.js is the program of Mozilla's package profiler-cli. STALLS.jsonl and REPORT.json are what `wallprof
stalls --json --all` and `wallprof report --json` print.
"""

import collections
import json
import subprocess
import sys
import time

CLI, PROFILE, STALLS, REPORT = sys.argv[1:]

# Its daemon has half a second to start, which it takes longer for beside a build; asked again, it is there.
ATTEMPTS = 30
# A command that hangs.
GIVEN_UP_S = 300

# Parts of a wall time, whose weights are whole microseconds, and of milliseconds: CPU times are whole microseconds.
WALL_MS = 0.001
CPU_MS = 0.1


def ask(*words):
    command = ["node", CLI, *words, "--session", "wallprof"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=GIVEN_UP_S, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stdout}{done.stderr}"
    return done.stdout


def load():
    subprocess.run(["node", CLI, "stop", "--session", "wallprof"], capture_output=True, timeout=GIVEN_UP_S, check=False)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            ask("load", PROFILE)
            return
        except AssertionError as error:
            # That of the attempt before, with this profile.
            if attempt > 1 and "is already running" in str(error):
                return
            if "did not become ready" not in str(error) or attempt == ATTEMPTS:
                raise
            time.sleep(1)


def ask_json(*words):
    return json.loads(ask(*words, "--json"))


def functions(node):
    yield node["name"]
    for child in node.get("children", []):
        yield from functions(child)


def running_ms(thread):
    # Running time is in user and kernel, or undivided in cpu: the others are null.
    return sum(thread["states"].get(state) or 0 for state in ("user", "kernel", "cpu", "irq")) / 1e6


def compare():
    with open(STALLS, encoding="utf-8") as file:
        stalls = collections.Counter(json.loads(line)["tid"] for line in file)
    with open(REPORT, encoding="utf-8") as file:
        recorded = {thread["tid"]: thread for thread in json.load(file)["threads"]}
    shown = {int(thread["tid"]): thread for thread in ask_json("thread", "list")["threads"]}
    # Of events, and of counters of the machine.
    shown.pop(0)
    assert shown.keys() == recorded.keys(), (shown.keys(), recorded.keys())
    trees = {}
    for tid, thread in shown.items():
        assert thread["markerCount"] == stalls[tid], (thread, stalls[tid])
        assert abs(thread["cpuMs"] - running_ms(recorded[tid])) <= CPU_MS, (thread, recorded[tid]["states"])
        tree = ask_json("thread", "samples-top-down", "--thread", thread["threadHandle"], "--include-idle")
        trees[tid] = tree["regularCallTree"]
        wall_ms = recorded[tid]["wall_ns"] / 1e6
        shown_ms = trees[tid]["totalSamples"]
        assert abs(shown_ms - wall_ms) <= WALL_MS * wall_ms, (tid, shown_ms, wall_ms)
    named = [tid for tid, tree in trees.items() if "take_registry_lock" in functions(tree)]
    assert named, "no thread has take_registry_lock in its tree"
    counters = compare_counters()
    print(f"{len(shown)} threads, {sum(stalls.values())} markers, {counters} counters")


def compare_counters():
    with open(PROFILE, encoding="utf-8") as file:
        written = json.load(file)["counters"]
    shown = ask_json("counter", "list")["counters"]
    assert len(shown) == len(written) > 0, (len(shown), len(written))
    for counter in shown:
        assert counter["category"] == "wallprof" and counter["graphType"].startswith("line-"), counter
        if counter["graphType"] == "line-accumulated":
            deltas = written[counter["counterIndex"]]["samples"]["count"]
            levels = [sum(deltas[:end]) for end in range(1, len(deltas) + 1)]
            range_of = next(stat["value"] for stat in counter["stats"]) if counter["stats"] else max(levels)
            assert abs(range_of - max(levels)) <= 1e-6 * max(levels), (counter, levels)
    return len(shown)


load()
try:
    compare()
finally:
    ask("stop")
