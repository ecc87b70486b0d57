#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The cost of recording a load of contended locks, beside that of another build.
#
# usage: benches/locks.sh [-r ROUNDS] [-s SECONDS] [-w WALLPROF] -b OTHER_WALLPROF
#
# `perf bench futex lock-pi`, `stress-ng --futex` and eight clients of PostgreSQL that update one row (without fsync:
# the disk decides nothing) in interleaved rounds, SECONDS each: with nothing else, beside `record -a` of the other
# build, and beside that of this build. A line has the median of the operations a second, the least and the most, and
# what is lost against nothing. The last line of a load says what this build loses against the other.
#
# Needs root, perf (linux-perf), stress-ng and postgresql. Numbers are meaningful on an idle machine only.
set -euo pipefail

rounds=5
seconds=3
wallprof=$(dirname "$0")/../target/release/wallprof
other=

# shellcheck source=benches/common.sh
. "$(dirname "$0")/common.sh"

while getopts r:s:w:b: option; do
    case $option in
    r) rounds=$OPTARG ;;
    s) seconds=$OPTARG ;;
    w) wallprof=$OPTARG ;;
    b) other=$OPTARG ;;
    *) fail "usage: benches/locks.sh [-r ROUNDS] [-s SECONDS] [-w WALLPROF] -b OTHER_WALLPROF" ;;
    esac
done
[[ -x $other ]] || fail "-b: another build of wallprof"
[[ -x $wallprof ]] || fail "$wallprof is missing: make release"
have perf || fail "perf is missing: linux-perf"
have stress-ng || fail "stress-ng is missing"

wallprof=$(realpath "$wallprof")
other=$(realpath "$other")
scratch=$(mktemp -d /var/tmp/wallprof-locks.XXXXXX)
chmod 755 "$scratch"
trap '[[ -z ${server:-} ]] || kill "$server" 2>/dev/null || true; sleep 0.5; rm -rf "$scratch"' EXIT

# Operations a second of each thread.
lock_pi() {
    perf bench futex lock-pi -t 8 -r "$seconds" 2>&1 | awk '/^Averaged/ { print $2 }'
}

# Bogus operations a second, by wall-clock time.
futex() {
    stress-ng --futex 2 --timeout "$seconds" --metrics-brief 2>&1 |
        awk '$4 == "futex" { rate = $9 } END { print rate }'
}

# Transactions a second.
hot_row() {
    as_postgres "$postgres_bin/pgbench" -n -c 8 -j 2 -T "$seconds" -h "$scratch/data" -p 7432 -f "$scratch/hot.sql" \
        postgres 2>&1 | awk '/^tps/ { print $3 }'
}

# One measurement of LOAD beside the recorder of BUILD, which records everything: the load starts later.
measure() { # LOAD BUILD
    if [[ $2 == nothing ]]; then
        "$1"
        return
    fi
    local wallprof=$wallprof
    [[ $2 == now ]] || wallprof=$other
    start_recorder -a -o "$scratch/locks.db"
    "$1"
    interrupt "$recorder"
    rm -f "$scratch"/locks.db*
}

describe_machine
start_postgres -c fsync=off
echo 'UPDATE pgbench_branches SET bbalance = bbalance + 1 WHERE bid = 1;' >"$scratch/hot.sql"
for load in lock_pi futex hot_row; do
    for ((round = 0; round < rounds; round++)); do
        for build in nothing other now; do
            rate=$(measure "$load" "$build")
            [[ -n $rate ]] || fail "$load beside $build: no number"
            echo "$rate" >>"$scratch/$load.$build"
        done
    done
    for build in nothing other now; do
        sort -n "$scratch/$load.$build" | awk -v name="$load" -v build="$build" \
            -v most="$(median <"$scratch/$load.nothing")" '
            { rate[NR] = $1 }
            END {
                middle = rate[int((NR + 1) / 2)]
                printf "%-8s %-8s %12.0f a second (%.0f to %.0f), %5.1f %% less than nothing\n", name, build,
                    middle, rate[1], rate[NR], 100 * (1 - middle / most)
            }'
    done
    awk -v name="$load" -v other="$(median <"$scratch/$load.other")" \
        -v now="$(median <"$scratch/$load.now")" 'BEGIN {
            less = 100 * (1 - now / other)
            printf "%-8s now is %.1f %% less than the other build (5 allowed)\n", name, less
        }'
done
