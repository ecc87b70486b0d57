#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs the attacks of hostile.py as another user against `record -a` and `watch -a`, and compares each with a
# harmless twin.
#
# usage: tests/neighbours/run.sh [-s SECONDS] [-w WALLPROF] [-u USER] [record|watch|all] [ATTACK…]
#
# For each attack it prints the difference of the recorder's peak resident memory and CPU time between attack
# and twin. It prints whether the recorder ended in order, and the CPU time of another user's Redis, by the
# recording and by the kernel. It prints the losses that do not occur with the twin.
#
# Exit code 1: an attack costs more than 100 MiB or 5 % of a CPU, ends the recorder, or changes the reported
# time of Redis.
#
# Needs root, python3, jq, curl, redis-server and redis-tools. The result is valid only on a machine without
# other load.
set -euo pipefail

seconds=60
user=nobody
here=$(realpath "$(dirname "$0")")
wallprof=$here/../../target/release/wallprof

fail() {
    echo "neighbours: $*" >&2
    exit 2
}

while getopts 's:w:u:' option; do
    case $option in
    s) seconds=$OPTARG ;;
    w) wallprof=$OPTARG ;;
    u) user=$OPTARG ;;
    *) fail 'usage: run.sh [-s SECONDS] [-w WALLPROF] [-u USER] [record|watch|all] [ATTACK…]' ;;
    esac
done
shift $((OPTIND - 1))
what=${1:-all}
shift || true
attacks=("$@")
((${#attacks[@]})) || attacks=(sparse symbols twins cut rows maps names threads)

[[ $(id -u) == 0 ]] || fail 'this needs root: it records the whole machine and becomes another user'
[[ -x $wallprof ]] || fail "$wallprof is not there: make release, or give -w"
for program in python3 jq curl redis-server redis-benchmark setpriv; do
    command -v "$program" >/dev/null || fail "$program is not installed"
done
wallprof=$(realpath "$wallprof")
scratch=$(mktemp -d /var/tmp/wallprof-neighbours.XXXXXX)
chmod 755 "$scratch"
started=()

clean_up() {
    local pid
    for pid in "${started[@]}"; do
        kill "$pid" 2>/dev/null || true
    done
    wait
    rm -rf "$scratch"
}
trap clean_up EXIT

# Replaces the calling shell, which runs in the background, by the command.
become_user() { # COMMAND…
    exec setpriv --reuid="$user" --regid="$(id -g "$user")" --clear-groups --no-new-privs "$@"
}

# The CPU time of all threads of a process, ended threads included, in ticks of 10 ms.
cpu_ticks() { # PID
    sed 's/.*) //' "/proc/$1/stat" | awk '{ print $12 + $13 }'
}

peak_kib() { # PID
    awk '$1 == "VmHWM:" { print $2 }' "/proc/$1/status"
}

wait_for() { # PATTERN FILE PID
    local tries
    for ((tries = 0; tries < 600; tries++)); do
        grep -q -- "$1" "$2" && return
        kill -0 "$3" 2>/dev/null || fail "it ended: $(tail -3 "$2")"
        sleep 0.1
    done
    fail "it did not print \"$1\": $(tail -3 "$2")"
}

# A Redis of another user, under a load of constant rate.
start_redis() {
    mkdir -p "$scratch/redis"
    chmod 777 "$scratch/redis"
    become_user redis-server --port 0 --save '' --unixsocket "$scratch/redis/socket" --dir "$scratch/redis" >"$scratch/redis.log" 2>&1 &
    redis=$!
    started+=("$redis")
    wait_for 'ready to accept\|Ready to accept' "$scratch/redis.log" "$redis"
}

# One run: sets kib, ticks, ended, redis_recorded, redis_kernel; losses in FILE.
run_once() { # record|watch ATTACK LOSSES
    local pid attack_pid redis_before
    mkdir -p "$scratch/attack"
    chmod 777 "$scratch/attack"
    : >"$scratch/said"
    if [[ $1 == record ]]; then
        "$wallprof" record -a -o "$scratch/out.db" </dev/null >"$scratch/said" 2>&1 &
        pid=$!
        wait_for recording "$scratch/said" "$pid"
    else
        "$wallprof" watch -a --listen 127.0.0.1:0 --socket "$scratch/ctl.sock" -o "$scratch/out.db" </dev/null >"$scratch/said" 2>&1 &
        pid=$!
        wait_for armed "$scratch/said" "$pid"
    fi
    started+=("$pid")
    # Lets the recorder read the machine first: that cost is not part of the attack.
    sleep 5
    local ticks_before
    ticks_before=$(cpu_ticks "$pid")
    redis_before=$(cpu_ticks "$redis")
    become_user "$here/hostile.py" "$2" "$seconds" "$scratch/attack" >"$scratch/rounds" 2>&1 &
    attack_pid=$!
    (timeout "$seconds" redis-benchmark -s "$scratch/redis/socket" -t set,get -c 4 -q -n 100000000 >/dev/null 2>&1 || true) &
    wait "$attack_pid" || true
    wait $! || true
    ended=yes
    kib=0
    ticks=0
    if kill -0 "$pid" 2>/dev/null; then
        kib=$(peak_kib "$pid")
        ticks=$(($(cpu_ticks "$pid") - ticks_before))
        redis_kernel=$((($(cpu_ticks "$redis") - redis_before) * 10))
        kill -TERM "$pid"
        wait "$pid" || ended="no: exit code $?"
    else
        wait "$pid" || ended="no: exit code $?"
    fi
    redis_recorded=0
    : >"$3"
    if "$wallprof" report --json "$scratch/out.db" >"$scratch/report.json" 2>"$scratch/why"; then
        redis_recorded=$(jq --argjson pid "$redis" '[.threads[] | select(.pid == $pid) | .on_cpu_ns] | add // 0 | . / 1e6 | floor' "$scratch/report.json")
        jq -r '.losses | to_entries[] | select(.value > 0) | .key' "$scratch/report.json" | sort >"$3"
    else
        ended="no report: $(<"$scratch/why")"
    fi
    rm -rf "$scratch/attack" "$scratch"/out.db* "$scratch"/ctl.sock
}

verdict() { # CONDITION
    if "$@"; then echo ok; else
        echo FAILED
    fi
}

print_attack() { # record|watch ATTACK
    local twin_kib twin_ticks kib ticks ended redis_recorded redis_kernel more_mib more_percent
    run_once "$1" "harmless-$2" "$scratch/twin"
    twin_kib=$kib
    twin_ticks=$ticks
    run_once "$1" "$2" "$scratch/losses"
    more_mib=$(((kib - twin_kib) / 1024))
    more_percent=$(awk -v more=$((ticks - twin_ticks)) -v s="$seconds" 'BEGIN { printf "%.1f", more / s }')
    printf '%-7s %-8s %5d MiB more (%d), %5s %% of a CPU more; ended: %s; Redis ran %d ms, recorded %d ms; %s\n' "$1" "$2" \
        "$more_mib" $((kib / 1024)) "$more_percent" "$ended" "${redis_kernel:-0}" "$redis_recorded" "$(tail -1 "$scratch/rounds")"
    printf '        losses that the twin does not have: %s\n' "$(comm -13 "$scratch/twin" "$scratch/losses" | xargs)"
    printf '        verdict: memory %s, CPU %s, end %s, Redis %s\n' \
        "$(verdict [ "$more_mib" -le 100 ])" \
        "$(verdict awk -v more="$more_percent" 'BEGIN { exit !(more <= 5) }')" \
        "$(verdict [ "$ended" = yes ])" \
        "$(verdict awk -v a="${redis_kernel:-0}" -v b="$redis_recorded" 'BEGIN { exit !(b > 0.95 * a - 50 && b < 1.05 * a + 3000) }')"
}

start_redis
echo "$(uname -r), $(nproc) CPUs, attacks of $seconds s by $user"
for tool in record watch; do
    [[ $what == all || $what == "$tool" ]] || continue
    for attack in "${attacks[@]}"; do
        print_attack "$tool" "$attack" | tee -a "$scratch/table"
    done
done
! grep -q FAILED "$scratch/table"
