# SPDX-License-Identifier: Apache-2.0
"""Compares the tables of `wallprof export --to parquet` with the recording, as DuckDB and ClickHouse read them.

    read_parquet.py RECORDING.db FOLDER
"""

import json
import sqlite3
import sys

import chdb
import duckdb

# The same in the recording's views and in both engines: the sums of nanoseconds, and counts of rows.
# The recording divides running time by samples of the whole recording: `user` and `kernel` are compared together.
STATE = "CASE WHEN state IN ('user', 'kernel') THEN 'running' ELSE state END"
QUESTIONS = {
    "stalls by reason": ("stalls", "SELECT reason AS k, count(*) AS n, sum(duration_ns) AS total FROM {} GROUP BY 1"),
    "late by meaning": (
        "stalls",
        "SELECT coalesce(meaning, '') AS k, count(*) AS n, sum(late_ns) AS total FROM {} GROUP BY 1",
    ),
    "ledger by state": ("ledger", f"SELECT {STATE} AS k, 0 AS n, sum(ns) AS total FROM {{}} WHERE ns <> 0 GROUP BY 1"),
    "samples by state": (
        "samples",
        "SELECT state AS k, sum(count) AS n, sum(weight) AS total FROM {} GROUP BY 1",
    ),
    # The recorder's values are integers, whose sums are exact below 2^53.
    "counters by name": (
        "counters",
        "SELECT name || ' ' || kind || ' ' || unit || CASE WHEN pid IS NULL THEN '' ELSE ' of a process' END AS k, "
        "count(*) AS n, sum(value) AS total FROM {} GROUP BY 1",
    ),
    # Of each group once, however many of its processes were recorded.
    "throttling by group": (
        "throttling",
        "SELECT cgroup AS k, sum(count) AS n, sum(total_ns) AS total FROM "
        "(SELECT DISTINCT cgroup, from_ns, to_ns, count, total_ns FROM {}) AS each GROUP BY 1",
    ),
    "spans by kind": ("spans", "SELECT kind AS k, count(*) AS n, sum(duration_ns) AS total FROM {} GROUP BY 1"),
    "waits for locks in all spans": (
        "span_latency",
        "SELECT kind AS k, sum(count) AS n, sum(lock_ns) AS total FROM {} GROUP BY 1",
    ),
}


def in_recording(recording, question, table):
    connection = sqlite3.connect(f"file:{recording}?mode=ro", uri=True)
    return sorted((k, int(n), int(total)) for k, n, total in connection.execute(question.format(table)))


def as_in_recording(table, source):
    """The files have no duration of stalls: it is the sum of two other columns."""
    return f"(SELECT *, asked_ns + late_ns AS duration_ns FROM {source})" if table == "stalls" else source


def in_duckdb(folder, question, table):
    files = f"{folder}/{table}/**/*.parquet".replace("'", "''")
    source = f"read_parquet('{files}', hive_partitioning = true)"
    return sorted((k, int(n), int(ns)) for k, n, ns in duckdb.sql(question.format(as_in_recording(table, source))).fetchall())


def in_clickhouse(folder, question, table):
    files = f"{folder}/{table}/**/*.parquet".replace("'", "\\'")
    source = as_in_recording(table, f"file('{files}', Parquet)")
    answer = chdb.query(question.format(source), "JSONCompactEachRow").bytes().decode()
    rows = map(json.loads, answer.splitlines())
    return sorted((k, int(n), int(ns)) for k, n, ns in rows)


def check_stacks(folder):
    """Each hash in a table of waits is a row of `stacks`."""
    read = lambda table: f"read_parquet('{folder}/{table}/**/*.parquet')"
    for table in ("stalls", "samples"):
        for column in ("user_stack", "kernel_stack"):
            missing = duckdb.sql(
                f"SELECT count(*) FROM {read(table)} WHERE {column} IS NOT NULL "
                f"AND {column} NOT IN (SELECT stack FROM {read('stacks')})"
            ).fetchall()[0][0]
            assert missing == 0, f"{missing} stacks of {table}.{column} are in no row of stacks"


def main(recording, folder):
    for name, (table, question) in QUESTIONS.items():
        expected = in_recording(recording, question, table)
        # A recording without a quota has an empty table.
        assert expected or table == "throttling", f"{name}: the recording has nothing to compare"
        for engine, found in (
            ("DuckDB", in_duckdb(folder, question, table)),
            ("ClickHouse", in_clickhouse(folder, question, table)),
        ):
            assert found == expected, f"{name}: {engine} has {found}, the recording {expected}"
    check_stacks(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
