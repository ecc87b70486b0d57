# KEYS walks over a million keys while other clients wait for their answers.
packages="redis-server redis-tools"
kind=blocked-loop
text='redis-server .*keysCommand'
. "$HERE/servers.sh"

prepare() {
    start_redis
    redis-cli -s "$WORK/socket" debug populate 1000000 key 16
}
keys() { # PATTERN
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
