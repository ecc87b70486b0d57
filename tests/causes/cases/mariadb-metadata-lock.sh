# SPDX-License-Identifier: Apache-2.0
# A transaction that has read a table stays open; ALTER TABLE waits for it, and readers wait for ALTER TABLE.
packages="mariadb-server"
kind=lock-wait
text='mariadbd .*waited for a metadata lock in MDL_wait::timed_wait.*((mariadbd|one_connection) [0-9]+ held it|they held it in turn).*sleep'
. "$HERE/servers.sh"

prepare() {
    start_mariadb --innodb-flush-log-at-trx-commit=0
    sql shop <<SQL
create table stock (id int primary key, pieces int);
create table other (id int);
insert into stock select seq, 0 from seq_1_to_1000;
SQL
}
readers() {
    local until=$((SECONDS + SECONDS_OF_RUN))
    while [ "$SECONDS" -lt "$until" ]; do
        echo 'select pieces from stock where id = 2;'
        sleep 0.02
    done | sql shop
}
# Open transactions, and in each a migration of TABLE, beside readers.
open_a_transaction() {
    echo 'start transaction; select pieces from stock where id = 1; do sleep(1.5); commit;'
    sleep 2
}
migrate() { # TABLE
    sleep 0.5
    echo "alter table $1 add column c$RANDOM int;"
    sleep 1.5
}
run() { # TABLE
    for_the_run open_a_transaction | sql shop &
    local reader=$! migration
    for_the_run migrate "$1" | sql shop &
    migration=$!
    readers
    wait "$reader" "$migration"
}
cause() { run stock; }
twin() { run other; }
target() { echo "-p $server"; }
