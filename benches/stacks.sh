#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The cost of complete stacks.
#
# usage: benches/stacks.sh [-r ROUNDS] [-s SECONDS] [-w WALLPROF] [walk|arm|share|bytes|all]
#
#   walk   ns of the probe that takes a stack of 10, 20, 40 and 60 frames in the kernel, by the kernel's run-time
#          statistics, in interleaved rounds; and what a frame adds
#   arm    time to armed for a process with a large program: node
#   share  wallprof's share of all CPU time, recorder and probes, -a -F 99 beside stress-ng --matrix 0
#   bytes  the recording of SECONDS of -a -F 999 beside the same, against perf record --call-graph dwarf
#
# Needs root, gcc, stress-ng, node and perf for their parts. Numbers are meaningful on an idle machine only.
set -euo pipefail

rounds=7
seconds=60
wallprof=$(dirname "$0")/../target/release/wallprof

# shellcheck source=benches/common.sh
. "$(dirname "$0")/common.sh"

# --- the kernel's statistics of a recorder's programs ---

keep_statistics() {
    local before
    before=$(sysctl -n kernel.bpf_stats_enabled)
    # shellcheck disable=SC2064 # the value of now
    trap "sysctl -qw kernel.bpf_stats_enabled=$before; rm -rf '$scratch'" EXIT
    sysctl -qw kernel.bpf_stats_enabled=1
}

# Runs and ns of each program that the process PID has loaded. A descriptor may be closed before it is read.
programs() { # PID
    { cat "/proc/$1/fdinfo/"* 2>/dev/null || true; } | awk '
        $1 == "prog_id:" { id = $2 }
        $1 == "run_time_ns:" { ns[id] = $2 }
        $1 == "run_cnt:" { runs[id] = $2 }
        END { for (id in runs) print runs[id], ns[id] }'
}

# --- walk ---

# ns of a run of the program that ran most often.
ns_a_stack() { # FRAMES
    local victim
    "$scratch/depth" "$1" &
    victim=$!
    start_recorder -p "$victim" -e syscalls:sys_enter_getppid -F 1 -o "$scratch/walk.db"
    sleep 1
    programs "$recorder" | sort -n | awk 'END { print $2 / $1 }'
    interrupt "$recorder"
    kill "$victim"
    wait "$victim" 2>/dev/null || true
    rm -f "$scratch"/walk.db*
}

measure_walk() {
    local round frames
    gcc -O2 -fomit-frame-pointer -o "$scratch/depth" "$(dirname "$0")/depth.c"
    keep_statistics
    for ((round = 0; round < rounds; round++)); do
        for frames in 10 20 40 60; do
            ns_a_stack "$frames" >>"$scratch/$frames"
        done
        paste -d' ' "$scratch/20" "$scratch/60" | tail -1 | awk '{ print ($2 - $1) / 40 }' >>"$scratch/slopes"
    done
    for frames in 10 20 40 60; do
        print_fact "a stack of $frames frames, median of $rounds" "$(median <"$scratch/$frames")" ns
    done
    print_fact 'a frame, between 20 and 60' "$(median <"$scratch/slopes")" ns
    print_fact '  least and most' "$(sort -n "$scratch/slopes" | sed -n '1p;$p' | xargs printf '%s–%s')" ns
}

# --- arm ---

measure_arm() {
    local victim
    have node || fail 'node is not installed: apt-get install nodejs'
    node -e 'setInterval(() => {}, 1000)' &
    victim=$!
    measure_arming "node, $(($(stat -L -c %s "/proc/$victim/exe") >> 20)) MiB and libstdc++" "$victim"
    kill "$victim"
}

# --- share and bytes ---

start_load() {
    stress-ng --matrix 0 --timeout $((seconds * 3 + 60)) >/dev/null 2>&1 &
    load=$!
}

probe_ns() { # PID
    programs "$1" | awk '{ ns += $2 } END { printf "%d", ns }'
}

measure_share() {
    local started ended cpu probes
    keep_statistics
    start_load
    start_recorder -a -F 99 -o "$scratch/share.db"
    # The start is paid once.
    sleep 5
    started=$(now_ms) cpu=$(cpu_ms "$recorder") probes=$(probe_ns "$recorder")
    sleep "$seconds"
    cpu=$(($(cpu_ms "$recorder") - cpu)) probes=$(($(probe_ns "$recorder") - probes)) ended=$(now_ms)
    interrupt "$recorder"
    interrupt "$load"
    share() { awk -v ms="$1" -v all=$(((ended - started) * $(nproc))) 'BEGIN { printf "%.3f", 100 * ms / all }'; }
    print_fact "recorder's share of all CPU time over $seconds s" "$(share "$cpu")" %
    print_fact "probes' share" "$(share "$(awk -v ns=$probes 'BEGIN { print ns / 1e6 }')")" %
    print_fact 'both' "$(share "$(awk -v ms=$cpu -v ns=$probes 'BEGIN { print ms + ns / 1e6 }')")" %
    rm -f "$scratch"/share.db*
}

measure_bytes() {
    local ours theirs
    have perf || fail 'perf is not installed: apt-get install linux-perf'
    start_load
    start_recorder -a -F 999 -d "$seconds" -o "$scratch/bytes.db"
    wait "$recorder"
    perf record -q -B -N -a -F 999 --call-graph dwarf -o "$scratch/bytes.data" -- sleep "$seconds" >"$scratch/output" 2>&1
    interrupt "$load"
    ours=$(stat -c %s "$scratch/bytes.db") theirs=$(stat -c %s "$scratch/bytes.data")
    print_fact "recording of $seconds s at -a -F 999" "$((ours >> 10))" KiB
    print_fact 'perf record --call-graph dwarf' "$((theirs >> 10))" KiB
    print_fact 'share' "$(awk -v a="$ours" -v b="$theirs" 'BEGIN { printf "%.3f", 100 * a / b }')" %
    rm -f "$scratch"/bytes.*
}

# --- main ---

enter_own_mounts "$@"
while getopts 'r:s:w:' option; do
    case $option in
    r) rounds=$OPTARG ;;
    s) seconds=$OPTARG ;;
    w) wallprof=$OPTARG ;;
    *) fail 'usage: stacks.sh [-r ROUNDS] [-s SECONDS] [-w WALLPROF] [walk|arm|share|bytes|all]' ;;
    esac
done
shift $((OPTIND - 1))
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
[[ -x $wallprof ]] || fail "$wallprof is not there: make release, or give -w"
describe_machine
case ${1:-all} in
walk | arm | share | bytes) "measure_$1" ;;
all)
    measure_walk
    measure_arm
    measure_share
    measure_bytes
    ;;
*) fail "there is no part called '$1': walk, arm, share, bytes or all" ;;
esac
