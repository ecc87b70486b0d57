# SPDX-License-Identifier: Apache-2.0
"""Asks a folder of tables the questions of docs/fleet.md in Spark, and compares the answers with DuckDB's.

    PYTHONPATH=target/fleet/python:PYSPARK_FOLDER python3 tests/fleet/spark.py target/fleet/small/tables

Needs a Java of version 17 or later, and pyspark (`pip install --target PYSPARK_FOLDER pyspark`, 450 MB), which is why
`make fleet` does not run it. Sums of ns are compared to the nanosecond.
"""

import pathlib
import sys

from pyspark.sql import SparkSession

import engines

FOLDER = pathlib.Path(sys.argv[1]).resolve()

SUMS = {
    "ledger": "SELECT state, sum(ns) AS ns FROM ledger GROUP BY state ORDER BY state",
    "stalls": "SELECT reason, sum(late_ns) AS ns FROM stalls GROUP BY reason ORDER BY reason",
    "samples": "SELECT state, sum(weight) AS weight FROM samples GROUP BY state ORDER BY state NULLS LAST",
    "counters": "SELECT name, sum(value) AS value FROM counters GROUP BY name ORDER BY name",
}


class Spark:
    name = "Spark"

    def __init__(self):
        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        builder = builder.config("spark.driver.memory", "6g").config("spark.sql.shuffle.partitions", "4")
        self.session = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
        self.session.sparkContext.setLogLevel("OFF")
        for statement in engines.blocks("spark setup"):
            self.session.sql(statement.replace(engines.FOLDER, engines.literal(FOLDER, "\\'")))

    def ask(self, sql):
        answer = self.session.sql(sql.replace(" AS MATERIALIZED", " AS"))
        return answer.columns, [tuple(map(engines.plain, row)) for row in answer.collect()]


def compare(spark, duckdb):
    for table, sql in SUMS.items():
        (_, ours), (_, theirs) = spark.ask(sql), duckdb.ask(sql)
        exact = engines.same(ours, theirs) if table == "counters" else ours == theirs
        assert ours and exact, (table, ours, theirs)
    for number, (title, sql) in engines.questions().items():
        (_, ours), (_, theirs) = spark.ask(sql), duckdb.ask(sql)
        assert ours and engines.same(ours, theirs), (number, title, ours, theirs)
        print(f"{number}. {title} {len(ours)} rows", flush=True)


compare(Spark(), engines.DuckDb(FOLDER))
