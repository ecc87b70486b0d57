#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Checks the instructions and allocations of code that runs per event or per byte against the stored baseline.
#
# usage: benches/check.sh [-b BASELINE] [check|baseline]
#
#   check      counts the benches' instructions and allocations; exit code 1 and a line for each one above its limit
#   baseline   counts three times and stores median, minimum and maximum of each
#
# Other programs do not change the counts; the compiler, the C library and valgrind's model of the CPU do: the
# baseline names its own. The limit is the maximum of the baseline, plus its range, plus 3 %. Neither root nor
# a build of wallprof is needed.
set -euo pipefail

here=$(dirname "$(realpath "$0")")
baseline=$here/baseline.json
runs=3

# shellcheck source=benches/common.sh
. "$here/common.sh"

# The versions that a count depends on.
toolchain() {
    echo "$(rustc --version), glibc $(getconf GNU_LIBC_VERSION | cut -d' ' -f2), $(valgrind --version)"
}

# --- baseline ---

# Median, minimum and maximum of each measure of several results.
spread() {
    jq -s 'reduce (.[] | to_entries[] | .key as $name | .value | to_entries[] | { name: $name, measure: .key, value: .value.value })
            as $one ({}; .[$one.name][$one.measure] += [$one.value])
        | map_values(map_values(sort | { value: .[length / 2 | floor], lower_value: .[0], upper_value: .[-1] }))'
}

store() {
    local run
    for ((run = 0; run < runs; run++)); do
        "$here/bmf.sh" instructions
    done | spread | jq --arg toolchain "$(toolchain)" '{ toolchain: $toolchain, benchmarks: . }' >"$scratch/new"
    mv "$scratch/new" "$baseline"
    echo "$baseline holds $(jq '.benchmarks | length' "$baseline") benchmarks."
}

# --- check ---

# A line for each measure of the baseline: benchmark, measure, count (- if it did not run), baseline, limit.
compare() {
    jq -r --slurpfile now "$scratch/now" '
        .benchmarks | to_entries[] | .key as $name | .value | to_entries[] | .key as $measure | .value
        | "\($name) \($measure) \($now[0][$name][$measure].value // "-") \(.value) \(.upper_value * 2 - .lower_value + .value * 0.03)"' "$baseline"
}

# Prints the lines of stdin as a table; fails if one is beyond its limit or did not run.
judge() {
    awk 'function change(from, to) { return from == 0 ? (to > 0 ? "more" : "none") : sprintf("%+.2f %%", 100 * (to / from - 1)) }
         BEGIN { printf "%-18s %-12s %12s %12s %10s %10s\n", "", "", "now", "baseline", "change", "allowed" }
         { missing = $3 == "-"; slower = !missing && $3 > $5; bad += slower + missing
           printf "%-18s %-12s %12s %12d %10s %10s%s\n", $1, $2, $3, $4, missing ? "" : change($4, $3), change($4, $5),
               missing ? "  DID NOT RUN" : slower ? "  SLOWER" : "" }
         END { exit bad > 0 }'
}

check() {
    [[ -e $baseline ]] || fail "$baseline is not there: make bench-baseline"
    "$here/bmf.sh" instructions >"$scratch/now"
    [[ $(jq -r .toolchain "$baseline") == "$(toolchain)" ]] ||
        echo "The baseline was made with $(jq -r .toolchain "$baseline"), this is $(toolchain): both differ by themselves."
    compare | judge || fail "more than $(basename "$baseline") allows. Where that is meant: make bench-baseline, and say why in the commit"
    echo 'Nothing is slower than the baseline allows.'
}

# --- main ---

usage='usage: check.sh [-b BASELINE] [check|baseline]'
while getopts 'b:' option; do
    case $option in
    b) baseline=$OPTARG ;;
    *) fail "$usage" ;;
    esac
done
shift $((OPTIND - 1))
have jq || fail 'jq is not installed: apt-get install jq'
have valgrind || fail 'valgrind is not installed: apt-get install valgrind'
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
case ${1:-check} in
check) check ;;
baseline) store ;;
*) fail "$usage" ;;
esac
