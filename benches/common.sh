# SPDX-License-Identifier: Apache-2.0
# Functions of all benches: waiting for recorders, facts of the machine and of processes. Sourced; the caller
# sets $wallprof, $rounds and $scratch.

fail() {
    echo "$(basename "$0"): $*" >&2
    exit 1
}

# perf and bpftrace find tracepoints in tracefs, which is not mounted everywhere. A mount namespace of our own
# leaves the machine as it was.
enter_own_mounts() {
    [[ -n ${WALLPROF_BENCH_MOUNTS:-} ]] || WALLPROF_BENCH_MOUNTS=1 exec unshare --mount "$0" "$@"
    [[ -e /sys/kernel/tracing/events ]] || mount -t tracefs tracefs /sys/kernel/tracing
}

describe_machine() {
    local model
    model=$(awk -F': ' '/^model name/ { print $2; exit }' /proc/cpuinfo)
    echo "machine: $(nproc) CPUs, ${model:-unknown}, kernel $(uname -r), load $(cut -d' ' -f1-3 /proc/loadavg)"
}

have() {
    command -v "$1" >/dev/null
}

# Waits until CHECK holds for the process PID, which must live on, for at most $longest seconds: 200 where it is not
# set.
wait_until() { # PID CHECK ARGUMENT…
    local pid=$1 tries longest=${longest:-200}
    shift
    for ((tries = 0; tries < longest * 100; tries++)); do
        "$1" "$pid" "${@:2}" && return 0
        kill -0 "$pid" 2>/dev/null || return 1
        sleep 0.01
    done
    echo "not ready within $longest s" >>"$scratch/output"
    return 1
}

has_said() { # PID PATTERN
    grep -q "$2" "$scratch/output"
}

# Ends a child as Ctrl-C does, and waits for it.
interrupt() { # PID
    kill -INT "$1" 2>/dev/null || true
    wait "$1" 2>/dev/null || true
}

# Executes a command that Ctrl-C ends: background children of a script ignore SIGINT by default.
background() {
    exec env --default-signal=INT "$@"
}

has_open() { # PID PATTERN
    [[ $(readlink "/proc/$1"/fd/* 2>/dev/null) == *$2* ]]
}

# False where COMMAND is missing; why is then in $scratch/why.
needs() { # COMMAND PACKAGE
    have "$1" && return 0
    echo "$1 is not installed: $2" >"$scratch/why"
    return 1
}

# Starts COMMAND as $tool; true once CHECK holds for it, else why not is in $scratch/why.
start_tool() { # CHECK COMMAND…
    local check=$1
    shift
    : >"$scratch/output"
    background "$@" >"$scratch/output" 2>&1 &
    tool=$!
    # shellcheck disable=SC2086 # the check and its argument
    wait_until "$tool" $check && return 0
    tail -1 "$scratch/output" >"$scratch/why"
    interrupt "$tool"
    return 1
}

# Starts wallprof with ARGUMENTs and waits until it is armed; its pid is then in $recorder.
start_recorder() { # ARGUMENT…
    local tool
    start_tool 'has_said recording' "$wallprof" record "$@" || fail "$(<"$scratch/why")"
    recorder=$tool
}

# The middle one of the numbers on stdin.
median() {
    sort -n | awk '{ number[NR] = $1 } END { print number[int((NR + 1) / 2)] }'
}

# The same, with the least and the most: 3 (2–7).
median_and_range() {
    sort -n | awk '{ number[NR] = $1 }
        END { printf "%.4g (%.4g–%.4g)", number[int((NR + 1) / 2)], number[1], number[NR] }'
}

now_ms() {
    echo $(($(date +%s%N) / 1000000))
}

# CPU time of a process so far, in ms.
cpu_ms() { # PID
    awk -v hz="$(getconf CLK_TCK)" '{ sub(/.*\) /, ""); print int(($12 + $13) * 1000 / hz) }' "/proc/$1/stat"
}

anonymous_kib() { # PID
    awk '/^RssAnon/ { print $2 }' "/proc/$1/status"
}

print_fact() { # NAME VALUE UNIT
    printf '%-58s %10s %s\n' "$1" "$2" "$3"
}

# Median time from the command to armed probes, for the process PID.
measure_arming() { # NAME PID
    local i start times=()
    for ((i = 0; i < rounds; i++)); do
        start=$(now_ms)
        start_recorder -p "$2" -o "$scratch/arm.db"
        times+=($(($(now_ms) - start)))
        interrupt "$recorder"
        rm -f "$scratch"/arm.db*
    done
    print_fact "command to armed, $1" "$(printf '%s\n' "${times[@]}" | median)" ms
}

as_postgres() {
    (cd / && exec setpriv --reuid=postgres --regid=postgres --clear-groups "$@")
}

postgres_answers() { # PID BIN
    "$2/pg_isready" -q -h "$scratch/data" -p 7432
}

# A PostgreSQL with pgbench's tables as $server, its programs in $postgres_bin: socket in $scratch/data, port 7432.
start_postgres() { # [OPTION]…
    postgres_bin=$(find /usr/lib/postgresql -maxdepth 2 -name bin 2>/dev/null | sort -V | tail -1)
    [[ -n $postgres_bin ]] || fail 'PostgreSQL is not installed: apt-get install postgresql'
    install -d -o postgres "$scratch/data"
    as_postgres "$postgres_bin/initdb" -A trust -D "$scratch/data" >"$scratch/server.log"
    as_postgres "$postgres_bin/postgres" -D "$scratch/data" -k "$scratch/data" -p 7432 -c listen_addresses= "$@" \
        >>"$scratch/server.log" 2>&1 &
    server=$!
    wait_until "$server" postgres_answers "$postgres_bin" || fail 'PostgreSQL did not start'
    as_postgres "$postgres_bin/pgbench" -q -i -s 1 -h "$scratch/data" -p 7432 postgres >>"$scratch/server.log" 2>&1
}
