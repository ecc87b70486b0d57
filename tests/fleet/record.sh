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
# The ids of two containers: the names of their control groups, as docker gives them.
readonly LIMITED=11e5d0aa8bd5d4bb1c2f3ee9d2f1b7a6c0de11e5d0aa8bd5d4bb1c2f3ee9d2f1
readonly UNLIMITED=22f7a3bb9ce6e5cc2d304ff0e302c8b7d1ef22f7a3bb9ce6e5cc2d304ff0e302
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

# --- search: an index file that is not in memory; and computing in two containers, one with a CPU quota ---

search_files() {
    start "$SCENARIOS/coldfile" -f "$WORK/index.bin" -d $FOREVER
    target="-p ${pids[-1]}"
    min_stall=1ms
}

# Becomes a member of the container's control group, and the program.
in_container() { # ID COMMAND…
    local controller id=$1
    shift
    for controller in cpu systemd; do
        [ ! -d "$CONTROL_GROUPS/$controller/docker/$id" ] || echo "$BASHPID" > "$CONTROL_GROUPS/$controller/docker/$id/cgroup.procs"
    done
    [ ! -d "$CONTROL_GROUPS/docker/$id" ] || echo "$BASHPID" > "$CONTROL_GROUPS/docker/$id/cgroup.procs"
    exec "$@"
}
readonly CONTROL_GROUPS=/sys/fs/cgroup

make_container() { # ID QUOTA
    if [ -d $CONTROL_GROUPS/cpu ]; then
        mkdir -p $CONTROL_GROUPS/cpu/docker/"$1" $CONTROL_GROUPS/systemd/docker/"$1"
        made+=("$CONTROL_GROUPS/cpu/docker/$1" "$CONTROL_GROUPS/systemd/docker/$1")
        echo 100000 > $CONTROL_GROUPS/cpu/docker/"$1"/cpu.cfs_period_us
        echo "$2" > $CONTROL_GROUPS/cpu/docker/"$1"/cpu.cfs_quota_us
    else
        mkdir -p $CONTROL_GROUPS/docker
        echo +cpu > $CONTROL_GROUPS/docker/cgroup.subtree_control
        mkdir -p $CONTROL_GROUPS/docker/"$1"
        made+=("$CONTROL_GROUPS/docker/$1")
        echo "$2 100000" > $CONTROL_GROUPS/docker/"$1"/cpu.max
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

# --- recording ---

clean() {
    local i folder
    # The last ones first: a server waits for its clients.
    for ((i = ${#pids[@]} - 1; i >= 0; i--)); do
        kill "${pids[i]}" 2> /dev/null || true
        wait "${pids[i]}" 2> /dev/null || true
    done
    for folder in "${made[@]}"; do
        rmdir "$folder" 2> /dev/null || true
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
    cache_slow search_files search_limited search_unlimited)

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
