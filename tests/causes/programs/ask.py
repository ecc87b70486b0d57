# SPDX-License-Identifier: Apache-2.0
"""A client with a timeout that asks another process, again and again.

usage: ask.py slow|quick SECONDS. With slow, each answer takes 60 ms.
"""

import os
import socket
import sys
import time

SPEED, SECONDS = sys.argv[1], float(sys.argv[2])
ENDS = time.monotonic() + SECONDS


def answer_questions(end):
    while end.recv(1):
        if SPEED == "slow":
            time.sleep(0.06)
        end.send(b"a")


def name(text):
    with open("/proc/self/comm", "w") as comm:
        comm.write(text)


listener = socket.create_server(("127.0.0.1", 0))
if os.fork() == 0:
    name("prices")
    answer_questions(listener.accept()[0])
else:
    name("shop")
    # With a timeout CPython waits in poll(2).
    client = socket.create_connection(listener.getsockname(), timeout=10)
    while time.monotonic() < ENDS:
        client.send(b"q")
        client.recv(1)
        time.sleep(0.02)
    client.close()
    os.wait()
