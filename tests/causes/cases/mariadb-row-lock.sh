# SPDX-License-Identifier: Apache-2.0
# Clients update one row of InnoDB, each in a transaction that also thinks for 10 ms while it holds the row.
packages="mariadb-server"
kind=lock-wait
text='threads (named mariadbd|of mariadbd named one_connection) waited for a row lock in handler::.*held it in turn'
. "$HERE/servers.sh"

prepare() {
    start_mariadb --innodb-flush-log-at-trx-commit=0
    sql shop <<SQL
create table stock (id int primary key, pieces int);
insert into stock select seq, 0 from seq_1_to_1000;
delimiter //
create procedure sell(item int, n int) begin
    declare i int default 0;
    while i < n do
        start transaction;
        update stock set pieces = pieces + 1 where id = item;
        do sleep(0.01);
        commit;
        set i = i + 1;
    end while;
end//
SQL
}
# A client for each row, which sells it for about the length of the run.
clients() { # ROW…
    local row clients=()
    for row; do
        sql shop <<< "call sell($row, $SELLS)" &
        clients+=($!)
    done
    wait "${clients[@]}"
}
# Each takes 10.5 ms or more.
cause() { SELLS=$((SECONDS_OF_RUN * 30)) clients 1 1 1; }
twin() { SELLS=$((SECONDS_OF_RUN * 90)) clients 1 2 3; }
target() { echo "-p $server"; }
