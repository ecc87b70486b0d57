# SPDX-License-Identifier: Apache-2.0
# Two workers of gunicorn take 30 ms for each request of eight clients, whose connections wait in the kernel meanwhile.
packages="gunicorn python3"
kind=accept-queue
text='connections waited for gunicorn to accept them at 127\.0\.0\.1:[0-9]+, .* 2 busy threads were mostly asleep'
. "$HERE/servers.sh"

prepare() {
    port=$(free_port)
    start gunicorn --workers 2 --bind "127.0.0.1:$port" --chdir "$PROGRAMS" offers:application
    server=${pids[-1]}
    until_ready bash -c "exec 3<>/dev/tcp/127.0.0.1/$port"
    until_ready has_both_workers
}
has_both_workers() {
    workers=$(pgrep -d ' ' -P "$server")
    [[ $workers == *' '* ]]
}
clients() { # PATH NUMBER
    "$DEBIAN_PYTHON" "$PROGRAMS/offers.py" "$port" "$1" "$2" "$SECONDS_OF_RUN"
}
cause() { clients /offer 8; }
twin() { clients / 1; }
target() { printf -- '-p %s ' "$server" $workers; }
