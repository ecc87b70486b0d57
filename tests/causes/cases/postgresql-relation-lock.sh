# SPDX-License-Identifier: Apache-2.0
# ALTER TABLE holds the table in an open transaction; readers wait for it.
packages=postgresql
kind=lock-wait
text='postgres .*waited for a table lock in ProcSleep \(called by LockRelationOid\).*pg_sleep'
. "$HERE/servers.sh"

prepare() {
    start_postgres 'fsync = off'
    psql -q -c 'create table stock (id int primary key, pieces int)' -c 'create table other (id int)' \
        -c 'insert into stock select i, 0 from generate_series(1, 1000) i'
    echo 'select pieces from stock where id = :client_id + 1;' > "$WORK/readers.sql"
}
# Migrations of TABLE take 0.8 seconds each, one after the other, beside readers.
migrate() { # TABLE
    echo "begin; alter table $1 add column if not exists c int; select pg_sleep(0.8); commit;"
    sleep 1.5
}
run() { # TABLE
    for_the_run migrate "$1" | psql -q > "$WORK/holder.log" 2>&1 &
    local holder=$!
    pgbench -n -c 3 -R 100 -T "$SECONDS_OF_RUN" -f "$WORK/readers.sql" > "$WORK/client.log" 2>&1
    wait "$holder"
}
cause() { run stock; }
twin() { run other; }
target() { echo "-p $server --children"; }
