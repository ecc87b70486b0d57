# SPDX-License-Identifier: Apache-2.0
"""Makes a fleet's tables from the recordings of record.sh: copies of their rows, shifted to hosts and hours.

    generate.py PIECES FOLDER [--small] [--seed N]

FOLDER/tables is what `wallprof watch --parquet` of 20 hosts leaves in five hours: a part every five minutes, with
the columns and types of the pieces' own tables. FOLDER/plan.json says which piece is where: the test computes its
answers from the recordings and from that. --small makes a tenth of the hosts' time, for the test.

Planted, besides the sick pieces: a host that lost data, one whose recorder costs four times as much, one with
another kernel, and one without ten minutes (in the small fleet: without an hour).
"""

import argparse
import datetime
import json
import os
import pathlib
import random

import duckdb
import pyarrow.parquet

MONDAY, TUESDAY = datetime.date(2026, 11, 2), datetime.date(2026, 11, 3)
HOURS = [(MONDAY, 10), (MONDAY, 11), (TUESDAY, 10), (TUESDAY, 11), (TUESDAY, 12)]
SMALL_HOURS = [(MONDAY, 10), (TUESDAY, 10), (TUESDAY, 12)]
PART_SECONDS = 300

# service → hosts of the full fleet, of the small one.
HOSTS = {"orders": (6, 3), "pricing": (5, 2), "accounts": (4, 3), "cache": (3, 3), "search": (2, 1)}

SLOWED_COST = 4
LOST_STALLS = 200_000
OLD_KERNEL = "5.10.0-28-amd64"
# Its id is in a dashboard, as the exemplar of a metric: question 7.
EXEMPLAR_HOST, EXEMPLAR = "pricing-1", 4711
# A copy's ids begin at a multiple of this.
IDS = 1_000_000
# One recording's threads, and process ids, begin at a multiple of this.
THREADS, PROCESSES = 1000, 100_000

PIECES = {"orders": "orders_{}", "pricing": "pricing_{}", "accounts": "accounts_{}", "cache": "cache_{}"}


def state(service, number, date, hour):
    """The version that a host runs, and whether the cause is there, by service."""
    tuesday = date == TUESDAY
    match service:
        case "orders":
            # Rolled out on Tuesday morning to all but the last host.
            new = tuesday and number < state.hosts["orders"]
            return ("2.4", True) if new else ("2.3", False)
        case "pricing":
            return ("8.0", True) if tuesday else ("7.9", False)
        case "accounts":
            return "1.8", number == 2
        case "cache":
            return "7.0", number == 3 and tuesday and hour == 12
    return "5.1", False


def pieces_of(service, sick):
    if service == "search":
        return ["search_files", "search_limited", "search_unlimited", "search_shared", "search_crowded"]
    return [PIECES[service].format("slow" if sick else "good")]


def make_plan(small, seed):
    """A list of parts, each one file in each table."""
    draw = random.Random(seed)
    state.hosts = {service: sizes[small] for service, sizes in HOSTS.items()}
    parts_an_hour = 1 if small else 3600 // PART_SECONDS
    plan = []
    for service, count in state.hosts.items():
        for number in range(1, count + 1):
            host = f"{service}-{number}"
            machine = f"{draw.getrandbits(128):032x}"
            recordings = {}
            for date, hour in SMALL_HOURS if small else HOURS:
                version, sick = state(service, number, date, hour)
                # Another version, another start of the watcher.
                recording = recordings.setdefault(version, f"{draw.getrandbits(128):032x}")
                for part in range(parts_an_hour):
                    if host == "accounts-3" and (date, hour) == (TUESDAY, 10) and (small or part in (4, 5)):
                        continue
                    midnight = datetime.datetime.combine(date, datetime.time(hour), datetime.UTC)
                    plan.append({
                        "host": host, "service": service, "version": version, "recording": recording,
                        "machine": machine, "date": str(date), "hour": hour, "sick": sick,
                        "start": int(midnight.timestamp()) + part * PART_SECONDS,
                        "pieces": pieces_of(service, sick),
                        "exemplar": host == EXEMPLAR_HOST and (date, hour, part) == (TUESDAY, 10, 0),
                        "cost": SLOWED_COST if host == "cache-2" else 1,
                        "lost": LOST_STALLS if host == "pricing-2" and tuesday_noon(date, hour) else 0,
                        "kernel": OLD_KERNEL if host == "orders-2" else None,
                    })
    return plan


def tuesday_noon(date, hour):
    return (date, hour) == (TUESDAY, 12)


# --- rows ---

TABLES = ["recordings", "ledger", "stalls", "samples", "stacks", "latency", "spans", "span_latency", "counters",
          "throttling", "findings", "losses"]
# Of these, every copy has its rows; of the others a part has one set, with sums that are those of all copies.
COPIED = {"ledger", "stalls", "samples", "counters", "throttling"}
# Of the rows in a file of wallprof's, on which its size depends.
ORDER = {
    "ledger": "state, thread, time",
    "stalls": "reason, user_stack, start_ns",
    "samples": "thread, state, user_stack, kernel_stack, time",
    "counters": "name, thread, time",
    "throttling": "cgroup, from_ns",
}
SUMS = {"latency", "span_latency", "findings", "losses"}
NOT_SUMS = {"from_ns", "to_ns", "max_ns"}
PROCESS_COLUMNS = {"pid", "tid", "waker_pid", "waker_tid", "lock_owner_tid"}


def quoted(text):
    return "'" + str(text).replace("'", "''") + "'"


def encodings(file):
    """As the options of pyarrow: the encoding that wallprof chose for each column of a file."""
    group = pyarrow.parquet.ParquetFile(file).metadata.row_group(0)
    chosen = {group.column(at).path_in_schema: group.column(at).encodings for at in range(group.num_columns)}
    others = {name: "DELTA_BINARY_PACKED" if "DELTA_BINARY_PACKED" in found else "PLAIN"
              for name, found in chosen.items() if "RLE_DICTIONARY" not in found and "PLAIN_DICTIONARY" not in found}
    return {"use_dictionary": [name for name in chosen if name not in others], "column_encoding": others}


class Pieces:
    """The recordings' tables in memory: `T_TABLE` has a column `piece`."""

    def __init__(self, folder, names):
        self.db = duckdb.connect()
        self.db.execute("SET threads = 2")
        self.db.execute("SET TimeZone = 'UTC'")
        self.columns, self.schemas = {}, {}
        files = {}
        for table in TABLES:
            parts = []
            for name in names:
                pattern = f"{folder}/{name}/{table}/**/*.parquet"
                if found := sorted(pathlib.Path(folder, name, table).rglob("*.parquet")):
                    self.schemas[table] = pyarrow.parquet.read_schema(found[0])
                    files[table] = files.get(table, []) + found
                    source = f"read_parquet({quoted(pattern)}, hive_partitioning = false)"
                    parts.append(f"SELECT {quoted(name)} AS piece, * FROM {source}")
                    described = self.db.execute(f"DESCRIBE SELECT * FROM {source}").fetchall()
                    self.columns[table] = [(row[0], row[1]) for row in described]
            self.db.execute(f"CREATE TABLE t_{table} AS {' UNION ALL '.join(parts)}")
        # The largest file decides for all hosts.
        largest = lambda found: max(found, key=lambda file: file.stat().st_size)
        self.encodings = {table: encodings(largest(found)) for table, found in files.items()}
        # The calendar seconds that a piece touches: a copy follows another without an overlap.
        self.first = dict(self.db.execute("SELECT piece, epoch(min(time))::BIGINT FROM t_ledger GROUP BY 1").fetchall())
        self.seconds = self.db.execute(
            "SELECT max(s) FROM (SELECT epoch(max(time))::BIGINT - epoch(min(time))::BIGINT + 2 AS s"
            " FROM t_ledger GROUP BY piece)"
        ).fetchall()[0][0]
        self.exemplar = self.longest_lock("pricing_slow")

    def longest_lock(self, piece):
        return self.db.execute(
            "SELECT id FROM t_stalls WHERE piece = ? AND reason = 'lock' ORDER BY late_ns DESC, id LIMIT 1", [piece]
        ).fetchall()[0][0]

    def value(self, table, column, kind, part, copies):
        """The expression of a column in a part's file."""
        text = None
        if column == "recording":
            text = quoted(part["recording"])
        elif column == "time":
            text = "time + to_seconds(shift)"
        elif column in ("start_ns", "end_ns") or table == "throttling" and column in ("from_ns", "to_ns"):
            text = f"{column} + shift * 1000000000"
        elif column == "thread":
            text = f"thread + instance * {THREADS}"
        elif column in PROCESS_COLUMNS:
            text = f"{column} + instance * {PROCESSES}"
        elif column in ("id", "wait_id") and table in ("stalls", "spans"):
            text = f"{column} + {IDS} * (1 + instance * 100 + copy)"
            if part["exemplar"] and table == "stalls":
                text = f"CASE WHEN {column} = {self.exemplar} AND copy = 0 THEN {EXEMPLAR} ELSE {text} END"
        elif table in SUMS and kind == "BIGINT" and column not in NOT_SUMS:
            text = f"{column} * {copies}"
            if table == "losses" and part["lost"]:
                text += f" + {part['lost']}"
        elif table == "recordings":
            text = {
                "labels": quoted(json.dumps({"service": part["service"], "version": part["version"]})),
                "duration_ns": f"duration_ns * {copies}",
                "process_cpu_ns": f"process_cpu_ns * {copies * part['cost']}",
                "probe_ns": f"probe_ns * {copies * part['cost']}",
                "machine_id": quoted(part["machine"]),
                "boot_id": quoted(part["machine"][::-1]),
                "kernel": quoted(part["kernel"]) if part["kernel"] else None,
            }.get(column)
        return f"CAST({text} AS {kind}) AS {column}" if text else column

    def write(self, part, folder):
        copies = part["copies"]
        layout = [
            f"({quoted(piece)}, {instance}, {copy}, {part['start'] + copy * self.seconds - self.first[piece]}::BIGINT)"
            for instance, piece in enumerate(part["pieces"])
            for copy in range(copies)
        ]
        for table in TABLES:
            rows = layout if table in COPIED else layout[::copies]
            if table == "recordings":
                rows = rows[:1]
            values = ", ".join(self.value(table, c, k, part, copies) for c, k in self.columns[table])
            once = "DISTINCT ON (stack)" if table == "stacks" else ""
            query = (
                f"SELECT {once} {values} FROM (VALUES {', '.join(rows)}) AS layout (piece, instance, copy, shift)"
                f" JOIN t_{table} USING (piece)"
            )
            if order := ORDER.get(table):
                query += f" ORDER BY {order}"
            place = folder / table / f"host={part['host']}" / f"date={part['date']}" / f"hour={part['hour']:02}"
            place.mkdir(parents=True, exist_ok=True)
            file = place / f"watch-{part['recording']}-{part['start']}.parquet"
            # DuckDB's own writer makes columns REQUIRED that have no NULL: other files than wallprof's.
            found = self.db.sql(query).to_arrow_table().cast(self.schemas[table])
            pyarrow.parquet.write_table(
                found, file, compression="zstd", compression_level=3, coerce_timestamps="us", store_schema=False,
                **self.encodings[table],
            )


def main():
    options = argparse.ArgumentParser()
    options.add_argument("pieces", type=pathlib.Path)
    options.add_argument("folder", type=pathlib.Path)
    options.add_argument("--small", action="store_true")
    options.add_argument("--seed", type=int, default=42)
    given = options.parse_args()

    plan = make_plan(given.small, given.seed)
    pieces = Pieces(given.pieces, sorted({piece for part in plan for piece in part["pieces"]}))
    copies = 2 if given.small else PART_SECONDS // pieces.seconds
    os.makedirs(given.folder, exist_ok=True)
    for part in plan:
        part["copies"] = copies
        part["slot"] = pieces.seconds
        pieces.write(part, given.folder / "tables")
    (given.folder / "plan.json").write_text(json.dumps(plan, indent=1))


if __name__ == "__main__":
    main()
