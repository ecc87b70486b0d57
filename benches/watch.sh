#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The permanent cost of `wallprof watch`: the pause while it attaches, and its own CPU time and memory. Its cost for the
# latency tail of other programs: benches/tail.sh.
#
# usage: benches/watch.sh [-r ROUNDS] [-s SECONDS] [-c CPU] [-w WALLPROF] [attach|idle|all]
#
#   attach  the longest delay of a running cyclictest of priority 80, without anything and while a watcher attaches,
#           interleaved
#   idle    CPU time of `watch -a` for a minute in which nothing else is done, from half a minute after its start on, and its
#           memory
#
# Needs root; rt-tests. Numbers are meaningful on an idle machine only.
set -euo pipefail

rounds=7
seconds=5
cpu=$(($(nproc) - 1))
wallprof=$(dirname "$0")/../target/release/wallprof

# shellcheck source=benches/common.sh
. "$(dirname "$0")/common.sh"

start_watcher() {
    start_tool 'has_said ^wallprof:.armed' "$wallprof" watch -a --listen 127.0.0.1:0 --socket "$scratch/ctl.sock" -o "$scratch/flight.db" ||
        fail "$(<"$scratch/why")"
}

stop_watcher() {
    interrupt "$tool"
    rm -f "$scratch"/flight.db*
}

# The middle one of a column of FILE, with the least and the most.
spread() { # FILE NAME
    awk -v name="$2" '$1 == name { print $2 }' "$1" | sort -n | awk '
        { value[NR] = $1 } END { printf "%.4g (%.4g–%.4g)", value[int((NR + 1) / 2)], value[1], value[NR] }'
}

# Delays of a thread that wakes up every 200 µs, in µs: average and longest.
delays() { # NAME
    sed -n 's/.*Avg: *\([0-9]*\) Max: *\([0-9]*\).*/avg \1\nmax \2/p' "$scratch/cyclictest" >>"$scratch/$1"
}

run_cyclictest() {
    cyclictest --quiet --mlockall --priority=80 --interval=200 --duration="$seconds" --affinity="$cpu" --threads=1 \
        >"$scratch/cyclictest" 2>&1
}

measure_attach() {
    local round timer name
    have cyclictest || fail 'cyclictest is not installed: apt-get install rt-tests'
    : >"$scratch/without"
    : >"$scratch/with"
    for ((round = 0; round < rounds; round++)); do
        run_cyclictest
        delays without
        run_cyclictest &
        timer=$!
        sleep 1
        start_watcher
        sleep 1
        stop_watcher
        wait "$timer"
        delays with
    done
    printf '%-40s %26s %26s\n' 'median (least–most)' without 'while a watcher attaches'
    for name in avg max; do
        printf '%-40s %26s %26s µs\n' "cyclictest, $name" "$(spread "$scratch/without" $name)" "$(spread "$scratch/with" $name)"
    done
}

# Time on a CPU of all threads of a process so far, in ns.
on_cpu_ns() { # PID
    awk '{ sum += $1 } END { printf "%d", sum }' "/proc/$1"/task/*/schedstat
}

measure_idle() {
    local before probes
    start_watcher
    # The steady state: unwind tables have been built, and the flush interval is long.
    sleep 30
    before=$(on_cpu_ns "$tool")
    sleep 60
    print_fact 'user space of watch -a, idle machine' \
        "$(awk -v ns=$(($(on_cpu_ns "$tool") - before)) 'BEGIN { printf "%.3f", ns / 60e7 }')" '% of one CPU'
    probes=$("$wallprof" ctl status --socket "$scratch/ctl.sock" | sed -n 's/^cost: //p')
    print_fact 'with its probes, as it says itself' "${probes%% *}" '% of one CPU'
    print_fact 'its anonymous memory' "$(anonymous_kib "$tool")" KiB
    stop_watcher
}

# --- main ---

enter_own_mounts "$@"
while getopts 'r:s:c:w:' option; do
    case $option in
    r) rounds=$OPTARG ;;
    s) seconds=$OPTARG ;;
    c) cpu=$OPTARG ;;
    w) wallprof=$OPTARG ;;
    *) fail 'usage: watch.sh [-r ROUNDS] [-s SECONDS] [-c CPU] [-w WALLPROF] [attach|idle|all]' ;;
    esac
done
shift $((OPTIND - 1))
[[ -x $wallprof ]] || fail "$wallprof is not there: make release, or give -w"
wallprof=$(realpath "$wallprof")
scratch=$(mktemp -d /var/tmp/wallprof-watch.XXXXXX)
trap 'rm -rf "$scratch"' EXIT
describe_machine
case ${1:-all} in
attach | idle) "measure_$1" ;;
all)
    measure_idle
    measure_attach
    ;;
*) fail "there is no part $1: give attach, idle or all" ;;
esac
