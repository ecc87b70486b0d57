# SPDX-License-Identifier: Apache-2.0
# Redis syncs its append-only file after each command.
packages="redis-server redis-tools"
kind=disk-wait
text='redis-server waited for a disk \(fdatasync\) on appendonly.*flushAppendOnlyFile'
. "$HERE/servers.sh"

prepare() { start_redis --appendonly yes; }
commands() { # POLICY
    local until=$((SECONDS + SECONDS_OF_RUN))
    redis-cli -s "$WORK/socket" config set appendfsync "$1"
    while [ "$SECONDS" -lt "$until" ]; do
        echo "set key $SECONDS"
        sleep 0.01
    done | redis-cli -s "$WORK/socket"
}
cause() { commands always; }
twin() { commands no; }
target() { echo "-p $server"; }
