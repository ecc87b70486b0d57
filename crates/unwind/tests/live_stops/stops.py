# SPDX-License-Identifier: Apache-2.0
"""Stops a program many times and writes gdb's view of each stop: registers, call chain, and the stack itself.

Run by gdb: `gdb -batch -nx -x stops.py`, with the variables STOPS_PROGRAM (a JSON list), STOPS_COUNT and
STOPS_OUTPUT. One JSON object a line:
  {"maps": text}                    /proc/PID/maps, before the first stop that it describes
  {"vdso": hex}                     the image of the vDSO
  {"registers": {...}, "thread": n, "frames": [[pc, kind, name], ...], "outermost": bool, "stack": [[address, hex], ...]}
      innermost first; kind is "normal" or "signal" (a trampoline). Functions that were inlined and calls that left no
      frame are not there. outermost: gdb ended where a stack ends, not where it lost its way.
"""

import json
import os
import random
import re
import signal
import time

import gdb

MAX_FRAMES = 250
PAGE = 4096
# Frames farther apart are on different stacks, or one has a very large frame: its inner part is not needed.
NEAR = 256 * 1024


def start_interrupter(pid):
    """A process that signals the program after a random delay from each byte it is sent: gdb waits in between."""
    read_end, write_end = os.pipe()
    if os.fork() == 0:
        os.close(write_end)
        random.seed(pid)
        while os.read(read_end, 1):
            time.sleep(random.uniform(0.0005, 0.006))
            try:
                os.kill(pid, signal.SIGUSR2)
            except ProcessLookupError:
                break
        os._exit(0)
    os.close(read_end)
    return write_end


def call_chain():
    frames, stack_pointers = [], []
    frame = gdb.newest_frame()
    while frame is not None and len(frames) < MAX_FRAMES:
        if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
            kind = "signal" if frame.type() == gdb.SIGTRAMP_FRAME else "normal"
            frames.append([frame.pc(), kind, frame.name() or ""])
            stack_pointers.append(int(frame.read_register("rsp")) % 2**64)
        outermost = frame.unwind_stop_reason() in (gdb.FRAME_UNWIND_NO_REASON, gdb.FRAME_UNWIND_OUTERMOST)
        frame = frame.older()
    return frames, stack_pointers, outermost and frame is None


def pages_of(stack_pointers):
    """The pages between neighbouring frames, and a page beyond the outermost one."""
    pages = set()
    for inner, outer in zip(stack_pointers, stack_pointers[1:] + stack_pointers[-1:]):
        end = outer if inner <= outer <= inner + NEAR else inner
        pages.update(range(inner & -PAGE, (end & -PAGE) + 2 * PAGE, PAGE))
    return sorted(pages)


def read_pages(inferior, stack_pointers):
    stack = []
    for page in pages_of(stack_pointers):
        try:
            content = bytes(inferior.read_memory(page, PAGE))
        except gdb.MemoryError:
            continue
        stack.append([page, content.hex()])
    return stack


def registers():
    frame = gdb.newest_frame()
    return {name: int(frame.read_register(name)) % 2**64 for name in ("rip", "rsp", "rbp", "rbx", "r10", "rdi")}


def maps_of(inferior):
    with open(f"/proc/{inferior.pid}/maps") as maps:
        return maps.read()


class Recorder:
    def __init__(self, output):
        self.output = output
        self.maps = None
        self.had_vdso = False

    def put(self, value):
        self.output.write(json.dumps(value) + "\n")

    def put_maps(self, inferior):
        maps = maps_of(inferior)
        executable = [line for line in maps.splitlines() if " r-xp " in line]
        if executable != self.maps:
            self.maps = executable
            self.put({"maps": maps})
        vdso = re.search(r"^(\w+)-(\w+) .*\[vdso\]$", maps, re.M)
        if vdso and not self.had_vdso:
            start, end = (int(bound, 16) for bound in vdso.groups())
            self.had_vdso = True
            self.put({"vdso": bytes(inferior.read_memory(start, end - start)).hex()})

    def put_stop(self, inferior, number):
        threads = sorted(inferior.threads(), key=lambda thread: thread.num)
        threads[number % len(threads)].switch()
        frames, stack_pointers, outermost = call_chain()
        self.put_maps(inferior)
        self.put({
            "registers": registers(),
            "thread": gdb.selected_thread().num,
            "frames": frames,
            "outermost": outermost,
            "stack": read_pages(inferior, stack_pointers),
        })


def main():
    program = json.loads(os.environ["STOPS_PROGRAM"])
    # Its output, if any, goes to that of gdb.
    for setting in ("pagination off", "confirm off", "backtrace past-main on", "startup-with-shell off",
                    "debuginfod enabled off", "auto-load no"):
        gdb.execute("set " + setting)
    for name in ("SIGUSR2", "SIGALRM", "SIGURG", "SIGPROF"):
        action = "stop nopass" if name == "SIGUSR2" else "nostop noprint pass"
        gdb.execute(f"handle {name} {action}", to_string=True)
    gdb.execute("file " + program[0], to_string=True)
    gdb.execute("set args " + " ".join(program[1:]))
    gdb.execute("starti", to_string=True)
    inferior = gdb.selected_inferior()
    interrupter = start_interrupter(inferior.pid)
    with open(os.environ["STOPS_OUTPUT"], "w") as output:
        recorder = Recorder(output)
        for number in range(int(os.environ["STOPS_COUNT"])):
            os.write(interrupter, b"x")
            gdb.execute("continue", to_string=True)
            if not inferior.is_valid() or inferior.pid == 0:
                break
            recorder.put_stop(inferior, number)
    gdb.execute("kill", to_string=True)


main()
