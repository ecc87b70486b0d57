# SPDX-License-Identifier: Apache-2.0
"""A process that sends records of 64 KiB to another one.

usage: stream.py pipe|tcp slow|quick SECONDS. With slow, the other end pauses for 60 ms after each 256 KiB.
"""

import os
import socket
import sys
import time

KIND, SPEED, SECONDS = sys.argv[1], sys.argv[2], float(sys.argv[3])
RECORD = bytes(65536)
ENDS = time.monotonic() + SECONDS


def read_records(end):
    read = 0
    while data := end.read(65536):
        read += len(data)
        if SPEED == "slow" and read >= 262144:
            time.sleep(0.06)
            read = 0


def pair():
    """A readable end and a writable end."""
    if KIND == "pipe":
        read, write = os.pipe()
        return os.fdopen(read, "rb", 0), os.fdopen(write, "wb", 0)
    listener = socket.create_server(("127.0.0.1", 0))
    sender = socket.create_connection(listener.getsockname())
    receiver, _ = listener.accept()
    return receiver.makefile("rb", buffering=0), sender.makefile("wb", buffering=0)


def send_record(end):
    rest = memoryview(RECORD)
    while rest:
        rest = rest[end.write(rest) :]


def name(text):
    with open("/proc/self/comm", "w") as comm:
        comm.write(text)


reader, writer = pair()
if os.fork() == 0:
    writer.close()
    name("archive")
    read_records(reader)
else:
    reader.close()
    name("feed")
    while time.monotonic() < ENDS:
        send_record(writer)
        # A reader at full speed has nothing to wait for.
        time.sleep(0.005)
    writer.close()
    os.wait()
