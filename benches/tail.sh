#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What wallprof does to the latency tail of a server that runs on while it comes and goes.
#
# usage: benches/tail.sh [-b BLOCKS] [-s SECONDS] [-w WALLPROF] [-t TOOL]… [redis|postgres|loop]
#
# One server and one client run for the whole time. A block has one window of SECONDS under each condition, in random
# order: `nothing`, `again` (nothing once more), and each TOOL:
#
#   attached   `watch -a`, disarmed: its probes are attached and return at once
#   watch      `watch -a`
#   record     `record -a`
#   unsampled  `record -a -F 0`
#   idle       `record -a` as a job of SCHED_IDLE (chrt -i)
#
# A window starts half a second after the tool is ready. Printed are ratios to `nothing` of the same block with their
# intervals; the interval of `again` is what the run resolves. For recordings: the share of the waiting for a CPU in
# which wallprof had it.
#
# Needs root, a C compiler, python3, jq; redis-server, or postgresql.
set -euo pipefail

blocks=20
seconds=4
tools=()
here=$(dirname "$0")
wallprof=$here/../target/release/wallprof

# shellcheck source=benches/common.sh
. "$here/common.sh"

set_up_redis() {
    needs redis-server 'apt-get install redis-server' || fail "$(<"$scratch/why")"
    redis-server --port 7399 --save '' --daemonize no >"$scratch/server.log" 2>&1 &
    server=$!
    wait_until "$server" accepts 7399 || fail 'redis-server did not start'
    load=("$scratch/load" redis 7399 20)
}

# On the last CPU.
set_up_loop() {
    load=("$scratch/load" loop $(($(nproc) - 1)))
}

accepts() { # PID PORT
    (exec 3<>"/dev/tcp/127.0.0.1/$2") 2>/dev/null
}

set_up_postgres() {
    start_postgres -c fsync=on
    load=("$scratch/load" postgres "$scratch/data/.s.PGSQL.7432" 8)
}

start_condition() { # NAME
    local watch=("$wallprof" watch -a --listen 127.0.0.1:0 --socket "$scratch/ctl.sock" -o "$scratch/flight.db")
    tool=
    case $1 in
    nothing | again) ;;
    watch) start_tool 'has_said ^wallprof:.armed' "${watch[@]}" ;;
    attached)
        start_tool 'has_said ^wallprof:.armed' "${watch[@]}"
        "$wallprof" ctl disarm --socket "$scratch/ctl.sock" >/dev/null
        ;;
    record) start_tool 'has_said recording' "$wallprof" record -a -o "$scratch/one.db" ;;
    unsampled) start_tool 'has_said recording' "$wallprof" record -a -F 0 -o "$scratch/one.db" ;;
    idle) start_tool 'has_said recording' chrt -i 0 "$wallprof" record -a -o "$scratch/one.db" ;;
    *) fail "there is no tool $1: give attached, watch, record, unsampled or idle" ;;
    esac || fail "$(<"$scratch/why")"
}

stop_condition() { # NAME
    [[ -n $tool ]] || return 0
    interrupt "$tool"
    if [[ -e $scratch/one.db ]]; then
        "$wallprof" report "$scratch/one.db" --json |
            jq -r --arg name "$1" '"\($name) \(.overhead.behind_ns // 0) \([.threads[].run_queue_ns] | add // 0)"' >>"$scratch/behind"
    fi
    rm -f "$scratch"/one.db* "$scratch"/flight.db*
}

measure_window() { # BLOCK CONDITION
    local line
    start_condition "$2"
    sleep 0.5
    echo start >&"${orders[1]}"
    read -r -u "${orders[0]}" line
    sleep "$seconds"
    echo end >&"${orders[1]}"
    read -r -u "${orders[0]}" line
    stop_condition "$2"
    echo "$1 $2 $line" >>"$scratch/windows"
}

measure() { # WORKLOAD
    local block condition
    "set_up_$1"
    coproc orders { exec "${load[@]}"; }
    sleep 1
    : >"$scratch/behind"
    for ((block = 0; block < blocks; block++)); do
        while read -r condition; do
            measure_window "$block" "$condition"
        done < <(printf '%s\n' nothing again "${tools[@]}" | shuf)
    done
    [[ -z ${server:-} ]] || kill "$server"
    echo "$1, windows of $seconds s, load at the end $(cut -d' ' -f1-3 /proc/loadavg)"
    sort -s -n -k1,1 "$scratch/windows" | python3 "$here/tail/paired.py"
    awk '{ behind[$1] += $2; waited[$1] += $3 }
        END { for (name in behind) printf "%s: wallprof had the CPU in %.2f %% of the waiting for one\n", name, 100 * behind[name] / waited[name] }' \
        "$scratch/behind"
}

# --- main ---

while getopts 'b:s:w:t:' option; do
    case $option in
    b) blocks=$OPTARG ;;
    s) seconds=$OPTARG ;;
    w) wallprof=$OPTARG ;;
    t) tools+=("$OPTARG") ;;
    *) fail 'usage: tail.sh [-b BLOCKS] [-s SECONDS] [-w WALLPROF] [-t TOOL]… [redis|postgres|loop]' ;;
    esac
done
shift $((OPTIND - 1))
[[ ${#tools[@]} -gt 0 ]] || tools=(attached watch record)
[[ -x $wallprof ]] || fail "$wallprof is not there: make release, or give -w"
wallprof=$(realpath "$wallprof")
scratch=$(mktemp -d /var/tmp/wallprof-tail.XXXXXX)
chmod 755 "$scratch"
trap '[[ -z ${server:-} ]] || kill "$server" 2>/dev/null || true; sleep 0.5; rm -rf "$scratch"' EXIT
cc -O2 -Wall -Wextra -Werror -o "$scratch/load" "$here/tail/load.c"
describe_machine
case ${1:-redis} in
redis | postgres | loop) measure "${1:-redis}" ;;
*) fail "there is no workload $1: give redis, postgres or loop" ;;
esac
