# SPDX-License-Identifier: Apache-2.0
# Redis syncs its append-only file after each command. On a quick disk each of these waits is too short to be a stall.
packages="redis-server redis-tools"
kind='disk-wait|short-waits'
text='redis-server waited for a disk (\(fdatasync\) on appendonly.*flushAppendOnlyFile|in flushAppendOnlyFile .* for less than)'
. "$HERE/servers.sh"

prepare() { start_redis --appendonly yes; }
# Five hundred commands a second: a fast disk takes a tenth of a millisecond for each.
commands() { # POLICY
    redis-cli -s "$WORK/socket" config set appendfsync "$1"
    timeout "$SECONDS_OF_RUN" redis-cli -s "$WORK/socket" -r -1 -i 0.002 set key value > "$WORK/commands" || true
}
cause() { commands always; }
twin() { commands no; }
target() { echo "-p $server"; }
