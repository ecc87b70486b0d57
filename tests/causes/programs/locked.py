# SPDX-License-Identifier: Apache-2.0
"""Two threads that serve requests under one threading.Lock. With `slow`, one sleeps 20 ms while it holds it.

usage: locked.py slow|quick SECONDS
"""

import sys
import threading
import time

ENDS = time.monotonic() + float(sys.argv[2])
PAUSE = 0.020
CACHE = threading.Lock()


def store_request(held_for, pause):
    while time.monotonic() < ENDS:
        with CACHE:
            # sleep(0) would give the CPU away.
            if held_for:
                time.sleep(held_for)
        time.sleep(pause)


if sys.argv[1] == "slow":
    times = (PAUSE, 0.001)
else:
    times = (0, PAUSE)
for _ in range(2):
    threading.Thread(target=store_request, args=times).start()
