#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Measures the memory of `watch -a` over time under a mixed load: forks, short-lived binaries that are new
# each time, a Redis under load, and threads that start and end.
#
# usage: benches/soak.sh [-m MINUTES] [-w WALLPROF]
#
# Prints once a minute: resident memory, its anonymous part, open files, and CPU time as a share of the
# minute. At the end it compares the memory of the last minutes with the memory after five minutes. An
# increase by more than a tenth and 16 MiB is exit code 1. A run of less than ten minutes is not conclusive.
#
# Needs root, gcc, redis-server, redis-tools and stress-ng.
set -euo pipefail

minutes=30
wallprof=$(dirname "$0")/../target/release/wallprof

fail() {
    echo "soak: $*" >&2
    exit 2
}

while getopts 'm:w:' option; do
    case $option in
    m) minutes=$OPTARG ;;
    w) wallprof=$OPTARG ;;
    *) fail 'usage: soak.sh [-m MINUTES] [-w WALLPROF]' ;;
    esac
done
[[ $(id -u) == 0 ]] || fail 'this needs root: it records the whole machine'
[[ -x $wallprof ]] || fail "$wallprof is not there: make release, or give -w"
for program in gcc redis-server redis-benchmark stress-ng; do
    command -v "$program" >/dev/null || fail "$program is not installed"
done
scratch=$(mktemp -d /var/tmp/wallprof-soak.XXXXXX)
started=()

clean_up() {
    local pid
    for pid in "${started[@]}"; do
        kill "$pid" 2>/dev/null || true
    done
    wait 2>/dev/null || true
    rm -rf "$scratch"
}
trap clean_up EXIT

in_background() { # COMMAND…
    "$@" </dev/null >>"$scratch/load" 2>&1 &
    started+=($!)
}

# Builds and runs a new binary each time: another file, with another build id.
short_lived_binaries() {
    local number=0
    while :; do
        echo "int main(void) { volatile long i = $number; for (long n = 0; n < 3000000; n++) i += n; return 0; }" >"$scratch/one.c"
        gcc -O1 -Wl,--build-id -o "$scratch/one-$number" "$scratch/one.c" || true
        "$scratch/one-$number" || true
        rm -f "$scratch/one-$number"
        number=$((number + 1))
    done
}

redis_load() {
    while :; do
        redis-benchmark -s "$scratch/redis.sock" -t set,get -c 4 -q -n 20000 || true
        sleep 2
    done
}

forks() {
    while :; do
        for _ in {1..50}; do (true); done
        sleep 0.2
    done
}

# Resident and anonymous memory in KiB, open files, and CPU time in ticks of 10 ms.
numbers() {
    awk '$1 == "VmRSS:" { rss = $2 } $1 == "RssAnon:" { anon = $2 } END { printf "%d %d ", rss, anon }' "/proc/$watcher/status"
    printf '%d ' "$(find "/proc/$watcher/fd" -mindepth 1 | wc -l)"
    sed 's/.*) //' "/proc/$watcher/stat" | awk '{ print $12 + $13 }'
}

in_background redis-server --port 0 --save '' --unixsocket "$scratch/redis.sock" --dir "$scratch"
in_background redis_load
in_background short_lived_binaries
in_background forks
in_background stress-ng --pthread 1 --pthread-max 64 --cpu 1 --cpu-load 20 --timeout 0
"$wallprof" watch -a --listen 127.0.0.1:0 --socket "$scratch/ctl.sock" -o "$scratch/flight.db" </dev/null >"$scratch/said" 2>&1 &
watcher=$!
started+=("$watcher")

printf '%6s %9s %9s %6s %7s\n' minute 'rss MiB' 'anon MiB' files 'CPU %'
settled=0
ticks=0
for ((minute = 0; minute <= minutes; minute++)); do
    ((minute == 0)) || sleep 60
    kill -0 "$watcher" 2>/dev/null || fail "watch ended: $(tail -3 "$scratch/said")"
    read -r rss anon files now < <(numbers)
    printf '%6d %9.1f %9.1f %6d %7.1f\n' "$minute" "$(awk -v k="$rss" 'BEGIN { print k / 1024 }')" \
        "$(awk -v k="$anon" 'BEGIN { print k / 1024 }')" "$files" "$(awk -v t=$((now - ticks)) 'BEGIN { print t / 60 }')"
    ticks=$now
    ((minute == 5)) && settled=$anon
    last=$anon
done
if ((minutes >= 10 && last > settled + settled / 10 && last > settled + 16384)); then
    echo "soak: memory grew from $((settled / 1024)) MiB after five minutes to $((last / 1024)) MiB" >&2
    exit 1
fi
"$wallprof" ctl status --socket "$scratch/ctl.sock" || true
