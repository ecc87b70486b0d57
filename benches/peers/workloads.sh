# SPDX-License-Identifier: Apache-2.0
# The workloads. Sourced. run_NAME prints "METRIC VALUE" lines, smaller is better: `mean`, and `p50`, `p99`
# and `p999` where the workload prints them, in µs. set_up_NAME and tear_down_NAME stand around all rounds.

workloads=(pipe messaging matrix pgbench redis loop)

declare -A workload_title=(
    [pipe]='perf bench sched pipe, one CPU'
    [messaging]='perf bench sched messaging'
    [matrix]='stress-ng --matrix 0'
    [pgbench]='pgbench, 4 clients, select only'
    [redis]='redis-benchmark, 20 clients, GET'
    [loop]='10 µs loop, one CPU'
)

set_up_pipe() { needs perf 'apt-get install linux-perf'; }
run_pipe() {
    taskset -c "$cpu" perf bench sched pipe -l $((seconds * 100000)) 2>/dev/null |
        awk '/usecs\/op/ { print "mean", $1 }'
}
tear_down_pipe() { :; }

set_up_messaging() { needs perf 'apt-get install linux-perf'; }
# In each group 20 senders write each message to 20 receivers.
run_messaging() {
    local loops=$((seconds * 400))
    perf bench -f simple sched messaging -g 4 -l "$loops" 2>/dev/null |
        awk -v messages=$((4 * 20 * 20 * loops)) '{ print "mean", 1e6 * $1 / messages }'
}
tear_down_messaging() { :; }

set_up_matrix() { needs stress-ng 'apt-get install stress-ng'; }
run_matrix() {
    stress-ng --matrix 0 --timeout "$seconds" --metrics-brief 2>&1 |
        awk '$4 == "matrix" && $9 + 0 > 0 { print "mean", 1e6 / $9; exit }'
}
tear_down_matrix() { :; }

# A separate cluster, in memory, so that the disk has no influence.
set_up_pgbench() {
    local bin
    bin=$(find /usr/lib/postgresql -maxdepth 2 -name bin 2>/dev/null | sort -V | tail -1)
    [[ -n $bin ]] || {
        echo 'PostgreSQL is not installed: apt-get install postgresql' >"$scratch/why"
        return 1
    }
    pg=/dev/shm/wallprof-peers
    rm -rf "$pg"
    install -d -o postgres "$pg"
    as_postgres "$bin/initdb" -D "$pg/data" -A trust
    as_postgres "$bin/pg_ctl" -D "$pg/data" -o "-p 5499 -k $pg -c fsync=off" -l "$pg/log" -w start
    as_postgres pgbench -h "$pg" -p 5499 -i -s 5 postgres
    pg_bin=$bin
}
as_postgres() {
    (cd / && setpriv --reuid postgres --regid postgres --clear-groups "$@") >"$scratch/output" 2>&1
}
run_pgbench() {
    rm -f "$pg"/log.*
    (cd "$pg" && setpriv --reuid postgres --regid postgres --clear-groups \
        pgbench -h "$pg" -p 5499 -n -S -c 4 -T "$seconds" -l --log-prefix="$pg/log" postgres) >/dev/null 2>&1
    # Third column: the transaction's latency in µs.
    cat "$pg"/log.* | awk '{ print $3 }' | percentiles
}
tear_down_pgbench() {
    as_postgres "$pg_bin/pg_ctl" -D "$pg/data" -m fast stop
    rm -rf "$pg"
}

set_up_redis() {
    needs redis-server 'apt-get install redis-server' || return 1
    redis-server --port 6399 --save '' --appendonly no >/dev/null 2>&1 &
    redis=$!
    local tries
    for ((tries = 0; tries < 200; tries++)); do
        redis-cli -p 6399 ping >/dev/null 2>&1 && return 0
        sleep 0.05
    done
    echo 'redis-server does not answer' >"$scratch/why"
    return 1
}
# The distribution's steps are its own: the first one at or above each percentile.
run_redis() {
    redis-benchmark -p 6399 -c 20 -n $((seconds * 30000)) -t get --precision 3 2>/dev/null | tr '\r' '\n' | awk '
        /percentile <=/ || /<= [0-9.]+ milliseconds/ {
            percent = $1; sub(/%/, "", percent)
            for (i = 1; i <= NF; i++) if ($i == "<=") ms = $(i + 1)
            if (percent + 0 >= 50 && !(p50)) p50 = ms
            if (percent + 0 >= 99 && !(p99)) p99 = ms
            if (percent + 0 >= 99.9 && !(p999)) p999 = ms
        }
        /requests completed in/ { requests = $1; took = $5 }
        /throughput summary/ { rate = $3 }
        END {
            if (rate) print "mean", 1e6 / rate
            if (p50) print "p50", p50 * 1000
            if (p99) print "p99", p99 * 1000
            if (p999) print "p999", p999 * 1000
        }'
}
tear_down_redis() {
    kill "$redis" 2>/dev/null
    wait "$redis" 2>/dev/null || true
}

set_up_loop() { gcc -O2 -o "$scratch/loop" "$here/loop.c" 2>"$scratch/why"; }
run_loop() {
    taskset -c "$cpu" "$scratch/loop" "$seconds" | awk -v s="$seconds" '
        { print "mean", s * 1e6 / $1; print "p50", $2 / 1000; print "p99", $3 / 1000; print "p999", $4 / 1000 }'
}
tear_down_loop() { :; }

# Mean and tail of the numbers on stdin.
percentiles() {
    sort -n | awk '{ value[NR] = $1; sum += $1 } END {
        if (!NR) exit 1
        print "mean", sum / NR
        print "p99", value[int((NR - 1) * 0.99) + 1]
        print "p999", value[int((NR - 1) * 0.999) + 1]
    }'
}
