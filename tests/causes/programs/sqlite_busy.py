# SPDX-License-Identifier: Apache-2.0
"""Writes to a SQLite database for some seconds: `holder` keeps its transactions open, `writer` does not."""
import sqlite3
import sys
import time

role, path, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
database = sqlite3.connect(path, timeout=5, isolation_level=None)
database.execute("pragma synchronous = off")
end = time.monotonic() + seconds
while time.monotonic() < end:
    database.execute("begin immediate")
    database.execute("update stock set pieces = pieces + 1 where id = 1")
    time.sleep(0.3 if role == "holder" else 0)
    database.execute("commit")
    time.sleep(0.05)
