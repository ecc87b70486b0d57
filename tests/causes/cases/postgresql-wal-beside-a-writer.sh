# SPDX-License-Identifier: Apache-2.0
# Commits flush the WAL to a disk that another process writes to, with an fsync of 64 MB at a time.
packages=postgresql
kind=disk-wait
text='postgres .*waited for a disk \(WAL flush, fdatasync\) on [0-9A-F]{24} in (pg_fdatasync \(called by )?XLogFlush'
. "$HERE/servers.sh"

prepare() {
    start_postgres
    psql -q -c 'create table orders (id bigserial primary key, what text)'
    echo "insert into orders (what) values (repeat('x', 200));" > "$WORK/commit.sql"
}
commits() { pgbench -n -c 2 -R 50 -T "$SECONDS_OF_RUN" -f "$WORK/commit.sql" > "$WORK/client.log" 2>&1; }
cause() {
    for_the_run dd if=/dev/zero of="$WORK/dump" bs=1M count=64 conv=fsync status=none &
    local writer=$!
    commits
    wait "$writer"
}
# The same commits, which do not wait for their WAL.
twin() { PGOPTIONS='-c synchronous_commit=off' commits; }
target() { echo "-p $server --children"; }
