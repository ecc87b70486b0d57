#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Whether an idle machine is reported as idle: watches everything while servers without clients and an
# interactive shell run, and counts the stalls that are critical.
#
# usage: tests/idle/run.sh [-o] [-w WALLPROF] [SECONDS]      600 seconds by default
#
#   -o   only the servers and the shell count, and of their stalls those that were late for another reason than
#        waiting for a CPU: for a machine on which other programs run
#
# The servers: PostgreSQL, MariaDB, Redis, nginx, memcached, a JVM, a Go server, Node.js, Python's http.server,
# sshd and dnsmasq, from Debian's packages. A missing one is left out with a message. Somebody types into the
# shell every two seconds.
#
# Exit code 1: a stall is critical. It prints the metrics of such stalls, and where each was, from the flight
# recording. Needs root, jq and curl. The result is valid only on a machine without other load.
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly HERE=$PWD/tests/idle
# The default of `watch --severity`.
readonly CRITICAL=500us
readonly STARTUP_SECONDS=10
# Of the threads and reasons with critical stalls, so many are printed with their stacks.
readonly MOST_LISTED=40

only_own=
wallprof=$PWD/target/release/wallprof

say() { echo "idle: $*" >&2; }
fail() {
    say "$*"
    exit 2
}

while getopts 'ow:' option; do
    case $option in
    o) only_own=yes ;;
    w) wallprof=$(realpath "$OPTARG") ;;
    *) fail 'usage: run.sh [-o] [-w WALLPROF] [SECONDS]' ;;
    esac
done
shift $((OPTIND - 1))
readonly seconds=${1:-600} wallprof only_own

[[ $(id -u) == 0 ]] || fail 'this needs root: it watches the whole machine and runs servers as their users'
[[ -x $wallprof ]] || fail "$wallprof is not there: make release, or give -w"
for program in jq curl; do
    command -v "$program" > /dev/null || fail "$program is not installed"
done

# Where the servers' own users may go.
folder=$(mktemp -d /var/tmp/wallprof-idle.XXXXXX)
chmod 711 "$folder"
readonly folder
pids=()
# The command names of what is started here.
names=()

# shellcheck disable=SC2329 # called by the trap
clean_up() {
    local pid
    if [[ -d $folder/postgres ]]; then
        as_postgres "$postgres/pg_ctl" -D "$folder/postgres" -m immediate stop > /dev/null 2>&1 || true
    fi
    for pid in "${pids[@]}"; do
        kill "$pid" 2> /dev/null || true
    done
    wait
    rm -rf "$folder"
}
trap clean_up EXIT

installed() { # PROGRAM
    command -v "$1" > /dev/null && return 0
    say "left out: $1 is not installed"
    return 1
}

# A link to a program, so that its command name differs from those of other programs on this machine.
link_to() { # NAME PROGRAM: prints its path
    ln -s "$2" "$folder/$1"
    echo "$folder/$1"
}

# Starts a program that runs until the end, and has this command name.
start() { # NAME COMMAND…
    names+=("$1")
    shift
    "$@" > "$folder/log.${#pids[@]}" 2>&1 < /dev/null &
    pids+=($!)
}

own_folder() { # USER: prints its name
    install -d -o "$1" "$folder/$1"
    echo "$folder/$1"
}

# --- the servers ---

postgres=$(find /usr/lib/postgresql -maxdepth 2 -name bin 2> /dev/null | sort -V | tail -1)

# In its own folder: the caller's may be closed to it.
as_postgres() { (cd "$folder" && setpriv --reuid=postgres --regid=postgres --init-groups "$@"); }

start_postgres() {
    if [[ -z $postgres ]] || ! id postgres > /dev/null 2>&1; then
        say 'left out: postgresql is not installed'
        return
    fi
    own_folder postgres > /dev/null
    as_postgres "$postgres/initdb" -D "$folder/postgres" -A trust > "$folder/initdb.log"
    as_postgres "$postgres/pg_ctl" -D "$folder/postgres" -w -l "$folder/postgres/log" \
        -o "-k $folder/postgres -c listen_addresses=" start > /dev/null
    names+=('postgres')
    servers=$((servers + 1))
}

start_mariadb() {
    installed mariadbd || return 0
    local data
    data=$(own_folder mysql)
    mariadb-install-db --no-defaults --user=mysql --datadir="$data" > "$folder/mariadb.log" 2>&1
    start 'mariadbd' mariadbd --no-defaults --user=mysql --datadir="$data" --socket="$data/socket" --skip-networking
}

start_nginx() {
    installed nginx || return 0
    cat > "$folder/nginx.conf" <<- END
	daemon off;
	pid $folder/nginx.pid;
	error_log $folder/nginx.log;
	worker_processes 2;
	events {}
	http {
	    access_log off;
	    server { listen unix:$folder/nginx; }
	}
	END
    start 'nginx' nginx -c "$folder/nginx.conf"
}

start_java() {
    installed javac || return 0
    javac -d "$folder/java" "$HERE/Server.java"
    start 'java' java -cp "$folder/java" Server
}

start_go() {
    installed go || return 0
    (cd "$HERE" && go build -o "$folder/go-server" server.go)
    start 'go-server' "$folder/go-server"
}

start_node() {
    installed node || return 0
    start 'node' env -C "$folder" node -e "
        require('http').createServer((request, response) => response.end()).listen('$folder/node');
        setInterval(() => {}, 1000)"
}

start_sshd() {
    [[ -x /usr/sbin/sshd ]] || { say 'left out: sshd is not installed'; return 0; }
    mkdir -p /run/sshd
    ssh-keygen -q -t ed25519 -N '' -f "$folder/key"
    start 'sshd' /usr/sbin/sshd -D -f /dev/null -h "$folder/key" -o "PidFile $folder/sshd.pid" \
        -o "ListenAddress 127.0.0.1:$(free_port)"
}

start_dnsmasq() {
    [[ -x /usr/sbin/dnsmasq ]] || { say 'left out: dnsmasq is not installed'; return 0; }
    start 'dnsmasq' /usr/sbin/dnsmasq -k -C /dev/null --port="$(free_port)" --listen-address=127.0.0.1 \
        --bind-interfaces --no-resolv --no-hosts --pid-file="$folder/dnsmasq.pid"
}

# One that nothing listens on now.
free_port() {
    local port
    for ((port = 20000 + RANDOM; ; port++)); do
        ! (: < "/dev/tcp/127.0.0.1/$port") 2> /dev/null && break
    done
    echo "$port"
}

start_servers() {
    servers=0
    start_postgres
    start_mariadb
    ! installed redis-server ||
        start 'redis-server' redis-server --port 0 --unixsocket "$folder/redis" --dir "$folder"
    start_nginx
    ! installed memcached || start 'memcached' memcached -u nobody -s "$(own_folder nobody)/socket"
    start_java
    start_go
    start_node
    # Debian's, not one of the user's.
    ! installed /usr/bin/python3 ||
        start 'idle-python3' env -C "$folder" "$(link_to idle-python3 /usr/bin/python3)" -m http.server \
            --bind 127.0.0.1 0
    start_sshd
    start_dnsmasq
    servers=$((servers + ${#pids[@]}))
}

# --- the shell ---

type_commands() {
    while sleep 2; do
        echo 'echo "$SECONDS"; cd /; ls > /dev/null; true | cat'
    done
}

start_shell() {
    installed script || return 0
    names+=('script' 'idle-bash')
    type_commands | TERM=dumb script -qfec "$(link_to idle-bash /bin/bash) --norc -i" /dev/null \
        > "$folder/shell.log" 2>&1 &
    pids+=($!)
}

assert_all_run() {
    local at
    for at in "${!pids[@]}"; do
        kill -0 "${pids[at]}" 2> /dev/null ||
            fail "a server ended: $(tail -3 "$folder/log.$at" 2> /dev/null)"
    done
}

# --- the watcher ---

wait_for() { # PATTERN FILE PID
    until grep -qs -- "$1" "$2"; do
        kill -0 "$3" 2> /dev/null || fail "the watcher ended: $(tail -3 "$2")"
        sleep 0.1
    done
}

watch_for() { # SECONDS: leaves metrics and watch.db
    "$wallprof" watch -a --listen 127.0.0.1:0 --socket "$folder/ctl.sock" --keep "$(($1 + 120))s" \
        -o "$folder/watch.db" < /dev/null > "$folder/watch.log" 2>&1 &
    local pid=$!
    pids+=("$pid")
    wait_for armed "$folder/watch.log" "$pid"
    sleep "$1"
    curl -sf "http://$(grep -oEm1 '127\.0\.0\.1:[0-9]+' "$folder/watch.log")/metrics" > "$folder/metrics"
    kill -TERM "$pid"
    wait "$pid" || fail "the watcher ended with $?: $(tail -3 "$folder/watch.log")"
    unset 'pids[-1]'
}

# --- the verdict ---

# Lines of `process thread reason count`, most first.
critical_stalls() {
    sed -nE 's/^wallprof_stalls_total\{process="([^"]*)",thread="([^"]*)",reason="([^"]*)",severity="critical".*\} ([0-9]+).*/\1\t\2\t\3\t\4/p' \
        "$folder/metrics" | sort -t $'\t' -k 4,4nr
}

is_own() { # PROCESS
    local name
    for name in "${names[@]}"; do
        [[ $1 == "$name" ]] && return 0
    done
    return 1
}

# The places of critical stalls in the flight recording: how many, how late at most and in all, how much of that
# they waited for a CPU, who had it, and both stacks. Stalls of a busy second are folded: there are fewer than in
# the metrics.
print_places() { # THREAD REASON
    "$wallprof" stalls "$folder/watch.db" --json --longer-than "$CRITICAL" --thread "$1" --reason "$2" |
        jq -rs 'def ms: "\(. / 1e4 | round / 100) ms";
            def names: [.[]? | .symbol // .module // .address | select(. != null)][:8] | join(" < ");
            map(select(.voluntary | not)) | group_by([.user_stack | names])[:5][]
            | "        \(length) times, up to \(map(.late_ns) | max | ms): \(.[0].syscall // "no system call")",
              "            late    \(map(.late_ns) | add | ms), \(map([.late_ns, .runnable_ns] | min) | add | ms) of it without a CPU",
              "            user    \(.[0].user_stack | names)",
              "            kernel  \(.[0].kernel_stack | names)",
              "            ran instead \([.[].ran_instead[]?.comm] | group_by(.) | sort_by(-length) | map(.[0])[:4] | join(", "))"'
}

# The critical stalls of the servers and the shell in the flight recording that did not wait for a CPU for half
# of their lateness or more.
stalls_beside_the_cpu() {
    local own
    own=$(printf '%s\n' "${names[@]}" | jq -R . | jq -s .)
    "$wallprof" report "$folder/watch.db" --json > "$folder/report.json"
    "$wallprof" stalls "$folder/watch.db" --json --longer-than "$CRITICAL" |
        jq -nc --argjson own "$own" --slurpfile report "$folder/report.json" '
            ($report[0].threads | map({key: "\(.id)", value: .process}) | from_entries) as $process
            | inputs
            | select($process["\(.thread)"] as $name | $own | index($name))
            | select(.runnable_ns * 2 < .late_ns and (.reason | IN("preempted", "runnable") | not))
            | {process: $process["\(.thread)"], comm, reason, syscall, late_ms: (.late_ns / 1e6),
                asked_ms: (.asked_ns // 0 | . / 1e6), user: [.user_stack[]?.symbol][:4]}'
}

judge() {
    local process thread reason count listed=0 own=0 others=0 beside
    echo 'critical stalls, by thread, process and reason:'
    while IFS=$'\t' read -r process thread reason count; do
        if is_own "$process"; then
            own=$((own + count))
        else
            others=$((others + count))
            [[ -z $only_own ]] || continue
        fi
        printf '    %s of %s, %s: %d\n' "$thread" "$process" "$reason" "$count"
        ((listed++ >= MOST_LISTED)) || print_places "$thread" "$reason"
    done < <(critical_stalls)
    stalls_beside_the_cpu > "$folder/beside"
    beside=$(wc -l < "$folder/beside")
    echo 'critical stalls of the servers and the shell that did not wait for a CPU for most of the time:'
    sed 's/^/    /' "$folder/beside"
    echo "critical stalls in $seconds s: $own of the servers and the shell ($beside in the list above)," \
        "$others of other programs"
    if [[ -n $only_own ]]; then
        [[ $beside == 0 ]]
    else
        [[ $own == 0 && $others == 0 ]]
    fi
}

start_servers
start_shell
sleep "$STARTUP_SECONDS"
assert_all_run
echo "$(uname -r), $(nproc) CPUs, $servers servers and a shell, load average $(cut -d ' ' -f 1-3 /proc/loadavg)"
watch_for "$seconds"
assert_all_run
judge
