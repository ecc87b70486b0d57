#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The cost of importing Intel PT, beside perf.
#
# usage: benches/pt.sh [-r ROUNDS] [-w WALLPROF] [-d FOLDER] [trace|text|memory|decode|all]
#
#   trace   perf script --itrace=cr to /dev/null, perf's decoding alone (--itrace=e), and wallprof import with flame --view calls,
#           on all CPUs and on one: CPU and wall seconds, and how many times less ours is
#   text    the import of that text: MB a second on two CPUs
#   memory  the import of an invented trace of 2 GB: peak of anonymous memory, and MB a second
#   decode  blocks a second of one core, by the crate's own bench
#
# FOLDER holds big.perf.data.xz and target.elf.xz (../shared/pt). The best of interleaved rounds counts:
# others only add. Needs perf, xz, `make release`, cargo for the last two, and free space below TMPDIR: 2 GB
# for text, 3 GB for memory.
set -euo pipefail

rounds=5
folder=$(dirname "$0")/../../shared/pt
wallprof=$(dirname "$0")/../target/release/wallprof

# shellcheck source=benches/common.sh
. "$(dirname "$0")/common.sh"

fields=-event,-period,+addr,-comm,+flags,-dso

unpack() {
    mkdir -p "$scratch/root/ptsyn"
    xz -dc "$folder/big.perf.data.xz" >"$scratch/big.perf.data"
    xz -dc "$folder/target.elf.xz" >"$scratch/root/ptsyn/target"
    chmod +x "$scratch/root/ptsyn/target"
}

# Seconds of wall time, then of CPU time, of a command, added to the file NAME.
timed() { # NAME COMMAND ARGUMENT…
    local name=$1 TIMEFORMAT='%R %U %S'
    shift
    { time "$@" >/dev/null 2>"$scratch/output"; } 2>"$scratch/time" || fail "$(tail -1 "$scratch/output")"
    awk '{ print $1, $2 + $3 }' "$scratch/time" >>"$scratch/$name"
}

# The least of column COLUMN of the file NAME.
least() { # NAME COLUMN
    sort -n -k"$2" "$scratch/$1" | awk -v column="$2" 'NR == 1 { print $column }'
}

ratio() { # A B
    awk -v a="$1" -v b="$2" 'BEGIN { printf "%.1f", (b > 0) ? a / b : 0 }'
}

# --- trace ---

perf_script() { # ITRACE
    HOME=$scratch perf script --itrace="$1" --ns -F "$fields" --symfs "$scratch/root" -i "$scratch/big.perf.data"
}

import_and_draw() {
    "$wallprof" import "$scratch/big.perf.data" --symfs "$scratch/root" -o "$scratch/big.db"
    "$wallprof" flame "$scratch/big.db" --view calls -o "$scratch/big.svg"
}

import_and_draw_on_one() {
    taskset -c 0 "$wallprof" import "$scratch/big.perf.data" --symfs "$scratch/root" -o "$scratch/big.db"
    taskset -c 0 "$wallprof" flame "$scratch/big.db" --view calls -o "$scratch/big.svg"
}

print_row() { # TEXT NAME
    printf '| %-52s | %8s | %8s |\n' "$1" "$(least "$2" 1)" "$(least "$2" 2)"
}

measure_trace() {
    local round
    for ((round = 0; round < rounds; round++)); do
        timed perf_text perf_script cr
        timed ours import_and_draw
        timed perf_decode perf_script e
        timed ours_on_one import_and_draw_on_one
    done
    printf '| %-52s | %8s | %8s |\n' "best of $rounds, seconds" wall CPU
    printf '| --- | ---: | ---: |\n'
    print_row 'perf script --itrace=cr >/dev/null' perf_text
    print_row 'perf script --itrace=e, decoding alone' perf_decode
    print_row 'wallprof import, flame --view calls' ours
    print_row 'the same on one CPU' ours_on_one
    print_fact 'times less wall time than the text (goal 15)' "$(ratio "$(least perf_text 1)" "$(least ours 1)")" ''
    print_fact 'times less CPU time than the text (goal 10)' "$(ratio "$(least perf_text 2)" "$(least ours 2)")" ''
    print_fact 'times faster on one CPU than perf decodes (goal 1)' \
        "$(ratio "$(least perf_decode 1)" "$(least ours_on_one 1)")" ''
}

# --- text ---

import_text() {
    "$wallprof" import "$scratch/big.txt" -o "$scratch/text.db"
}

measure_text() {
    local round bytes
    perf_script cr >"$scratch/big.txt" 2>/dev/null
    bytes=$(stat -c %s "$scratch/big.txt")
    for ((round = 0; round < rounds; round++)); do
        timed text import_text
    done
    print_fact "import of $((bytes / 1000000)) MB of text (goal 300)" "$(ratio "$((bytes / 1000000))" "$(least text 1)")" MB/s
    rm -f "$scratch/big.txt"
}

# --- memory ---

# The largest anonymous memory of a process while it lives, in KiB, read every 20 ms.
peak_anonymous_kib() { # PID
    local peak=0 now
    while now=$(anonymous_kib "$1" 2>/dev/null) && [[ -n $now ]]; do
        ((now > peak)) && peak=$now
        sleep 0.02
    done
    echo "$peak"
}

measure_memory() {
    local invented=$scratch/invented start peak bytes=2000000000
    cargo run -q --release -p wallprof-intel-pt --example generate -- \
        --seed 5 --bytes "$bytes" --threads 4 --switch-gap 50000 --out "$invented"
    start=$(now_ms)
    "$wallprof" import "$invented/perf.data" --symfs / -o "$scratch/invented.db" >"$scratch/output" 2>&1 &
    peak=$(peak_anonymous_kib $!)
    wait $! || fail "$(tail -1 "$scratch/output")"
    print_fact 'anonymous memory, import of 2 GB of trace (goal 300)' "$((peak / 1024))" MiB
    print_fact 'that import' "$((bytes / 1000 / ($(now_ms) - start)))" MB/s
    rm -r "$invented"
}

# --- decode ---

measure_decode() {
    WALLPROF_PT_DATA=$(realpath "$folder") cargo bench -q -p wallprof-intel-pt
}

while getopts r:w:d: option; do
    case $option in
    r) rounds=$OPTARG ;;
    w) wallprof=$OPTARG ;;
    d) folder=$OPTARG ;;
    *) fail 'usage: pt.sh [-r ROUNDS] [-w WALLPROF] [-d FOLDER] [trace|text|memory|decode|all]' ;;
    esac
done
shift $((OPTIND - 1))
for tool in perf xz; do
    have "$tool" || fail "$tool is not installed: apt-get install linux-perf xz-utils"
done
[[ -x $wallprof ]] || fail "there is no $wallprof: make release, or name one with -w"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

describe_machine
unpack
case ${1:-all} in
trace) measure_trace ;;
text) measure_text ;;
memory) measure_memory ;;
decode) measure_decode ;;
all)
    measure_trace
    measure_text
    measure_memory
    measure_decode
    ;;
*) fail "there is no part called '$1': trace, text, memory, decode or all" ;;
esac
