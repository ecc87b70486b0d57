# SPDX-License-Identifier: Apache-2.0
"""Times the questions of docs/fleet.md on a fleet, and prints the table for the document.

    speed.py FLEET STORE [RUNS]

STORE is a folder for ClickHouse's tables. The first run of each question does not count. Exit code 1: a median is
above two seconds on DuckDB or on ClickHouse's tables.
"""

import os
import pathlib
import statistics
import sys
import time

import engines

MOST_S = 2


def times(engine, sql, runs):
    taken = []
    for _ in range(runs + 1):
        start = time.perf_counter()
        engine.run(sql)
        taken.append(time.perf_counter() - start)
    return taken[1:]


def cell(taken):
    return f"{statistics.median(taken):.2f} ({min(taken):.2f}–{max(taken):.2f})"


def main(fleet, store, runs=5):
    tables = pathlib.Path(fleet) / "tables"
    start = time.perf_counter()
    loaded = engines.ClickHouse(tables, store=store)
    print(f"loading into ClickHouse: {time.perf_counter() - start:.0f} s")
    for name, in loaded.ask("SELECT concat(table, ' ', formatReadableQuantity(sum(rows)), ' rows, ',"
                            " formatReadableSize(sum(bytes_on_disk))) FROM system.parts WHERE active AND"
                            " database = currentDatabase() GROUP BY table ORDER BY table")[1]:
        print(f"  {name}")
    asked = {"DuckDB": [], "ClickHouse": [], "ClickHouse on the folder": []}
    for engine in (engines.DuckDb(tables), loaded):
        for _, sql in engines.questions().values():
            asked[engine.name].append(times(engine, sql, int(runs)))
    loaded.close()
    folder = engines.ClickHouse(tables, loaded=False)
    for _, sql in engines.questions().values():
        asked[folder.name].append(times(folder, sql, max(int(runs) // 2, 1)))
    print(f"load average {os.getloadavg()[0]:.1f}\n\n| question | {' | '.join(asked)} |\n| --- | ---: | ---: | ---: |")
    for at, number in enumerate(engines.questions()):
        print(f"| {number} | {' | '.join(cell(taken[at]) for taken in asked.values())} |")
    slow = [
        (engine, at + 1) for engine in ("DuckDB", "ClickHouse") for at, taken in enumerate(asked[engine])
        if statistics.median(taken) > MOST_S
    ]  # fmt: skip
    if slow:
        sys.exit(f"fleet: slower than {MOST_S} s: {slow}")


if __name__ == "__main__":
    main(*sys.argv[1:])
