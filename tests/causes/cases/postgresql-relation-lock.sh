# ALTER TABLE holds the table in an open transaction; readers wait for it.
packages="postgresql postgresql-contrib"
kind=lock-wait
text='postgres .*waited for a table lock in ProcSleep \(called by LockRelationOid\).*pg_sleep'
. "$HERE/servers.sh"

prepare() {
    start_postgres 'fsync = off'
    psql -q -c 'create table stock (id int primary key, pieces int)' -c 'create table other (id int)' \
        -c 'insert into stock select i, 0 from generate_series(1, 1000) i'
    echo 'select pieces from stock where id = :client_id + 1;' > "$WORK/readers.sql"
}
# A migration of TABLE takes a second and a half in the middle of the run, beside readers.
run() { # TABLE
    (
        sleep 2
        psql -q -c "begin" -c "alter table $1 add column c$RANDOM int" -c "select pg_sleep(1.5)" -c "commit"
    ) > "$WORK/holder.log" 2>&1 &
    local holder=$!
    pgbench -n -c 3 -R 100 -T "$SECONDS_OF_RUN" -f "$WORK/readers.sql" > "$WORK/client.log" 2>&1
    wait "$holder"
}
cause() { run stock; }
twin() { run other; }
target() { echo "-p $server --children"; }
