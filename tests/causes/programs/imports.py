# SPDX-License-Identifier: Apache-2.0
"""Threads that import the same module at the same time, again and again another one.

usage: imports.py slow|quick SECONDS. The code of a slow module takes 300 ms. At its end the program prints the part of the
threads' time that the imports took, by its own clock.
"""

import importlib
import pathlib
import sys
import tempfile
import threading
import time

THREADS = 3
EVERY = 0.6
is_slow, seconds = sys.argv[1] == "slow", float(sys.argv[2])
folder = tempfile.TemporaryDirectory()
sys.path.insert(0, folder.name)
turns = int(seconds / EVERY)
for turn in range(turns):
    code = f"import time\n\ndef load_tables():\n    time.sleep({0.3 if is_slow else 0})\n\nload_tables()\n"
    pathlib.Path(folder.name, f"tables_{turn}.py").write_text(code)
start = time.monotonic()
took = [0.0] * THREADS


def handle_requests(number):
    for turn in range(turns):
        time.sleep(max(0, start + turn * EVERY - time.monotonic()))
        before = time.monotonic()
        importlib.import_module(f"tables_{turn}")
        took[number] += time.monotonic() - before


threads = [threading.Thread(target=handle_requests, args=(number,)) for number in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
whole = time.monotonic() - start
print(f"imports took {sum(took) / THREADS / whole:.1%} of the time of each thread")
