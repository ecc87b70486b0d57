#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Asks a generated fleet the questions of docs/fleet.md, in DuckDB and in ClickHouse, and checks the answers.
#
#   tests/fleet/run.sh [full]
#
#   full   100 host-hours from recordings of 45 s, in place of a few minutes from recordings of 5 s. Also puts the
#          answers into docs/fleet.md and times the questions: half an hour, 10 GB of memory and 3 GB of disk
#
# As root; uses target/release/wallprof (WALLPROF names another) and target/scenarios. A missing program is skipped
# with a message; with WALLPROF_REQUIRE_READERS=1 it is a failure. Recordings and tables stay in target/fleet.
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly HERE=$PWD/tests/fleet
WALLPROF=$(realpath -m "${WALLPROF:-target/release/wallprof}")
export WALLPROF
readonly SIZE=${1:-small}
readonly STORE=$PWD/target/fleet/$SIZE
readonly PYTHON=$PWD/target/fleet/python

say() { echo "fleet: $*" >&2; }
fail() { say "$*"; exit 1; }

skip() {
    if [ "${WALLPROF_REQUIRE_READERS:-}" = 1 ]; then
        fail "required, and missing: $*"
    fi
    say "SKIPPED: $*"
    exit 0
}

# The packages of both requirements.txt, kept in target/fleet.
python_packages() {
    local wanted=("$PWD/tests/readers/requirements.txt" "$HERE/requirements.txt")
    cat "${wanted[@]}" | cmp -s - "$PYTHON/.from" && return
    python3 -m pip install --quiet --no-deps --target "$PYTHON" -r "${wanted[0]}" -r "${wanted[1]}" 2> /dev/null || return
    cat "${wanted[@]}" > "$PYTHON/.from"
}

[ -x "$WALLPROF" ] || fail "there is no $WALLPROF: make release"
[ -x target/scenarios/lock ] || fail "there is no target/scenarios/lock: make scenarios"
command -v redis-server > /dev/null || skip "redis-server (apt-get install redis-server)"
compgen -G '/usr/lib/postgresql/*/bin/initdb' > /dev/null || skip "postgresql (apt-get install postgresql)"
python3 -m pip --version > /dev/null 2>&1 || skip "there is no pip (apt-get install python3-pip)"
mkdir -p "$STORE"
python_packages || skip "pip cannot install duckdb, chdb and pyarrow"
export PYTHONPATH=$PYTHON PYTHONDONTWRITEBYTECODE=1

status=0
if [ "$SIZE" = full ]; then
    "$HERE/record.sh" "$STORE/pieces" -d 45 -j 3 || status=$?
else
    "$HERE/record.sh" "$STORE/pieces" -d 5 -j 3 || status=$?
fi
case $status in
0) ;;
3) skip "everything: this machine cannot record" ;;
*) fail "the pieces could not be recorded" ;;
esac

rm -rf "$STORE/tables"
if [ "$SIZE" = full ]; then
    python3 "$HERE/generate.py" "$STORE/pieces" "$STORE"
    python3 "$HERE/check.py" "$STORE/pieces" "$STORE" --wallprof "$WALLPROF" --write || fail "the questions"
    rm -rf "$STORE/clickhouse"
    python3 "$HERE/speed.py" "$STORE" "$STORE/clickhouse" || fail "the questions' speed"
else
    python3 "$HERE/generate.py" "$STORE/pieces" "$STORE" --small
    python3 "$HERE/check.py" "$STORE/pieces" "$STORE" --wallprof "$WALLPROF" || fail "the questions"
fi
say "ok: twenty questions in DuckDB and ClickHouse; sums as in the recordings"
python3 "$HERE/dashboard.py" "$STORE" || fail "the dashboard"
say "ok: the queries of contrib/grafana-clickhouse.json"
if [ "$SIZE" != full ]; then
    python3 "$HERE/bad_inputs.py" "$STORE" "$STORE/bad" || fail "bad inputs"
    say "ok: hostile names, older tables, half a file, a clock that steps"
fi
