#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Records the pieces that a fleet is made of: real programs, each in a healthy and in a sick variant.
#
#   tests/fleet/record.sh FOLDER [-d SECONDS] [-j LANES]
#
#   -d   the length of each recording (default 45)
#   -j   so many programs are recorded at the same time (default 3)
#
# FOLDER/NAME.db is a recording, FOLDER/NAME its tables. As root; uses target/release/wallprof (WALLPROF names
# another), target/scenarios, and Debian's redis-server and postgresql. Exit code 3: this machine cannot record.
#
# A piece is a function below. It starts its program, which ends by itself or is killed at the end, and sets
#   target      the options of `record` that select it
#   min_stall   the shortest wait that is recorded by itself
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/../.."

WALLPROF=$(realpath -m "${WALLPROF:-target/release/wallprof}")
readonly WALLPROF
readonly SCENARIOS=${SCENARIOS:-$PWD/target/scenarios}
readonly FOLDER=$(realpath -m "$1")
shift
# A machine may be three times slower than another, and beside a build.
readonly MOST_SECONDS_TO_START=200
# The ids of containers: the names of their control groups, as docker gives them.
readonly LIMITED=11e5d0aa8bd5d4bb1c2f3ee9d2f1b7a6c0de11e5d0aa8bd5d4bb1c2f3ee9d2f1
readonly UNLIMITED=22f7a3bb9ce6e5cc2d304ff0e302c8b7d1ef22f7a3bb9ce6e5cc2d304ff0e302
readonly WAITING=33a1c9d04e7f28b65d1e0f9a8c7b6a59483733a1c9d04e7f28b65d1e0f9a8c7b
readonly GREEDY=44b2dae15f8039c76e2f1a0b9d8c7b6a594844b2dae15f8039c76e2f1a0b9d8c
readonly CROWDED=55c3ebf2608a4ad87f302b1cae9d8c7b6a5955c3ebf2608a4ad87f302b1cae9d
seconds=45
lanes=3
while getopts d:j: option; do
    case $option in
    d) seconds=$OPTARG ;;
    j) lanes=$OPTARG ;;
    *) exit 2 ;;
    esac
done

say() { echo "fleet: $*" >&2; }

# For the functions of servers.sh.
start() { # COMMAND…
    "$@" > "$WORK/${1##*/}.log" 2>&1 < /dev/null &
    pids+=($!)
}

until_ready() { # COMMAND…
    local end=$((SECONDS + MOST_SECONDS_TO_START))
    until "$@" > /dev/null 2>&1; do
        ((SECONDS < end)) || {
            say "$name: not ready after $MOST_SECONDS_TO_START s: $*"
            return 1
        }
        sleep 0.05
    done
}

. tests/causes/servers.sh

# The workload runs until it is killed, so that the recording has no end of a program in it.
readonly FOREVER=100000

# --- orders: requests, marked as spans; one in thirty waits for a lock ---

orders() { # TIMES
    start "$SCENARIOS/requests" -l -m -k lock -n "$1" -d $FOREVER
    target="-p ${pids[-1]}"
    min_stall=3ms
}
orders_good() { orders 4; }
orders_slow() { orders 8; }

# --- pricing: a rare path waits for a lock that a housekeeper holds ---

pricing() { # TIMES
    start "$SCENARIOS/lock" -k "$1" -d $FOREVER
    target="-p ${pids[-1]}"
    min_stall=2ms
}
pricing_good() { pricing 4; }
pricing_slow() { pricing 12; }

# --- accounts: PostgreSQL under pgbench; sick: all clients update one row and think while they hold it ---

accounts() { # SCRIPT
    start_postgres 'fsync = on'
    psql -q -c 'create table stock (id int primary key, pieces int)' \
        -c 'insert into stock select i, 0 from generate_series(1, 1000) i'
    echo "$1" > "$WORK/work.sql"
    start pgbench -n -c 4 -T $FOREVER -f "$WORK/work.sql"
    target="-p $server --children"
    min_stall=500us
}
accounts_good() {
    accounts 'update stock set pieces = pieces + 1 where id = :client_id + 1;
\sleep 60 ms'
}
accounts_slow() {
    accounts 'begin;
update stock set pieces = pieces + 1 where id = 1;
\sleep 30 ms
commit;'
}

# --- cache: Redis with an append-only file; sick: it syncs the file after each command ---

cache() { # POLICY
    start_redis --appendonly yes --appendfsync "$1"
    start cache_commands
    target="-p $server"
    min_stall=500us
}
cache_commands() {
    # Ends when the server does.
    (while sleep 0.01 && [ -e "$WORK/socket" ]; do
        echo "set key $SECONDS"
    done) | redis-cli -s "$WORK/socket"
}
cache_good() { cache no; }
cache_slow() { cache always; }

# --- search: an index file that is not in memory; and computing in containers: one with a CPU quota, one
# beside another, one beside itself ---

search_files() {
    start "$SCENARIOS/coldfile" -f "$WORK/index.bin" -d $FOREVER
    target="-p ${pids[-1]}"
    min_stall=1ms
}

# Becomes a member of the container's control group, and the program.
in_container() { # ID COMMAND…
    local folder
    for folder in "${made[@]}"; do
        [ "${folder##*/}" != "$1" ] || echo "$BASHPID" > "$folder/cgroup.procs"
    done
    shift
    exec "$@"
}
readonly CONTROL_GROUPS=/sys/fs/cgroup

# A control group for the containers of a piece, which has most of the CPU time, as on a host that runs containers.
make_parent() {
    local parent=wallprof-fleet-$$/$name
    if [ -d $CONTROL_GROUPS/cpu ]; then
        mkdir -p $CONTROL_GROUPS/{cpu,systemd}/"$parent"
        made+=($CONTROL_GROUPS/{cpu,systemd}/{"${parent%/*}","$parent"})
        echo 20480 > $CONTROL_GROUPS/cpu/"${parent%/*}"/cpu.shares
    else
        mkdir -p $CONTROL_GROUPS/"$parent"
        made+=($CONTROL_GROUPS/{"${parent%/*}","$parent"})
        echo +cpu > $CONTROL_GROUPS/cgroup.subtree_control
        echo +cpu > $CONTROL_GROUPS/"${parent%/*}"/cgroup.subtree_control
        echo +cpu > $CONTROL_GROUPS/"$parent"/cgroup.subtree_control
        echo 2000 > $CONTROL_GROUPS/"${parent%/*}"/cpu.weight
    fi
}

make_container() { # ID QUOTA
    local folder=wallprof-fleet-$$/$name/$1
    ((${#made[@]} > 0)) || make_parent
    if [ -d $CONTROL_GROUPS/cpu ]; then
        mkdir -p $CONTROL_GROUPS/{cpu,systemd}/"$folder"
        made+=($CONTROL_GROUPS/{cpu,systemd}/"$folder")
        echo 100000 > $CONTROL_GROUPS/cpu/"$folder"/cpu.cfs_period_us
        echo "$2" > $CONTROL_GROUPS/cpu/"$folder"/cpu.cfs_quota_us
    else
        mkdir -p $CONTROL_GROUPS/"$folder"
        made+=("$CONTROL_GROUPS/$folder")
        echo "${2/#-1/max} 100000" > $CONTROL_GROUPS/"$folder"/cpu.max
    fi
}

search_container() { # ID QUOTA
    make_container "$1" "$2"
    gcc -O2 -g -o "$WORK/indexer" tests/causes/programs/burn.c -pthread
    (in_container "$1" "$WORK/indexer" $FOREVER) > "$WORK/indexer.log" 2>&1 &
    pids+=($!)
    target="-p $!"
    min_stall=6ms
    until_ready grep -q pricing "/proc/$!/comm"
}
search_limited() { search_container "$LIMITED" 5000; }
search_unlimited() { search_container "$UNLIMITED" 100000; }

# Threads in a container, all on one CPU.
threads_in_container() { # ID NAME THREADS CPU WORK_MS REST_MS
    (in_container "$1" "$WORK/busy" "$2" "$3" "$4" "$5" "$6" $FOREVER) > "$WORK/$2.log" 2>&1 &
    pids+=($!)
    until_ready eval "grep -qsx $2 /proc/$!/task/*/comm"
}

# A thread that computes for 3 ms out of 13, on a CPU that two threads of another container never leave.
search_shared() {
    make_container "$WAITING" -1
    make_container "$GREEDY" -1
    gcc -O2 -g -o "$WORK/busy" tests/causes/programs/busy.c -pthread
    threads_in_container "$GREEDY" merge 2 0 1000 0
    threads_in_container "$WAITING" lookup 1 0 3 10
    target="-p ${pids[-2]},${pids[-1]}"
    min_stall=3ms
}

# Three threads of one container on one CPU.
search_crowded() {
    make_container "$CROWDED" -1
    gcc -O2 -g -o "$WORK/busy" tests/causes/programs/busy.c -pthread
    threads_in_container "$CROWDED" worker 3 1 1000 0
    target="-p ${pids[-1]}"
    min_stall=3ms
}

# --- recording ---

clean() {
    local i
    # The last ones first: a server waits for its clients.
    for ((i = ${#pids[@]} - 1; i >= 0; i--)); do
        kill "${pids[i]}" 2> /dev/null || true
        wait "${pids[i]}" 2> /dev/null || true
    done
    # The innermost ones first; the outermost one is other pieces', too.
    for ((i = ${#made[@]} - 1; i >= 0; i--)); do
        rmdir "${made[i]}" 2> /dev/null || true
    done
    rm -rf "$WORK"
}

record() { # NAME
    local status=0
    # Not local: `clean` runs after this function.
    name=$1 pids=() made=() target="" min_stall=""
    WORK=$(mktemp -d "/var/tmp/wallprof-fleet.XXXXXX")
    chmod 711 "$WORK"
    trap clean EXIT
    "$name"
    # shellcheck disable=SC2086 # several options
    "$WALLPROF" record $target --min-stall "$min_stall" -d "$seconds" -o "$FOLDER/$name.db" \
        > /dev/null 2> "$FOLDER/$name.log" || status=$?
    [ $status = 0 ] || { say "$name: $(< "$FOLDER/$name.log")"; return $status; }
    rm -rf "${FOLDER:?}/$name"
    "$WALLPROF" export "$FOLDER/$name.db" --to parquet -o "$FOLDER/$name" 2>> "$FOLDER/$name.log"
}

readonly PIECES=(orders_good orders_slow pricing_good pricing_slow accounts_good accounts_slow cache_good
    cache_slow search_files search_limited search_unlimited search_shared search_crowded)

mkdir -p "$FOLDER"
running=0
worst=0
for piece in ${ONLY:-"${PIECES[@]}"}; do
    if ((running == lanes)); then
        wait -n || worst=$?
        running=$((running - 1))
    fi
    (record "$piece" > "$FOLDER/$piece.out") &
    running=$((running + 1))
done
while ((running > 0)); do
    wait -n || worst=$?
    running=$((running - 1))
done
exit $worst
