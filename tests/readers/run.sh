#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Opens pictures and exports of wallprof in the usual programs: a browser, speedscope, go tool pprof,
# inferno-flamegraph, the Python package of Perfetto, that of the Firefox Profiler, DuckDB, ClickHouse (chdb), and
# validates what --json prints.
# Records the lock scenario for that.
#
#   tests/readers/run.sh
#
# Uses target/release/wallprof (WALLPROF names another) and target/scenarios. A missing program is skipped
# with a message; with WALLPROF_REQUIRE_READERS=1 it is a failure, but for inferno-flamegraph, which no package has. Pictures and exports stay in target/readers to be looked at.
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly HERE=$PWD/tests/readers
readonly STORE=$PWD/target/readers
readonly WALLPROF=${WALLPROF:-$PWD/target/release/wallprof}
readonly SCENARIOS=${SCENARIOS:-$PWD/target/scenarios}
export CHROMIUM=${CHROMIUM:-/usr/bin/chromium}

# A thread's name, as comm holds it: at most 15 characters.
readonly HOSTILE='<svg onload=x>'

say() { echo "readers: $*" >&2; }
fail() { say "$*"; exit 1; }

skip() {
    if [ "${WALLPROF_REQUIRE_READERS:-}" = 1 ]; then
        fail "required, and missing: $*"
    fi
    say "SKIPPED: $*"
}

passed() { say "ok: $* at $SECONDS s"; }

record() {
    local status=0
    "$WALLPROF" record -o "$1" -- "${@:2}" > /dev/null 2> "$STORE/record.log" || status=$?
    [ $status = 0 ] || cat "$STORE/record.log" >&2
    return $status
}

# A mark that tries to leave the page's data, with controls, and longer than a page shows.
readonly MARK='</script><img src=x onerror=ran=1>'
hostile_marks() {
    printf 'time,text\n+0.5s,"%s \u202e \x1b[31m ""quoted"" %s"\n' "$MARK" "$(printf 'x%.0s' {1..10000})"
}

# Operations of the thread that the lock scenario starts first: a hundred, each of ten milliseconds.
spans() {
    local start tid
    start=$(($(sqlite "SELECT min(start_epoch_ns) FROM stalls") + 500000000))
    tid=$(sqlite "SELECT tid FROM threads WHERE tid <> pid ORDER BY tid LIMIT 1")
    for at in {0..99}; do
        echo "$((start + at * 10000000)),$((start + (at + 1) * 10000000)),$tid,order"
    done
}

sqlite() { python3 -c 'import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute(sys.argv[2]).fetchone()[0])' "$STORE/lock.db" "$1"; }

# A program whose file, thread and functions have hostile names, which assemblers refuse and objcopy writes.
readonly SYMBOL='</script><img src=x onerror=ran=3>'
readonly PROGRAM='<img src=x onerror=ran=4>'
record_names() {
    gcc -O1 -fno-omit-frame-pointer -fno-optimize-sibling-calls -pthread -c "$HERE/hostile.c" -o "$STORE/hostile.o"
    objcopy --redefine-sym "hostile_inner=$SYMBOL" --redefine-sym "hostile_outer=$(printf 'x%.0s' {1..900})" \
        "$STORE/hostile.o" "$STORE/hostile-names.o"
    gcc -pthread "$STORE/hostile-names.o" -o "$STORE/hostile-names"
    cp "$STORE/hostile-names" "$STORE/$PROGRAM"
    record "$STORE/names.db" "$STORE/$PROGRAM" "$HOSTILE"
    "$WALLPROF" import --marks "$STORE/marks.csv" "$STORE/names.db" 2> /dev/null
}

# Recordings that lack something, or have much of it: each becomes a page.
ODD=(no-stalls no-samples one-thread many killed)
record_odd() {
    "$WALLPROF" record --min-stall 10s -o "$STORE/no-stalls.db" -- "$SCENARIOS/spin" -d 1 > /dev/null 2>&1
    "$WALLPROF" record -F 0 -o "$STORE/no-samples.db" -- "$SCENARIOS/lock" -d 1 > /dev/null 2>&1
    record "$STORE/one-thread.db" sleep 1
    record "$STORE/many.db" "$SCENARIOS/storm" forks -n 30000 -r 4000
    record_killed
    if command -v cargo > /dev/null; then
        # Of the whole workspace: with the features that its tests have, it is built already.
        cargo build -q --profile demo --workspace --example generate
        "${CARGO_TARGET_DIR:-target}/demo/examples/generate" \
            --seed 3 --bytes 200000 --threads 3 --out "$STORE/pt" > /dev/null
        "$WALLPROF" import "$STORE/pt/perf.data" --symfs / -o "$STORE/intel-pt.db" 2> /dev/null
        ODD+=(intel-pt)
    else
        skip "the page of Intel PT: there is no cargo"
    fi
}

# The recorder is killed when the first stalls are in the file.
record_killed() {
    local program recorder
    rm -f "$STORE"/killed.db*
    "$SCENARIOS/lock" -d 60 > /dev/null &
    program=$!
    "$WALLPROF" record -p $program -o "$STORE/killed.db" > /dev/null 2>&1 &
    recorder=$!
    until [ "$(python3 -c 'import sqlite3, sys
print(sqlite3.connect(sys.argv[1]).execute("SELECT count(*) FROM stalls").fetchone()[0])' \
        "$STORE/killed.db" 2> /dev/null || echo 0)" -gt 0 ]; do
        kill -0 $recorder || fail "the recorder ended before it was killed"
        sleep 0.2
    done
    kill -9 $recorder $program
    wait $recorder $program 2> /dev/null || true
}

# All recordings; 3 where this machine may not record. Every other tick of lock.db wants the lock: beside the gate's
# other steps a thread handles few ticks, and the lock has to be a finding all the same.
record_all() {
    record "$STORE/lock.db" "$SCENARIOS/lock" -d 2 -n 2 || return
    spans > "$STORE/spans.csv"
    "$WALLPROF" import --spans "$STORE/spans.csv" "$STORE/lock.db" 2> /dev/null
    record "$STORE/held.db" "$SCENARIOS/lock" -d 4 -n 10
    record "$STORE/doubled.db" "$SCENARIOS/lock" -d 4 -n 10 -k 2
    cp "$SCENARIOS/spin" "$STORE/$HOSTILE"
    record "$STORE/hostile.db" "$STORE/$HOSTILE" -d 1
    hostile_marks > "$STORE/marks.csv"
    "$WALLPROF" import --marks "$STORE/marks.csv" "$STORE/hostile.db" 2> /dev/null
    record_names
    record_odd
}

export_all() {
    "$WALLPROF" flame "$STORE/lock.db" -o "$STORE/lock.svg"
    "$WALLPROF" flame "$STORE/hostile.db" -o "$STORE/hostile.svg"
    "$WALLPROF" diff "$STORE/held.db" "$STORE/doubled.db" -o "$STORE/diff.svg" --json > "$STORE/diff.json"
    "$WALLPROF" diff "$STORE/hostile.db" "$STORE/hostile.db" -o "$STORE/hostile-diff.svg" > /dev/null
    "$WALLPROF" export "$STORE/lock.db" --to folded -o "$STORE/lock.folded"
    "$WALLPROF" export "$STORE/lock.db" --to speedscope -o "$STORE/lock.speedscope.json"
    "$WALLPROF" export "$STORE/lock.db" --to pprof -o "$STORE/lock.pb.gz"
    "$WALLPROF" export "$STORE/lock.db" --to perfetto -o "$STORE/lock.perfetto-trace"
    "$WALLPROF" export "$STORE/lock.db" --to firefox -o "$STORE/lock.firefox.json"
    rm -rf "$STORE/parquet"
    "$WALLPROF" export "$STORE/lock.db" --to parquet -o "$STORE/parquet"
    "$WALLPROF" stalls "$STORE/lock.db" --json --all > "$STORE/lock.stalls.json"
    "$WALLPROF" report "$STORE/lock.db" --json > "$STORE/lock.report.json"
    "$WALLPROF" tail "$STORE/lock.db" --json > "$STORE/lock.tail.json"
    "$WALLPROF" report "$STORE/lock.db" -o "$STORE/lock.html"
    "$WALLPROF" report "$STORE/names.db" -o "$STORE/names.html"
    for odd in "${ODD[@]}"; do
        "$WALLPROF" report "$STORE/$odd.db" -o "$STORE/$odd.html"
        "$WALLPROF" report "$STORE/$odd.db" --json > "$STORE/$odd.report.json"
    done
    "$WALLPROF" flame "$STORE/lock.db" --from "$(whole_second)" --to "$(($(whole_second) + 1))" -o "$STORE/lock.second.folded"
}

# The first second of the wall clock that the recording has as a whole.
whole_second() {
    local start
    start=$(grep -oE '"start_ns":[0-9]+' "$STORE/lock.report.json" | head -1)
    start=${start#*:}
    echo $((start / 1000000000 + 1))
}

# The facts on which all formats must agree.
wall_ns() { awk '{ sum += $NF } END { printf "%.0f\n", sum }' "$STORE/lock.folded"; }

check_pprof() {
    command -v go > /dev/null || { skip "go tool pprof: there is no go"; return; }
    local top="$STORE/pprof.txt"
    go tool pprof -unit=ns -nodefraction=0 -top "$STORE/lock.pb.gz" > "$top" 2>&1 || fail "go tool pprof: $(cat "$top")"
    grep -q "Total samples = $(wall_ns)ns" "$top" || fail "go tool pprof: not the wall time $(wall_ns): $(head -6 "$top")"
    grep -q take_registry_lock "$top" || fail "go tool pprof: take_registry_lock is missing"
    go tool pprof -unit=ns -tags "$STORE/lock.pb.gz" 2> /dev/null | grep -q 'blocked:lock' || fail "go tool pprof: no state"
    passed "go tool pprof"
}

check_inferno() {
    if ! command -v inferno-flamegraph > /dev/null; then
        say "SKIPPED: inferno-flamegraph is not installed (cargo install inferno)"
        return
    fi
    inferno-flamegraph "$STORE/lock.folded" > "$STORE/inferno.svg"
    grep -q "total_samples=\"$(wall_ns)\"" "$STORE/inferno.svg" || fail "inferno-flamegraph: not the wall time $(wall_ns)"
    passed "inferno-flamegraph"
}

# The packages of requirements.txt, kept in target/readers.
python_packages() {
    if ! cmp -s "$HERE/requirements.txt" "$STORE/python/.from"; then
        python3 -m pip install --quiet --no-deps --target "$STORE/python" -r "$HERE/requirements.txt" 2> /dev/null || return
        cp "$HERE/requirements.txt" "$STORE/python/.from"
    fi
}

# Its trace processor is a program that the package downloads when it runs: only its definitions are used.
check_perfetto() {
    python3 -m pip --version > /dev/null 2>&1 || { skip "perfetto: there is no pip (apt-get install python3-pip)"; return; }
    python_packages || { skip "perfetto: pip cannot install it"; return; }
    PYTHONPATH="$STORE/python" python3 "$HERE/read_perfetto.py" "$STORE/lock.perfetto-trace" "$STORE/lock.stalls.json" \
        "$STORE/lock.report.json" || fail "perfetto"
    passed "perfetto"
}

check_parquet() {
    python3 -m pip --version > /dev/null 2>&1 || { skip "parquet: there is no pip (apt-get install python3-pip)"; return; }
    python_packages || { skip "parquet: pip cannot install duckdb and chdb"; return; }
    PYTHONPATH="$STORE/python" python3 "$HERE/read_parquet.py" "$STORE/lock.db" "$STORE/parquet" || fail "parquet"
    passed "parquet in DuckDB and ClickHouse"
}

check_schema() {
    python3 -m pip --version > /dev/null 2>&1 || { skip "the schema: there is no pip (apt-get install python3-pip)"; return; }
    command -v jq > /dev/null || { skip "the schema: there is no jq (apt-get install jq)"; return; }
    python_packages || { skip "the schema: pip cannot install jsonschema"; return; }
    PYTHONPATH="$STORE/python" python3 "$HERE/read_schema.py" "$WALLPROF" "$STORE" docs/assistants.md || fail "the schema"
    passed "the schema of --json"
}

# The packages of package-lock.json, kept in target/readers.
npm_packages() {
    if ! cmp -s "$HERE/package-lock.json" "$STORE/node_modules/.from"; then
        cp "$HERE"/package*.json "$STORE"
        npm ci --prefix "$STORE" --silent --no-audit --no-fund > /dev/null 2>&1 || return
        cp "$HERE/package-lock.json" "$STORE/node_modules/.from"
    fi
    cp "$HERE"/*.mjs "$STORE"
}

# The viewer's own code, without a browser: the package says Node 24, and works with 20. It keeps its sessions in HOME.
check_firefox() {
    command -v npm > /dev/null || { skip "the Firefox Profiler: there is no npm"; return; }
    npm_packages || { skip "the Firefox Profiler: npm cannot install its package"; return; }
    local cli="$STORE/node_modules/@firefox-devtools/profiler-cli/dist/profiler-cli.js"
    HOME=$STORE python3 "$HERE/read_firefox.py" "$cli" "$STORE/lock.firefox.json" "$STORE/lock.stalls.json" \
        "$STORE/lock.report.json" || fail "the Firefox Profiler"
    passed "the Firefox Profiler"
}

# The modules of the page that need no browser.
check_page_modules() {
    command -v node > /dev/null || { skip "the modules of the page: there is no node (apt-get install nodejs)"; return; }
    local log="$STORE/page-modules.log"
    node --test crates/page/web/tests > "$log" 2>&1 || fail "the modules of the page: $(grep -A9 '^not ok' "$log")"
    passed "the modules of the page"
}

check_in_browser() {
    [ -x "$CHROMIUM" ] || { skip "the browser: there is no $CHROMIUM (apt-get install chromium)"; return; }
    command -v npm > /dev/null || { skip "the browser: there is no npm"; return; }
    npm_packages || { skip "the browser: npm cannot install its packages"; return; }
    node "$STORE/flame.mjs" "$STORE/lock.svg" || fail "the flame graph in a browser"
    passed "the flame graph in a browser: hover, zoom, search"
    node "$STORE/diff.mjs" "$STORE/diff.svg" "$STORE/diff.json" || fail "the diff's picture in a browser"
    passed "the diff's picture in a browser: zoom, search"
    node "$STORE/hostile.mjs" flame "$STORE/hostile.svg" "$HOSTILE" || fail "hostile names in a browser"
    node "$STORE/hostile.mjs" diff "$STORE/hostile-diff.svg" "$HOSTILE" || fail "hostile names in the diff's picture"
    passed "hostile names in a browser"
    node "$STORE/page.mjs" "$STORE/lock.html" "$STORE/lock.report.json" "$STORE/lock.stalls.json" \
        "$STORE/lock.tail.json" "$STORE/lock.second.folded" "$(whole_second)" "$STORE/page.png" || fail "the page in a browser"
    passed "the page in a browser: numbers, drag, zoom, filter, search, link, spans"
    node "$STORE/hostile-page.mjs" "$STORE/names.html" "$HOSTILE" "$MARK" "$SYMBOL" "$PROGRAM" \
        || fail "hostile names on the page"
    passed "hostile names on the page"
    node "$STORE/odd-pages.mjs" "$STORE" "${ODD[@]}" || fail "pages of odd recordings"
    passed "pages of odd recordings: ${ODD[*]}"
    check_watch
    node "$STORE/speedscope.mjs" "$STORE/lock.speedscope.json" "$STORE/speedscope.png" || fail "speedscope"
    passed "speedscope"
    take_picture
}

# The pages of a watcher, once its metrics have an exemplar of the lock.
check_watch() {
    local program watcher server status=0 end=$((SECONDS + 120))
    "$SCENARIOS/lock" -d 600 -n 2 > /dev/null &
    program=$!
    rm -f "$STORE"/flight.db* "$STORE/watch.log"
    "$WALLPROF" watch -p $program --listen 127.0.0.1:0 --socket "$STORE/ctl.sock" --output "$STORE/flight.db" \
        --severity warning=1ms,critical=20ms > /dev/null 2> "$STORE/watch.log" &
    watcher=$!
    until server=$(grep -oE 'http://[0-9.]+:[0-9]+' "$STORE/watch.log" | head -1) && [ -n "$server" ] \
        && python3 -c 'import sys, urllib.request
lines = urllib.request.urlopen(sys.argv[1]).read().decode().splitlines()
sys.exit(not any("stall_id" in line and "reason=\"lock\"" in line for line in lines))' "$server/metrics" 2> /dev/null; do
        if ((SECONDS >= end)) || ! kill -0 $watcher; then
            kill $program $watcher
            fail "the watcher has no exemplar: $(< "$STORE/watch.log")"
        fi
        sleep 0.2
    done
    node "$STORE/watch.mjs" "$server" "$STORE/watch.png" "$STORE/watch-report.png" || status=$?
    kill $program $watcher
    wait $program $watcher 2> /dev/null || true
    [ $status = 0 ] || fail "the watcher's pages in a browser"
    passed "the watcher's pages in a browser: findings, the report, a stall of an exemplar"
}

# playwright takes none of a document that is not HTML.
take_picture() {
    "$CHROMIUM" --headless --no-sandbox --window-size=1400,800 --screenshot="$STORE/lock.png" "file://$STORE/lock.svg" \
        > /dev/null 2>&1 || say "no picture: the browser took none"
}

mkdir -p "$STORE"
[ -x "$WALLPROF" ] || fail "there is no $WALLPROF: make release"
[ -x "$SCENARIOS/lock" ] || fail "there is no $SCENARIOS/lock: make scenarios"
status=0
record_all || status=$?
case $status in
    0) ;;
    3) skip "everything: this machine cannot record"; exit 0 ;;
    *) fail "the scenarios could not be recorded" ;;
esac
say "recorded at $SECONDS s"
export_all
say "exported at $SECONDS s"
check_pprof
check_inferno
check_perfetto
check_firefox
check_page_modules
check_parquet
check_schema
check_in_browser
