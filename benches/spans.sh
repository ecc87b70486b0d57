#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What spans cost.
#
# usage: benches/spans.sh [-r ROUNDS] [-s SECONDS] [-w WALLPROF] [marks|busy|all]
#
#   marks  a pair of marks with wallprof.h, in nanoseconds: while nobody records, and beside `record -p` as fast as one
#          thread can. Then 5 million spans a second beside `record -p`: how many were marked, and how many the recording
#          has. Fails where the two differ
#   busy   how long the programs in the kernel ran for each request between two threads, one of which serves the other
#          around a poll, by the recording's own account: with busy periods of that poll (`--idle serve`) and without
#          (`--not-idle serve`), in interleaved rounds
#
# Of ROUNDS rounds of SECONDS each the median (least–most). Needs root, gcc, jq and sqlite3. Numbers are meaningful on an
# idle machine only.
set -euo pipefail

rounds=7
seconds=3
wallprof=$(dirname "$0")/../target/release/wallprof

# shellcheck source=benches/common.sh
. "$(dirname "$0")/common.sh"

usage='usage: benches/spans.sh [-r ROUNDS] [-s SECONDS] [-w WALLPROF] [marks|busy|all]'
while getopts r:s:w: option; do
    case $option in
    r) rounds=$OPTARG ;;
    s) seconds=$OPTARG ;;
    w) wallprof=$OPTARG ;;
    *) fail "$usage" ;;
    esac
done
shift $((OPTIND - 1))
[[ -x $wallprof ]] || fail "$wallprof is missing: make release"
wallprof=$(realpath "$wallprof")
scratch=$(mktemp -d /var/tmp/wallprof-spans.XXXXXX)
trap 'rm -rf "$scratch"' EXIT
gcc -O2 -pthread -o "$scratch/spans" "$(dirname "$0")/spans.c"

# Runs `spans LOAD SECONDS…` beside a recorder with the options after --. Its output is in $scratch/line, the recording
# in $scratch/spans.db.
record_load() { # LOAD [PER_SECOND] [-- OPTION…]
    local load=("$1" $((seconds + 2))) program
    shift
    while (($#)) && [[ $1 != -- ]]; do
        load+=("$1")
        shift
    done
    rm -f "$scratch"/spans.db*
    "$scratch/spans" "${load[@]}" >"$scratch/line" &
    program=$!
    start_recorder -p "$program" -o "$scratch/spans.db" "${@:2}"
    wait "$program"
    wait "$recorder" || fail "$(tail -1 "$scratch/output")"
}

# What was marked must be counted: appends the number to $scratch/counts.
check_count() {
    local marked counted
    marked=$(cut -d' ' -f1 "$scratch/line")
    counted=$("$wallprof" tail --kind order --json "$scratch/spans.db" | jq '.kinds[0].count')
    [[ $marked == "$counted" ]] || fail "$marked spans were marked, $counted are in the recording"
    echo "$marked" >>"$scratch/counts"
}

measure_marks() {
    local round
    for ((round = 0; round < rounds; round++)); do
        "$scratch/spans" marks "$seconds" | cut -d' ' -f3 >>"$scratch/without"
        record_load marks
        cut -d' ' -f3 "$scratch/line" >>"$scratch/with"
        record_load marks 5000000
        check_count
    done
    print_fact 'a pair of marks, not recorded' "$(median_and_range <"$scratch/without")" ns
    print_fact 'a pair of marks, recorded' "$(median_and_range <"$scratch/with")" ns
    print_fact 'spans at 5 million a second, all counted' "$(awk '{ sum += $1 } END { print sum }' "$scratch/counts")" spans
}

measure_busy() {
    local round name
    for ((round = 0; round < rounds; round++)); do
        for name in idle not-idle; do
            record_load poll -- "--$name" serve --min-stall 1ms -F 0
            # A request is two waits: those of the thread that serves and of the one that asks.
            sqlite3 "$scratch/spans.db" "SELECT (SELECT sum(probe_ns) FROM overhead) * 2.0 /
                (SELECT sum(count) FROM latency WHERE metric LIKE 'blocked%')" >>"$scratch/$name"
            sqlite3 "$scratch/spans.db" 'SELECT ifnull(sum(count), 0) FROM span_latency' >>"$scratch/periods.$name"
        done
    done
    print_fact 'probes of a request, with busy periods' "$(median_and_range <"$scratch/idle")" ns
    print_fact 'probes of a request, without' "$(median_and_range <"$scratch/not-idle")" ns
    print_fact 'busy periods of a recording, with' "$(median_and_range <"$scratch/periods.idle")" periods
    print_fact 'busy periods of a recording, without' "$(median_and_range <"$scratch/periods.not-idle")" periods
}

describe_machine
case ${1:-all} in
marks | busy) "measure_$1" ;;
all)
    measure_marks
    measure_busy
    ;;
*) fail "$usage" ;;
esac
