#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The permanent cost of `wallprof watch`: the pause while it attaches, and its own CPU time and memory. Its cost for the
# latency tail of other programs: benches/tail.sh.
#
# usage: benches/watch.sh [-r ROUNDS] [-s SECONDS] [-c CPU] [-w WALLPROF] [attach|idle|views|all]
#
#   attach  the longest delay of a running cyclictest of priority 80, without anything and while a watcher attaches,
#           interleaved
#   idle    CPU time of `watch -a` for a minute in which nothing else is done, from half a minute after its start on, and its
#           memory
#   views   CPU time of `watch -a` and `top -a` side by side, their children included, for rounds of half a minute in which
#           nothing else is done and for rounds of `perf bench sched pipe`, from half a minute after their start on
#
# Needs root; rt-tests, for views tmux and perf. Numbers are meaningful on an idle machine only.
set -euo pipefail

rounds=7
seconds=5
cpu=$(($(nproc) - 1))
wallprof=$(dirname "$0")/../target/release/wallprof

# shellcheck source=benches/common.sh
. "$(dirname "$0")/common.sh"

start_watcher() {
    start_tool 'has_said ^wallprof:.armed' "$wallprof" watch -a --listen 127.0.0.1:0 --socket "$scratch/ctl.sock" -o "$scratch/flight.db" ||
        fail "$(<"$scratch/why")"
}

stop_watcher() {
    interrupt "$tool"
    rm -f "$scratch"/flight.db*
}

# The middle one of a column of FILE, with the least and the most.
spread() { # FILE NAME
    awk -v name="$2" '$1 == name { print $2 }' "$1" | median_and_range
}

# Delays of a thread that wakes up every 200 µs, in µs: average and longest.
delays() { # NAME
    sed -n 's/.*Avg: *\([0-9]*\) Max: *\([0-9]*\).*/avg \1\nmax \2/p' "$scratch/cyclictest" >>"$scratch/$1"
}

run_cyclictest() {
    cyclictest --quiet --mlockall --priority=80 --interval=200 --duration="$seconds" --affinity="$cpu" --threads=1 \
        >"$scratch/cyclictest" 2>&1
}

measure_attach() {
    local round timer name
    have cyclictest || fail 'cyclictest is not installed: apt-get install rt-tests'
    : >"$scratch/without"
    : >"$scratch/with"
    for ((round = 0; round < rounds; round++)); do
        run_cyclictest
        delays without
        run_cyclictest &
        timer=$!
        sleep 1
        start_watcher
        sleep 1
        stop_watcher
        wait "$timer"
        delays with
    done
    printf '%-40s %26s %26s\n' 'median (least–most)' without 'while a watcher attaches'
    for name in avg max; do
        printf '%-40s %26s %26s µs\n' "cyclictest, $name" "$(spread "$scratch/without" $name)" "$(spread "$scratch/with" $name)"
    done
}

# Time on a CPU of all threads of a process so far, in ns.
on_cpu_ns() { # PID
    awk '{ sum += $1 } END { printf "%d", sum }' "/proc/$1"/task/*/schedstat
}

measure_idle() {
    local before probes
    start_watcher
    # The steady state: unwind tables have been built, and the flush interval is long.
    sleep 30
    before=$(on_cpu_ns "$tool")
    sleep 60
    print_fact 'user space of watch -a, idle machine' \
        "$(awk -v ns=$(($(on_cpu_ns "$tool") - before)) 'BEGIN { printf "%.3f", ns / 60e7 }')" '% of one CPU'
    probes=$("$wallprof" ctl status --socket "$scratch/ctl.sock" | sed -n 's/^cost: //p')
    print_fact 'with its probes, as it says itself' "${probes%% *}" '% of one CPU'
    print_fact 'its anonymous memory' "$(anonymous_kib "$tool")" KiB
    stop_watcher
}

# CPU time of all threads of a process so far and of its children that ended, in ms.
with_children_ms() { # PID
    awk -v hz="$(getconf CLK_TCK)" '{ sub(/.*\) /, ""); print int(($12 + $13 + $14 + $15) * 1000 / hz) }' "/proc/$1/stat"
}

measure_views() {
    local pids load name at round before after names=(watch top)
    have tmux || fail 'tmux is not installed: apt-get install tmux'
    start_watcher
    tmux -S "$scratch/tmux" new-session -d -x 80 -y 24 "exec $wallprof top -a"
    sleep 30
    pids=("$tool" "$(tmux -S "$scratch/tmux" list-panes -F '#{pane_pid}')")
    [[ -n ${pids[1]} ]] || fail 'top has ended'
    for load in 'sleep 30' 'perf bench sched pipe -l 1000000'; do
        : >"$scratch/shares"
        for ((round = 0; round < rounds; round++)); do
            before=() after=()
            for name in "${pids[@]}"; do before+=("$(with_children_ms "$name")"); done
            before+=("$(now_ms)")
            $load >"$scratch/load" 2>&1
            for name in "${pids[@]}"; do after+=("$(with_children_ms "$name")"); done
            after+=("$(now_ms)")
            for at in 0 1; do
                awk -v name="${names[at]}" -v ms=$((after[at] - before[at])) -v wall=$((after[2] - before[2])) \
                    'BEGIN { printf "%s %.3f\n", name, 100 * ms / wall }' >>"$scratch/shares"
            done
        done
        for name in "${names[@]}"; do
            print_fact "beside $load: $name" "$(spread "$scratch/shares" "$name")" '% of one CPU'
        done
    done
    tmux -S "$scratch/tmux" send-keys q
    stop_watcher
}

# --- main ---

enter_own_mounts "$@"
while getopts 'r:s:c:w:' option; do
    case $option in
    r) rounds=$OPTARG ;;
    s) seconds=$OPTARG ;;
    c) cpu=$OPTARG ;;
    w) wallprof=$OPTARG ;;
    *) fail 'usage: watch.sh [-r ROUNDS] [-s SECONDS] [-c CPU] [-w WALLPROF] [attach|idle|views|all]' ;;
    esac
done
shift $((OPTIND - 1))
[[ -x $wallprof ]] || fail "$wallprof is not there: make release, or give -w"
wallprof=$(realpath "$wallprof")
scratch=$(mktemp -d /var/tmp/wallprof-watch.XXXXXX)
trap 'rm -rf "$scratch"' EXIT
describe_machine
case ${1:-all} in
attach | idle | views) "measure_$1" ;;
all)
    measure_idle
    measure_attach
    ;;
*) fail "there is no part $1: give attach, idle, views or all" ;;
esac
