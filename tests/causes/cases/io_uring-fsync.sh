# fsync through io_uring, on a disk that is limited to 50 writes a second: a worker of io_uring waits for the disk,
# and the thread for the worker. The twin writes to the page cache only.
packages='gcc util-linux'
skip_unless='[ -e /sys/fs/cgroup/blkio/blkio.throttle.write_iops_device ] || grep -qw io /sys/fs/cgroup/cgroup.subtree_control'
kind=disk-wait
text='ring waited .*sync_blocks'
prepare() {
    binary=$(program ring.c)
    group=$(control_group blkio)
    head -c 4M /dev/urandom > "$WORK/table"
    sync "$WORK/table"
    # The disk itself, not one of its partitions.
    source=$(df --output=source "$WORK" | tail -1)
    disk=$(lsblk -no PKNAME "$source" | tail -1)
    device=$(lsblk -dno MAJ:MIN "${disk:+/dev/}${disk:-$source}" | tr -d ' ')
    if [ -e "$group/io.max" ]; then
        echo "$device wiops=50" > "$group/io.max"
    else
        echo "$device 50" > "$group/blkio.throttle.write_iops_device"
    fi
}
cause() { run_in_group_as_target "$group" "$binary" "$WORK/table" "$SECONDS_OF_RUN" sync; }
twin() { run_in_group_as_target "$group" "$binary" "$WORK/table" "$SECONDS_OF_RUN" write; }
clean() { rmdir "$group"; }
