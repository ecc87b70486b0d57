# SPDX-License-Identifier: Apache-2.0
# A process holds the database in a transaction for 300 ms at a time; another one that writes waits in SQLite's
# busy handler.
packages="sqlite3 python3"
kind=lock-wait
text='python3.* waited for a database lock in sqlite3InvokeBusyHandler.*: python3 [0-9]+.* held it'

prepare() {
    sqlite3 "$WORK/shop.db" 'pragma journal_mode = wal; create table stock (id integer primary key, pieces int)' \
        'insert into stock values (1, 0)'
}
cause() {
    "$DEBIAN_PYTHON" "$PROGRAMS/sqlite_busy.py" holder "$WORK/shop.db" "$SECONDS_OF_RUN" &
    run_as_target "$DEBIAN_PYTHON" "$PROGRAMS/sqlite_busy.py" writer "$WORK/shop.db" "$SECONDS_OF_RUN"
}
twin() {
    sqlite3 "$WORK/other.db" 'create table stock (id integer primary key, pieces int)' \
        'insert into stock values (1, 0)'
    "$DEBIAN_PYTHON" "$PROGRAMS/sqlite_busy.py" holder "$WORK/other.db" "$SECONDS_OF_RUN" &
    run_as_target "$DEBIAN_PYTHON" "$PROGRAMS/sqlite_busy.py" writer "$WORK/shop.db" "$SECONDS_OF_RUN"
}
