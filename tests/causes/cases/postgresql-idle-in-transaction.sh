# SPDX-License-Identifier: Apache-2.0
# A client updates a row, and then does nothing for most of the run: its transaction is open. Others want the row.
packages=postgresql
kind=wake-chain
text='postgres .*waited for a row lock of postgres [0-9]+ \(app shop .*idle in transaction\) in ProcSleep.*psql [0-9]+ \(client'
. "$HERE/servers.sh"

prepare() {
    start_postgres 'fsync = off'
    psql -q -c 'create table stock (id int primary key, pieces int)' \
        -c 'insert into stock select i, 0 from generate_series(1, 1000) i'
    echo 'update stock set pieces = pieces + 1 where id = :client_id + 2;' > "$WORK/others.sql"
    sed 's/:client_id + 2/1/' "$WORK/others.sql" > "$WORK/same.sql"
}
# Again and again a transaction holds row 1 for two seconds, while others update what FILE says, some each 100 ms.
hold_a_row() {
    echo "begin; update stock set pieces = 0 where id = 1;"
    sleep 2
    echo "commit;"
    sleep 0.3
}
run() { # FILE
    for_the_run hold_a_row | psql -q > "$WORK/holder.log" 2>&1 &
    local holder=$!
    pgbench -n -c 3 -R 30 -T "$SECONDS_OF_RUN" -f "$1" > "$WORK/client.log" 2>&1
    wait "$holder"
}
cause() { run "$WORK/same.sql"; }
twin() { run "$WORK/others.sql"; }
target() { echo "-p $server --children"; }
