# SPDX-License-Identifier: Apache-2.0
"""Runs the queries of contrib/grafana-clickhouse.json in ClickHouse, with the macros of Grafana's data source replaced.

    dashboard.py FLEET
"""

import json
import pathlib
import re
import sys

import engines

DASHBOARD = pathlib.Path(__file__).parents[2] / "contrib/grafana-clickhouse.json"
INTERVAL_S = 300


def replaced(sql, first, last, chosen):
    """As the data source does. `chosen`: variable → values, or None for all."""

    def condition(match):
        return match[1] if chosen.get(match[2]) else "1=1"

    # A condition has one pair of parentheses in it.
    sql = re.sub(r"\$__conditionalAll\(((?:[^()]|\([^()]*\))*), \$(\w+)\)", condition, sql)
    sql = re.sub(r"\$__timeFilter\((\S+?)\)", rf"(\1 >= toDateTime({first}) AND \1 <= toDateTime({last}))", sql)
    sql = re.sub(
        r"\$__timeInterval\((\S+?)\)", rf"toStartOfInterval(toDateTime(\1), INTERVAL {INTERVAL_S} second)", sql
    )
    sql = sql.replace("$__interval_s", str(INTERVAL_S))
    for name, values in chosen.items():
        quoted = ",".join("'" + value.replace("'", "''") + "'" for value in values or [])
        sql = sql.replace(f"${{{name}:singlequote}}", quoted)
    assert "$" not in sql, f"an unknown macro: {sql}"
    return sql


def queries():
    dashboard = json.loads(DASHBOARD.read_text())
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield f"variable {variable['name']}", variable["query"], []
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            columns = ["time"] if panel["type"] == "timeseries" else []
            assert target["format"] == (0 if columns else 1)
            yield panel["title"], target["rawSql"], columns


def check(fleet, engine):
    plan = json.loads((fleet / "plan.json").read_text())
    first, last = min(part["start"] for part in plan), max(part["start"] for part in plan) + 3600
    answers = {}
    for chosen in (
        {"service": None, "host": None},
        {"service": ["pricing", "accounts"], "host": ["pricing-1", "accounts-2"]},
        {"service": ["it's \\ 100%"], "host": None},
    ):
        for title, sql, columns in queries():
            found, rows = engine.ask(replaced(sql, first, last, chosen))
            assert found[: len(columns)] == columns, f"{title}: the columns {found}"
            # A stat is one row of a NULL or a 0 where there is nothing.
            wanted = (chosen["service"] or [""])[0] != "it's \\ 100%" or title == "variable service"
            assert bool(rows) == wanted or len(rows) == 1, f"{title} with {chosen}: {len(rows)} rows"
            answers[title, chosen["service"] is None] = rows
    compare(plan, answers)


def compare(plan, answers):
    """What the panels show on the planted fleet."""
    hosts = len({part["host"] for part in plan})
    assert answers["Hosts watched", True][0][0] == hosts
    assert len(answers["variable host", True]) == hosts
    worst = answers["Why threads are late", True]
    assert "row lock" in [row[3] for row in worst] and "housekeeper" in [row[4] for row in worst], worst
    assert {row[0] for row in answers["Findings", True]} >= {"lock-wait", "cpu-throttling", "wake-chain"}
    spans = {row[1] for row in answers["Spans, P99.9 by kind and version", True]}
    assert {"request 2.3", "request 2.4"} <= spans, spans


def main(fleet):
    fleet = pathlib.Path(fleet)
    check(fleet, engines.ClickHouse(fleet / "tables"))


if __name__ == "__main__":
    main(*sys.argv[1:])
