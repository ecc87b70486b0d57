#!/bin/bash
# Whether anything that runs per event or per byte needs more instructions than the stored baseline allows.
#
# usage: benches/check.sh [-b BASELINE] [check|baseline]
#
#   check      counts the instructions of the benches; ends with 1 and says what is slower, by how much
#   baseline   does the same three times and stores the middle, the least and the most of each
#
# Other programs and slow days do not change the counts; a compiler, a C library and valgrind's idea of the CPU do: the baseline names
# its own. Allowed is the most that the baseline saw, the width of what it saw, and 3 %. Neither root nor a build of wallprof is needed.
set -euo pipefail

here=$(dirname "$(realpath "$0")")
baseline=$here/baseline.json
runs=3

# shellcheck source=benches/common.sh
. "$here/common.sh"

# What a count depends on besides the program.
toolchain() {
    echo "$(rustc --version), glibc $(getconf GNU_LIBC_VERSION | cut -d' ' -f2), $(valgrind --version)"
}

# --- baseline ---

# Of several results the middle, the least and the most of each measure.
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

# A line for each benchmark of the baseline: name, count, the baseline's, limit. One that did not run has no count, which is -.
compare() {
    jq -r --slurpfile now "$scratch/now" '
        .benchmarks | to_entries[] | .key as $name | .value.instructions
        | "\($name) \($now[0][$name].instructions.value // "-") \(.value) \(.upper_value * 2 - .lower_value + .value * 0.03)"' "$baseline"
}

# Prints the lines of stdin for eyes; fails if one is beyond its limit or did not run.
judge() {
    awk 'BEGIN { printf "%-20s %14s %14s %10s %10s\n", "instructions of", "now", "baseline", "change", "allowed" }
         $2 == "-" { bad++; printf "%-20s %14s %14d  DID NOT RUN\n", $1, $2, $3; next }
         { slower = $2 > $4; bad += slower
           printf "%-20s %14d %14d %+8.2f %% %+8.2f %%%s\n", $1, $2, $3, 100 * ($2 / $3 - 1), 100 * ($4 / $3 - 1), slower ? "  SLOWER" : "" }
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
