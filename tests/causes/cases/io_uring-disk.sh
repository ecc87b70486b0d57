# SPDX-License-Identifier: Apache-2.0
# Reads through io_uring from a disk that is limited to 50 reads a second. The twin reads from the page cache: other
# programs use the disk, too.
packages='gcc util-linux'
skip_unless='may_limit_disk read'
kind=disk-wait
text='ring waited .*read_block.*: its control group /wallprof-causes-.* may read 50 times a second'
prepare() {
    binary=$(program ring.c)
    group=$(control_group blkio)
    head -c 32M /dev/urandom > "$WORK/table"
    sync "$WORK/table"
}
cause() {
    limit_disk "$group" "$WORK/table" read 50
    run_in_group_as_target "$group" "$binary" "$WORK/table" "$SECONDS_OF_RUN" direct
}
twin() {
    limit_disk "$group" "$WORK/table" read 1000000
    cat "$WORK/table" > /dev/null
    run_in_group_as_target "$group" "$binary" "$WORK/table" "$SECONDS_OF_RUN" cached
}
clean() { rmdir "$group"; }
