#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Benchmarks of the code that runs per event or per byte, in the Bencher Metric Format, on stdout: an object
# of benchmarks, each with its measures, each with a value and its range.
#
# usage: benches/bmf.sh [-r ROUNDS] [-n OPERATIONS] [-c CPU] [-w WALLPROF] PART…
#
#   times         ns of each Criterion bench: median, and its 95 % confidence interval
#   instructions  of one round of each bench, counted by callgrind, and the measure "allocations", the number of
#                 allocations: independent of load. Benches with threads are left out
#   probes        ns of a run of each BPF program under `perf bench sched pipe` on one CPU, by the kernel's run-time statistics; and
#                 `probes/pipe`, their share of an operation without recording, for the switch path: the measure "share", in %
#
# `make bench` and `make bench-check` call it. The first two need cargo, valgrind and jq; the last one root,
# perf, bpftool and a built wallprof; if the kernel does not allow it, that part is skipped with a message on
# stderr.
set -euo pipefail

rounds=9
operations=50000
cpu=$(($(nproc) - 1))
wallprof=$(dirname "$0")/../target/release/wallprof

# shellcheck source=benches/common.sh
. "$(dirname "$0")/common.sh"

# Each with its crate. Benches that need external recordings (intel-pt's `decode`) or print text (symbols) are
# excluded.
timed=(live:records recording:second unwind:build unwind:walk views:stacks intel-pt:generated import:script)

# The counted measurements: `once_NAME`, a separate function in the bench that a test run calls once.
counted=(live:records:stalls live:records:second recording:second:second unwind:walk:walk views:stacks:tree
    intel-pt:generated:packets intel-pt:generated:blocks intel-pt:generated:calls)

each_bench() { # COMMAND BENCH…; the command is called with a crate, a bench and what is counted
    local command=$1 crate bench name
    shift
    for bench in "$@"; do
        IFS=: read -r crate bench name <<<"$bench"
        "$command" "$crate" "$bench" "$name"
    done
}

# All benches in one build: crate by crate, each would be built with features of its own.
build_benches() {
    local crates=() names=() bench
    for bench in "${timed[@]}"; do
        crates+=(--package "wallprof-${bench%%:*}")
        names+=(--bench "${bench#*:}")
    done
    cargo bench --no-run --message-format=json "${crates[@]}" "${names[@]}" |
        jq -r 'select(.reason == "compiler-artifact" and .executable) | "\(.target.name) \(.executable)"' >"$scratch/programs"
}

bench_program() { # BENCH
    awk -v bench="$1" '$1 == bench { print $2 }' "$scratch/programs"
}

# --- times ---

run_bench() { # CRATE BENCH
    "$(bench_program "$2")" --bench --noplot --warm-up-time 1 --measurement-time 3 >&2
}

# Of each bench that ran since this script began, the median.
medians() {
    find "$target/criterion" -path '*/new/estimates.json' -newer "$scratch/began" | while read -r estimates; do
        jq -s '{ (.[1].full_id): { latency: .[0].median | { value: .point_estimate,
            lower_value: .confidence_interval.lower_bound, upper_value: .confidence_interval.upper_bound } } }' \
            "$estimates" "${estimates%estimates.json}benchmark.json"
    done
}

measure_times() {
    build_benches
    touch "$scratch/began"
    each_bench run_bench "${timed[@]}"
    medians | jq -s add
}

# --- instructions ---

# What once_NAME and all that it calls did, "BENCHMARK INSTRUCTIONS ALLOCATIONS": counters begin where it
# does, and what they say where it ends goes to a first file, callgrind.out.1.
count_bench() { # CRATE BENCH NAME
    local once=$2::once_$3 program
    program=$(bench_program "$2")
    rm -f "$scratch"/callgrind.out*
    valgrind -q --tool=callgrind --zero-before="$once" --dump-after="$once" --callgrind-out-file="$scratch/callgrind.out" \
        "$program" --bench --test "/$3\$" >"$scratch/output" 2>&1 ||
        fail "$1's bench $2 does not run in valgrind: $(tail -1 "$scratch/output")"
    [[ -e $scratch/callgrind.out.1 ]] || fail "$1's bench $2 has no function once_$3 that callgrind saw"
    # The first use of a function's number defines its name; the callee (cfn) precedes the number of calls
    # (calls).
    awk -v benchmark="$1/$3" '
        match($0, /^c?fn=\([0-9]+\)/) {
            number = substr($0, index($0, "("), RLENGTH - index($0, "(") + 1)
            if (length($0) > RLENGTH) name[number] = substr($0, RLENGTH + 2)
            called = name[number]
        }
        /^calls=/ && called ~ /^(malloc|calloc|realloc|posix_memalign|aligned_alloc)$/ { allocations += substr($1, 7) }
        /^totals:/ { instructions = $2 }
        END { print benchmark, instructions, allocations + 0 }' "$scratch/callgrind.out.1"
}

measure_instructions() {
    have valgrind || fail 'valgrind is not installed: apt-get install valgrind'
    build_benches
    each_bench count_bench "${counted[@]}" | jq -Rn '[inputs | split(" ") | { (.[0]):
        { instructions: { value: (.[1] | tonumber) }, allocations: { value: (.[2] | tonumber) } } }] | add'
}

# --- probes ---

# "NAME RUNS NS" of the programs of each name that the process PID has loaded.
programs() { # PID
    { cat "/proc/$1/fdinfo/"* 2>/dev/null || true; } | awk '$1 == "prog_id:" { print $2 }' | sort -u >"$scratch/ids"
    bpftool prog show -j | jq -r --slurpfile ids "$scratch/ids" \
        '.[] | select(.id | IN($ids[])) | "\(.name) \(.run_cnt // 0) \(.run_time_ns // 0)"' |
        awk '{ runs[$1] += $2; ns[$1] += $3 } END { for (name in runs) print name, runs[name], ns[name] }'
}

# µs of CPU time of an operation. Elapsed time would depend on other programs.
pipe() {
    local TIMEFORMAT='%U %S'
    { time taskset -c "$cpu" perf bench sched pipe -l "$operations" >/dev/null 2>&1; } 2>&1 |
        awk -v operations="$operations" '{ print ($1 + $2) * 1e6 / operations }'
}

# One round: "plain US", then "NAME RUNS NS" of each program that ran at least once in ten operations.
probe_round() {
    echo "plain $(pipe)"
    start_recorder -a -o "$scratch/probes.db"
    sysctl -qw kernel.bpf_stats_enabled=1
    programs "$recorder" | sort >"$scratch/before"
    pipe >/dev/null
    programs "$recorder" | sort >"$scratch/after"
    sysctl -qw "kernel.bpf_stats_enabled=$statistics"
    interrupt "$recorder"
    rm -f "$scratch"/probes.db*
    join "$scratch/before" "$scratch/after" |
        awk -v least=$((operations / 10)) '$4 - $2 > least { print $1, $4 - $2, $5 - $3 }'
}

# The programs of a switch. An operation makes two switches. Other programs make more, so the cost of a run is
# measured, not the number of runs.
path='["on_switch", "on_switched", "on_waking"]'

# The value is the minimum of the rounds: other programs can only add to it. Half of the rounds are at most
# upper_value.
summarise_probes() {
    jq -Rn --argjson path "$path" '
        def spread: sort | { value: .[0], lower_value: .[0], upper_value: .[length / 2 | floor] };
        def part(name): 2 * ([.[] | select(.key | IN($path[])) | .value[name]] | add);
        [inputs | split(" ") | { name: .[0], numbers: .[1:] | map(tonumber) }] as $lines
        | [$lines[] | select(.name == "plain") | .numbers[0] * 1000] as $plain
        | ([$lines[] | select(.name != "plain")] | group_by(.name)
            | map({ key: .[0].name, value: (map(.numbers[1] / .numbers[0]) | spread) })) as $programs
        | ($programs | map({ ("probes/" + .key): { latency: .value } }) | add)
        + { "probes/plain": { latency: $plain | spread } }
        + { "probes/pipe": { latency: ($programs | { value: part("value"), lower_value: part("lower_value"),
              upper_value: part("upper_value") }), share: { value: (100 * ($programs | part("value")) / ($plain | min)) } } }'
}

measure_probes() {
    local round
    if [[ $(id -u) != 0 || ! -e /sys/kernel/btf/vmlinux ]]; then
        echo 'The probes are not measured: that needs root and /sys/kernel/btf/vmlinux.' >&2
        echo '{}'
        return
    fi
    [[ -x $wallprof ]] || fail "$wallprof is not there: make release, or give -w"
    have perf || fail 'perf is not installed: apt-get install linux-perf'
    have bpftool || fail 'bpftool is not installed: apt-get install bpftool'
    statistics=$(sysctl -n kernel.bpf_stats_enabled)
    # shellcheck disable=SC2064 # the values of now
    trap "sysctl -qw kernel.bpf_stats_enabled=$statistics; rm -rf '$scratch'" EXIT
    pipe >/dev/null # warms up
    for ((round = 0; round < rounds; round++)); do
        probe_round
    done >"$scratch/rounds"
    summarise_probes <"$scratch/rounds"
}

# --- main ---

usage='usage: bmf.sh [-r ROUNDS] [-n OPERATIONS] [-c CPU] [-w WALLPROF] times|instructions|probes…'
while getopts 'r:n:c:w:' option; do
    case $option in
    r) rounds=$OPTARG ;;
    n) operations=$OPTARG ;;
    c) cpu=$OPTARG ;;
    w) wallprof=$OPTARG ;;
    *) fail "$usage" ;;
    esac
done
shift $((OPTIND - 1))
(($# > 0)) || fail "$usage"
have jq || fail 'jq is not installed: apt-get install jq'
PATH=$PATH:/usr/sbin
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
wallprof=$(realpath -m "$wallprof")
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
for part in "$@"; do
    case $part in
    times | instructions | probes) "measure_$part" ;;
    *) fail "there is no part called '$part': times, instructions or probes" ;;
    esac
done >"$scratch/parts"
jq -s 'reduce .[] as $part ({}; . * $part)' "$scratch/parts"
