# SPDX-License-Identifier: Apache-2.0
# fsync through io_uring, on a disk that is limited to 50 writes a second: a worker of io_uring waits for the disk,
# and the thread for the worker. The twin writes to the page cache only.
packages='gcc util-linux'
skip_unless='may_limit_disk write'
kind=disk-wait
text='ring waited .*sync_blocks'
prepare() {
    binary=$(program ring.c)
    group=$(control_group blkio)
    head -c 4M /dev/urandom > "$WORK/table"
    sync "$WORK/table"
    limit_disk "$group" "$WORK/table" write 50
}
cause() { run_in_group_as_target "$group" "$binary" "$WORK/table" "$SECONDS_OF_RUN" sync; }
twin() { run_in_group_as_target "$group" "$binary" "$WORK/table" "$SECONDS_OF_RUN" write; }
clean() { rmdir "$group"; }
