#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# wallprof beside its peers: the slowdown of a workload, the own cost of each tool, the time until a picture
# is drawn, and the share of complete stacks.
#
# usage: benches/peers/run.sh [-r ROUNDS] [-s SECONDS] [-b SECONDS] [-c CPU] [-w WALLPROF] [-t TOOL,…] [-l
# WORKLOAD,…] [-o FOLDER]
#
# Every round runs each workload for about SECONDS (-s) beside each tool, all interleaved, so that a noisy
# moment hits all; each tool has been running for some seconds by then (-b), the second half of them beside
# the workload, in which it reads what it must know. Writes peers.md and one picture a workload into FOLDER
# (docs/peers); progress goes to stderr. Needs root. A tool or a workload that is missing gets a row that says
# so. What has to be built is kept in target/peers. Numbers are meaningful on an idle machine only.
set -euo pipefail

rounds=5
seconds=4
settle=5
cpu=$(($(nproc) - 1))
here=$(dirname "$(realpath "$0")")
built=$here/../../target/peers
wallprof=$here/../../target/release/wallprof
folder=$here/../../docs/peers

# shellcheck source=benches/common.sh
. "$here/../common.sh"
# shellcheck source=benches/peers/tools.sh
. "$here/tools.sh"
# shellcheck source=benches/peers/workloads.sh
. "$here/workloads.sh"

say() { echo "peers: $*" >&2; }

# --- one workload beside one tool ---

# Appends "WORKLOAD TOOL METRIC VALUE" lines to $scratch/results. Of the tool: start (ms of its CPU time until
# it is measured), cpu, and of what it hands its data to beside (% of one CPU, while the workload runs),
# finish (ms from then to its end), and kib (a second of the whole recording).
measure() { # WORKLOAD TOOL
    local file=$scratch/recording armed started ended waited finish at_start at_end beside_at_start=0
    beside='' also=()
    "start_$2" "$file" || return 1
    armed=$(now_ms)
    # The cost of the start, and of reading a program for the first time, is not part of the cost of running.
    [[ -z $tool ]] || settle "$1"
    started=$(now_ms)
    [[ -z $tool ]] || at_start=$(cpu_of_all "$tool" "${also[@]}")
    [[ -z $beside ]] || beside_at_start=$(cpu_ms "$beside")
    "run_$1" >"$scratch/metrics" || true
    [[ -z $tool ]] || at_end=$(cpu_of_all "$tool" "${also[@]}")
    ended=$(now_ms)
    awk -v at="$1 $2" '{ print at, $0 }' "$scratch/metrics" >>"$scratch/results"
    [[ -n $tool ]] || return 0
    echo "$1 $2 start $at_start" >>"$scratch/results"
    echo "$1 $2 cpu $(share "$((at_end - at_start))" "$((ended - started))")" >>"$scratch/results"
    [[ -z $beside ]] ||
        echo "$1 $2 beside $(share "$(($(cpu_ms "$beside") - beside_at_start))" "$((ended - started))")" >>"$scratch/results"
    flush_tool "$2" "$file"
    waited=$(waited_ms)
    interrupt_all "$tool" "${also[@]}"
    finish=$(($(waited_ms) - waited - at_end))
    echo "$1 $2 finish $((finish > 0 ? finish : 0))" >>"$scratch/results" # the kernel counts in ticks
    ended=$(now_ms)
    [[ -z $beside ]] || interrupt "$beside"
    du -cb "$file"* 2>/dev/null | awk -v at="$1 $2" -v ms=$((ended - armed)) \
        'END { print at, "kib", $1 / 1.024 / ms }' >>"$scratch/results"
    rm -rf "$file"*
}

cpu_of_all() { # PID…
    local process sum=0
    for process in "$@"; do
        sum=$((sum + $(cpu_ms "$process")))
    done
    echo "$sum"
}

# All at once: what one of them does at its end costs the others nothing.
interrupt_all() { # PID…
    kill -INT "$@" 2>/dev/null || true
    wait "$@" 2>/dev/null || true
}

settle() { # WORKLOAD
    sleep $((settle - settle / 2))
    ((settle < 2)) || seconds=$((settle / 2)) "run_$1" >/dev/null || true
}

# CPU time of this shell's children that have ended, in ms.
waited_ms() {
    awk -v hz="$(getconf CLK_TCK)" '{ sub(/.*\) /, ""); print int(($14 + $15) * 1000 / hz) }' "/proc/$$/stat"
}

share() { # PART WHOLE
    awk -v part="$1" -v whole="$2" 'BEGIN { print 100 * part / whole }'
}

measure_workload() { # WORKLOAD
    local round each
    if ! "set_up_$1"; then
        echo "$1 - $(<"$scratch/why")" >>"$scratch/missing"
        return 0
    fi
    "run_$1" >/dev/null || true # warms up
    for ((round = 0; round < rounds; round++)); do
        for each in "${tools[@]}"; do
            [[ -e $scratch/absent.$each ]] && continue
            say "$1, round $((round + 1)) of $rounds, $each"
            : >"$scratch/why"
            measure "$1" "$each" || mv "$scratch/why" "$scratch/absent.$each"
        done
    done
    "tear_down_$1"
}

# --- after the recording: the way to a picture, and whole stacks ---

# Root frames that a program or a thread begins in.
readonly BEGINNINGS='^(_start|_dl_start_user|(__GI_)?_*clone3?|start_thread|runtime\.(goexit|mstart|rt0_go).*)$'

# Tools of which there is a way to a flame graph.
readonly DRAWN=' wallprof perf_fp perf_dwarf otel '

# Runs FUNCTION; the most memory that a process of it had, in KiB, is then in $scratch/peak.
at_its_peak() { # FUNCTION ARGUMENT…
    export scratch wallprof built
    export -f picture_of
    # shellcheck disable=SC2016 # the inner shell's arguments
    /usr/bin/time -q -f %M -o "$scratch/peak" bash -c '"$@"' - "$@"
}

# A recording by each tool of the same work; its picture is drawn as often as there are rounds.
measure_pictures() {
    local each file=$scratch/picture.data
    set_up_redis || return 0
    for each in "${tools[@]}"; do
        [[ $DRAWN == *" $each "* && ! -e $scratch/absent.$each ]] || continue
        if [[ $each != wallprof ]] && ! { have inferno-collapse-perf && have inferno-flamegraph; }; then
            echo "undrawn $each inferno is not installed: cargo install inferno" >>"$scratch/undrawn"
            continue
        fi
        say "a picture by $each"
        beside=
        "start_$each" "$file" || continue
        run_redis >/dev/null
        flush_tool "$each" "$file"
        interrupt "$tool"
        [[ -z $beside ]] || interrupt "$beside"
        measure_picture "$each" "$file"
        rm -rf "$file"*
    done
    tear_down_redis
}

measure_picture() { # TOOL FILE
    local round before
    for ((round = 0; round < rounds; round++)); do
        before=$(now_ms)
        at_its_peak picture_of "$1" "$2"
        {
            echo "picture $1 ms $(($(now_ms) - before))"
            echo "picture $1 mib $(($(<"$scratch/peak") / 1024))"
        } >>"$scratch/results"
    done
    folded_of "$1" "$2" | whole_share | awk -v at="picture $1" '{ print at, $0 }' >>"$scratch/results"
}

# Of the stacks of the workload's programs on stdin: "whole" and the % whose outermost frame is a beginning.
# Time without a sample is no stack.
whole_share() {
    awk -v beginnings="$BEGINNINGS" '
        /^redis-/ {
            weight = $NF; sub(/ [0-9]+$/, ""); frames = split($0, frame, ";"); root = frame[2]
            if (frames < 2 || root == "[unsampled]") next
            all += weight; if (root ~ beginnings) whole += weight
        }
        END { if (all) printf "whole %.2f\n", 100 * whole / all }'
}

# --- main ---

enter_own_mounts "$@"
while getopts 'r:s:b:c:w:t:l:o:' option; do
    case $option in
    r) rounds=$OPTARG ;;
    s) seconds=$OPTARG ;;
    b) settle=$OPTARG ;;
    c) cpu=$OPTARG ;;
    w) wallprof=$OPTARG ;;
    t) IFS=, read -ra tools <<<"nothing,$OPTARG" ;;
    l) IFS=, read -ra workloads <<<"$OPTARG" ;;
    o) folder=$OPTARG ;;
    *) fail 'usage: run.sh [-r ROUNDS] [-s SECONDS] [-b SECONDS] [-c CPU] [-w WALLPROF] [-t TOOL,…] [-l WORKLOAD,…] [-o FOLDER]' ;;
    esac
done
[[ -x $wallprof ]] || fail "$wallprof is not there: make release, or give -w"
wallprof=$(realpath "$wallprof")
scratch=$(mktemp -d /var/tmp/wallprof-peers.XXXXXX)
services=()
trap '[[ -z ${services[*]} ]] || { kill "${services[@]}"; wait "${services[@]}"; } 2>/dev/null || true; rm -rf "$scratch"' EXIT
mkdir -p "$folder"
: >"$scratch/results"
: >"$scratch/missing"
: >"$scratch/undrawn"
for name in "${tools[@]}"; do
    [[ $(type -t "prepare_$name") == function ]] || continue
    say "preparing $name"
    "prepare_$name" || mv "$scratch/why" "$scratch/absent.$name"
done
describe_machine >"$scratch/machine"
for name in "${workloads[@]}"; do
    measure_workload "$name"
done
measure_pictures
{
    for name in "${tools[@]}"; do
        echo "tool $name ${tool_title[$name]}"
        [[ ! -e $scratch/absent.$name ]] || echo "absent $name $(<"$scratch/absent.$name")"
    done
    for name in "${workloads[@]}"; do
        echo "workload $name ${workload_title[$name]}"
    done
    sed 's/^/missing /' "$scratch/missing"
    cat "$scratch/undrawn"
    sed 's/^/result /' "$scratch/results"
} | awk -v folder="$folder" -v machine="$(<"$scratch/machine")" -v rounds="$rounds" -v seconds="$seconds" -v settle="$settle" \
    -v day="$(date +%Y-%m-%d)" -f "$here/table.awk" >"$folder/peers.md"
say "wrote $folder/peers.md"
