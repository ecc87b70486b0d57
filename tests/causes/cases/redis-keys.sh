# SPDX-License-Identifier: Apache-2.0
# KEYS walks over a million keys while other clients wait for their answers. Not found yet: it computes, and no switch
# shows that the loop came back.
packages="redis-server redis-tools"
kind=blocked-loop
text='redis-server .*keysCommand'
. "$HERE/servers.sh"

prepare() {
    start_redis --enable-debug-command local
    redis-cli -s "$WORK/socket" debug populate 1000000 key 16
}
keys() { # COMMAND
    local until=$((SECONDS + SECONDS_OF_RUN))
    while [ "$SECONDS" -lt "$until" ]; do
        redis-cli -s "$WORK/socket" "$@"
        redis-cli -s "$WORK/socket" get key:1
        sleep 0.3
    done
}
cause() { keys keys 'nothing*'; }
twin() { keys mget key:1 key:2; }
target() { echo "-p $server"; }
