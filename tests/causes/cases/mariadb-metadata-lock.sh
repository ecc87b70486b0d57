# A transaction that has read a table stays open; ALTER TABLE waits for it, and readers wait for ALTER TABLE.
packages="mariadb-server"
kind=lock-wait
text='mariadbd .*waited for a metadata lock in MDL_wait::timed_wait.*mariadbd held it.*sleep'
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
# A migration of TABLE in the middle of the run, beside an open transaction and readers.
run() { # TABLE
    sql shop <<< 'start transaction; select pieces from stock where id = 1; do sleep(3); commit' &
    local reader=$! migration
    (
        sleep 1
        sql shop <<< "alter table $1 add column c$RANDOM int"
    ) &
    migration=$!
    readers
    wait "$reader" "$migration"
}
cause() { run stock; }
twin() { run other; }
target() { echo "-p $server"; }
