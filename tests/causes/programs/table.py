# SPDX-License-Identifier: Apache-2.0
"""Looks up rows of a table in a file, through a mapping, for so many seconds.

usage: table.py FILE SECONDS
"""

import mmap
import sys
import time

PAGE = 4096
ENDS = time.monotonic() + float(sys.argv[2])

with open(sys.argv[1], "rb") as file:
    table = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
while time.monotonic() < ENDS:
    for row in range(0, len(table), PAGE * 64):
        table[row]
        time.sleep(0.0005)
        if time.monotonic() > ENDS:
            break
