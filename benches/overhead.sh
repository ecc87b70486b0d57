#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The cost of recording, measured beside its peers in the same run.
#
# usage: benches/overhead.sh [-r ROUNDS] [-n OPERATIONS] [-c CPU] [-s SECONDS] [-w WALLPROF]
# [pipe|recorder|all]
#
#   pipe      µs of a `perf bench sched pipe` operation (two switches) on one CPU: with nothing running, with
#             wallprof, and with each peer, in interleaved rounds
#   recorder  the recorder's own CPU time, memory and file, its time to armed, and the reader's time
#
# Needs root, taskset, perf (linux-perf) and, for the peers, libbpf-tools and bpftrace; stress-ng and python3
# for the second part. The row of a missing peer says so. Numbers are meaningful on an idle machine only.
set -euo pipefail

rounds=7
operations=100000
cpu=$(($(nproc) - 1))
seconds=60
wallprof=$(dirname "$0")/../target/release/wallprof

# --- setting ---

# shellcheck source=benches/common.sh
. "$(dirname "$0")/common.sh"

# --- pipe: one function a row; each prints µs per operation, or fails with the reason in $scratch/why ---

bench() {
    taskset -c "$cpu" perf bench sched pipe -l "$operations" 2>/dev/null | awk '/usecs\/op/ { print $1 }'
}

# Runs the benchmark while COMMAND runs in the background, from when CHECK holds on.
bench_beside() { # CHECK COMMAND…
    local check=$1 status=0
    shift
    : >"$scratch/output"
    background "$@" >"$scratch/output" 2>&1 &
    local recorder=$!
    # shellcheck disable=SC2086 # the check and its argument
    if wait_until "$recorder" $check; then
        bench
    else
        tail -1 "$scratch/output" >"$scratch/why"
        status=1
    fi
    interrupt "$recorder"
    return $status
}

missing() {
    echo "$1 is not installed" >"$scratch/why"
    return 1
}

row_nothing() {
    bench
}

row_wallprof() {
    [[ -x $wallprof ]] || missing "$wallprof" || return 1
    bench_beside 'has_said recording' "$wallprof" record -a -o "$scratch/wallprof.db"
}

has_attached_bpf() { # PID
    [[ $(readlink "/proc/$1"/fd/* 2>/dev/null) == *bpf_link* ]]
}

row_offcputime() {
    local tool
    tool=$(PATH=$PATH:/usr/sbin command -v offcputime) || missing 'offcputime (libbpf-tools)' || return 1
    bench_beside has_attached_bpf "$tool"
}

# perf starts the command when its events are enabled.
row_perf_sched_switch() {
    perf record -q -e sched:sched_switch -g -a -o "$scratch/perf.data" -- \
        taskset -c "$cpu" perf bench sched pipe -l "$operations" >"$scratch/output" 2>&1 || {
        tail -1 "$scratch/output" >"$scratch/why"
        return 1
    }
    awk '/usecs\/op/ { print $1 }' "$scratch/output"
}

row_bpftrace() {
    have bpftrace || missing bpftrace || return 1
    # shellcheck disable=SC2016
    bench_beside 'has_said armed' bpftrace -e 'BEGIN { printf("armed\n"); }
        tracepoint:sched:sched_switch { @[kstack, ustack] = count(); }'
}

print_table() { # lines "row µs" on stdin
    awk '
        { values[$1] = values[$1] " " $2; if (!($1 in seen)) { seen[$1] = 1; order[++rows] = $1 } }
        function summary(text, sorted,   n, i, j, t) {
            n = split(text, sorted, " ")
            for (i = 2; i <= n; i++)
                for (j = i; j > 1 && sorted[j - 1] + 0 > sorted[j] + 0; j--) {
                    t = sorted[j]; sorted[j] = sorted[j - 1]; sorted[j - 1] = t
                }
            return n
        }
        END {
            printf "%-22s %9s %9s %9s %9s %7s\n", "µs per operation", "median", "min", "max", "added", "rounds"
            for (i = 1; i <= rows; i++) {
                n = summary(values[order[i]], sorted)
                median = n % 2 ? sorted[(n + 1) / 2] : (sorted[n / 2] + sorted[n / 2 + 1]) / 2
                if (i == 1) base = median
                printf "%-21s %9.2f %9.2f %9.2f %+9.2f %7d\n", order[i], median, sorted[1], sorted[n], median - base, n
            }
        }'
}

measure_pipe() {
    local names=(nothing wallprof offcputime perf_sched_switch bpftrace) round name us
    have perf || fail 'perf is not installed: apt-get install linux-perf'
    bench >/dev/null # warms up
    for ((round = 0; round < rounds; round++)); do
        for name in "${names[@]}"; do
            [[ -e $scratch/failed.$name ]] && continue
            if us=$("row_$name") && [[ -n $us ]]; then
                echo "$name $us" >>"$scratch/results"
            else
                mv "$scratch/why" "$scratch/failed.$name" 2>/dev/null || echo 'no result' >"$scratch/failed.$name"
            fi
            rm -f "$scratch"/wallprof.db* "$scratch/perf.data"
        done
    done
    echo
    echo "perf bench sched pipe, $operations operations on CPU $cpu, $rounds interleaved rounds"
    print_table <"$scratch/results"
    for name in "${names[@]}"; do
        [[ -e $scratch/failed.$name ]] && printf '%-21s not measured: %s\n' "$name" "$(<"$scratch/failed.$name")"
    done
    return 0
}

# --- recorder ---

measure_arming_a_sleeper() {
    sleep 600 &
    local victim=$!
    measure_arming 'one process' "$victim"
    kill "$victim"
}

# A minute of a machine whose CPUs all compute.
measure_busy_minute() {
    local file=$scratch/busy.db peak=0 cpu_before cpu_after started ended kib
    stress-ng --matrix 0 --timeout $((seconds + 30)) >/dev/null 2>&1 &
    local load=$!
    start_recorder -a -F 99 -o "$file"
    cpu_before=$(cpu_ms "$recorder")
    started=$(now_ms)
    while (($(now_ms) - started < seconds * 1000)); do
        kib=$(anonymous_kib "$recorder")
        ((kib > peak)) && peak=$kib
        sleep 0.5
    done
    cpu_after=$(cpu_ms "$recorder")
    ended=$(now_ms)
    interrupt "$recorder"
    interrupt "$load"
    print_fact "recorder's CPU, -a -F 99 beside stress-ng --matrix 0" \
        "$(awk -v c=$((cpu_after - cpu_before)) -v t=$((ended - started)) 'BEGIN { printf "%.2f", 100 * c / t }')" \
        '% of one CPU'
    print_fact "recorder's anonymous memory, peak" "$((peak / 1024))" MiB
    print_fact "file after $seconds s" "$(du -k --apparent-size "$file" | cut -f1)" KiB
    started=$(now_ms)
    "$wallprof" report "$file" >/dev/null
    print_fact 'report' "$(($(now_ms) - started))" ms
    rm -f "$file"*
}

switches_so_far() {
    awk '/^ctxt/ { print $2 }' /proc/stat
}

# Hundreds of threads that all talk to each other.
load_messaging() {
    perf bench sched messaging -g 10 -l 500 >/dev/null 2>&1
}

# As many switches as the machine can make: a pair of threads on each CPU.
load_pipes() {
    local each pids=()
    for ((each = 0; each < $(nproc); each++)); do
        taskset -c "$each" perf bench sched pipe -l $((operations * 5)) >/dev/null 2>&1 &
        pids+=($!)
    done
    wait "${pids[@]}"
}

# Losses under LOAD must be counted, and small.
measure_losses() { # NAME LOAD
    local file=$scratch/losses.db switches started
    start_recorder -a -o "$file"
    switches=$(switches_so_far)
    started=$(now_ms)
    "$2"
    switches=$(($(switches_so_far) - switches))
    print_fact "$1: switches a second" $((switches * 1000 / ($(now_ms) - started))) ''
    interrupt "$recorder"
    "$wallprof" report "$file" --json | python3 -c '
import json, sys
report = json.load(sys.stdin)
counted = sum(sum(thread["switches"].values()) for thread in report["threads"])
print("%-58s %10d" % ("  switches of threads in the recording", counted))
print("%-58s %10d" % ("  switches by /proc/stat, those of idle CPUs too", int(sys.argv[1])))
for reason, count in sorted(report["losses"].items()):
    print("%-58s %10d" % ("  lost: " + reason, count))' "$switches"
    rm -f "$file"*
}

measure_recorder() {
    [[ -x $wallprof ]] || fail "$wallprof does not exist: run make release, or give -w"
    have stress-ng || fail 'stress-ng is not installed: apt-get install stress-ng'
    echo
    echo "the recorder itself, $("$wallprof" --version)"
    measure_arming_a_sleeper
    measure_busy_minute
    measure_losses 'perf bench sched messaging' load_messaging
    measure_losses 'perf bench sched pipe on every CPU' load_pipes
}

# --- main ---

enter_own_mounts "$@"
while getopts 'r:n:c:s:w:' option; do
    case $option in
    r) rounds=$OPTARG ;;
    n) operations=$OPTARG ;;
    c) cpu=$OPTARG ;;
    s) seconds=$OPTARG ;;
    w) wallprof=$OPTARG ;;
    *) fail 'usage: overhead.sh [-r ROUNDS] [-n OPERATIONS] [-c CPU] [-s SECONDS] [-w WALLPROF] [pipe|recorder|all]' ;;
    esac
done
shift $((OPTIND - 1))
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
describe_machine
case ${1:-all} in
pipe) measure_pipe ;;
recorder) measure_recorder ;;
all)
    measure_pipe
    measure_recorder
    ;;
*) fail "there is no part called '$1': pipe, recorder or all" ;;
esac
