#!/bin/bash
# wallprof and its peers side by side: what each does to a workload, what it takes itself, how long until a person
# sees a picture, and how many of its stacks are whole.
#
# usage: benches/peers/run.sh [-r ROUNDS] [-s SECONDS] [-b SECONDS] [-c CPU] [-w WALLPROF] [-t TOOL,…] [-l WORKLOAD,…] [-o FOLDER]
#
# Every round runs each workload for about SECONDS (-s) beside each tool, all interleaved, so that a noisy moment hits
# all; each tool has been running for some seconds by then (-b), in which it reads what it must know.
# Writes peers.md and one picture a workload into FOLDER (docs/peers); progress goes to stderr. Needs root. A tool or a
# workload that is missing gets a row that says so. Numbers mean something on a quiet machine only.
set -euo pipefail

rounds=5
seconds=4
settle=5
cpu=$(($(nproc) - 1))
here=$(dirname "$0")
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

# Appends "WORKLOAD TOOL METRIC VALUE" lines to $scratch/results; the tool's own: cpu (% of one CPU), kib (a second).
measure() { # WORKLOAD TOOL
    local file=$scratch/recording before after started kib
    "start_$2" "$file" || return 1
    # What a start costs is no part of what running costs.
    sleep "$settle"
    started=$(now_ms) before=0 after=0
    [[ -z $tool ]] || before=$(cpu_ms "$tool")
    "run_$1" >"$scratch/metrics" || true
    [[ -z $tool ]] || after=$(cpu_ms "$tool")
    awk -v at="$1 $2" '{ print at, $0 }' "$scratch/metrics" >>"$scratch/results"
    if [[ -n $tool ]]; then
        awk -v at="$1 $2" -v ms=$((after - before)) -v of=$(($(now_ms) - started)) \
            'BEGIN { print at, "cpu", 100 * ms / of }' >>"$scratch/results"
        interrupt "$tool"
        kib=$(du -ck --apparent-size "$file"* 2>/dev/null | tail -1 | cut -f1)
        awk -v at="$1 $2" -v kib="$kib" -v ms=$(($(now_ms) - started)) \
            'BEGIN { print at, "kib", 1000 * kib / ms }' >>"$scratch/results"
    fi
    rm -rf "$file"*
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
readonly BEGINNINGS='^(_start|_dl_start_user|__clone3?|clone3?|start_thread|runtime\.(goexit|mstart|rt0_go).*)$'

# Runs FUNCTION; the most memory that a process of it had, in KiB, is then in $scratch/peak.
at_its_peak() { # FUNCTION ARGUMENT…
    export scratch wallprof
    export -f picture_of
    # shellcheck disable=SC2016 # the inner shell's arguments
    /usr/bin/time -q -f %M -o "$scratch/peak" bash -c '"$@"' - "$@"
}

measure_pictures() {
    local each file=$scratch/picture.data before whole
    set_up_redis || return 0
    for each in wallprof perf_fp perf_dwarf; do
        [[ -e $scratch/absent.$each ]] && continue
        say "a picture by $each"
        "start_$each" "$file" || continue
        run_redis >/dev/null
        interrupt "$tool"
        before=$(now_ms)
        if [[ $each == wallprof ]] || { have inferno-collapse-perf && have inferno-flamegraph; }; then
            at_its_peak picture_of "$each" "$file"
            echo "picture $each ms $(($(now_ms) - before))" >>"$scratch/results"
            echo "picture $each mib $(($(<"$scratch/peak") / 1024))" >>"$scratch/results"
        fi
        whole=$(folded_of "$each" "$file" | awk -v beginnings="$BEGINNINGS" '
            { weight = $NF; sub(/ [0-9]+$/, ""); split($0, frame, ";"); root = frame[2]
              # Time of the kernel alone, and of the recorder, whose release binary has no names.
              if (root == "" || root ~ /_\[k\]$/ || root ~ /^\[(unsampled|user|kernel|irq)\]$/ || $0 ~ /^wallprof/) next
              all += weight; if (root ~ beginnings) whole += weight }
            END { if (all) printf "%.2f", 100 * whole / all }')
        [[ -z $whole ]] || echo "picture $each whole $whole" >>"$scratch/results"
        rm -rf "$file"*
    done
    tear_down_redis
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
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$folder"
: >"$scratch/results"
: >"$scratch/missing"
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
    sed 's/^/result /' "$scratch/results"
} | awk -v folder="$folder" -v machine="$(<"$scratch/machine")" -v rounds="$rounds" -v seconds="$seconds" \
    -v day="$(date +%Y-%m-%d)" -f "$here/table.awk" >"$folder/peers.md"
say "wrote $folder/peers.md"
