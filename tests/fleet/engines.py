# SPDX-License-Identifier: Apache-2.0
"""The SQL of docs/fleet.md in DuckDB and in ClickHouse (chdb).

A block of the document is a fenced one whose language is `sql`, for both engines, or `sql ENGINE` and a word for
what it is for: `setup`, `load`.
"""

import json
import pathlib
import re

import chdb.session
import duckdb

DOCUMENT = pathlib.Path(__file__).parents[2] / "docs/fleet.md"
# The folder that the document reads.
FOLDER = "/srv/wallprof"


def blocks(purpose):
    """The statements of the blocks for this purpose, as `duckdb setup`."""
    found = re.findall(rf"^```sql {purpose}\n(.*?)^```", DOCUMENT.read_text(), re.S | re.M)
    assert found, f"docs/fleet.md has no block `sql {purpose}`"
    return [statement for block in found for statement in re.split(r";\n", block) if statement.strip()]


def questions():
    """Number → (title, SQL)."""
    found = re.findall(r"^### (\d+)\. (.*?)\n\n```sql\n(.*?)```", DOCUMENT.read_text(), re.S | re.M)
    return {int(number): (title, sql) for number, title, sql in found}


class DuckDb:
    name = "DuckDB"

    def __init__(self, folder):
        self.db = duckdb.connect()
        self.db.sql("SET threads = 2")
        for statement in blocks("duckdb setup"):
            self.db.sql(statement.replace(FOLDER, literal(folder, "''")))

    def ask(self, sql):
        answer = self.db.sql(sql)
        # A time with a zone needs another package to become Python's.
        zoned = [c for c, kind in zip(answer.columns, answer.types, strict=True) if "TIME ZONE" in str(kind)]
        if zoned:
            answer = self.db.sql(f"SELECT * REPLACE ({', '.join(f'CAST({c} AS VARCHAR) AS {c}' for c in zoned)}) FROM ({sql})")
        return answer.columns, [tuple(map(plain, row)) for row in answer.fetchall()]

    def run(self, sql):
        """For timing: all columns and the order are computed, as a client would have it."""
        self.db.sql(sql).fetchall()


class ClickHouse:
    """Loaded into tables, or (`loaded` false) reading the folder."""

    def __init__(self, folder, loaded=True, store=None):
        self.name = "ClickHouse" if loaded else "ClickHouse on the folder"
        self.session = chdb.session.Session(str(store) if store else None)
        folder = literal(folder, "\\'")
        [duration] = re.findall(r"ADD COLUMN duration_ns \S+ ALIAS (.*)", "\n".join(blocks("clickhouse setup")))
        for statement in blocks("clickhouse setup"):
            # The fleet's days are long ago.
            statement = statement.replace(FOLDER, folder).replace("90 DAY", "9000 DAY")
            if not loaded:
                statement = re.sub(r"CREATE TABLE (\w+) .*?AS SELECT", r"CREATE VIEW \1 AS SELECT", statement, flags=re.S)
                statement = statement.replace("VIEW stalls AS SELECT *", f"VIEW stalls AS SELECT *, {duration} AS duration_ns")
            if loaded or not statement.startswith("ALTER"):
                self.command(statement)
        if loaded:
            for statement in blocks("clickhouse load"):
                self.command(statement.replace(FOLDER, folder))

    def command(self, sql):
        return self.session.query(sql, "JSONCompactEachRowWithNames").bytes().decode()

    def ask(self, sql):
        rows = [json.loads(line) for line in self.command(sql).splitlines()]
        return rows[0], [tuple(map(plain, row)) for row in rows[1:]]

    def run(self, sql):
        self.session.query(sql, "Null")

    def close(self):
        self.session.close()


def literal(folder, quote):
    return str(folder).replace("'", quote)


def plain(value):
    """One form for the same value of both engines."""
    if isinstance(value, str) and re.fullmatch(r"-?\d+", value):
        return int(value)
    if isinstance(value, (str, int, float, type(None))):
        return int(value) if isinstance(value, float) and value.is_integer() else value
    return float(value) if type(value).__name__ == "Decimal" else str(value)


def same(left, right):
    """The same rows, but for the last digit of rounded numbers."""
    return len(left) == len(right) and all(map(same_row, left, right))


def same_row(left, right):
    return all(
        abs(a - b) <= 0.011 + 0.001 * abs(a) if isinstance(a, (int, float)) and isinstance(b, (int, float)) else a == b
        for a, b in zip(left, right, strict=True)
    )
