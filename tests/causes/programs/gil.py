# SPDX-License-Identifier: Apache-2.0
"""A thread that serves a request every millisecond. With `busy`, beside one that computes and keeps the GIL.

usage: gil.py busy|alone SECONDS
"""

import ctypes
import sys
import threading
import time

ENDS = time.monotonic() + float(sys.argv[2])
PR_SET_NAME = 15


def named(name, function):
    """A thread with a name for the kernel, which Python gives it from 3.14 on."""

    def run():
        ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode())
        function()

    return threading.Thread(target=run)


def serve_requests():
    while time.monotonic() < ENDS:
        time.sleep(0.001)
        sum(range(100))


def compute_report():
    while time.monotonic() < ENDS:
        sum(range(1000))


named("requests", serve_requests).start()
if sys.argv[1] == "busy":
    named("report", compute_report).start()
