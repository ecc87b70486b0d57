#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# How many user stacks of real software are complete: records the whole machine while PostgreSQL under
# pgbench, Redis under redis-benchmark, a C++, a Rust and a Go program, python3, node and java run together.
#
#   tests/complete/run.sh [SECONDS]
#
# Uses target/release/wallprof (WALLPROF names another), as root. A missing program is skipped with a message.
# Fails below 99.5 % of the stacks without run-time code (LEAST names another share). The recording stays in
# target/complete.
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly HERE=$PWD/tests/complete
readonly PROGRAMS=$PWD/crates/unwind/tests/live_stops
readonly STORE=$PWD/target/complete
readonly WALLPROF=${WALLPROF:-$PWD/target/release/wallprof}
readonly SECONDS_RECORDED=${1:-30}
readonly LEAST=${LEAST:-99.5}

# Where the servers' own users may go.
FOLDER=$(mktemp -d /tmp/wallprof-complete-XXXXXX)
chmod 711 "$FOLDER"
readonly FOLDER
pids=()

say() { echo "complete: $*" >&2; }

# shellcheck disable=SC2329 # called by the trap
clean_up() {
    local pid
    for pid in "${pids[@]}"; do
        kill "$pid" 2> /dev/null || true
    done
    if [ -d "$FOLDER/postgres" ]; then
        as_postgres "$postgres/pg_ctl" -D "$FOLDER/postgres" -m immediate stop > /dev/null 2>&1 || true
    fi
    wait
    # The files of node and java for profilers.
    for pid in "${pids[@]}"; do
        rm -f "/tmp/perf-$pid.map"
    done
    rm -rf "$FOLDER"
}
trap clean_up EXIT

# Starts a program that runs until the end.
start() {
    "$@" > /dev/null 2>&1 < /dev/null &
    pids+=($!)
}

installed() {
    command -v "$1" > /dev/null && return 0
    say "left out: $1 is not installed"
    return 1
}

# --- PostgreSQL ---

postgres=$(find /usr/lib/postgresql -maxdepth 2 -name bin 2> /dev/null | sort -V | tail -1)

# In its own folder: the caller's may be closed to it.
as_postgres() { (cd "$FOLDER" && setpriv --reuid=postgres --regid=postgres --init-groups "$@"); }

start_postgres() {
    if [ -z "$postgres" ] || ! id postgres > /dev/null 2>&1; then
        say "left out: postgresql is not installed"
        return
    fi
    install -d -o postgres -g postgres "$FOLDER/postgres"
    as_postgres "$postgres/initdb" -D "$FOLDER/postgres" -A trust > "$FOLDER/initdb.log"
    as_postgres "$postgres/pg_ctl" -D "$FOLDER/postgres" -w -l "$FOLDER/postgres/log" \
        -o "-k $FOLDER/postgres -c listen_addresses=" start > /dev/null
    as_postgres "$postgres/pgbench" -h "$FOLDER/postgres" -i -s 5 postgres > /dev/null 2>&1
    start as_postgres "$postgres/pgbench" -h "$FOLDER/postgres" -c 4 -T 3600 --rate 400 postgres
}

# --- Redis ---

start_redis() {
    installed redis-server && installed redis-benchmark || return 0
    start redis-server --port 0 --unixsocket "$FOLDER/redis" --save '' --appendonly no --dir "$FOLDER"
    until redis-cli -s "$FOLDER/redis" ping > /dev/null 2>&1; do
        kill -0 "${pids[-1]}"
    done
    start redis-benchmark -s "$FOLDER/redis" -l -c 4 -q -t set,get,lpush,lrange_100
}

# --- programs ---

start_compiled() {
    if installed g++; then
        g++ -O2 -o "$FOLDER/busy-cxx" "$PROGRAMS/program.cc"
        start "$FOLDER/busy-cxx"
    fi
    if installed rustc; then
        rustc --edition 2024 --crate-name busy -O -o "$FOLDER/busy-rust" "$PROGRAMS/program.rs"
        start "$FOLDER/busy-rust"
    fi
    if installed go; then
        go build -o "$FOLDER/busy-go" "$PROGRAMS/program.go"
        start "$FOLDER/busy-go"
    fi
}

start_interpreted() {
    # Debian's, not one of the user's.
    if installed /usr/bin/python3; then
        start /usr/bin/python3 "$HERE/busy.py"
    fi
    if installed node; then
        # Node also leaves a log in its working folder.
        start env -C "$FOLDER" node --perf-basic-prof "$HERE/busy.js"
    fi
    if installed java; then
        start java -XX:+PreserveFramePointer -XX:+UnlockDiagnosticVMOptions -XX:+DumpPerfMapAtExit "$HERE/Busy.java"
    fi
}

# --- the recording ---

mkdir -p "$STORE"
start_postgres
start_redis
start_compiled
start_interpreted
# Until java has compiled itself and its program, and everything is loaded.
sleep 5
"$WALLPROF" record -a -d "$SECONDS_RECORDED" -o "$STORE/complete.db"
/usr/bin/python3 "$HERE/summary.py" "$STORE/complete.db" "$LEAST"
