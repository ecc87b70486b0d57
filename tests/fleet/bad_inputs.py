# SPDX-License-Identifier: Apache-2.0
"""What docs/fleet.md says about bad inputs: hostile names, older tables, half a file, a clock that stepped.

    bad_inputs.py FLEET STORE

Changes copies of a few hosts' tables of the small FLEET, in STORE.
"""

import collections
import json
import pathlib
import re
import shutil
import subprocess
import sys

import duckdb
import engines
import pyarrow
import pyarrow.compute
import pyarrow.parquet

HOST = "it's \"100\"%\n\\é"
# As the tables' folder is named: docs/parquet.md.
HOST_IN_PATH = "it%27s%20%22100%22%25%0A%5C%C3%A9"
LABEL = "'; DROP TABLE stalls; -- %s \\ \n\"" + "x" * 10_000
STEPPED_BACK_S = 30


def copy_host(fleet, folder, host, place):
    """The tables of one host of the fleet, under a name as it is in a path."""
    shutil.rmtree(folder, ignore_errors=True)
    for table in sorted((fleet / "tables").iterdir()):
        shutil.copytree(table / f"host={host}", folder / table.name / f"host={place}")
    return folder


def rewrite(file, change):
    table = change(pyarrow.parquet.ParquetFile(file).read())
    pyarrow.parquet.write_table(table, file, compression="zstd", coerce_timestamps="us", store_schema=False)


def with_column(table, name, values):
    at = table.schema.get_field_index(name)
    return table.set_column(at, table.schema.field(at), pyarrow.array(values, table.schema.field(at).type))


def both(folder):
    return [engines.DuckDb(folder), engines.ClickHouse(folder)]


def hostile_names(fleet, store):
    folder = copy_host(fleet, store / "names", "pricing-1", HOST_IN_PATH)
    labels = json.dumps({"service": LABEL, "version": "'"})
    for file in (folder / "recordings").rglob("*.parquet"):
        rewrite(file, lambda table: with_column(table, "labels", [labels] * table.num_rows))
    for engine in both(folder):
        rows = engine.ask("SELECT host, runs.service AS service, version FROM watched JOIN runs ON runs.service = watched.service")[1]
        assert rows[0][0] == (HOST if engine.name == "DuckDB" else HOST_IN_PATH), rows
        assert rows[0][1] == LABEL and rows[0][2] == "'", rows
        for number, (_, sql) in engines.questions().items():
            found = engine.ask(sql)[1]
            if number in (1, 2, 8):
                assert found[0][0] == LABEL, f"question {number} in {engine.name}"
    decoded = engine.ask("SELECT DISTINCT decodeURLComponent(host) FROM stalls")[1]
    assert decoded == [(HOST,)], decoded


def older_tables(fleet, store):
    """The first files have no `file`, the last column of stalls: an older wallprof wrote them."""
    folder = copy_host(fleet, store / "older", "cache-3", "cache-3")
    files = sorted((folder / "stalls").rglob("*.parquet"))
    for file in files[:-1]:
        rewrite(file, lambda table: table.drop_columns(["file"]))
    with_file = pyarrow.parquet.ParquetFile(files[-1]).read(columns=["file"]).column("file")
    expected = len(with_file) - with_file.null_count
    assert expected, "the newest file has names of files"
    for engine in both(folder):
        rows = engine.ask("SELECT count(file), count(DISTINCT recording) FROM stalls")[1]
        assert rows == [(expected, 1)], f"{engine.name}: {rows}"
    # Without union_by_name the first file's columns count.
    source = f"read_parquet('{folder}/stalls/**/*.parquet', hive_partitioning = true)"
    try:
        duckdb.sql(f"SELECT count(file) FROM {source}")
        raise AssertionError("union_by_name is not needed any more: docs/fleet.md says so")
    except duckdb.BinderException as error:
        assert 'column "file" not found' in str(error), error


def half_a_file(fleet, store):
    folder = copy_host(fleet, store / "half", "pricing-1", "pricing-1")
    half = max((folder / "stalls").rglob("*.parquet"))
    half.write_bytes(half.read_bytes()[: half.stat().st_size // 2])
    for engine in (engines.DuckDb, lambda folder: engines.ClickHouse(folder, loaded=False)):
        try:
            engine(folder).ask("SELECT sum(late_ns) FROM stalls")
            raise AssertionError("half a file was read")
        except (duckdb.Error, RuntimeError) as error:
            assert str(half) in str(error) and "magic bytes" in str(error), error
    [command] = re.findall(r"^```sh\n(find .*?)^```", engines.DOCUMENT.read_text(), re.S | re.M)
    found = subprocess.check_output(command.replace(engines.FOLDER, str(folder)), shell=True, text=True)
    assert found.split() == [str(half)], found
    # A copy that is not complete has another name while it is written.
    half.rename(half.with_name(f".{half.name}.part"))
    for engine in both(folder):
        assert engine.ask("SELECT sum(late_ns) > 0 FROM stalls")[1] in ([(1,)], [("True",)], [("true",)], [(True,)])


def stepped_clock(fleet, store):
    """The second part's clock was set back: its first seconds are the first part's last ones."""
    folder = copy_host(fleet, store / "stepped", "orders-1", "orders-1")
    shutil.copytree(fleet / "tables/ledger/host=pricing-1", folder / "ledger/host=pricing-1")
    file = min((folder / "ledger/host=orders-1").rglob("*.parquet"))
    table = pyarrow.parquet.ParquetFile(file).read()
    last = pyarrow.compute.max(table["time"]).as_py()
    first = last.timestamp() - STEPPED_BACK_S
    kept = table.filter(pyarrow.array(moment.timestamp() > first for moment in table["time"].to_pylist()))
    pyarrow.parquet.write_table(kept, file.with_name("watch-second-part.parquet"), compression="zstd", store_schema=False)
    threads = collections.Counter()
    for moment, thread, ns in zip(*(kept[name].to_pylist() for name in ("time", "thread", "ns")), strict=True):
        threads[moment, thread] += ns
    happened_twice = {moment for (moment, _), ns in threads.items() if 2 * ns > 1_100_000_000}
    assert len(happened_twice) > 3
    [sql] = engines.blocks("of seconds that happened twice")
    for engine in both(folder):
        [row] = engine.ask(sql)[1]
        assert row[0] == "orders-1" and row[-1] == len(happened_twice), f"{engine.name}: {row}"


def main(fleet, store):
    fleet, store = pathlib.Path(fleet), pathlib.Path(store)
    for check in (hostile_names, older_tables, half_a_file, stepped_clock):
        check(fleet, store)


if __name__ == "__main__":
    main(*sys.argv[1:])
