# SPDX-License-Identifier: Apache-2.0
# A command that sleeps (DEBUG SLEEP) while other clients wait for their answers. redis-keys has one that computes.
packages="redis-server redis-tools"
kind=blocked-loop
text='redis-server did not return to epoll_wait .*the command debugCommand'
. "$HERE/servers.sh"

prepare() { start_redis --enable-debug-command local; }
commands() { # COMMAND
    local until=$((SECONDS + SECONDS_OF_RUN))
    while [ "$SECONDS" -lt "$until" ]; do
        redis-cli -s "$WORK/socket" "$@"
        redis-cli -s "$WORK/socket" get key:1
        sleep 0.1
    done
}
cause() { commands debug sleep 0.05; }
twin() { commands mget key:1 key:2; }
target() { echo "-p $server"; }
