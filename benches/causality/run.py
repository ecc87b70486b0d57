#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes one cause of delay larger, and checks that its figure moves by as much, and that no other one does.

scenarios/causality.c delays a thread in ten ways, and logs by its own clock how long each took. Each block records it
once as it is, and once for each cause and each of +10, +20 and +50 %, in random order. A figure is what `export --to
folded` has of the cause's function off the CPU and in page faults. Its change is the ratio to the run of the same block
in which nothing was larger, less 1.

The figure of the larger cause follows where the means of its changes and of those by the clock are apart by no more than
their noise (the 95 % interval of the difference, by Student's t), or 1 %. Another figure is right where the same holds
for 2 %: by the clock, too, the others change a little, and a disk takes as long as it takes.

    benches/causality/run.py [-b BLOCKS] [-n ROUNDS] [-f FILE] [-o PAGE] [CAUSE…]

With -o, the table replaces the one of the page, between `<!-- causes -->` and `<!-- end of causes -->`. Exit code 1: a
figure does not follow, or another one moves.
"""

import argparse
import json
import math
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
WALLPROF = os.environ.get("WALLPROF", os.path.join(ROOT, "target/release/wallprof"))
SCENARIO = os.environ.get("SCENARIO", os.path.join(ROOT, "target/scenarios/causality"))
PERCENT = (10, 20, 50)
FOLLOWS_WITHIN = 0.01
OTHERS_WITHIN = 0.02
# The 0.975 quantile of Student's t for so many values; 2 for more (at most 8 % too small).
T_95 = {3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26, 11: 2.23, 12: 2.20}
# States of time on a CPU: what is sampled, and not exact.
SAMPLED = ("[user]", "[kernel]", "[irq]")
# Seconds without a line of the scenario, or of the recorder, after which they are given up.
SILENT_S = 60


def say(text):
    print(f"causality: {text}", file=sys.stderr, flush=True)


def lines_until(program, event):
    """The lines of the scenario up to one with this event."""
    for line in program.stdout:
        found = json.loads(line)
        if found["event"] == "refused":
            sys.exit(f"causality: {found['what']}: run as root, where control groups can be made")
        yield found
        if found["event"] == event:
            return
    sys.exit("causality: the scenario ended early")


def record(folder, rounds, file, cause, percent):
    """One run: function → (ns by the scenario's clock, ns of the figure), by the name of the cause."""
    recording = os.path.join(folder, "recording")
    larger = ["-w", cause, "-x", str(percent)] if cause else []
    command = [SCENARIO, "-g", "-n", str(rounds), "-f", file, *larger]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        signal.alarm(SILENT_S)
        pids = [str(line["pid"]) for line in lines_until(program, "start")]
        targets = [word for pid in pids for word in ("-p", pid)]
        recorder = subprocess.Popen(
            [WALLPROF, "record", *targets, "-o", recording], stderr=subprocess.PIPE, text=True
        )
        for line in recorder.stderr:
            if "recording" in line:
                break
        else:
            sys.exit("causality: the recorder ended early")
        program.stdin.write("g\n")
        program.stdin.flush()
        truth = [line for line in lines_until(program, "end") if line["event"] == "cause"]
        recorder.send_signal(signal.SIGINT)
        said = recorder.communicate()[1]
        program.stdin.close()
        signal.alarm(0)
    if recorder.returncode != 0:
        sys.exit(f"causality: the recorder failed: {said}")
    export = [WALLPROF, "export", "--to", "folded", "-o", "-", recording]
    folded = subprocess.run(export, check=True, capture_output=True, text=True).stdout
    off_cpu = dict.fromkeys((line["function"] for line in truth), 0)
    for line in folded.splitlines():
        stack, ns = line.rsplit(" ", 1)
        frames = stack.split(";")
        if frames[-1] in SAMPLED or not frames[-1].startswith("["):
            continue
        for function in off_cpu.keys() & set(frames):
            off_cpu[function] += int(ns)
    for name in os.listdir(folder):
        os.unlink(os.path.join(folder, name))
    return {line["name"]: (line["total_ns"], off_cpu[line["function"]]) for line in truth}


def error(values):
    """Half of the 95 % interval of the mean, by Student's t."""
    t = T_95.get(len(values), 2)
    return t * statistics.stdev(values) / math.sqrt(len(values))


def changes(blocks, key, cause):
    """Of each block: the change of the cause by the clock and of its figure, in the run `key`."""
    def ratios(column):
        return [block[key][cause][column] / block[None][cause][column] - 1 for block in blocks]

    return ratios(0), ratios(1)


def judged(blocks, key):
    """A row of the table, and whether it is as it must be."""
    cause, percent = key
    clock, figure = changes(blocks, key, cause)
    apart = [own - log for own, log in zip(figure, clock)]
    follows = abs(statistics.fmean(apart)) <= max(FOLLOWS_WITHIN, error(apart))
    moved, largest, of = [], 0, ""
    for other in blocks[0][None]:
        if other == cause:
            continue
        log, own = changes(blocks, key, other)
        mean = statistics.fmean(own)
        if abs(mean) > abs(largest):
            largest, of = mean, f"{other} ({statistics.fmean(log):+.1%} by the clock)"
        beside = [a - b for a, b in zip(own, log)]
        if abs(statistics.fmean(beside)) > max(OTHERS_WITHIN, error(beside)):
            moved.append(f"{other} by {statistics.fmean(beside):+.1%}")
    row = [
        cause, f"+{percent} %", f"{statistics.fmean(clock):+.1%}", f"{statistics.fmean(figure):+.1%}",
        f"{statistics.fmean(apart):+.1%} ± {error(apart):.1%}", f"{largest:+.1%}: {of}",
        ("✓" if follows else "does not follow") + ("" if not moved else f"; moved: {', '.join(moved)}"),
    ]
    return "| " + " | ".join(row) + " |", follows and not moved


def table(blocks, keys):
    machine = f"machine: {os.cpu_count()} CPUs, {processor()}, kernel {os.uname().release}, load {os.getloadavg()[0]:.2f}"
    rows = [judged(blocks, key) for key in keys]
    base = ", ".join(
        f"{name} {statistics.fmean(block[None][name][1] for block in blocks) / 1e6:.0f} ms" for name in blocks[0][None]
    )
    text = [
        "", f"{machine}; {len(blocks)} blocks of {len(keys) + 1} runs. Without a larger cause: {base}.", "",
        "| cause | made larger by | by the clock | its figure | apart | largest change of another figure | |",
        "| --- | ---: | ---: | ---: | ---: | --- | --- |", *(row for row, _ in rows), "",
    ]
    return "\n".join(text), all(right for _, right in rows)


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        found = re.search(r"^model name\s*: (.*)$", file.read(), re.M)
    return found.group(1) if found else "unknown"


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("-b", "--blocks", type=int, default=6)
    arguments.add_argument("-n", "--rounds", type=int, default=100)
    arguments.add_argument("-f", "--file", default="/var/tmp/wallprof-journal")
    arguments.add_argument("-o", "--page")
    arguments.add_argument("cause", nargs="*")
    given = arguments.parse_args()
    if given.blocks < 3:
        sys.exit("causality: at least 3 blocks (-b) are needed for an error")
    order, blocks = random.Random(1), []
    with tempfile.TemporaryDirectory() as folder:
        names = list(record(folder, given.rounds, given.file, None, 0))
        unknown = set(given.cause) - set(names)
        if unknown:
            sys.exit(f"causality: no cause is called {', '.join(unknown)}: there are {', '.join(names)}")
        keys = [(cause, percent) for cause in given.cause or names for percent in PERCENT]
        for number in range(given.blocks):
            block = {}
            for key in order.sample([None, *keys], len(keys) + 1):
                block[key] = record(folder, given.rounds, given.file, *(key or (None, 0)))
            blocks.append(block)
            say(f"block {number + 1} of {given.blocks}")
    text, right = table(blocks, keys)
    print(text)
    if given.page:
        with open(given.page, encoding="utf-8") as file:
            page = file.read()
        between = re.compile(r"(?<=<!-- causes -->\n).*(?=<!-- end of causes -->)", re.S)
        if not between.search(page):
            sys.exit(f"causality: {given.page} has no place for the table")
        with open(given.page, "w", encoding="utf-8") as file:
            file.write(between.sub(lambda _: text, page))
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
