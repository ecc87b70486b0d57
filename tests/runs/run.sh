#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Whether `wallprof runs --compare` separates a lock that is held longer from the noise between equal runs.
#
#   tests/runs/run.sh [-n TRIALS] [-s SECONDS] [-k TIMES]
#
#   -n   trials of each kind (default 10)
#   -s   the length of a recording (default 4)
#   -k   so many times as long is the lock held in the slow runs (default 1.2)
#
# A trial has five recordings of the scenario `lock` as it is, five of the same again, and five with the longer hold
# time, in turn, so that a drift of the machine is in all of them. Ten trials of 4 s take ten minutes. As root, on a
# machine without other load; uses target/release/wallprof (WALLPROF names another) and target/scenarios. Fails unless
# the longer hold time is found in nine of ten trials, and equal runs have no difference in nine of ten.
set -euo pipefail
cd "$(dirname "$0")/../.."

WALLPROF=$(realpath -m "${WALLPROF:-target/release/wallprof}")
readonly SCENARIO=$PWD/target/scenarios/lock
readonly RUNS_A_SIDE=5
trials=10
seconds=4
times=1.2
while getopts n:s:k: option; do
    case $option in
    n) trials=$OPTARG ;;
    s) seconds=$OPTARG ;;
    k) times=$OPTARG ;;
    *) exit 2 ;;
    esac
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

record() { # FOLDER SIDE RUN HELD_TIMES
    "$WALLPROF" record --label "side=$2" -o "$1/$2-$3.db" -- "$SCENARIO" -k "$4" -d "$seconds" \
        > "$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
}

# The figures beyond the noise, as `name before after`, and the findings.
compared() { # FOLDER
    "$WALLPROF" runs "$1" --compare side --json | jq -r '.groups[0]
        | (.figures[] | select(.beyond_noise) | "\(.figure)|\(.before)|\(.after)"),
          (.findings[] | select(.beyond_noise) | "finding \(.rule)||")'
}

# A figure about locks that has become larger.
finds_the_lock() {
    awk -F'|' '$1 ~ /lock/ && $3 > $2 { found = 1 } END { exit !found }'
}

found=0
equal=0
for ((trial = 1; trial <= trials; trial++)); do
    slow=$work/$trial/slow
    same=$work/$trial/same
    mkdir -p "$slow" "$same"
    for ((run = 1; run <= RUNS_A_SIDE; run++)); do
        record "$slow" before $run 1
        record "$same" after $run 1
        record "$slow" after $run "$times"
    done
    cp "$slow"/before-*.db "$same"
    text=$(compared "$slow")
    if finds_the_lock <<< "$text"; then
        found=$((found + 1))
    fi
    echo "trial $trial, $times times as long: ${text:-no difference}"
    text=$(compared "$same")
    if [ -z "$text" ]; then
        equal=$((equal + 1))
    fi
    echo "trial $trial, equal: ${text:-no difference}"
    rm -rf "${work:?}/$trial"
done
echo "runs: the lock was found in $found of $trials trials; equal runs had no difference in $equal of $trials"
((10 * found >= 9 * trials && 10 * equal >= 9 * trials))
