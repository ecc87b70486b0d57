# SPDX-License-Identifier: Apache-2.0
# Clients update one row, each in a transaction that also thinks for 20 ms while it holds the row.
packages=postgresql
kind="wake-chain|lock-wait"
text='postgres processes waited for a row lock .* in ProcSleep \(called by (XactLockTableWait|LockTuple)\).*pgbench'
. "$HERE/servers.sh"

prepare() {
    start_postgres 'fsync = off'
    psql -q -c 'create table stock (id int primary key, pieces int)' \
        -c 'insert into stock select i, 0 from generate_series(1, 1000) i'
    cat > "$WORK/cause.sql" <<SQL
begin;
update stock set pieces = pieces + 1 where id = 1;
\sleep 20 ms
commit;
SQL
    sed 's/id = 1/id = :client_id + 1/' "$WORK/cause.sql" > "$WORK/twin.sql"
}
cause() { pgbench -n -c 4 -T "$SECONDS_OF_RUN" -f "$WORK/cause.sql" > "$WORK/client.log" 2>&1; }
twin() { pgbench -n -c 4 -T "$SECONDS_OF_RUN" -f "$WORK/twin.sql" > "$WORK/client.log" 2>&1; }
target() { echo "-p $server --children"; }
